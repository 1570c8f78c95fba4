/* LINK: @models kernels/rope.c -ljansson */
/* fuzz_model.c - a GGUF file or config.json of any bytes gives a model whose tensors lie in its
 * file, or an error sentence. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/models/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static char dir[] = "/tmp/slipring-fuzz-model-XXXXXX", config[100];

static void gone(void)
{
	unlink(config);
	rmdir(dir);
}

static void inside(const struct sr_tensor *t, uint64_t file)
{
	if (t->type != SR_NONE && (t->data.offset > file || t->data.bytes > file - t->data.offset ||
	                           !t->name))
		abort();
}

/* The first byte: 0 a GGUF file, else config.json of a directory without weights. */
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static int file = -1;
	struct model *md;
	char err[1000] = "", path[64];
	int rc;

	if (file < 0) {
		file = memfd_create("gguf", 0);
		if (!mkdtemp(dir))
			abort();
		snprintf(config, sizeof(config), "%s/config.json", dir);
		atexit(gone);
	}
	if (!n)
		return 0;
	if (p[0]) {
		FILE *f = fopen(config, "w");

		fwrite(p + 1, 1, n - 1, f);
		fclose(f);
		rc = model_open_dummy(&md, dir, err, sizeof(err));
	} else {
		if (ftruncate(file, 0) < 0 || pwrite(file, p + 1, n - 1, 0) != (ssize_t)n - 1)
			abort();
		snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
		rc = model_open(&md, path, err, sizeof(err));
	}
	if (rc == 0) {
		for (int32_t l = 0; l < md->m.n_layers && !p[0]; l++) {
			inside(&md->m.layer[l].q, n - 1);
			inside(&md->m.layer[l].down, n - 1);
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
