/* events.c - see events.h.  SSE chunks and whole bodies, key by key in vLLM's order, with the same nulls.
 * They are written directly into r->event, without a tree.
 */
#include "events.h"

#include <math.h>
#include <string.h>

#include "shmring/clock.h"
#include "dialect.h"
#include "request.h"

#define PIECES 4096                  /* most pieces in a slice: some take long to make but are short */
#define TEXT_PIECE 4096              /* bytes of text in a piece */

static const char *finish_name(enum choice_finish f)
{
	switch (f) {
	case FINISH_STOP: return "stop";
	case FINISH_LENGTH: return "length";
	case FINISH_TOOLS: return "tool_calls";
	default: return NULL;
	}
}

/* ---- pieces of texts and lists ---- */

/* Write a piece of a string, without its quotes. */
bool event_text(struct request *r, const char *s, size_t n)
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
	size_t end = r->pen.at + EVENT_IDS < n ? r->pen.at + EVENT_IDS : n;

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

const struct prompt *event_prompt(const struct request *r)
{
	return &r->ask.prompt[r->pen.c ? r->pen.c->prompt : 0];
}

bool event_token_ids(struct request *r)
{
	const struct choice *c = r->pen.c;

	return ids_piece(r, ",\"token_ids\":", (const int32_t *)(const void *)c->ids.p,
	                 r->pen.n_ids / sizeof(int32_t), r->ask.return_token_ids);
}

bool event_prompt_ids(struct request *r)
{
	const struct prompt *q = event_prompt(r);

	return ids_piece(r, ",\"prompt_token_ids\":", q->ids.id, q->ids.n,
	                 (r->pen.with_prompt && r->ask.stream) || (r->pen.first && r->ask.return_token_ids));
}

bool event_prompt_text(struct request *r)
{
	const struct prompt *q = event_prompt(r);

	if (!r->pen.at)
		out_str(&r->event, r->ask.return_prompt_text ? ",\"prompt_text\":\"" : ",\"prompt_text\":null");
	if (!r->ask.return_prompt_text)
		return true;
	if (!event_text(r, q->text, q->n_text))
		return false;
	PUT(&r->event, "\"");
	return true;
}

bool event_answer_text(struct request *r)
{
	return event_text(r, choice_bytes(r->pen.c), r->pen.part.said.n);
}

/* ---- log-probabilities ---- */

const char *event_piece(const struct request *r, int32_t id, size_t *n)
{
	const char *s = "";
	int len = sr_text_piece(r->limits.text, id, &s, NULL);

	*n = len > 0 ? (size_t)len : 0;
	return len > 0 ? s : "";
}

void event_token_name(const struct request *r, struct out *o, int32_t id)
{
	const char *s;
	size_t n;

	if (r->ask.tokens_as_ids) {
		PUT(o, "\"token_id:");
		out_int(o, id);
		PUT(o, "\"");
		return;
	}
	s = event_piece(r, id, &n);
	out_json(o, s, n);
}

double event_logprob(float v) { return isnan(v) || v < -9999.0f ? -9999.0 : (double)v; }

void event_entry(const struct request *r, struct out *o, struct sr_pair e)
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

int event_entries(const struct score *p, struct sr_pair e[SR_TOP_MAX + 1])
{
	int n = 1;

	e[0] = (struct sr_pair){ p->id, p->logprob };
	for (uint32_t i = 0; i < p->n_top; i++)
		if (p->top[i].id != p->id)
			e[n++] = p->top[i];
	return n;
}

static void ranked(struct request *r, struct sr_pair e, uint32_t rank)
{
	struct out *o = &r->event;
	const char *s;
	size_t n;

	PUT(o, "\"");
	out_int(o, e.id);
	PUT(o, "\":{\"logprob\":");
	out_double(o, event_logprob(e.value));
	PUT(o, ",\"rank\":");
	out_int(o, rank);
	PUT(o, ",\"decoded_token\":");
	s = event_piece(r, e.id, &n);
	out_json(o, s, n);
	PUT(o, "}");
}

/* Write [null,{"3575":{"logprob":..,"rank":..,"decoded_token":".."},..},..]. */
bool event_prompt_logprobs(struct request *r)
{
	struct out *o = &r->event;
	struct pen *k = &r->pen;
	const struct scores *l;
	struct score p;

	if (r->ask.prompt_logprobs == ASK_NONE) {
		PUT(o, ",\"prompt_logprobs\":null");
		return true;
	}
	l = &r->scored[k->c ? k->c->prompt : 0].scores;
	if (!k->some)
		PUT(o, ",\"prompt_logprobs\":[");
	if (!scores_next(l, l->bytes.n, &k->at, &p)) {
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

/* ---- fields that events and answers share ---- */

void event_start(struct request *r)
{
	struct out *o = &r->head;

	out_reset(o);
	PUT(o, "{\"id\":");
	out_json_str(o, r->id);
	PUT(o, ",\"object\":\"");
	out_str(o, r->ask.stream ? r->dialect->chunk : r->dialect->object);
	PUT(o, "\",\"created\":");
	out_int(o, r->created);
	PUT(o, ",\"model\":");
	out_json_str(o, r->model);
	PUT(o, ",\"choices\":[");
}

bool event_head(struct request *r)
{
	if (r->ask.stream)
		PUT(&r->event, "data: ");
	out_bytes(&r->event, r->head.p, r->head.n);
	r->event.failed |= r->head.failed;
	return true;
}

void event_choice_opens(struct request *r)
{
	const struct choice *c = r->pen.c;

	r->event.failed |= choice_lost(c) || (r->scored && r->scored[c->prompt].scores.bytes.failed);
	PUT(&r->event, "{\"index\":");
	out_int(&r->event, r->pen.part.index);
}

bool event_finish_reason(struct request *r)
{
	PUT(&r->event, ",\"finish_reason\":");
	out_json_str(&r->event, r->pen.ended ? finish_name(r->pen.c->finish) : NULL);
	return true;
}

bool event_stop_reason(struct request *r)
{
	const struct choice *c = r->pen.c;
	struct out *o = &r->event;

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

/* ---- usage ---- */

/* Each prompt's tokens count once, for any number of answers. */
static int64_t prompt_tokens(const struct request *r)
{
	int64_t n = 0;

	for (int i = 0; i < r->ask.n_prompts; i++)
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

	for (int i = 0; i < r->n_choices; i++)
		n += counted(r, &r->choice[i]);
	return n;
}

static int64_t all_cached(const struct request *r)
{
	int64_t n = 0;

	for (int i = 0; i < r->n_choices; i += (int)r->ask.n)
		n += r->choice[i].cached;
	return n;
}

bool event_usage_so_far(struct request *r, uint32_t prompt, int64_t completion)
{
	if (!r->ask.continuous_usage)
		return false;
	PUT(&r->event, ",");
	usage(r, prompt, completion);
	return true;
}

/* ,"timings":{..}: of all answers, once all of them have ended. */
static void timings(struct request *r)
{
	if (!r->ask.timings || !r->timings.known)
		return;
	PUT(&r->event, ",\"timings\":");
	timings_json(&r->event, &r->timings);
}

/* Of an answer that goes on: as long as it took until now, if the progress of its prompt was told. */
static void timings_so_far(struct request *r, const struct choice *c)
{
	const struct sr_end *e = &c->progress;
	struct timings t = { 0 };

	if (!r->ask.timings_per_token || !e->last || !c->n_tokens)
		return;
	timings_add(&t, &(struct sr_end){ .queued = e->queued, .scheduled = e->scheduled, .first = e->last,
	            .last = sr_now(), .cached = e->cached, .computed = e->computed - e->cached }, c->n_tokens, 0);
	PUT(&r->event, ",\"timings\":");
	timings_json(&r->event, &t);
}

/* "prompt_progress":{..} of the choice, in llama.cpp's names, with what closes an event. */
bool event_progress(struct request *r)
{
	const struct sr_end *e = &r->pen.c->progress;

	out_fmt(&r->event, "],\"prompt_progress\":{\"total\":%u,\"cache\":%u,\"processed\":%u,"
	        "\"time_ms\":%llu}}\n\n", event_prompt(r)->ids.n, e->cached, e->computed,
	        (unsigned long long)(e->last > e->scheduled ? (e->last - e->scheduled) / 1000000 : 0));
	return true;
}

bool event_usage(struct request *r)
{
	struct out *o = &r->event;

	PUT(o, "],");
	usage(r, prompt_tokens(r), all_completion(r));
	if (r->details)
		out_fmt(o, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld}", (long long)all_cached(r));
	PUT(o, "},\"system_fingerprint\":");
	out_json_str(o, r->fingerprint);
	timings(r);
	PUT(o, "}\n\n");
	return true;
}

/* ---- streams ---- */

bool event_part_closes(struct request *r)
{
	struct pen *k = &r->pen;

	if (k->ended && !r->ask.include_usage) {
		PUT(&r->event, ",\"system_fingerprint\":");
		out_json_str(&r->event, r->fingerprint);
		if (!r->n_running && !r->due)  /* the last event */
			timings(r);
	}
	if (!k->ended)
		timings_so_far(r, k->c);
	PUT(&r->event, "}\n\n");
	choice_written(k->c, &k->part, k->n_scores, k->n_ids);
	return true;
}

bool event_closes(struct request *r)
{
	PUT(&r->event, "}\n\n");
	return true;
}

void event_of_part(struct request *r, struct choice *c, event_field *const *field, bool with_prompt)
{
	r->pen = (struct pen){
		.field = field, .c = c, .part = choice_part(c), .first = !c->echoed, .with_prompt = with_prompt,
		.ended = c->state == CHOICE_ENDED && !choice_more(c),
		.n_scores = c->scores.bytes.n, .n_ids = c->ids.n, .n_counted = counted(r, c),
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
		.field = k->field, .next_choice = k->next_choice, .c = c, .part = choice_part(c), .first = true,
		.with_prompt = k->with_prompt, .ended = true, .n_scores = c->scores.bytes.n, .n_ids = c->ids.n,
	};
}

/* Close a choice, free what was written of it, and begin the next.  True: it was the last. */
bool event_next_choice(struct request *r)
{
	struct choice *c = r->pen.c;

	PUT(&r->event, "}");
	choice_free(c);
	r->pen.c = NULL;
	if (c->index + 1 == r->n_choices)
		return true;
	PUT(&r->event, ",");
	r->pen.field = r->pen.next_choice;
	on_choice(r, c + 1);
	return false;
}

bool event_choice_closes(struct request *r)
{
	PUT(&r->event, ",\"routed_experts\":null");
	return event_next_choice(r);
}

void event_usage_object(struct request *r)
{
	struct out *o = &r->event;

	usage(r, prompt_tokens(r), all_completion(r));
	if (r->details)
		out_fmt(o, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld,\"created_cache_tokens\":null,"
		        "\"multimodal_tokens\":null}", (long long)all_cached(r));
	else
		PUT(o, ",\"prompt_tokens_details\":null");
	PUT(o, ",\"completion_tokens_details\":null}");
}

bool event_answer_usage(struct request *r)
{
	struct out *o = &r->event;

	PUT(o, "],\"service_tier\":null,\"system_fingerprint\":");
	out_json_str(o, r->fingerprint);
	PUT(o, ",");
	event_usage_object(r);
	return true;
}

bool event_answer_closes(struct request *r)
{
	PUT(&r->event, ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null");
	timings(r);
	PUT(&r->event, "}");
	return true;
}

void event_of_answer(struct request *r, event_field *const *field, bool with_prompt)
{
	r->pen = (struct pen){ .field = field, .next_choice = field + 1, .with_prompt = with_prompt };
	on_choice(r, r->choice);
}

bool event_write(struct request *r)
{
	struct pen *k = &r->pen;

	out_reset(&r->event);
	for (int i = 0; *k->field && i < PIECES && r->event.n < CONN_SLICE && !r->event.failed; i++)
		if ((*k->field)(r)) {
			k->field++;
			k->at = 0;
			k->some = k->in_answer = false;
		}
	return !*k->field;
}
