/* safetensors.c - the table of a safetensors file.  See safetensors.h. */
#include "safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "core/instance/refuse.h"

#define HEADER_MAX (100u << 20)        /* bytes, as in the reference implementation */
#define NAME_MAX_BYTES 1024
#define INDEX_MAX  (64u << 20)         /* of model.safetensors.index.json */
#define FILES_MAX  4096

static const struct { const char *name; uint32_t bits; } dtypes[] = {
	{ "BOOL", 8 }, { "U8", 8 }, { "I8", 8 }, { "F8_E5M2", 8 }, { "F8_E4M3", 8 }, { "F8_E8M0", 8 },
	{ "I16", 16 }, { "U16", 16 }, { "F16", 16 }, { "BF16", 16 }, { "I32", 32 }, { "U32", 32 },
	{ "F32", 32 }, { "F64", 64 }, { "I64", 64 }, { "U64", 64 }, { "F4", 4 },
};

struct err_text { char *err; size_t errlen; };

#define fail(w, ...) refuse(-EINVAL, (w)->err, (w)->errlen, __VA_ARGS__)

/* Read a JSON integer that is not negative. */
static int get_u64(const json_t *j, uint64_t *out)
{
	if (!json_is_integer(j) || json_integer_value(j) < 0)
		return -EINVAL;
	*out = (uint64_t)json_integer_value(j);
	return 0;
}

static int get_shape(struct safetensor *t, const json_t *shape, const char *dtype, const struct err_text *w)
{
	uint64_t items = 1, bits;
	size_t i;

	if (!json_is_array(shape) || json_array_size(shape) > 8)
		return fail(w, "tensor %s: shape is no list of at most 8 sizes", t->name);
	t->n_dims = (uint32_t)json_array_size(shape);
	for (i = 0; i < t->n_dims; i++)
		if (get_u64(json_array_get(shape, i), &t->dim[i]) ||
		    __builtin_mul_overflow(items, t->dim[i], &items))
			return fail(w, "tensor %s: shape[%zu] is no size, or too large", t->name, i);
	for (i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
		if (strcmp(dtype, dtypes[i].name) == 0)
			break;
	if (i == sizeof(dtypes) / sizeof(*dtypes))
		return fail(w, "tensor %s: dtype %.40s is unknown", t->name, dtype);
	snprintf(t->dtype, sizeof(t->dtype), "%s", dtype);
	if (__builtin_mul_overflow(items, (uint64_t)dtypes[i].bits, &bits) || bits % 8)
		return fail(w, "tensor %s: shape is too large, or no whole number of bytes", t->name);
	if (bits / 8 != t->bytes)
		return fail(w, "tensor %s: data_offsets hold %" PRIu64 " bytes, but shape and dtype need "
		            "%" PRIu64,
		            t->name, t->bytes, bits / 8);
	return 0;
}

static int get_tensor(struct safetensor *t, const char *name, const json_t *j, uint64_t data_bytes,
                      const struct err_text *w)
{
	const json_t *span = json_object_get(j, "data_offsets"), *dtype = json_object_get(j, "dtype");
	uint64_t begin, end;

	if (strlen(name) > NAME_MAX_BYTES)
		return fail(w, "tensor %.60s..: its name is longer than %d bytes", name, NAME_MAX_BYTES);
	t->name = strdup(name);
	if (!t->name)
		return -ENOMEM;
	if (!json_is_object(j) || !json_is_string(dtype))
		return fail(w, "tensor %s: is no object with dtype, shape and data_offsets", name);
	if (!json_is_array(span) || json_array_size(span) != 2 ||
	    get_u64(json_array_get(span, 0), &begin) || get_u64(json_array_get(span, 1), &end))
		return fail(w, "tensor %s: data_offsets is no pair of offsets", name);
	if (begin > end || end > data_bytes)
		return fail(w, "tensor %s: data_offsets %" PRIu64 " to %" PRIu64 " are not inside the "
		            "%" PRIu64
		            " bytes of data", name, begin, end, data_bytes);
	t->offset = begin;
	t->bytes = end - begin;
	return get_shape(t, json_object_get(j, "shape"), json_string_value(dtype), w);
}

static int by_offset(const void *a, const void *b)
{
	const struct safetensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}
static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

/* The tensors must tile the data: no holes, no overlaps. */
static int check_tiling(struct safetensors *s, uint64_t data_bytes, const struct err_text *w)
{
	uint64_t at = 0;

	qsort(s->tensor, s->n, sizeof(*s->tensor), by_offset);
	for (uint64_t i = 0; i < s->n; i++) {
		const struct safetensor *t = &s->tensor[i];

		if (t->offset != at)
			return fail(w, "tensor %s: its data begins at %" PRIu64 " of the data, but %" PRIu64
			            " is where the one before ends", t->name, t->offset, at);
		at += t->bytes;
	}
	if (at != data_bytes)
		return fail(w, "the tensors end at %" PRIu64 " of the data, but the file holds %" PRIu64 " "
		            "bytes of it",
		            at, data_bytes);
	return 0;
}

static int parse(struct safetensors *s, json_t *root, uint64_t data_offset, uint64_t data_bytes,
                 const struct err_text *w)
{
	const char *name;
	json_t *j;
	int rc;

	s->tensor = calloc(json_object_size(root) + 1, sizeof(*s->tensor));
	if (!s->tensor)
		return -ENOMEM;
	json_object_foreach(root, name, j) {
		if (strcmp(name, "__metadata__") == 0)
			continue;
		rc = get_tensor(&s->tensor[s->n++], name, j, data_bytes, w);
		if (rc)
			return rc;
	}
	rc = check_tiling(s, data_bytes, w);
	if (rc)
		return rc;
	for (uint64_t i = 0; i < s->n; i++)
		s->tensor[i].offset += data_offset;
	qsort(s->tensor, s->n, sizeof(*s->tensor), by_name);
	return 0;
}

int safetensors_parse(struct safetensors **out, const void *p, size_t n, uint64_t file_bytes,
                      char *err, size_t errlen)
{
	const struct err_text w = { err, errlen };
	const uint8_t *b = p;
	struct safetensors *s = NULL;
	json_error_t why;
	uint64_t header = 0;
	json_t *root;
	int rc;

	*out = NULL;
	if (file_bytes < 8)
		return fail(&w, "the file has %" PRIu64 " bytes; a header length of 8 bytes comes first",
		            file_bytes);
	if (n < 8)
		return -E2BIG;
	for (int i = 7; i >= 0; i--)
		header = header << 8 | b[i];
	if (header > HEADER_MAX || header > file_bytes - 8)
		return fail(&w, "header length at offset 0 is %" PRIu64 "; at most %" PRIu64 " are possible "
		            "here", header,
		            file_bytes - 8 < HEADER_MAX ? file_bytes - 8 : (uint64_t)HEADER_MAX);
	if (header > n - 8)
		return -E2BIG;
	root = json_loadb((const char *)b + 8, header, JSON_REJECT_DUPLICATES, &why);
	if (!root)
		return fail(&w, "header at offset %d: %s", 8 + why.position, why.text);
	if (!json_is_object(root)) {
		rc = fail(&w, "header at offset 8 is no JSON object");
	} else {
		s = calloc(1, sizeof(*s));
		rc = s ? parse(s, root, 8 + header, file_bytes - 8 - header, &w) : -ENOMEM;
	}
	json_decref(root);
	if (rc == -ENOMEM)
		snprintf(err, errlen, "no memory for the table of a safetensors file");
	if (rc)
		safetensors_free(s);
	else
		*out = s;
	return rc;
}

void safetensors_free(struct safetensors *s)
{
	if (!s)
		return;
	for (uint64_t i = 0; s->tensor && i < s->n; i++)
		free(s->tensor[i].name);
	free(s->tensor);
	free(s);
}

/* ---- files ---------------------------------------------------------------------------------- */

static int open_regular(const char *path, uint64_t *bytes, const struct err_text *w)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc;   /* a FIFO must not block us */
	struct stat st;

	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
		*bytes = (uint64_t)st.st_size;
		return fd;
	}
	rc = fd < 0 ? -errno : -EINVAL;
	snprintf(w->err, w->errlen, "%s: %s", path, fd < 0 ? strerror(errno) : "is no regular file");
	if (fd >= 0)
		close(fd);
	return rc;
}

static int read_all(int fd, void *to, uint64_t from, uint64_t n, const char *path, const struct err_text *w)
{
	uint64_t done = 0;

	while (done < n) {
		ssize_t r = pread(fd, (char *)to + done, n - done, (off_t)(from + done));

		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0) {
			int rc = r < 0 ? -errno : -EIO;

			snprintf(w->err, w->errlen, "%s: offset %" PRIu64 ": %s", path, from + done,
			         r < 0 ? strerror(-rc) : "the file ends here; it was longer a moment ago");
			return rc;
		}
		done += (uint64_t)r;
	}
	return 0;
}

int safetensors_text(char **out, size_t *n, const char *path, size_t most, char *err, size_t errlen)
{
	const struct err_text w = { err, errlen };
	uint64_t bytes = 0;
	int fd = open_regular(path, &bytes, &w), rc;

	*out = NULL;
	if (fd < 0)
		return fd;
	*n = bytes;
	if (bytes > most)
		rc = fail(&w, "%s: has %" PRIu64 " bytes; at most %zu are allowed", path, bytes, most);
	else if (!(*out = calloc(1, bytes + 1)))
		rc = -ENOMEM, snprintf(err, errlen, "%s: no memory to read it", path);
	else
		rc = read_all(fd, *out, 0, bytes, path, &w);
	close(fd);
	if (rc) {
		free(*out);
		*out = NULL;
	}
	return rc;
}

/* Add dir/name to the set. */
static int add_file(struct safetensors_set *s, const char *dir, const char *name, const struct err_text *w)
{
	char path[4096 + 256], why[300] = "";
	uint64_t bytes = 0, header = 0;
	uint8_t *head = NULL, first[8];
	int fd, rc;

	assert(strlen(dir) < 4096 && strlen(name) < 256); /* a file in dir was opened; name is a plain_name */
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open_regular(path, &bytes, w);
	if (fd < 0)
		return fd;
	rc = bytes < 8 ? 0 : read_all(fd, first, 0, 8, path, w);
	if (rc == 0 && bytes >= 8) {
		for (int i = 7; i >= 0; i--)
			header = header << 8 | first[i];
		if (header > HEADER_MAX || header > bytes - 8)
			header = 0;        /* the parser reports what is wrong with it */
		head = malloc(8 + header);
		rc = head ? read_all(fd, head, 0, 8 + header, path, w) : -ENOMEM;
	}
	if (rc == 0) {
		rc = safetensors_parse(&s->file[s->n].table, head, head ? 8 + header : 0, bytes, why,
		                       sizeof(why));
		if (rc)
			snprintf(w->err, w->errlen, "%s: %s", path, why);
	}
	free(head);
	close(fd);
	if (rc)
		return rc;
	s->file[s->n++].path = strdup(path);
	return s->file[s->n - 1].path ? 0 : -ENOMEM;
}

/* A plain file name: no path leads out of the directory. */
static bool plain_name(const char *s)
{
	size_t n = strlen(s);

	return n > 12 && n < 256 && *s != '.' && !strchr(s, '/') && strcmp(s + n - 12, ".safetensors") == 0;
}

static const char *file_name(const struct safetensors_set *s, int32_t file)
{
	return strrchr(s->file[file].path, '/') + 1;
}

static int at_by_name(const void *a, const void *b)
{
	return strcmp(((const struct safetensors_at *)a)->t->name, ((const struct safetensors_at *)b)->t->name);
}

const struct safetensors_at *safetensors_lookup(const struct safetensors_set *s, const char *name)
{
	const struct safetensor t = { .name = (char *)(uintptr_t)name };
	const struct safetensors_at want = { &t, 0 };

	return s->n_tensors ? bsearch(&want, s->all, s->n_tensors, sizeof(want), at_by_name) : NULL;
}

/* Merge the tables of all files; a name may be in one of them only. */
static int merge_tables(struct safetensors_set *s, const struct err_text *w)
{
	for (int32_t i = 0; i < s->n; i++)
		s->n_tensors += s->file[i].table->n;
	s->all = calloc(s->n_tensors + 1, sizeof(*s->all));
	if (!s->all)
		return -ENOMEM;
	s->n_tensors = 0;
	for (int32_t i = 0; i < s->n; i++)
		for (uint64_t t = 0; t < s->file[i].table->n; t++)
			s->all[s->n_tensors++] = (struct safetensors_at){ &s->file[i].table->tensor[t], i };
	if (s->n > 1)                          /* one file's tensors are already sorted */
		qsort(s->all, s->n_tensors, sizeof(*s->all), at_by_name);
	for (uint64_t t = 1; t < s->n_tensors; t++)
		if (at_by_name(&s->all[t - 1], &s->all[t]) == 0)
			return fail(w, "%s: tensor %.200s is in %.200s too", s->file[s->all[t].file].path,
			            s->all[t].t->name, file_name(s, s->all[t - 1].file));
	return 0;
}

/* Add the files that weight_map names, each once. */
static int add_shards(struct safetensors_set *s, const char *dir, const char *index, const json_t *map,
                      const struct err_text *w)
{
	json_t *seen = json_object(), *j;
	const char *name;
	int rc = seen ? 0 : -ENOMEM;

	json_object_foreach((json_t *)(uintptr_t)map, name, j) {
		const char *file = json_string_value(j);

		if (rc)
			break;
		if (!file || !plain_name(file))
			rc = fail(w, "%s: weight_map.%.200s is no name of a .safetensors file in this "
			          "directory", index, name);
		else if (json_object_get(seen, file))
			continue;
		else if (s->n == FILES_MAX)
			rc = fail(w, "%s: weight_map names more than %d files", index, FILES_MAX);
		else if ((rc = add_file(s, dir, file, w)) == 0 && json_object_set_new(seen, file, json_true()) < 0)
			rc = -ENOMEM;
	}
	json_decref(seen);
	return rc;
}

/* Check that each tensor of weight_map is in the file that it names. */
static int check_map(const struct safetensors_set *s, const char *index, const json_t *map,
                     const struct err_text *w)
{
	const char *name;
	json_t *j;

	json_object_foreach((json_t *)(uintptr_t)map, name, j) {
		const struct safetensors_at *at = safetensors_lookup(s, name);

		if (!at || strcmp(file_name(s, at->file), json_string_value(j)) != 0)
			return fail(w, "%s: weight_map.%.200s: there is no such tensor in %.200s", index, name,
			            json_string_value(j));
	}
	return 0;
}

static int open_index(struct safetensors_set *s, const char *dir, const struct err_text *w)
{
	char index[4096 + 64], *text;
	json_error_t why;
	json_t *root;
	size_t n;
	int rc;

	snprintf(index, sizeof(index), "%s/model.safetensors.index.json", dir);
	rc = safetensors_text(&text, &n, index, INDEX_MAX, w->err, w->errlen);
	if (rc == -ENOENT)
		fail(w, "%s: holds neither model.safetensors nor model.safetensors.index.json", dir);
	if (rc)
		return rc;
	root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
	free(text);
	if (!root)
		return fail(w, "%s: line %d, column %d: %s", index, why.line, why.column, why.text);
	if (!json_is_object(json_object_get(root, "weight_map")))
		rc = fail(w, "%s: weight_map is missing or no object", index);
	else if ((rc = add_shards(s, dir, index, json_object_get(root, "weight_map"), w)) == 0 &&
	         (rc = merge_tables(s, w)) == 0)
		rc = check_map(s, index, json_object_get(root, "weight_map"), w);
	json_decref(root);
	return rc;
}

int safetensors_open(struct safetensors_set **out, const char *dir, char *err, size_t errlen)
{
	const struct err_text w = { err, errlen };
	struct safetensors_set *s = calloc(1, sizeof(*s));
	char one[4096 + 64];
	int rc = -ENOMEM;

	*out = NULL;
	if (s && (s->file = calloc(FILES_MAX, sizeof(*s->file))) != NULL) {
		snprintf(one, sizeof(one), "%s/model.safetensors", dir);
		if (access(one, F_OK) != 0)
			rc = open_index(s, dir, &w);
		else if ((rc = add_file(s, dir, "model.safetensors", &w)) == 0)
			rc = merge_tables(s, &w);
	}
	if (rc == -ENOMEM)
		snprintf(err, errlen, "%s: no memory to open it", dir);
	if (rc)
		safetensors_close(s);
	else
		*out = s;
	return rc;
}

void safetensors_close(struct safetensors_set *s)
{
	if (!s)
		return;
	for (int32_t i = 0; s->file && i < s->n; i++) {
		safetensors_free(s->file[i].table);
		free(s->file[i].path);
	}
	free(s->file);
	free(s->all);
	free(s);
}
