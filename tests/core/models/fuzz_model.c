/* LINK: @models kernels/rope.c -ljansson */
/* fuzz_model.c - a GGUF file or config.json of any bytes gives a model whose tensors lie in its
 * file, or an error sentence. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/models/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static char dir[] = "/tmp/slipring-fuzz-model-XXXXXX", config[100], weights[100], part[2][100];

static void gone(void)
{
	unlink(config);
	unlink(weights);
	unlink(part[0]);
	unlink(part[1]);
	rmdir(dir);
}

static void inside(const struct sr_tensor *t, uint64_t file)
{
	struct sr_stored last;

	if (t->type == SR_NONE)
		return;
	last = sr_stored_of(t, t->count > 1 ? t->count - 1 : 0);
	for (int i = 0; i < 4; i++) {
		const struct sr_extent *e = i == 0 ? &last.data : i == 1 ? &last.scale : i == 2 ? &last.zero : &last.index;

		if (e->offset > file || e->bytes > file - e->offset || !t->name)
			abort();
	}
}

/* A file of these bytes, and `more` zeros behind them that take no place. */
static void write_file(const char *path, const uint8_t *p, size_t n, off_t more)
{
	FILE *f = fopen(path, "w");

	if (!f || fwrite(p, 1, n, f) != n || fflush(f) || ftruncate(fileno(f), (off_t)n + more))
		abort();
	fclose(f);
}

#define ZEROS ((off_t)4 << 20)       /* room for the tensors of a head that has none of their bytes */

/* A directory: the length of config.json, that of the weights' data (zeros), config.json, the head of the weights. */
static int open_directory(struct model **md, const uint8_t *p, size_t n, uint64_t *file, char *err, size_t errlen)
{
	size_t first, data;
	int rc;

	if (n < 6)
		return -1;
	first = (size_t)p[0] | (size_t)p[1] << 8;
	data = (size_t)p[2] | (size_t)p[3] << 8 | (size_t)p[4] << 16;
	first = first < n - 6 ? first : n - 6;
	write_file(config, p + 6, first, 0);
	write_file(weights, p + 6 + first, n - 6 - first, (off_t)data);
	*file = n - 6 - first + data;
	rc = model_open(md, dir, err, errlen);
	unlink(weights);
	return rc;
}

/* The first byte: 0 a GGUF file, 1 the head of one, 2 two parts, of which the first is as long as the next two
 * bytes say, 3 a directory with weights; else config.json of a directory without. */
static int open_form(struct model **md, const uint8_t *p, size_t n, uint64_t *file, char *err, size_t errlen)
{
	size_t first = n > 2 ? (size_t)p[1] | (size_t)p[2] << 8 : 0;

	*file = n - 1 + (p[0] ? ZEROS : 0);
	switch (p[0]) {
	case 0: case 1:
		unlink(part[1]);
		write_file(part[0], p + 1, n - 1, p[0] ? ZEROS : 0);
		return model_open(md, part[0], err, errlen);
	case 2:
		if (n < 3 || first > n - 3)
			first = 0;
		n = n < 3 ? 3 : n;
		write_file(part[0], p + 3, first, ZEROS);
		write_file(part[1], p + 3 + first, n - 3 - first, ZEROS);
		return model_open(md, part[0], err, errlen);
	case 3:
		return n < 7 ? (snprintf(err, errlen, "too short"), -1) : open_directory(md, p + 1, n - 1, file, err, errlen);
	default:
		write_file(config, p + 1, n - 1, 0);
		*file = UINT64_MAX;
		return model_open_dummy(md, dir, err, errlen);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct model *md;
	char err[1000] = "";
	uint64_t file;
	int rc;

	if (!config[0]) {
		if (!mkdtemp(dir))
			abort();
		snprintf(config, sizeof(config), "%s/config.json", dir);
		snprintf(weights, sizeof(weights), "%s/model.safetensors", dir);
		for (int i = 0; i < 2; i++)
			snprintf(part[i], sizeof(part[i]), "%s/m-%05d-of-00002.gguf", dir, i + 1);
		atexit(gone);
	}
	if (!n)
		return 0;
	rc = open_form(&md, p, n, &file, err, sizeof(err));
	if (rc == 0) {
		for (int32_t l = 0; l < md->m.n_layers && file < UINT64_MAX; l++) {
			inside(&md->m.layer[l].q, file);
			inside(&md->m.layer[l].up, file);
			inside(&md->m.layer[l].down, file);
			inside(&md->m.layer[l].expert_down, file);
		}
		if (md->n_eos < 0 || md->n_eos > MODEL_EOS_MAX ||
		    md->m.kind[0].n_heads % md->m.kind[0].n_kv_heads || md->m.kind[0].rope.dims % 2)
			abort();
		model_close(md);
	} else if (!err[0]) {
		abort();
	}
	return 0;
}
