/* batch.c - see batch.h. */
#include "batch.h"

#define N_LISTS        (SR_LIST_BAD + 1)
#define SAMPLING_WORDS ((int32_t)(sizeof(struct sr_sampling) / sizeof(uint32_t)))
#define POOLING_WORDS  ((int32_t)(sizeof(struct sr_pooling) / sizeof(uint32_t)))

_Static_assert(sizeof(struct sr_row) == 32, "two to a cache line");

void batch_cut(struct sr_batch *b, const struct sr_limits *l, struct cutter *c)
{
	size_t results = (size_t)l->rows + (size_t)l->scores + 2 * (size_t)l->drafts;

	b->copy = cut(c, (size_t)l->copies, sizeof(*b->copy));
	b->cmd = cut(c, (size_t)l->cmds, sizeof(*b->cmd));
	b->word = cut(c, (size_t)l->words, sizeof(*b->word));
	b->row = cut(c, (size_t)l->rows, sizeof(*b->row));
	b->token = cut(c, (size_t)l->tokens + (size_t)l->rows, sizeof(*b->token));
	b->result = cut(c, results, sizeof(*b->result));
	b->top = cut(c, results * SR_TOP_MAX, sizeof(*b->top));
	b->vector = cut(c, (size_t)l->vectors * (size_t)l->width, sizeof(*b->vector));
}

void masks_cut(struct sr_masks *m, const struct sr_limits *l, int32_t n_vocab, struct cutter *c)
{
	m->words = mask_words(n_vocab);
	m->word = cut(c, (size_t)l->masks * (size_t)m->words, sizeof(*m->word));
	m->tag = cut(c, (size_t)l->masks, sizeof(*m->tag));
}

void masks_clear(struct sr_masks *m, const struct sr_limits *l)
{
	for (int32_t i = 0; i < l->masks; i++)
		m->tag[i] = SR_MASK_NO_TAG;
}

size_t batches_cut(struct sr_batch *b, int32_t depth, struct sr_masks *m, const struct sr_limits *l,
                   int32_t n_vocab, void *base)
{
	struct cutter c = { base, 0, 64 };

	for (int32_t i = 0; i < depth; i++)
		batch_cut(&b[i], l, &c);
	masks_cut(m, l, n_vocab, &c);
	return c.at;
}

static bool upto(int64_t n, int64_t most)
{
	return n >= 0 && n <= most;
}

bool batch_fits(const struct sr_batch *b, const struct sr_limits *l)
{
	return upto(b->n_copies, l->copies) && upto(b->n_cmds, l->cmds) && upto(b->n_words, l->words) &&
	       upto(b->n_rows, l->rows) && upto(b->n_tokens, l->tokens) &&
	       upto(b->n_ids, (int64_t)l->tokens + l->rows) &&
	       upto(b->n_results, (int64_t)l->scores + l->rows + 2 * (int64_t)l->drafts);
}

bool batch_groups_ok(const struct sr_limits *l, int64_t per_block)
{
	if (l->n_groups < 1 || l->n_groups > SR_GROUPS_MAX)
		return false;
	for (int32_t g = 0; g < l->n_groups; g++)
		if (l->group[g].window < 0 || l->group[g].layers < 0 ||
		    (l->group[g].per_block != 0 && l->group[g].per_block != per_block))
			return false;
	return true;
}

bool batch_copy_ok(const struct sr_limits *l, const struct sr_copy *c)
{
	return upto(c->device, (int64_t)l->n_blocks - 1) && upto(c->host, (int64_t)l->n_host_blocks - 1);
}

static bool blocks_exist(const uint32_t *id, int32_t n, int32_t n_blocks)
{
	for (int32_t i = 0; i < n; i++)
		if (id[i] >= (uint32_t)n_blocks)
			return false;
	return true;
}

bool batch_cmd_ok(const struct sr_batch *b, const struct sr_limits *l, const struct sr_cmd *c)
{
	int64_t left = (int64_t)b->n_words - c->data;

	if (!upto(c->slot, (int64_t)l->slots - 1) || !upto(c->group, (int64_t)l->n_groups - 1))
		return false;
	switch (c->op) {
	case SR_CMD_BEGIN:                   /* its length is that of the struct, whatever n says */
		return SAMPLING_WORDS <= left;
	case SR_CMD_LIST:
		return upto(c->a, N_LISTS - 1) && upto(c->n, left);
	case SR_CMD_HISTORY:
		return upto(c->n, left) && upto(c->n, slot_history(l)) && upto(c->a, c->n);
	case SR_CMD_BLOCKS:
		return upto(c->n, left) && upto(c->a, l->seq_blocks) && upto(c->n, (int64_t)l->seq_blocks - c->a) &&
		       blocks_exist(b->word + c->data, c->n, l->n_blocks);
	case SR_CMD_END:
		return true;
	case SR_CMD_POOL:
		return l->vectors > 0 && c->n == POOLING_WORDS && POOLING_WORDS <= left &&
		       upto(c->a, (int64_t)l->seq_blocks * l->block_tokens);
	case SR_CMD_STATE:
		return upto((int64_t)c->a + 1, l->n_states) && upto(c->n, (int64_t)l->n_states - 1);
	case SR_CMD_KEEP:
		return upto(c->a, (int64_t)l->n_states - 1) && c->n > 0;
	default:
		return false;
	}
}
