/* canary.cu - what the child process of canary.h does: it opens the device with one layer of made-up weights, as wide
 * in its heads and of the same types as the model's, and without any file.  The check at open (check.cu) then holds
 * each special kernel to a plain one, and says before each which it is; two batches, a prompt and a token, follow. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guard/canary.h"
#include "device.cuh"
#include "weights/made_up.h"
#include "kernels/refuse.h"

#define FIRST_MS 300000              /* a driver may have to compile the kernels first */
#define WIDTH    256                 /* of the residual stream */
#define FF       256
#define VOCAB    2304                /* enough for several blocks to sample */
#define PROMPT   40
#define BLOCKS   24                  /* of a sequence: check.cu uses 304 positions */
#define PROC     "/proc/driver/nvidia"

int canary_patience_ms = 20000;

static int told = -1;                /* in the child: where it says what it does */
static bool asked;                   /* plan() has; open() is told the same */
static int own_gpu;                  /* in the child */

void about_to(const struct dev *d, int special)
{
	if (!d || !d->fault.lost)            /* else it stays what it was when the GPU was lost */
		canary_say(told, special == N_SPECIAL ? CANARY_PLAIN : special);
}

/* ---- made-up weights -------------------------------------------------------------------- */

struct made_reads { struct { uint64_t tag; void *at; } done[64]; unsigned n; };

/* Extents are read from even offsets, those of f32 from multiples of 4. */
static int read_made(void *ctx, const struct sr_extent *e, uint64_t from, size_t n, void *buf, uint64_t tag)
{
	struct made_reads *r = (struct made_reads *)ctx;
	unsigned char *to = (unsigned char *)buf;
	uint32_t seed = (uint32_t)from + (uint32_t)e->bytes;

	if (r->n == sizeof(r->done) / sizeof(r->done[0]))
		return -EAGAIN;
	for (size_t i = 0; i < n; i++)
		to[i] = made_byte(e->file, i, (unsigned char)((seed = seed * 1664525u + 1013904223u) >> 24));
	r->done[r->n].tag = tag;
	r->done[r->n++].at = buf;
	return 0;
}

static int wait_made(void *ctx, uint64_t *tag, void **at)
{
	struct made_reads *r = (struct made_reads *)ctx;

	if (!r->n)
		return -EIO;
	*tag = r->done[--r->n].tag;
	*at = r->done[r->n].at;
	return 0;
}

/* The type that stands for another: it is held in the same form. */
static int32_t stand_in(const struct sr_tensor *t)
{
	switch (t->type) {
	case SR_Q4_0: case SR_Q4_1: case SR_Q4_K: case SR_AWQ4: case SR_GPTQ4: case SR_GPTQ4_V2: case SR_CT4:
		return SR_AWQ4;
	case SR_F8:
		return SR_F8;
	case SR_NVFP4: case SR_NVFP4_CT:
		return SR_NVFP4;
	default:
		return SR_BF16;
	}
}

/* ---- a model like another ---------------------------------------------------------------- */

/* What the choice of kernels depends on; it is part of the key under which results are kept. */
struct likeness { int32_t heads, kv_heads, width, kv_type, deterministic, capped, qkv, o, gu, down, without, gpu; };

static struct likeness like(const struct sr_model *m, const struct sr_limits *lim, uint32_t without)
{
	struct likeness k = { 8, 2, 64, lim->kv_type, lim->deterministic, 0, SR_BF16, SR_BF16, SR_BF16, SR_BF16,
		(int32_t)without, lim->rank };

	for (int32_t l = m->n_layers - 1; l >= 0; l--) { /* the first of each sort stays */
		const struct sr_layer *y = &m->layer[l];
		const struct sr_attn *kind = kind_of(m, l);

		if (has_kv(m, l) && attend_width(kind->head_dim)) {
			k.heads = kind->n_heads;
			k.kv_heads = kind->n_kv_heads;
			k.width = kind->head_dim;
			k.capped = kind->cap > 0;
			k.qkv = stand_in(&y->q);
			k.o = stand_in(&y->o);
		}
		if (y->gate.type != SR_NONE && y->down.type != SR_NONE) {
			k.gu = stand_in(&y->gate);
			k.down = stand_in(&y->down);
		}
	}
	return k;
}

static struct sr_model made_model(const struct likeness *k, struct sr_layer *y)
{
	int64_t q = (int64_t)k->heads * k->width, kv = (int64_t)k->kv_heads * k->width;
	struct sr_model m = {};
	struct sr_attn *kind = &m.kind[0];

	snprintf(m.name, sizeof(m.name), "made up");
	snprintf(m.arch, sizeof(m.arch), "llama");
	m.n_layers = m.n_kinds = 1;
	m.d_model = WIDTH;
	m.d_ff = FF;
	m.n_vocab = VOCAB;
	m.context = BLOCKS * BLOCK;
	m.eps = 1e-5f;
	m.embed_scale = 1;
	kind->n_heads = k->heads;
	kind->n_kv_heads = k->kv_heads;
	kind->head_dim = k->width;
	kind->scale = 1 / sqrtf((float)k->width);
	kind->cap = k->capped ? 30 : 0;
	kind->rope.kind = SR_ROPE_PLAIN;
	kind->rope.dims = k->width;
	kind->rope.context = m.context;
	kind->rope.theta = 10000;
	kind->rope.factor = kind->rope.magnitude = 1;
	m.embed = made_tensor(SR_BF16, VOCAB, WIDTH);
	m.head = made_tensor(SR_BF16, VOCAB, WIDTH);
	m.norm = y->norm1 = y->norm2 = made_tensor(SR_F32, 1, WIDTH);
	y->d_ff = FF;
	y->q = made_tensor(k->qkv, q, WIDTH);
	y->k = y->v = made_tensor(k->qkv, kv, WIDTH);
	y->o = made_tensor(k->o, WIDTH, q);
	y->gate = y->up = made_tensor(k->gu, FF, WIDTH);
	y->down = made_tensor(k->down, WIDTH, FF);
	m.layer = y;
	return m;
}

static struct sr_limits made_limits(const struct likeness *k)
{
	struct sr_limits l = {};

	l.block_tokens = BLOCK;
	l.n_blocks = l.seq_blocks = BLOCKS;
	l.slots = 2;
	l.rows = l.scores = l.logit_rows = 8;
	l.tokens = 320;                      /* more than the kernels of few rows multiply */
	l.cmds = 8;
	l.words = BLOCKS * BLOCK + 64;
	l.kv_type = k->kv_type;
	l.deterministic = k->deterministic;
	l.self_check = 1;
	l.world = 1;
	l.n_groups = 1;
	return l;
}

/* ---- the child ---------------------------------------------------------------------------- */

static int compute(const struct sr_backend_ops *ops, struct sr_backend *b)
{
	int r = ops->launch(b, 0);

	while (r == 0)
		r = ops->poll(b, 0);
	return r < 0 ? r : 0;
}

/* A prompt, and the token after it, which a graph computes. */
static int batches(const struct sr_backend_ops *ops, struct sr_backend *b)
{
	struct sr_batch *a = ops->batch(b, 0);
	struct sr_sampling s = {};
	int32_t n = (int32_t)(sizeof(s) / sizeof(uint32_t));
	int e;

	s.top_p = 1;
	s.repetition = 1;
	a->n_copies = a->n_results = 0;
	a->cmd[0] = (struct sr_cmd){ SR_CMD_BEGIN, 0, 0, n, 0, 0 };
	a->cmd[1] = (struct sr_cmd){ SR_CMD_BLOCKS, 0, 0, BLOCKS, (uint32_t)n, 0 };
	memcpy(a->word, &s, sizeof(s));
	for (int32_t i = 0; i < BLOCKS; i++)
		a->word[n + i] = (uint32_t)i;
	for (int32_t i = 0; i < PROMPT; i++)
		a->token[i] = i * 7 % VOCAB;
	a->n_cmds = 2;
	a->n_words = n + BLOCKS;
	a->n_rows = a->n_results = 1;
	a->n_ids = a->n_tokens = PROMPT;
	a->row[0] = (struct sr_row){};
	a->row[0].n = PROMPT;
	a->row[0].sample = 1;
	about_to(NULL, N_SPECIAL);
	e = compute(ops, b);
	if (e)
		return e;
	a->n_cmds = a->n_words = a->n_ids = 0;
	a->n_tokens = 1;
	a->row[0].first = PROMPT;
	a->row[0].n = 1;
	a->row[0].token = SR_LAST;
	about_to(NULL, SPECIAL_GRAPHS);
	return compute(ops, b);
}

static int try_kernels(void *ctx, uint32_t *without, int to)
{
	const struct sr_backend_ops *ops = sr_backend_get(SR_BACKEND_VERSION);
	const struct likeness *k = (const struct likeness *)ctx;
	struct made_reads reads = {};
	struct sr_source src = { &reads, 0, NULL, read_made, wait_made };
	struct sr_limits lim = made_limits(k);
	struct sr_layer layer = {};
	struct sr_model m = made_model(k, &layer);
	char names[256], err[400] = "";
	struct sr_backend *b;
	int e;

	told = to;
	own_gpu = k->gpu;
	special_list(*without, names, sizeof(names));
	setenv("SLIPRING_CUDA_WITHOUT", names, 1);
	e = ops->open(&b, &m, &src, &lim, err, sizeof(err));
	if (e == 0) {
		e = batches(ops, b);
		if (special_parse(without, ops->without(b), err, sizeof(err)))
			e = -EIO;
	}
	if (*err)
		fprintf(stderr, "slipring-cuda: while kernels were tried: %s\n", err);
	return e == -EIO ? -EIO : e ? -EAGAIN : 0;
}

/* ---- the parent --------------------------------------------------------------------------- */

static const struct canary trial = { try_kernels, NULL, special_name, N_SPECIAL, FIRST_MS, 0 };

int canary_gpu(void)
{
	return own_gpu;
}

void canary_forget(void)
{
	asked = false;
}

int canary_check(const struct sr_model *m, const struct sr_limits *lim, uint32_t *without, char *err, size_t errlen)
{
	static struct likeness last;
	static uint32_t found;
	struct likeness k = like(m, lim, *without);
	struct canary c = trial;
	uint64_t key;
	char path[4096], why[300];
	int e = 0;

	if (told >= 0)
		return 0;                    /* this is the child */
	if (asked && memcmp(&last, &k, sizeof(k)) == 0) {
		*without |= found;
		return 0;
	}
	c.ctx = &k;
	c.each_ms = canary_patience_ms;
	found = *without;
	key = canary_key(PROC, (const void *)&trial, &k, sizeof(k));
	if (!key || canary_file(path, sizeof(path)))
		*path = 0;
	if (!*path || canary_known(path, key, &found)) {
		e = canary_run(&c, &found, why, sizeof(why));
		if (e == -EIO)
			return refuse(-EIO, err, errlen, "%s; it was tried in a process of its own", why);
		if (e)
			fprintf(stderr, "slipring-cuda: kernels were not tried in a process of their own: %s\n", why);
		else if (*path)
			canary_keep(path, key, found); /* else they are tried again at the next start */
	}
	last = k;
	asked = true;
	*without |= found;
	return 0;
}
