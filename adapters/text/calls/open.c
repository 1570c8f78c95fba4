/* open.c - formats with a vocabulary: which parser is meant, and its markers as the splitter finds them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/slipring-text.h"
#include "impl.h"

#define MARKER_IDS 32

static const struct call_format no_calls = { .style = CALL_NONE };

/* ---- markers ---- */

static bool add_token(struct calls *c, int32_t id, const char *p, size_t n)
{
	int32_t *more;
	char **names;

	if (calls_token(c, id))
		return true;
	more = realloc(c->token, (size_t)(c->n_tokens + 1) * sizeof(*more));
	if (!more)
		return false;
	c->token = more;
	names = realloc(c->spelling, (size_t)(c->n_tokens + 1) * sizeof(*names));
	if (!names)
		return false;
	c->spelling = names;
	c->spelling[c->n_tokens] = strndup(p, n);
	if (!c->spelling[c->n_tokens])
		return false;
	c->token[c->n_tokens++] = id;
	return true;
}

static int ids_of(const char *s, const struct sr_text *t, int32_t id[MARKER_IDS])
{
	int64_t n = 0;

	if (t && s)
		n = sr_text_encode(t, s, strlen(s), SR_TEXT_SPECIAL_PARSE, id, MARKER_IDS, MARKER_IDS);
	return n > MARKER_IDS ? 0 : (int)n;
}

/* The special tokens of a marker.  `one`: it counts if it is one token of any kind. */
static int tokens(struct calls *c, struct marker *m, const char *s, const struct sr_text *t, bool one)
{
	int32_t id[MARKER_IDS];
	int n = ids_of(s, t, id);
	bool special;
	const char *p;

	if (n == -ENOMEM)
		return n;
	m->id = n == 1 ? id[0] : -1;
	for (int i = 0; i < n; i++) {
		int k = sr_text_piece(t, id[i], &p, &special);

		if (k > 0 && (special || (one && n == 1)) && !add_token(c, id[i], p, (size_t)k))
			return -ENOMEM;
	}
	return 0;
}

/* The text of a marker, with CALLS_MARK before each of those tokens. */
static int text_of(const struct calls *c, struct marker *m, const char *s, const struct sr_text *t)
{
	int32_t id[MARKER_IDS];
	int n = ids_of(s, t, id);
	const char *piece, *at;
	size_t k;

	if (!s || !*s)
		return 0;
	m->s = malloc(strlen(s) + MARKER_IDS);
	if (!m->s || n == -ENOMEM)
		return -ENOMEM;
	for (int i = 0; i < n; i++) {
		if (!calls_token(c, id[i]))
			continue;
		k = (size_t)sr_text_piece(t, id[i], &piece, NULL);
		at = memmem(s, strlen(s), piece, k);
		if (!at)
			continue;
		memcpy(m->s + m->n, s, (size_t)(at - s));
		m->n += (size_t)(at - s);
		m->s[m->n++] = CALLS_MARK;
		memcpy(m->s + m->n, piece, k);
		m->n += k;
		s = at + k;
	}
	k = strlen(s);
	memcpy(m->s + m->n, s, k);
	m->n += k;
	return 0;
}

static int markers(struct calls *c, const struct sr_text *t)
{
	const char *s[M_LAST + 1];
	struct marker *m[M_LAST + 1];
	int i, r = 0;

	for (i = 0; i < M_LAST; i++) {
		s[i] = c->format->mark[i];
		m[i] = &c->mark[i];
	}
	s[M_THINK] = c->think ? c->think->start : NULL;
	s[M_THINK_END] = c->think ? c->think->end : NULL;
	s[M_LAST] = c->think ? c->think->alternative : NULL;
	m[M_LAST] = &c->think_also;
	for (i = 0; i <= M_LAST && !r; i++)
		r = tokens(c, m[i], s[i], t, i == M_THINK || i == M_THINK_END || i == M_LAST);
	for (i = 0; i <= M_LAST && !r; i++)
		r = text_of(c, m[i], s[i], t);
	return r;
}

size_t calls_plain(char *s, size_t n)
{
	size_t k = 0;

	for (size_t i = 0; i < n; i++)
		if (s[i] != CALLS_MARK)
			s[k++] = s[i];
	return k;
}

/* ---- which ---- */

static int wrong_name(char *err, size_t errlen, const char *flag, const char *name,
                      void (*list)(char *, size_t))
{
	char names[1024];

	list(names, sizeof(names));
	snprintf(err, errlen, "--%s %.64s: there is no such parser; none, or one of %s", flag, name, names);
	return -EINVAL;
}

static int choose(struct calls *c, const char *tools, const char *reasoning, const char *source, char *err,
                  size_t errlen)
{
	const bool named_tools = tools && *tools, named_thoughts = reasoning && *reasoning;

	c->format = named_tools ? format_named(tools) : format_of(source);
	if (named_tools && !strcmp(tools, "none"))
		c->format = &no_calls;
	if (!c->format)
		return wrong_name(err, errlen, "tool-call-parser", tools, formats_list);
	c->think = named_thoughts ? think_named(reasoning) : think_of(source);
	if (named_thoughts && !c->think && strcmp(reasoning, "none"))
		return wrong_name(err, errlen, "reasoning-parser", reasoning, thinks_list);
	/* Thoughts of gpt-oss are messages like its calls. */
	if (c->think && !*c->think->end && c->format->style != CALL_HARMONY)
		c->think = NULL;
	if (!named_tools && c->format == format_named("generic"))
		c->derived = format_derived(source, c->think ? c->think->end : NULL);
	if (c->derived)
		c->format = c->derived;
	return 0;
}

int calls_open(struct calls **out, const char *tools, const char *reasoning, const struct sr_text *text,
               const char *source, char *err, size_t errlen)
{
	struct calls *c = calloc(1, sizeof(*c));
	int r;

	*out = NULL;
	if (!c)
		return -ENOMEM;
	r = choose(c, tools, reasoning, source, err, errlen);
	if (!r) {
		r = markers(c, text);
		if (r)
			snprintf(err, errlen, "there is no memory for the markers of tool calls");
	}
	if (r) {
		calls_close(c);
		return r;
	}
	*out = c;
	return 0;
}

void calls_close(struct calls *c)
{
	if (!c)
		return;
	for (int i = 0; i < M_LAST; i++)
		free(c->mark[i].s);
	free(c->think_also.s);
	free(c->derived);
	for (int i = 0; i < c->n_tokens; i++)
		free(c->spelling[i]);
	free(c->spelling);
	free(c->token);
	free(c);
}

/* ---- what is known of it ---- */

const char *calls_tools(const struct calls *c) { return c->format->name[0]; }
const char *calls_reasoning(const struct calls *c) { return c->think ? c->think->name[0] : NULL; }
bool calls_described(const struct calls *c) { return c->format == format_named("generic"); }
enum calls_ids calls_ids(const struct calls *c) { return c->format->ids; }

bool calls_token(const struct calls *c, int32_t id)
{
	for (int i = 0; i < c->n_tokens; i++)
		if (c->token[i] == id)
			return true;
	return false;
}

bool calls_thought(const struct calls *c, enum calls_begin begin, struct sr_thought *t)
{
	bool known;

	*t = (struct sr_thought){ .opened = begin == CALLS_THINKING, .begin = c->mark[M_THINK].id, .most = -1 };
	if (c->think && c->mark[M_THINK_END].id >= 0)
		t->end[t->n_end++] = c->mark[M_THINK_END].id;
	if (c->think && c->think->alternative && c->think_also.id >= 0)
		t->end[t->n_end++] = c->think_also.id;
	known = t->n_end && (begin != CALLS_EITHER || t->begin >= 0);
	if (!known || begin == CALLS_ANSWERING)
		t->n_end = 0;
	return known;
}

/* Does p[0..n) end with `with`? */
static bool ends(const char *p, size_t n, const char *with)
{
	size_t k = strlen(with);

	return k && n >= k && !memcmp(p + n - k, with, k);
}

enum calls_begin calls_begin(const struct calls *c, const char *prompt, size_t n)
{
	const struct think_format *t = c->think;

	if (!t || !*t->end)
		return CALLS_ANSWERING;
	while (n && strchr(" \t\r\n", prompt[n - 1]))
		n--;
	if (ends(prompt, n, t->end) || (t->alternative && ends(prompt, n, t->alternative)))
		return CALLS_ANSWERING;
	return t->opened || ends(prompt, n, t->start) ? CALLS_THINKING : CALLS_EITHER;
}
