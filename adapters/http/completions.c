/* completions.c - /v1/completions: prompts in, texts out. */
#include <string.h>

#include "dialect.h"
#include "events.h"
#include "request.h"

static int parse(struct ask *a, const char *body, size_t n, const struct ask_limits *l, struct problem *p)
{
	return ask_parse(a, ASK_COMPLETION, body, n, l, p) < 0 ? -1 : ask_prompts(a, l, p);
}

/* ---- text ---- */

static bool text_opens(struct request *r)
{
	event_choice_opens(r);
	PUT(&r->event, ",\"text\":\"");
	return true;
}

/* Write the prompt's text for echo: the text that was sent, or the text of the ids. */
static bool echo_text(struct request *r)
{
	const struct prompt *q = event_prompt(r);
	const size_t longest = sr_text_longest(r->limits.text) + 16;
	struct out text = { 0 };
	size_t end;
	int n;

	if (!r->pen.with_prompt || r->ask.return_token_ids)
		return true;
	if (q->text)
		return event_text(r, q->text, q->n_text);
	if (!r->pen.at)
		sr_detok_init(&r->pen.detok, false);
	end = r->pen.at + EVENT_IDS < q->ids.n ? r->pen.at + EVENT_IDS : q->ids.n;
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

static bool text_closes(struct request *r)
{
	out_str(&r->event, r->ask.logprobs == ASK_NONE ? "\",\"logprobs\":null" : "\",\"logprobs\":");
	return true;
}

/* ---- log-probabilities: four arrays over prompt and answer, each a field ---- */

struct name { const char *s; size_t n; };

static bool same_name(const struct request *r, const struct sr_pair *a, const struct name *s,
                      const struct sr_pair *b, const struct name *t)
{
	return r->ask.tokens_as_ids ? a->id == b->id : s->n == t->n && !memcmp(s->s, t->s, s->n);
}

/* Write {"token":logprob,..} with at most `most` + 1 entries.  Of entries with one name the best counts. */
static void named(const struct request *r, struct out *o, const struct score *p, int64_t most)
{
	struct sr_pair e[SR_TOP_MAX + 1];
	struct name name[SR_TOP_MAX + 1];
	int i, k, n = event_entries(p, e);

	n = n <= most ? n : (int)most + 1;
	for (i = 0; i < n; i++)
		name[i].s = event_piece(r, e[i].id, &name[i].n);
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
		event_token_name(r, o, e[i].id);
		PUT(o, ":");
		out_double(o, event_logprob(e[i].value));
	}
	PUT(o, "}");
}

/* The next token of the prompt, if the event has it, and then of the answer; false after the last. */
static bool next_scored(struct request *r, struct score *p)
{
	struct pen *k = &r->pen;
	const struct scores *prompt = k->with_prompt ? &r->scored[k->c->prompt].scores : NULL;

	if (!k->in_answer && prompt && scores_next(prompt, prompt->bytes.n, &k->at, p))
		return true;
	if (!k->in_answer)
		k->at = 0;
	k->in_answer = true;
	return scores_next(&k->c->scores, k->n_scores, &k->at, p);
}

static void offset_of(struct request *r, const struct score *p)
{
	char id[32];
	const char *s;
	size_t n;

	out_int(&r->event, r->pen.offset);
	if (r->ask.tokens_as_ids) {
		r->pen.offset += (uint32_t)snprintf(id, sizeof(id), "token_id:%d", p->id);
	} else {
		s = event_piece(r, p->id, &n);
		r->pen.offset += (uint32_t)utf8_count(s, n);
	}
}

static void name_of(struct request *r, const struct score *p) { event_token_name(r, &r->event, p->id); }

static void score_of(struct request *r, const struct score *p)
{
	if (p->rank)
		out_double(&r->event, event_logprob(p->logprob));
	else
		PUT(&r->event, "null");
}

static void names_of(struct request *r, const struct score *p)
{
	if (p->rank)
		named(r, &r->event, p, r->ask.logprobs);
	else
		PUT(&r->event, "null");
}

/* Write one token of one array. */
static bool array_piece(struct request *r, const char *name,
                        void (*put)(struct request *, const struct score *))
{
	struct score p;

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

static bool logprobs_close(struct request *r)
{
	if (r->ask.logprobs != ASK_NONE)
		PUT(&r->event, "}");
	return true;
}

/* ---- events and answers ---- */

static bool usage_so_far(struct request *r)
{
	PUT(&r->event, "}]");
	if (event_usage_so_far(r, event_prompt(r)->ids.n, r->pen.n_counted))
		PUT(&r->event, "}");
	return true;
}

/* The prompt's log-probabilities are written: free them after the last answer to it. */
static bool prompt_done(struct request *r)
{
	const struct choice *c = r->pen.c;

	if (r->scored && (c->index + 1) % (int)r->ask.n == 0)
		out_free(&r->scored[c->prompt].scores.bytes);
	return true;
}

static bool nothing_yet(struct request *r)
{
	out_fmt(&r->event, "{\"index\":%d,\"text\":\"\",\"logprobs\":null,\"finish_reason\":null,"
	        "\"stop_reason\":null}", r->pen.part.index);
	return true;
}

static event_field *const chunk[] = { event_head, text_opens, echo_text, event_answer_text, text_closes,
	offsets, scores, tokens, tops, logprobs_close, event_finish_reason, event_stop_reason, event_prompt_ids,
	event_token_ids, usage_so_far, event_part_closes, NULL };
static event_field *const answer[] = { event_head, text_opens, echo_text, event_answer_text, text_closes,
	offsets, scores, tokens, tops, logprobs_close, event_finish_reason, event_stop_reason, event_token_ids,
	event_prompt_logprobs, event_prompt_ids, prompt_done, event_choice_closes, event_answer_usage,
	event_answer_closes, NULL };
static event_field *const progress_event[] = { event_head, nothing_yet, event_progress, NULL };
static event_field *const all_usage[] = { event_head, event_usage, NULL };

static void part(struct request *r, struct choice *c)
{
	event_of_part(r, c, chunk, !c->echoed && r->ask.echo);
}

static void usage(struct request *r) { r->pen = (struct pen){ .field = all_usage }; }

static void progress(struct request *r)
{
	r->pen = (struct pen){ .field = progress_event, .c = r->computed, .part.index = r->computed->index };
}

static void whole(struct request *r) { event_of_answer(r, answer, r->ask.echo); }

const struct dialect dialect_completions = {
	.path = "/v1/completions", .id_prefix = "cmpl", .object = "text_completion", .chunk = "text_completion",
	.parse = parse, .part = part, .usage = usage, .progress = progress,
	.end = "data: [DONE]\n\n", .whole = whole,
	.problem = event_problem,
};
