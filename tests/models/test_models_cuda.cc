/* LINK: @cuda @models core/models/load.c core/instance/io.c core/instance/log.c tests/rig/drive.c tests/models/encoder.c tests/models/family.c tests/models/same.c kernels/cuda/[a-z]*.cu -ljansson -luring -Wl,--wrap=_Z5routeP3devPK10sr_expertsPK6weighti */
/* test_models_cuda.cc - tiny models of every family on the CUDA back end, whose kernels run on the CPU (tests/emu):
 * log-probabilities beside those of transformers.  Activations and the cache are bf16 there, so the bound is that of
 * bf16: it catches what is missing or in the wrong place, not what is rounded.  The experts chosen are those that
 * transformers chooses, but where bf16 moves two whose scores are nearly alike.  What runs is the last cell of the
 * rows in docs/model.md; SLIPRING_WRITE=1 writes it.  test_models_cuda NAME .. runs some.  Nine tokens of a prompt
 * are computed from a GGUF, if there is one; SLIPRING_FAMILIES=all computes all from both forms, and holds them to the
 * same bits: of both forms, and alone, in company, in pieces and behind a shared prefix.  Encoders: the vectors of their
 * texts, alone and beside others.
 */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "tests/models/encoder.h"
#include "tests/models/family.h"

/* Where bf16 chose other experts than are recorded, the logits of the router are moved until it does not.  So all that
 * comes after is compared, and it is known how far from the recorded choice it was. */
#define NUDGE  (1 / 512.0f)        /* of the largest logit, at a time */
#define NUDGES 16
static int nudges;                 /* most that a layer needed */

extern "C" void real_route(struct dev *, const struct sr_experts *, const struct weight *, int)
	__asm__("__real__Z5routeP3devPK10sr_expertsPK6weighti");
extern "C" void wrapped_route(struct dev *, const struct sr_experts *, const struct weight *, int)
	__asm__("__wrap__Z5routeP3devPK10sr_expertsPK6weighti");

extern "C" void wrapped_route(struct dev *d, const struct sr_experts *x, const struct weight *choice_bias, int T)
{
	float *logit = (float *)d->act.place[P_SCORES], most = 0;
	int n = 0;

	real_route(d, x, choice_bias, T);
	cudaStreamSynchronize(d->stream);
	family_saw(d->routing.id, T, x->top);
	for (int i = 0; i < T * x->n; i++)
		most = fmaxf(most, fabsf(logit[i]));
	for (; n <= NUDGES && family_nudge(d->routing.id, logit, x->n, most * NUDGE); n++) {
		real_route(d, x, choice_bias, T);
		cudaStreamSynchronize(d->stream);
	}
	nudges = n > nudges ? n : nudges;
}

/* Of the largest logit.  Models of random weights in bf16 mostly differ by 0.01 to 0.04; phi3-long by 0.063, and so does
 * transformers in bf16 (0.066), because its longrope multiplies scores by 3. */
#define BOUND 0.07
#define ENCODER_BOUND 0.02         /* of the largest recorded element; models of random weights differ by 0.004 to 0.007 */
#define SAME_TOKENS 36             /* in one piece and in several, and so on: two blocks and some */

struct row {
	char *name;
	const char *cell;
};

static void check_differs(struct drive *d, const struct family *f, const char *form, int32_t tokens)
{
	struct family_result r;

	nudges = 0;
	r = family_run(d, f, tokens);
	printf("%s %s: %.1e", f->name, form, r.worst);
	if (r.choices)
		printf(", %d of %d choices of experts differ, by %.3f of the largest logit of the router", r.others,
		       r.choices, 2.0 * nudges * (double)NUDGE);
	printf("\n");
	if (!(r.worst <= BOUND))
		fail_msg("%s: a log-probability differs by %.2g of the largest logit; %.2g is allowed", f->name, r.worst,
		         BOUND);
	if (nudges > NUDGES || r.others * 10 > r.choices)
		fail_msg("%s: other experts than transformers chooses in %d of %d choices, by %.3f of the largest logit",
		         f->name, r.others, r.choices, 2.0 * nudges * (double)NUDGE);
}

/* One form of a model: true if it runs. */
static bool check_form(const struct family *f, const char *path, const char *form, struct family_answer *a)
{
	bool all = getenv("SLIPRING_FAMILIES") != NULL;
	struct sr_limits lim = drive_limits();
	struct drive d = {};
	int rc;

	lim.kv_type = SR_KV_BF16;
	lim.threads = lim.worked = 0;
	lim.deterministic = all;
	rc = family_open_with(&d, sr_backend_get(SR_BACKEND_VERSION), path, lim);
	if (rc) {
		printf("%s: refused: %s\n", f->name, d.err);
		assert_int_equal(rc, -ENOTSUP);
		assert_null(strchr(d.err, '\n'));
		return false;
	}
	check_differs(&d, f, form, all ? FAMILY_TOKENS : 9);
	if (all) {
		family_same_bits(&d, f, SAME_TOKENS);
		family_answer(&d, f, SAME_TOKENS, a);
	}
	drive_close(&d);
	return true;
}

static void test_model(void **state)
{
	struct row *row = (struct row *)*state;
	struct family *f = family_make(row->name);
	struct family_answer gguf = {}, hf = {};
	bool runs = !*f->file || check_form(f, f->file, "GGUF", &gguf);

	if (runs && (!*f->file || getenv("SLIPRING_FAMILIES")))
		runs = check_form(f, f->hf, "HF", &hf);
	if (runs && *f->file && getenv("SLIPRING_FAMILIES") && !f->permuted)
		assert_memory_equal(&hf, &gguf, sizeof(hf));
	family_free(f);
	row->cell = runs ? "yes" : "refused";
}

/* One form of an encoder: true if it runs.  Then *v are its bits. */
static bool check_encoder(const struct encoder *e, const char *path, const char *form, struct encoder_vectors *v)
{
	struct sr_limits lim = encoder_limits(SR_KV_BF16);
	struct drive d = {};
	double off;
	int rc;

	lim.threads = lim.worked = 0;
	lim.deterministic = 1;
	rc = family_open_with(&d, sr_backend_get(SR_BACKEND_VERSION), path, lim);
	if (rc) {
		printf("%s: refused: %s\n", e->name, d.err);
		assert_int_equal(rc, -ENOTSUP);
		assert_null(strchr(d.err, '\n'));
		return false;
	}
	encoder_run(&d, e, v);
	off = encoder_differs(e, v);
	printf("%s %s: %.1e\n", e->name, form, off);
	if (!(off <= ENCODER_BOUND))
		fail_msg("%s %s: an element differs by %.2g of the largest; %.2g is allowed", e->name, form, off,
		         ENCODER_BOUND);
	encoder_same_bits(&d, e, v, getenv("SLIPRING_FAMILIES") ? 31 : e->n - 1);
	drive_close(&d);
	return true;
}

static void test_encoder(void **state)
{
	struct row *row = (struct row *)*state;
	struct encoder *e = encoder_make(row->name);
	struct encoder_vectors gguf, hf;
	bool runs = check_encoder(e, e->file, "GGUF", &gguf);

	if (runs && getenv("SLIPRING_FAMILIES")) {
		runs = check_encoder(e, e->hf, "HF", &hf);
		assert_memory_equal(&hf, &gguf, sizeof(hf));
	}
	encoder_free(e);
	row->cell = runs ? "yes" : "refused";
}

/* All results of the first `n` tokens of prompt 1, in rows of `step` tokens, into blocks from `block` on. */
static std::vector<struct sr_result> in_pieces(struct drive *d, const struct family *f, int n, int step, int slot, int block)
{
	std::vector<struct sr_result> out;

	drive_begin(d, slot, NULL);
	drive_range(d, slot, block, 4);
	for (int from = 0; from < n; from += step) {
		int some = n - from < step ? n - from : step;
		int at = drive_row(d, slot, from, f->prompt[1].ids + from, some, some, 0);

		drive_step(d);
		out.insert(out.end(), d->batch->result + at, d->batch->result + at + some);
	}
	return out;
}

/* A state goes on from row to row, and from one that another sequence left behind in the middle of a later row, with
 * the same bits. */
static void test_states(void **)
{
	struct family *f = family_make("qwen3.5");
	struct sr_limits lim = drive_limits();
	struct drive d = {};
	std::vector<struct sr_result> one, pieces;
	const int n = 40, shared = 16;
	int at;

	lim.deterministic = 1;
	lim.threads = lim.worked = 0;
	assert_int_equal(family_open_with(&d, sr_backend_get(SR_BACKEND_VERSION), f->file, lim), 0);
	one = in_pieces(&d, f, n, n, 0, 0);
	pieces = in_pieces(&d, f, n, 7, 1, 4);
	assert_memory_equal(one.data(), pieces.data(), sizeof(one[0]) * (size_t)n);
	drive_begin(&d, 2, NULL);
	drive_range(&d, 2, 8, 4);
	drive_row(&d, 2, 0, f->prompt[1].ids, 5, 0, 1);
	drive_step(&d);
	drive_keep(&d, 2, 20, shared);       /* inside the second row, at its 11th token */
	drive_row(&d, 2, 5, f->prompt[1].ids + 5, n - 5, 0, 1);
	drive_begin(&d, 4, NULL);            /* another beside it */
	drive_range(&d, 4, 20, 1);
	drive_row(&d, 4, 0, f->prompt[0].ids, 3, 0, 1);
	drive_step(&d);
	drive_begin(&d, 3, NULL);
	drive_range(&d, 3, 8, 1);
	drive_blocks(&d, 3, 1, (const int32_t[]){ 30, 31, 32 }, 3);
	drive_state(&d, 3, 20, 3);
	at = drive_row(&d, 3, shared, f->prompt[1].ids + shared, n - shared, n - shared, 0);
	drive_step(&d);
	assert_memory_equal(&one[shared], d.batch->result + at, sizeof(one[0]) * (size_t)(n - shared));
	drive_close(&d);
	family_free(f);
}

static std::string read_page(const char *path)
{
	FILE *in = fopen(path, "r");
	std::string text(1 << 20, 0);

	assert_non_null(in);
	text.resize(fread(&text[0], 1, text.size(), in));
	fclose(in);
	return text;
}

/* The last cell of each row is as found. */
static void test_table(void **state)
{
	static const char page[] = "docs/model.md";
	std::string text = read_page(page);

	for (const struct row *row = (const struct row *)*state; row->name; row++) {
		size_t begin = text.find(std::string("\n| ") + row->name + " | `"), end, cell;

		if (!row->cell || begin == std::string::npos)
			fail_msg("%s failed, or has no row in %s: test_models writes it", row->name, page);
		end = text.find('\n', begin + 1);
		cell = text.rfind("| ", end - 3) + 2;
		if (getenv("SLIPRING_WRITE"))
			text.replace(cell, end - 2 - cell, row->cell);
		else if (text.compare(cell, end - 2 - cell, row->cell) != 0)
			fail_msg("%s is not \"%s\" in %s: SLIPRING_WRITE=1 writes it", row->name, row->cell, page);
	}
	if (getenv("SLIPRING_WRITE")) {
		FILE *out = fopen(page, "w");

		assert_non_null(out);
		assert_int_equal(fwrite(text.data(), 1, text.size(), out), text.size());
		fclose(out);
	}
}

int main(int argc, char **argv)
{
	int n = argc - 1, rc;
	char **names = argc > 1 ? argv + 1 : encoder_append(family_names(&n), &n);
	std::vector<struct row> rows;
	std::vector<struct CMUnitTest> tests;

	for (int i = 0; i < n; i++)
		rows.push_back({ names[i], nullptr });
	rows.push_back({ nullptr, nullptr });
	for (int i = 0; i < n; i++)
		tests.push_back({ names[i], encoder_is(names[i]) ? test_encoder : test_model, nullptr, nullptr, &rows[(size_t)i] });
	if (argc == 1) {
		tests.push_back({ "table", test_table, nullptr, nullptr, &rows[0] });
		tests.push_back({ "states", test_states, nullptr, nullptr, nullptr });
	}
	rc = _cmocka_run_group_tests("models on CUDA", tests.data(), tests.size(), nullptr, nullptr);
	for (int i = 0; argc == 1 && i < n; i++)
		free(names[i]);
	if (argc == 1)
		free(names);
	return rc;
}
