/* show_model.c - see show_model.h. */
#include "show_model.h"

#include <stdio.h>
#include <string.h>

/* ---- tensors --------------------------------------------------------------------------------- */

static bool is_expert(const struct sr_tensor *t)
{
	return t->count > 1;
}

static uint64_t stored_bytes(const struct sr_tensor *t)
{
	uint64_t sum = t->data.bytes + t->scale.bytes + t->zero.bytes + t->index.bytes;

	if (t->outputs)           /* several tensors are stored in one */
		return sum / (uint64_t)t->outputs * (uint64_t)(t->n > 1 ? t->n : t->k);
	if (!t->each)
		return sum;
	sum = 0;
	for (int32_t e = 0; e < t->count; e++)
		sum += t->each[e].data.bytes + t->each[e].scale.bytes + t->each[e].zero.bytes +
		       t->each[e].index.bytes;
	return sum;
}

void show_each_tensor(const struct sr_model *m, void (*fn)(const struct sr_tensor *t, void *ctx), void *ctx)
{
	const struct sr_tensor *end[] = { &m->norm, &m->norm_bias, &m->head, &m->in_embed, &m->in_proj,
	                                  &m->in_norm, &m->classifier.dense, &m->classifier.dense_bias,
	                                  &m->classifier.norm, &m->classifier.labels,
	                                  &m->classifier.labels_bias };

	fn(&m->embed, ctx);
	for (int32_t l = 0; l < m->n_layers; l++) {
		const struct sr_layer *y = &m->layer[l];
		const struct sr_tensor *t[] = {
			&y->norm1, &y->norm1_bias, &y->q, &y->k, &y->v, &y->q_bias, &y->k_bias, &y->v_bias, &y->q_norm,
			&y->k_norm, &y->sinks, &y->o, &y->o_bias, &y->post1, &y->norm2, &y->norm2_bias, &y->gate, &y->up,
			&y->gate_bias, &y->up_bias, &y->down, &y->down_bias, &y->router, &y->router_bias,
			&y->choice_bias, &y->expert_gate, &y->expert_up, &y->expert_gate_bias, &y->expert_up_bias,
			&y->expert_down, &y->expert_down_bias, &y->shared_gate, &y->shared_up, &y->shared_down,
			&y->shared_mix, &y->post2, &y->o_gate, &y->beta, &y->alpha, &y->conv, &y->rate, &y->dt,
			&y->o_norm, &y->q_a, &y->q_a_norm, &y->kv_a, &y->kv_a_norm, &y->k_b, &y->v_b,
			&y->router_norm, &y->expert_norm, &y->expert_post, &y->mlp_post, &y->expert_scale, &y->in_down,
			&y->in_up, &y->in_post, &y->out_scale,
		};

		for (unsigned i = 0; i < sizeof(t) / sizeof(*t); i++)
			if (t[i]->type != SR_NONE)
				fn(t[i], ctx);
	}
	for (unsigned i = 0; i < sizeof(end) / sizeof(*end); i++)
		if (end[i]->type != SR_NONE)
			fn(end[i], ctx);
}

struct reading { const struct sr_model *m; uint64_t bytes; };

static void add_read(const struct sr_tensor *t, void *ctx)
{
	struct reading *r = ctx;
	uint64_t bytes = stored_bytes(t);

	if ((t == &r->m->embed && r->m->head.type != SR_NONE) || t == &r->m->in_embed)
		bytes /= (uint64_t)(t->n > 0 ? t->n : 1);
	if (is_expert(t))
		bytes = bytes / (uint64_t)t->count * (uint64_t)r->m->experts.top;
	r->bytes += bytes;
}

uint64_t show_token_bytes(const struct sr_model *m)
{
	struct reading r = { m, 0 };

	show_each_tensor(m, add_read, &r);
	return r.bytes;
}

/* Weights of matrices in layers, of tables (embedding, head), of vectors: all; those that a token reads. */
struct sizing { const struct sr_model *m; double n[2][3]; };

static void add_size(const struct sr_tensor *t, void *ctx)
{
	struct sizing *s = ctx;
	const struct sr_model *m = s->m;
	bool table = t == &m->embed || t == &m->head || t == &m->in_embed, matrix = t->n > 1 && t->k > 1;
	double n = (double)(t->count > 1 ? t->count : 1) * t->n * t->k, read = n;
	int kind = !matrix ? 2 : table ? 1 : 0;

	if ((t == &m->embed && m->head.type != SR_NONE) || t == &m->in_embed)
		read /= t->n;
	if (is_expert(t) && m->experts.n == t->count)
		read = read / t->count * m->experts.top;
	s->n[0][kind] += n;
	s->n[1][kind] += read;
}

void show_sizes(const struct sr_model *m, struct show_size out[SHOW_TYPES])
{
	/* AWQ: a scale and a zero point for 128 inputs; tables keep 16 bits */
	static const struct { const char *type; double bits, table_bits; } types[SHOW_TYPES] = {
		{ "BF16", 16, 16 }, { "Q8_0", 8.5, 8.5 }, { "Q5_K", 5.5, 5.5 }, { "Q4_K", 4.5, 4.5 },
		{ "AWQ", 4 + 20.0 / 128, 16 },
	};
	struct sizing s = { .m = m };
	double bytes[2];

	show_each_tensor(m, add_size, &s);
	for (int i = 0; i < SHOW_TYPES; i++) {
		for (int r = 0; r < 2; r++)
			bytes[r] = s.n[r][0] * types[i].bits / 8 + s.n[r][1] * types[i].table_bits / 8 + s.n[r][2] * 4;
		out[i] = (struct show_size){ types[i].type, bytes[0], bytes[1] };
	}
}

/* Bytes of the state of one sequence in one layer: S, and the last inputs of the convolution, in f32. */
static int64_t state_bytes(const struct sr_delta *a)
{
	return 4 * ((int64_t)a->v_heads * a->k_dim * a->v_dim + (int64_t)(a->conv - 1) * sr_delta_channels(a));
}

double show_sequence_bytes(const struct sr_model *m, int32_t tokens)
{
	double sum = 0;

	for (int32_t l = 0; l < m->n_layers; l++) {
		const struct sr_attn *a = kind_of(m, l);
		double n = tokens;

		if (m->layer[l].mixer == SR_DELTA)
			sum += (double)state_bytes(&m->delta);
		if (m->layer[l].mixer == SR_DELTA || m->layer[l].kv_back)
			continue;
		if (a->window && a->window < tokens)
			n = a->window;
		if (a->chunk && a->chunk < tokens)
			n = a->chunk;
		sum += n * 2 * (a->latent ? a->head_dim : 2.0 * a->n_kv_heads * a->head_dim);
	}
	return sum;
}

const char *show_bytes(double bytes, char out[32])
{
	bool small = bytes < 1 << 30;

	snprintf(out, 32, "%.1f %s", bytes / (small ? 1048576 : 1073741824), small ? "MiB" : "GiB");
	return out;
}

/* ---- kinds of attention ------------------------------------------------------------------------ */

static const char *const rope_kinds[] = { "plain", "linear", "llama3", "yarn", "factors", "none" };

/* Is layer l of this kind of attention; -1: has it a state? */
static bool is_of(const struct sr_model *m, int32_t l, int32_t kind)
{
	const struct sr_layer *y = &m->layer[l];

	return kind < 0 ? y->mixer == SR_DELTA : y->mixer != SR_DELTA && y->kind == kind;
}

/* The layers of a kind, as "0-4, 6-10"; how many. */
static int32_t layers_of(const struct sr_model *m, int32_t kind, char *out, size_t size)
{
	int32_t n = 0;
	size_t at = 0;

	*out = 0;
	for (int32_t l = 0; l < m->n_layers; l++) {
		int32_t first = l;

		if (!is_of(m, l, kind))
			continue;
		while (l + 1 < m->n_layers && is_of(m, l + 1, kind))
			l++;
		n += l - first + 1;
		if (at < size)
			at += (size_t)(first == l ? snprintf(out + at, size - at, "%s%d", at ? ", " : "", first)
			                          : snprintf(out + at, size - at, "%s%d-%d", at ? ", " : "", first, l));
	}
	if (at >= size)
		snprintf(out + size - 4, 4, "..");
	return n;
}

static void show_rope(const struct sr_rope *r)
{
	printf("                rope %s", rope_kinds[r->kind]);
	if (r->kind != SR_ROPE_NONE)
		printf(", theta %g, %d dimensions%s", (double)r->theta, r->dims,
		       r->pairs ? " in pairs of neighbours" : "");
	if (r->kind == SR_ROPE_LINEAR || r->kind == SR_ROPE_LLAMA3 || r->kind == SR_ROPE_YARN)
		printf(", factor %g beyond %d", (double)r->factor, r->context);
	if (r->kind == SR_ROPE_YARN)
		printf(", beta %g to %g%s", (double)r->low, (double)r->high, r->exact ? ", not truncated" : "");
	if (sr_rope_magnitude(r) != 1)
		printf(", magnitude %g", (double)sr_rope_magnitude(r));
	printf("\n");
}

/* What else attention does, as words. */
static void extras(const struct sr_model *m, int32_t kind, char *out, size_t size)
{
	const struct sr_attn *a = &m->kind[kind];
	const struct sr_layer *y = NULL;
	size_t at = 0;

	for (int32_t l = 0; l < m->n_layers && !y; l++)
		if (is_of(m, l, kind))
			y = &m->layer[l];
	*out = 0;
#define ADD(...) do { if (at < size) \
		at += (size_t)snprintf(out + at, size - at, __VA_ARGS__); } while (0)
	if (y && (y->q_norm.type != SR_NONE || a->qk_norm & SR_QK_BARE))
		ADD(", norms of q and k %s%s", a->qk_norm & SR_QK_ROW ? "over all heads" : "per head",
		    a->qk_norm & SR_QK_LATE ? " after rope" : "");
	if (a->v_norm)
		ADD(", norms of v");
	if (a->latent)
		ADD(", one latent key of %d for all heads, of which %d are the value", a->head_dim, a->latent);
	if (a->k_is_v)
		ADD(", values are keys");
	if (y && y->sinks.type != SR_NONE)
		ADD(", sinks");
	if (a->cap > 0)
		ADD(", scores capped at %g", (double)a->cap);
	if (a->heat > 0)
		ADD(", queries warmer from %d on", a->heat_from);
	if (a->bidirectional)
		ADD(", in both directions");
	if (a->gate)
		ADD(", with a gate");
#undef ADD
}

void show_kinds(const struct sr_model *m)
{
	for (int32_t i = 0; i < m->n_kinds; i++) {
		const struct sr_attn *a = &m->kind[i];
		char layers[64], more[256];
		int32_t n = layers_of(m, i, layers, sizeof(layers));

		printf("  attention     %d layer%s (%s): %d heads for queries, %d for keys and values, of width %d\n",
		       n, n == 1 ? "" : "s", layers, a->n_heads, a->n_kv_heads, a->head_dim);
		extras(m, i, more, sizeof(more));
		if (a->window)
			printf("                of the last %d tokens", a->window);
		else if (a->chunk)
			printf("                from the last multiple of %d tokens", a->chunk);
		else
			printf("                of all tokens");
		printf(", scale %g%s\n", (double)a->scale, more);
		show_rope(&a->rope);
	}
}

void show_state(const struct sr_model *m)
{
	const struct sr_delta *a = &m->delta;
	char layers[64];
	int32_t n = a->v_heads ? layers_of(m, -1, layers, sizeof(layers)) : 0;

	if (!n)
		return;
	printf("  state         %d layers (%s): the gated delta rule, %d key heads of width %d,\n", n, layers,
	       a->k_heads, a->k_dim);
	printf("                %d value heads of width %d, a convolution of %d tokens; %.1f MiB a sequence, "
	       "whatever its length\n", a->v_heads, a->v_dim, a->conv, (double)(n * state_bytes(a)) / 1048576);
}

json_t *show_state_json(const struct sr_model *m)
{
	const struct sr_delta *a = &m->delta;
	char layers[64];
	int32_t n = a->v_heads ? layers_of(m, -1, layers, sizeof(layers)) : 0;

	if (!n)
		return json_null();
	return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:I}", "layers", layers, "n_layers", n, "key_heads",
	                 a->k_heads, "key_width", a->k_dim, "value_heads", a->v_heads, "value_width", a->v_dim,
	                 "convolution", a->conv, "bytes", (json_int_t)(n * state_bytes(a)));
}

json_t *show_kinds_json(const struct sr_model *m)
{
	json_t *list = json_array();

	for (int32_t i = 0; i < m->n_kinds; i++) {
		const struct sr_attn *a = &m->kind[i];
		char layers[64];
		int32_t n = layers_of(m, i, layers, sizeof(layers));
		json_t *j = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f}", "layers", layers,
		                      "n_layers", n, "heads", a->n_heads, "kv_heads", a->n_kv_heads, "head_width",
		                      a->head_dim, "latent", a->latent, "window", a->window, "chunk", a->chunk,
		                      "scale", (double)a->scale, "cap", (double)a->cap);

		json_object_set_new(j, "rope", json_pack("{s:s, s:f, s:f, s:i, s:i, s:f}", "kind",
		                    rope_kinds[a->rope.kind], "theta", (double)a->rope.theta, "factor",
		                    (double)a->rope.factor, "original_context", a->rope.context, "dimensions",
		                    a->rope.dims, "magnitude", (double)sr_rope_magnitude(&a->rope)));
		json_array_append_new(list, j);
	}
	return list;
}

/* ---- what layers have of others ------------------------------------------------------------------ */

static int32_t shared_kv(const struct sr_model *m)
{
	int32_t n = 0;

	for (int32_t l = 0; l < m->n_layers; l++)
		n += m->layer[l].kv_back > 0;
	return n;
}

void show_shared(const struct sr_model *m)
{
	if (shared_kv(m))
		printf("  shared KV     %d layers have no keys and values: each reads those of a layer before it\n",
		       shared_kv(m));
	if (m->inputs)
		printf("  inputs        %d more for each layer, from a table by token; a token reads one row of "
		       "it\n", m->inputs);
}

/* ---- experts ------------------------------------------------------------------------------------- */

static int32_t expert_layers(const struct sr_model *m)
{
	int32_t n = 0;

	for (int32_t l = 0; l < m->n_layers; l++)
		n += m->layer[l].ffn == SR_EXPERTS || m->layer[l].ffn == SR_BESIDE;
	return n;
}

static bool is_beside(const struct sr_model *m)
{
	for (int32_t l = 0; l < m->n_layers; l++)
		if (m->layer[l].ffn == SR_BESIDE)
			return true;
	return false;
}

static const char *score_name(int32_t score)
{
	return score == SR_SCORE_SIGMOID ? "sigmoid" : score == SR_SCORE_CHOSEN ? "softmax of those chosen"
	                                             : "softmax";
}

void show_experts(const struct sr_model *m)
{
	const struct sr_experts *e = &m->experts;

	if (!expert_layers(m))
		return;
	printf("  experts       %d in each of %d layers, %d wide; %d compute a token", e->n, expert_layers(m),
	       e->d_ff, e->top);
	if (e->d_shared)
		printf(", and a shared one, %d wide", e->d_shared);
	if (is_beside(m))
		printf(", beside the feed-forward part");
	printf("\n                %s%s", score_name(e->score), e->renorm ? ", weights sum to 1" : "");
	if (e->scale != 1)
		printf(", times %g", (double)e->scale);
	if (e->groups > 1)
		printf(", of %d of %d groups", e->groups_top, e->groups);
	printf("\n");
}

json_t *show_experts_json(const struct sr_model *m)
{
	const struct sr_experts *e = &m->experts;

	if (!expert_layers(m))
		return json_null();
	return json_pack("{s:i, s:i, s:i, s:i, s:i, s:s, s:b, s:f, s:i, s:i}", "experts", e->n, "chosen", e->top,
	                 "layers", expert_layers(m), "feed_forward", e->d_ff, "shared_feed_forward", e->d_shared,
	                 "score", score_name(e->score), "renormalized", e->renorm, "scale", (double)e->scale,
	                 "groups", e->groups, "groups_chosen", e->groups_top);
}
