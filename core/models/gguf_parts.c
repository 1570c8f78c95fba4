/* gguf_parts.c - see gguf_parts.h. */
#include "gguf_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/instance/refuse.h"

/* Of a part: how many there are, which one it is, and how many tensors all of them have.  0, or -EINVAL. */
struct split { uint64_t count, no, tensors; };

static int read_split(const struct gguf *g, const char *path, struct split *s, char *err, size_t errlen)
{
	int rc = gguf_u64(g, "split.count", &s->count);

	if (rc == -ENOENT || (rc == 0 && s->count <= 1)) {
		*s = (struct split){ 1, 0, g->n_tensors };
		return 0;
	}
	if (rc || s->count > GGUF_PARTS_MAX)
		return refuse(-EINVAL, err, errlen, "%s: split.count is no number from 1 to %d", path, GGUF_PARTS_MAX);
	if (gguf_u64(g, "split.no", &s->no) != 0 || s->no >= s->count)
		return refuse(-EINVAL, err, errlen, "%s: split.no is missing, or no number below split.count, %" PRIu64,
		              path, s->count);
	if (gguf_u64(g, "split.tensors.count", &s->tensors) != 0)
		return refuse(-EINVAL, err, errlen, "%s: split.tensors.count is missing or no number", path);
	return 0;
}

/* The path of part `no`, counted from 0, in the place of part `named`. */
static char *part_path(const char *path, uint64_t no, uint64_t count)
{
	size_t stem = strlen(path) - strlen("-00001-of-00001.gguf"), n = strlen(path) + 1;
	char *out = malloc(n + 32);

	if (out)
		snprintf(out, n + 32, "%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf", (int)stem, path, no + 1, count);
	return out;
}

/* The file named on the command line must be the first part, and be called so that the others can be found. */
static int check_first(const char *path, const struct split *s, char *err, size_t errlen)
{
	int32_t no, of;
	bool named = gguf_part_name(path, &no, &of);
	char *first;

	if (!named || (uint64_t)of != s->count || (uint64_t)no != s->no + 1)
		return refuse(-EINVAL, err, errlen, "%s: inside it is part %" PRIu64 " of %" PRIu64 ", but its name does not "
		              "end in -%05" PRIu64 "-of-%05" PRIu64 ".gguf, so that the others cannot be found", path,
		              s->no + 1, s->count, s->no + 1, s->count);
	if (s->no == 0)
		return 0;
	first = part_path(path, 0, s->count);
	refuse(-EINVAL, err, errlen, "%s: this is part %" PRIu64 " of %" PRIu64 " of a model; the model is named by its "
	       "first part, %s", path, s->no + 1, s->count, first ? first : "-00001-of-");
	free(first);
	return -EINVAL;
}

/* Read part i and check that it belongs to the first. */
static int read_part(struct gguf_parts *p, int32_t i, const struct split *whole, char *err, size_t errlen)
{
	struct split s;
	int rc;

	p->path[i] = part_path(p->path[0], (uint64_t)i, whole->count);
	if (!p->path[i])
		return refuse(-ENOMEM, err, errlen, "%s: no memory to open it", p->path[0]);
	if ((rc = gguf_read(&p->file[i], p->path[i], err, errlen)) != 0)
		return rc;
	p->n = i + 1;
	if ((rc = read_split(p->file[i].g, p->path[i], &s, err, errlen)) != 0)
		return rc;
	if (s.count != whole->count || s.no != (uint64_t)i || s.tensors != whole->tensors)
		return refuse(-EINVAL, err, errlen, "%s: inside it is part %" PRIu64 " of %" PRIu64 " with %" PRIu64 " tensors "
		              "in all; part %d of %" PRIu64 " with %" PRIu64 " would be right", p->path[i], s.no + 1, s.count,
		              s.tensors, i + 1, whole->count, whole->tensors);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct gguf_string *x = &(*(const struct gguf_tensor *const *)a)->name;
	const struct gguf_string *y = &(*(const struct gguf_tensor *const *)b)->name;

	return gguf_compare(x, y);
}

/* One table of all parts' tensors. */
static int join(struct gguf_parts *p, uint64_t tensors, char *err, size_t errlen)
{
	const struct gguf *first = p->file[0].g;
	struct gguf *g = p->joined = malloc(sizeof(*g));
	uint64_t n = 0;

	if (g) {
		*g = *first;
		g->n_tensors = tensors;
		g->tensor = calloc(tensors + 1, sizeof(*g->tensor));
		g->tensor_by_name = calloc(tensors + 1, sizeof(*g->tensor_by_name));
	}
	if (!g || !g->tensor || !g->tensor_by_name)
		return refuse(-ENOMEM, err, errlen, "%s: no memory for the table of its parts", p->path[0]);
	for (int32_t i = 0; i < p->n; i++)
		for (uint64_t t = 0; t < p->file[i].g->n_tensors; t++) {
			g->tensor[n] = p->file[i].g->tensor[t];
			g->tensor[n].part = i;
			g->tensor_by_name[n] = &g->tensor[n];
			n++;
		}
	qsort(g->tensor_by_name, n, sizeof(*g->tensor_by_name), by_name);
	for (uint64_t t = 1; t < n; t++)
		if (by_name(&g->tensor_by_name[t - 1], &g->tensor_by_name[t]) == 0)
			return refuse(-EINVAL, err, errlen, "%s: tensor %.*s is in two parts", p->path[0],
			              (int)g->tensor_by_name[t]->name.n, g->tensor_by_name[t]->name.s);
	p->g = g;
	return 0;
}

static int read_all(struct gguf_parts *p, const char *path, char *err, size_t errlen)
{
	struct split s;
	uint64_t tensors = 0;
	int rc = gguf_read(&p->file[0], path, err, errlen);

	if (rc)
		return rc;
	p->n = 1;
	p->g = p->file[0].g;
	if ((rc = read_split(p->g, path, &s, err, errlen)) != 0 || s.count == 1)
		return rc;
	if ((rc = check_first(path, &s, err, errlen)) != 0)
		return rc;
	for (int32_t i = 1; (uint64_t)i < s.count && !rc; i++)
		rc = read_part(p, i, &s, err, errlen);
	for (int32_t i = 0; i < p->n; i++)
		tensors += p->file[i].g->n_tensors;
	if (!rc && tensors != s.tensors)
		return refuse(-EINVAL, err, errlen, "%s: split.tensors.count is %" PRIu64 ", but its %" PRIu64 " parts have %"
		              PRIu64 " tensors", path, s.tensors, s.count, tensors);
	return rc ? rc : join(p, tensors, err, errlen);
}

int gguf_read_parts(struct gguf_parts *p, const char *path, char *err, size_t errlen)
{
	int rc;

	*p = (struct gguf_parts){ .file = calloc(GGUF_PARTS_MAX, sizeof(*p->file)),
	                          .path = calloc(GGUF_PARTS_MAX, sizeof(*p->path)) };
	if (p->path)
		p->path[0] = strdup(path);
	if (!p->file || !p->path || !p->path[0])
		rc = refuse(-ENOMEM, err, errlen, "%s: no memory to open it", path);
	else
		rc = read_all(p, path, err, errlen);
	if (rc)
		gguf_close_parts(p);
	return rc;
}

void gguf_close_parts(struct gguf_parts *p)
{
	for (int32_t i = 0; i < p->n; i++)
		gguf_close(&p->file[i]);
	for (int32_t i = 0; p->path && i < GGUF_PARTS_MAX; i++)
		free(p->path[i]);
	if (p->joined) {
		free(p->joined->tensor);
		free(p->joined->tensor_by_name);
		free(p->joined);
	}
	free(p->file);
	free(p->path);
	*p = (struct gguf_parts){ 0 };
}
