/* identity.c - see identity.h.  At start, before READY. */
#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/instance/log.h"
#include "keep.h"

#define MIB       (1ull << 20)
#define PIECE     MIB            /* bytes that are read at a time */
#define SMALL     (32 * MIB)     /* of a file up to this all bytes count */
#define HEAD_GGUF (32 * MIB)     /* where a GGUF's table ends at the latest: behind its vocabulary */
#define HEAD_PART MIB            /* of the parts behind the first, which have no vocabulary */
#define SAMPLES   2048u          /* of all files together; of one at least: */
#define SAMPLES_LEAST 64u
#define SAMPLE    4096u          /* bytes */

static int add_bytes(uint64_t id[2], int fd, uint64_t from, uint64_t n, uint8_t *buf)
{
	while (n) {
		const size_t want = n < PIECE ? (size_t)n : PIECE;
		const ssize_t got = pread(fd, buf, want, (off_t)from);

		if (got <= 0)
			return got < 0 ? -errno : -EIO;
		keep_identity(id, buf, (size_t)got);
		from += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return 0;
}

/* Bytes before the tensors' data; of a GGUF at least those. */
static uint64_t head_of(const struct model *m, int fd, bool first)
{
	uint64_t n = 0;

	if (!strcmp(m->format, "GGUF"))
		return first ? HEAD_GGUF : HEAD_PART;
	return pread(fd, &n, sizeof(n), 0) == (ssize_t)sizeof(n) ? n + sizeof(n) : 0;
}

static int add_file(uint64_t id[2], const struct model *m, int32_t i, uint8_t *buf)
{
	const uint64_t even = SAMPLES / (uint32_t)m->n_files, samples = even < SAMPLES_LEAST ? SAMPLES_LEAST : even;
	const int fd = open(m->file[i], O_RDONLY | O_CLOEXEC);
	uint64_t size, head;
	struct stat st;
	int r = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;

	if (r == 0) {
		size = (uint64_t)st.st_size;
		keep_identity(id, &size, sizeof(size));
		head = size <= SMALL ? size : head_of(m, fd, i == 0);
		head = head < size ? head : size;
		r = add_bytes(id, fd, 0, head, buf);
		for (uint64_t k = 0; k < samples && r == 0 && head < size; k++) {
			const uint64_t at = head + (size - head) / samples * k, left = size - at;

			r = add_bytes(id, fd, at, left < SAMPLE ? left : SAMPLE, buf);
		}
	}
	if (fd >= 0)
		close(fd);
	return r;
}

/* The settings of a directory.  One that is missing is as good as empty. */
static int add_settings(uint64_t id[2], const char *dir, uint8_t *buf)
{
	static const char *const name[] = { "config.json", "generation_config.json", "modules.json",
		"sentence_bert_config.json", "1_Pooling/config.json" };
	char path[4200];
	struct stat st;
	int r = 0;

	for (size_t i = 0; i < sizeof(name) / sizeof(*name) && r == 0; i++) {
		int fd;

		snprintf(path, sizeof(path), "%.4095s/%s", dir, name[i]);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		keep_identity(id, name[i], strlen(name[i]));
		if (fd >= 0 && fstat(fd, &st) == 0)
			r = add_bytes(id, fd, 0, (uint64_t)st.st_size, buf);
		if (fd >= 0)
			close(fd);
	}
	return r;
}

static int add_content(uint64_t id[2], const struct identity *of)
{
	uint8_t *buf = malloc(PIECE);
	struct stat st;
	int r = buf ? 0 : -ENOMEM;

	if (r == 0 && stat(of->path, &st) == 0 && S_ISDIR(st.st_mode))
		r = add_settings(id, of->path, buf);
	for (int32_t i = 0; i < of->model->n_files && r == 0; i++)
		r = add_file(id, of->model, i, buf);
	free(buf);
	return r;
}

static void add_text(uint64_t id[2], const char *s) { keep_identity(id, s ? s : "", s ? strlen(s) : 0); }

void identity_make(uint64_t out[2], const struct identity *of)
{
	const struct sr_limits *l = &of->plan->limits;
	const struct model *m = of->model;
	const int64_t word[] = { (int64_t)sr_bits(), l->kv_type, l->block_tokens, of->plan->need.per_block, l->deterministic,
		l->w4a8, l->whole, of->cfg->tensor_parallel_size, (int64_t)m->weight_bytes, m->m.n_layers, m->m.n_vocab,
		m->divisor[1] ? of->plan->context : 0 };      /* longrope turns otherwise beyond a length */
	int r;

	out[0] = out[1] = 0;
	keep_identity(out, word, sizeof(word));
	add_text(out, m->format);
	add_text(out, m->stored);
	add_text(out, m->quantization);
	add_text(out, of->cfg->dtype);
	add_text(out, of->ops->without ? of->ops->without(of->b) : "");
	r = add_content(out, of);
	if (r == 0)
		return;
	log_warn("the model's files cannot be read again (%s): no other daemon goes on with answers of this one",
	         strerror(-r));
	if (getrandom(out, 2 * sizeof(*out), 0) < 0)
		out[0] = (uint64_t)getpid();
}

uint32_t identity_answers(const struct identity *of)
{
	uint64_t id[2];
	const char *kind = "";

	identity_make(id, of);
	if (of->ops->kv)
		of->ops->kv(of->b, 0, &kind);
	keep_identity(id, &of->plan->context, sizeof(of->plan->context)); /* a longer answer must fit as well */
	add_text(id, of->ops->name);
	add_text(id, kind);
	return (uint32_t)id[0] | 1;
}
