/* chat.c - /v1/chat/completions: messages in, a message out. */
#include <string.h>

#include "dialect.h"
#include "events.h"
#include "request.h"

static int parse(struct ask *a, const char *body, size_t n, const struct ask_limits *l, struct problem *p)
{
	json_t *last, *content;

	if (ask_parse(a, ASK_CHAT, body, n, l, p) < 0 || ask_prompts(a, l, p) < 0)
		return -1;
	last = json_array_get(a->chat.messages, a->chat.n_messages - 1);
	content = json_object_get(last, "content");
	if (a->echo && json_is_string(content) &&
	    !strcmp(json_string_value(json_object_get(last, "role")), l->response_role))
		a->last_content = content;
	return 0;
}

/* ---- text ---- */

static bool delta_opens(struct request *r)
{
	static const char *const name[] = { [PART_TEXT] = "content" };

	event_choice_opens(r);
	PUT(&r->event, ",\"delta\":{\"");
	out_str(&r->event, name[r->pen.part.kind]);
	PUT(&r->event, "\":\"");
	return true;
}

static bool delta_closes(struct request *r)
{
	PUT(&r->event, "\"},\"logprobs\":");
	return true;
}

static bool message_opens(struct request *r)
{
	event_choice_opens(r);
	PUT(&r->event, ",\"message\":{\"role\":");
	out_json_str(&r->event, r->limits.response_role);
	PUT(&r->event, ",\"content\":\"");
	return true;
}

static bool message_closes(struct request *r)
{
	PUT(&r->event, "\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,"
	    "\"reasoning\":null},\"logprobs\":");
	return true;
}

/* With echo: the content that the answer continues. */
static bool last_content(struct request *r)
{
	const json_t *s = r->ask.last_content;

	return event_text(r, json_string_value(s), json_string_length(s));
}

/* ---- log-probabilities ---- */

static void entry(const struct request *r, struct out *o, struct sr_pair e)
{
	size_t n;
	const char *s = event_piece(r, e.id, &n);

	PUT(o, "{\"token\":");
	event_token_name(r, o, e.id);
	PUT(o, ",\"logprob\":");
	out_double(o, event_logprob(e.value));
	PUT(o, ",\"bytes\":[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			PUT(o, ",");
		out_int(o, (unsigned char)s[i]);
	}
	PUT(o, "]");
}

static bool logprobs(struct request *r)
{
	struct out *o = &r->event;
	struct pen *k = &r->pen;
	struct sr_pair e[SR_TOP_MAX + 1];
	struct score p;
	int n;

	if (r->ask.logprobs == ASK_NONE || (r->ask.stream && !k->n_scores)) {
		PUT(o, "null");
		return true;
	}
	if (!k->some)
		PUT(o, "{\"content\":[");
	if (!scores_next(&k->c->scores, k->n_scores, &k->at, &p)) {
		PUT(o, "]}");
		return true;
	}
	if (k->some)
		PUT(o, ",");
	k->some = true;
	n = event_entries(&p, e);
	entry(r, o, e[0]);
	PUT(o, ",\"top_logprobs\":[");
	for (int i = 0; i < n && i < r->ask.logprobs; i++) {
		if (i)
			PUT(o, ",");
		entry(r, o, e[i]);
		PUT(o, "}");
	}
	PUT(o, "]}");
	return false;
}

/* ---- events and answers ---- */

static void usage_of(struct request *r, uint32_t prompt, int64_t completion)
{
	if (event_usage_so_far(r, prompt, completion))
		PUT(&r->event, ",\"completion_tokens_details\":null}");
}

static bool usage_so_far(struct request *r)
{
	PUT(&r->event, "}]");
	usage_of(r, event_prompt(r)->ids.n, r->pen.n_counted);
	return true;
}

/* A choice that goes on has no stop_reason yet. */
static bool stop_reason(struct request *r) { return !r->pen.ended || event_stop_reason(r); }

static bool role(struct request *r)
{
	struct out *o = &r->event;

	out_fmt(o, "{\"index\":%d,\"delta\":{\"role\":", r->pen.part.index);
	out_json_str(o, r->limits.response_role);
	PUT(o, ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
	usage_of(r, r->ask.prompt[0].ids.n, 0);
	return true;
}

static bool repeat_opens(struct request *r)
{
	out_fmt(&r->event, "{\"index\":%d,\"delta\":{\"content\":\"", r->pen.part.index);
	return true;
}

static bool repeat_closes(struct request *r)
{
	PUT(&r->event, "\"},\"logprobs\":null,\"finish_reason\":null}]");
	usage_of(r, r->ask.prompt[0].ids.n, 0);
	return true;
}

static event_field *const role_event[] = { event_head, role, event_prompt_ids, event_prompt_text,
	event_closes, NULL };
static event_field *const repeat_event[] = { event_head, repeat_opens, last_content, repeat_closes,
	event_closes, NULL };
static event_field *const chunk[] = { event_head, delta_opens, event_answer_text, delta_closes, logprobs,
	event_finish_reason, stop_reason, event_token_ids, usage_so_far, event_part_closes, NULL };
static event_field *const answer[] = { event_head, message_opens, last_content, event_answer_text,
	message_closes, logprobs, event_finish_reason, event_stop_reason, event_token_ids, event_choice_closes,
	event_answer_usage, event_prompt_logprobs, event_prompt_ids, event_prompt_text, event_answer_closes,
	NULL };
static event_field *const all_usage[] = { event_head, event_usage, NULL };

/* The role of each choice, then the content that each repeats. */
static bool begin(struct request *r, int i)
{
	if (i < r->n_choices) {
		r->pen = (struct pen){ .field = role_event, .part.index = i, .first = true };
		return true;
	}
	if (!r->ask.last_content || i >= 2 * r->n_choices)
		return false;
	r->pen = (struct pen){ .field = repeat_event, .part.index = i - r->n_choices };
	return true;
}

static void part(struct request *r, struct choice *c) { event_of_part(r, c, chunk, false); }
static void usage(struct request *r) { r->pen = (struct pen){ .field = all_usage }; }
static void whole(struct request *r) { event_of_answer(r, answer, false); }

const struct dialect dialect_chat = {
	.path = "/v1/chat/completions", .id_prefix = "chatcmpl", .object = "chat.completion",
	.chunk = "chat.completion.chunk", .parse = parse, .begin = begin, .part = part, .usage = usage,
	.end = "data: [DONE]\n\n", .whole = whole, .problem = event_problem,
};
