/* messages.c - /v1/messages: Anthropic's form of a chat.
 *
 * A stream names its events.  Blocks come one after another and have the indices 0, 1, 2 ..; never are two
 * open.
 */
#include <stdlib.h>
#include <string.h>

#include "adapters/http/dialect.h"
#include "adapters/http/events.h"
#include "adapters/http/request.h"

static int parse(struct ask *a, const char *body, size_t n, const struct ask_limits *l, struct problem *p)
{
	const char *length;
	long long tokens = 0;

	if (!ask_agent(a, ask_messages_api, body, n, l, p) && !ask_prompts(a, l, p))
		return 0;
	/* Claude Code reads this sentence, and makes the conversation shorter. */
	length = strstr(p->message, "your prompt contains ");
	if (!length)
		length = strstr(p->message, "The decoder prompt (length ");
	if (length && p->status == 400) {
		length += strcspn(length, "0123456789");
		tokens = strtoll(length, NULL, 10);
		problem_bad(p, "messages", "prompt is too long: %lld tokens > %lld maximum", tokens,
		            (long long)l->context);
	}
	return -1;
}

/* ---- errors ---- */

static const char *error_type(int status)
{
	switch (status) {
	case 401: return "authentication_error";
	case 403: return "permission_error";
	case 404: return "not_found_error";
	case 413: return "request_too_large";
	case 429: return "rate_limit_error";
	case 503: return "overloaded_error";
	default: return status < 500 ? "invalid_request_error" : "api_error";
	}
}

static void error_of(struct out *o, const struct problem *p)
{
	PUT(o, "{\"type\":\"error\",\"error\":{\"type\":\"");
	out_str(o, error_type(p->status));
	PUT(o, "\",\"message\":");
	out_json_str(o, p->message);
	PUT(o, "}}");
}

static void problem(struct request *r, const struct problem *p)
{
	out_reset(&r->event);
	PUT(&r->event, "event: error\ndata: ");
	error_of(&r->event, p);
	PUT(&r->event, "\n\n");
}

/* ---- pieces ---- */

static const char *model(const struct request *r) { return r->ask.reply ? r->ask.reply : r->model; }

static uint32_t prompt_tokens(const struct request *r) { return r->ask.prompt[0].ids.n; }

/* Tokens of the prompt count as cached or as input, never as both. */
static void usage_of(struct request *r, uint32_t cached, uint32_t n)
{
	out_fmt(&r->event, "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,"
	        "\"cache_read_input_tokens\":%u,\"output_tokens\":%u}", prompt_tokens(r) - cached, cached, n);
}

static void stop_of(struct request *r)
{
	const struct choice *c = &r->choice[0];
	struct out *o = &r->event;

	PUT(o, "\"stop_reason\":");
	if (c->finish == FINISH_LENGTH)
		PUT(o, "\"max_tokens\"");
	else if (items_call(&r->items))
		PUT(o, "\"tool_use\"");
	else
		out_str(o, c->stop_string ? "\"stop_sequence\"" : "\"end_turn\"");
	PUT(o, ",\"stop_sequence\":");
	if (c->stop_string)
		out_json(o, c->stop_string, c->stop_string_len);
	else
		PUT(o, "null");
}

/* ---- streams ---- */

/* The head of a delta of the last block, up to its value. */
static void delta_of(struct request *r)
{
	PUT(&r->event, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
	out_int(&r->event, r->items.n - 1);
	PUT(&r->event, ",\"delta\":");
}

static bool message_start(struct request *r)
{
	struct out *o = &r->event;

	PUT(o, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":");
	out_json_str(o, r->id);
	PUT(o, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
	out_json_str(o, model(r));
	PUT(o, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
	usage_of(r, 0, 0);
	PUT(o, "}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n");
	return true;
}

/* End the block that is open. */
static void close_block(struct request *r)
{
	struct item *i = items_last(&r->items);
	struct out *o = &r->event;

	if (!i || !i->open)
		return;
	i->open = false;
	if (i->kind == SAID_REASONING) {
		delta_of(r);
		PUT(o, "{\"type\":\"signature_delta\",\"signature\":\"\"}}\n\n");
	}
	if (i->kind == SAID_CALL && !i->text.n) { /* several readers take no empty text for an object */
		delta_of(r);
		PUT(o, "{\"type\":\"input_json_delta\",\"partial_json\":\"{}\"}}\n\n");
	}
	PUT(o, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":");
	out_int(o, r->items.n - 1);
	PUT(o, "}\n\n");
}

static void open_block(struct request *r, const struct item *i)
{
	struct out *o = &r->event;

	PUT(o, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
	out_int(o, r->items.n - 1);
	PUT(o, ",\"content_block\":");
	if (i->kind == SAID_REASONING) {
		PUT(o, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n");
	} else if (i->kind == SAID_TEXT) {
		PUT(o, "{\"type\":\"text\",\"text\":\"\"}}\n\n");
	} else {
		PUT(o, "{\"type\":\"tool_use\",\"id\":");
		out_json(o, i->call_id.p, i->call_id.n);
		PUT(o, ",\"name\":");
		out_json(o, i->name.p, i->name.n);
		PUT(o, ",\"input\":{}}}\n\n");
	}
}

/* Does this part have text for a delta? */
static bool has_text(const struct request *r)
{
	const struct said_part *p = &r->pen.part.said;

	return p->kind != SAID_NOTHING && p->kind != SAID_CALL && p->n;
}

static bool delta_opens(struct request *r)
{
	const struct said_part *p = &r->pen.part.said;
	struct item *last = items_last(&r->items), *i;
	struct out *o = &r->event;
	bool fresh;

	o->failed |= choice_lost(r->pen.c);
	if (p->kind == SAID_NOTHING || !p->n)
		return true;
	if (last && last->open && (p->kind == SAID_CALL ||
	    last->kind != (p->kind == SAID_ARGUMENTS ? SAID_CALL : p->kind)))
		close_block(r);
	i = items_add(&r->items, p, choice_bytes(r->pen.c), &fresh);
	o->failed |= r->items.failed;
	if (!i)
		return true;
	if (fresh)
		open_block(r, i);
	if (i->text.n > 1 && !fresh)           /* a stream needs no more of it than whether there is any */
		i->text.n = 1;
	if (!has_text(r))
		return true;
	delta_of(r);
	out_str(o, i->kind == SAID_REASONING ? "{\"type\":\"thinking_delta\",\"thinking\":\"" :
	        i->kind == SAID_CALL ? "{\"type\":\"input_json_delta\",\"partial_json\":\"" :
	        "{\"type\":\"text_delta\",\"text\":\"");
	return true;
}

static bool delta_text(struct request *r)
{
	return !has_text(r) || event_text(r, choice_bytes(r->pen.c), r->pen.part.said.n);
}

static bool delta_closes(struct request *r)
{
	if (has_text(r))
		PUT(&r->event, "\"}}\n\n");
	if (r->pen.ended)
		close_block(r);
	choice_written(r->pen.c, &r->pen.part, r->pen.n_scores, r->pen.n_ids);
	return true;
}

static bool message_ends(struct request *r)
{
	struct out *o = &r->event;

	PUT(o, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
	stop_of(r);
	PUT(o, "},");
	usage_of(r, r->choice[0].cached, r->choice[0].n_tokens);
	PUT(o, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
	return true;
}

static bool ping(struct request *r)
{
	PUT(&r->event, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
	return true;
}

static event_field *const start_event[] = { message_start, NULL };
static event_field *const chunk[] = { delta_opens, delta_text, delta_closes, NULL };
static event_field *const end_event[] = { message_ends, NULL };
static event_field *const ping_event[] = { ping, NULL };

static bool begin(struct request *r, int i)
{
	if (!i)
		r->pen = (struct pen){ .field = start_event };
	return !i;
}

static void part(struct request *r, struct choice *c) { event_of_part(r, c, chunk, false); }
static void usage(struct request *r) { r->pen = (struct pen){ .field = end_event }; }
static void beat(struct request *r) { r->pen = (struct pen){ .field = ping_event }; }

/* ---- whole answers ---- */

static bool answer_opens(struct request *r)
{
	struct out *o = &r->event;

	items_whole(&r->items, &r->choice[0]);
	o->failed |= choice_lost(&r->choice[0]) || r->items.failed;
	PUT(o, "{\"id\":");
	out_json_str(o, r->id);
	PUT(o, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
	out_json_str(o, model(r));
	PUT(o, ",\"content\":[");
	return true;
}

/* A block of the answer, in pieces: pen.n_counted is its number. */
static bool answer_block(struct request *r)
{
	struct out *o = &r->event;
	const size_t at = r->pen.at;
	struct item *i;
	size_t n;

	if (r->pen.n_counted == r->items.n)
		return true;
	i = &r->items.item[r->pen.n_counted];
	if (!at) {
		out_str(o, r->pen.n_counted ? "," : "");
		if (i->kind == SAID_CALL) {
			PUT(o, "{\"type\":\"tool_use\",\"id\":");
			out_json(o, i->call_id.p, i->call_id.n);
			PUT(o, ",\"name\":");
			out_json(o, i->name.p, i->name.n);
			PUT(o, ",\"input\":");
		} else {
			out_str(o, i->kind == SAID_TEXT ? "{\"type\":\"text\",\"text\":\"" :
			        "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":\"");
		}
	}
	if (i->kind == SAID_CALL) {
		n = i->text.n - at < CONN_SLICE ? i->text.n - at : CONN_SLICE;
		if (i->text.n)
			out_bytes(o, i->text.p + at, n);
		else
			PUT(o, "{}");
		r->pen.at += n;
		if (r->pen.at < i->text.n)
			return false;
		PUT(o, "}");
	} else {
		if (!event_text(r, i->text.p, i->text.n))
			return false;
		PUT(o, "\"}");
	}
	r->pen.at = 0;
	return ++r->pen.n_counted == r->items.n;
}

static bool answer_closes(struct request *r)
{
	PUT(&r->event, "],");
	stop_of(r);
	PUT(&r->event, ",");
	usage_of(r, r->choice[0].cached, r->choice[0].n_tokens);
	PUT(&r->event, "}");
	return true;
}

static event_field *const answer[] = { answer_opens, answer_block, answer_closes, NULL };

static void whole(struct request *r) { r->pen = (struct pen){ .field = answer }; }

const struct dialect dialect_messages = {
	.path = "/v1/messages", .id_prefix = "msg_", .object = "message", .chunk = "message", .parse = parse,
	.begin = begin, .part = part, .usage = usage, .whole = whole, .problem = problem, .at_once = true,
	.beat = beat, .refusal = error_of, .count_object = "",
};
