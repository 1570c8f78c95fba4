/* responses.c - /v1/responses: OpenAI's newer form of a chat.
 *
 * An answer is a list of items: reasoning, message, calls.  A stream names its events and numbers them.  An
 * item opens, grows by deltas and closes with all its text; then the next one opens.  Its ids are the same
 * everywhere.
 */
#include <string.h>

#include "adapters/http/dialect.h"
#include "adapters/http/events.h"
#include "adapters/http/request.h"

static int parse(struct ask *a, const char *body, size_t n, const struct ask_limits *l, struct problem *p)
{
	return ask_agent(a, ask_responses_api, body, n, l, p) < 0 || ask_prompts(a, l, p) < 0 ? -1 : 0;
}

/* ---- errors ---- */

static const char *code_of(const struct problem *p)
{
	if (p->status == 400 &&
	    (!strcmp(p->param, "input_tokens") || strstr(p->message, "The decoder prompt (length ")))
		return "context_length_exceeded";
	switch (p->status) {
	case 401: return "invalid_api_key";
	case 404: return "model_not_found";
	case 429: return "rate_limit_exceeded";
	case 503: return "server_is_overloaded";
	default: return p->status < 500 ? "invalid_value" : "server_error";
	}
}

static void error_of(struct out *o, const struct problem *p)
{
	PUT(o, "{\"error\":{\"message\":");
	out_json_str(o, p->message);
	out_str(o, p->status < 500 ? ",\"type\":\"invalid_request_error\",\"param\":"
	                           : ",\"type\":\"server_error\",\"param\":");
	out_json_str(o, p->param[0] ? p->param : NULL);
	PUT(o, ",\"code\":");
	out_json_str(o, code_of(p));
	PUT(o, "}}");
}

/* ---- the response ---- */

static void event(struct request *r, const char *type)
{
	struct out *o = &r->event;

	PUT(o, "event: response.");
	out_str(o, type);
	PUT(o, "\ndata: {\"type\":\"response.");
	out_str(o, type);
	PUT(o, "\",\"sequence_number\":");
	out_int(o, r->items.n_events++);
	PUT(o, ",");
}

static bool cut(const struct request *r) { return r->choice[0].finish == FINISH_LENGTH; }

static void response_opens(struct request *r, const char *status)
{
	struct out *o = &r->event;

	PUT(o, "{\"id\":");
	out_json_str(o, r->id);
	out_fmt(o, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",", (long long)r->created,
	        status);
	out_str(o, !strcmp(status, "incomplete") ? "\"incomplete_details\":{\"reason\":\"max_output_tokens\"}," :
	        "\"incomplete_details\":null,");
	PUT(o, "\"model\":");
	out_json_str(o, r->model);
	PUT(o, ",");
}

/* The fields of the request, in pieces. */
static bool repeated(struct request *r)
{
	const size_t all = strlen(r->ask.reply), n = all - r->pen.at < CONN_SLICE ? all - r->pen.at : CONN_SLICE;

	out_bytes(&r->event, r->ask.reply + r->pen.at, n);
	r->pen.at += n;
	return r->pen.at == all;
}

static uint32_t reasoning_tokens(const struct request *r)
{
	int64_t n = 0, k;

	for (int i = 0; i < r->items.n; i++)
		if (r->items.item[i].kind == SAID_REASONING) {
			k = sr_text_encode(r->limits.text, r->items.item[i].text.p, r->items.item[i].text.n, 0, NULL, 0,
			                   0);
			n += k > 0 ? k : 0;
		}
	return n < r->choice[0].n_tokens ? (uint32_t)n : r->choice[0].n_tokens;
}

static void response_closes(struct request *r)
{
	const uint32_t in = r->ask.prompt[0].ids.n, n = r->choice[0].n_tokens;

	out_fmt(
		&r->event,
		"],\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,"
		"\"cache_write_tokens\":0},\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":%u},"
		"\"total_tokens\":%u}}",
		in, r->choice[0].cached, n, reasoning_tokens(r), in + n);
}

static void problem(struct request *r, const struct problem *p)
{
	struct out *o = &r->event;

	out_reset(o);
	event(r, "failed");
	PUT(o, "\"response\":");
	response_opens(r, "failed");
	out_str(o, r->ask.reply);
	PUT(o, ",\"output\":[],\"usage\":null,\"error\":{\"code\":");
	out_json_str(o, code_of(p));
	PUT(o, ",\"message\":");
	out_json_str(o, p->message);
	PUT(o, "}}}\n\n");
}

/* ---- items ---- */

/* What the request calls the tool of a call: a custom one, or one of a namespace; NULL: a function. */
static json_t *tool_of(const struct request *r, const struct item *i)
{
	char name[300];

	if (i->kind != SAID_CALL || !r->ask.names || i->name.n >= sizeof(name))
		return NULL;
	memcpy(name, i->name.p, i->name.n);
	name[i->name.n] = 0;
	return json_object_get(r->ask.names, name);
}

static bool is_custom(const struct request *r, const struct item *i)
{
	return json_object_get(tool_of(r, i), "type") != NULL;
}

/* A custom tool's input is the string in its arguments. */
static void unwrap(struct item *i)
{
	json_t *v = json_loadb(i->text.n ? i->text.p : "", i->text.n, JSON_ALLOW_NUL, NULL),
		   *s = json_object_get(v, "input");
	struct out plain = { 0 };

	if (json_is_string(s)) {
		out_bytes(&plain, json_string_value(s), json_string_length(s));
		out_free(&i->text);
		i->text = plain;
	}
	json_decref(v);
}

/* An item up to its text, and behind it. */
static void item_opens(struct request *r, const struct item *i)
{
	json_t *tool = tool_of(r, i), *space = json_object_get(tool, "namespace"),
		   *name = json_object_get(tool, "name");
	struct out *o = &r->event;

	PUT(o, "{\"id\":");
	out_json_str(o, i->id);
	if (i->kind == SAID_REASONING) {
		PUT(o, ",\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null,\"content\":[");
	} else if (i->kind == SAID_TEXT) {
		PUT(o, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
	} else {
		out_str(o, is_custom(r, i) ? ",\"type\":\"custom_tool_call\",\"call_id\":"
		                           : ",\"type\":\"function_call\","
		                             "\"call_id\":");
		out_json(o, i->call_id.p, i->call_id.n);
		PUT(o, ",\"name\":");
		if (name)
			out_json(o, json_string_value(name), json_string_length(name));
		else
			out_json(o, i->name.p, i->name.n);
		if (space) {
			PUT(o, ",\"namespace\":");
			out_json(o, json_string_value(space), json_string_length(space));
		}
		out_str(o, is_custom(r, i) ? ",\"input\":\"" : ",\"arguments\":\"");
	}
}

static void item_closes(struct request *r, const struct item *i, const char *status)
{
	out_str(&r->event, i->kind == SAID_CALL ? "\"" : "]");
	out_fmt(&r->event, ",\"status\":\"%s\"}", status);
}

static void part_opens(struct request *r, const struct item *i)
{
	out_str(&r->event, i->kind == SAID_REASONING ? "{\"type\":\"reasoning_text\",\"text\":\"" :
	        "{\"type\":\"output_text\",\"text\":\"");
}

static void part_closes(struct request *r, const struct item *i)
{
	if (i->kind == SAID_REASONING) {
		PUT(&r->event, "\"}");
		return;
	}
	PUT(&r->event, "\",\"annotations\":[],\"logprobs\":[");
	out_bytes(&r->event, i->scores.p, i->scores.n);
	PUT(&r->event, "]}");
}

static const char *status_of(const struct request *r, const struct item *i)
{
	return i == &r->items.item[r->items.n - 1] && cut(r) ? "incomplete" : "completed";
}

/* The item whole, in pieces: pen.offset counts the steps. */
static bool whole_item(struct request *r, const struct item *i)
{
	if (!r->pen.offset) {
		item_opens(r, i);
		if (i->kind != SAID_CALL)
			part_opens(r, i);
		r->pen.offset = 1;
	}
	if (!event_text(r, i->text.p, i->text.n))
		return false;
	if (i->kind != SAID_CALL)
		part_closes(r, i);
	item_closes(r, i, status_of(r, i));
	r->pen.at = r->pen.offset = 0;
	return true;
}

/* ---- log-probabilities ---- */

/* Add at most this many to the item. */
static void add_scores(struct request *r, struct item *i, const struct choice *c, size_t end, uint32_t most)
{
	struct sr_pair e[SR_TOP_MAX + 1];
	struct score p;
	size_t at = 0;
	int n;

	while (r->ask.score_text && i->kind == SAID_TEXT && most-- &&
	       scores_next(&c->scores, end, &at, &p)) {
		n = event_entries(&p, e);
		out_str(&i->scores, i->scores.n ? "," : "");
		event_entry(r, &i->scores, e[0]);
		PUT(&i->scores, ",\"top_logprobs\":[");
		for (int k = 0; k < n && k < r->ask.logprobs; k++) {
			out_str(&i->scores, k ? "," : "");
			event_entry(r, &i->scores, e[k]);
			PUT(&i->scores, "}");
		}
		PUT(&i->scores, "]}");
	}
	r->event.failed |= i->scores.failed;
}

/* ---- streams: an item closes ---- */

static struct item *closing(struct request *r) { return r->items.closing ? items_last(&r->items) : NULL; }

static void of_item(struct request *r, const struct item *i)
{
	struct out *o = &r->event;

	PUT(o, "\"item_id\":\"");
	out_str(o, i->id);
	PUT(o, "\",\"output_index\":");
	out_int(o, r->items.n - 1);
	if (i->kind != SAID_CALL)
		PUT(o, ",\"content_index\":0");
	PUT(o, ",");
}

static void close_item(struct request *r, bool now)
{
	struct item *i = items_last(&r->items);

	r->items.closing = now && i && i->open;
	if (r->items.closing && is_custom(r, i))
		unwrap(i);
}

/* Another item begins with this part. */
static bool close_before(struct request *r)
{
	const struct said_part *p = &r->pen.part.said;
	const struct item *i = items_last(&r->items);
	const enum said_kind kind = p->kind == SAID_ARGUMENTS ? SAID_CALL : p->kind;

	r->event.failed |= choice_lost(r->pen.c);
	close_item(r, p->n && p->kind != SAID_NOTHING && i && (p->kind == SAID_CALL || i->kind != kind));
	return true;
}

static bool close_end(struct request *r)
{
	close_item(r, r->pen.ended);
	return true;
}

/* The only delta of a custom tool's input. */
static bool custom_delta(struct request *r)
{
	const struct item *i = closing(r);

	if (!i || !is_custom(r, i))
		return true;
	if (!r->pen.offset) {
		event(r, "custom_tool_call_input.delta");
		of_item(r, i);
		PUT(&r->event, "\"delta\":\"");
		r->pen.offset = 1;
	}
	if (!event_text(r, i->text.p, i->text.n))
		return false;
	PUT(&r->event, "\"}\n\n");
	r->pen.offset = 0;
	return true;
}

static bool text_done(struct request *r)
{
	const struct item *i = closing(r);

	if (!i)
		return true;
	if (!r->pen.offset) {
		event(r, i->kind == SAID_REASONING ? "reasoning_text.done"
		         : i->kind == SAID_TEXT    ? "output_text.done"
		         : is_custom(r, i)         ? "custom_tool_call_input.done"
		                                   : "function_call_arguments.done");
		of_item(r, i);
		if (i->kind == SAID_CALL && !is_custom(r, i)) {
			PUT(&r->event, "\"name\":");
			out_json(&r->event, i->name.p, i->name.n);
			PUT(&r->event, ",");
		}
		out_str(&r->event, i->kind != SAID_CALL ? "\"text\":\""
		                   : is_custom(r, i)    ? "\"input\":\""
		                                        : "\"arguments\":\"");
		r->pen.offset = 1;
	}
	if (!event_text(r, i->text.p, i->text.n))
		return false;
	PUT(&r->event, "\"");
	if (i->kind == SAID_TEXT) {
		PUT(&r->event, ",\"logprobs\":[");
		out_bytes(&r->event, i->scores.p, i->scores.n);
		PUT(&r->event, "]");
	}
	PUT(&r->event, "}\n\n");
	r->pen.offset = 0;
	return true;
}

static bool part_done(struct request *r)
{
	const struct item *i = closing(r);

	if (!i || i->kind == SAID_CALL)
		return true;
	if (!r->pen.offset) {
		event(r, "content_part.done");
		of_item(r, i);
		PUT(&r->event, "\"part\":");
		part_opens(r, i);
		r->pen.offset = 1;
	}
	if (!event_text(r, i->text.p, i->text.n))
		return false;
	part_closes(r, i);
	PUT(&r->event, "}\n\n");
	r->pen.offset = 0;
	return true;
}

static bool item_done(struct request *r)
{
	struct item *i = closing(r);

	if (!i)
		return true;
	if (!r->pen.offset) {
		event(r, "output_item.done");
		out_fmt(&r->event, "\"output_index\":%d,\"item\":", r->items.n - 1);
	}
	if (!whole_item(r, i))
		return false;
	PUT(&r->event, "}\n\n");
	i->open = false;
	return true;
}

/* ---- streams: an item opens and grows ---- */

static void item_added(struct request *r, const struct item *i)
{
	event(r, "output_item.added");
	out_fmt(&r->event, "\"output_index\":%d,\"item\":", r->items.n - 1);
	item_opens(r, i);
	item_closes(r, i, "in_progress");
	PUT(&r->event, "}\n\n");
	if (i->kind == SAID_CALL)
		return;
	event(r, "content_part.added");
	of_item(r, i);
	PUT(&r->event, "\"part\":");
	part_opens(r, i);
	out_str(&r->event,
	        i->kind == SAID_REASONING ? "\"}}\n\n" : "\",\"annotations\":[],\"logprobs\":[]}}\n\n");
}

/* Does this part have text for a delta?  A custom tool's input comes whole. */
static bool has_text(struct request *r)
{
	const struct said_part *p = &r->pen.part.said;
	const struct item *i = items_last(&r->items);

	return p->kind != SAID_NOTHING && p->kind != SAID_CALL && p->n && i && !is_custom(r, i);
}

static bool delta_opens(struct request *r)
{
	const struct said_part *p = &r->pen.part.said;
	struct item *i;
	bool fresh;

	if (p->kind == SAID_NOTHING || !p->n)
		return true;
	i = items_add(&r->items, p, choice_bytes(r->pen.c), &fresh);
	r->event.failed |= r->items.failed;
	if (!i)
		return true;
	if (fresh)
		item_added(r, i);
	r->items.scored = i->scores.n;
	add_scores(r, i, r->pen.c, r->pen.n_scores, UINT32_MAX);
	if (!has_text(r))
		return true;
	event(r, i->kind == SAID_REASONING ? "reasoning_text.delta" : i->kind == SAID_TEXT ? "output_text.delta" :
	      "function_call_arguments.delta");
	of_item(r, i);
	PUT(&r->event, "\"delta\":\"");
	return true;
}

static bool delta_text(struct request *r)
{
	return !has_text(r) || event_text(r, choice_bytes(r->pen.c), r->pen.part.said.n);
}

static bool delta_closes(struct request *r)
{
	const struct item *i = items_last(&r->items);
	size_t from;

	if (has_text(r)) {
		PUT(&r->event, "\"");
		if (i->kind == SAID_TEXT) {
			from = r->items.scored + (r->items.scored && i->scores.n > r->items.scored);
			PUT(&r->event, ",\"logprobs\":[");
			out_bytes(&r->event, i->scores.p + from, i->scores.n - from);
			PUT(&r->event, "]");
		}
		PUT(&r->event, "}\n\n");
	}
	choice_written(r->pen.c, &r->pen.part, r->pen.n_scores, r->pen.n_ids);
	return true;
}

/* ---- streams: the response ---- */

static bool created(struct request *r)
{
	event(r, "created");
	PUT(&r->event, "\"response\":");
	response_opens(r, "in_progress");
	return true;
}

static bool in_progress(struct request *r)
{
	event(r, "in_progress");
	PUT(&r->event, "\"response\":");
	response_opens(r, "in_progress");
	return true;
}

static bool no_output(struct request *r)
{
	PUT(&r->event, ",\"error\":null,\"output\":[],\"usage\":null}}\n\n");
	return true;
}

static bool ends(struct request *r)
{
	event(r, cut(r) ? "incomplete" : "completed");
	PUT(&r->event, "\"response\":");
	response_opens(r, cut(r) ? "incomplete" : "completed");
	return true;
}

static bool output_opens(struct request *r)
{
	PUT(&r->event, ",\"error\":null,\"output\":[");
	return true;
}

/* An item of the output; pen.n_counted is its number. */
static bool output_item(struct request *r)
{
	if (r->pen.n_counted == r->items.n)
		return true;
	if (!r->pen.offset && r->pen.n_counted)
		PUT(&r->event, ",");
	return whole_item(r, &r->items.item[r->pen.n_counted]) && ++r->pen.n_counted == r->items.n;
}

static bool stream_closes(struct request *r)
{
	response_closes(r);
	PUT(&r->event, "}\n\n");
	return true;
}

static event_field *const created_event[] = { created, repeated, no_output, NULL };
static event_field *const progress_event[] = { in_progress, repeated, no_output, NULL };
static event_field *const chunk[] = { close_before, custom_delta, text_done,    part_done, item_done,
	                                  delta_opens,  delta_text,   delta_closes, close_end, custom_delta,
	                                  text_done,    part_done,    item_done,    NULL };
static event_field *const end_event[] = { ends, repeated, output_opens, output_item, stream_closes, NULL };

static bool begin(struct request *r, int i)
{
	if (i < 2)
		r->pen = (struct pen){ .field = i ? progress_event : created_event };
	return i < 2;
}

static void part(struct request *r, struct choice *c) { event_of_part(r, c, chunk, false); }
static void usage(struct request *r) { r->pen = (struct pen){ .field = end_event }; }
static void beat(struct request *r) { r->pen = (struct pen){ .field = progress_event }; }

/* ---- whole answers ---- */

static bool answer_opens(struct request *r)
{
	const struct choice *c = &r->choice[0];
	const bool ends_itself = !cut(r) && !c->stop_string; /* by a token that is no text */
	struct item *i;

	items_whole(&r->items, c);
	r->event.failed |= choice_lost(c) || r->items.failed;
	for (int k = 0; k < r->items.n; k++) {
		i = &r->items.item[k];
		if (is_custom(r, i))
			unwrap(i);
		add_scores(r, i, c, c->scores.bytes.n, c->n_tokens - ends_itself);
	}
	response_opens(r, cut(r) ? "incomplete" : "completed");
	return true;
}

static bool answer_closes(struct request *r)
{
	response_closes(r);
	return true;
}

static event_field *const answer[] = {
	answer_opens, repeated, output_opens, output_item, answer_closes, NULL
};

static void whole(struct request *r) { r->pen = (struct pen){ .field = answer }; }

const struct dialect dialect_responses = {
	.path = "/v1/responses", .id_prefix = "resp_", .object = "response", .chunk = "response", .parse = parse,
	.begin = begin, .part = part, .usage = usage, .whole = whole, .problem = problem, .at_once = true,
	.beat = beat, .refusal = error_of, .count_object = "\"object\":\"response.input_tokens\",",
};
