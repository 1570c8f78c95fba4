/* events.c - the bytes of answers: SSE chunks and whole bodies, key by key in vLLM's order,
 * with the nulls that it leaves in.  Written straight into r->event, no tree.
 */
#include <math.h>
#include <string.h>

#include "request.h"

#define PUT(o, literal) out_bytes(o, literal, sizeof(literal) - 1)

const char *finish_name(enum choice_finish f)
{
	switch (f) {
	case STOPPED: return "stop";
	case LENGTH: return "length";
	case FAILED: return "error";
	default: return NULL;
	}
}

/* Members that are null unless they were asked for. */
static void token_ids(const struct request *r, struct out *o, const struct choice *c)
{
	PUT(o, ",\"token_ids\":");
	if (r->ask.return_token_ids)
		out_ids(o, (const int32_t *)(const void *)c->ids.p, c->ids.n / sizeof(int32_t));
	else
		PUT(o, "null");
}

static void prompt_ids(struct out *o, const struct prompt *q, bool wanted)
{
	PUT(o, ",\"prompt_token_ids\":");
	if (wanted)
		out_ids(o, q->ids.id, q->ids.n);
	else
		PUT(o, "null");
}

static void prompt_text(const struct request *r, struct out *o, const struct prompt *q)
{
	PUT(o, ",\"prompt_text\":");
	if (r->ask.return_prompt_text)
		out_json(o, q->text, q->n_text);
	else
		PUT(o, "null");
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
		out_fmt(o, "\"token_id:%d\"", id);
		return;
	}
	s = piece(r, id, &n);
	out_json(o, s, n);
}

static double logprob(float v) { return isnan(v) || v < -9999.0f ? -9999.0 : (double)v; }

/* The token itself, then its alternatives without it, most likely first: which = 0 .. */
static bool entry(const struct lp *p, uint32_t which, struct sr_pair *out)
{
	uint32_t i;

	if (!which) {
		*out = (struct sr_pair){ p->id, p->logprob };
		return true;
	}
	for (i = 0; i < p->n_top; i++)
		if (p->top[i].id != p->id && !--which) {
			*out = p->top[i];
			return true;
		}
	return false;
}

static bool same_name(const struct request *r, int32_t a, int32_t b)
{
	size_t n, m;
	const char *s, *t;

	if (r->ask.tokens_as_ids)
		return a == b;
	s = piece(r, a, &n);
	t = piece(r, b, &m);
	return n == m && !memcmp(s, t, n);
}

/* {"token":logprob,..} with at most n + 1 of them.  Of several with one name, the best. */
static void named(const struct request *r, struct out *o, const struct lp *p, int64_t n)
{
	struct sr_pair e, other;
	uint32_t i, k;
	bool first = true, seen;

	PUT(o, "{");
	for (i = 0; i <= n && entry(p, i, &e); i++) {
		for (k = 0, seen = false; k < i && !seen; k++)
			seen = entry(p, k, &other) && same_name(r, e.id, other.id);
		if (seen)
			continue;
		for (k = i + 1; k <= n && entry(p, k, &other); k++)
			if (other.value > e.value && same_name(r, e.id, other.id))
				e.value = other.value;
		if (!first)
			PUT(o, ",");
		first = false;
		token_name(r, o, e.id);
		PUT(o, ":");
		out_double(o, logprob(e.value));
	}
	PUT(o, "}");
}

/* Completions: four arrays over prompt (may be NULL) and answer. */
static void completion_logprobs(struct request *r, struct out *o, struct choice *c,
                                const struct lps *prompt, const struct lps *tokens)
{
	const struct lps *list[] = { prompt, tokens };
	const char *const name[] = { "{\"text_offset\":[", "],\"token_logprobs\":[", "],\"tokens\":[",
		"],\"top_logprobs\":[" };
	const struct lp *p;
	size_t at, n;
	uint32_t offset = c->offset;
	bool first;
	int what, i;

	for (what = 0; what < 4; what++) {
		out_str(o, name[what]);
		for (i = 0, first = true; i < 2; i++)
			for (at = 0; list[i] && (p = lps_next(list[i], &at)); first = false) {
				if (!first)
					PUT(o, ",");
				if (what == 0) {
					const char *s = piece(r, p->id, &n);
					char id[32];

					out_int(o, offset);
					offset += r->ask.tokens_as_ids ?
						(uint32_t)snprintf(id, sizeof(id), "token_id:%d", p->id) :
						(uint32_t)utf8_count(s, n);
				} else if (what == 2) {
					token_name(r, o, p->id);
				} else if (!p->rank) {
					PUT(o, "null");
				} else if (what == 1) {
					out_double(o, logprob(p->logprob));
				} else {
					named(r, o, p, r->ask.logprobs);
				}
			}
	}
	PUT(o, "]}");
	c->offset = offset;
}

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

static void chat_logprobs(const struct request *r, struct out *o, const struct lps *tokens)
{
	const struct lp *p;
	struct sr_pair e;
	size_t at = 0;
	uint32_t i;
	bool first = true;

	PUT(o, "{\"content\":[");
	while ((p = lps_next(tokens, &at))) {
		if (!first)
			PUT(o, ",");
		first = false;
		chat_entry(r, o, (struct sr_pair){ p->id, p->logprob });
		PUT(o, ",\"top_logprobs\":[");
		for (i = 0; i < r->ask.logprobs && entry(p, i, &e); i++) {
			if (i)
				PUT(o, ",");
			chat_entry(r, o, e);
			PUT(o, "}");
		}
		PUT(o, "]}");
	}
	PUT(o, "]}");
}

/* [null,{"3575":{"logprob":..,"rank":..,"decoded_token":".."},..},..] */
static void prompt_logprobs(const struct request *r, struct out *o, const struct lps *prompt)
{
	const struct lp *p;
	const char *s;
	size_t at = 0, n;
	uint32_t i, rank;
	int32_t id;
	bool first = true;

	PUT(o, ",\"prompt_logprobs\":");
	if (r->ask.prompt_logprobs == ASK_NONE) {
		PUT(o, "null");
		return;
	}
	PUT(o, "[");
	for (; (p = lps_next(prompt, &at)); first = false) {
		if (!first)
			PUT(o, ",");
		if (!p->rank) {
			PUT(o, "null");
			continue;
		}
		PUT(o, "{");
		for (i = 0; i <= p->n_top; i++) {
			id = i ? p->top[i - 1].id : p->id;
			rank = i ? i : p->rank;
			if (i && id == p->id)
				continue;
			out_fmt(o, "%s\"%d\":{\"logprob\":", i ? "," : "", id);
			out_double(o, logprob(i ? p->top[i - 1].value : p->logprob));
			s = piece(r, id, &n);
			out_fmt(o, ",\"rank\":%u,\"decoded_token\":", rank);
			out_json(o, s, n);
			PUT(o, "}");
		}
		PUT(o, "}");
	}
	PUT(o, "]");
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

static void begin(struct request *r)
{
	out_reset(&r->event);
	r->event.failed = r->head.failed;
	PUT(&r->event, "data: ");
	out_bytes(&r->event, r->head.p, r->head.n);
}

static void stop_reason(struct out *o, const struct choice *c)
{
	if (c->stop_string)
		out_json(o, c->stop_string, c->stop_string_len);
	else if (c->stop_id >= 0)
		out_int(o, c->stop_id);
	else
		PUT(o, "null");
}

/* Prompt tokens are counted once per prompt, however many answers it has. */
static int64_t prompt_tokens(const struct request *r)
{
	int64_t n = 0;
	int i;

	for (i = 0; i < r->ask.n_prompts; i++)
		n += r->ask.prompt[i].ids.n;
	return n;
}

/* What an answer counts as.  With max_tokens 0 vLLM computes a token and does not show it. */
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

/* ---- streams ---- */

void event_role(struct request *r, int index)
{
	struct out *o = &r->event;
	const struct prompt *q = &r->ask.prompt[0];

	begin(r);
	out_fmt(o, "{\"index\":%d,\"delta\":{\"role\":", index);
	out_json_str(o, r->limits.response_role);
	PUT(o, ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
	running_usage(r, q->ids.n, 0);
	prompt_ids(o, q, r->ask.return_token_ids);
	prompt_text(r, o, q);
	PUT(o, "}\n\n");
}

void event_echo(struct request *r, int index)
{
	begin(r);
	out_fmt(&r->event, "{\"index\":%d,\"delta\":{\"content\":", index);
	out_json(&r->event, json_string_value(r->ask.last_content), json_string_length(r->ask.last_content));
	PUT(&r->event, "},\"logprobs\":null,\"finish_reason\":null}]");
	running_usage(r, r->ask.prompt[0].ids.n, 0);
	PUT(&r->event, "}\n\n");
}

/* The prompt's text, as echo gives it back: what was sent, or its ids turned to text. */
static void echo_text(const struct request *r, struct out *o, const struct prompt *q)
{
	struct out text = { 0 };
	int64_t n;

	if (r->ask.return_token_ids)
		return;
	if (q->text) {
		out_escaped(o, q->text, q->n_text);
		return;
	}
	n = sr_text_decode(r->limits.text, q->ids.id, q->ids.n, false, NULL, 0);
	if (n > 0 && out_room(&text, (size_t)n)) {
		sr_text_decode(r->limits.text, q->ids.id, q->ids.n, false, text.p, (size_t)n);
		out_escaped(o, text.p, (size_t)n);
	}
	o->failed |= text.failed;
	out_free(&text);
}

static void completion_chunk(struct request *r, struct choice *c)
{
	struct out *o = &r->event;
	const struct prompt *q = &r->ask.prompt[c->prompt];
	bool first = !c->echoed, with_prompt = first && r->ask.echo;

	c->echoed = true;
	out_fmt(o, "{\"index\":%d,\"text\":\"", c->index);
	if (with_prompt)
		echo_text(r, o, q);
	out_escaped(o, c->text.p, c->ready);
	PUT(o, "\",\"logprobs\":");
	if (r->ask.logprobs != ASK_NONE)
		completion_logprobs(r, o, c, with_prompt ? &c->prompt_lps : NULL, &c->lps);
	else
		PUT(o, "null");
	PUT(o, ",\"finish_reason\":");
	out_json_str(o, c->ended ? finish_name(c->finish) : NULL);
	PUT(o, ",\"stop_reason\":");
	stop_reason(o, c);
	prompt_ids(o, q, with_prompt || (first && r->ask.return_token_ids));
}

static void chat_chunk(struct request *r, struct choice *c)
{
	struct out *o = &r->event;

	out_fmt(o, "{\"index\":%d,\"delta\":{\"content\":", c->index);
	out_json(o, c->text.p, c->ready);
	PUT(o, "},\"logprobs\":");
	if (r->ask.logprobs != ASK_NONE && c->lps.n)
		chat_logprobs(r, o, &c->lps);
	else
		PUT(o, "null");
	PUT(o, ",\"finish_reason\":");
	out_json_str(o, c->ended ? finish_name(c->finish) : NULL);
	if (c->ended) {
		PUT(o, ",\"stop_reason\":");
		stop_reason(o, c);
	}
}

void event_chunk(struct request *r, struct choice *c)
{
	struct out *o = &r->event;

	begin(r);
	o->failed |= choice_lost(c);
	if (r->kind == ASK_COMPLETION)
		completion_chunk(r, c);
	else
		chat_chunk(r, c);
	token_ids(r, o, c);
	PUT(o, "}]");
	running_usage(r, r->ask.prompt[c->prompt].ids.n, counted(r, c));
	if (c->ended && !r->ask.include_usage) {
		PUT(o, ",\"system_fingerprint\":");
		out_json_str(o, r->fingerprint);
	}
	PUT(o, "}\n\n");
	if (c->ready)                         /* what is held back moves to the front */
		memmove(c->text.p, c->text.p + c->ready, c->text.n - c->ready);
	c->text.n -= c->ready;
	c->ready = 0;
	c->waiting = 0;
	lps_reset(&c->lps);
	out_reset(&c->ids);
}

void event_usage(struct request *r)
{
	struct out *o = &r->event;

	begin(r);
	PUT(o, "],");
	usage(r, prompt_tokens(r), all_completion(r));
	if (r->details)
		out_fmt(o, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld}", (long long)all_cached(r));
	PUT(o, "},\"system_fingerprint\":");
	out_json_str(o, r->fingerprint);
	PUT(o, "}\n\n");
}

void event_problem(struct request *r, const struct problem *p)
{
	out_reset(&r->event);
	PUT(&r->event, "data: ");
	problem_event(&r->event, p);
	PUT(&r->event, "\n\n");
}

/* ---- whole answers ---- */

static void whole_completion(struct request *r, struct choice *c)
{
	struct out *o = &r->event;
	const struct prompt *q = &r->ask.prompt[c->prompt];

	o->failed |= choice_lost(c);
	out_fmt(o, "{\"index\":%d,\"text\":\"", c->index);
	if (r->ask.echo)
		echo_text(r, o, q);
	out_escaped(o, c->text.p, c->text.n);
	PUT(o, "\",\"logprobs\":");
	if (r->ask.logprobs != ASK_NONE)
		completion_logprobs(r, o, c, r->ask.echo ? &c->prompt_lps : NULL, &c->lps);
	else
		PUT(o, "null");
	PUT(o, ",\"finish_reason\":");
	out_json_str(o, finish_name(c->finish));
	PUT(o, ",\"stop_reason\":");
	stop_reason(o, c);
	token_ids(r, o, c);
	prompt_logprobs(r, o, &c->prompt_lps);
	prompt_ids(o, q, r->ask.return_token_ids);
	PUT(o, ",\"routed_experts\":null}");
}

static void whole_chat(struct request *r, struct choice *c)
{
	struct out *o = &r->event;

	o->failed |= choice_lost(c);
	out_fmt(o, "{\"index\":%d,\"message\":{\"role\":", c->index);
	out_json_str(o, r->limits.response_role);
	PUT(o, ",\"content\":\"");
	out_escaped(o, json_string_value(r->ask.last_content), json_string_length(r->ask.last_content));
	out_escaped(o, c->text.p, c->text.n);
	PUT(o, "\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,"
	    "\"reasoning\":null},\"logprobs\":");
	if (r->ask.logprobs != ASK_NONE)
		chat_logprobs(r, o, &c->lps);
	else
		PUT(o, "null");
	PUT(o, ",\"finish_reason\":");
	out_json_str(o, finish_name(c->finish));
	PUT(o, ",\"stop_reason\":");
	stop_reason(o, c);
	token_ids(r, o, c);
	PUT(o, ",\"routed_experts\":null}");
}

static void chat_prompt(struct request *r)
{
	struct out *o = &r->event;
	const struct prompt *q = &r->ask.prompt[0];

	prompt_logprobs(r, o, &r->choice[0].prompt_lps);
	prompt_ids(o, q, r->ask.return_token_ids);
	prompt_text(r, o, q);
}

void answer(struct request *r)
{
	struct out *o = &r->event;
	int i;

	out_reset(o);
	o->failed = r->head.failed;
	out_bytes(o, r->head.p, r->head.n);
	for (i = 0; i < r->n_choices; i++) {
		if (i)
			PUT(o, ",");
		if (r->kind == ASK_COMPLETION)
			whole_completion(r, &r->choice[i]);
		else
			whole_chat(r, &r->choice[i]);
	}
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
	if (r->kind == ASK_CHAT)
		chat_prompt(r);
	PUT(o, ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}");
}
