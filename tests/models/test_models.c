/* LINK: @cpu @models core/models/load.c core/instance/io.c core/instance/log.c tests/rig/drive.c tests/models/encoder.c tests/models/family.c tests/models/same.c -ljansson -luring -Wl,--wrap=experts_route */
/* test_models.c - tiny models of every family through the whole chain, from files to log-probabilities, on the
 * CPU: within 2e-5 of the largest logit of what transformers computes (weights, activations and cache in f32), with
 * the experts that it chooses for each token in each layer, and the same bits for a sequence alone and in company, in one piece and in several, with and without a shared
 * prefix.  A GGUF and a directory of the same weights give the same bits, unless the GGUF has the rows of q and
 * k, or value heads, in another order: then something is summed in another order.  What runs is in the table in
 * docs/model.md, which this test compares, or writes.  build/tests/test_models NAME .. runs some, and prints what
 * they differ by.  Encoders: the same of the vectors of their texts.
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
#include "kernels/cpu/share.h"
#include "tests/models/encoder.h"
#include "tests/models/family.h"

/* The first thread has all tokens if it is the only one. */
void __real_experts_route(struct dev *d, const struct sr_experts *x, const struct weight *choice_bias, int T);
void __wrap_experts_route(struct dev *d, const struct sr_experts *x, const struct weight *choice_bias, int T);

void __wrap_experts_route(struct dev *d, const struct sr_experts *x, const struct weight *choice_bias, int T)
{
	__real_experts_route(d, x, choice_bias, T);
	if (d->b->lim.threads == 1)
		family_saw(d->routing.id, T, x->top);
}

/* ---- a model --------------------------------------------------------------------------------------- */

struct row { char *name, cells[256]; };    /* of the table */

static void check_refusal(const struct drive *d, int rc, const char *path)
{
	if (rc != -ENOTSUP)
		fail_msg("%s: %d: %s", path, rc, d->err);
	assert_null(strchr(d->err, '\n'));
}

/* One form of a model: true if it runs.  Then *a are its bits. */
static bool check_form(const struct family *f, const char *path, const char *form, struct family_answer *a)
{
	struct drive d = { 0 };
	int rc = family_open(&d, sr_cpu_ops(), path, SR_KV_F32, 1);
	struct family_result r;

	if (rc) {
		check_refusal(&d, rc, path);
		printf("%s %s: refused: %s\n", f->name, form, d.err);
		return false;
	}
	r = family_run(&d, f, FAMILY_TOKENS);
	printf("%s %s: %.1e", f->name, form, r.worst);
	printf(r.choices ? ", %d choices of experts\n" : "\n", r.choices);
	if (r.others * 100 > (f->bound > FAMILY_BOUND ? r.choices : 0))
		fail_msg("%s %s: other experts than transformers chooses in %d of %d choices", f->name, form, r.others,
		         r.choices);
	if (!(r.worst <= f->bound))
		fail_msg("%s %s: a log-probability differs by %.2g of the largest logit; %.0e is allowed", f->name, form,
		         r.worst, f->bound);
	family_answer(&d, f, f->prompt[1].n, a);
	drive_close(&d);
	return true;
}

/* With the cache that is usual, and two threads. */
static void check_usual(const struct family *f, const char *path)
{
	struct drive d = { 0 };

	assert_int_equal(family_open(&d, sr_cpu_ops(), path, SR_KV_BF16, 2), 0);
	family_same_bits(&d, f, f->prompt[1].n);
	drive_close(&d);
}

/* transformers 5 writes the same settings in other words. */
static void check_hf5(const struct family *f, const struct family_answer *want)
{
	struct drive d = { 0 };
	struct family_answer a = { 0 };

	if (family_open(&d, sr_cpu_ops(), f->hf5, SR_KV_F32, 1))
		fail_msg("%s with settings as transformers 5 writes them: %s", f->name, d.err);
	family_answer(&d, f, f->prompt[1].n, &a);
	assert_memory_equal(&a, want, sizeof(a));
	drive_close(&d);
}

static const char *word(bool runs)
{
	return runs ? "yes" : "refused";
}

/* One form of an encoder: true if it runs.  Then *v are its bits. */
static bool check_encoder(const struct encoder *e, const char *path, const char *form, struct encoder_vectors *v)
{
	struct sr_limits lim = encoder_limits(SR_KV_F32);
	struct drive d = { 0 };
	double off;
	int rc;

	lim.threads = 2;
	rc = family_open_with(&d, sr_cpu_ops(), path, lim);
	if (rc) {
		check_refusal(&d, rc, path);
		printf("%s %s: refused: %s\n", e->name, form, d.err);
		return false;
	}
	encoder_run(&d, e, v);
	off = encoder_differs(e, v);
	printf("%s %s: %.1e\n", e->name, form, off);
	if (!(off <= FAMILY_BOUND))
		fail_msg("%s %s: an element differs by %.2g of the largest; %.0e is allowed", e->name, form, off, FAMILY_BOUND);
	encoder_same_bits(&d, e, v, 31);
	drive_close(&d);
	return true;
}

static void test_encoder(void **state)
{
	struct row *row = *state;
	struct encoder *e = encoder_make(row->name);
	struct encoder_vectors hf, gguf;
	bool hf_runs = check_encoder(e, e->hf, "HF", &hf), gguf_runs = check_encoder(e, e->file, "GGUF", &gguf);

	if (hf_runs && gguf_runs && memcmp(&hf, &gguf, sizeof(hf)) != 0)
		fail_msg("%s: other bits from its GGUF than from its directory", e->name);
	snprintf(row->cells, sizeof(row->cells), "| %s | `%s` | %s | `%s` | %s |", e->name, e->class_name, word(hf_runs),
	         e->gguf, word(gguf_runs));
	encoder_free(e);
}

static void test_model(void **state)
{
	struct row *row = *state;
	struct family *f = family_make(row->name);
	struct family_answer hf, gguf;
	bool hf_runs = check_form(f, f->hf, "HF", &hf), gguf_runs = *f->gguf && check_form(f, f->file, "GGUF", &gguf);

	if (hf_runs)
		check_usual(f, f->hf);
	if (gguf_runs && (f->permuted || getenv("SLIPRING_FAMILIES"))) /* else its bits are those of the directory */
		check_usual(f, f->file);
	if (hf_runs && *f->hf5)
		check_hf5(f, &hf);
	if (hf_runs && gguf_runs && !f->permuted && memcmp(&hf, &gguf, sizeof(hf)) != 0)
		fail_msg("%s: other bits from its GGUF than from its directory", f->name);
	snprintf(row->cells, sizeof(row->cells), "| %s | `%s` | %s | %s%s%s | %s |", f->name, f->class_name,
	         word(hf_runs), *f->gguf ? "`" : "", *f->gguf ? f->gguf : "-", *f->gguf ? "`" : "",
	         *f->gguf ? word(gguf_runs) : "-");
	family_free(f);
}

/* A model in three files: the same bits as from one. */
static void test_parts(void **state)
{
	struct family *f = family_make("llama3");
	struct family_answer one, parts;
	char command[256], path[160];

	(void)state;
	snprintf(path, sizeof(path), "%.*s", (int)(strlen(f->hf) - 3), f->hf);
	snprintf(command, sizeof(command), "python3 tests/models/tiny.py llama3 '%s' 3", path);
	assert_int_equal(system(command), 0);
	strcat(path, "/part-00001-of-00003.gguf");
	assert_true(check_form(f, f->file, "GGUF", &one));
	assert_true(check_form(f, path, "GGUF of three parts", &parts));
	assert_memory_equal(&one, &parts, sizeof(one));
	family_free(f);
}

/* Keys and values of latent attention in one quantized tensor, which is split. */
static void test_old(void **state)
{
	struct family *f = family_make("glm4-moe-lite");
	char command[256], path[160];
	struct family_answer a;

	(void)state;
	snprintf(path, sizeof(path), "%.*s", (int)(strlen(f->hf) - 3), f->hf);
	snprintf(command, sizeof(command), "python3 tests/models/tiny.py glm4-moe-lite '%s' old", path);
	assert_int_equal(system(command), 0);
	strcat(path, "/old.gguf");
	f->bound = 0.03;                         /* Q8_0, and values multiply with int8; rows turned wrongly differ by 1 */
	assert_true(check_form(f, path, "GGUF with kv_b in Q8_0", &a));
	family_free(f);
}

/* ---- the table in docs/model.md --------------------------------------------------------------------- */

#define PAGE  "docs/model.md"
#define BEGIN "<!-- families: made by SLIPRING_WRITE=1 make families -->\n"
#define END   "<!-- end of families -->\n"
#define HEAD  "| tiny model | class in config.json | runs | architecture in a GGUF | runs | in CUDA emulation |\n" \
	"|---|---|---|---|---|---|\n"

static char *read_page(void)
{
	FILE *in = fopen(PAGE, "r");
	char *text = calloc(1, 1 << 20);

	assert_non_null(in);
	assert_non_null(text);
	assert_in_range(fread(text, 1, 1 << 20, in), 1, (1 << 20) - 1);
	fclose(in);
	return text;
}

/* The last cell is test_models_cuda's. */
static const char *cuda_cell(const char *table, const char *cells, char *out, size_t size)
{
	char name[80];
	const char *row, *end;

	snprintf(name, sizeof(name), "\n%.*s", (int)(strchr(cells + 2, '|') + 1 - cells), cells);
	row = strstr(table, name);
	end = row ? strchr(row + 1, '\n') : NULL;
	if (!end || end - row < 12)
		return "refused";
	for (row = end - 3; *row != '|'; )
		row--;
	snprintf(out, size, "%.*s", (int)(end - row - 4), row + 2);
	return out;
}

static void test_table(void **state)
{
	struct row *rows = *state;
	char *page = read_page(), *begin = strstr(page, BEGIN), *end = strstr(page, END), cell[80];
	char *want = calloc(1, 1 << 16);
	size_t at = 0;

	for (int i = 0; rows[i].name; i++)
		if (!*rows[i].cells)
			fail_msg("%s failed: there is no table", rows[i].name);
	assert_non_null(begin);
	assert_non_null(end);
	assert_non_null(want);
	at += (size_t)sprintf(want, BEGIN HEAD);
	for (int i = 0; rows[i].name; i++)
		at += (size_t)snprintf(want + at, (1 << 16) - at, "%s %s |\n", rows[i].cells,
		                       cuda_cell(begin, rows[i].cells, cell, sizeof(cell)));
	if (getenv("SLIPRING_WRITE")) {
		FILE *out = fopen(PAGE, "w");

		assert_non_null(out);
		fprintf(out, "%.*s%s%s", (int)(begin - page), page, want, end);
		fclose(out);
	} else if (strlen(want) != (size_t)(end - begin) || memcmp(begin, want, (size_t)(end - begin)) != 0) {
		fail_msg("the table of families in " PAGE " is not what runs here: SLIPRING_WRITE=1 writes it");
	}
	free(want);
	free(page);
}

int main(int argc, char **argv)
{
	int n = argc - 1, rc;
	char **names = argc > 1 ? argv + 1 : encoder_append(family_names(&n), &n);
	struct CMUnitTest *tests = calloc((size_t)n + 3, sizeof(*tests));
	struct row *rows = calloc((size_t)n + 1, sizeof(*rows));

	assert_non_null(tests);
	assert_non_null(rows);
	for (int i = 0; i < n; i++) {
		rows[i].name = names[i];
		tests[i] = (struct CMUnitTest){ names[i], encoder_is(names[i]) ? test_encoder : test_model, NULL, NULL, &rows[i] };
	}
	tests[n] = (struct CMUnitTest){ "table", test_table, NULL, NULL, rows };
	tests[n + 1] = (struct CMUnitTest){ "parts", test_parts, NULL, NULL, NULL };
	tests[n + 2] = (struct CMUnitTest){ "old", test_old, NULL, NULL, NULL };
	rc = _cmocka_run_group_tests("models", tests, (size_t)n + (argc == 1 ? 3 : 0), NULL, NULL);
	for (int i = 0; argc == 1 && i < n; i++)
		free(names[i]);
	if (argc == 1)
		free(names);
	free(tests);
	free(rows);
	return rc;
}
