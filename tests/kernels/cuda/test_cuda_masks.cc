/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_masks.cc - guided rows on the CUDA back end in the emulation: masks before the batch, missing, with
 * lists, and with two batches in flight. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}

#include "kernels/cuda/backend.cu"
#include "tests/cuda/real.h"
#include "tests/cuda/held.h"
#include "tests/cuda/truth.h"
#include "tests/rig/guided_rows.h"

struct gpu_drive {
	struct drive d;
	struct tiny *t;
};

static void open_gpu(struct gpu_drive *g, int32_t logit_rows, bool eager, const struct held_kind &kind = held_kinds[0])
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = drive_limits();

	g->t = held_model(kind, shape, 0, 12);
	lim.masks = 6;
	lim.worked = 0;
	lim.logit_rows = logit_rows;
	lim.eager = eager;
	if (drive_open(&g->d, sr_backend_get(SR_BACKEND_VERSION), &g->t->m, &g->t->src, &lim))
		fail_msg("%s", g->d.err);
}

static void close_gpu(struct gpu_drive *g)
{
	drive_close(&g->d);
	tiny_destroy(g->t);
	assert_int_equal(emu_allocations, 0);
}

/* Whether the mask comes at once or after a miss, the tokens are the same, also those of the row beside it;
 * with graphs, too. */
static void missed_as(const struct held_kind &kind)
{
	struct guided_run want, got;
	int32_t text[GUIDED_PROMPT];

	for (int32_t rows = 1; rows <= 2; rows++)
		for (int eager = 0; eager < 2; eager++) {
			struct gpu_drive g;

			open_gpu(&g, rows, eager, kind);
			for (int i = 0; i < GUIDED_PROMPT; i++)
				text[i] = (i * 31 + 5) % g.t->m.n_vocab;
			guided_play(&g.d, g.t->m.n_vocab, text, GUIDED_BEFORE, &want);
			assert_int_equal(want.misses, 0);
			for (int n = 0; n < GUIDED_TOKENS; n++) {
				uint32_t what = guided_what(GUIDED_PROMPT + n, g.t->m.n_vocab);

				if (what == SR_MASK_BITS)
					assert_true(guided_allows(GUIDED_PROMPT + n, want.id[n]));
				else if (what != SR_MASK_ANY)
					assert_int_equal(want.id[n], what - 1);
			}
			guided_play(&g.d, g.t->m.n_vocab, text, GUIDED_MISSED, &got);
			assert_int_equal(got.misses, (GUIDED_TOKENS - 1) / 3);
			assert_memory_equal(got.id, want.id, sizeof(want.id));
			assert_memory_equal(got.other, want.other, sizeof(want.other));
			assert_memory_equal(got.logprob, want.logprob, sizeof(want.logprob));
			close_gpu(&g);
		}
}

static void test_missed(void **)
{
	for (int k = 0; k < held_count(); k++)
		missed_as(held_kinds[k]);
}

/* Give a mask of these ids for a position to pair 2. */
static void put_ids(const struct sr_masks *m, int32_t position, const int32_t *id, int n)
{
	int32_t place = 2 + position % 2;

	memset(m->word + (size_t)place * (size_t)m->words, 0, (size_t)m->words * sizeof(*m->word));
	for (int i = 0; i < n; i++)
		m->word[(size_t)place * (size_t)m->words + (size_t)id[i] / 32] |= 1u << id[i] % 32;
	__atomic_store_n(&m->tag[place], (uint64_t)position << 32 | SR_MASK_BITS, __ATOMIC_RELEASE);
}

/* Lists count as ever; where nothing is left, nothing is drawn and the slot is as before; a mask of stop ids
 * alone wins over min_position.  Numbers are those after the mask. */
static void test_lists(void **)
{
	static const struct {
		const char *what;
		int n;
		int32_t id[3];
		enum sr_list kind;
		int n_words;
		uint32_t word[4];
		int32_t want;
	} cases[] = {
		{ "one id", 1, { 77 }, SR_LIST_STOP, 0, {}, 77 },
		{ "nothing", 0, {}, SR_LIST_STOP, 0, {}, SR_NO_ID },
		{ "one of two is banned", 2, { 77, 50 }, SR_LIST_BAD, 2, { 1, 77 }, 50 },
		{ "both are banned", 2, { 77, 50 }, SR_LIST_BAD, 4, { 1, 77, 1, 50 }, SR_NO_ID },
		{ "one of two is allowed", 2, { 77, 50 }, SR_LIST_ALLOW, 2, { 50, 3 }, 50 },
		{ "others are allowed", 2, { 77, 50 }, SR_LIST_ALLOW, 1, { 3 }, SR_NO_ID },
		{ "one of two is a stop id, early", 2, { 77, 50 }, SR_LIST_STOP, 1, { 50 }, 77 },
		{ "only stop ids, early", 1, { 77 }, SR_LIST_STOP, 2, { 50, 77 }, 77 },
	};
	static const int32_t text[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
	struct gpu_drive g;
	struct sr_masks m;

	open_gpu(&g, 4, true);
	g.d.ops->masks(g.d.b, &m);
	for (int32_t i = 0; i < g.d.lim.masks; i++)
		assert_true(m.tag[i] == SR_MASK_NO_TAG);
	for (const auto &c : cases)
		for (int hot = 0; hot < 2; hot++) {
			struct sr_sampling s = {};
			int last;

			s.top_p = s.repetition = 1;
			s.temperature = hot ? 0.5f : 0;
			s.min_position = 11;
			drive_begin(&g.d, 3, &s);
			if (c.n_words)
				drive_list(&g.d, 3, c.kind, c.word, c.n_words);
			drive_range(&g.d, 3, 0, 2);
			drive_row(&g.d, 3, 0, text, 9, 0, 1);
			drive_step(&g.d);
			last = g.d.batch->result[0].id;
			put_ids(&m, 10, c.id, c.n);
			drive_row(&g.d, 3, 9, NULL, 1, 0, 1);
			g.d.batch->row[0].mask = 2;
			g.d.batch->row[0].n_top = 3;
			drive_step(&g.d);
			if (g.d.batch->result[0].id != c.want)
				fail_msg("%s: %d", c.what, g.d.batch->result[0].id);
			if (c.n == 1) {
				assert_float_equal(g.d.batch->result[0].logprob, 0, 1e-6);
				assert_int_equal(g.d.batch->result[0].rank, 1);
				assert_int_equal(g.d.batch->top[0].id, c.want);
				assert_true(g.d.batch->top[1].logprob < -9000 && g.d.batch->top[1].id == 0);
			}
			if (c.want == SR_NO_ID) { /* the last token is still the one before */
				drive_row(&g.d, 3, 0, text, 9, 0, 1);
				drive_step(&g.d);
				assert_int_equal(g.d.batch->result[0].id, last);
			}
		}
	close_gpu(&g);
}

static void guided_batch(struct sr_batch *b, int32_t first)
{
	struct sr_row r = {};

	r.slot = 3;
	r.first = first;
	r.n = r.sample = 1;
	r.token = SR_LAST;
	r.mask = 2;
	b->n_copies = b->n_cmds = b->n_words = b->n_ids = 0;
	b->n_rows = b->n_results = b->n_tokens = 1;
	b->row[0] = r;
}

/* Two rows of a sequence in two batches in flight. */
static void two_in_flight(struct gpu_drive *g, int32_t *id)
{
	struct sr_batch *b[2] = { g->d.ops->batch(g->d.b, 0), g->d.ops->batch(g->d.b, 1) };

	for (int i = 0; i < 2; i++)
		guided_batch(b[i], GUIDED_PROMPT + i);
	for (int i = 0; i < 2; i++)
		assert_int_equal(g->d.ops->launch(g->d.b, i), 0);
	for (int i = 0; i < 2; i++) {
		while (!g->d.ops->poll(g->d.b, i))
			;
		id[i] = b[i]->result[0].id;
		guided_batch(b[i], 0);
		b[i]->n_rows = b[i]->n_results = b[i]->n_tokens = 0;
	}
}

/* The first row misses, and so does the one behind it.  Computed again they draw what they would have. */
static void test_two_in_flight(void **)
{
	int32_t text[GUIDED_PROMPT], id[2][2];
	struct gpu_drive g;

	for (int i = 0; i < GUIDED_PROMPT; i++)
		text[i] = i + 3;
	open_gpu(&g, 4, true);
	for (int late = 0; late < 2; late++) {
		struct guided_run r = {};

		g.d.ops->masks(g.d.b, &r.m);
		r.vocab = g.t->m.n_vocab;
		guided_begin(&g.d, 3, 0, text);
		drive_row(&g.d, 3, 0, text, GUIDED_PROMPT, 0, 1);
		drive_step(&g.d);
		r.m.tag[2] = r.m.tag[3] = SR_MASK_NO_TAG;
		if (late) {
			two_in_flight(&g, id[late]);
			assert_true(id[late][0] == SR_MISS && id[late][1] == SR_MISS);
		}
		guided_put(&r, 2, GUIDED_PROMPT + 1);
		guided_put(&r, 2, GUIDED_PROMPT + 2);
		two_in_flight(&g, id[late]);
		assert_true(guided_allows(GUIDED_PROMPT + 1, id[late][0]) && guided_allows(GUIDED_PROMPT + 2, id[late][1]));
	}
	assert_memory_equal(id[0], id[1], sizeof(id[0]));
	close_gpu(&g);
}

int main()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_missed),
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_two_in_flight),
	};

	return cmocka_run_group_tests_name("cuda_masks", tests, NULL, NULL);
}
