/* models/tensors.c - finds and checks every tensor of a model by one table that has its two names (GGUF's and
 * Hugging Face's) and its shape.
 *
 *	tensors    each line of `whole` and `layer`        -> lookup, check type and shape, extent
 *	leftovers  a tensor that no line took is refused: ignoring it would compute something else
 *
 * Weights are not read here.
 */
#include "impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- types ---------------------------------------------------------------------------------- */

const struct tensor_type model_types[MODEL_TYPES] = {
	{ SR_F32,  "F32",   0, "F32" }, { SR_F16,  "F16",   1, "F16" }, { SR_BF16, "BF16", 30, "BF16" },
	{ SR_Q8_0, "Q8_0",  8, NULL },  { SR_Q4_0, "Q4_0",  2, NULL },  { SR_Q4_1, "Q4_1",  3, NULL },
	{ SR_Q5_0, "Q5_0",  6, NULL },  { SR_Q5_1, "Q5_1",  7, NULL },  { SR_Q2_K, "Q2_K", 10, NULL },
	{ SR_Q3_K, "Q3_K", 11, NULL },  { SR_Q4_K, "Q4_K", 12, NULL },  { SR_Q5_K, "Q5_K", 13, NULL },
	{ SR_Q6_K, "Q6_K", 14, NULL },  { SR_AWQ4, "AWQ",   -1, NULL }, { SR_GPTQ4, "GPTQ", -1, NULL },
	{ SR_GPTQ4_V2, "GPTQ v2", -1, NULL }, { SR_CT4, "packed int4", -1, NULL },
	{ SR_F8,   "FP8",  -1, "F8_E4M3" }, { SR_IQ4_NL, "IQ4_NL", 20, NULL }, { SR_IQ4_XS, "IQ4_XS", 23, NULL },
	{ SR_MXFP4, "MXFP4", 39, NULL }, { SR_I8, "int8", -1, "I8" }, { SR_IQ2_XXS, "IQ2_XXS", 16, NULL },
	{ SR_IQ2_XS, "IQ2_XS", 17, NULL }, { SR_IQ2_S, "IQ2_S", 22, NULL }, { SR_IQ3_XXS, "IQ3_XXS", 18, NULL },
	{ SR_IQ3_S, "IQ3_S", 21, NULL }, { SR_NVFP4, "NVFP4", 40, NULL }, { SR_NVFP4_CT, "NVFP4", -1, NULL },
};

const char *model_type_name(int32_t type)
{
	for (int i = 0; i < MODEL_TYPES; i++)
		if (model_types[i].type == type)
			return model_types[i].name;
	return "none";
}

/* ---- the tensors of a model and their shapes ------------------------------------------------ */

/* Q: of all query heads; KV: of all keys, or values; E: of one head. */
enum spec_size { ONE, ZERO, sD, sQ, sKV, sE, sF, sV, sQK, sQKV, s2F, sH, sQR, sQB, sKA, sLatent, sO };

/* A line counts if the model has all of `needs` and nothing of `lacks`.  `whole` > ONE: these are rows of a fused
 * matrix of so many, from row `from` on. */
struct tensor_spec {
	const char *gguf, *hf;
	size_t at;
	uint8_t n, k;
	unsigned needs, lacks;
	uint8_t whole, from;
};

#define AT(field) offsetof(struct sr_model, field)
static const struct tensor_spec whole_specs[] = {   /* Hugging Face: after "model.", but the head */
	{ "token_embd.weight",  "embed_tokens.weight", AT(embed),     sV,  sD, 0, 0, 0, 0 },
	{ "output_norm.weight", "norm.weight",         AT(norm),      ONE, sD, 0, 0, 0, 0 },
	{ "output_norm.bias",   "norm.bias",           AT(norm_bias), ONE, sD, NORM_BIAS, 0, 0, 0 },
	{ "output.weight",      "lm_head.weight",      AT(head),      sV,  sD, UNTIED, 0, 0, 0 },
};
#undef AT

#define AT(field) offsetof(struct sr_layer, field)
static const struct tensor_spec layer_specs[] = {   /* names after "blk.N." and "model.layers.N." */
	{ "attn_norm.weight",   "input_layernorm.weight",    AT(norm1), ONE, sD, 0, NO_PRE_NORM, 0, 0 },
	{ "attn_norm.bias",     "input_layernorm.bias",      AT(norm1_bias), ONE, sD, NORM_BIAS, NO_PRE_NORM, 0, 0 },
	{ "attn_q.weight",      "self_attn.q_proj.weight",   AT(q),      sQ, sD, 0, FUSED_QKV | O_GATE | LATENT, 0, 0 },
	{ "attn_k.weight",      "self_attn.k_proj.weight",   AT(k),     sKV, sD, 0, FUSED_QKV | LATENT, 0, 0 },
	{ "attn_v.weight",      "self_attn.v_proj.weight",   AT(v),     sKV, sD, 0, FUSED_QKV | LATENT, 0, 0 },
	{ "attn_qkv.weight",    "self_attn.qkv_proj.weight", AT(q),      sQ, sD, FUSED_QKV, 0, sQKV, ZERO },
	{ "attn_qkv.weight",    "self_attn.qkv_proj.weight", AT(k),     sKV, sD, FUSED_QKV, 0, sQKV, sQ },
	{ "attn_qkv.weight",    "self_attn.qkv_proj.weight", AT(v),     sKV, sD, FUSED_QKV, 0, sQKV, sQK },
	{ "attn_output.weight", "self_attn.o_proj.weight",   AT(o),      sD, sO, 0, 0, 0, 0 },
	{ "attn_q_a.weight",    "self_attn.q_a_proj.weight", AT(q_a),   sQR, sD, Q_RANK, 0, 0, 0 },
	{ "attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", AT(q_a_norm), ONE, sQR, Q_RANK, 0, 0, 0 },
	{ "attn_q_b.weight",    "self_attn.q_b_proj.weight", AT(q),     sQB, sQR, Q_RANK, 0, 0, 0 },
	{ "attn_q.weight",      "self_attn.q_proj.weight",   AT(q),     sQB, sD, LATENT, Q_RANK, 0, 0 },
	{ "attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", AT(kv_a), sKA, sD, LATENT, 0, 0, 0 },
	{ "attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", AT(kv_a_norm), ONE, sLatent, LATENT, 0, 0, 0 },
	{ "attn_q.bias",        "self_attn.q_proj.bias",     AT(q_bias), ONE, sQ, QKV_BIAS, 0, 0, 0 },
	{ "attn_k.bias",        "self_attn.k_proj.bias",     AT(k_bias), ONE, sKV, QKV_BIAS, 0, 0, 0 },
	{ "attn_v.bias",        "self_attn.v_proj.bias",     AT(v_bias), ONE, sKV, QKV_BIAS, 0, 0, 0 },
	{ "attn_output.bias",   "self_attn.o_proj.bias",     AT(o_bias), ONE, sD, O_BIAS, 0, 0, 0 },
	{ "attn_q_norm.weight", "self_attn.q_norm.weight",   AT(q_norm), ONE, sE, QK_NORM, ROW_NORM | HUNYUAN_NAMES, 0, 0 },
	{ "attn_k_norm.weight", "self_attn.k_norm.weight",   AT(k_norm), ONE, sE, QK_NORM, ROW_NORM | HUNYUAN_NAMES, 0, 0 },
	{ "attn_q_norm.weight", "self_attn.query_layernorm.weight", AT(q_norm), ONE, sE, HUNYUAN_NAMES, 0, 0, 0 },
	{ "attn_k_norm.weight", "self_attn.key_layernorm.weight",   AT(k_norm), ONE, sE, HUNYUAN_NAMES, 0, 0, 0 },
	{ "attn_q_norm.weight", "self_attn.q_norm.weight",   AT(q_norm), ONE, sQ, ROW_NORM, 0, 0, 0 },
	{ "attn_k_norm.weight", "self_attn.k_norm.weight",   AT(k_norm), ONE, sKV, ROW_NORM, 0, 0, 0 },
	/* What lies between attention and feed-forward: one name, two meanings. */
	{ "ffn_norm.weight", "post_attention_layernorm.weight",  AT(norm2), ONE, sD, 0, POST_NORM | ONE_NORM | POST_IS_NORM2, 0, 0 },
	{ "post_attention_norm.weight", "post_attention_layernorm.weight", AT(norm2), ONE, sD, POST_IS_NORM2, 0, 0, 0 },
	{ "attn_sinks.weight", "self_attn.sinks",        AT(sinks), ONE, sH, SINKS, 0, 0, 0 },
	{ "ffn_norm.bias",   "post_attention_layernorm.bias",    AT(norm2_bias), ONE, sD, NORM_BIAS, ONE_NORM, 0, 0 },
	{ "ffn_norm.weight", "pre_feedforward_layernorm.weight", AT(norm2), ONE, sD, POST_NORM, NO_PRE_NORM | GLM_NAMES, 0, 0 },
	{ "ffn_norm.weight", "post_attention_layernorm.weight",  AT(norm2), ONE, sD, POST_NORM | GLM_NAMES, 0, 0, 0 },
	{ "post_attention_norm.weight", "post_attention_layernorm.weight", AT(post1), ONE, sD, POST_NORM, GLM_NAMES, 0, 0 },
	{ "post_attention_norm.weight", "post_self_attn_layernorm.weight", AT(post1), ONE, sD, POST_NORM | GLM_NAMES, 0, 0, 0 },
	{ "post_ffw_norm.weight", "post_feedforward_layernorm.weight", AT(post2), ONE, sD, POST_NORM, GLM_NAMES, 0, 0 },
	{ "post_ffw_norm.weight", "post_mlp_layernorm.weight",       AT(post2), ONE, sD, POST_NORM | GLM_NAMES, 0, 0, 0 },
	{ "ffn_gate.weight",    "mlp.gate_proj.weight",      AT(gate),   sF, sD, 0, NO_GATE | FUSED_UP | LLAMA4_NAMES, 0, 0 },
	{ "ffn_gate.weight",    "feed_forward.gate_proj.weight", AT(gate), sF, sD, LLAMA4_NAMES, 0, 0, 0 },
	{ "ffn_up.weight",      "mlp.up_proj.weight",        AT(up),     sF, sD, 0, FUSED_UP | LLAMA4_NAMES, 0, 0 },
	{ "ffn_up.weight",      "feed_forward.up_proj.weight", AT(up), sF, sD, LLAMA4_NAMES, 0, 0, 0 },
	{ "ffn_up.weight",      "mlp.gate_up_proj.weight",   AT(gate),   sF, sD, FUSED_UP, 0, s2F, ZERO },
	{ "ffn_up.weight",      "mlp.gate_up_proj.weight",   AT(up),     sF, sD, FUSED_UP, 0, s2F, sF },
	{ "ffn_down.weight",    "mlp.down_proj.weight",      AT(down),   sD, sF, 0, LLAMA4_NAMES, 0, 0 },
	{ "ffn_down.weight",    "feed_forward.down_proj.weight", AT(down), sD, sF, LLAMA4_NAMES, 0, 0, 0 },
	{ "ffn_gate.bias",      "mlp.gate_proj.bias",        AT(gate_bias), ONE, sF, FFN_BIAS, NO_GATE, 0, 0 },
	{ "ffn_up.bias",        "mlp.up_proj.bias",          AT(up_bias), ONE, sF, FFN_BIAS, 0, 0, 0 },
	{ "ffn_down.bias",      "mlp.down_proj.bias",        AT(down_bias), ONE, sD, FFN_BIAS, 0, 0, 0 },
};
#undef AT
#define N_WHOLE ((int)(sizeof(whole_specs) / sizeof(*whole_specs)))
#define N_LAYER ((int)(sizeof(layer_specs) / sizeof(*layer_specs)))

static struct sr_tensor *tensor_at(void *base, const struct tensor_spec *s)
{
	return (struct sr_tensor *)((char *)base + s->at);
}

/* In layer l; -1: of the whole model. */
static int32_t size_of(const struct sr_model *m, int32_t l, uint8_t size)
{
	const struct sr_attn *kind = kind_of(m, l < 0 ? 0 : l);
	const int32_t q = kind->n_heads * kind->head_dim, kv = kind->n_kv_heads * kind->head_dim;
	const int32_t d_ff = m->layer[l < 0 ? 0 : l].d_ff;
	const int32_t of[] = { 1, 0, m->d_model, q, kv, kind->head_dim, d_ff, m->n_vocab, q + kv, q + 2 * kv, 2 * d_ff,
	                       kind->n_heads, kind->q_rank, kind->n_heads * (kind->q_dim + kind->head_dim - kind->latent),
	                       kind->head_dim, kind->latent, kind->latent ? kind->n_heads * kind->v_dim : q };

	return of[size];
}

static bool counts(const struct opening *o, const struct tensor_spec *s)
{
	return (o->has & s->needs) == s->needs && !(o->has & s->lacks);
}

/* Of a feed-forward part without experts. */
static bool of_ffn(const struct tensor_spec *s)
{
	static const size_t fields[] = {
		offsetof(struct sr_layer, gate), offsetof(struct sr_layer, up), offsetof(struct sr_layer, down),
		offsetof(struct sr_layer, gate_bias), offsetof(struct sr_layer, up_bias),
		offsetof(struct sr_layer, down_bias),
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		if (s->at == fields[i])
			return true;
	return false;
}

int model_cut_rows(struct opening *o, const char *name, struct found_tensor *f, uint64_t whole, uint64_t from,
                   uint64_t n)
{
	uint64_t each = f->type == SR_CT4 ? 1 : (uint64_t)f->group_n, bytes = f->data.bytes / whole;
	bool words = f->zero.bytes || f->type == SR_AWQ4 || f->type == SR_GPTQ4 || f->type == SR_GPTQ4_V2;

	if (words || f->index.bytes) {         /* eight outputs to a word, or words of inputs: all of it is read */
		f->outputs = (int32_t)whole;
		f->first = (int32_t)from;
		return 0;
	}
	if (f->scale.bytes && each && (from % each || n % each))
		return model_fail(o, -ENOTSUP, "tensor %s has several matrices in one, which is not supported for "
		                  "quantized weights of type %s with one scale for %" PRIu64 " outputs", name, f->type_name, each);
	f->data = (struct sr_extent){ f->data.offset + from * bytes, n * bytes, f->data.file };
	if (f->scale.bytes && each) {
		bytes = f->scale.bytes / ((whole + each - 1) / each);
		f->scale = (struct sr_extent){ f->scale.offset + from / each * bytes, n / each * bytes, f->scale.file };
	}
	return 0;
}

/* Of attention, but for the norm before it. */
static bool of_attention(const struct tensor_spec *s)
{
	static const size_t fields[] = {
		offsetof(struct sr_layer, q), offsetof(struct sr_layer, k), offsetof(struct sr_layer, v),
		offsetof(struct sr_layer, o), offsetof(struct sr_layer, q_bias), offsetof(struct sr_layer, k_bias),
		offsetof(struct sr_layer, v_bias), offsetof(struct sr_layer, o_bias), offsetof(struct sr_layer, q_norm),
		offsetof(struct sr_layer, k_norm), offsetof(struct sr_layer, sinks),
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		if (s->at == fields[i])
			return true;
	return false;
}

/* Does another table have this line's tensor of layer l, or is there none? */
static bool not_here(const struct sr_layer *y, const struct tensor_spec *s)
{
	return (y->ffn == SR_EXPERTS && of_ffn(s)) || (y->mixer == SR_DELTA && of_attention(s));
}

/* Keys and values that layer l does not have: it reads those of another one, or its values are its keys. */
static bool no_kv(const struct opening *o, int32_t l, const struct tensor_spec *s)
{
	bool v = s->at == offsetof(struct sr_layer, v), k = s->at == offsetof(struct sr_layer, k) ||
		s->at == offsetof(struct sr_layer, k_norm);

	return ((v || k) && o->m->layer[l].kv_back) || (v && kind_of(o->m, l)->k_is_v);
}

/* Make up a bf16 tensor: norms are ones, everything else small random numbers. */
static int find_dummy(struct opening *o, const struct tensor_spec *s, const struct sr_tensor *t,
                      struct found_tensor *f)
{
	uint64_t n = (uint64_t)t->n, k = (uint64_t)t->k;
	bool norm = strstr(s->gguf, "norm") != NULL;

	*f = (struct found_tensor){ .type = SR_BF16, .type_name = "BF16", .n_dims = s->n == ONE ? 1 : 2,
	                            .dim = { s->n == ONE ? k : n, k } };
	f->data = (struct sr_extent){ o->made, n * k * 2, norm ? MODEL_ONES : MODEL_RANDOM };
	o->made += n * k * 2;
	return 0;
}

static int check_tensor(struct opening *o, const struct tensor_spec *s, int32_t n, int32_t k,
                        const char *name, const struct found_tensor *f)
{

	if (f->type == SR_NONE)
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s; supported are F32, F16, BF16%s",
		                  name, f->type_name,
		                  o->g ? ", Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ2, IQ3, IQ4, MXFP4, NVFP4" : "");
	if (s->n == ONE && f->type > SR_BF16)
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s; a vector must be F32, F16 or BF16",
		                  name, f->type_name);
	if (s->n == ONE ? f->n_dims == 1 && f->dim[0] == (uint64_t)k
	                : f->n_dims == 2 && f->dim[0] == (uint64_t)n && f->dim[1] == (uint64_t)k)
		return 0;
	if (s->n == ONE)
		return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " has %" PRIu32 " dimensions, "
		                  "the first of %" PRIu64 "; the settings of this model make it [%d]", name,
		                  f->data.offset, f->n_dims, f->dim[0], k);
	return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " has %" PRIu32 " dimensions, [%" PRIu64
	                  "][%" PRIu64 "]; the settings of this model make it [%d][%d]", name, f->data.offset,
	                  f->n_dims, f->dim[0], f->dim[1], n, k);
}

/* The name of line s in the files. */
static void name_of(const struct opening *o, const struct tensor_spec *s, int l, char *name, size_t n)
{
	bool head = s->at == offsetof(struct sr_model, head);

	if (l < 0 && o->config)
		snprintf(name, n, "%s%s", head ? o->head_prefix : o->prefix, s->hf);
	else if (l < 0)
		snprintf(name, n, "%s", s->gguf);
	else if (o->config)
		snprintf(name, n, "%slayers.%d.%s", o->prefix, l, s->hf);
	else
		snprintf(name, n, "blk.%d.%s", l, s->gguf);
}

/* Find the tensor of line s, for layer l or the whole model (-1), and put it into *t. */
static int take_tensor(struct opening *o, const struct tensor_spec *s, int l, struct sr_tensor *t)
{
	bool fused = s->whole > ONE && !o->dummy;
	struct found_tensor f = { .type = SR_NONE };
	char name[128];
	double part;
	int rc;

	if (!counts(o, s) || (l >= 0 && (not_here(&o->m->layer[l], s) || no_kv(o, l, s))))
		return 0;
	name_of(o, s, l, name, sizeof(name));
	t->n = size_of(o->m, l, s->n);
	t->k = size_of(o->m, l, s->k);
	t->count = 1;
	rc = o->dummy ? find_dummy(o, s, t, &f)
	   : o->g     ? model_find_gguf(o, name, &f)
	              : model_find_hf(o, name, &f);
	if (rc == 1)
		return model_fail(o, -EINVAL, "tensor %s is missing", name);
	if (rc)
		return rc;
	rc = check_tensor(o, s, fused ? size_of(o->m, l, s->whole) : t->n, t->k, name, &f);
	if (!rc && fused)
		rc = model_cut_rows(o, name, &f, (uint64_t)size_of(o->m, l, s->whole),
		                    (uint64_t)size_of(o->m, l, s->from), (uint64_t)t->n);
	if (rc)
		return rc;
	if (o->has & LESS_ONE && o->st && strstr(s->hf, "norm.weight"))
		t->add = 1;
	t->name = strdup(name);
	if (!t->name)
		return model_no_memory(o);
	t->type = f.type;
	t->data = f.data;
	t->scale = f.scale;
	t->zero = f.zero;
	t->index = f.index;
	t->group = f.group;
	t->group_n = f.group_n;
	t->scale_type = f.scale_type;
	t->outputs = f.outputs;
	t->first = f.first;
	t->step = f.outputs ? 1 : 0;
	part = f.outputs ? (double)t->n / f.outputs : 1;
	o->md->weight_bytes += (uint64_t)((double)(f.data.bytes + f.scale.bytes + f.zero.bytes) * part);
	return 0;
}

/* Tensors without meaning, or that only repeat the settings.  Some writers of GPTQ give every matrix a
 * bias, with zeros where the architecture has none; vLLM skips those, too. */
static bool harmless(struct opening *o, const char *name, size_t n)
{
	static const char *const ends[] = { "rope_freqs.weight", "rope_factors_long.weight",
	                                    "rope_factors_short.weight", "rotary_emb.inv_freq", "lm_head.weight" };

	for (int i = 0; i < 5; i++) {
		size_t len = strlen(ends[i]);

		if (n >= len && memcmp(name + n - len, ends[i], len) == 0)
			return i < 4 || !(o->has & UNTIED);
	}
	return (o->quant.type == SR_GPTQ4 || o->quant.type == SR_GPTQ4_V2) && n > 10 &&
	       strcmp(name + n - 10, "_proj.bias") == 0;
}

/* Parts of a model that serve other ends than its text: towers for images and sound, beside a text_config. */
static bool of_tower(const struct opening *o, const char *name)
{
	static const char *const begins[] = {
		"vision_tower.", "model.vision_tower.", "visual.", "model.visual.", "multi_modal_projector.",
		"model.multi_modal_projector.", "audio_tower.", "model.audio_tower.", "model.embed_vision.",
		"model.embed_audio.", "vision_model.", "model.vision_model.", "patch_merger.", "vision_encoder.",
	};

	for (size_t i = 0; i < sizeof(begins) / sizeof(*begins) && o->outer; i++)
		if (strncmp(name, begins[i], strlen(begins[i])) == 0)
			return true;
	return false;
}

/* Layers behind the last, which only draft for speculation, where the settings name some. */
static bool of_drafts(const struct opening *o, const char *name)
{
	const char *begin = o->g ? "blk." : "model.layers.";
	char *end;
	long l;

	if (!o->n_drafts || strncmp(name, begin, strlen(begin)) != 0)
		return (o->n_drafts || o->has & DELTA) && strncmp(name, "mtp.", 4) == 0; /* settings need not name those */
	l = strtol(name + strlen(begin), &end, 10);
	return *end == '.' && l >= o->m->n_layers && l < o->m->n_layers + o->n_drafts;
}

/* Keys and values of a layer that reads another one's: some files have them all the same, and nobody reads them. */
static bool of_shared_kv(const struct opening *o, const char *name)
{
	const char *at = strstr(name, "layers."), *part;
	char *end;
	long l;

	if (!(o->has & GEMMA4) || !o->config || !at)
		return false;
	l = strtol(at + 7, &end, 10);
	part = strncmp(end, ".self_attn.", 11) == 0 ? end + 11 : "";
	return l >= 0 && l < o->m->n_layers && o->m->layer[l].kv_back && (*part == 'k' || *part == 'v') &&
	       (strncmp(part + 1, "_proj.", 6) == 0 || strncmp(part + 1, "_norm.", 6) == 0);
}

static int check_leftover(struct opening *o, const char *name)
{
	bool tower = of_tower(o, name), draft = !tower && of_drafts(o, name);

	o->n_left[0] += tower;
	o->n_left[1] += draft;
	if (tower || draft || of_shared_kv(o, name) || harmless(o, name, strlen(name)))
		return 0;
	return model_fail(o, -ENOTSUP, "tensor %.100s is no part of the %s architecture as Slipring knows it",
	                  name, o->m->arch);
}

static int check_leftovers(struct opening *o)
{
	uint64_t n = o->g ? o->g->n_tensors : o->st->n_tensors;
	int rc = 0;

	for (uint64_t t = 0; t < n && !rc; t++) {
		char name[65];

		if (o->taken[t])
			continue;
		if (o->g)
			snprintf(name, sizeof(name), "%.*s", (int)o->g->tensor[t].name.n, o->g->tensor[t].name.s);
		rc = check_leftover(o, o->g ? name : o->st->all[t].t->name);
	}
	return rc;
}

static int cmp_count(const void *a, const void *b) { return ((const int *)b)[1] - ((const int *)a)[1]; }

/* Make a text such as "Q4_1 (210), F32 (61), Q8_0 (1)". */
static void count_type(int count[MODEL_TYPES][2], const struct sr_tensor *t)
{
	for (int i = 0; i < MODEL_TYPES; i++)
		if (t->type != SR_NONE && model_types[i].type == t->type)
			count[i][1] += t->each ? t->count : 1;
}

static void describe_types(struct opening *o)
{
	int count[MODEL_TYPES][2], n = 0;
	const struct sr_tensor *t;
	size_t len = 0;

	for (int i = 0; i < MODEL_TYPES; i++)
		count[i][0] = i, count[i][1] = 0;
	for (int32_t l = -1; l < o->m->n_layers; l++)
		for (int i = 0; i < (l < 0 ? N_WHOLE : N_LAYER); i++) {
			const struct tensor_spec *s = l < 0 ? &whole_specs[i] : &layer_specs[i];

			if (counts(o, s))
				count_type(count, tensor_at(l < 0 ? (void *)o->m : (void *)&o->m->layer[l], s));
		}
	for (int32_t l = 0; l < o->m->n_layers; l++) {
		for (int i = 0; (t = model_expert_tensor(&o->m->layer[l], i)) != NULL; i++)
			count_type(count, t);
		for (int i = 0; (t = model_latent_tensor(&o->m->layer[l], i)) != NULL; i++)
			count_type(count, t);
		for (int i = 0; (t = model_gemma4_tensor(o->m, l, i)) != NULL; i++)
			count_type(count, t);
		for (int i = 0; (t = model_delta_tensor(&o->m->layer[l], i)) != NULL; i++)
			count_type(count, t);
	}
	for (int i = 0; (t = model_classifier_tensor(o->m, i)) != NULL; i++)
		count_type(count, t);
	qsort(count, MODEL_TYPES, sizeof(count[0]), cmp_count);
	for (n = 0; n < MODEL_TYPES && count[n][1] && len < sizeof(o->md->stored); n++)
		len += (size_t)snprintf(o->md->stored + len, sizeof(o->md->stored) - len, "%s%s (%d)", n
		                        ? ", " : "", model_types[count[n][0]].name, count[n][1]);
}

static void describe_left(struct opening *o)
{
	if (o->n_left[0] || o->n_left[1])
		snprintf(o->md->left_out, sizeof(o->md->left_out), "%d tensors of towers, %d of layers that draft",
		         o->n_left[0], o->n_left[1]);
}

/* Of a decoder: a row for each label. */
static int take_score(struct opening *o)
{
	int rc = model_classifier_settings(o, HEAD_SCORE);

	return rc ? rc : model_take_classifier(o, HEAD_SCORE);
}

int model_take_tensors(struct opening *o)
{
	uint64_t n = o->g ? o->g->n_tensors : o->st ? o->st->n_tensors : 0;
	int rc = 0;

	o->taken = calloc(n + 1, sizeof(*o->taken));
	if (!o->taken)
		return model_no_memory(o);
	for (int i = 0; i < N_WHOLE && !rc; i++)
		rc = take_tensor(o, &whole_specs[i], -1, tensor_at(o->m, &whole_specs[i]));
	for (int32_t l = 0; l < o->m->n_layers; l++)
		for (int i = 0; i < N_LAYER && !rc; i++)
			rc = take_tensor(o, &layer_specs[i], l, tensor_at(&o->m->layer[l], &layer_specs[i]));
	for (int32_t l = 0; l < o->m->n_layers && !rc; l++)
		if (o->m->layer[l].ffn == SR_EXPERTS || o->m->layer[l].ffn == SR_BESIDE)
			rc = model_take_experts(o, l);
	if (!rc && o->has & GEMMA4)
		rc = model_take_gemma4(o);
	for (int32_t l = 0; o->has & (DELTA | O_GATE) && l < o->m->n_layers && !rc; l++)
		rc = model_take_delta(o, l);
	for (int32_t l = 0; o->has & LATENT && l < o->m->n_layers && !rc; l++)
		rc = model_take_latent(o, l);
	for (int32_t l = 0; o->st && l < o->m->n_layers && !rc; l++)
		rc = model_kv_scales(o, l);
	if (!rc && (o->scores || (o->g && gguf_tensor(o->g, "cls.output.weight"))))
		rc = take_score(o);
	if (!rc && !o->dummy)
		rc = check_leftovers(o);
	describe_types(o);
	describe_left(o);
	return rc;
}

/* Of several: its name, and where each lies. */
static void free_tensor(struct sr_tensor *t)
{
	free((void *)(uintptr_t)t->name);
	free((void *)(uintptr_t)t->each);
}

void model_free_tensors(struct model *md)
{
	for (int32_t l = -1; l < md->m.n_layers && !md->names; l++)
		for (int i = 0; i < (l < 0 ? N_WHOLE : md->m.layer ? N_LAYER : 0); i++) {
			struct sr_tensor *t = l < 0 ? tensor_at(&md->m, &whole_specs[i])
			                            : tensor_at(&md->m.layer[l], &layer_specs[i]);

			free((void *)(uintptr_t)t->name);
			t->name = NULL;                /* several lines may be of one field */
		}
	free(md->names);
	for (int32_t l = 0; md->m.layer && l < md->m.n_layers; l++) {
		struct sr_tensor *t;

		for (int i = 0; (t = model_expert_tensor(&md->m.layer[l], i)) != NULL; i++)
			free_tensor(t);
		for (int i = 0; (t = model_latent_tensor(&md->m.layer[l], i)) != NULL; i++)
			free_tensor(t);
		for (int i = 0; (t = model_gemma4_tensor(&md->m, l, i)) != NULL; i++)
			free_tensor(t);
		for (int i = 0; (t = model_delta_tensor(&md->m.layer[l], i)) != NULL; i++)
			free_tensor(t);
	}
	for (int i = 0; model_classifier_tensor(&md->m, i); i++)
		free_tensor(model_classifier_tensor(&md->m, i));
	for (int i = 0; model_gemma4_tensor(&md->m, -1, i); i++)
		free_tensor(model_gemma4_tensor(&md->m, -1, i));
}
