/* batches.c - a batch on the CPU: copies and commands first, then its rows, cut into slices. */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "cpu.h"
#include "shmring/clock.h"

/* ---- copies and commands --------------------------------------------------------------------------- */

static void do_copies(struct sr_backend *b)
{
	size_t host = (size_t)b->lim.n_blocks + 1; /* where the host tier begins, in blocks */

	for (int out = 1; out >= 0; out--) {
		for (int32_t i = 0; i < b->batch.n_copies * b->n_pools; i++) {
			const struct sr_copy *c = &b->batch.copy[i / b->n_pools];
			const struct kv_pool *p = &b->pool[i % b->n_pools];
			uint8_t *dev = p->at + (size_t)c->device * p->block;
			uint8_t *far = p->at + (host + (size_t)c->host) * p->block;

			assert(batch_copy_ok(&b->lim, c));
			if (c->out == out)
				memcpy(out ? far : dev, out ? dev : far, p->block);
		}
	}
}

static void add_list(struct sr_backend *b, struct slot *s, const struct sr_cmd *c, const uint32_t *word)
{
	assert(s->n_words + 2 + c->n <= slot_words(&b->lim));
	s->word[s->n_words++] = (uint32_t)c->a;
	s->word[s->n_words++] = (uint32_t)c->n;
	memcpy(s->word + s->n_words, word, (size_t)c->n * sizeof(*word));
	s->n_words += c->n;
}

static void set_history(struct sr_backend *b, struct slot *s, const struct sr_cmd *c, const uint32_t *word)
{
	for (int32_t i = 0; i < c->n; i++) {
		assert(word[i] < (uint32_t)b->m.n_vocab);
		s->history[i] = (int32_t)word[i];
	}
	s->n_history = c->n;
	s->n_prompt = c->a;
	s->counted = true;
}

static void do_command(struct sr_backend *b, const struct sr_cmd *c)
{
	const uint32_t *word = b->batch.word + c->data;
	struct slot *s = &b->slot[c->slot];

	assert(batch_cmd_ok(&b->batch, &b->lim, c));
	switch (c->op) {
	case SR_CMD_BEGIN:
		memcpy(&s->s, word, sizeof(s->s));
		s->n_words = s->n_history = s->n_prompt = 0;
		s->counted = false;
		s->keep = -1;
		break;
	case SR_CMD_LIST:
		add_list(b, s, c, word);
		break;
	case SR_CMD_HISTORY:
		set_history(b, s, c, word);
		break;
	case SR_CMD_BLOCKS:
		memcpy(s->table + c->group * b->lim.seq_blocks + c->a, word, (size_t)c->n * sizeof(*word));
		break;
	case SR_CMD_END:
		break; /* BEGIN clears the slot */
	case SR_CMD_POOL:
		memcpy(&s->pooling, word, sizeof(s->pooling));
		s->second = c->a;
		break;
	case SR_CMD_STATE:
		s->from = c->a;
		s->to = c->n;
		break;
	case SR_CMD_KEEP:
		s->keep = c->a;
		s->keep_at = c->n;
		break;
	default:
		assert(!"a command that exists");
	}
}

/* ---- slices ------------------------------------------------------------------------------------------ */

struct row_cursor { int32_t row, done; }; /* computed so far: all rows before `row`, and `done` tokens of it */

static void add_picks(struct slice *s, const struct sr_batch *b, const struct sr_row *r, int32_t from, int32_t n)
{
	int32_t t = s->n_tokens - from; /* where the row would begin, were it not for earlier slices */

	for (int32_t j = from; j < from + n; j++) {
		if (j < r->n_score)
			s->pick[s->n_picks++] = row_pick(r, b->token, t, j);
		s->guided |= r->sample && j == r->n - 1 && r->mask;
		if (r->sample && j >= r->n - 1 - r->n_draft)
			s->pick[s->n_picks++] = row_pick(r, b->token, t, r->n_score + j - (r->n - 1 - r->n_draft));
	}
}

/* Tokens from .. from+n-1 of a pooled row. */
static void add_pool(struct slice *s, const struct sr_batch *b, const struct sr_row *r, int32_t from, int32_t n)
{
	bool last = r->sample && from + n == r->n;

	if (r->pool != SR_POOL_LOGITS)
		s->pool[s->n_pools++] = (struct batch_pool){ s->n_tokens, n, r->first + from, r->slot, r->pool,
		                                             last ? r->mask : -1 };
	else if (last)
		s->pick[s->n_picks++] = row_pick(r, b->token, s->n_tokens - from, 0);
}

/* The next n tokens of the slice, from position `first` on, are of this slot. */
static void add_state_run(struct slice *s, struct slot *slot, int32_t first, int32_t n)
{
	struct state_run *r = &s->run[s->n_runs++];

	*r = (struct state_run){ s->n_tokens, n, slot->from, slot->to, -1, 0 };
	slot->from = slot->to;
	if (slot->keep < 0 || slot->keep_at > first + n)
		return;
	assert(slot->keep_at > first);
	r->keep = slot->keep;
	r->n_keep = slot->keep_at - first;
	slot->keep = -1;
}

static const int32_t *guesses_of(const struct sr_backend *b, const struct sr_row *r)
{
	return b->batch.token + r->token + r->n - r->n_draft;
}

static void settle_guesses(struct sr_backend *b)
{
	for (int32_t i = 0; b->lim.drafts && i < b->batch.n_rows; i++) {
		const struct sr_row *r = &b->batch.row[i];

		if (r->n_draft)
			sample_settle(&b->slot[r->slot], guesses_of(b, r), r->n_draft, b->batch.result + r->result);
	}
}

static bool next_slice(struct sr_backend *b, struct row_cursor *c)
{
	struct slice *s = b->slice;
	int32_t room = slice_tokens(b), cap = room < SLICE ? room : SLICE;

	s->n_tokens = s->n_items = s->n_stores = s->n_picks = s->n_pools = s->n_runs = 0;
	s->guided = false;
	s->single = true;
	while (c->row < b->batch.n_rows && s->n_tokens < cap) {
		const struct sr_row *r = &b->batch.row[c->row];
		int32_t left = r->n - c->done, n;

		if (b->lim.whole && s->n_tokens == 0 && left > cap) /* a long prompt has a slice for itself */
			cap = left < room ? left : room;
		n = left < cap - s->n_tokens ? left : cap - s->n_tokens;
		assert(batch_row_ok(&b->batch, &b->lim, r));
		if (r->n_draft && !c->done)
			sample_guesses(&b->slot[r->slot], guesses_of(b, r), r->n_draft);
		if (b->lim.whole && n < left) /* it begins the next slice, with all its tokens */
			break;
		if (r->pool)
			add_pool(s, &b->batch, r, c->done, n);
		else
			add_picks(s, &b->batch, r, c->done, n);
		if (b->n_state_layers)
			add_state_run(s, &b->slot[r->slot], r->first + c->done, n);
		s->n_items += cut_runs(s->item + s->n_items, s->n_tokens, n, 0, b->lim.whole ? 1 : QUERIES);
		s->n_stores += cut_runs(s->store + s->n_stores, s->n_tokens, n, r->first + c->done, KERN_BLOCK);
		for (int32_t j = 0; j < n; j++) {
			struct batch_token t = row_token(r, b->batch.token, c->done + j);

			if (t.id == SR_LAST)
				t.id = b->slot[r->slot].last;
			assert(t.id >= 0 && t.id < b->m.n_vocab);
			if (b->lim.whole)
				s->last[s->n_tokens] = r->n - 1;
			s->token[s->n_tokens++] = t;
		}
		s->single &= n == 1;
		c->done = n < left ? c->done + n : 0;
		c->row += n == left;
	}
	return s->n_tokens > 0;
}

static void breathe(void *ctx)
{
	ops_breathe(ctx);
}

/* Numbers below 2^-126 become 0, as vdpbf16ps has them in every mode.  Returns the mode before. */
static unsigned long flush_small(void)
{
#if defined __x86_64__
	unsigned long before = __builtin_ia32_stmxcsr();

	__builtin_ia32_ldmxcsr((unsigned)before | 0x8040);      /* results (FTZ) and operands (DAZ) */
#elif defined __aarch64__
	unsigned long before = __builtin_aarch64_get_fpcr();

	__builtin_aarch64_set_fpcr((unsigned)before | 1u << 24); /* FZ: both */
#else
	unsigned long before = 0;
#endif
	return before;
}

static void restore_small(unsigned long before)
{
#if defined __x86_64__
	__builtin_ia32_ldmxcsr((unsigned)before);
#elif defined __aarch64__
	__builtin_aarch64_set_fpcr((unsigned)before);
#else
	(void)before;
#endif
}

static void compute_slice(void *ctx, int i)
{
	struct sr_backend *b = ctx;
	struct dev *d = &b->dev[i];
	unsigned long mode = flush_small();

	d->reads = d->writes = 0;
	d->far = ~0u;
	attend_angles(d);
	forward(b->verbs, d, &b->net, b->slice->n_tokens, b->slice->n_picks, b->slice->n_pools, logit_rows(b),
		i ? NULL : breathe, d);
	restore_small(mode);
}

static void finish(struct sr_backend *b)
{
	uint64_t one = 1;
	int fd;

	b->batch.end_ns = sr_now();
	pthread_mutex_lock(&b->lock);
	fd = b->armed;
	b->armed = -1;
	atomic_store_explicit(&b->state, BATCH_DONE, memory_order_release);
	pthread_mutex_unlock(&b->lock);
	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		return; /* a full eventfd is already readable */
}

static uint32_t least_ns(double amount, double per_ns)
{
	double ns = per_ns > 0 ? amount / per_ns : 0;

	return ns < 4e9 ? (uint32_t)ns : 4000000000u;
}

void batches_run(struct sr_backend *b)
{
	struct row_cursor c = { 0, 0 };
	double left_out = 0;              /* ns of threads */

	assert(batch_fits(&b->batch, &b->lim));
	b->batch.begin_ns = sr_now();
	b->dev[0].breathed = b->batch.begin_ns;
	do_copies(b);
	for (int32_t i = 0; i < b->batch.n_cmds; i++)
		do_command(b, &b->batch.cmd[i]);
	b->cost = (struct cost){ 0 };
	b->ranks_ns = 0;
	while (next_slice(b, &c)) {
		uint64_t begin = sr_now();

		roof_add(b, b->slice, &b->cost);
		b->n_active = team_fit(b->team);
		team_run_some(b->team, b->n_active, compute_slice, b);
		left_out += (double)(sr_now() - begin) * (b->n_threads - b->n_active);
	}
	settle_guesses(b);
	b->batch.int8_ops = (uint64_t)(2 * b->cost.int8_macs);
	b->batch.float_ops = (uint64_t)(2 * b->cost.float_macs);
	b->batch.bytes = (uint64_t)b->cost.bytes;
	b->batch.copied = (uint64_t)b->batch.n_copies * b->kv_block;
	b->batch.compute_ns = least_ns(b->cost.int8_macs + b->cost.float_macs, b->roof.macs_per_ns);
	b->batch.memory_ns = least_ns(b->cost.bytes, b->roof.bytes_per_ns);
	b->batch.ranks_ns = least_ns((double)b->ranks_ns, 1);
	b->batch.cores_ns = least_ns(left_out / b->n_threads, 1);
	b->batch.copy_ns = least_ns(2.0 * (double)b->batch.copied, b->roof.bytes_per_ns);
	finish(b);
}
