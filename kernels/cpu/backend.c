/* backend.c - the door of the CPU back end: memory, threads, and batches handed to batches.c.
 *
 * If opened as `worked`, the thread that calls work() is the team's first, and yields between
 * layers; else a thread of this back end is.  One batch at a time.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cpu.h"
#include "kvblock.h"
#include "kernels/refuse.h"
#include "kernels/share.h"
#include "kernels/shared.h"
#include "shmring/clock.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* The thread that computes if core's does not: it waits for launches. */
struct own {
	pthread_t thread;
	sem_t launched;
	_Atomic bool stop;
};

/* Faults in the KV pool while requests are already served; see touch(). */
struct toucher {
	pthread_t thread;
	_Atomic bool stop;
};

/* ---- the memory, laid out ------------------------------------------------------------------- */

#define LINE 64                 /* bytes of a cache line: where each piece of memory begins */
#define PAGE 4096
#define TOUCH_REST_NS 2000000
#define LATENT_PARTS ((size_t)64 << 20)  /* bytes of sums by span of many heads with one KV head */

int32_t slice_tokens(const struct sr_backend *b)
{
	int32_t whole = b->lim.whole ? b->lim.seq_blocks * b->lim.block_tokens : 0, most = whole > SLICE ? whole : SLICE;
	int32_t n = b->lim.tokens < most ? b->lim.tokens : most;

	return (n + KERN_TILE - 1) / KERN_TILE * KERN_TILE;
}

int32_t logit_rows(const struct sr_backend *b)
{
	int32_t n = b->lim.logit_rows < SLICE ? b->lim.logit_rows : SLICE;

	return n > 1 ? n : 1;
}

static size_t max_size(size_t a, size_t b)
{
	return a > b ? a : b;
}

static void lay_thread(struct sr_backend *b, struct dev *d, struct cutter *c)
{
	const struct sr_model *m = &b->m;
	size_t V = (size_t)m->n_vocab, row = (size_t)m->d_model, D = row, turned = 0, attend = 0;

	row = max_size(row, (size_t)m->n_layers * (size_t)m->inputs);
	row = max_size(row, m->classifier.n_labels ? 2 * D : 0);
	for (int32_t i = 0; i < m->n_kinds; i++) {
		const struct sr_attn *kind = &m->kind[i];

		row = max_size(row, (size_t)kind->head_dim);
		turned = max_size(turned, kind->latent ? kvblock_turned(kind->latent) : 0);
		attend = max_size(attend, b->k->attend_scratch(QUERIES, kind->n_heads / kind->n_kv_heads, kind->head_dim));
	}

	cut_align(c, PAGE); /* threads share no page */
	d->x = cut(c, SOLO * D, sizeof(float));
	d->y = cut(c, SOLO * D, sizeof(float));
	d->row = cut(c, row, sizeof(float));
	for (int f = 0; f < N_FORMS; f++)
		if (b->made_forms & 1u << f)
			d->tiles[f] = cut(c, m->experts.n ? SOLO * (size_t)m->experts.top : 1,
				b->k->tile_bytes((enum kern_form)f, b->shape.inputs));
	experts_lay(b, d, c, (size_t)slice_tokens(b));
	d->turned = turned ? cut(c, turned, 1) : NULL;
	d->attend = cut(c, attend, sizeof(float));
	d->sample.work = cut(c, V + 3, sizeof(float));
	d->sample.id = cut(c, V, sizeof(int32_t));
	d->sample.count = cut(c, V, sizeof(uint32_t));
	d->sample.chunk = cut(c, V / SAMPLE_CHUNK + 1, sizeof(double));
	d->sample.group = cut(c, V / SAMPLE_GROUP + 1, sizeof(float));
}

/* What a rank computes a part of, and reads whole. */
#define SHARED_PLACES (1u << P_Z | 1u << P_A | 1u << P_ACT | 1u << P_OUT | 1u << P_LOGITS)

/* Sums by spans of positions, which threads share. */
static void lay_parts(struct sr_backend *b, struct cutter *c)
{
	size_t part = 0;

	b->n_spans = (b->lim.seq_blocks * KERN_BLOCK + KERN_SPAN - 1) / KERN_SPAN;
	b->max_split = 0;
	for (int32_t i = 0; i < b->m.n_kinds; i++) {
		const struct sr_attn *kind = &b->m.kind[i];
		int32_t split = (4 * b->n_threads - 1) / kind->n_kv_heads;
		size_t own = (size_t)b->n_spans * (size_t)kind->n_heads * sizeof(float) *
			kern_part(kind->latent ? kind->latent : kind->head_dim);

		if (kind->latent && split > 1 && (size_t)split * own > LATENT_PARTS)
			split = own < LATENT_PARTS ? (int32_t)(LATENT_PARTS / own) : 1;
		b->max_split = split > b->max_split ? split : b->max_split;
		part = max_size(part, own);
	}
	b->parts = cut(c, (size_t)b->max_split, part);
}

static void lay_slice(struct slice *s, struct cutter *c, size_t T)
{
	s->token = cut(c, T, sizeof(*s->token));
	s->item = cut(c, T, sizeof(*s->item));
	s->store = cut(c, T, sizeof(*s->store));
	s->run = cut(c, T, sizeof(*s->run));
	s->pick = cut(c, 2 * T, sizeof(*s->pick));
	s->pool = cut(c, T, sizeof(*s->pool));
	s->last = cut(c, T, sizeof(*s->last));
}

/* Activations and logits.  Called twice: to count, and with base after weights are counted. */
static size_t lay_scratch(struct sr_backend *b, uint8_t *base)
{
	const struct sr_model *m = &b->m;
	struct cutter c = { base, 0, LINE }, far = { base && b->lim.shared ? b->lim.shared->data : NULL, 0, LINE };
	size_t rows = (size_t)slice_tokens(b), tiles = rows / KERN_TILE;

	for (int p = P_X; p <= P_LOGITS; p++)
		b->place[p] = cut(b->lim.world > 1 && SHARED_PLACES & 1u << p ? &far : &c,
			(p == P_LOGITS ? (size_t)logit_rows(b) : rows) * (size_t)b->shape.width[p], sizeof(float));
	b->shared_bytes = far.at;
	if (m->experts.n)
		tiles = experts_tiles(b, rows);
	for (int f = 0; f < N_FORMS; f++)
		if (b->made_forms & 1u << f)
			b->tiles[f] = cut(&c, tiles, b->k->tile_bytes((enum kern_form)f, b->shape.inputs));
	experts_lay(b, NULL, &c, rows);
	for (int32_t i = 0; i < m->n_kinds; i++) {
		size_t dims = (size_t)m->kind[i].rope.dims;
		int32_t like = sr_rope_like(m, i);

		b->freq[i] = like < i ? b->freq[like] : cut(&c, dims / 2, sizeof(float));
		b->angle[i] = like < i ? b->angle[like] : cut(&c, rows * dims, sizeof(float));
	}
	lay_parts(b, &c);
	lay_slice(b->slice, &c, rows);
	for (int i = 0; i < b->n_threads; i++)
		lay_thread(b, &b->dev[i], &c);
	return c.at;
}

static size_t lay_slots(struct sr_backend *b, uint8_t *base)
{
	struct cutter c = { base, 0, LINE };
	size_t blocks = (size_t)b->lim.seq_blocks, n = (size_t)b->lim.slots + 1;
	struct slot *s = cut(&c, n, sizeof(*s));

	b->slot = s;
	b->history_cap = slot_history(&b->lim);
	for (size_t i = 0; i < n; i++) {
		int32_t *table = cut(&c, (size_t)b->lim.n_groups * blocks, sizeof(int32_t));
		int32_t *history = cut(&c, (size_t)b->history_cap, sizeof(int32_t));
		uint32_t *word = cut(&c, (size_t)slot_words(&b->lim), sizeof(uint32_t));
		float *sum = cut(&c, b->lim.vectors ? (size_t)b->m.d_model : 0, sizeof(float));

		if (base)
			s[i] = (struct slot){ .table = table, .history = history, .word = word, .sum = sum };
	}
	return c.at;
}

/* Of one sequence. */
static size_t state_bytes(const struct sr_backend *b)
{
	return b->n_state_layers ? (size_t)b->n_state_layers * recur_layer_floats(&b->m.delta) * sizeof(float) : 0;
}

static size_t lay_batch(struct sr_backend *b, uint8_t *base)
{
	struct cutter c = { base, 0, LINE };

	batch_cut(&b->batch, &b->lim, &c);
	masks_cut(&b->masks, &b->lim, b->m.n_vocab, &c);
	return c.at;
}

/* ---- plan -------------------------------------------------------------------------------------- */

static int check_delta(const struct sr_model *m, char *err, size_t errlen)
{
	const struct sr_delta *a = &m->delta;

	if (!a->v_heads)
		return 0;
	if (a->k_dim % 16 || a->v_dim % 16 || a->k_dim > HEAD_MAX || a->v_dim > HEAD_MAX ||
	    a->v_heads * a->v_dim % 32 || a->conv < 2 || a->conv > CONV_MAX)
		return refuse(-ENOTSUP, err, errlen, "a state of %d heads, %d x %d, and a convolution of %d: the CPU back end "
			"computes widths that are multiples of 16 up to %d, and convolutions of 2 to %d", a->v_heads, a->k_dim,
			a->v_dim, a->conv, HEAD_MAX, CONV_MAX);
	return 0;
}

static int check_kind(const struct sr_attn *kind, const struct sr_limits *lim, const struct kern *k, char *err,
                      size_t errlen)
{
	const int32_t H = kind->n_heads, G = kind->n_kv_heads, E = kind->head_dim;

	if (G < 1 || H % G || E % 16 || E > (kind->latent ? LATENT_MAX : HEAD_MAX))
		return refuse(-ENOTSUP, err, errlen, "%d query heads, %d KV heads of width %d: the width must be "
			"a multiple of 16 up to 512 (latent keys: 1024), the heads a multiple of the KV heads", H, G, E);
	if (kind->latent % 16 || (kind->latent && lim->kv_type == SR_KV_I8))
		return refuse(-ENOTSUP, err, errlen, "latent keys of %d elements in a cache of %s: a multiple of 16 in "
			"bfloat16 (auto) is supported", kind->latent, lim->kv_type == SR_KV_I8 ? "int8" : "bfloat16");
	if (!k->kv_bytes(lim->kv_type, E))
		return refuse(-ENOTSUP, err, errlen, "--kv-cache-dtype: %s is not supported on the CPU; bfloat16 "
			"(auto) is, and int8 in half the memory", lim->kv_type == SR_KV_F8 ? "fp8" : "this type");
	return 0;
}

static int check_shape(const struct sr_model *m, const struct sr_limits *lim, const struct kern *k,
                       char *err, size_t errlen)
{
	for (int32_t i = 0; i < m->n_kinds; i++) {
		int e = check_kind(&m->kind[i], lim, k, err, errlen);

		if (e)
			return e;
	}
	if (m->n_vocab < 2)                  /* a matrix of one row would look like a vector */
		return refuse(-ENOTSUP, err, errlen, "a vocabulary of %d: there is nothing to choose from",
			m->n_vocab);
	for (int32_t l = 0; l < m->n_layers; l++)
		if (m->d_model % 32 || m->layer[l].d_ff % 32)
			return refuse(-ENOTSUP, err, errlen, "width %d, feed-forward %d: both must be multiples of 32 "
				"on the CPU", m->d_model, m->layer[l].d_ff);
	if (sr_beyond_refuse(m, lim->whole ? ~0u : ~(unsigned)SR_HAS_BIDIRECTIONAL, "the CPU back end", err, errlen))
		return -ENOTSUP;
	if (lim->world > 1 && lim->whole)
		return refuse(-ENOTSUP, err, errlen, "an encoder runs as one rank");
	if (lim->whole && lim->seq_blocks * lim->block_tokens > SR_WHOLE_MAX)
		return refuse(-ENOTSUP, err, errlen, "an encoder's prompts have up to %d tokens on the CPU: --max-model-len "
			"%d", SR_WHOLE_MAX, SR_WHOLE_MAX);
	if (m->experts.n && (m->experts.d_ff % 32 || m->experts.d_shared % 32))
		return refuse(-ENOTSUP, err, errlen, "experts %d wide, a shared one of %d: both must be multiples of 32 "
			"on the CPU", m->experts.d_ff, m->experts.d_shared);
	if (check_delta(m, err, errlen))
		return -ENOTSUP;
	if (lim->drafts && m->delta.v_heads)
		return refuse(-ENOTSUP, err, errlen, "--speculative-config: layers of %s have a state, which a wrong guess "
			"would have changed", m->arch);
	if (lim->block_tokens != KERN_BLOCK)
		return refuse(-ENOTSUP, err, errlen, "--block-size %d: the CPU back end has blocks of %d tokens",
			lim->block_tokens, KERN_BLOCK);
	return 0;
}

/* A model of several ranks: b->m becomes this rank's, with layers of its own.  Places that are gathered are as wide
 * as the whole model's. */
static int set_shape(struct sr_backend *b, const struct sr_model *m, char *err, size_t errlen)
{
	const int32_t rank = b->lim.rank, world = b->lim.world > 1 ? b->lim.world : 1;
	struct rank_shape whole;
	int e = shape_of(&b->shape, m, rank, world, err, errlen);

	if (e || world == 1)
		return e;
	e = shape_of(&whole, m, 0, 1, err, errlen);
	if (!e)
		e = share_model(&b->m, m, rank, world, err, errlen);
	if (e)
		return e;
	b->net.ranks = 1;
	b->shape.width[P_A] = whole.width[P_A];
	b->shape.width[P_ACT] = whole.width[P_ACT];
	b->shape.inputs = whole.inputs;
	b->vocab = b->shape.vocab;
	b->first[P_Z] = b->first[P_OUT] = shape_columns(m->d_model, rank, world).from;
	b->first[P_LOGITS] = b->vocab.from;
	return 0;
}

static void drop_share(struct sr_backend *b)
{
	if (b->net.ranks)
		free(b->m.layer);
}

/* How layers lie in the blocks of their groups: at[l], or NULL.  place: where shape_groups() put them; NULL: it is
 * asked here. */
static int lay_kv(struct sr_backend *b, const struct kv_place *place, size_t *at)
{
	const struct sr_model *m = &b->m;
	struct kv_place *own = NULL;

	if (!place) {
		own = calloc((size_t)m->n_layers, sizeof(*own));
		if (!own)
			return -ENOMEM;
		shape_groups(own, m, &b->lim);
		place = own;
	}
	for (int32_t i = 0; i < m->n_kinds; i++)
		b->kv_half[i] = b->k->kv_bytes(b->lim.kv_type, m->kind[i].head_dim);
	b->kv_block = 0;
	memset(b->kv_group, 0, sizeof(b->kv_group));
	for (int32_t l = 0; l < m->n_layers; l++) {
		const struct sr_attn *kind = kind_of(m, l);
		size_t *group;

		if (m->layer[l].mixer == SR_DELTA) /* it has no group */
			continue;
		group = &b->kv_group[place[l].group];
		if (at)
			at[l] = m->layer[l].kv_back ? at[kv_of(m, l)] : *group;
		if (!m->layer[l].kv_back)
			*group += (kind->latent ? 1 : 2) * b->kv_half[m->layer[l].kind] * (size_t)kind->n_kv_heads;
		b->kv_block = *group > b->kv_block ? *group : b->kv_block;
	}
	free(own);
	return 0;
}

/* All that is known before memory is taken: sizes in b, arenas counted in b->dev. */
static int64_t prepare(struct sr_backend *b, const struct sr_model *m, const struct sr_limits *lim,
                       char *err, size_t errlen)
{
	const char *name = getenv("SLIPRING_CPU");
	int64_t weights;
	int32_t layers;
	int e;

	*b = (struct sr_backend){ .m = *m, .lim = *lim, .k = kern_pick(name), .verbs = &cpu_ops };
	if (!b->k)
		return refuse(-ENOTSUP, err, errlen, "SLIPRING_CPU=%s: this machine or build has no such kernels; "
			"plain, avx2, avx512vnni, avx512", name ? name : "");
	if (lim->kv_type == SR_KV_F32) {
		b->exact = *b->k;
		b->exact.attend_scratch = kern_plain.attend_scratch;
		b->exact.attend = kern_plain.attend;
		b->k = &b->exact;
	}
	e = check_shape(m, lim, b->k, err, errlen);
	if (!e)
		e = set_shape(b, m, err, errlen);
	if (e)
		return e;
	m = &b->m;
	layers = shape_groups(NULL, m, lim);
	if (layers < 0) {
		drop_share(b);
		return refuse(layers, err, errlen, "the groups of layers are not those of this model");
	}
	b->n_threads = b->n_active = lim->threads > 0 ? lim->threads : 1;
	b->dev = calloc((size_t)b->n_threads, sizeof(*b->dev));
	if (!b->dev) {
		drop_share(b);
		return refuse(-ENOMEM, err, errlen, "no memory for %d threads", b->n_threads);
	}
	for (int i = 0; i < b->n_threads; i++)
		b->dev[i] = (struct dev){ .b = b, .i = i };
	if (lay_kv(b, NULL, NULL)) {
		free(b->dev);
		drop_share(b);
		return refuse(-ENOMEM, err, errlen, "no memory for a table of %d layers", m->n_layers);
	}
	for (int32_t i = 0; i < m->n_layers; i++)
		b->n_state_layers += m->layer[i].mixer == SR_DELTA;
	weights = net_load(&cpu_ops, &b->dev[0], NULL, m, err, errlen);
	if (weights < 0) {
		free(b->dev);
		drop_share(b);
	}
	return weights;
}

static int plan(const struct sr_model *m, const struct sr_limits *lim, struct sr_need *out,
                char *err, size_t errlen)
{
	struct sr_backend b;
	int64_t weights = prepare(&b, m, lim, err, errlen);

	if (weights < 0)
		return (int)weights;
	*out = (struct sr_need){
		.weights = weights,
		.scratch = (int64_t)lay_scratch(&b, NULL),
		.slots = (int64_t)lay_slots(&b, NULL),
		.per_block = (int64_t)b.kv_block,
		.kinds_in_groups = 1,
		.per_state = (int64_t)state_bytes(&b),
		.pinned = (int64_t)lay_batch(&b, NULL),
	};
	out->shared = (int64_t)b.shared_bytes;
	memory_left(&out->avail, &out->total);
	free(b.dev);
	drop_share(&b);
	return 0;
}

/* ---- open and close ------------------------------------------------------------------------------ */

/* Fresh memory costs 0.1 to 2 ms a MiB under a hypervisor: seconds for a large pool.  So the start
 * does not wait for it.  A thread of idle priority faults the pool in block by block, from the end
 * that is used first; a request that comes sooner pays for its own pages.  It rests while a batch is
 * computed: clearing pages takes memory's rate and, despite its priority, a core for milliseconds.  Some
 * seconds after the start, without requests, the resident size stays as it is. */
static void touch_rest(struct sr_backend *b)
{
	while (atomic_load(&b->state) == BATCH_LAUNCHED && !atomic_load(&b->toucher->stop))
		nanosleep(&(struct timespec){ 0, TOUCH_REST_NS }, NULL);
}

static void *touch(void *arg)
{
	struct sr_backend *b = arg;
	const size_t step = (size_t)2 << 20;

	(void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &(struct sched_param){ 0 });
	for (size_t at = 0; at < b->kv_size && !atomic_load(&b->toucher->stop); at += step) {
		touch_rest(b);
		if (madvise(b->kv + at, b->kv_size - at < step ? b->kv_size - at : step, MADV_POPULATE_WRITE))
			break; /* an older kernel: pages are faulted in when used */
	}
	return NULL;
}

/* Keys and values of KV head g lie in the pool of node g * nodes / heads; in one pool, if kinds of attention have other
 * heads.  Called twice: to count, and with b->kv. */
static void lay_pools(struct sr_backend *b)
{
	const size_t blocks = (size_t)b->lim.n_blocks + 1 + (size_t)b->lim.n_host_blocks;
	const int32_t G = b->m.kind[0].n_kv_heads;
	struct cutter c = { b->kv, 0, PAGE };

	b->n_pools = b->nodes.n < G ? b->nodes.n : G;
	for (int32_t i = 1; i < b->m.n_kinds; i++)
		if (b->m.kind[i].n_kv_heads != G || b->kv_half[i] != b->kv_half[0])
			b->n_pools = 1;
	for (int p = 0; p < b->n_pools; p++) {
		int32_t from = (p * G + b->n_pools - 1) / b->n_pools, to = ((p + 1) * G + b->n_pools - 1) / b->n_pools;
		size_t block = b->n_pools > 1 ? b->kv_block / (size_t)G * (size_t)(to - from) : b->kv_block;

		b->pool[p] = (struct kv_pool){ cut(&c, blocks, block), block, from, to - from };
		if (b->kv && b->n_pools > 1)
			nodes_bind(&b->nodes, p, b->pool[p].at, blocks * block);
	}
	if (b->kv && b->n_pools == 1)
		nodes_interleave(&b->nodes, b->kv, c.at);
	b->kv_size = c.at;
}

static int take_memory(struct sr_backend *b, char *err, size_t errlen)
{
	size_t scratch = lay_scratch(b, NULL), slots = lay_slots(b, NULL), batch = lay_batch(b, NULL);
	uint8_t *p;

	assert(batch_groups_ok(&b->lim, (int64_t)b->kv_block));
	lay_pools(b);
	for (int i = 0; i < b->n_threads; i++) {
		struct dev *d = &b->dev[i];

		d->arena_size += 4096; /* for reads ahead of the last block */
		d->arena = memory_map(&b->memory, d->arena_size);
		if (!d->arena)
			return refuse(-ENOMEM, err, errlen, "no memory for %zu MiB of weights", d->arena_size >> 20);
		d->arena_end = d->arena + d->arena_size;
		nodes_bind(&b->nodes, node_of(i, b->n_threads, b->nodes.n), d->arena, d->arena_size);
		memory_huge(d->arena, d->arena_size);
	}
	b->kv = memory_map(&b->memory, b->kv_size);
	if (!b->kv)
		return refuse(-ENOMEM, err, errlen, "no memory for a KV cache of %zu MiB", b->kv_size >> 20);
	lay_pools(b);
	memory_huge(b->kv, b->kv_size);
	if (b->n_state_layers) {
		size_t states = (size_t)b->lim.n_states * state_bytes(b);

		if (b->lim.n_states < 1)
			return refuse(-EINVAL, err, errlen, "%s has layers with a state, but there is room for none", b->m.arch);
		b->states = memory_map(&b->memory, states);
		if (!b->states)
			return refuse(-ENOMEM, err, errlen, "no memory for states of %zu MiB", states >> 20);
	}
	p = memory_map(&b->memory, scratch);
	if (!p)
		return refuse(-ENOMEM, err, errlen, "no memory for %zu MiB of activations", scratch >> 20);
	nodes_interleave(&b->nodes, p, scratch);
	lay_scratch(b, p);
	p = memory_map(&b->memory, slots + batch);
	if (!p)
		return refuse(-ENOMEM, err, errlen, "no memory for %zu MiB of slots", (slots + batch) >> 20);
	lay_slots(b, p);
	lay_batch(b, p + slots);
	if (b->lim.batches)
		batches_cut(&b->batch, 1, &b->masks, &b->lim, b->m.n_vocab, b->lim.batches);
	else
		masks_clear(&b->masks, &b->lim);
	for (int32_t i = 0; i < b->m.n_kinds; i++)
		sr_rope_freq(&b->m.kind[i].rope, b->freq[i]);
	return 0;
}

static int load_weights(struct sr_backend *b, const struct sr_source *src, char *err, size_t errlen)
{
	int64_t n;
	int e;

	b->loader = weights_loader_create();
	if (!b->loader)
		return refuse(-ENOMEM, err, errlen, "no memory to load weights with");
	n = net_load(&cpu_ops, &b->dev[0], &b->net, &b->m, err, errlen);
	b->net.ranks = b->lim.world > 1;
	e = n < 0 ? (int)n : weights_load(b, src, err, errlen);
	weights_loader_destroy(b->loader);
	b->loader = NULL;
	return e;
}

static void *own_main(void *arg)
{
	struct sr_backend *b = arg;

	for (;;) {
		/* the next step often follows at once: poll before sleeping */
		for (uint64_t until = sr_now() + 50000; sr_now() < until; )
			if (!sem_trywait(&b->own->launched))
				goto work;
		while (sem_wait(&b->own->launched))
			;
work:
		if (atomic_load(&b->own->stop))
			return NULL;
		batches_run(b);
	}
}

static int start_threads(struct sr_backend *b, char *err, size_t errlen)
{
	sigset_t all, before;
	int e = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* the caller's thread takes signals */
	b->toucher = calloc(1, sizeof(*b->toucher));
	if (b->toucher && pthread_create(&b->toucher->thread, NULL, touch, b)) {
		free(b->toucher);
		b->toucher = NULL; /* harmless: pages are faulted in when used */
	}
	if (!b->lim.worked) {
		b->own = calloc(1, sizeof(*b->own));
		e = b->own ? sem_init(&b->own->launched, 0, 0) : ENOMEM;
		if (!e)
			e = pthread_create(&b->own->thread, NULL, own_main, b);
		if (e) {
			free(b->own);
			b->own = NULL;
		}
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return e ? refuse(-e, err, errlen, "a thread cannot be started: %s", strerror(e)) : 0;
}

static void close_backend(struct sr_backend *b)
{
	if (!b)
		return;
	if (b->own) {
		atomic_store(&b->own->stop, true);
		sem_post(&b->own->launched);
		pthread_join(b->own->thread, NULL);
		sem_destroy(&b->own->launched);
		free(b->own);
	}
	if (b->toucher) {
		atomic_store(&b->toucher->stop, true);
		pthread_join(b->toucher->thread, NULL);
		free(b->toucher);
	}
	team_destroy(b->team);
	net_free(&b->net);
	weights_free(b);
	memory_unmap_all(&b->memory);
	pthread_mutex_destroy(&b->lock);
	free(b->m.layer);
	free(b->kv_place);
	free(b->kv_at);
	free(b->dev);
	free(b);
}

/* Of several ranks, each is on one node. */
static int find_nodes(struct sr_backend *b, char *err, size_t errlen)
{
	int e = nodes_find(&b->nodes, err, errlen);

	if (!e && b->lim.world > 1 && b->nodes.n > 1) {
		b->nodes.node[0] = b->nodes.node[node_of(b->lim.rank, b->lim.world, b->nodes.n)];
		b->nodes.n = 1;
		nodes_pin(&b->nodes, 0); /* threads that it starts are there, too, and so is the memory that they touch */
	}
	if (b->nodes.n > b->n_threads)
		b->nodes.n = b->n_threads;
	return e;
}

static int open_backend(struct sr_backend **out, const struct sr_model *m, const struct sr_source *src,
                        const struct sr_limits *lim, char *err, size_t errlen)
{
	struct sr_backend *b = NULL;
	int64_t weights;
	int e;

	if (posix_memalign((void **)&b, 64, sizeof(*b)))
		return refuse(-ENOMEM, err, errlen, "no memory for a back end");
	if (lim->world > 1 && !lim->shared) {
		free(b);
		return refuse(-EINVAL, err, errlen, "rank %d of %d shares no memory with the others", lim->rank, lim->world);
	}
	weights = prepare(b, m, lim, err, errlen);
	if (weights < 0) {
		free(b);
		return (int)weights;
	}
	pthread_mutex_init(&b->lock, NULL);
	b->armed = -1;
	e = find_nodes(b, err, errlen);
	if (!b->net.ranks) {
		b->m.layer = malloc((size_t)m->n_layers * sizeof(*m->layer));
		if (!b->m.layer) {
			close_backend(b);
			return refuse(-ENOMEM, err, errlen, "no memory for a table of %d layers", m->n_layers);
		}
		memcpy(b->m.layer, m->layer, (size_t)m->n_layers * sizeof(*m->layer));
	}
	b->kv_place = malloc((size_t)m->n_layers * sizeof(*b->kv_place));
	b->kv_at = malloc((size_t)m->n_layers * sizeof(*b->kv_at));
	if (!b->kv_place || !b->kv_at) {
		close_backend(b);
		return refuse(-ENOMEM, err, errlen, "no memory for a table of %d layers", m->n_layers);
	}
	shape_groups(b->kv_place, m, lim);
	lay_kv(b, b->kv_place, b->kv_at);
	if (!e)
		e = take_memory(b, err, errlen);
	if (!e) {
		e = team_create(&b->team, b->n_threads, &b->nodes);
		if (e)
			refuse(e, err, errlen, "%d threads cannot be started: %s", b->n_threads, strerror(-e));
	}
	if (!e)
		e = load_weights(b, src, err, errlen);
	if (!e) {
		roof_measure(b);
		e = start_threads(b, err, errlen);
	}
	if (e) {
		close_backend(b);
		return e;
	}
	*out = b;
	return 0;
}

/* ---- the door ------------------------------------------------------------------------------------------ */

static void masks(struct sr_backend *b, struct sr_masks *out)
{
	*out = b->masks;
}

static struct sr_batch *batch(struct sr_backend *b, int32_t i)
{
	assert(i == 0);
	return &b->batch;
}

static int launch(struct sr_backend *b, int32_t i)
{
	assert(i == 0 && atomic_load(&b->state) != BATCH_LAUNCHED);
	atomic_store_explicit(&b->state, BATCH_LAUNCHED, memory_order_release);
	if (b->own)
		sem_post(&b->own->launched);
	return 0;
}

static int poll_batch(struct sr_backend *b, int32_t i)
{
	assert(i == 0);
	return atomic_load_explicit(&b->state, memory_order_acquire) == BATCH_DONE;
}

static void work(struct sr_backend *b, void (*yield)(void *ctx), void *ctx)
{
	if (b->own || atomic_load(&b->state) != BATCH_LAUNCHED)
		return;
	b->yield = yield;
	b->yield_ctx = ctx;
	batches_run(b);
	b->yield = NULL;
}

static int arm(struct sr_backend *b, int32_t i, int fd)
{
	uint64_t one = 1;
	bool done;

	assert(i == 0);
	pthread_mutex_lock(&b->lock);
	done = atomic_load(&b->state) == BATCH_DONE;
	b->armed = done ? -1 : fd;
	pthread_mutex_unlock(&b->lock);
	if (done && write(fd, &one, sizeof(one)) < 0)
		return -errno;
	return 0;
}

static uint64_t progress(const struct sr_backend *b)
{
	return atomic_load_explicit(&b->breaths, memory_order_relaxed);
}

/* Instruction sets add in different orders, so K,V of one are not those of another. */
static void *kv_at(struct sr_backend *b, int32_t i, const char **kind)
{
	assert(i >= 0 && i < b->lim.n_blocks);
	*kind = b->k->name;
	return b->n_pools > 1 ? NULL : b->kv + (size_t)i * b->kv_block;
}

const struct sr_backend_ops *sr_cpu_ops(void)
{
	static const struct sr_backend_ops ops = {
		.version = SR_BACKEND_VERSION,
		.depth = 1,
		.name = "cpu",
		.plan = plan,
		.open = open_backend,
		.close = close_backend,
		.masks = masks,
		.batch = batch,
		.launch = launch,
		.poll = poll_batch,
		.work = work,
		.arm = arm,
		.progress = progress,
		.kv = kv_at,
	};

	return &ops;
}
