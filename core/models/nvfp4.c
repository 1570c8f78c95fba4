/* models/nvfp4.c - finds what belongs to a matrix of NVFP4: e2m1, two to a byte, 16 to a scale in e4m3, and one F32 for
 * the matrix.  Sources: the programs that write these files, NVIDIA's Model Optimizer, llm-compressor and llama.cpp.
 *
 *	modelopt            weight U8 [n][k/2]  weight_scale F8_E4M3 [n][k/16]  weight_scale_2: the weights times it
 *	compressed-tensors  weight_packed       weight_scale                    weight_global_scale: divided by it
 *	GGUF                NAME.weight, blocks of 64 with their scales         NAME.scale, one for each expert
 *
 * What these files say about activations (input_scale, input_global_scale) is not used.
 */
#include "impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Tensor `stem` + `what` of the directory. */
static const struct safetensor *beside(struct opening *o, const char *stem, const char *what, int32_t *file)
{
	char name[160];

	snprintf(name, sizeof(name), "%s%s", stem, what);
	return model_hf_tensor(o, name, file);
}

int model_find_nvfp4(struct opening *o, const char *name, const struct safetensor *t, int32_t file, struct found_tensor *f)
{
	const char *all = o->quant.type == SR_NVFP4 ? "weight_scale_2" : "weight_global_scale";
	const struct safetensor *s;
	size_t len = strlen(name);
	int32_t at;
	char stem[128];

	if (len < 7 || len >= sizeof(stem) || strcmp(name + len - 7, ".weight") != 0 || strcmp(t->dtype, "U8") != 0 ||
	    t->n_dims != 2 || !t->dim[0] || t->dim[0] > 1 << 24 || !t->dim[1] || t->dim[1] > 1 << 24 || t->dim[1] % 8)
		return model_fail(o, -ENOTSUP, "tensor %s at offset %" PRIu64 " is of type %s; NVFP4 is supported for U8 matrices "
		                  "of a multiple of 16 inputs", t->name, t->offset, t->dtype);
	snprintf(stem, sizeof(stem), "%.*s", (int)len - 6, name);
	*f = (struct found_tensor){ .type = o->quant.type, .type_name = t->dtype, .group = 16, .group_n = 1, .n_dims = 2,
	                            .dim = { t->dim[0], 2 * t->dim[1] }, .data = { t->offset, t->bytes, file } };
	s = beside(o, stem, "weight_scale", &at);
	if (!s)
		return model_fail(o, -EINVAL, "tensor %sweight_scale is missing", stem);
	if (strcmp(s->dtype, "F8_E4M3") != 0 || s->n_dims != 2 || s->dim[0] != t->dim[0] || s->dim[1] != t->dim[1] / 8)
		return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " is not F8_E4M3 [%" PRIu64 "][%" PRIu64 "]", s->name,
		                  s->offset, t->dim[0], t->dim[1] / 8);
	f->scale = (struct sr_extent){ s->offset, s->bytes, at };
	f->scale_type = SR_F8;
	s = beside(o, stem, all, &at);
	if (!s)
		return model_fail(o, -EINVAL, "tensor %s%s is missing", stem, all);
	if (strcmp(s->dtype, "F32") != 0 || s->bytes != 4)
		return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " is not one F32", s->name, s->offset);
	f->zero = (struct sr_extent){ s->offset, s->bytes, at };
	beside(o, stem, "input_scale", &at);
	beside(o, stem, "input_global_scale", &at);
	return 0;
}

static const struct gguf_tensor *of_gguf(struct opening *o, const char *name, const char *what)
{
	const struct gguf_tensor *t;
	size_t len = strlen(name);
	char whole[160];

	if (len < 6 || len > 140 || strcmp(name + len - 6, "weight") != 0)
		return NULL;
	snprintf(whole, sizeof(whole), "%.*s%s", (int)len - 6, name, what);
	t = gguf_tensor(o->g, whole);
	if (t)
		o->taken[t - o->g->tensor] = true;
	return t;
}

/* Without NAME.scale weights are as the blocks say. */
int model_find_nvfp4_gguf(struct opening *o, const char *name, struct found_tensor *f)
{
	const struct gguf_tensor *t = of_gguf(o, name, "scale");
	uint64_t n = f->n_dims == 3 ? f->dim[0] : 1;

	of_gguf(o, name, "input_scale");
	if (!t)
		return 0;
	if (t->type != 0 || t->n_dims != 1 || t->dim[0] != n)
		return model_fail(o, -EINVAL, "the scale of tensor %s at offset %" PRIu64 " is not F32 [%" PRIu64 "]", name, t->offset,
		                  n);
	f->zero = (struct sr_extent){ t->offset, t->bytes, t->part };
	return 0;
}
