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

/* ---- text, thoughts and calls ---- */

static enum ask_reasoning_field reasoning_field(const struct request *r) { return r->limits.reasoning_field; }

static bool delta_opens(struct request *r)
{
	const struct said_part *p = &r->pen.part.said;
	struct out *o = &r->event;

	event_choice_opens(r);
	PUT(o, ",\"delta\":{");
	switch (p->kind) {
	case SAID_NOTHING:
		break;
	case SAID_TEXT:
		PUT(o, "\"content\":\"");
		break;
	case SAID_REASONING:
		out_str(o, reasoning_field(r) == REASONING_CONTENT ? "\"reasoning_content\":\"" : "\"reasoning\":\"");
		break;
	case SAID_CALL:
		PUT(o, "\"content\":null,\"tool_calls\":[{\"id\":");
		out_json(o, choice_bytes(r->pen.c), p->n_id);
		out_fmt(o, ",\"type\":\"function\",\"index\":%d,\"function\":{\"name\":\"", p->call);
		break;
	case SAID_ARGUMENTS:
		out_fmt(o, "\"content\":null,\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":\"", p->call);
	}
	return true;
}

static bool delta_text(struct request *r)
{
	const struct said_part *p = &r->pen.part.said;

	return p->n == p->n_id || event_text(r, choice_bytes(r->pen.c) + p->n_id, p->n - p->n_id);
}

/* A thought under both names. */
static bool again(const struct request *r)
{
	return r->pen.part.said.kind == SAID_REASONING && reasoning_field(r) == REASONING_BOTH;
}

static bool again_opens(struct request *r)
{
	if (again(r))
		PUT(&r->event, "\",\"reasoning_content\":\"");
	return true;
}

static bool again_text(struct request *r) { return !again(r) || delta_text(r); }

static bool delta_closes(struct request *r)
{
	const enum said_kind kind = r->pen.part.said.kind;

	if (kind > SAID_REASONING)
		PUT(&r->event, "\"}}]},\"logprobs\":");
	else if (kind != SAID_NOTHING)
		PUT(&r->event, "\"},\"logprobs\":");
	else
		PUT(&r->event, "},\"logprobs\":");
	return true;
}

/* Is the content null?  It is if there are only calls that the request does not force, or only a thought. */
static bool no_content(const struct request *r)
{
	const struct said *s = r->pen.c->said;

	return s && !r->ask.last_content && !said_content(s)->n &&
		(said_n_calls(s) ? r->ask.tool_choice == ASK_TOOLS_AUTO : said_reasoning(s)->n > 0);
}

static bool message_opens(struct request *r)
{
	event_choice_opens(r);
	PUT(&r->event, ",\"message\":{\"role\":");
	out_json_str(&r->event, r->limits.response_role);
	out_str(&r->event, no_content(r) ? ",\"content\":null" : ",\"content\":\"");
	return true;
}

static bool message_text(struct request *r)
{
	const struct said *s = r->pen.c->said;

	if (!s)
		return event_answer_text(r);
	return !said_content(s)->n || event_text(r, said_content(s)->p, said_content(s)->n);
}

static bool message_goes_on(struct request *r)
{
	out_str(&r->event, no_content(r) ? "," : "\",");
	PUT(&r->event, "\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null");
	return true;
}

/* The calls, in pieces: they are JSON already. */
static bool message_calls(struct request *r)
{
	const struct said *s = r->pen.c->said;
	const struct out *calls = s ? said_calls(s) : NULL;
	size_t n;

	if (!s || !said_n_calls(s))
		return true;
	if (!r->pen.at)
		PUT(&r->event, ",\"tool_calls\":[");
	n = calls->n - r->pen.at < CONN_SLICE ? calls->n - r->pen.at : CONN_SLICE;
	out_bytes(&r->event, calls->p + r->pen.at, n);
	r->pen.at += n;
	if (r->pen.at < calls->n)
		return false;
	PUT(&r->event, "]");
	return true;
}

/* The thought under one name; null without one. */
static bool thought(struct request *r, const char *name)
{
	const struct said *s = r->pen.c->said;
	const struct out *t = s ? said_reasoning(s) : NULL;

	if (!r->pen.at)
		out_fmt(&r->event, ",\"%s\":%s", name, t && t->n ? "\"" : "null");
	if (!t || !t->n)
		return true;
	if (!event_text(r, t->p, t->n))
		return false;
	PUT(&r->event, "\"");
	return true;
}

static bool message_reasoning(struct request *r)
{
	return reasoning_field(r) == REASONING_CONTENT || thought(r, "reasoning");
}

static bool message_reasoning_content(struct request *r)
{
	return reasoning_field(r) == REASONING_ALONE || thought(r, "reasoning_content");
}

static bool message_closes(struct request *r)
{
	PUT(&r->event, "},\"logprobs\":");
	return true;
}

/* With echo: the content that the answer continues. */
static bool last_content(struct request *r)
{
	const json_t *s = r->ask.last_content;

	return event_text(r, json_string_value(s), json_string_length(s));
}

/* ---- log-probabilities ---- */

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
	event_entry(r, o, e[0]);
	PUT(o, ",\"top_logprobs\":[");
	for (int i = 0; i < n && i < r->ask.logprobs; i++) {
		if (i)
			PUT(o, ",");
		event_entry(r, o, e[i]);
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

static bool nothing_yet(struct request *r)
{
	out_fmt(&r->event, "{\"index\":%d,\"delta\":{},\"logprobs\":null,\"finish_reason\":null}",
	        r->pen.part.index);
	return true;
}

static event_field *const role_event[] = { event_head, role, event_prompt_ids, event_prompt_text,
	event_closes, NULL };
static event_field *const repeat_event[] = { event_head, repeat_opens, last_content, repeat_closes,
	event_closes, NULL };
static event_field *const chunk[] = { event_head, delta_opens, delta_text, again_opens, again_text,
	delta_closes, logprobs, event_finish_reason, stop_reason, event_token_ids, usage_so_far,
	event_part_closes, NULL };
static event_field *const answer[] = { event_head, message_opens, last_content, message_text, message_goes_on,
	message_calls, message_reasoning, message_reasoning_content, message_closes, logprobs,
	event_finish_reason, event_stop_reason, event_token_ids, event_choice_closes,
	event_answer_usage, event_prompt_logprobs, event_prompt_ids, event_prompt_text, event_answer_closes,
	NULL };
static event_field *const progress_event[] = { event_head, nothing_yet, event_progress, NULL };
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

static void progress(struct request *r)
{
	r->pen = (struct pen){ .field = progress_event, .c = r->computed, .part.index = r->computed->index };
}

static void whole(struct request *r) { event_of_answer(r, answer, false); }

const struct dialect dialect_chat = {
	.path = "/v1/chat/completions", .id_prefix = "chatcmpl", .object = "chat.completion",
	.chunk = "chat.completion.chunk", .parse = parse, .begin = begin, .part = part, .usage = usage,
	.progress = progress,
	.end = "data: [DONE]\n\n", .whole = whole, .problem = event_problem,
	.count_object = "\"object\":\"response.input_tokens\",",
};
