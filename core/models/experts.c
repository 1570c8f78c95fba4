/* models/experts.c - experts of a model: their settings, and where each one's matrices lie.
 *
 * A GGUF has one matrix of three dimensions for all experts of a layer.  Hugging Face directories have one matrix
 * for each, or gate and up of all experts in one: an enum layout.  See struct model_experts in impl.h.
 */
#include "impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPERTS_MAX 4096
#define TOP_MAX 64

/* ---- families ----------------------------------------------------------------------------------- */

#define ONE_BY_ONE .gate = "mlp.experts.%d.gate_proj.weight", .up = "mlp.experts.%d.up_proj.weight", \
	.down = "mlp.experts.%d.down_proj.weight"
#define ALL_IN_ONE .gate_up = "mlp.experts.gate_up_proj", .all_down = "mlp.experts.down_proj"
#define BLOCK_SPARSE .router = "block_sparse_moe.gate.weight", .gate = "block_sparse_moe.experts.%d.w1.weight", \
	.up = "block_sparse_moe.experts.%d.w3.weight", .down = "block_sparse_moe.experts.%d.w2.weight"
static const struct expert_names
	mixtral = { BLOCK_SPARSE },
	qwen = { .router = "mlp.gate.weight", ONE_BY_ONE, ALL_IN_ONE, .layout = LAYOUT_HALVES },
	qwen3_next = { .router = "mlp.gate.weight", ONE_BY_ONE, ALL_IN_ONE, .layout = LAYOUT_HALVES,
	               .shared = "mlp.shared_expert.", .mix = "mlp.shared_expert_gate.weight" },
	qwen2 = { .router = "mlp.gate.weight", ONE_BY_ONE, .shared = "mlp.shared_expert.",
	          .mix = "mlp.shared_expert_gate.weight" },
	glm = { .router = "mlp.gate.weight", .choice_bias = "mlp.gate.e_score_correction_bias", ONE_BY_ONE,
	        .shared = "mlp.shared_experts." },
	ernie = { .router = "mlp.gate.weight", .choice_bias = "mlp.moe_statics.e_score_correction_bias", ONE_BY_ONE,
	          .shared = "mlp.shared_experts." },
	minimax = { BLOCK_SPARSE, .choice_bias = "block_sparse_moe.e_score_correction_bias" },
	gpt_oss = { .router = "mlp.router.weight", .router_bias = "mlp.router.bias", ALL_IN_ONE,
	            .layout = LAYOUT_IN_TURN },
	granite = { .router = "block_sparse_moe.router.layer.weight", .layout = LAYOUT_HALVES,
	            .gate_up = "block_sparse_moe.input_linear.weight",
	            .all_down = "block_sparse_moe.output_linear.weight" },
	llama4 = { .router = "feed_forward.router.weight", .layout = LAYOUT_TURNED,
	           .gate = "feed_forward.experts.%d.gate_proj.weight", .up = "feed_forward.experts.%d.up_proj.weight",
	           .down = "feed_forward.experts.%d.down_proj.weight", .gate_up = "feed_forward.experts.gate_up_proj",
	           .all_down = "feed_forward.experts.down_proj", .shared = "feed_forward.shared_expert." };

static const struct expert_names
	mistral4 = { .router = "mlp.gate.weight", ONE_BY_ONE, ALL_IN_ONE, .layout = LAYOUT_HALVES,
	             .shared = "mlp.shared_experts." };

static const struct expert_names
	gemma4 = { .router = "router.proj.weight", .layout = LAYOUT_HALVES, .gate_up = "experts.gate_up_proj",
	           .all_down = "experts.down_proj" };

const struct model_experts
	experts_llama = { SR_SCORE_SOFTMAX, X_OPTIONAL | X_RENORM, &mixtral },
	experts_mixtral = { SR_SCORE_SOFTMAX, X_RENORM, &mixtral },
	experts_qwen2 = { SR_SCORE_SOFTMAX, X_SHARED, &qwen2 },
	experts_qwen3 = { SR_SCORE_SOFTMAX, X_GGUF_RENORM, &qwen },
	experts_olmoe = { SR_SCORE_SOFTMAX, 0, &qwen },
	experts_gpt_oss = { SR_SCORE_CHOSEN, X_BIASES, &gpt_oss },
	experts_glm4 = { SR_SCORE_SIGMOID, X_RENORM | X_SCALED | X_GROUPS | X_CHOICE | X_SHARED, &glm },
	experts_minimax = { SR_SCORE_SIGMOID, X_RENORM | X_CHOICE, &minimax },
	experts_granite = { SR_SCORE_CHOSEN, 0, &granite },
	experts_ernie = { SR_SCORE_SOFTMAX, X_RENORM | X_CHOICE | X_SHARED, &ernie },
	experts_gemma4 = { SR_SCORE_SOFTMAX, X_RENORM, &gemma4 },
	experts_llama4 = { SR_SCORE_SIGMOID, X_SHARED | X_BEFORE, &llama4 },
	experts_deepseek = { SR_SCORE_SIGMOID, X_SCALED | X_GROUPS | X_CHOICE | X_SHARED | X_METHOD, &glm },
	experts_deepseek2 = { SR_SCORE_SOFTMAX, X_SCALED | X_GROUPS | X_CHOICE | X_SHARED | X_METHOD, &glm },
	experts_mistral4 = { SR_SCORE_SOFTMAX, X_SCALED | X_GROUPS | X_SHARED, &mistral4 },
	experts_qwen3_next = { SR_SCORE_SOFTMAX, X_RENORM | X_SHARED, &qwen3_next },
	experts_qwen3_5 = { SR_SCORE_SOFTMAX, X_RENORM | X_SHARED | X_ALL, &qwen3_next };

/* ---- settings ----------------------------------------------------------------------------------- */

/* A number that families name differently; names that are there must agree.  1: none is. */
static int one_of(struct opening *o, const char *gguf, const char *const *hf, int32_t max, int32_t *out)
{
	int32_t found = -1;

	if (o->g)
		return model_int(o, (struct setting){ gguf, "" }, 0, max, out);
	for (; *hf; hf++) {
		int32_t v = 0;
		int rc = model_int(o, (struct setting){ "", *hf }, 0, max, &v);

		if (rc < 0)
			return rc;
		if (rc == 1)
			continue;
		if (found >= 0 && v != found)
			return model_fail(o, -EINVAL, "%s is %d, but a setting of the same meaning is %d", *hf, v, found);
		found = v;
	}
	if (found < 0)
		return 1;
	*out = found;
	return 0;
}

static int read_count(struct opening *o)
{
	static const char *const n[] = { "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", NULL };
	static const char *const top[] = { "num_experts_per_tok", "experts_per_token", "moe_k", "top_k_experts", NULL };
	struct sr_experts *x = &o->m->experts;
	int rc;

	if ((rc = one_of(o, "expert_count", n, EXPERTS_MAX, &x->n)) < 0 || !x->n)
		return rc < 0 || o->family->experts->has & X_OPTIONAL ? rc < 0 ? rc : 0
		     : model_wrong(o, (struct setting){ "expert_count", "" }, -EINVAL, "the number of experts is missing");
	if ((rc = one_of(o, "expert_used_count", top, TOP_MAX, &x->top)) < 0)
		return rc;
	if (x->top < 1 || x->top > x->n)
		return model_wrong(o, (struct setting){ "expert_used_count", "" }, -EINVAL, "%d of %d experts are to compute a "
		                   "token; 1 to %d could", x->top, x->n, x->n < TOP_MAX ? x->n : TOP_MAX);
	return 0;
}

/* Outputs of a GGUF's tensor of layer `l`: what is the last dimension but one.  0: it is missing. */
static int32_t rows_of(const struct opening *o, int32_t l, const char *name)
{
	const struct gguf_tensor *t;
	char whole[96];

	snprintf(whole, sizeof(whole), "blk.%d.%s", l, name);
	t = gguf_tensor(o->g, whole);
	return t && t->n_dims >= 2 && t->dim[1] <= 1 << 19 ? (int32_t)t->dim[1] : 0;
}

/* The widths in a GGUF are those of its tensors: converters have put wrong ones into its settings. */
static void gguf_widths(struct opening *o, int32_t first)
{
	struct sr_experts *x = &o->m->experts;
	int32_t both = rows_of(o, first, "ffn_gate_up_exps.weight");

	x->d_ff = both ? both / 2 : rows_of(o, first, "ffn_up_exps.weight");
	x->d_shared = rows_of(o, first, "ffn_up_shexp.weight");
	model_note_asked(o, false, "expert_feed_forward_length");
	model_note_asked(o, false, "expert_shared_feed_forward_length");
	model_note_asked(o, false, "expert_shared_count");
}

static int hf_widths(struct opening *o)
{
	static const char *const shared[] = { "n_shared_experts", "moe_num_shared_experts", NULL };
	const unsigned has = o->family->experts->has;
	struct sr_experts *x = &o->m->experts;
	int32_t n = !!(has & X_SHARED);
	int rc;

	x->d_ff = o->m->d_ff;
	if ((rc = model_int(o, (struct setting){ "", "moe_intermediate_size" }, 1, 1 << 19, &x->d_ff)) < 0 ||
	    (has & X_SHARED && (rc = one_of(o, "", shared, 64, &n)) < 0))
		return rc;
	if (n && x->d_ff > (1 << 19) / n)
		return model_fail(o, -EINVAL, "%d shared experts of width %d are too wide", n, x->d_ff);
	x->d_shared = n * x->d_ff;
	rc = has & X_SHARED ? model_int(o, (struct setting){ "", "shared_expert_intermediate_size" }, 0, 1 << 19,
	                                &x->d_shared) : 0;
	return rc < 0 ? rc : 0;
}

/* A GGUF without a function of scores: those with a choice bias have sigmoids, older ones (V2) softmax. */
static int32_t gguf_score(const struct opening *o)
{
	char name[64];

	for (int32_t l = 0; l < o->m->n_layers; l++) {
		snprintf(name, sizeof(name), "blk.%d.exp_probs_b.bias", l);
		if (gguf_tensor(o->g, name))
			return SR_SCORE_SIGMOID;
	}
	return SR_SCORE_SOFTMAX;
}

/* DeepSeek's: noaux_tc has a choice bias; greedy has none, and no groups; group_limited_greedy has groups that are as
 * good as their best expert. */
static int read_method(struct opening *o)
{
	const char *func = json_string_value(model_ask(o, o->config, "scoring_func"));
	const char *method = json_string_value(model_ask(o, o->config, "topk_method"));
	struct sr_experts *x = &o->m->experts;
	char key[96];

	if (o->g) {
		snprintf(key, sizeof(key), "%s.expert_gating_func", o->m->arch);
		x->score = gguf_find(o->g, key) ? x->score : gguf_score(o);
		return 0;
	}
	if (func && strcmp(func, "sigmoid") != 0 && strcmp(func, "softmax") != 0)
		return model_fail(o, -ENOTSUP, "scoring_func %.40s is not supported; supported are sigmoid, softmax", func);
	if (func)
		x->score = strcmp(func, "sigmoid") == 0 ? SR_SCORE_SIGMOID : SR_SCORE_SOFTMAX;
	if (!method || (strcmp(method, "noaux_tc") != 0 && strcmp(method, "greedy") != 0 &&
	                strcmp(method, "group_limited_greedy") != 0))
		return model_fail(o, -ENOTSUP, "topk_method %.40s is not supported; supported are noaux_tc, greedy, "
		                  "group_limited_greedy", method ? method : "(none)");
	if (strcmp(method, "noaux_tc") != 0)
		o->has |= NO_CHOICE;
	return 0;
}

static int read_weights(struct opening *o)
{
	const unsigned has = o->family->experts->has;
	struct sr_experts *x = &o->m->experts;
	bool renorm = has & X_RENORM || (o->g && has & X_GGUF_RENORM);
	int32_t gating = 0;
	int rc;

	x->score = o->family->experts->score;
	x->scale = 1;
	x->before = !!(has & X_BEFORE);
	if ((rc = model_bool(o, (struct setting){ "expert_weights_norm", "norm_topk_prob" }, &renorm)) < 0 ||
	    (o->g && (rc = model_int(o, (struct setting){ "expert_gating_func", "" }, 0, 3, &gating)) < 0))
		return rc;
	x->renorm = renorm;
	if (gating)
		x->score = gating == 1 ? SR_SCORE_SOFTMAX : gating == 2 ? SR_SCORE_SIGMOID : SR_SCORE_CHOSEN;
	if (has & X_SCALED)
		rc = model_float(o, (struct setting){ "expert_weights_scale", "routed_scaling_factor" }, 0, 1e4, &x->scale);
	if (has & X_METHOD && rc >= 0)
		return read_method(o);
	if (o->config && rc >= 0 && x->score != SR_SCORE_CHOSEN)
		rc = model_must(o, "scoring_func", x->score == SR_SCORE_SIGMOID ? "sigmoid" : "softmax");
	return rc < 0 ? rc : 0;
}

static int read_groups(struct opening *o)
{
	const char *method = json_string_value(json_object_get(o->config, "topk_method"));
	struct sr_experts *x = &o->m->experts;
	int rc;

	if (!(o->family->experts->has & X_GROUPS))
		return 0;
	x->groups_top = 1;
	if ((rc = model_int(o, (struct setting){ "expert_group_count", "n_group" }, 0, SR_EXPERT_GROUPS, &x->groups)) < 0 ||
	    (rc = model_int(o, (struct setting){ "expert_group_used_count", "topk_group" }, 0, SR_EXPERT_GROUPS,
	                    &x->groups_top)) < 0)
		return rc;
	x->group_sum = o->family->experts->has & X_METHOD && x->score == SR_SCORE_SOFTMAX ? 1 : 2;
	if (o->family->experts->has & X_METHOD && method && strcmp(method, "greedy") == 0)
		x->groups = 0;
	if (x->groups < 2 || x->groups_top >= x->groups) {
		x->groups = 0;
		return 0;
	}
	if (x->n % x->groups || x->n / x->groups < 2 || x->groups_top < 1 || x->groups_top * (x->n / x->groups) < x->top)
		return model_wrong(o, (struct setting){ "expert_group_count", "n_group" }, -EINVAL, "%d experts in %d groups, of "
		                   "which %d are taken, are too few for %d experts", x->n, x->groups, x->groups_top, x->top);
	return 0;
}

/* Which layers have experts: those from `first` to `last` whose number, from 1, is a multiple of `every`. */
static int choose_layers(struct opening *o, int32_t *first_with)
{
	static const char *const from[] = { "first_k_dense_replace", "moe_layer_start_index", NULL };
	static const char *const step[] = { "decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step", NULL };
	const json_t *but = o->config ? model_ask(o, o->config, "mlp_only_layers") : NULL;
	int32_t first = 0, last = -1, every = 1, n = 0;
	int rc;

	if ((rc = one_of(o, "leading_dense_block_count", from, LAYERS_MAX, &first)) < 0 ||
	    (rc = one_of(o, "interleave_moe_layer_step", step, LAYERS_MAX, &every)) < 0 ||
	    (o->config && (rc = model_int(o, (struct setting){ "", "moe_layer_end_index" }, -1, LAYERS_MAX, &last)) < 0) ||
	    (o->config && (rc = model_must(o, "moe_layer_freq", "1")) != 0))
		return rc;
	for (int32_t l = first; l < o->m->n_layers; l++) {
		bool dense = (last >= 0 && l > last) || every < 1 || (l + 1) % every;

		for (size_t i = 0; i < json_array_size(but); i++)
			dense |= json_integer_value(json_array_get(but, i)) == l;
		if (dense)
			continue;
		o->m->layer[l].ffn = o->has & GEMMA4 ? SR_BESIDE : SR_EXPERTS;
		if (!n++)
			*first_with = l;
	}
	return n ? 0 : model_wrong(o, (struct setting){ "expert_count", "" }, -EINVAL, "no layer has experts, although there "
	                           "are %d", o->m->experts.n);
}

/* Gemma 4 has experts in all layers or in none, beside another feed-forward part. */
static bool gemma4_has(struct opening *o)
{
	const struct setting block = { "", "enable_moe_block" };
	int32_t n = 0;
	bool on = false;

	if (o->config)
		return model_bool(o, block, &on) == 0 && on;
	return model_int(o, (struct setting){ "expert_count", "" }, 0, EXPERTS_MAX, &n) == 0 && n > 0;
}

int model_experts(struct opening *o)
{
	const struct model_experts *e = o->family->experts;
	struct sr_experts *x = &o->m->experts;
	int32_t first = 0;
	int rc;

	if (!e || (e->has & X_OPTIONAL && o->config) || (o->has & GEMMA4 && !gemma4_has(o)))
		return 0;
	if ((rc = read_count(o)) != 0 || !x->n || (rc = read_weights(o)) != 0 || (rc = read_groups(o)) != 0 ||
	    (rc = choose_layers(o, &first)) != 0)
		return rc;
	if (o->g)
		gguf_widths(o, first);
	else if ((rc = hf_widths(o)) != 0)
		return rc;
	if (x->d_ff < 1)
		return model_fail(o, -EINVAL, "tensor blk.%d.ffn_up_exps.weight is missing", first);
	for (int32_t l = 0; l < o->m->n_layers; l++)
		if (o->m->layer[l].ffn == SR_EXPERTS)
			o->m->layer[l].d_ff = x->d_ff > x->d_shared ? x->d_ff : x->d_shared;
	if (!o->m->d_ff)                  /* no layer is without experts */
		o->m->d_ff = o->m->layer[0].d_ff;
	return 0;
}

/* ---- tensors ------------------------------------------------------------------------------------ */

/* What is sought: a matrix [n][k] or, if n is 1, a vector. */
struct wanted {
	struct sr_tensor *t;
	int32_t l;                     /* layer */
	int32_t n, k, count;
	const char *gguf, *hf;         /* names after the layer's; %d: the number of an expert */
};

static void name_it(const struct opening *o, const struct wanted *w, int e, char *name, size_t n)
{
	char own[96];

	if (w->l < 0)
		snprintf(own, sizeof(own), "%s", o->config ? o->prefix : "");
	else
		snprintf(own, sizeof(own), o->config ? "%slayers.%d." : "%sblk.%d.", o->config ? o->prefix : "", w->l);
	snprintf(name, n, "%s", own);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(name + strlen(own), n - strlen(own), o->config ? w->hf : w->gguf, e);
#pragma GCC diagnostic pop
}

static int find(struct opening *o, const char *name, struct found_tensor *f)
{
	*f = (struct found_tensor){ .type = SR_NONE };
	return o->g ? model_find_gguf(o, name, f) : model_find_hf(o, name, f);
}

/* Made up: bf16, one after another. */
static int make_up(struct opening *o, const struct wanted *w)
{
	uint64_t bytes = (uint64_t)w->count * (uint64_t)w->n * (uint64_t)w->k * 2;

	w->t->type = SR_BF16;
	w->t->data = (struct sr_extent){ o->made, bytes, MODEL_RANDOM };
	o->made += bytes;
	o->md->weight_bytes += bytes;
	return 0;
}

/* Begin a tensor: its name, sizes and how it is stored. */
static int begin(struct opening *o, const struct wanted *w, const char *name, const struct found_tensor *f)
{
	struct sr_tensor *t = w->t;

	*t = (struct sr_tensor){ .name = strdup(name), .n = w->n, .k = w->k, .count = w->count, .type = f->type,
		.data = f->data, .scale = f->scale, .zero = f->zero, .index = f->index, .group = f->group,
		.group_n = f->group_n, .scale_type = f->scale_type };
	if (!t->name)
		return model_no_memory(o);
	if (o->dummy)
		return make_up(o, w);
	if (t->type == SR_NONE || (w->n == 1 && t->type > SR_BF16))
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s, which is not supported here", name, f->type_name);
	o->md->weight_bytes += f->data.bytes + f->scale.bytes + f->zero.bytes;
	return 0;
}

/* Its dimensions must be `dim`, outermost first; those of 1 in front may be missing. */
static int check_dims(struct opening *o, const char *name, const struct found_tensor *f, const int32_t *dim, uint32_t n)
{
	char want[80] = "", got[120] = "";
	uint32_t skip = 0;
	bool same;

	while (skip < n - 1 && dim[skip] == 1 && n - skip > f->n_dims)
		skip++;
	same = f->n_dims == n - skip;
	for (uint32_t i = 0; same && i < f->n_dims; i++)
		same = f->dim[i] == (uint64_t)dim[skip + i];
	if (same)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		snprintf(want + strlen(want), sizeof(want) - strlen(want), "[%d]", dim[i]);
	for (uint32_t i = 0; i < f->n_dims && i < 4; i++)
		snprintf(got + strlen(got), sizeof(got) - strlen(got), "[%" PRIu64 "]", f->dim[i]);
	return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " is %s; the settings of this model make it %s", name,
	                  f->data.offset, got, want);
}

/* One for all experts, or of no expert. */
static int take_one(struct opening *o, const struct wanted *w)
{
	const int32_t dim[3] = { w->count, w->n, w->k };
	struct found_tensor f;
	char name[160];
	int rc;

	name_it(o, w, 0, name, sizeof(name));
	rc = o->dummy ? 0 : find(o, name, &f);
	if (rc)
		return rc == 1 ? model_fail(o, -EINVAL, "tensor %s is missing", name) : rc;
	if (o->dummy)
		f = (struct found_tensor){ .type = SR_BF16 };
	else if (w->n == 1 && w->count > 1) /* vectors have no dimension for their one row */
		rc = check_dims(o, name, &f, (int32_t[]){ w->count, w->k }, 2);
	else
		rc = check_dims(o, name, &f, dim, 3);
	return rc ? rc : begin(o, w, name, &f);
}

int model_take_one(struct opening *o, struct sr_tensor *t, int32_t l, int32_t n, int32_t k, const char *gguf,
                   const char *hf)
{
	const struct wanted w = { t, l, n, k, 1, gguf, hf };

	return take_one(o, &w);
}

/* Memory for where each expert's part lies. */
static struct sr_stored *take_each(struct opening *o, const struct wanted *w)
{
	struct sr_stored *each = calloc((size_t)w->count, sizeof(*each));

	w->t->each = each;
	if (!each)
		model_no_memory(o);
	return each;
}

/* A tensor for each expert. */
static int take_apart(struct opening *o, const struct wanted *w)
{
	struct sr_stored *each = NULL;
	int rc = 0;

	for (int32_t e = 0; e < w->count && !rc; e++) {
		struct found_tensor f;
		char name[160];

		name_it(o, w, e, name, sizeof(name));
		rc = find(o, name, &f);
		if (rc)
			return rc == 1 ? model_fail(o, -EINVAL, "tensor %s is missing", name) : rc;
		rc = check_dims(o, name, &f, (int32_t[]){ w->n, w->k }, 2);
		if (rc)
			return rc;
		if (!e && (rc = begin(o, w, name, &f)) != 0)
			return rc;
		if (!e && !(each = take_each(o, w)))
			return -ENOMEM;
		if (e)
			o->md->weight_bytes += f.data.bytes + f.scale.bytes + f.zero.bytes;
		if (f.type != w->t->type || f.group != w->t->group || f.group_n != w->t->group_n ||
		    f.scale_type != w->t->scale_type || !f.zero.bytes != !w->t->zero.bytes ||
		    !f.index.bytes != !w->t->index.bytes)
			return model_fail(o, -ENOTSUP, "tensor %s is stored otherwise than %s: experts of a layer must be "
			                  "stored alike", name, w->t->name);
		each[e] = (struct sr_stored){ f.data, f.scale, f.zero, f.index };
	}
	return rc;
}

/* Gate or up (which: 0, 1) of all experts in one tensor. */
static int take_half(struct opening *o, const struct wanted *w, enum layout layout, int which)
{
	const bool turned = layout == LAYOUT_TURNED || layout == LAYOUT_IN_TURN;
	const int32_t rows[3] = { w->count, 2 * w->n, w->k }, columns[3] = { w->count, w->k, 2 * w->n };
	struct found_tensor f;
	struct sr_stored *each;
	char name[160];
	int rc;

	name_it(o, w, 0, name, sizeof(name));
	rc = find(o, name, &f);
	if (rc)
		return rc == 1 ? model_fail(o, -EINVAL, "tensor %s is missing", name) : rc;
	if ((rc = check_dims(o, name, &f, turned ? columns : rows, 3)) != 0 || (rc = begin(o, w, name, &f)) != 0)
		return rc;
	if (which)
		o->md->weight_bytes -= f.data.bytes;      /* counted with the gate */
	if (turned) {
		w->t->outputs = 2 * w->n;
		w->t->step = layout == LAYOUT_IN_TURN ? 2 : 1;
		w->t->first = layout == LAYOUT_IN_TURN ? which : which * w->n;
		w->t->transposed = 1;
		return 0;
	}
	if (f.scale.bytes)
		return model_fail(o, -ENOTSUP, "tensor %s has gate and up in one, with separate scales, which is not "
		                  "supported", name);
	each = take_each(o, w);
	for (int32_t e = 0; each && e < w->count; e++) {
		uint64_t half = f.data.bytes / (uint64_t)w->count / 2;

		each[e].data = (struct sr_extent){ f.data.offset + (2 * (uint64_t)e + (uint64_t)which) * half, half,
			f.data.file };
	}
	return each ? 0 : -ENOMEM;
}

/* MXFP4 of safetensors: NAME_blocks [experts][outputs][inputs / 32][16], NAME_scales.  1: there is none. */
static int take_mxfp4(struct opening *o, const struct wanted *w, int32_t outputs, int32_t first, bool counted)
{
	const int32_t groups = w->k / 32, dim[4] = { w->count, outputs, groups, 16 };
	const struct safetensor *part[2] = { NULL };
	struct found_tensor f = { .type = SR_MXFP4, .type_name = "U8" };
	char stem[160], name[176];
	int rc = 0;

	name_it(o, w, 0, stem, sizeof(stem));
	for (int i = 0; i < 2 && !rc; i++) {
		struct found_tensor g = { .type_name = "" };
		int32_t file;

		snprintf(name, sizeof(name), "%s_%s", stem, i ? "scales" : "blocks");
		part[i] = model_hf_tensor(o, name, &file);
		if (!part[i])
			return i ? model_fail(o, -EINVAL, "tensor %s is missing", name) : 1;
		g.n_dims = part[i]->n_dims < 5 ? part[i]->n_dims : 5;
		for (uint32_t d = 0; d < part[i]->n_dims && d < 4; d++)
			g.dim[d] = part[i]->dim[d];
		g.data = (struct sr_extent){ part[i]->offset, part[i]->bytes, file };
		*(i ? &f.scale : &f.data) = g.data;
		if (w->k % 32 || strcmp(part[i]->dtype, "U8") != 0)
			return model_fail(o, -ENOTSUP, "tensor %s is of type %s and has %d inputs; supported is U8, with a "
			                  "multiple of 32 inputs", name, part[i]->dtype, w->k);
		rc = check_dims(o, name, &g, dim, i ? 3 : 4);
	}
	if (rc)
		return rc;
	snprintf(name, sizeof(name), "%s_blocks", stem);
	rc = begin(o, w, name, &f);
	if (counted)
		o->md->weight_bytes -= f.data.bytes + f.scale.bytes;
	if (outputs != w->n) {
		w->t->outputs = outputs;
		w->t->first = first;
		w->t->step = 2;
	}
	return rc;
}

/* Biases of gate and up in one. */
static int take_half_bias(struct opening *o, const struct wanted *w, int which)
{
	struct wanted both = *w;
	int rc;

	if (o->dummy)
		return take_one(o, w);
	both.k = 2 * w->k;
	rc = take_one(o, &both);
	if (rc)
		return rc;
	if (which)
		o->md->weight_bytes -= w->t->data.bytes;
	w->t->k = w->k;
	w->t->outputs = 2 * w->k;
	w->t->first = which;
	w->t->step = 2;
	return 0;
}

static bool is_there(struct opening *o, const struct wanted *w)
{
	char name[160];

	name_it(o, w, 0, name, sizeof(name));
	return o->g ? gguf_tensor(o->g, name) != NULL : safetensors_lookup(o->st, name) != NULL;
}

/* Gate, up or down (which: 0, 1, 2) of the experts of a layer. */
static int take_matrix(struct opening *o, int32_t l, int which)
{
	static const char *const gguf[] = { "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight" };
	const struct model_experts *e = o->family->experts;
	const struct sr_experts *x = &o->m->experts;
	struct sr_layer *y = &o->m->layer[l];
	struct sr_tensor *const to[] = { &y->expert_gate, &y->expert_up, &y->expert_down };
	const char *const apart[] = { e->names->gate, e->names->up, e->names->down };
	int32_t D = o->m->d_model;
	struct wanted w = { .t = to[which], .l = l, .n = which < 2 ? x->d_ff : D, .k = which < 2 ? D : x->d_ff,
		.count = x->n, .gguf = gguf[which], .hf = apart[which] };
	int rc;

	if (o->dummy && !apart[which])
		w.hf = which < 2 ? e->names->gate_up : e->names->all_down;
	if (o->dummy)
		return take_one(o, &w);
	if (o->g && which < 2 && !is_there(o, &w)) {
		w.gguf = "ffn_gate_up_exps.weight";
		if (is_there(o, &w))
			return take_half(o, &w, LAYOUT_HALVES, which);
		w.gguf = gguf[which];
	}
	if (o->g)
		return take_one(o, &w);
	w.hf = which < 2 ? e->names->gate_up : e->names->all_down;
	if (e->names->layout == LAYOUT_IN_TURN && (rc = take_mxfp4(o, &w, which < 2 ? 2 * w.n : w.n, which, which == 1)) != 1)
		return rc;
	if (apart[which] && !(w.hf && is_there(o, &w))) {
		w.hf = apart[which];
		return take_apart(o, &w);
	}
	if (which < 2)
		return take_half(o, &w, e->names->layout, which);
	if (e->names->layout == LAYOUT_HALVES)
		return take_one(o, &w);
	w.n = x->d_ff;                                    /* stored as [inputs][outputs] */
	w.k = D;
	rc = take_one(o, &w);
	w.t->n = D;
	w.t->k = x->d_ff;
	w.t->transposed = 1;
	return rc;
}

static int take_shared(struct opening *o, int32_t l)
{
	const struct expert_names *names = o->family->experts->names;
	int32_t D = o->m->d_model, S = o->m->experts.d_shared;
	struct sr_layer *y = &o->m->layer[l];
	char hf[3][64];
	struct wanted w[] = {
		{ &y->shared_gate, l, S, D, 1, "ffn_gate_shexp.weight", hf[0] },
		{ &y->shared_up, l, S, D, 1, "ffn_up_shexp.weight", hf[1] },
		{ &y->shared_down, l, D, S, 1, "ffn_down_shexp.weight", hf[2] },
		{ &y->shared_mix, l, 1, D, 1, "ffn_gate_inp_shexp.weight", names->mix },
	};
	int rc = 0;

	for (int i = 0; i < 3; i++)
		snprintf(hf[i], sizeof(hf[i]), "%s%s_proj.weight", names->shared, ((const char *[]){ "gate", "up", "down" })[i]);
	for (int i = 0; i < (names->mix ? 4 : 3) && !rc; i++)
		rc = take_one(o, &w[i]);
	return rc;
}

static int take_biases(struct opening *o, int32_t l)
{
	int32_t D = o->m->d_model, F = o->m->experts.d_ff, n = o->m->experts.n;
	struct sr_layer *y = &o->m->layer[l];
	struct wanted w[] = {
		{ &y->expert_gate_bias, l, 1, F, n, "ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias" },
		{ &y->expert_up_bias, l, 1, F, n, "ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias" },
		{ &y->expert_down_bias, l, 1, D, n, "ffn_down_exps.bias", "mlp.experts.down_proj_bias" },
	};
	int rc = 0;

	for (int i = 0; i < 3 && !rc; i++)
		rc = o->config && i < 2 ? take_half_bias(o, &w[i], i) : take_one(o, &w[i]);
	return rc;
}

int model_take_experts(struct opening *o, int32_t l)
{
	const struct model_experts *e = o->family->experts;
	struct sr_layer *y = &o->m->layer[l];
	int32_t D = o->m->d_model, n = o->m->experts.n;
	const struct wanted router = { &y->router, l, n, D, 1, "ffn_gate_inp.weight", e->names->router };
	const struct wanted bias = { &y->router_bias, l, 1, n, 1, "ffn_gate_inp.bias", e->names->router_bias };
	const struct wanted choice = { &y->choice_bias, l, 1, n, 1, "exp_probs_b.bias", e->names->choice_bias };
	int rc = take_one(o, &router);

	if (!rc && e->has & X_BIASES)
		rc = take_one(o, &bias);
	if (!rc && e->has & X_CHOICE && !(o->has & NO_CHOICE) && (o->config || is_there(o, &choice)))
		rc = take_one(o, &choice);
	for (int i = 0; i < 3 && !rc; i++)
		rc = take_matrix(o, l, i);
	if (!rc && e->has & X_BIASES)
		rc = take_biases(o, l);
	if (!rc && o->m->experts.d_shared)
		rc = take_shared(o, l);
	return rc;
}

/* ---- all of a layer's --------------------------------------------------------------------------- */

struct sr_tensor *model_expert_tensor(struct sr_layer *y, int i)
{
	struct sr_tensor *const all[] = { &y->router, &y->router_bias, &y->choice_bias, &y->expert_gate, &y->expert_up,
		&y->expert_down, &y->expert_gate_bias, &y->expert_up_bias, &y->expert_down_bias, &y->shared_gate,
		&y->shared_up, &y->shared_down, &y->shared_mix };

	return i < (int)(sizeof(all) / sizeof(*all)) ? all[i] : NULL;
}
