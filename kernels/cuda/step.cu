/* step.cu - a batch, from core's rows to what the kernels want: tokens, picks, pieces of attention.
 *
 * The host writes these lists while the device still works on the batch before; they are packed, and
 * one copy brings them over.  What a slot keeps is changed on the device, by the batch's commands,
 * which it reads from pinned memory: a block for all commands of one slot, in their order.
 */
#include <assert.h>

#include "device.cuh"

#define COMMAND_THREADS 128
#define LEAST_WORK 64                /* positions of one piece, at least */
#define BLOCKS_EACH 4                /* of attention, per processor */

/* ---- lists ---------------------------------------------------------------------------- */

static size_t place_list(size_t *at, size_t n, size_t size)
{
	size_t here = *at;

	*at += (n * size + 15) / 16 * 16;
	return here;
}

/* Most of each list, for a batch or for all of them. */
struct counts { int32_t tokens, picks, singles, runs, cmds; };

/* Pieces beyond one per token: as many as fill the device. */
static int32_t most_works(int32_t singles, const struct dev *d)
{
	return 2 * singles + d->processors * BLOCKS_EACH / d->m->G + 1;
}

int32_t step_parts(const struct dev *d, const struct sr_limits *l)
{
	return most_works(l->rows, d);
}

static int32_t run_tokens(const struct sr_model *m)
{
	return TILE_ROWS / (m->H / m->G);
}

static void place_lists(struct step *s, const struct counts *c, const struct dev *d)
{
	size_t at = 0;

	s->token = place_list(&at, (size_t)c->tokens, sizeof(struct token));
	s->pick = place_list(&at, (size_t)c->picks, sizeof(struct pick));
	s->work = place_list(&at, (size_t)most_works(c->singles, d), sizeof(struct work));
	s->merge = place_list(&at, (size_t)c->singles, sizeof(struct merge));
	s->run = place_list(&at, (size_t)(c->runs + c->tokens / run_tokens(d->m)), sizeof(struct run));
	s->chain = place_list(&at, (size_t)c->cmds, sizeof(int32_t));
	s->next = place_list(&at, (size_t)c->cmds, sizeof(int32_t));
	s->used = at;
}

size_t step_bytes(const struct dev *d, const struct sr_limits *l)
{
	struct counts c = { l->tokens, l->rows + l->scores, l->rows, l->rows, l->cmds };
	struct step s;

	place_lists(&s, &c, d);
	return s.used;
}

/* How many positions one piece of a single token's attention has: few enough to fill the device, and
 * the pieces fit their list, for there are at most rows + all / size of them. */
static int32_t piece_size(const struct sr_batch *b, int32_t singles, const struct dev *d)
{
	int64_t all = 0, size, blocks = d->processors * BLOCKS_EACH / d->m->G;

	for (int32_t i = 0; i < singles; i++)
		all += b->row[i].first + 1;
	blocks = blocks > 0 ? blocks : 1;
	size = (all + blocks - 1) / blocks;
	size = (size + LEAST_WORK - 1) / LEAST_WORK * LEAST_WORK;
	return (int32_t)(size > LEAST_WORK ? size : LEAST_WORK);
}

static void add_picks(struct step *s, const struct sr_batch *b, const struct sr_row *r)
{
	struct pick *pick = (struct pick *)(s->bytes + s->pick);
	struct pick p = {};

	p.slot = r->slot;
	p.mask = r->mask;
	p.n_top = r->n_top;
	p.rank = r->n_score > 0 || r->n_top > 0;
	for (int32_t j = 0; j < r->n_score; j++) {
		p.t = s->n_tokens + j;
		p.position = r->first + j + 1;
		p.id = b->token[r->token + j + 1];
		p.result = r->result + j;
		pick[s->n_picks++] = p;
	}
	if (r->sample) {
		p.t = s->n_tokens + r->n - 1;
		p.position = r->first + r->n;
		p.id = -1;
		p.result = r->result + r->n_score;
		pick[s->n_picks++] = p;
	}
}

static void add_single(struct step *s, int32_t upto, int32_t size, int32_t *n_parts)
{
	struct work *work = (struct work *)(s->bytes + s->work);
	struct merge *merge = (struct merge *)(s->bytes + s->merge);
	int32_t pieces = (upto + size - 1) / size;

	if (pieces > 1)
		merge[s->n_merges++] = (struct merge){ s->n_tokens, *n_parts, pieces };
	for (int32_t i = 0; i < pieces; i++) {
		int32_t to = (i + 1) * size < upto ? (i + 1) * size : upto;

		work[s->n_works++] = (struct work){ s->n_tokens, i * size, to,
			pieces > 1 ? (*n_parts)++ : -1 };
	}
}

static void add_run(struct step *s, int32_t n, int32_t most)
{
	struct run *run = (struct run *)(s->bytes + s->run);

	for (int32_t j = 0; j < n; j += most)
		run[s->n_runs++] = (struct run){ s->n_tokens + j, n - j < most ? n - j : most };
}

/* Chains the commands of each slot: `next` of the last is -1.  tail[slot]: its last command so far, and
 * the turn in which that was. */
static void chain_commands(struct step *s, const struct sr_batch *b, struct dev *d)
{
	int32_t *first = (int32_t *)(s->bytes + s->chain), *next = (int32_t *)(s->bytes + s->next);

	d->turn++;
	for (int32_t i = 0; i < b->n_cmds; i++) {
		struct tail *t = &d->tail[b->cmd[i].slot];

		if (t->turn == d->turn)
			next[t->cmd] = i;
		else
			first[s->n_chains++] = i;
		*t = (struct tail){ d->turn, i };
		next[i] = -1;
	}
}

static struct counts count(const struct sr_batch *b, bool runs_only)
{
	struct counts c = { 0, 0, 0, 0, b->n_cmds };

	for (int32_t i = 0; i < b->n_rows; i++) {
		const struct sr_row *r = &b->row[i];

		c.tokens += r->n;
		c.picks += r->n_score + (r->sample != 0);
		c.singles += r->n == 1 && !runs_only;
		c.runs += r->n != 1 || runs_only;
		assert(r->n != 1 || runs_only || c.singles == i + 1); /* they come first */
	}
	return c;
}

void step_fill(struct step *s, const struct sr_batch *b, struct dev *d)
{
	struct counts c = count(b, d->deterministic);
	int32_t size = piece_size(b, c.singles, d), n_parts = 0;
	struct token *token;

	place_lists(s, &c, d);
	s->n_tokens = s->n_picks = s->n_works = s->n_merges = s->n_runs = s->n_chains = 0;
	token = (struct token *)(s->bytes + s->token);
	for (int32_t i = 0; i < b->n_rows; i++) {
		const struct sr_row *r = &b->row[i];

		add_picks(s, b, r);
		if (r->n == 1 && !d->deterministic)
			add_single(s, r->first + 1, size, &n_parts);
		else
			add_run(s, r->n, run_tokens(d->m));
		for (int32_t j = 0; j < r->n; j++)
			token[s->n_tokens++] = (struct token){
				r->token == SR_LAST ? SR_LAST : b->token[r->token + j],
				r->first + j, r->slot };
	}
	chain_commands(s, b, d);
}

/* ---- commands on the device ----------------------------------------------------------- */

struct command_args {
	const int32_t *first, *next;
	const struct sr_cmd *cmd;    /* pinned, as word */
	const uint32_t *word;
	struct slots slots;
};

static __device__ void copy_words(uint32_t *to, const uint32_t *from, int32_t n)
{
	for (int32_t i = (int32_t)threadIdx.x; i < n; i += COMMAND_THREADS)
		to[i] = from[i];
}

static __device__ void begin_slot(struct slot *s, const uint32_t *word)
{
	copy_words((uint32_t *)&s->s, word, sizeof(struct sr_sampling) / sizeof(uint32_t));
	if (threadIdx.x == 0)
		s->counted = s->n_prompt = s->n_history = s->n_words = 0;
}

static __device__ void add_list(struct slot *s, uint32_t *word, const struct sr_cmd *c, const uint32_t *from)
{
	int32_t at = s->n_words;

	copy_words(word + at + 2, from, c->n);
	__syncthreads(); /* all have read n_words */
	if (threadIdx.x == 0) {
		word[at] = (uint32_t)c->a;
		word[at + 1] = (uint32_t)c->n;
		s->n_words = at + 2 + c->n;
	}
}

static __global__ void commands_kernel(struct command_args a)
{
	let_next_start();
	wait_for_previous();
	for (int32_t i = a.first[blockIdx.x]; i >= 0; i = a.next[i]) {
		struct sr_cmd c = a.cmd[i];
		const uint32_t *word = a.word + c.data;
		struct slot *s = &a.slots.slot[c.slot];

		switch (c.op) {
		case SR_CMD_BEGIN:
			begin_slot(s, word);
			break;
		case SR_CMD_LIST:
			add_list(s, word_of(&a.slots, c.slot), &c, word);
			break;
		case SR_CMD_HISTORY:
			copy_words((uint32_t *)history_of(&a.slots, c.slot), word, c.n);
			if (threadIdx.x == 0) {
				s->n_history = c.n;
				s->n_prompt = c.a;
				s->counted = 1;
			}
			break;
		case SR_CMD_BLOCKS:
			copy_words((uint32_t *)table_of(&a.slots, c.slot) + c.a, word, c.n);
			break;
		}
		__syncthreads(); /* the next command sees this one's */
	}
}

/* The lists are on the device at `bytes`: point the verbs there and carry the commands out. */
void step_commands(struct dev *d, const unsigned char *bytes)
{
	const struct step *s = d->step;
	struct command_args a = {};

	d->token = (const struct token *)(bytes + s->token);
	d->pick = (const struct pick *)(bytes + s->pick);
	d->work_list = (const struct work *)(bytes + s->work);
	d->merge_list = (const struct merge *)(bytes + s->merge);
	d->run_list = (const struct run *)(bytes + s->run);
	a.first = (const int32_t *)(bytes + s->chain);
	a.next = (const int32_t *)(bytes + s->next);
	a.cmd = d->batch->cmd;
	a.word = d->batch->word;
	a.slots = d->slots;
	if (s->n_chains && !d->lost)
		cuda_ok(d, start(commands_kernel, s->n_chains, COMMAND_THREADS, 0, d->stream, a), "commands");
}
