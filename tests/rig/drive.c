/* drive.c - see drive.h. */
#include <assert.h>
#include <sched.h>
#include <string.h>

#include "tests/rig/drive.h"

struct sr_limits drive_limits(void)
{
	return (struct sr_limits){
		.block_tokens = 16, .n_blocks = 64, .seq_blocks = 64, .slots = 33, .rows = 33, .tokens = 1100,
		.scores = 1100, .cmds = 200, .words = 8000, .copies = 8, .logit_rows = 16,
		.n_host_blocks = 4, .kv_type = SR_KV_BF16, .threads = 1, .worked = 1, .world = 1, .eager = 1, .n_groups = 1,
	};
}

static void clear(struct drive *d)
{
	struct sr_batch *b = d->batch;

	b->n_copies = b->n_cmds = b->n_words = b->n_rows = b->n_results = b->n_ids = b->n_tokens = 0;
}

int drive_open(struct drive *d, const struct sr_backend_ops *ops, const struct sr_model *m,
               const struct sr_source *src, const struct sr_limits *lim)
{
	int e;

	*d = (struct drive){ .ops = ops, .lim = *lim };
	e = ops->open(&d->b, m, src, lim, d->err, sizeof(d->err));
	if (e)
		return e;
	d->batch = ops->batch(d->b, 0);
	clear(d);
	return 0;
}

void drive_close(struct drive *d)
{
	d->ops->close(d->b);
}

static void command(struct drive *d, int op, int slot, int a, const void *words, int n)
{
	struct sr_batch *b = d->batch;

	assert(b->n_cmds < d->lim.cmds && b->n_words + n <= d->lim.words);
	b->cmd[b->n_cmds++] = (struct sr_cmd){ .op = op, .slot = slot, .a = a, .n = n, .data = (uint32_t)b->n_words };
	if (n)
		memcpy(b->word + b->n_words, words, (size_t)n * sizeof(uint32_t));
	b->n_words += n;
}

void drive_begin(struct drive *d, int slot, const struct sr_sampling *s)
{
	static const struct sr_sampling greedy = { .top_p = 1, .repetition = 1 };

	command(d, SR_CMD_BEGIN, slot, 0, s ? s : &greedy, (int)(sizeof(*s) / sizeof(uint32_t)));
	d->batch->cmd[d->batch->n_cmds - 1].n = 0; /* its size is known */
	if (d->lim.n_states)
		drive_state(d, slot, -1, slot);
}

void drive_state(struct drive *d, int slot, int from, int to)
{
	command(d, SR_CMD_STATE, slot, from, NULL, 0);
	d->batch->cmd[d->batch->n_cmds - 1].n = to;
}

void drive_keep(struct drive *d, int slot, int state, int position)
{
	command(d, SR_CMD_KEEP, slot, state, NULL, 0);
	d->batch->cmd[d->batch->n_cmds - 1].n = position;
}

void drive_list(struct drive *d, int slot, enum sr_list kind, const void *words, int n)
{
	command(d, SR_CMD_LIST, slot, (int)kind, words, n);
}

void drive_history(struct drive *d, int slot, const int32_t *ids, int n, int n_prompt)
{
	command(d, SR_CMD_HISTORY, slot, n_prompt, ids, n);
}

void drive_blocks(struct drive *d, int slot, int from, const int32_t *blocks, int n)
{
	command(d, SR_CMD_BLOCKS, slot, from, blocks, n);
}

void drive_range(struct drive *d, int slot, int first_block, int n)
{
	int32_t block[64];

	assert(n <= 64);
	for (int32_t i = 0; i < n; i++)
		block[i] = first_block + i;
	drive_blocks(d, slot, 0, block, n);
}

int drive_row(struct drive *d, int slot, int first, const int32_t *ids, int n, int n_score, int sample)
{
	struct sr_batch *b = d->batch;
	int given = ids ? n + (n_score == n) : 0, at = b->n_results;

	assert(b->n_rows < d->lim.rows && b->n_tokens + n <= d->lim.tokens);
	b->row[b->n_rows++] = (struct sr_row){ .slot = slot, .first = first, .n = n,
		.token = ids ? b->n_ids : SR_LAST, .n_score = n_score, .result = at,
		.sample = (uint8_t)sample };
	if (ids)
		memcpy(b->token + b->n_ids, ids, (size_t)given * sizeof(*ids));
	b->n_ids += given;
	b->n_tokens += n;
	b->n_results += n_score + sample;
	return at;
}

void drive_pool(struct drive *d, int slot, const struct sr_pooling *how)
{
	command(d, SR_CMD_POOL, slot, 0, how, (int)(sizeof(*how) / sizeof(uint32_t)));
}

void drive_pool_row(struct drive *d, int slot, enum sr_pool pool, int first, const int32_t *ids, int n, int vector)
{
	struct sr_row *r;

	drive_row(d, slot, first, ids, n, 0, vector >= 0);
	d->batch->n_results -= vector >= 0;
	r = &d->batch->row[d->batch->n_rows - 1];
	r->pool = (uint8_t)pool;
	r->mask = vector >= 0 ? vector : 0;
}

static void yield(void *ctx)
{
	((struct drive *)ctx)->yields++;
}

void drive_step(struct drive *d)
{
	drive_step_with(d, yield, d);
}

void drive_step_with(struct drive *d, void (*on_yield)(void *ctx), void *ctx)
{
	int e = d->ops->launch(d->b, 0);

	assert(!e);
	while (!(e = d->ops->poll(d->b, 0))) {
		if (d->lim.worked)
			d->ops->work(d->b, on_yield, ctx);
		else
			sched_yield();
	}
	assert(e == 1);
	clear(d);
}
