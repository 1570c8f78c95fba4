/* models/quant.c - directories of 4- and 8-bit weights with separate scales, for models/from_hf.c: what
 * quantization_config says about them, and which tensors make up one matrix.
 *
 *	awq                 qweight [k][n/8]        qzeros [k/group][n/8]  scales [k/group][n]
 *	gptq                qweight [k/8][n]        qzeros [k/group][n/8]  scales [k/group][n]  g_idx [k]
 *	compressed-tensors  weight_packed [n][k/8]  weight_zero_point [n/8][k/group]
 *	                    weight_scale [n][k/group]  weight_g_idx [k]
 *
 *	fp8                 weight [n][k] in e4m3, weight_scale [1], or weight_scale_inv [n/128][k/128]
 *	  and compressed-tensors in e4m3: weight_scale [1], [n][1] or [n/128][k/128]
 *	nvfp4               weight [n][k/2], weight_scale [n][k/16] in e4m3, weight_scale_2 [1]
 *	  and compressed-tensors: weight_packed, weight_scale, weight_global_scale [1], which divides (nvfp4.c)
 *
 * FP8 activations are quantized token by token, if at all; a file's input_scale is not used.
 * The tensors show whether a matrix is quantized: modules that were left out (ignore,
 * modules_to_not_convert) have a plain weight.  Sources: the programs that write these files, AutoAWQ,
 * AutoGPTQ and llm-compressor.
 */
#include "impl.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- quantization_config -------------------------------------------------------------------- */

static const char *text_of(const json_t *j, const char *key)
{
	return json_string_value(json_object_get(j, key));
}

static bool is_there(const json_t *j, const char *key)
{
	const json_t *v = json_object_get(j, key);

	return v && !json_is_null(v) && !json_is_false(v) && !(json_is_object(v) && json_object_size(v) == 0);
}

static int check_bits(struct opening *o, const json_t *j, const char *key)
{
	const json_t *bits = json_object_get(j, key);

	if (json_is_integer(bits) && json_integer_value(bits) == 4)
		return 0;
	return model_fail(o, -ENOTSUP, "quantization_config: %s is not 4, the only width that is supported",
	                  key);
}

/* Read group_size; -1 (or null, if `channel`): one group is a whole row. */
static int get_group(struct opening *o, const json_t *j, bool channel)
{
	const json_t *size = json_object_get(j, "group_size");
	bool whole = channel && (!size || json_is_null(size));
	json_int_t v = whole ? -1 : json_integer_value(size);

	if (!whole && !json_is_integer(size))
		return model_fail(o, -EINVAL, "quantization_config: group_size is no integer");
	if (v != -1 && (v < 32 || v > 1 << 16 || v % 32))
		return model_fail(o, -ENOTSUP, "quantization_config: group_size is %" JSON_INTEGER_FORMAT
		                  "; -1 and multiples of 32 are supported", v);
	o->quant.group = v == -1 ? 0 : (int32_t)v;
	return 0;
}

static int awq(struct opening *o, const json_t *j)
{
	const char *version = text_of(j, "version");
	int rc = check_bits(o, j, "bits");

	if (rc)
		return rc;
	if (version && strcasecmp(version, "gemm") != 0)
		return model_fail(o, -ENOTSUP, "quantization_config: version %.40s is not supported; "
		                  "supported is gemm", version);
	if (json_is_false(json_object_get(j, "zero_point")))
		return model_fail(o, -ENOTSUP, "quantization_config: zero_point false is not supported");
	o->quant.type = SR_AWQ4;
	o->quant.zeros = true;
	return get_group(o, j, false);
}

static int gptq(struct opening *o, const json_t *j)
{
	const char *format = text_of(j, "checkpoint_format");
	int rc = check_bits(o, j, "bits");

	if (rc)
		return rc;
	if (format && strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0)
		return model_fail(o, -ENOTSUP, "quantization_config: checkpoint_format %.40s is not "
		                  "supported; supported are gptq, gptq_v2", format);
	if (is_there(j, "dynamic"))
		return model_fail(o, -ENOTSUP, "quantization_config: dynamic (layers of different kinds) is "
		                  "not supported");
	o->quant.type = format && strcmp(format, "gptq_v2") == 0 ? SR_GPTQ4_V2 : SR_GPTQ4;
	o->quant.zeros = true;
	return get_group(o, j, false);
}

/* Read the outputs and inputs per scale, if given. */
static int get_blocks(struct opening *o, const json_t *j, const char *key)
{
	const json_t *size = json_object_get(j, key);
	json_int_t n = json_integer_value(json_array_get(size, 0));
	json_int_t k = json_integer_value(json_array_get(size, 1));

	o->quant.type = SR_F8;
	if (!size || json_is_null(size))
		return 0;
	if (json_array_size(size) != 2 || n < 1 || n > 1 << 16 || k < 32 || k > 1 << 16 || k % 32)
		return model_fail(o, -ENOTSUP, "quantization_config: %s is no pair of outputs and inputs, the inputs "
		                  "a multiple of 32", key);
	o->quant.group_n = (int32_t)n;
	o->quant.group = (int32_t)k;
	return 0;
}

/* Experts in blocks of 4 bits; models/experts.c knows their names, and everything else is as it is. */
static int mxfp4(struct opening *o, const json_t *j)
{
	(void)o, (void)j;
	return 0;
}

static int fp8(struct opening *o, const json_t *j)
{
	const char *format = text_of(j, "fmt");

	if (format && strcmp(format, "e4m3") != 0)
		return model_fail(o, -ENOTSUP, "quantization_config: fmt %.40s is not supported; supported is e4m3",
		                  format);
	return get_blocks(o, j, "weight_block_size");
}

/* compressed-tensors in e4m3: check the weights and what else is quantized. */
static int compressed_f8(struct opening *o, const json_t *one, const json_t *weights)
{
	const json_t *input = json_object_get(one, "input_activations");
	const char *type = text_of(weights, "type"), *of_input = text_of(input, "type");

	if (json_integer_value(json_object_get(weights, "num_bits")) != 8 || !type || strcmp(type, "float") != 0)
		return model_fail(o, -ENOTSUP, "quantization_config: weights of type %.40s are not supported in "
		                  "format float-quantized; supported is float with num_bits 8",
		                  type ? type : "(none)");
	if ((is_there(one, "input_activations") && (!of_input || strcmp(of_input, "float") != 0)) ||
	    is_there(one, "output_activations"))
		return model_fail(o, -ENOTSUP, "quantization_config: input_activations other than float, and "
		                  "quantized output_activations are not supported");
	return get_blocks(o, weights, "block_structure");
}

/* compressed-tensors in int8: a scale for each output, or for all.  Activations become int8 here anyway. */
static int compressed_i8(struct opening *o, const json_t *one, const json_t *weights)
{
	const json_t *input = json_object_get(one, "input_activations");
	const char *type = text_of(weights, "type"), *strategy = text_of(weights, "strategy"), *of_input = text_of(input, "type");

	if (json_integer_value(json_object_get(weights, "num_bits")) != 8 || !type || strcmp(type, "int") != 0 || !strategy ||
	    (strcmp(strategy, "channel") != 0 && strcmp(strategy, "tensor") != 0) ||
	    json_is_false(json_object_get(weights, "symmetric")))
		return model_fail(o, -ENOTSUP, "quantization_config: weights of type %.40s, strategy %.40s are not supported in "
		                  "format int-quantized; supported are symmetric int with num_bits 8, by channel or tensor",
		                  type ? type : "(none)", strategy ? strategy : "(none)");
	if ((is_there(one, "input_activations") && (!of_input || strcmp(of_input, "int") != 0 ||
	     json_integer_value(json_object_get(input, "num_bits")) != 8)) || is_there(one, "output_activations"))
		return model_fail(o, -ENOTSUP, "quantization_config: input_activations other than int of 8 bits, and "
		                  "quantized output_activations are not supported");
	o->quant.type = SR_I8;
	return 0;
}

/* One of compressed-tensors' and modelopt's objects for weights or activations: floats of 4 bits, 16 to a scale. */
static bool is_f4(const json_t *j)
{
	const json_t *size = json_object_get(j, "group_size");
	const char *type = text_of(j, "type"), *strategy = text_of(j, "strategy");

	return json_integer_value(json_object_get(j, "num_bits")) == 4 && type && strcmp(type, "float") == 0 &&
	       (!size || json_integer_value(size) == 16) && (!strategy || strcmp(strategy, "tensor_group") == 0) &&
	       !json_is_false(json_object_get(j, "symmetric"));
}

/* NVFP4.  Activations become int8 here, which loses less than the e2m1 that the file may ask for. */
static int compressed_f4(struct opening *o, const json_t *one, const json_t *weights)
{
	const json_t *input = json_object_get(one, "input_activations");

	if (!is_f4(weights) || (is_there(one, "input_activations") && !is_f4(input)) || is_there(one, "output_activations"))
		return model_fail(o, -ENOTSUP, "quantization_config: in format nvfp4-pack-quantized weights and, if they are "
		                  "quantized, input_activations must be float with num_bits 4, strategy tensor_group, group_size 16");
	o->quant.type = SR_NVFP4_CT;
	return 0;
}

/* NVIDIA's Model Optimizer. */
static int modelopt(struct opening *o, const json_t *j)
{
	const char *algo = text_of(j, "quant_algo"), *kv = text_of(j, "kv_cache_quant_algo");
	const json_t *size = json_object_get(j, "group_size"), *scheme = json_object_get(j, "kv_cache_scheme"), *one;
	const char *name;

	if (!algo || (strcmp(algo, "NVFP4") != 0 && strcmp(algo, "FP8") != 0))
		return model_fail(o, -ENOTSUP, "quantization_config: quant_algo %.40s is not supported; supported are NVFP4, FP8",
		                  algo ? algo : "(none)");
	json_object_foreach(json_object_get(j, "config_groups"), name, one)
		if (strcmp(algo, "NVFP4") == 0 && !is_f4(json_object_get(one, "weights")))
			return model_fail(o, -ENOTSUP, "quantization_config: weights of %.40s are not float with num_bits 4, "
			                  "group_size 16", name);
	if (json_is_integer(size) && json_integer_value(size) != 16)
		return model_fail(o, -ENOTSUP, "quantization_config: group_size is %" JSON_INTEGER_FORMAT "; that of NVFP4 is 16",
		                  json_integer_value(size));
	if ((kv && strcmp(kv, "FP8") != 0) || (scheme && !json_is_null(scheme) &&
	    json_integer_value(json_object_get(scheme, "num_bits")) != 8))
		return model_fail(o, -ENOTSUP, "quantization_config: this KV cache is not supported; supported is FP8");
	o->md->kv_f8 = kv || (scheme && !json_is_null(scheme));
	o->quant.type = strcmp(algo, "NVFP4") == 0 ? SR_NVFP4 : SR_F8;
	return 0;
}

static int compressed(struct opening *o, const json_t *j)
{
	const json_t *groups = json_object_get(j, "config_groups");
	const json_t *one = json_object_iter_value(json_object_iter((json_t *)(uintptr_t)groups));
	const json_t *weights = json_object_get(one, "weights");
	const char *format = text_of(j, "format"), *type = text_of(weights, "type");
	const char *strategy = text_of(weights, "strategy");
	bool channel = strategy && strcmp(strategy, "channel") == 0;
	int rc;

	if (!format || (strcmp(format, "pack-quantized") != 0 && strcmp(format, "float-quantized") != 0 &&
	                strcmp(format, "int-quantized") != 0 && strcmp(format, "nvfp4-pack-quantized") != 0))
		return model_fail(o, -ENOTSUP, "quantization_config: format %.40s is not supported; supported are pack-quantized, "
		                  "float-quantized, int-quantized, nvfp4-pack-quantized", format ? format : "(none)");
	if (json_object_size(groups) != 1 || !json_is_object(weights))
		return model_fail(o, -ENOTSUP, "quantization_config: config_groups with other than one group "
		                  "of weights are not supported");
	if ((rc = model_kv_scheme(o, json_object_get(j, "kv_cache_scheme"))) != 0)
		return rc;
	if (strcmp(format, "float-quantized") == 0)
		return compressed_f8(o, one, weights);
	if (strcmp(format, "int-quantized") == 0)
		return compressed_i8(o, one, weights);
	if (strcmp(format, "nvfp4-pack-quantized") == 0)
		return compressed_f4(o, one, weights);
	if ((rc = check_bits(o, weights, "num_bits")) != 0)
		return rc;
	if (!type || strcmp(type, "int") != 0 || !strategy || (!channel && strcmp(strategy, "group") != 0))
		return model_fail(o, -ENOTSUP, "quantization_config: weights of type %.40s, strategy %.40s "
		                  "are not supported; supported are int, by group or channel",
		                  type ? type : "(none)", strategy ? strategy : "(none)");
	if (is_there(one, "input_activations") || is_there(one, "output_activations"))
		return model_fail(o, -ENOTSUP, "quantization_config: quantized activations are not supported; "
		                  "quantized weights are");
	o->quant.type = SR_CT4;
	o->quant.zeros = json_is_false(json_object_get(weights, "symmetric"));
	return get_group(o, weights, channel);
}

int model_quant_settings(struct opening *o)
{
	static const struct { const char *method; int (*read)(struct opening *, const json_t *); } known[] = {
		{ "awq", awq }, { "gptq", gptq }, { "compressed-tensors", compressed },
		{ "fp8", fp8 }, { "mxfp4", mxfp4 }, { "modelopt", modelopt }, { "modelopt_fp4", modelopt },
	};
	const json_t *j = json_object_get(o->config, "quantization_config");
	const char *method = text_of(j, "quant_method");

	if (!j || json_is_null(j))
		return 0;
	for (unsigned i = 0; method && i < sizeof(known) / sizeof(*known); i++) {
		int rc;

		if (strcmp(known[i].method, method) != 0)
			continue;
		rc = model_check_quant(o, j);
		snprintf(o->md->quantization, sizeof(o->md->quantization), "%s", method);
		return rc ? rc : known[i].read(o, j);
	}
	return model_fail(o, -ENOTSUP, "quantization_config.quant_method %.40s is not supported; supported "
	                  "are awq, gptq and compressed-tensors of 4 bits, fp8, mxfp4, modelopt", method ? method : "(none)");
}

/* ---- tensors -------------------------------------------------------------------------------- */

struct quant_names { const char *data, *scale, *zero, *index; };

static const struct quant_names *names_of(int32_t type)
{
	static const struct quant_names ct = { "weight_packed", "weight_scale", "weight_zero_point",
	                                       "weight_g_idx" };
	static const struct quant_names others = { "qweight", "scales", "qzeros", "g_idx" };

	return type == SR_CT4 || type == SR_NVFP4_CT ? &ct : &others;
}

static const struct safetensor *quant_tensor(struct opening *o, const char *stem, const char *name,
                                             int32_t *file)
{
	char whole[160];

	snprintf(whole, sizeof(whole), "%s%s", stem, name);
	return model_hf_tensor(o, whole, file);
}

/* A part must be [a][b] of this dtype. */
static int expect_shape(struct opening *o, const char *stem, const char *name, const struct safetensor *t,
                        const char *dtype, uint64_t a, uint64_t b)
{
	if (!t)
		return model_fail(o, -EINVAL, "tensor %s%s is missing", stem, name);
	if (dtype && strcmp(t->dtype, dtype) != 0)
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s; %s is supported", t->name, t->dtype,
		                  dtype);
	if (t->n_dims == 2 && t->dim[0] == a && t->dim[1] == b)
		return 0;
	return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " has %" PRIu32 " dimensions, [%" PRIu64
	                  "][%" PRIu64 "]; the settings of this model make it [%" PRIu64 "][%" PRIu64 "]",
	                  t->name, t->offset, t->n_dims, t->dim[0], t->dim[1], a, b);
}

/* Read the group of each input.  If groups are in order, *out stays empty, because no index is needed.
 * Out of order (desc_act, actorder), groups must still have one size. */
static int read_index(struct opening *o, const struct safetensor *t, const char *path, int fd, int32_t k,
                      int32_t group, int32_t *members, bool *in_order)
{
	int32_t got[1024];

	for (int32_t at = 0; at < k; at += 1024) {
		int32_t n = k - at < 1024 ? k - at : 1024;

		if (pread(fd, got, (size_t)n * 4, (off_t)(t->offset + 4 * (uint64_t)at)) != (ssize_t)n * 4)
			return model_fail(o, -EIO, "tensor %s at offset %" PRIu64 " cannot be read from %s",
			                  t->name, t->offset, path);
		for (int32_t i = 0; i < n; i++) {
			if (got[i] < 0 || got[i] >= k / group)
				return model_fail(o, -EINVAL, "tensor %s puts input %d into group %d; there are %d",
				                  t->name, at + i, got[i], k / group);
			members[got[i]]++;
			*in_order &= got[i] == (at + i) / group;
		}
	}
	for (int32_t g = 0; g < k / group; g++)
		if (members[g] != group)
			return model_fail(o, -ENOTSUP, "tensor %s puts %d inputs into group %d; groups of one size, %d "
			                  "here, are supported", t->name, members[g], g, group);
	return 0;
}

static int find_index(struct opening *o, const struct safetensor *t, int32_t file, int32_t k, int32_t group,
                      struct sr_extent *out)
{
	int32_t *members;
	bool in_order = true;
	int fd, rc;

	if (strcmp(t->dtype, "I32") != 0 || t->n_dims != 1 || t->dim[0] != (uint64_t)k)
		return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " is not I32 [%d]", t->name,
		                  t->offset, k);
	members = calloc((size_t)(k / group), sizeof(*members));
	if (!members)
		return model_no_memory(o);
	fd = open(o->md->file[file], O_RDONLY | O_CLOEXEC);
	rc = read_index(o, t, o->md->file[file], fd, k, group, members, &in_order);
	free(members);
	if (fd >= 0)
		close(fd);
	if (!rc && !in_order)
		*out = (struct sr_extent){ t->offset, t->bytes, file };
	return rc;
}

static int scale_type(const char *dtype)
{
	return strcmp(dtype, "F16") == 0 ? SR_F16 : strcmp(dtype, "BF16") == 0 ? SR_BF16
	     : strcmp(dtype, "F32") == 0 ? SR_F32 : SR_NONE;
}

/* Fill f except for the data, whose shape gives n x k. */
static int find_scales(struct opening *o, const char *stem, uint64_t n, uint64_t k, struct found_tensor *f)
{
	const struct quant_names *p = names_of(f->type);
	uint64_t group = f->group ? (uint64_t)f->group : k, groups = k / group, words = (n + 7) / 8;
	bool ct = f->type == SR_CT4;
	const struct safetensor *t;
	int32_t file;
	int rc;

	if (k % group || (n % 8 && !ct))
		return model_fail(o, -ENOTSUP, "tensor %s%s is of %" PRIu64 " outputs and %" PRIu64
		                  " inputs, which 8 outputs to a word and groups of %" PRIu64 " do not divide",
		                  stem, p->data, n, k, group);
	t = quant_tensor(o, stem, p->scale, &file);
	if ((rc = expect_shape(o, stem, p->scale, t, NULL, ct ? n : groups, ct ? groups : n)) != 0)
		return rc;
	f->scale_type = scale_type(t->dtype);
	if (f->scale_type == SR_NONE)
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s; F16, BF16 and F32 are supported",
		                  t->name,
		                  t->dtype);
	f->scale = (struct sr_extent){ t->offset, t->bytes, file };
	if (o->quant.zeros) {
		t = quant_tensor(o, stem, p->zero, &file);
		if ((rc = expect_shape(o, stem, p->zero, t, "I32", ct ? words : groups, ct ? groups : words)) != 0)
			return rc;
		f->zero = (struct sr_extent){ t->offset, t->bytes, file };
	}
	t = quant_tensor(o, stem, p->index, &file);
	return t ? find_index(o, t, file, (int32_t)k, (int32_t)group, &f->index) : 0;
}

int model_find_quantized(struct opening *o, const char *name, struct found_tensor *f)
{
	const struct quant_names *p = names_of(o->quant.type);
	size_t len = strlen(name);
	const struct safetensor *t;
	char stem[128];
	uint64_t n, k;
	int32_t file;

	assert(len > 7 && len < sizeof(stem));  /* name is from models/open.c's table */
	if (!o->quant.type || strcmp(name + len - 7, ".weight") != 0)
		return 1;
	snprintf(stem, sizeof(stem), "%.*s", (int)len - 6, name);
	t = quant_tensor(o, stem, p->data, &file);
	if (!t)
		return 1;
	if (o->quant.type == SR_NVFP4_CT)
		return model_find_nvfp4(o, name, t, file, f);
	f->type = o->quant.type;
	f->group = o->quant.group;
	f->type_name = t->dtype;
	if (strcmp(t->dtype, "I32") != 0 || t->n_dims != 2 || t->dim[0] > 1 << 24 || t->dim[1] > 1 << 24)
		return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " is of type %s and has %" PRIu32
		                  " dimensions; it must be an I32 matrix of at most %d by %d", t->name, t->offset,
		                  t->dtype, t->n_dims, 1 << 24, 1 << 24);
	n = t->dim[f->type == SR_CT4 ? 0 : 1] * (f->type == SR_AWQ4 ? 8 : 1);
	k = t->dim[f->type == SR_CT4 ? 1 : 0] * (f->type == SR_AWQ4 ? 1 : 8);
	if (!n || !k)
		return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " is empty", t->name, t->offset);
	f->n_dims = 2;
	f->dim[0] = n;
	f->dim[1] = k;
	f->data = (struct sr_extent){ t->offset, t->bytes, file };
	if (f->type == SR_CT4)
		quant_tensor(o, stem, "weight_shape", &file);
	return find_scales(o, stem, n, k, f);
}

/* Find the scales of a matrix in e4m3; their shape shows what each is for. */
int model_find_f8(struct opening *o, const char *name, struct found_tensor *f)
{
	const struct safetensor *t;
	uint64_t n = f->dim[0], k = f->dim[1], bn, bk;
	size_t len = strlen(name);
	int32_t file, unused;
	char stem[128];
	bool column;

	assert(len > 7 && len < sizeof(stem));
	if (f->n_dims != 2 || !n || !k || n > 1 << 24 || k > 1 << 24 || strcmp(name + len - 7, ".weight") != 0)
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s, which is supported for matrices", name, f->type_name);
	snprintf(stem, sizeof(stem), "%.*s", (int)len - 6, name);
	quant_tensor(o, stem, "input_scale", &unused);
	t = quant_tensor(o, stem, "weight_scale", &file);
	if (!t)
		t = quant_tensor(o, stem, "weight_scale_inv", &file);
	if (!t)
		return model_fail(o, -EINVAL, "tensor %sweight_scale is missing", stem);
	f->scale_type = scale_type(t->dtype);
	if (f->scale_type == SR_NONE)
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s; F16, BF16 and F32 are supported", t->name,
		                  t->dtype);
	f->scale = (struct sr_extent){ t->offset, t->bytes, file };
	column = t->n_dims == 1 || (t->n_dims == 2 && t->dim[1] == 1);
	if (t->n_dims == 0 || (column && t->dim[0] == 1))
		return 0;                          /* one for the matrix */
	f->group_n = 1;
	if (column && t->dim[0] == n)
		return 0;                          /* one per output */
	f->group_n = o->quant.group_n;
	f->group = o->quant.group;
	bn = (uint64_t)f->group_n;
	bk = (uint64_t)f->group;
	if (!bn)
		return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " has %" PRIu32 " dimensions, the first "
		                  "of %" PRIu64 "; a scale for all or for each of %" PRIu64 " outputs is supported",
		                  t->name, t->offset, t->n_dims, t->dim[0], n);
	if (k % bk)
		return model_fail(o, -ENOTSUP, "tensor %s has %" PRIu64 " inputs, which blocks of %" PRIu64
		                  " do not divide", name, k, bk);
	return expect_shape(o, stem, t->name + strlen(stem), t, NULL, (n + bn - 1) / bn, k / bk);
}
