/* render.c - the answers of the render routes: a request as token ids and sampling_params, which
 * /inference/v1/generate takes.  Any thread. */
#include "render.h"

#include "dialect.h"

static void put_texts(struct out *o, const char *name, int n, const char *const *s, const size_t *len)
{
	out_fmt(o, ",\"%s\":[", name);
	for (int i = 0; i < n; i++) {
		out_str(o, i ? "," : "");
		out_json(o, s[i], len[i]);
	}
	out_str(o, "]");
}

static void put_double(struct out *o, const char *name, double v)
{
	out_fmt(o, ",\"%s\":", name);
	out_double(o, v);
}

static void put_int(struct out *o, const char *name, int64_t v)
{
	out_fmt(o, ",\"%s\":%lld", name, (long long)v);
}

/* The members of vLLM's StructuredOutputsParams, in its order, and ours behind them. */
static void put_guide(struct out *o, const struct ask_guide *g)
{
	static const struct { const char *name; enum sr_grammar_kind kind; } member[] = {
		{ "json", SR_GRAMMAR_JSON }, { "regex", SR_GRAMMAR_REGEX }, { "choice", SR_GRAMMAR_CHOICE },
		{ "grammar", SR_GRAMMAR_EBNF }, { "structural_tag", SR_GRAMMAR_TAGS },
	};
	const char *const flag[] = { "false", "true" };

	out_str(o, ",\"structured_outputs\":{");
	for (int i = 0; i < 5; i++) {
		if (i == 4)
			out_fmt(o, ",\"json_object\":null,\"disable_any_whitespace\":%s,"
			        "\"disable_additional_properties\":false,\"whitespace_pattern\":",
			        flag[g->rules.disable_any_whitespace]);
		if (i == 4)
			out_json_str(o, g->rules.whitespace_pattern);
		out_fmt(o, "%s\"%s\":", i ? "," : "", member[i].name);
		if (g->kind != member[i].kind)
			out_str(o, "null");
		else if (g->kind == SR_GRAMMAR_REGEX || g->kind == SR_GRAMMAR_EBNF)
			out_json(o, g->src, g->n);
		else
			out_bytes(o, g->src, g->n);
	}
	out_fmt(o, ",\"_backend\":null,\"_backend_was_auto\":false,\"additional_properties\":%s,\"lenient\":%s}",
	        flag[g->rules.additional_properties], flag[g->rules.lenient]);
}

static void put_bias(struct out *o, const struct ask *a)
{
	if (!a->n_bias)
		return;
	out_str(o, ",\"logit_bias\":{");
	for (uint32_t i = 0; i < a->n_bias; i++) {
		out_fmt(o, "%s\"%d\":", i ? "," : "", a->bias[i].id);
		out_double(o, (double)a->bias[i].value);
	}
	out_str(o, "}");
}

static void put_bad_words(struct out *o, const struct ask *a)
{
	out_str(o, ",\"bad_words\":[");
	for (size_t i = 0; i < json_array_size(a->bad_words); i++) {
		json_t *v = json_array_get(a->bad_words, i);

		out_str(o, i ? "," : "");
		out_json(o, json_string_value(v), json_string_length(v));
	}
	out_str(o, "]");
}

/* What differs from the default is said, and what vLLM says always. */
static void put_sampling(struct out *o, const struct ask *a, const struct ask_limits *l,
                         const struct dialect *d, uint32_t n_prompt)
{
	int64_t room = ask_room(a, l, n_prompt);

	out_str(o, ",\"sampling_params\":{\"presence_penalty\":");
	out_double(o, a->presence);
	put_double(o, "frequency_penalty", a->frequency);
	put_double(o, "repetition_penalty", a->repetition);
	put_double(o, "temperature", a->temperature);
	if (a->top_p < 1)
		put_double(o, "top_p", a->top_p);
	if (a->top_k > 0)
		put_int(o, "top_k", a->top_k);
	if (a->min_p > 0)
		put_double(o, "min_p", a->min_p);
	if (a->seeded)
		put_int(o, "seed", a->seed);
	if (a->n > 1)
		put_int(o, "n", a->n);
	put_texts(o, "stop", a->n_stop, a->stop, a->stop_len);
	out_str(o, ",\"stop_token_ids\":");
	out_ids(o, a->stop_ids.id, a->stop_ids.n);
	if (a->ignore_eos)
		out_str(o, ",\"ignore_eos\":true");
	if (a->max_tokens != ASK_NONE || l->context)
		put_int(o, "max_tokens", a->max_tokens != ASK_NONE ? a->max_tokens : room);
	if (a->min_tokens)
		put_int(o, "min_tokens", a->min_tokens);
	if (a->logprobs != ASK_NONE)
		put_int(o, "logprobs", a->logprobs);
	if (a->prompt_logprobs != ASK_NONE)
		put_int(o, "prompt_logprobs", a->prompt_logprobs);
	if (!a->skip_special)
		out_str(o, ",\"skip_special_tokens\":false");
	if (a->include_stop)
		out_str(o, ",\"include_stop_str_in_output\":true");
	out_fmt(o, ",\"output_kind\":%d,\"skip_clone\":true%s", a->stream ? 1 : 2,
	        d == &dialect_responses ? ",\"extra_args\":{}" : "");
	if (a->guide.src)
		put_guide(o, &a->guide);
	put_bias(o, a);
	if (a->allowed.n) {
		out_str(o, ",\"allowed_token_ids\":");
		out_ids(o, a->allowed.id, a->allowed.n);
	}
	put_bad_words(o, a);
	out_str(o, ",\"skip_reading_prefix_cache\":false}");
}

static void put_one(struct out *o, const struct ask *a, const struct ask_limits *l, const struct dialect *d,
                    const char *id, int i)
{
	const struct ask_ids *ids = &a->prompt[i].ids;

	out_str(o, "{\"request_id\":");
	out_json_str(o, id);
	out_str(o, ",\"token_ids\":");
	out_ids(o, ids->id, ids->n);
	out_str(o, ",\"token_offsets\":null,\"features\":null,\"content_parts\":null");
	put_sampling(o, a, l, d, ids->n);
	out_str(o, ",\"model\":");
	out_json_str(o, a->model && *a->model ? a->model : l->names[0]);
	out_str(o, ",\"reasoning_ended\":null,\"reasoning_parser_kwargs\":null,\"return_token_ids\":");
	out_str(o, a->return_token_ids ? "true" : "null");
	out_fmt(o, ",\"output_mode\":\"tokens\",\"stream\":%s,\"stream_options\":", a->stream ? "true" : "false");
	if (a->stream && a->include_usage)
		out_fmt(o, "{\"include_usage\":true,\"continuous_usage_stats\":%s}",
		        a->continuous_usage ? "true" : "false");
	else
		out_str(o, "null");
	out_str(o, ",\"cache_salt\":");
	out_json_str(o, a->cache_salt);
	out_fmt(o, ",\"priority\":%lld,\"kv_transfer_params\":null,\"ec_transfer_params\":null}",
	        (long long)a->priority);
}

int render_write(struct out *o, const struct ask *a, const struct ask_limits *l, const struct dialect *d,
                 const char *made, struct problem *p)
{
	const char *id = a->request_id ? a->request_id : made;
	bool list = a->kind == ASK_COMPLETION;
	char name[ASK_ID_BYTES + 64];

	if (a->guide.src && a->guide.thought.n_end > 0)
		return problem_bad(p, NULL, "This cannot be rendered: the answer is guided and may begin with "
		                   "thoughts, which sampling_params cannot say.");
	if (a->echo || a->thinking_budget >= 0)
		return problem_bad(p, a->echo ? "echo" : "thinking_token_budget", "This cannot be rendered: "
		                   "sampling_params cannot say it.");
	out_str(o, list ? "[" : "");
	for (int i = 0; i < a->n_prompts; i++) {
		if (list)
			snprintf(name, sizeof(name), "%s-%s-%d", d->id_prefix, id, i);
		else
			snprintf(name, sizeof(name), "%s%s%s", d->id_prefix,
			         d->id_prefix[strlen(d->id_prefix) - 1] == '_' ? "" : "-", id);
		out_str(o, i ? "," : "");
		put_one(o, a, l, d, name, i);
	}
	out_str(o, list ? "]" : "");
	return 0;
}
