/* tensors_out.c - see tensors_out.h.  The format is a u64 length of the header, then the header in JSON,
 * padded with spaces to whole words.  The data follow without holes. */
#include "tensors_out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

struct tensors_out {
	char *path, *part;             /* the file; its name until it is whole */
	int fd;
	json_t *header;
	struct { size_t at, bytes; } *tensor;
	int n, cap;
	size_t data, all, written;     /* offset of the data in the file; its bytes; bytes written */
};

struct tensors_out *tensors_out_create(const char *path)
{
	struct tensors_out *o = calloc(1, sizeof(*o));

	if (!o)
		return NULL;
	o->fd = -1;
	o->path = strdup(path);
	o->header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	if (o->path && o->header && asprintf(&o->part, "%s.part", path) >= 0)
		return o;
	o->part = NULL;
	tensors_out_destroy(o);
	return NULL;
}

int tensors_out_add_as(struct tensors_out *o, const char *name, const char *dtype, uint64_t bytes,
                       uint32_t n_dims,
                       const uint64_t *dim)
{
	json_t *shape = json_array(), *entry;

	for (uint32_t i = 0; i < n_dims; i++)
		json_array_append_new(shape, json_integer((json_int_t)dim[i]));
	entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets",
	                  (json_int_t)o->all, (json_int_t)(o->all + bytes));
	if (o->n == o->cap) {
		void *more = realloc(o->tensor, (size_t)(o->cap + 256) * sizeof(*o->tensor));

		if (!more) {
			json_decref(entry);
			return -ENOMEM;
		}
		o->tensor = more;
		o->cap += 256;
	}
	if (json_object_set_new(o->header, name, entry) != 0)
		return -ENOMEM;
	o->tensor[o->n].at = o->all;
	o->tensor[o->n].bytes = (size_t)bytes;
	o->all += (size_t)bytes;
	return o->n++;
}

int tensors_out_add(struct tensors_out *o, const char *name, const char *dtype, size_t item, int64_t a,
                    int64_t b)
{
	const uint64_t dim[2] = { (uint64_t)a, (uint64_t)b };

	return tensors_out_add_as(o, name, dtype, item * (uint64_t)a * (uint64_t)(b ? b : 1), b ? 2 : 1, dim);
}

int tensors_out_begin(struct tensors_out *o)
{
	char *text = json_dumps(o->header, JSON_COMPACT);
	size_t n = text ? strlen(text) : 0, padded = (n + 7) / 8 * 8;
	uint64_t length = padded;
	char *head = text ? malloc(8 + padded) : NULL;
	int rc = 0;

	if (!head) {
		free(text);
		return -ENOMEM;
	}
	memcpy(head, &length, 8);
	memset(head + 8, ' ', padded);
	memcpy(head + 8, text, n);
	o->data = 8 + padded;
	unlink(o->part);               /* it may remain from a killed run */
	o->fd = open(o->part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (o->fd < 0 || ftruncate(o->fd, (off_t)(o->data + o->all)) < 0)
		rc = -errno;
	else if (pwrite(o->fd, head, o->data, 0) != (ssize_t)o->data)
		rc = errno ? -errno : -ENOSPC;
	free(head);
	free(text);
	return rc;
}

size_t tensors_out_bytes(const struct tensors_out *o, int tensor)
{
	return o->tensor[tensor].bytes;
}

int tensors_out_write(struct tensors_out *o, int tensor, size_t from, const void *p, size_t n)
{
	const char *at = p;

	if (from > o->tensor[tensor].bytes || n > o->tensor[tensor].bytes - from)
		return -EINVAL;
	o->written += n;
	while (n) {
		ssize_t r = pwrite(o->fd, at, n, (off_t)(o->data + o->tensor[tensor].at + from));

		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return r < 0 ? -errno : -ENOSPC;
		at += r;
		from += (size_t)r;
		n -= (size_t)r;
	}
	return 0;
}

int tensors_out_finish(struct tensors_out *o)
{
	if (o->written != o->all)
		return -EINVAL;
	if (fsync(o->fd) < 0 || close(o->fd) < 0 || rename(o->part, o->path) < 0)
		return -errno;
	o->fd = -1;
	return 0;
}

void tensors_out_destroy(struct tensors_out *o)
{
	if (!o)
		return;
	if (o->fd >= 0) {
		close(o->fd);
		unlink(o->part);
	}
	json_decref(o->header);
	free(o->tensor);
	free(o->path);
	free(o->part);
	free(o);
}
