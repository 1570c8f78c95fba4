/* step.cu - the first and the last kernel of a batch.
 *
 *	host    counts core's rows, for grids; links the commands of each slot; fills a submission
 *	begin   on the device: finds the submission by the count of batches.  It reads the rows from pinned memory
 *	        and makes the lists of the other kernels: tokens, picks, pieces of attention.  Other blocks
 *	        of it execute the commands, which change the state of slots.
 *	end     signals the host
 *
 * Nothing is copied per batch, and no kernel argument depends on the batch.  Lists have fixed addresses, and
 * struct current_batch leads to what is in pinned memory.  So a graph that was captured once computes any
 * batch that is no larger.  Padding fills its lists:
 *
 *	token   id 0 at position 0 of the null slot, whose table has the null block: its K and V are never read
 *	pick, piece, run   are marked, and their blocks end at once
 */
#include <assert.h>

#include "device.cuh"

#define THREADS 512
#define LEAST_PIECE 64                /* least positions in a piece of a single token's attention */
#define LEAST_RUN   128              /* of a run's: its part is 64 or 128 rows */
#define BLOCKS_EACH 4                /* of attention, per multiprocessor */

/* ---- on the host ---------------------------------------------------------------------- */

/* The number of attention pieces that fill the device. */
static int32_t full_pieces(const struct dev *d)
{
	int32_t n = d->gpu.processors * BLOCKS_EACH / d->m->kind[0].n_kv_heads;

	return n > 0 && has(d, SPECIAL_PIECES) ? n : 1;
}

/* An upper bound: a piece has at least all positions / full_pieces, except the last piece of each token. */
int32_t most_pieces(const struct dev *d, int32_t singles)
{
	return singles + full_pieces(d);
}

/* Tokens of which no kind of attention has more than so many rows; at least 1, which wide.cu does in parts. */
static int32_t tokens_of(const struct dev *d, int32_t rows)
{
	int32_t least = rows;

	for (int32_t i = 0; i < d->m->n_kinds || i == 0; i++) {
		int32_t n = rows / (d->m->kind[i].n_heads / d->m->kind[i].n_kv_heads);

		least = n < least ? n : least;
	}
	return least > 1 ? least : 1;
}

int32_t run_tokens(const struct dev *d)
{
	return tokens_of(d, attend_run_rows(d));
}

/* A block of attention to runs takes a processor. */
static int32_t run_blocks(const struct dev *d)
{
	int32_t n = d->gpu.processors / d->m->kind[0].n_kv_heads;

	return n > 0 && has(d, SPECIAL_RUN_PIECES) && !runs_only(d) ? n : 0;
}

int32_t full_runs(const struct dev *d, int32_t n_runs)
{
	return n_runs && 2 * n_runs <= run_blocks(d) ? run_blocks(d) : 0;
}

/* As with most_pieces(): runs that are divided are at most half as many as the pieces that fill the device. */
int32_t most_divided(const struct dev *d)
{
	return run_blocks(d) + run_blocks(d) / 2;
}

/* Enough for the kernels of all GPUs, too: their runs are the shorter ones. */
int32_t most_runs(const struct dev *d, const struct sr_limits *l)
{
	int32_t whole = l->rows + l->tokens / tokens_of(d, TILE_ROWS);

	return whole > most_divided(d) ? whole : most_divided(d);
}

/* Links the commands of each slot; next_cmd of the last is -1.  last_cmd[slot]: the slot's last command so
 * far and its turn.  Returns the number of slots that have commands. */
static int32_t link_commands(struct dev *d, const struct sr_batch *b, const struct sr_limits *l,
	int32_t *first_cmd, int32_t *next_cmd)
{
	int32_t n = 0;

	for (int32_t i = 0; i < b->n_cmds; i++) {
		struct last_cmd *t;

		assert(batch_cmd_ok(b, l, &b->cmd[i]));
		t = &d->batch.last_cmd[b->cmd[i].slot];
		if (t->turn == d->batch.turn)
			next_cmd[t->cmd] = i;
		else
			first_cmd[n++] = i;
		*t = (struct last_cmd){ d->batch.turn, i };
		next_cmd[i] = -1;
	}
	return n;
}

/* Its results, and a vector of logits, which sampling makes, too. */
static __host__ __device__ int32_t picks_of(const struct sr_row *r)
{
	return row_results(r) + (r->pool == SR_POOL_LOGITS && r->sample);
}

static struct step count(const struct dev *d, const struct sr_batch *b, const struct sr_limits *l)
{
	struct step s = {};
	int32_t singles = 0, most = run_tokens(d);

	for (int32_t i = 0; i < b->n_rows; i++) {
		const struct sr_row *r = &b->row[i];

		s.n_tokens += r->n;
		assert(batch_row_ok(b, l, r));
		s.n_picks += picks_of(r);
		s.n_pooled += r->pool && r->pool != SR_POOL_LOGITS;
		s.n_guessed += r->n_draft > 0;
		if (r->n == 1 && !runs_only(d)) {
			singles++;
		} else {
			s.n_runs += count_runs(r->n, 0, most);
		}
	}
	s.n_rows = b->n_rows;
	s.full_runs = full_runs(d, s.n_runs);
	s.n_runs += s.full_runs;
	s.n_pieces = singles ? most_pieces(d, singles) : 0;
	return s;
}

/* Makes b the next batch.  The submission of its turn is free, because the batch FLIGHTS before it has
 * ended. */
void step_fill(struct dev *d, const struct sr_batch *b, const struct sr_limits *l, int32_t *first_cmd,
	int32_t *next_cmd, struct signal *s)
{
	struct submission *h = &d->batch.submitted[d->batch.turn % FLIGHTS];

	d->batch.turn++;
	assert(batch_fits(b, l));
	d->batch.step = count(d, b, l);
	d->batch.step.n_cmd_slots = link_commands(d, b, l, first_cmd, next_cmd);
	*h = (struct submission){ b->n_rows, d->batch.step.n_cmd_slots, b->row, b->token, b->cmd, b->word,
		first_cmd, next_cmd, b->result, b->top, b->vector, s };
}

/* ---- commands ------------------------------------------------------------------------- */

struct begin_args {
	const struct submission *submitted;
	struct current_batch *current;
	struct slots slots;
	struct lists list;
	struct step upto;            /* lists are padded to these counts */
	int32_t full_pieces, run_tokens, null_slot;
	bool runs_only, whole;       /* whole: a row is a prompt whose tokens see each other (sr_limits.whole) */
};

#define EACH(i, n) for (int32_t i = (int32_t)threadIdx.x; i < (n); i += THREADS)

static __device__ void copy_words(uint32_t *to, const uint32_t *from, int32_t n)
{
	EACH(i, n)
		to[i] = from[i];
}

static __device__ void begin_slot(struct slot *s, const uint32_t *word)
{
	copy_words((uint32_t *)&s->s, word, sizeof(struct sr_sampling) / sizeof(uint32_t));
	if (threadIdx.x == 0)
		s->counted = s->n_prompt = s->n_history = s->n_words = 0, s->keep = -1;
}

static __device__ void add_list(struct slot *s, uint32_t *word, const struct sr_cmd *c, const uint32_t *from)
{
	int32_t at = s->n_words;

	copy_words(word + at + 2, from, c->n);
	__syncthreads(); /* all threads have read n_words */
	if (threadIdx.x == 0) {
		word[at] = (uint32_t)c->a;
		word[at + 1] = (uint32_t)c->n;
		s->n_words = at + 2 + c->n;
	}
}

static __device__ void carry_out(const struct slots *slots, const struct sr_cmd &c, const uint32_t *word)
{
	struct slot *s = &slots->slot[c.slot];

	switch (c.op) {
	case SR_CMD_BEGIN:
		begin_slot(s, word);
		break;
	case SR_CMD_LIST:
		add_list(s, word_of(slots, c.slot), &c, word);
		break;
	case SR_CMD_HISTORY:
		copy_words((uint32_t *)history_of(slots, c.slot), word, c.n);
		if (threadIdx.x == 0) {
			s->n_history = c.n;
			s->n_prompt = c.a;
			s->counted = 1;
		}
		break;
	case SR_CMD_BLOCKS:
		copy_words((uint32_t *)table_of(slots, c.slot) + c.group * slots->group_cap + c.a, word, c.n);
		break;
	case SR_CMD_POOL:
		copy_words((uint32_t *)&s->pooling, word, sizeof(s->pooling) / sizeof(uint32_t));
		if (threadIdx.x == 0)
			s->second = c.a;
		break;
	case SR_CMD_STATE:
		if (threadIdx.x == 0) {
			s->from = c.a;
			s->to = c.n;
		}
		break;
	case SR_CMD_KEEP:
		if (threadIdx.x == 0) {
			s->keep = c.a;
			s->keep_at = c.n;
		}
		break;
	}
	__syncthreads(); /* makes this command visible to the next */
}

/* ---- lists ---------------------------------------------------------------------------- */

struct begin_scratch { uint64_t sum[THREADS / 32]; int32_t upto[THREADS / 32]; struct submission head; };

/* Returns *all plus the sum of v over the threads before this one; adds the sum over all threads to *all. */
static __device__ int32_t block_before(int32_t v, int32_t *all, struct begin_scratch *s)
{
	int32_t warp = (int32_t)threadIdx.x / 32, lane = (int32_t)threadIdx.x % 32, upto = v, before = *all;

	for (int32_t by = 1; by < 32; by *= 2) {
		int32_t more = __shfl_up_sync(FULL, upto, (unsigned)by);

		upto += lane >= by ? more : 0;
	}
	__syncthreads(); /* the previous call has read s */
	if (lane == 31)
		s->upto[warp] = upto;
	__syncthreads();
	for (int32_t i = 0; i < THREADS / 32; i++) {
		before += i < warp ? s->upto[i] : 0;
		*all += s->upto[i];
	}
	return before + upto - v;
}

/* Positions per piece: about `full` pieces in all, to fill the device. */
static __device__ int32_t piece_size(uint64_t positions, int32_t full, uint64_t least)
{
	uint64_t size = (positions + (uint64_t)full - 1) / (uint64_t)full;

	size = (size + least - 1) / least * least;
	return (int32_t)(size > least ? size : least);
}

/* The number of pieces of a sequence, of `each` positions but for the last: all alike, and up to 1/8 longer than
 * `size`, because a short piece costs a block and a join as a long one does. */
static __device__ int32_t pieces_of(int32_t positions, int32_t size, int32_t &each)
{
	int32_t n = positions > size + size / 8 ? (positions - size / 8 + size - 1) / size : 1;

	each = ((positions + n - 1) / n + BLOCK - 1) / BLOCK * BLOCK;
	return (positions + each - 1) / each;
}

static __device__ bool single(const begin_args &a, const struct sr_row &r)
{
	return r.n == 1 && !a.runs_only;
}

/* The last row that starts at or before i. */
static __device__ int32_t row_with(const int32_t *first, int32_t n_rows, int32_t i)
{
	int32_t low = 0, high = n_rows - 1;

	while (low < high) {
		int32_t mid = (low + high + 1) / 2;

		if (first[mid] <= i)
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

/* Tokens of the run that starts with token j of a row. */
static __device__ int32_t run_length(const begin_args &a, const struct sr_row &r, int32_t j)
{
	return r.n - j < a.run_tokens ? r.n - j : a.run_tokens;
}

/* The position behind the last that the run attends to. */
static __device__ int32_t run_end(const begin_args &a, const struct sr_row &r, int32_t j)
{
	return r.first + (a.whole ? r.n : j + run_length(a, r, j));
}

/* The positions that the runs of a row attend to, if runs are divided. */
static __device__ uint64_t run_positions(const begin_args &a, const struct sr_row &r)
{
	uint64_t n = 0;

	for (int32_t j = 0; a.upto.full_runs && j < r.n && !single(a, r); j += a.run_tokens)
		n += (uint64_t)run_end(a, r, j);
	return n;
}

/* The number of pieces of a row's runs, of about `size` positions; puts them into the list unless it is NULL. */
static __device__ int32_t put_runs(const begin_args &a, const struct sr_row &r, int32_t t, int32_t size,
	struct run_piece *list, int32_t first)
{
	int32_t all = 0, each;

	if (!a.upto.full_runs && !list)
		return count_runs(r.n, 0, a.run_tokens);
	for (int32_t j = 0; j < r.n; j += a.run_tokens) {
		int32_t to = run_end(a, r, j), n = a.upto.full_runs ? pieces_of(to, size, each) : 1;

		for (int32_t i = 0; list && i < n; i++)
			list[first + all + i] = (struct run_piece){ t + j, run_length(a, r, j), n > 1 ? i * each : 0,
				i + 1 < n ? (i + 1) * each : to, first + all, n };
		all += n;
	}
	return all;
}

/* Lists the pieces of attention of a row: pieces of a token or of runs. */
static __device__ void put_attention(const begin_args &a, const struct sr_row &r, int32_t t, int32_t each,
	int32_t first_piece, int32_t pieces, int32_t run_size, int32_t first_run)
{
	for (int32_t i = 0; i < pieces; i++)
		a.list.piece[first_piece + i] = (struct attend_piece){ t, i * each,
			i + 1 < pieces ? (i + 1) * each : r.first + 1, first_piece, pieces };
	if (!single(a, r))
		put_runs(a, r, t, run_size, a.list.run, first_run);
}

/* Copies the rows, records the first token and pick of each, and divides the attention. */
static __device__ void put_rows(const begin_args &a, const struct submission &h, struct step *all,
	struct begin_scratch *scratch)
{
	uint64_t positions = 0, of_runs = 0;
	int32_t size, run_size = 0;

	EACH(i, h.n_rows) {
		struct sr_row r = h.row[i];

		a.list.row[i] = r;
		positions += single(a, r) ? (uint64_t)r.first + 1 : 0;
		of_runs += run_positions(a, r);
	}
	size = piece_size(block_sum(positions, scratch->sum), a.full_pieces, LEAST_PIECE);
	if (a.upto.full_runs)
		run_size = piece_size(block_sum(of_runs, scratch->sum), a.upto.full_runs, LEAST_RUN);
	for (int32_t base = 0; base < h.n_rows; base += THREADS) {
		int32_t i = base + (int32_t)threadIdx.x, pieces, each = 0, runs, token, pick, first_piece, first_run;
		struct sr_row r = {};

		if (i < h.n_rows)
			r = a.list.row[i];   /* written by this thread */
		pieces = single(a, r) ? pieces_of(r.first + 1, size, each) : 0;
		runs = single(a, r) ? 0 : put_runs(a, r, 0, run_size, NULL, 0);
		token = block_before(r.n, &all->n_tokens, scratch);
		pick = block_before(picks_of(&r), &all->n_picks, scratch);
		first_piece = block_before(pieces, &all->n_pieces, scratch);
		first_run = block_before(runs, &all->n_runs, scratch);
		if (i < h.n_rows) {
			a.list.token_of[i] = token;
			a.list.pick_of[i] = pick;
			put_attention(a, r, token, each, first_piece, pieces, run_size, first_run);
		}
	}
	__syncthreads(); /* makes the rows visible to all threads */
}

static __device__ void put_pick(const begin_args &a, const struct submission &h, int32_t i)
{
	int32_t n = row_with(a.list.pick_of, h.n_rows, i), j = i - a.list.pick_of[n];
	struct sr_row r = a.list.row[n];

	a.list.pick[i] = row_pick(&r, h.token, a.list.token_of[n], j);
}

static __device__ void put_lists(const begin_args &a, const struct submission &h,
	struct begin_scratch *scratch)
{
	struct step all = {};

	put_rows(a, h, &all, scratch);
	EACH(t, all.n_tokens) {
		int32_t n = row_with(a.list.token_of, h.n_rows, t), j = t - a.list.token_of[n];
		struct sr_row r = a.list.row[n];

		a.list.token[t] = row_token(&r, h.token, j);
	}
	EACH(i, all.n_picks)
		put_pick(a, h, i);
	for (int32_t i = all.n_tokens + (int32_t)threadIdx.x; i < a.upto.n_tokens; i += THREADS)
		a.list.token[i] = (struct batch_token){ 0, 0, a.null_slot };
	for (int32_t i = all.n_picks + (int32_t)threadIdx.x; i < a.upto.n_picks; i += THREADS)
		a.list.pick[i] = (struct batch_pick){ 0, -1, -1, 0, a.null_slot, 0, 0, 0, 0, 0 };
	for (int32_t i = all.n_pieces + (int32_t)threadIdx.x; i < a.upto.n_pieces; i += THREADS)
		a.list.piece[i] = (struct attend_piece){ -1, 0, 0, 0, 0 };
	for (int32_t i = all.n_runs + (int32_t)threadIdx.x; i < a.upto.n_runs; i += THREADS)
		a.list.run[i] = (struct run_piece){ -1, 0, 0, 0, 0, 0 };
}

/* ---- the kernels ---------------------------------------------------------------------- */

/* Block 0 makes the lists, which do not depend on the state of slots.  The others execute commands. */
static __global__ void __launch_bounds__(THREADS) begin_kernel(struct begin_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	struct begin_scratch *scratch = (struct begin_scratch *)shared;

	if (threadIdx.x == 0)                /* it lies in the host's memory: one read for all threads */
		scratch->head = a.submitted[a.current->turn % FLIGHTS];
	__syncthreads();
	struct submission h = scratch->head;

	if (blockIdx.x == 0) {
		if (threadIdx.x == 0) {
			h.signal->begin_ns = device_ns();
			a.current->result = h.result;
			a.current->top = h.top;
			a.current->vector = h.vector;
			a.current->signal = h.signal;
		}
		put_lists(a, h, scratch);
		return;
	}
	for (int32_t i = (int32_t)blockIdx.x - 1; i < h.n_cmd_slots; i += (int32_t)gridDim.x - 1)
		for (int32_t c = h.first_cmd[i]; c >= 0; c = h.next_cmd[c]) {
			struct sr_cmd cmd = h.cmd[c];

			carry_out(&a.slots, cmd, h.word + cmd.data);
		}
}

/* row: those of a batch whose layers have a state; the next rows of their slots continue what they left. */
static __global__ void end_kernel(struct current_batch *current, const struct sr_row *row, int32_t n_rows,
	struct slot *slot)
{
	let_next_start();
	wait_for_previous();
	for (int32_t i = (int32_t)threadIdx.x; i < n_rows; i += (int32_t)blockDim.x) {
		struct slot *s = &slot[row[i].slot];

		s->from = s->to;
		s->keep = -1;
	}
	__syncthreads();
	if (threadIdx.x)
		return;
	current->signal->end_ns = device_ns();
	current->turn++;
	__threadfence_system();              /* all other writes are visible before the word */
	*(volatile uint32_t *)&current->signal->done = current->turn;
}

void step_begin(struct dev *d)
{
	struct begin_args a = {};

	a.submitted = d->batch.submitted;
	a.current = d->batch.current;
	a.slots = d->slots;
	a.list = d->batch.list;
	a.upto = d->batch.step;
	a.full_pieces = full_pieces(d);
	a.run_tokens = run_tokens(d);
	a.null_slot = d->batch.null_slot;
	a.runs_only = runs_only(d);
	a.whole = d->whole;
	if (!d->fault.lost)
		cuda_ok(d, start(begin_kernel, 1 + (unsigned)d->batch.step.n_cmd_slots, THREADS,
			sizeof(struct begin_scratch), d->stream, a), "begin a batch");
}

void step_end(struct dev *d)
{
	if (!d->fault.lost)
		cuda_ok(d, start(end_kernel, 1, 32, 0, d->stream, d->batch.current, d->batch.list.row,
			d->states ? d->batch.step.n_rows : 0, d->slots.slot), "end a batch");
}
