/* LINK: @cpu @models core/models/load.c core/instance/io.c core/instance/log.c tests/rig/drive.c tests/models/family.c -ljansson -luring */
/* test_models.c - tiny models of every family through the whole chain, from files to log-probabilities, on the
 * CPU: within 2e-5 of the largest logit of what transformers computes (weights, activations and cache in f32), and
 * the same bits for a sequence alone and in company, in one piece and in several, with and without a shared
 * prefix.  build/tests/test_models NAME .. runs some, and prints what they differ by.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/models/family.h"

#define BOUND 2e-5                 /* of the largest logit; transformers itself is within 1.2e-5 of float64 */
#define OTHERS 31

/* ---- the same bits -------------------------------------------------------------------------------- */

/* What a sequence has of results: all of prompt 1. */
struct answer { struct sr_result result[FAMILY_TOKENS]; };

static void take(struct drive *d, struct answer *a, int at, int from, int n)
{
	memcpy(a->result + from, d->batch->result + at, (size_t)n * sizeof(*a->result));
}

static void alone(struct drive *d, const struct family *f, struct answer *a)
{
	int n = f->prompt[1].n, at;

	drive_begin(d, 0, NULL);
	drive_range(d, 0, 0, 8);
	at = drive_row(d, 0, 0, f->prompt[1].ids, n, n, 0);
	drive_step(d);
	take(d, a, at, 0, n);
}

/* The same in pieces of `step` tokens, into blocks from `block` on. */
static void in_pieces(struct drive *d, const struct family *f, int step, int block, struct answer *a)
{
	int n = f->prompt[1].n;

	drive_begin(d, 0, NULL);
	drive_range(d, 0, block, 8);
	for (int from = 0; from < n; from += step) {
		int some = n - from < step ? n - from : step;
		int at = drive_row(d, 0, from, f->prompt[1].ids + from, some, some, 0);

		drive_step(d);
		take(d, a, at, from, some);
	}
}

/* Beside others that each compute another part of both prompts. */
static void in_company(struct drive *d, const struct family *f, struct answer *a)
{
	int n = f->prompt[1].n, at = 0;

	for (int s = 0; s <= OTHERS; s++) {
		bool own = s == OTHERS / 2;
		int some = own ? n : 1 + s % 15;

		drive_begin(d, s, NULL);
		drive_range(d, s, own ? 32 : s, own ? 8 : 1);
		if (own)
			at = drive_row(d, s, 0, f->prompt[1].ids, n, n, 0);
		else
			drive_row(d, s, 0, f->prompt[s % 2].ids + s % 7, some, 0, 1);
	}
	drive_step(d);
	take(d, a, at, 0, n);
}

/* Another sequence's first 4 blocks are shared, as by the prefix cache; only what follows is computed. */
static void with_prefix(struct drive *d, const struct family *f, struct answer *a)
{
	int n = f->prompt[1].n, shared = 64, at;

	drive_begin(d, 0, NULL);
	drive_range(d, 0, 8, 8);
	drive_row(d, 0, 0, f->prompt[1].ids, shared, 0, 1);
	drive_step(d);
	drive_begin(d, 1, NULL);
	drive_range(d, 1, 8, 4);
	drive_blocks(d, 1, 4, (int32_t[]){ 40, 41, 42, 43 }, 4);
	at = drive_row(d, 1, shared, f->prompt[1].ids + shared, n - shared, n - shared, 0);
	drive_step(d);
	take(d, a, at, shared, n - shared);
}

static void same_bits(struct drive *d, const struct family *f, const char *path)
{
	struct answer one, other;

	alone(d, f, &one);
	other = one;
#define SAME(call) do { call; \
		if (memcmp(&one, &other, sizeof(one))) \
			fail_msg("%s: other bits after " #call, path); } while (0)
	SAME(in_pieces(d, f, 7, 20, &other));
	SAME(in_pieces(d, f, 1, 30, &other));
	SAME(in_company(d, f, &other));
	SAME(with_prefix(d, f, &other));
#undef SAME
}

/* ---- a model --------------------------------------------------------------------------------------- */

static void check_refusal(const struct drive *d, int rc, const char *path)
{
	if (rc != -ENOTSUP)
		fail_msg("%s: %d: %s", path, rc, d->err);
	assert_null(strchr(d->err, '\n'));
}

/* One form of a model: true if it runs. */
static bool check_form(const struct family *f, const char *path, const char *form)
{
	struct drive d = { 0 };
	int rc = family_open(&d, sr_cpu_ops(), path, SR_KV_F32, 2);
	double differs;

	if (rc) {
		check_refusal(&d, rc, path);
		printf("%s %s: refused: %s\n", f->name, form, d.err);
		return false;
	}
	differs = family_differs(&d, f);
	printf("%s %s: %.1e\n", f->name, form, differs);
	if (!(differs <= BOUND))
		fail_msg("%s %s: a log-probability differs by %.2g of the largest logit; %.0e is allowed", f->name, form,
		         differs, BOUND);
	same_bits(&d, f, path);
	drive_close(&d);
	rc = family_open(&d, sr_cpu_ops(), path, SR_KV_BF16, 1);
	assert_int_equal(rc, 0);
	same_bits(&d, f, path);
	drive_close(&d);
	return true;
}

static void test_model(void **state)
{
	struct family *f = family_make(*state);

	check_form(f, f->hf, "HF");
	family_free(f);
}

int main(int argc, char **argv)
{
	int n = argc - 1;
	char **names = argc > 1 ? argv + 1 : family_names(&n);
	struct CMUnitTest *tests = calloc((size_t)n, sizeof(*tests));
	int rc;

	assert_non_null(tests);
	for (int i = 0; i < n; i++)
		tests[i] = (struct CMUnitTest){ names[i], test_model, NULL, NULL, names[i] };
	rc = _cmocka_run_group_tests("models", tests, (size_t)n, NULL, NULL);
	for (int i = 0; argc == 1 && i < n; i++)
		free(names[i]);
	if (argc == 1)
		free(names);
	free(tests);
	return rc;
}
