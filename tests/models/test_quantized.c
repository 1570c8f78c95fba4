/* LINK: @text @cpu @models core/models/load.c core/instance/io.c core/instance/log.c tools/quantize/quantize.c tools/visible.c tools/quantize/quantize_plan.c tools/quantize/quantize_layer.c tools/quantize/quantize_dir.c tools/quantize/quantize_pieces.c tools/quantize/awq.c tools/quantize/calibrate.c tools/quantize/tensors_out.c tests/rig/drive.c tests/models/family.c -ljansson -luring -lpcre2-8 -lutf8proc -lcrypto */
/* test_quantized.c - slipring quantize on tiny models of the families: what it writes runs, the losses that it prints
 * are those of the models before and after, and log-probabilities are near.  What it does not take it refuses in one
 * sentence that names the nearest way.  build/tests/test_quantized NAME .. runs some; SLIPRING_FAMILIES=all runs all,
 * and holds the table in docs/model.md to what came of it (SLIPRING_WRITE=1 writes it).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "kernels/cpu/cpu.h"
#include "tests/models/family.h"
#include "tools/commands.h"

#define N 250                      /* tokens of the text: 31 for each expert */

struct row { char *name, cell[40]; };   /* of the table */

/* ---- a family's directory gets a tokenizer ------------------------------------------------------- */

static void put_file(const char *folder, const char *name, const char *text)
{
	char path[400];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	assert_non_null(f = fopen(path, "w"));
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

/* Printable characters are ids from 0 on. */
static void put_tokenizer(const char *folder)
{
	char text[4096];
	int n = snprintf(text, sizeof(text), "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
	                 "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[],"
	                 "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"\\u0120\":0");

	for (int c = 33; c < 127; c++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, ",\"%s%c\":%d", strchr("\"\\", c) ? "\\" : "", c, c - 32);
	snprintf(text + n, sizeof(text) - (size_t)n, "}}}");
	put_file(folder, "tokenizer.json", text);
	put_file(folder, "tokenizer_config.json", "{}");
}

static void put_text(const char *folder, int32_t *id)
{
	char text[N + 1];
	uint32_t seed = 7;

	for (int i = 0; i < N; i++) {
		seed = seed * 1664525 + 1013904223;
		id[i] = 1 + (int32_t)(seed >> 16) % 94;
		text[i] = (char)(id[i] + 32);
	}
	text[N] = 0;
	put_file(folder, "text", text);
}

/* ---- inputs that are large, as those of real models are ------------------------------------------- */

/* Every 16th element of norms before matrices becomes 32 times as large, of rows of v and up 8 times.  So scales are
 * far from 1, and one that is not undone shows. */
static bool is_input(const char *name, bool *vector)
{
	static const char *const norms[] = { "input_layernorm.weight", "post_attention_layernorm.weight",
	                                     "pre_feedforward_layernorm.weight" };
	static const char *const rows[] = { "v_proj.weight", "up_proj.weight", ".w3.weight" };

	for (int i = 0; i < 6; i++) {
		const char *end = i < 3 ? norms[i] : rows[i - 3];
		size_t n = strlen(name), len = strlen(end);

		*vector = i < 3;
		if (n > len && strcmp(name + n - len, end) == 0 && !strstr(name, "vision"))
			return true;
	}
	return false;
}

static void enlarge(float *w, size_t n, size_t k, bool vector)
{
	float sum = 0;

	if (vector) {
		for (size_t i = 0; i < k; i++)
			sum += w[i] / (float)k;
		for (size_t i = 3; i < k; i += 16)   /* around 0 they are stored less one */
			w[i] = sum < 0.5f ? 32 * (w[i] + 1) - 1 : 32 * w[i];
		return;
	}
	for (size_t i = 5; i < n; i += 16)
		for (size_t j = 0; j < k; j++)
			w[i * k + j] *= 8;
}

static void put_outliers(const char *folder)
{
	char path[300];
	uint64_t head;
	uint8_t *all = malloc(16 << 20);
	const json_t *one;
	const char *name;
	json_t *j;
	size_t n;
	FILE *f;

	snprintf(path, sizeof(path), "%s/model.safetensors", folder);
	assert_non_null(f = fopen(path, "r+"));
	n = fread(all, 1, 16 << 20, f);
	memcpy(&head, all, 8);
	assert_non_null(j = json_loadb((char *)all + 8, head, 0, NULL));
	json_object_foreach(j, name, one) {
		const json_t *shape = json_object_get(one, "shape");
		size_t at = 8 + head + (size_t)json_integer_value(json_array_get(json_object_get(one, "data_offsets"), 0));
		size_t last = json_array_size(shape), rows = 1;
		bool vector;

		if (!is_input(name, &vector) || strcmp(json_string_value(json_object_get(one, "dtype")), "F32") != 0)
			continue;
		if (last == 2)
			rows = (size_t)json_integer_value(json_array_get(shape, 0));
		enlarge((float *)(void *)(all + at), rows, (size_t)json_integer_value(json_array_get(shape, last - 1)), vector);
	}
	rewind(f);
	assert_int_equal(fwrite(all, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
	json_decref(j);
	free(all);
}

/* ---- the command ---------------------------------------------------------------------------------- */

/* Run it with its two outputs in `out`. */
static int quantize(char *out, size_t size, int argc, char **argv)
{
	FILE *to = tmpfile();
	int was[2] = { dup(1), dup(2) }, rc;
	size_t n;

	assert_non_null(to);
	fflush(NULL);
	dup2(fileno(to), 1);
	dup2(fileno(to), 2);
	rc = cmd_quantize(argc, argv);
	fflush(NULL);
	for (int i = 0; i < 2; i++) {
		dup2(was[i], i + 1);
		close(was[i]);
	}
	rewind(to);
	n = fread(out, 1, size - 1, to);
	out[n] = 0;
	fclose(to);
	return rc;
}

/* Log-probabilities of the text. */
static void scores_of(const char *path, const int32_t *id, double *out)
{
	struct drive d = { 0 };

	if (family_open(&d, sr_cpu_ops(), path, SR_KV_BF16, 1))
		fail_msg("%s: %s", path, d.err);
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 3, 16);
	drive_row(&d, 0, 0, id, N - 1, N - 1, 0);
	drive_step(&d);
	for (int i = 0; i < N - 1; i++)
		out[i] = (double)d.batch->result[i].logprob;
	drive_close(&d);
}

static double loss_of(const double *logprob)
{
	double sum = 0;

	for (int i = N / 2; i < N - 1; i++)
		sum -= logprob[i] / (N - 1 - N / 2);
	return sum;
}

/* The sentence of a refusal names what runs instead. */
static void check_refusal(const char *form, const char *out)
{
	if (strncmp(out, "slipring quantize: ", 19) != 0 || strchr(out, '\n') != strrchr(out, '\n') ||   /* nothing was begun */
	    (!strstr(out, "GGUF of ") && !strstr(out, "Hugging Face directory") && !strstr(out, "use the model that it")
	     && !strstr(out, "only gpt2")))
		fail_msg("%s: %s", form, out);
}

/* How far log-probabilities of the text are from those before; the losses must be those that were printed. */
static double check_written(const struct family *f, const double *was, const char *to, const int32_t *id, const char *out)
{
	const char *said = strstr(out, "negative log likelihood"), *after = said ? strstr(said, ": ") : NULL;
	double is[N], before, now, mean = 0;

	assert_non_null(after);
	assert_int_equal(sscanf(after, ": %lf before, %lf after", &before, &now), 2);
	scores_of(to, id, is);
	for (int i = 0; i < N - 1; i++)
		mean += fabs(was[i] - is[i]) / (N - 1);
	if (!(fabs(loss_of(was) - before) < 2e-3) || !(fabs(loss_of(is) - now) < 2e-3))
		fail_msg("%s: the losses are %.4f and %.4f, but %.4f and %.4f are printed", f->name, loss_of(was), loss_of(is),
		         before, now);
	return mean;
}

/* Of experts some, but not most, are chosen too seldom by so short a text. */
static void check_experts(const char *out)
{
	const char *said = strstr(out, " experts were chosen by fewer");
	int seldom = 0, of = 1;

	while (said && said > out && said[-1] != '\n')
		said--;
	if (said)
		assert_int_equal(sscanf(said, "%d of %d experts", &seldom, &of), 2);
	printf("%d of %d experts are seldom chosen\n", seldom, of);
	assert_true(4 * seldom < 3 * of);
}

/* config.json says which modules keep their bits. */
static void check_config(const char *to)
{
	char path[400];
	json_t *j, *q;

	snprintf(path, sizeof(path), "%s/config.json", to);
	j = json_load_file(path, 0, NULL);
	q = json_object_get(j, "quantization_config");
	assert_string_equal(json_string_value(json_object_get(q, "quant_method")), "awq");
	assert_non_null(json_object_get(q, "modules_to_not_convert"));
	json_decref(j);
}

/* Quantize into folder/of-HOW, with `flag` FOLDER/text; false: refused. */
static bool try(const struct family *f, const char *flag, char *to, size_t size, char *out, size_t out_size)
{
	char text[300], *argv[9];
	const char *words[] = { "quantize", f->hf, "--out", to, "--group-size", "32", flag, text, NULL };

	snprintf(to, size, "%.*s/of%s", (int)(strlen(f->hf) - 3), f->hf, flag);
	snprintf(text, sizeof(text), "%.*s/text", (int)(strlen(f->hf) - 3), f->hf);
	for (int i = 0; i < 9; i++)
		argv[i] = (char *)(uintptr_t)words[i];
	if (quantize(out, out_size, 8, argv) == 0)
		return true;
	printf("%s: %s", f->name, out);
	check_refusal(f->name, out);
	return false;
}

/* A search gains with such inputs, but where q, k and v keep their bits; what is divided and not multiplied again
 * loses much. */
static void test_family(void **state)
{
	struct row *row = *state;
	struct family *f = family_make(row->name);
	char folder[200], to[300], out[8000];
	double was[N], plain, searched;
	int32_t id[N];

	snprintf(folder, sizeof(folder), "%.*s", (int)(strlen(f->hf) - 3), f->hf);
	put_tokenizer(f->hf);
	put_outliers(f->hf);
	put_text(folder, id);
	snprintf(row->cell, sizeof(row->cell), "refused");
	if (try(f, "--loss", to, sizeof(to), out, sizeof(out))) {
		snprintf(row->cell, sizeof(row->cell), "yes");
		scores_of(f->hf, id, was);
		plain = check_written(f, was, to, id, out);
		assert_true(try(f, "--scale-search", to, sizeof(to), out, sizeof(out)));
		check_config(to);
		check_experts(out);
		searched = check_written(f, was, to, id, out);
		printf("%s: a log-probability differs by %.3f, without a search by %.3f; loss %.3f\n", f->name, searched, plain,
		       loss_of(was));
		if (!(searched < 1.05 * plain))
			fail_msg("%s: a log-probability differs by %.3f, without a search by %.3f", f->name, searched, plain);
	}
	family_free(f);
}

/* ---- the table in docs/model.md ------------------------------------------------------------------ */

#define PAGE  "docs/model.md"
#define BEGIN "<!-- quantize: made by SLIPRING_WRITE=1 make families -->\n"
#define END   "<!-- end of quantize -->\n"
#define HEAD  "| tiny model | in 4 bits |\n|---|---|\n"

static void line_of(const struct row *r, char *out, size_t size)
{
	snprintf(out, size, "| %s | %s |\n", r->name, r->cell);
}

static void write_page(const char *page, const char *begin, const char *end, const struct row *rows, int n)
{
	FILE *out = fopen(PAGE, "w");
	char line[200];

	assert_non_null(out);
	fprintf(out, "%.*s" BEGIN HEAD, (int)(begin - page), page);
	for (int i = 0; i < n; i++) {
		line_of(&rows[i], line, sizeof(line));
		fputs(line, out);
	}
	fputs(end, out);
	assert_int_equal(fclose(out), 0);
}

static struct { struct row *rows; int n; } table;

/* The page has a line for each model that ran; what came of all is written if that is asked for. */
static void test_table(void **state)
{
	static char page[1 << 20];
	FILE *in = fopen(PAGE, "r");
	char *begin, *end, line[200];

	(void)state;
	assert_non_null(in);
	page[fread(page, 1, sizeof(page) - 1, in)] = 0;
	fclose(in);
	begin = strstr(page, BEGIN);
	end = strstr(page, END);
	assert_non_null(begin);
	assert_non_null(end);
	if (getenv("SLIPRING_WRITE") && getenv("SLIPRING_FAMILIES")) {
		write_page(page, begin, end, table.rows, table.n);
		return;
	}
	for (int i = 0; i < table.n; i++) {
		const char *at;

		line_of(&table.rows[i], line, sizeof(line));
		at = strstr(begin, line);
		if (!at || at > end)
			fail_msg("the table of quantize in " PAGE " is not what runs here, which is: %s", line);
	}
}

/* Of each kind of family one: norms less one and after, fused matrices, experts, parallel parts, states; one is refused.
 * All others need `make families`. */
static char few_names[][16] = { "gemma3", "phi3", "qwen3-moe", "cohere2", "qwen3.5", "granite-moe" };
static char *few[] = { few_names[0], few_names[1], few_names[2], few_names[3], few_names[4], few_names[5] };

int main(int argc, char **argv)
{
	const bool all = getenv("SLIPRING_FAMILIES") != NULL;
	int n = argc > 1 ? argc - 1 : (int)(sizeof(few) / sizeof(*few)), rc;
	char **names = argc > 1 ? argv + 1 : all ? family_names(&n) : few;
	struct CMUnitTest *tests = calloc((size_t)n + 1, sizeof(*tests));
	struct row *rows = calloc((size_t)n, sizeof(*rows));

	assert_non_null(tests);
	assert_non_null(rows);
	for (int i = 0; i < n; i++) {
		rows[i].name = names[i];
		tests[i] = (struct CMUnitTest){ names[i], test_family, NULL, NULL, &rows[i] };
	}
	tests[n] = (struct CMUnitTest){ "table", test_table, NULL, NULL, NULL };
	table.rows = rows;
	table.n = n;
	rc = _cmocka_run_group_tests("quantized", tests, (size_t)n + 1, NULL, NULL);
	free(tests);
	free(rows);
	return rc;
}
