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
#include "tests/cuda/held.h"
#include "tests/cuda/real.h"
#include "tests/cuda/truth.h"

#define ANSWER  24
#define MOST    5                  /* guesses of a row */
#define BESIDE  61
#include "tests/rig/guessed_rows.h"

static void guess_as(const struct held_kind &kind)
{
	for (int logit_rows : { 40, 3 }) {     /* 3: the draws of a row lie in several slices */
		struct sr_model shape = tiny_shape();
		struct sr_limits lim = drive_limits();
		struct tiny *t;
		struct drive d;

		shape.n_vocab = 200;
		t = held_model(kind, shape, TINY_UNTIED, 11);
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

static void test_guesses(void **)
{
	for (int32_t i = 0; i < 600; i++)
		text[i] = i * i % 97 % 50;
	for (int k = 0; k < held_count(); k++)
		guess_as(held_kinds[k]);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_guesses) };

	return cmocka_run_group_tests_name("cuda_guesses", tests, NULL, NULL);
}
