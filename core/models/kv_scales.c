/* models/kv_scales.c - finds the scales of an FP8 KV cache in a Hugging Face directory, for models/open.c.  A layer has one
 * for all keys and one for all values; a value is what is stored times its scale.
 *
 * Names are those that vLLM's loader accepts: beside the layer's attention, inside it, or beside the
 * projection that makes keys or values.  kv_scale, in old files, is for both; output_scale is
 * compressed-tensors' old name.  If one scale is missing, it equals the other.  Scales of queries are for
 * FP8 attention, which no back end has. */
#include "impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KEYS = 1, VALUES = 2 };

static const struct { const char *name; int what; } names[] = {
	{ "k_scale", KEYS }, { "v_scale", VALUES }, { "q_scale", 0 },
	{ "attn.k_scale", KEYS }, { "attn.v_scale", VALUES }, { "attn.q_scale", 0 },
	{ "k_proj.k_scale", KEYS }, { "v_proj.v_scale", VALUES }, { "q_proj.q_scale", 0 },
	{ "qkv_proj.k_scale", KEYS }, { "qkv_proj.v_scale", VALUES },
	{ "k_proj.output_scale", KEYS }, { "v_proj.output_scale", VALUES }, { "q_proj.output_scale", 0 },
	{ "kv_scale", KEYS | VALUES },
};

/* Read the single number of a tensor from its file. */
static int read_scale(struct opening *o, const struct safetensor *t, int32_t file, float *out)
{
	const char *path = o->st->file[file].path;
	uint64_t n = 1;
	uint16_t half = 0;
	uint32_t bits = 0;
	ssize_t got;
	int fd;

	for (uint32_t i = 0; i < t->n_dims && n == 1; i++)
		n = t->dim[i];
	if (n != 1 || (strcmp(t->dtype, "F32") && strcmp(t->dtype, "BF16")))
		return model_fail(o, -ENOTSUP, "tensor %s at offset %" PRIu64 " is of type %s with %" PRIu64 " or "
		                  "more elements; one F32 or BF16 for all keys or values of a layer is supported",
		                  t->name, t->offset, t->dtype, n);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	got = fd < 0 ? -1 : t->bytes == 4 ? pread(fd, &bits, 4, (off_t)t->offset)
	                                  : pread(fd, &half, 2, (off_t)t->offset);
	if (fd >= 0)
		close(fd);
	if (got != (ssize_t)t->bytes)
		return model_fail(o, -EIO, "tensor %s at offset %" PRIu64 " cannot be read from %s", t->name,
		                  t->offset, path);
	bits = t->bytes == 4 ? bits : (uint32_t)half << 16;
	memcpy(out, &bits, 4);
	if (isfinite(*out) && *out > 0)
		return 0;
	return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " is %g; a scale is above 0", t->name,
	                  t->offset, (double)*out);
}

int model_kv_scales(struct opening *o, int32_t l)
{
	struct sr_layer *y = &o->m->layer[l];
	float scale[2] = { 0, 0 };                      /* of keys, of values */

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		const struct safetensor *t;
		char name[128];
		int32_t file;
		float v;
		int rc;

		snprintf(name, sizeof(name), "%slayers.%d.self_attn.%s", o->prefix, l,
		         names[i].name);
		t = model_hf_tensor(o, name, &file);
		if (!t || !names[i].what)
			continue;
		rc = read_scale(o, t, file, &v);
		if (rc)
			return rc;
		for (int j = 0; j < 2; j++)
			if (names[i].what & 1 << j && !scale[j])
				scale[j] = v;
	}
	y->k_scale = scale[0] ? scale[0] : scale[1];
	y->v_scale = scale[1] ? scale[1] : scale[0];
	return 0;
}

/* quantization_config.kv_cache_scheme: the KV cache is FP8 unless a flag overrides it. */
int model_kv_scheme(struct opening *o, const json_t *scheme)
{
	const char *type = json_string_value(json_object_get(scheme, "type"));
	const char *strategy = json_string_value(json_object_get(scheme, "strategy"));

	if (!scheme || json_is_null(scheme))
		return 0;
	if (json_integer_value(json_object_get(scheme, "num_bits")) != 8 || !type || strcmp(type, "float") != 0 ||
	    !strategy || strcmp(strategy, "tensor") != 0 || json_is_true(json_object_get(scheme, "dynamic")) ||
	    json_is_false(json_object_get(scheme, "symmetric")))
		return model_fail(o, -ENOTSUP, "quantization_config: this kv_cache_scheme is not supported; "
		                  "supported is num_bits 8, type float, strategy tensor, symmetric, not dynamic");
	o->md->kv_f8 = true;
	return 0;
}
