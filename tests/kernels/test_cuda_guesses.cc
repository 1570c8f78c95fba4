/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_guesses.cc - rows with guesses (sr_row.n_draft) on the CUDA back end: as tests/kernels/test_guess.c.  With
 * --enforce-deterministic a row computes the same bits alone and in a run, so what it draws is the same to the bit. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include "kernels/cuda/backend.cu"
#include "tests/cuda/real.h"
#include "tests/cuda/truth.h"

#define PROMPT  37
#define ANSWER  24
#define TOP     3
#define MOST    5                  /* guesses of a row */

struct token { struct sr_result r; struct sr_top top[TOP]; };

static int32_t text[600];
static uint64_t rng = 1;

static uint32_t below(uint32_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(rng >> 33) % n;
}

static const struct sr_sampling asked[] = {
	/* seed, temperature, top_p, min_p, top_k, presence, frequency, repetition, min_position */
	{ 0, 0, 1, 0, 0, 0, 0, 1, 0 },
	{ 5, 1, 0.9f, 0, 0, 0.2f, 0.5f, 1.3f, 0 },
	{ 77, 1.5f, 1, 0, 20, 0, 0, 1, PROMPT + 12 },
};

static void begin(struct drive *d, int slot, const struct sr_sampling *s, int from_block)
{
	static const uint32_t bad[] = { 1, 7, 2, 9, 11 }, stop[] = { 3, 5, 8 };

	drive_begin(d, slot, s);
	drive_list(d, slot, SR_LIST_BAD, bad, 5);
	drive_list(d, slot, SR_LIST_STOP, stop, 3);
	drive_history(d, slot, text, PROMPT, PROMPT);
	drive_range(d, slot, from_block, (PROMPT + ANSWER + MOST) / 16 + 1);
}

static void last_row_tops(struct drive *d)
{
	d->batch->row[d->batch->n_rows - 1].n_top = TOP;
}

static void read_results(const struct drive *d, int at, int n, struct token *out)
{
	for (int i = 0; i < n; i++) {
		out[i].r = d->batch->result[at + i];
		memcpy(out[i].top, d->batch->top + (size_t)(at + i) * SR_TOP_MAX, sizeof(out[i].top));
	}
}

static void answer_alone(struct drive *d, const struct sr_sampling *s, struct token *out)
{
	int at;

	begin(d, 0, s, 0);
	at = drive_row(d, 0, 0, text, PROMPT, 0, 1);
	last_row_tops(d);
	drive_step(d);
	read_results(d, at, 1, out);
	for (int i = 1; i < ANSWER; i++) {
		at = drive_row(d, 0, PROMPT + i - 1, NULL, 1, 0, 1);
		last_row_tops(d);
		drive_step(d);
		read_results(d, at, 1, out + i);
	}
}

/* A row of slot 1 that has answered `n` tokens: some guesses, one of them wrong if wrong < n_draft. */
static int guessed_row(struct drive *d, const struct token *want, int n, int n_draft, int wrong)
{
	int32_t ids[MOST + 1] = { want[n - 1].r.id };
	struct sr_row *r;
	int at;

	for (int i = 0; i < n_draft; i++)
		ids[1 + i] = i < wrong ? want[n + i].r.id : i == wrong ? (want[n + i].r.id + 1) % 50 : (int32_t)below(50);
	at = drive_row(d, 1, PROMPT + n - 1, ids, 1 + n_draft, 0, 1);
	r = &d->batch->row[d->batch->n_rows - 1];
	r->n_draft = (uint8_t)n_draft;
	r->n_top = TOP;
	d->batch->n_results += n_draft;
	return at;
}

/* The same answer with guesses, beside another sequence in slot 2 and a long prompt in slot 3. */
static void answer_guessed(struct drive *d, const struct sr_sampling *s, const struct token *want, bool beside)
{
	struct token got[MOST + 1];
	int n = 1, at;

	begin(d, 1, s, 10);
	at = drive_row(d, 1, 0, text, PROMPT, 0, 1);
	last_row_tops(d);
	drive_step(d);
	read_results(d, at, 1, got);
	assert_memory_equal(got, want, sizeof(*got));
	if (beside)
		begin(d, 2, s, 20);
	for (int step = 0; n < ANSWER; step++) {
		int most = ANSWER - n - 1 < MOST ? ANSWER - n - 1 : MOST, n_draft = most > 0 ? (int)below((uint32_t)most + 1) : 0;
		int wrong = (int)below(3) ? n_draft : (int)below((uint32_t)n_draft + 1), right = wrong < n_draft ? wrong : n_draft;

		if (beside && step == 2) {           /* and a prompt, which draws */
			drive_begin(d, 3, NULL);
			drive_range(d, 3, 30, 4);
			drive_row(d, 3, 0, text, 61, 0, 1);
		}
		if (beside)
			drive_row(d, 2, step, text + step, 1, 0, 0);
		if (n_draft)
			at = guessed_row(d, want, n, n_draft, wrong);
		else
			at = drive_row(d, 1, PROMPT + n - 1, NULL, 1, 0, 1), last_row_tops(d);
		drive_step(d);
		read_results(d, at, n_draft + 1, got);
		assert_memory_equal(got, want + n, (size_t)(right + 1) * sizeof(*got));
		for (int i = right + 1; i <= n_draft; i++)
			assert_int_equal(got[i].r.id, SR_UNDRAWN);
		n += right + 1;
	}
}

static void test_guesses(void **)
{
	for (int32_t i = 0; i < 600; i++)
		text[i] = i * i % 97 % 50;
	for (int logit_rows : { 40, 3 }) {     /* 3: the draws of a row lie in several slices */
		struct sr_model shape = tiny_shape();
		struct sr_limits lim = drive_limits();
		struct tiny *t;
		struct drive d;

		shape.n_vocab = 200;
		t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 11);
		lim.worked = 0;
		lim.drafts = MOST;
		lim.deterministic = 1;
		lim.logit_rows = logit_rows;
		lim.eager = logit_rows == 3;
		emu_reversed = logit_rows == 3;
		if (drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim))
			fail_msg("%s", d.err);
		for (const struct sr_sampling &s : asked) {
			struct token want[ANSWER] = {};

			if (logit_rows > 3 && !s.frequency)
				continue;

			answer_alone(&d, &s, want);
			answer_guessed(&d, &s, want, false);
			answer_guessed(&d, &s, want, true);
		}
		drive_close(&d);
		tiny_destroy(t);
	}
	emu_reversed = false;
	assert_int_equal(emu_allocations, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_guesses) };

	return cmocka_run_group_tests_name("cuda_guesses", tests, NULL, NULL);
}
