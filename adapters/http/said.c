/* said.c - see said.h. */
#include "said.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "adapters/http/json/openai.h"

struct said {
	const struct calls *calls;
	struct splitter_options options;
	struct splitter *splitter;
	json_t *tools;                 /* a reference */
	bool reasoning;                /* thoughts are given */
	const char *prefix;            /* of ids of calls */
	int n_calls;                   /* that were given */
	bool malformed, no_memory;
	struct out id;                 /* of the call that comes next */

	struct out parts, bytes;       /* stream: struct said_part[], and what they have */
	struct out content, thought, list; /* whole */
	struct out arguments;          /* whole: of the last call, to check them */
	size_t last_call;              /* where it begins in the list */
};

/* ---- ids ---- */

static void make_id(const struct said *s, struct out *id)
{
	static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	uint64_t random = 0;

	if (id->n)
		return;
	if (getrandom(&random, sizeof(random), 0) < 0)
		random = (uint64_t)(uintptr_t)s + (uint64_t)s->n_calls;
	if (calls_ids(s->calls) == CALLS_IDS_LONG) {
		out_fmt(id, "%s%016llx", s->prefix, (unsigned long long)random);
		return;
	}
	for (int i = 0; i < 9; i++, random /= 62)
		out_bytes(id, letters + random % 62, 1);
}

/* ---- parts of a stream ---- */

static void add_part(struct said *s, enum said_kind kind, size_t n_id, const char *p, size_t n)
{
	struct said_part *last = s->parts.n ? (struct said_part *)(void *)(s->parts.p + s->parts.n) - 1 : NULL;
	struct said_part part = { kind, s->n_calls - 1, n_id, n + n_id };

	out_bytes(&s->bytes, p, n);
	if (last && kind != SAID_CALL && last->kind == kind && last->call == part.call)
		last->n += n;
	else
		out_bytes(&s->parts, &part, sizeof(part));
}

static void put_part(void *ctx, enum calls_part part, const char *p, size_t n)
{
	struct said *s = ctx;

	switch (part) {
	case CALLS_CONTENT:
		add_part(s, SAID_TEXT, 0, p, n);
		break;
	case CALLS_REASONING:
		if (s->reasoning)
			add_part(s, SAID_REASONING, 0, p, n);
		break;
	case CALLS_ID:
		out_bytes(&s->id, p, n);
		break;
	case CALLS_NAME:
		make_id(s, &s->id);
		s->n_calls++;
		out_bytes(&s->bytes, s->id.p, s->id.n);
		add_part(s, SAID_CALL, s->id.n, p, n);
		out_reset(&s->id);
		break;
	case CALLS_ARGUMENTS:
		add_part(s, SAID_ARGUMENTS, 0, p, n);
	}
}

size_t said_parts(const struct said *s) { return s->parts.n / sizeof(struct said_part); }
const char *said_bytes(const struct said *s) { return s->bytes.p; }

struct said_part said_first(const struct said *s)
{
	return s->parts.n ? *(const struct said_part *)(const void *)s->parts.p : (struct said_part){ 0 };
}

static void drop_front(struct out *o, size_t n)
{
	memmove(o->p, o->p + n, o->n - n);
	o->n -= n;
}

/* More may have been added to the part while it was written. */
void said_written(struct said *s, const struct said_part *p)
{
	struct said_part *first = (struct said_part *)(void *)s->parts.p;

	if (p->kind == SAID_NOTHING)
		return;
	if (p->n)
		drop_front(&s->bytes, p->n);
	first->n -= p->n;
	if (!first->n)
		drop_front(&s->parts, sizeof(*first));
}

/* ---- whole answers ---- */

/* The arguments of the last call are complete. */
static void call_ends(struct said *s)
{
	json_error_t e;
	json_t *v;

	if (!s->n_calls)
		return;
	out_str(&s->list, "\"}}");
	v = json_loadb(s->arguments.n ? s->arguments.p : "", s->arguments.n,
	               JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
	if (!v && json_error_code(&e) != json_error_numeric_overflow)
		s->malformed = true;
	json_decref(v);
	out_reset(&s->arguments);
}

static void put_whole(void *ctx, enum calls_part part, const char *p, size_t n)
{
	struct said *s = ctx;

	switch (part) {
	case CALLS_CONTENT:
		out_bytes(&s->content, p, n);
		break;
	case CALLS_REASONING:
		if (s->reasoning)
			out_bytes(&s->thought, p, n);
		break;
	case CALLS_ID:
		out_bytes(&s->id, p, n);
		break;
	case CALLS_NAME:
		call_ends(s);
		make_id(s, &s->id);
		s->last_call = s->list.n;
		out_str(&s->list, s->n_calls++ ? ",{\"id\":" : "{\"id\":");
		out_json(&s->list, s->id.p, s->id.n);
		out_str(&s->list, ",\"type\":\"function\",\"function\":{\"name\":");
		out_json(&s->list, p, n);
		out_str(&s->list, ",\"arguments\":\"");
		out_reset(&s->id);
		break;
	case CALLS_ARGUMENTS:
		out_escaped(&s->list, p, n);
		out_bytes(&s->arguments, p, n);
	}
}

static void split_whole(struct said *s, const char *text, size_t n)
{
	struct splitter_result r;

	s->splitter = splitter_create(s->calls, &s->options);
	if (!s->splitter) {
		s->no_memory = true;
		return;
	}
	splitter_text(s->splitter, text, n);
	said_text_ends(s);
	r = splitter_result(s->splitter);
	if (r.open) {                         /* its arguments are cut */
		s->list.n = s->last_call;
		s->n_calls--;
		out_reset(&s->arguments);
	} else {
		call_ends(s);
	}
	s->malformed |= r.malformed || (!r.whole && !s->n_calls);
}

void said_whole(struct said *s, const char *text, size_t n)
{
	s->options.put = put_whole;
	splitter_free(s->splitter);
	split_whole(s, text, n);
	if (!s->malformed)
		return;
	out_reset(&s->content);
	out_reset(&s->thought);
	out_reset(&s->list);
	s->n_calls = 0;
	s->options.parse_calls = s->options.forced = false;
	splitter_free(s->splitter);
	split_whole(s, text, n);
	s->malformed = true;
}

const struct out *said_content(const struct said *s) { return &s->content; }
const struct out *said_reasoning(const struct said *s) { return &s->thought; }
const struct out *said_calls(const struct said *s) { return &s->list; }

/* ---- both ---- */

void said_text(struct said *s, const char *text, size_t n) { splitter_text(s->splitter, text, n); }

void said_text_ends(struct said *s)
{
	struct splitter_result r;

	splitter_end(s->splitter);
	r = splitter_result(s->splitter);
	s->no_memory |= r.failed;
}

int said_n_calls(const struct said *s) { return s->n_calls; }

bool said_lost(const struct said *s)
{
	return s->no_memory || s->parts.failed || s->bytes.failed || s->content.failed || s->thought.failed ||
		s->list.failed || s->id.failed || s->arguments.failed;
}

struct said *said_open(const struct ask *a, const struct calls *c)
{
	struct said *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->calls = c;
	s->tools = json_incref(a->tools);
	s->reasoning = a->include_reasoning;
	s->prefix = a->call_prefix ? a->call_prefix : "chatcmpl-tool-";
	s->options = (struct splitter_options){
		.begin = a->begin, .tools = s->tools, .parse_calls = a->tool_choice != ASK_TOOLS_NONE,
		.forced = a->tool_choice > ASK_TOOLS_AUTO, .most = a->parallel_calls ? 0 : 1,
		.put = put_part, .ctx = s,
	};
	s->splitter = splitter_create(c, &s->options);
	if (!s->splitter) {
		said_close(s);
		return NULL;
	}
	return s;
}

void said_close(struct said *s)
{
	if (!s)
		return;
	splitter_free(s->splitter);
	json_decref(s->tools);
	out_free(&s->id);
	out_free(&s->parts);
	out_free(&s->bytes);
	out_free(&s->content);
	out_free(&s->thought);
	out_free(&s->list);
	out_free(&s->arguments);
	free(s);
}
