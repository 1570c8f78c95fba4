/* quantize.c - slipring quantize: reads a model and writes a Hugging Face directory in AWQ's layout.
 *
 *	plan       names and shapes of all tensors to write; refuses what cannot be written (quantize_plan.c)
 *	layers     one at a time: read, find scales by a text, round, write (quantize_layer.c)
 *	the rest   what keeps its bits; the other files (quantize_dir.c)
 *
 * With a text, its tokens go layer by layer through the original, which gives the scales; and at the end
 * through the directory that was written, as it is served, which gives the loss.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/text/slipring-text.h"
#include "tools/commands.h"
#include "quantize_dir.h"
#include "quantize_impl.h"
#include "tools/visible.h"
#include "shmring/clock.h"

#define TOKENS   4096              /* of the text: the first half gives scales, the second the loss */
#define TEXT_MAX (1u << 20)

/* ---- files ---------------------------------------------------------------------------------- */

static int open_files(struct quantize *z, const struct model *md, int **file)
{
	*file = malloc((size_t)md->n_files * sizeof(**file));
	if (!*file)
		return quantize_no_memory(z);
	for (int32_t i = 0; i < md->n_files; i++)
		(*file)[i] = -1;
	for (int32_t i = 0; i < md->n_files; i++)
		if (((*file)[i] = open(md->file[i], O_RDONLY | O_CLOEXEC)) < 0)
			return quantize_fail(z, -errno, "%s: %s", md->file[i], strerror(errno));
	return 0;
}

static void close_files(const struct model *md, int *file)
{
	for (int32_t i = 0; file && i < md->n_files; i++)
		if (file[i] >= 0)
			close(file[i]);
	free(file);
}

/* ---- the text ------------------------------------------------------------------------------- */

static int read_text(struct quantize *z)
{
	struct sr_text *t = NULL;
	char *s = malloc(TEXT_MAX);
	FILE *f = fopen(z->text, "re");
	size_t n = s && f ? fread(s, 1, TEXT_MAX, f) : 0;
	int64_t ids = 0;
	int rc = 0;

	z->id = malloc(TOKENS * sizeof(*z->id));
	if (!s || !z->id)
		rc = quantize_no_memory(z);
	else if (!f || ferror(f))
		rc = quantize_fail(z, -EIO, "%s: %s", z->text, strerror(errno));
	else
		rc = sr_text_open(&t, z->where.path, z->err, sizeof(z->err));
	if (!rc) {
		ids = sr_text_encode(t, s, n, SR_TEXT_SPECIAL_ADD, z->id, TOKENS, TOKENS);
		z->n_tokens = ids < TOKENS ? (int32_t)ids : TOKENS;
		z->n_tokens = z->n_tokens < z->m->context ? z->n_tokens : z->m->context;
		if (z->n_tokens < 64)
			rc = quantize_fail(z, -EINVAL, "%s: has %d tokens; scales need 64 to %d",
			          z->text, z->n_tokens, TOKENS);
	}
	for (int32_t i = 0; i < z->n_tokens && !rc; i++)
		if (z->id[i] < 0 || z->id[i] >= z->m->n_vocab)
			rc = quantize_fail(z, -EINVAL, "%s: its tokenizer gives id %d, but the model has %d",
			          z->where.path, z->id[i], z->m->n_vocab);
	sr_text_close(t);
	free(s);
	if (f)
		fclose(f);
	return rc;
}

/* Floats of n values, aligned for the back end. */
static float *room(size_t n)
{
	return aligned_alloc(64, (n * 4 + 63) / 64 * 64);
}

static int begin_text(struct quantize *z)
{
	size_t D = (size_t)z->m->d_model;
	cpu_set_t set;
	int rc = read_text(z);

	if (rc)
		return rc;
	model_serve(z->md, z->n_tokens);
	z->c = (struct calibrate){ z->n_tokens, 1 };
	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		z->c.threads = CPU_COUNT(&set);
	z->x = room((size_t)z->n_tokens * D);
	z->y = room((size_t)z->n_tokens * D);
	if (!z->x || !z->y)
		return quantize_no_memory(z);
	for (int32_t t = 0; t < z->n_tokens && !rc; t++)
		rc = quantize_rows(z, &z->m->embed, z->id[t], 1, z->x + (size_t)t * D);
	for (size_t i = 0; i < (size_t)z->n_tokens * D && !rc; i++)
		z->x[i] *= z->m->embed_scale;
	memcpy(z->y, z->x, (size_t)z->n_tokens * D * 4);
	return rc;
}

/* A vector as it counts: with what is added to it and what it is multiplied with. NULL: there is none, or
 * *rc. */
static float *vector(struct quantize *z, const struct sr_tensor *t, int *rc)
{
	float *v = t->type ? malloc((size_t)t->k * sizeof(*v)) : NULL;

	if (t->type && !*rc)
		*rc = v ? quantize_rows(z, t, 0, 1, v) : quantize_no_memory(z);
	for (int32_t i = 0; v && i < t->k && !*rc; i++)
		v[i] = (v[i] + t->add) * (t->mul != 0 ? t->mul : 1);
	return v;
}

static int norm_both(struct quantize *z)
{
	int rc = 0;
	float *norm = vector(z, &z->m->norm, &rc), *bias = vector(z, &z->m->norm_bias, &rc);

	if (!rc) {
		calibrate_norm(&z->c, z->m, norm, bias, z->x);
		calibrate_norm(&z->c, z->m, norm, bias, z->y);
	}
	free(norm);
	free(bias);
	return rc;
}

/* Pass y through the layers that were written, as they are served. */
static int run_written(struct quantize *z)
{
	struct model *md;
	int rc = model_open(&md, z->dir, z->err, sizeof(z->err)), *file = NULL;

	if (rc)
		return rc;
	model_serve(md, z->n_tokens);
	rc = open_files(z, md, &file);
	for (int32_t l = 0; l < md->m.n_layers && !rc; l++)
		rc = calibrate_layer(&z->c, &md->m, file, l, z->y, NULL, z->err, sizeof(z->err));
	close_files(md, file);
	model_close(md);
	return rc;
}

/* Compute the mean of -log p over the second half of the text, before and after quantizing. */
static int end_text(struct quantize *z)
{
	const struct sr_tensor *head = z->m->head.type ? &z->m->head : &z->m->embed;
	int32_t T = z->n_tokens, from = T / 2, step = 2048;
	size_t D = (size_t)z->m->d_model;
	double *sum = malloc(4 * (size_t)T * sizeof(*sum)), *hit = sum + 2 * T;
	float *w = malloc((size_t)step * D * 4);
	int rc = sum && w ? run_written(z) : quantize_no_memory(z);

	rc = rc ? rc : norm_both(z);
	for (int32_t t = 0; t < 2 * T && !rc; t++)
		sum[t] = -INFINITY;
	for (int32_t v = 0; v < z->m->n_vocab && !rc; v += step) {
		struct matrix part_of = { z->m->n_vocab - v < step ? z->m->n_vocab - v : step, z->m->d_model, w };

		rc = quantize_rows(z, head, v, part_of.n, w);
		if (!rc && (calibrate_head(&z->c, z->m, &part_of, v, z->x, from, z->id, sum, hit) != 0 ||
		            calibrate_head(&z->c, z->m, &part_of, v, z->y, from, z->id, sum + T, hit + T) != 0))
			rc = quantize_no_memory(z);
	}
	for (int32_t t = from; t < T - 1 && !rc; t++) {
		z->loss += (sum[t] - hit[t]) / (T - 1 - from);
		z->loss_after += (sum[T + t] - hit[T + t]) / (T - 1 - from);
	}
	free(sum);
	free(w);
	return rc;
}

static int write_rest(struct quantize *z)
{
	int rc = 0;

	for (int i = 0; i < z->n_plain && !rc; i++)
		if (!z->plain[i].changes)
			rc = quantize_plain(z, &z->plain[i]);
	if (!rc && (rc = tensors_out_finish(z->out)) != 0)
		rc = quantize_fail(z, rc, "%s/model.safetensors: %s", z->dir, strerror(-rc));
	if (rc)
		return rc;
	return quantize_dir_write(&z->where, z->md, z->dir, (struct quantize_said){ z->group, quantize_left(z) },
	                          z->err, sizeof(z->err));
}

/* ---- the whole ------------------------------------------------------------------------------ */

static int open_model(struct quantize *z)
{
	int rc = locate_model(&z->where, z->model, z->err, sizeof(z->err));

	if (rc)
		return rc;
	if ((rc = model_open(&z->md, z->where.path, z->err, sizeof(z->err))) != 0)
		return rc;
	z->m = &z->md->m;
	if (*z->md->quantization && !z->where.gguf)
		return quantize_fail(z, -ENOTSUP, "%s is already quantized (%s): use the model that it was made "
		                     "from", z->where.path, z->md->quantization);
	if ((rc = quantize_dir_check(&z->where, z->err, sizeof(z->err))) != 0 ||
	    (rc = quantize_check(z)) != 0)
		return rc;
	z->paired = z->where.gguf && z->m->kind[0].rope.pairs;
	if (!z->where.gguf && (rc = safetensors_open(&z->st, z->where.path, z->err, sizeof(z->err))) != 0)
		return rc;
	return open_files(z, z->md, &z->file);
}

static int open_out(struct quantize *z)
{
	char path[4200];

	snprintf(path, sizeof(path), "%s/config.json", z->dir);
	if (mkdir(z->dir, 0777) < 0 && errno != EEXIST)
		return quantize_fail(z, -errno, "%s: %s", z->dir, strerror(errno));
	if (access(path, F_OK) == 0)
		return quantize_fail(z, -EEXIST, "%s already holds a model: give another directory to --out", z->dir);
	snprintf(path, sizeof(path), "%s/model.safetensors", z->dir);
	z->out = tensors_out_create(path);
	return z->out ? quantize_plan(z) : quantize_no_memory(z);
}

#define LINE_S 5                          /* s between two lines where a bar cannot be redrawn */

static void progress(int32_t done, int32_t of)
{
	static uint64_t said;             /* s */
	uint64_t now;
	int part = of ? 40 * done / of : 40;

	if (isatty(STDERR_FILENO)) {
		fprintf(visible_raw(stderr), "\r[%.*s%*s] layer %d of %d%s", part,
		        "########################################", 40 - part, "", done, of, done == of ? "\n" : "");
		return;
	}
	now = sr_now() / 1000000000u;
	if (done && now - said < LINE_S)
		return;
	fprintf(stderr, "layer %d of %d\n", done, of);
	said = now;
}

static int quantize_run(struct quantize *z)
{
	int rc = open_model(z);

	if (!rc && z->text)
		rc = begin_text(z);
	if (!rc)
		rc = open_out(z);
	for (int32_t l = 0; !rc && l < z->m->n_layers; l++) {
		progress(l, z->m->n_layers);
		rc = quantize_layer(z, l);
	}
	if (rc)
		return rc;
	progress(z->m->n_layers, z->m->n_layers);
	rc = write_rest(z);
	return !rc && z->text ? end_text(z) : rc;
}

static void report(const struct quantize *z)
{
	double before = (double)z->md->weight_bytes / 1048576, after = 0;
	char path[4200];
	struct stat st;

	snprintf(path, sizeof(path), "%s/model.safetensors", z->dir);
	if (stat(path, &st) == 0)
		after = (double)st.st_size / 1048576;
	printf("%s: %.1f MiB of %.60s became %.1f MiB of AWQ, 4 bits, ", z->dir, before, z->md->stored, after);
	printf(z->group ? "groups of %d\n" : "a group a row\n", z->group);
	printf("relative error of a matrix (root mean square):\n");
	for (int i = 0; i < z->n_kinds; i++)
		printf("  %-17s  %5.2f %%, at most %5.2f %% in layer %d\n", z->kind[i].name,
		       100 * z->kind[i].error / z->kind[i].n,
		       100 * z->kind[i].worst, z->kind[i].worst_at);
	if (z->seldom)
		printf("%d of %d experts were chosen by fewer than %d tokens of the text: their down matrices are "
		       "rounded without a search\n", z->seldom, z->experts, EXPERT_ROWS);
	if (z->text)
		printf("negative log likelihood of tokens %d to %d of %s: %.4f before, %.4f after (%+.2f "
		       "%%)\n", z->n_tokens / 2 + 1,
		       z->n_tokens - 1, z->text, z->loss, z->loss_after, 100 * (z->loss_after / z->loss - 1));
}

static void quantize_release(struct quantize *z)
{
	tensors_out_destroy(z->out);
	quantize_plan_free(z);
	safetensors_close(z->st);
	if (z->md)
		close_files(z->md, z->file);
	model_close(z->md);
	free(z->id);
	free(z->x);
	free(z->y);
}

static int quantize_usage(FILE *to)
{
	fprintf(to, "slipring quantize MODEL --out DIR [OPTIONS]\n"
	            "\n"
	            "Writes MODEL (a Hugging Face directory of 16 bits, or its id in the download cache) as a\n"
	            "directory with matrices of 4 bits in AWQ's layout.  Embeddings, norms, routers and head\n"
	            "keep their bits.  GGUF files: llama, qwen2, qwen3; what has fewer bits there becomes f16.\n"
	            "\n"
	            "  --out DIR                  the directory to write; created if missing\n"
	            "  --format awq               the only format so far\n"
	            "  --group-size N             inputs per scale: 32, 64, 128, .. or -1, the whole row\n"
	            "                             (default 64)\n"
	            "  --scale-search FILE|none   a text like its later prompts: the inputs that\n"
	            "                             matter there are rounded finer (arXiv 2306.00978), and\n"
	            "                             the loss is measured (default none: plain rounding)\n"
	            "  --loss FILE                with plain rounding: a text on which to measure the loss\n"
	            "  --tensors                  print the error of each matrix\n"
	            "\n"
	            "For example:  slipring quantize ./SmolLM2-135M --out ./smol --scale-search book.txt\n");
	return to == stdout ? 0 : 2;
}

/* The value of --name VALUE or --name=VALUE at argv[*i]; NULL: it is another flag. */
static const char *value(const char *name, int argc, char **argv, int *i)
{
	size_t n = strlen(name);

	if (strncmp(argv[*i], name, n) != 0)
		return NULL;
	if (argv[*i][n] == '=')
		return argv[*i] + n + 1;
	return !argv[*i][n] && *i + 1 < argc ? argv[++*i] : NULL;
}

static int parse_options(struct quantize *z, int argc, char **argv)
{
	const char *format = "awq", *size = "64", *v;
	char *end;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--tensors") == 0)
			z->all = true;
		else if ((v = value("--out", argc, argv, &i)) != NULL)
			z->dir = v;
		else if ((v = value("--format", argc, argv, &i)) != NULL)
			format = v;
		else if ((v = value("--group-size", argc, argv, &i)) != NULL)
			size = v;
		else if ((v = value("--scale-search", argc, argv, &i)) != NULL)
			z->search = strcmp(v, "none") != 0, z->text = z->search ? v : z->text;
		else if ((v = value("--loss", argc, argv, &i)) != NULL)
			z->text = v;
		else if (argv[i][0] == '-')
			return quantize_fail(z, -EINVAL, "unknown flag %s, or its value is missing; see slipring "
			                     "quantize --help", argv[i]);
		else if (z->model)
			return quantize_fail(z, -EINVAL, "%s: a MODEL was already given, %s", argv[i], z->model);
		else
			z->model = argv[i];
	}
	if (!z->model || !z->dir)
		return quantize_fail(z, -EINVAL, "%s; see slipring quantize --help", z->model ? "--out DIR is "
		                     "missing" : "MODEL is missing");
	if (strcmp(format, "awq") != 0)
		return quantize_fail(z, -EINVAL, "--format is %s; only awq is supported", format);
	z->group = (int32_t)strtol(size, &end, 10);
	if (*end || (z->group != -1 && (z->group < 32 || z->group % 32 || z->group > 65536)))
		return quantize_fail(z, -EINVAL, "--group-size is %s; -1 and multiples of 32 are allowed", size);
	z->group = z->group == -1 ? 0 : z->group;
	return 0;
}

int cmd_quantize(int argc, char **argv)
{
	struct quantize z = { 0 };
	int rc;

	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
			return quantize_usage(stdout);
	if (argc < 2)
		return quantize_usage(stderr);
	rc = parse_options(&z, argc, argv);
	if (rc) {
		fprintf(stderr, "slipring quantize: %s\n", z.err);
		return 2;
	}
	rc = quantize_run(&z);
	if (rc)
		fprintf(stderr, "%sslipring quantize: %s\n", isatty(STDERR_FILENO) && z.m ? "\n" : "", z.err);
	else
		report(&z);
	quantize_release(&z);
	return rc ? 1 : 0;
}
