/* events.c - the bytes of answers: SSE chunks and whole bodies, key by key in vLLM's order,
 * with the same nulls.  They are written directly into r->event, without a tree.
 *
 * An event is a list of parts.  Each part is a function that writes a piece of a few KiB and returns whether
 * the part is whole; r->pen keeps the place.  So event_write() can stop after any piece and continue in a
 * later turn of the loop.  Only one slice of a long answer exists at a time.  Short answers go the same way.
 */
#include <math.h>
#include <string.h>

#include "request.h"

#define PUT(o, literal) out_bytes(o, literal, sizeof(literal) - 1)
#define PIECES 4096                  /* most pieces in a slice: some take long to make but are short */
#define TEXT_PIECE 4096              /* bytes of text in a piece */
#define IDS_PIECE  512

static const char *finish_name(enum choice_finish f)
{
	switch (f) {
	case STOPPED: return "stop";
	case LENGTH: return "length";
	case FAILED: return "error";
	default: return NULL;
	}
}

/* ---- pieces of texts and lists ---- */

/* Write a piece of a string, without its quotes. */
static bool text_piece(struct request *r, const char *s, size_t n)
{
	size_t from = r->pen.at, left = n - from, take = left, back;

	if (left > TEXT_PIECE) {
		take = TEXT_PIECE;
		for (back = 1; back < 4; back++)  /* do not cut a character */
			if (utf8_length(s + from + take - back, left - take + back) > back) {
				take -= back;
				break;
			}
	}
	if (take)
		out_escaped(&r->event, s + from, take);
	r->pen.at += take;
	return take == left;
}

/* Write ,"name":[1,2,3] or null. */
static bool ids_piece(struct request *r, const char *name, const int32_t *id, size_t n, bool wanted)
{
	struct out *o = &r->event;
	size_t end = r->pen.at + IDS_PIECE < n ? r->pen.at + IDS_PIECE : n;

	if (!r->pen.at) {
		out_str(o, name);
		out_str(o, wanted ? "[" : "null");
	}
	if (!wanted)
		return true;
	for (; r->pen.at < end; r->pen.at++) {
		if (r->pen.at)
			PUT(o, ",");
		out_int(o, id[r->pen.at]);
	}
	if (end < n)
		return false;
	PUT(o, "]");
	return true;
}

static const struct prompt *prompt_of(const struct request *r)
{
	return &r->ask.prompt[r->pen.c ? r->pen.c->prompt : 0];
}

static bool token_ids(struct request *r)
{
	const struct choice *c = r->pen.c;

	return ids_piece(r, ",\"token_ids\":", (const int32_t *)(const void *)c->ids.p,
	                 r->pen.n_ids / sizeof(int32_t), r->ask.return_token_ids);
}

static bool prompt_ids(struct request *r)
{
	const struct prompt *q = prompt_of(r);

	return ids_piece(r, ",\"prompt_token_ids\":", q->ids.id, q->ids.n,
	                 (r->pen.with_prompt && r->ask.stream) || (r->pen.first && r->ask.return_token_ids));
}

static bool prompt_text(struct request *r)
{
	const struct prompt *q = prompt_of(r);

	if (!r->pen.at)
		out_str(&r->event, r->ask.return_prompt_text ? ",\"prompt_text\":\"" : ",\"prompt_text\":null");
	if (!r->ask.return_prompt_text)
		return true;
	if (!text_piece(r, q->text, q->n_text))
		return false;
	PUT(&r->event, "\"");
	return true;
}

/* Write the prompt's text for echo: the text that was sent, or the text of the ids. */
static bool echo_text(struct request *r)
{
	const struct prompt *q = prompt_of(r);
	const size_t longest = sr_text_longest(r->limits.text) + 16;
	struct out text = { 0 };
	size_t end;
	int n;

	if (!r->pen.with_prompt || r->ask.return_token_ids)
		return true;
	if (q->text)
		return text_piece(r, q->text, q->n_text);
	if (!r->pen.at)
		sr_detok_init(&r->pen.detok, false);
	end = r->pen.at + IDS_PIECE < q->ids.n ? r->pen.at + IDS_PIECE : q->ids.n;
	for (; r->pen.at < end && out_room(&text, longest); r->pen.at++) {
		n = sr_detok_push(&r->pen.detok, r->limits.text, q->ids.id[r->pen.at], text.p + text.n, longest);
		text.n += n > 0 ? (size_t)n : 0;
	}
	if (r->pen.at == q->ids.n && out_room(&text, longest)) {
		n = sr_detok_flush(&r->pen.detok, text.p + text.n, longest);
		text.n += n > 0 ? (size_t)n : 0;
	}
	out_escaped(&r->event, text.p, text.n);
	r->event.failed |= text.failed;
	out_free(&text);
	return r->pen.at == q->ids.n;
}

static bool answer_text(struct request *r) { return text_piece(r, r->pen.c->text.p, r->pen.n_text); }

/* Chat with echo: write the content that the answer continues. */
static bool last_content(struct request *r)
{
	const json_t *s = r->ask.last_content;

	return text_piece(r, json_string_value(s), json_string_length(s));
}

/* ---- log-probabilities ---- */

static const char *piece(const struct request *r, int32_t id, size_t *n)
{
	const char *s = "";
	int len = sr_text_piece(r->limits.text, id, &s, NULL);

	*n = len > 0 ? (size_t)len : 0;
	return len > 0 ? s : "";
}

static void token_name(const struct request *r, struct out *o, int32_t id)
{
	const char *s;
	size_t n;

	if (r->ask.tokens_as_ids) {
		PUT(o, "\"token_id:");
		out_int(o, id);
		PUT(o, "\"");
		return;
	}
	s = piece(r, id, &n);
	out_json(o, s, n);
}

static double logprob(float v) { return isnan(v) || v < -9999.0f ? -9999.0 : (double)v; }

/* Fill e with the token and then its other alternatives, most likely first.  Returns their number. */
static int entries(const struct lp *p, struct sr_pair e[SR_TOP_MAX + 1])
{
	int n = 1;

	e[0] = (struct sr_pair){ p->id, p->logprob };
	for (uint32_t i = 0; i < p->n_top; i++)
		if (p->top[i].id != p->id)
			e[n++] = p->top[i];
	return n;
}

struct name { const char *s; size_t n; };

static bool same_name(const struct request *r, const struct sr_pair *a, const struct name *s,
                      const struct sr_pair *b, const struct name *t)
{
	return r->ask.tokens_as_ids ? a->id == b->id : s->n == t->n && !memcmp(s->s, t->s, s->n);
}

/* Write {"token":logprob,..} with at most `most` + 1 entries.  Of entries with one name the best counts. */
static void named(const struct request *r, struct out *o, const struct lp *p, int64_t most)
{
	struct sr_pair e[SR_TOP_MAX + 1];
	struct name name[SR_TOP_MAX + 1];
	int i, k, n = entries(p, e);

	n = n <= most ? n : (int)most + 1;
	for (i = 0; i < n; i++)
		name[i].s = piece(r, e[i].id, &name[i].n);
	PUT(o, "{");
	for (i = 0; i < n; i++) {
		for (k = 0; k < i && !same_name(r, &e[i], &name[i], &e[k], &name[k]); k++)
			;
		if (k < i)
			continue;
		for (k = i + 1; k < n; k++)
			if (e[k].value > e[i].value && same_name(r, &e[i], &name[i], &e[k], &name[k]))
				e[i].value = e[k].value;
		if (i)
			PUT(o, ",");
		token_name(r, o, e[i].id);
		PUT(o, ":");
		out_double(o, logprob(e[i].value));
	}
	PUT(o, "}");
}

/* The next token of the prompt, if the event has it, and then of the answer; false after the last. */
static bool next_scored(struct request *r, struct lp *p)
{
	struct pen *k = &r->pen;
	const struct lps *prompt = k->with_prompt ? &r->scored[k->c->prompt].lps : NULL;

	if (!k->in_answer && prompt && lps_next(prompt, prompt->bytes.n, &k->at, p))
		return true;
	if (!k->in_answer)
		k->at = 0;
	k->in_answer = true;
	return lps_next(&k->c->lps, k->n_lps, &k->at, p);
}

static void offset_of(struct request *r, const struct lp *p)
{
	char id[32];
	const char *s;
	size_t n;

	out_int(&r->event, r->pen.offset);
	if (r->ask.tokens_as_ids) {
		r->pen.offset += (uint32_t)snprintf(id, sizeof(id), "token_id:%d", p->id);
	} else {
		s = piece(r, p->id, &n);
		r->pen.offset += (uint32_t)utf8_count(s, n);
	}
}

static void name_of(struct request *r, const struct lp *p) { token_name(r, &r->event, p->id); }

static void score_of(struct request *r, const struct lp *p)
{
	if (p->rank)
		out_double(&r->event, logprob(p->logprob));
	else
		PUT(&r->event, "null");
}

static void names_of(struct request *r, const struct lp *p)
{
	if (p->rank)
		named(r, &r->event, p, r->ask.logprobs);
	else
		PUT(&r->event, "null");
}

/* Completions have four arrays over prompt and answer, each a part.  Write one token of one array. */
static bool array_piece(struct request *r, const char *name, void (*put)(struct request *, const struct lp *))
{
	struct lp p;

	if (r->ask.logprobs == ASK_NONE)
		return true;
	if (!r->pen.some)
		out_str(&r->event, name);
	if (!next_scored(r, &p)) {
		PUT(&r->event, "]");
		return true;
	}
	if (r->pen.some)
		PUT(&r->event, ",");
	r->pen.some = true;
	put(r, &p);
	return false;
}

static bool offsets(struct request *r)
{
	if (!r->pen.some)
		r->pen.offset = r->pen.c->offset;
	if (!array_piece(r, "{\"text_offset\":[", offset_of))
		return false;
	r->pen.c->offset = r->pen.offset;
	return true;
}

static bool scores(struct request *r) { return array_piece(r, ",\"token_logprobs\":[", score_of); }
static bool tokens(struct request *r) { return array_piece(r, ",\"tokens\":[", name_of); }
static bool tops(struct request *r) { return array_piece(r, ",\"top_logprobs\":[", names_of); }

static void chat_entry(const struct request *r, struct out *o, struct sr_pair e)
{
	size_t n, i;
	const char *s = piece(r, e.id, &n);

	PUT(o, "{\"token\":");
	token_name(r, o, e.id);
	PUT(o, ",\"logprob\":");
	out_double(o, logprob(e.value));
	PUT(o, ",\"bytes\":[");
	for (i = 0; i < n; i++) {
		if (i)
			PUT(o, ",");
		out_int(o, (unsigned char)s[i]);
	}
	PUT(o, "]");
}

static bool chat_logprobs(struct request *r)
{
	struct out *o = &r->event;
	struct pen *k = &r->pen;
	struct sr_pair e[SR_TOP_MAX + 1];
	struct lp p;
	int n, i;

	if (r->ask.logprobs == ASK_NONE || (r->ask.stream && !k->n_lps)) {
		PUT(o, "null");
		return true;
	}
	if (!k->some)
		PUT(o, "{\"content\":[");
	if (!lps_next(&k->c->lps, k->n_lps, &k->at, &p)) {
		PUT(o, "]}");
		return true;
	}
	if (k->some)
		PUT(o, ",");
	k->some = true;
	n = entries(&p, e);
	chat_entry(r, o, e[0]);
	PUT(o, ",\"top_logprobs\":[");
	for (i = 0; i < n && i < r->ask.logprobs; i++) {
		if (i)
			PUT(o, ",");
		chat_entry(r, o, e[i]);
		PUT(o, "}");
	}
	PUT(o, "]}");
	return false;
}

static void ranked(struct request *r, struct sr_pair e, uint32_t rank)
{
	struct out *o = &r->event;
	const char *s;
	size_t n;

	PUT(o, "\"");
	out_int(o, e.id);
	PUT(o, "\":{\"logprob\":");
	out_double(o, logprob(e.value));
	PUT(o, ",\"rank\":");
	out_int(o, rank);
	PUT(o, ",\"decoded_token\":");
	s = piece(r, e.id, &n);
	out_json(o, s, n);
	PUT(o, "}");
}

/* Write [null,{"3575":{"logprob":..,"rank":..,"decoded_token":".."},..},..]. */
static bool prompt_logprobs(struct request *r)
{
	struct out *o = &r->event;
	struct pen *k = &r->pen;
	const struct lps *l;
	struct lp p;

	if (r->ask.prompt_logprobs == ASK_NONE) {
		PUT(o, ",\"prompt_logprobs\":null");
		return true;
	}
	l = &r->scored[k->c ? k->c->prompt : 0].lps;
	if (!k->some)
		PUT(o, ",\"prompt_logprobs\":[");
	if (!lps_next(l, l->bytes.n, &k->at, &p)) {
		PUT(o, "]");
		return true;
	}
	if (k->some)
		PUT(o, ",");
	k->some = true;
	if (!p.rank) {
		PUT(o, "null");
		return false;
	}
	PUT(o, "{");
	ranked(r, (struct sr_pair){ p.id, p.logprob }, p.rank);
	for (uint32_t i = 0; i < p.n_top; i++)
		if (p.top[i].id != p.id) {
			PUT(o, ",");
			ranked(r, p.top[i], i + 1);
		}
	PUT(o, "}");
	return false;
}

/* ---- parts that chunks and bodies share ---- */

void event_head(struct request *r)
{
	struct out *o = &r->head;

	out_reset(o);
	PUT(o, "{\"id\":");
	out_json_str(o, r->id);
	if (r->kind == ASK_COMPLETION)
		PUT(o, ",\"object\":\"text_completion\",\"created\":");
	else if (r->ask.stream)
		PUT(o, ",\"object\":\"chat.completion.chunk\",\"created\":");
	else
		PUT(o, ",\"object\":\"chat.completion\",\"created\":");
	out_int(o, r->created);
	PUT(o, ",\"model\":");
	out_json_str(o, r->model);
	PUT(o, ",\"choices\":[");
}

static bool head(struct request *r)
{
	if (r->ask.stream)
		PUT(&r->event, "data: ");
	out_bytes(&r->event, r->head.p, r->head.n);
	r->event.failed |= r->head.failed;
	return true;
}

/* Each prompt's tokens count once, for any number of answers. */
static int64_t prompt_tokens(const struct request *r)
{
	int64_t n = 0;
	int i;

	for (i = 0; i < r->ask.n_prompts; i++)
		n += r->ask.prompt[i].ids.n;
	return n;
}

/* Completion tokens of an answer.  With max_tokens 0 vLLM computes and counts one token, but hides it. */
static int64_t counted(const struct request *r, const struct choice *c)
{
	return r->ask.max_tokens == 0 ? 1 : c->n_tokens;
}

static void usage(struct request *r, int64_t prompt, int64_t completion)
{
	out_fmt(&r->event, "\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld,"
	        "\"completion_tokens\":%lld",
	        (long long)prompt, (long long)(prompt + completion), (long long)completion);
}

static int64_t all_completion(const struct request *r)
{
	int64_t n = 0;
	int i;

	for (i = 0; i < r->n_choices; i++)
		n += counted(r, &r->choice[i]);
	return n;
}

static int64_t all_cached(const struct request *r)
{
	int64_t n = 0;
	int i;

	for (i = 0; i < r->n_choices; i += (int)r->ask.n)
		n += r->choice[i].cached;
	return n;
}

static void running_usage(struct request *r, int64_t prompt, int64_t completion)
{
	if (!r->ask.continuous_usage)
		return;
	PUT(&r->event, ",");
	usage(r, prompt, completion);
	if (r->kind == ASK_CHAT)
		PUT(&r->event, ",\"completion_tokens_details\":null");
	PUT(&r->event, "}");
}

static bool text_opens(struct request *r)
{
	struct out *o = &r->event;

	r->event.failed |= choice_lost(r->pen.c) || (r->scored && r->scored[r->pen.c->prompt].lps.bytes.failed);
	PUT(o, "{\"index\":");
	out_int(o, r->pen.c->index);
	if (r->kind == ASK_COMPLETION) {
		PUT(o, ",\"text\":\"");
	} else if (r->ask.stream) {
		PUT(o, ",\"delta\":{\"content\":\"");
	} else {
		PUT(o, ",\"message\":{\"role\":");
		out_json_str(o, r->limits.response_role);
		PUT(o, ",\"content\":\"");
	}
	return true;
}

static bool text_closes(struct request *r)
{
	struct out *o = &r->event;

	if (r->kind == ASK_COMPLETION)
		out_str(o, r->ask.logprobs == ASK_NONE ? "\",\"logprobs\":null" : "\",\"logprobs\":");
	else if (r->ask.stream)
		PUT(o, "\"},\"logprobs\":");
	else
		PUT(o, "\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,"
		    "\"reasoning\":null},\"logprobs\":");
	return true;
}

/* Write finish_reason and stop_reason. */
static bool reasons(struct request *r)
{
	const struct choice *c = r->pen.c;
	struct out *o = &r->event;

	if (r->kind == ASK_COMPLETION && r->ask.logprobs != ASK_NONE)
		PUT(o, "}");
	PUT(o, ",\"finish_reason\":");
	out_json_str(o, r->pen.ended ? finish_name(c->finish) : NULL);
	if (r->kind == ASK_CHAT && r->ask.stream && !r->pen.ended)
		return true;
	PUT(o, ",\"stop_reason\":");
	if (!r->pen.ended)
		PUT(o, "null");
	else if (c->stop_string)
		out_json(o, c->stop_string, c->stop_string_len);
	else if (c->stop_id >= 0)
		out_int(o, c->stop_id);
	else
		PUT(o, "null");
	return true;
}

/* ---- streams ---- */

/* Remove the n bytes that were written.  Bytes that came since, or are held back, move to the front. */
static void drop_front(struct out *o, size_t n)
{
	if (n && n < o->n)
		memmove(o->p, o->p + n, o->n - n);
	o->n -= n;
}

static bool chunk_closes(struct request *r)
{
	struct pen *k = &r->pen;
	struct choice *c = k->c;

	PUT(&r->event, "}]");
	running_usage(r, prompt_of(r)->ids.n, k->n_counted);
	if (k->ended && !r->ask.include_usage) {
		PUT(&r->event, ",\"system_fingerprint\":");
		out_json_str(&r->event, r->fingerprint);
	}
	PUT(&r->event, "}\n\n");
	drop_front(&c->text, k->n_text);
	c->ready -= k->n_text;
	drop_front(&c->lps.bytes, k->n_lps);
	drop_front(&c->ids, k->n_ids);
	return true;
}

static bool role(struct request *r)
{
	struct out *o = &r->event;

	out_fmt(o, "{\"index\":%d,\"delta\":{\"role\":", r->pen.index);
	out_json_str(o, r->limits.response_role);
	PUT(o, ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
	running_usage(r, r->ask.prompt[0].ids.n, 0);
	return true;
}

static bool event_closes(struct request *r)
{
	PUT(&r->event, "}\n\n");
	return true;
}

static bool repeat_opens(struct request *r)
{
	out_fmt(&r->event, "{\"index\":%d,\"delta\":{\"content\":\"", r->pen.index);
	return true;
}

static bool repeat_closes(struct request *r)
{
	PUT(&r->event, "\"},\"logprobs\":null,\"finish_reason\":null}]");
	running_usage(r, r->ask.prompt[0].ids.n, 0);
	PUT(&r->event, "}\n\n");
	return true;
}

static bool all_usage(struct request *r)
{
	struct out *o = &r->event;

	PUT(o, "],");
	usage(r, prompt_tokens(r), all_completion(r));
	if (r->details)
		out_fmt(o, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld}", (long long)all_cached(r));
	PUT(o, "},\"system_fingerprint\":");
	out_json_str(o, r->fingerprint);
	PUT(o, "}\n\n");
	return true;
}

static event_part *const role_event[] = { head, role, prompt_ids, prompt_text, event_closes, NULL };
static event_part *const repeat_event[] = { head, repeat_opens, last_content, repeat_closes, NULL };
static event_part *const usage_event[] = { head, all_usage, NULL };
static event_part *const completion_chunk[] = { head, text_opens, echo_text, answer_text, text_closes,
	offsets, scores, tokens, tops, reasons, prompt_ids, token_ids, chunk_closes, NULL };
static event_part *const chat_chunk[] = { head, text_opens, answer_text, text_closes, chat_logprobs, reasons,
	token_ids, chunk_closes, NULL };

void event_role(struct request *r, int index)
{
	r->pen = (struct pen){ .part = role_event, .index = index, .first = true };
}

void event_echo(struct request *r, int index)
{
	r->pen = (struct pen){ .part = repeat_event, .index = index };
}

void event_usage(struct request *r) { r->pen = (struct pen){ .part = usage_event }; }

void event_chunk(struct request *r, struct choice *c)
{
	bool first = !c->echoed;

	r->pen = (struct pen){
		.part = r->kind == ASK_COMPLETION ? completion_chunk : chat_chunk, .c = c,
		.first = first, .with_prompt = first && r->ask.echo && r->kind == ASK_COMPLETION, .ended = c->ended,
		.n_text = c->ready, .n_lps = c->lps.bytes.n, .n_ids = c->ids.n, .n_counted = counted(r, c),
	};
	c->echoed = true;
	c->waiting = 0;
}

void event_problem(struct request *r, const struct problem *p)
{
	out_reset(&r->event);
	PUT(&r->event, "data: ");
	problem_event(&r->event, p);
	PUT(&r->event, "\n\n");
}

/* ---- whole answers ---- */

static void on_choice(struct request *r, struct choice *c)
{
	struct pen *k = &r->pen;

	*k = (struct pen){
		.part = k->part, .next_choice = k->next_choice, .c = c, .first = true,
		.with_prompt = r->ask.echo && r->kind == ASK_COMPLETION, .ended = true,
		.n_text = c->text.n, .n_lps = c->lps.bytes.n, .n_ids = c->ids.n,
	};
}

/* Close a choice, free what was written of it, and begin the next.  True: it was the last. */
static bool choice_closes(struct request *r)
{
	struct choice *c = r->pen.c;

	PUT(&r->event, ",\"routed_experts\":null}");
	choice_free(c);
	if (r->scored && r->kind == ASK_COMPLETION && (c->index + 1) % (int)r->ask.n == 0)
		out_free(&r->scored[c->prompt].lps.bytes);
	r->pen.c = NULL;
	if (c->index + 1 == r->n_choices)
		return true;
	PUT(&r->event, ",");
	r->pen.part = r->pen.next_choice;
	on_choice(r, c + 1);
	return false;
}

static bool answer_usage(struct request *r)
{
	struct out *o = &r->event;

	PUT(o, "],\"service_tier\":null,\"system_fingerprint\":");
	out_json_str(o, r->fingerprint);
	PUT(o, ",");
	usage(r, prompt_tokens(r), all_completion(r));
	if (r->details)
		out_fmt(o, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld,\"created_cache_tokens\":null,"
		        "\"multimodal_tokens\":null}", (long long)all_cached(r));
	else
		PUT(o, ",\"prompt_tokens_details\":null");
	PUT(o, ",\"completion_tokens_details\":null}");
	return true;
}

static bool answer_closes(struct request *r)
{
	PUT(&r->event, ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}");
	return true;
}

static event_part *const completion[] = { head, text_opens, echo_text, answer_text, text_closes, offsets,
	scores, tokens, tops, reasons, token_ids, prompt_logprobs, prompt_ids, choice_closes, answer_usage,
	answer_closes, NULL };
static event_part *const chat[] = { head, text_opens, last_content, answer_text, text_closes, chat_logprobs,
	reasons, token_ids, choice_closes, answer_usage, prompt_logprobs, prompt_ids, prompt_text,
	answer_closes, NULL };

void answer(struct request *r)
{
	r->pen.part = r->kind == ASK_COMPLETION ? completion : chat;
	r->pen.next_choice = r->pen.part + 1;
	on_choice(r, r->choice);
}

bool event_write(struct request *r)
{
	struct pen *k = &r->pen;

	out_reset(&r->event);
	for (int i = 0; *k->part && i < PIECES && r->event.n < CONN_SLICE && !r->event.failed; i++)
		if ((*k->part)(r)) {
			k->part++;
			k->at = 0;
			k->some = k->in_answer = false;
		}
	return !*k->part;
}
