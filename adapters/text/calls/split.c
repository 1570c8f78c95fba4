/* split.c - the splitter's text: markers, content and thoughts.  Each style of calls has its own file. */
#include <stdlib.h>
#include <string.h>

#include "impl.h"

/* ---- memory ---- */

bool bytes_add(struct splitter *s, struct bytes *b, const char *p, size_t n)
{
	if (b->n + n > b->cap) {
		size_t cap = (b->n + n) * 2 + 64;
		char *more = realloc(b->p, cap);

		if (!more) {
			s->failed = true;
			return false;
		}
		b->p = more;
		b->cap = cap;
	}
	if (n)
		memcpy(b->p + b->n, p, n);
	b->n += n;
	return true;
}

struct splitter *splitter_create(const struct calls *c, const struct splitter_options *o)
{
	struct splitter *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->c = c;
	s->o = *o;
	s->fresh = true;
	s->state = c->format->style == CALL_HARMONY ? SPLIT_HEAD : o->begin == CALLS_THINKING ? SPLIT_THOUGHT :
		o->begin == CALLS_EITHER && c->think ? SPLIT_BEGIN : SPLIT_TEXT;
	s->keep_head = s->state == SPLIT_HEAD;
	return s;
}

void splitter_free(struct splitter *s)
{
	if (!s)
		return;
	free(s->in.p);
	free(s->blank.p);
	free(s->head.p);
	free(s->name.p);
	free(s->id.p);
	free(s->word.p);
	free(s->args.p);
	free(s->lit.word.p);
	free(s);
}

struct splitter_result splitter_result(const struct splitter *s)
{
	const bool open = s->in_call && !s->muted && !(s->state == SPLIT_BODY && s->run.done);

	return (struct splitter_result){ s->n_calls, !s->broken && !s->cut, s->broken, open, s->failed };
}

/* ---- text that is not consumed ---- */

const char *split_at(const struct splitter *s, size_t *n)
{
	*n = s->in.n - s->from;
	return s->in.p + s->from;
}

void split_take(struct splitter *s, size_t n)
{
	if (s->keep_head)
		bytes_add(s, &s->head, s->in.p + s->from, n);
	s->from += n;
}

static bool blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

size_t split_blanks(const struct splitter *s)
{
	size_t n, i = 0;
	const char *p = split_at(s, &n);

	if (s->keep_head)
		n = split_room(&s->head, HEAD_MOST, n);
	while (i < n && blank(p[i]))
		i++;
	return i;
}

/* A limit is found at the same byte, whatever the pieces are. */
size_t split_room(const struct bytes *b, size_t most, size_t n)
{
	size_t room = b->n > most ? 0 : most + 1 - b->n;

	return n < room ? n : room;
}

static enum found compare(const struct splitter *s, const struct marker *m, size_t at)
{
	size_t n = s->in.n - s->from - at, k = n < m->n ? n : m->n;

	if (!m->n || memcmp(s->in.p + s->from + at, m->s, k))
		return FOUND_NO;
	return k == m->n ? FOUND_YES : s->end && !s->o.forced ? FOUND_NO : FOUND_PART;
}

enum found split_find(const struct splitter *s, int mark)
{
	return s->from == s->in.n ? FOUND_NO : compare(s, &s->c->mark[mark], 0);
}

static size_t until(const struct splitter *s, const struct marker *const *m, int n, int *which)
{
	size_t left = s->in.n - s->from, i;
	const char *p = s->in.p + s->from;
	int k;

	*which = -1;
	for (i = 0; i < left; i++)
		for (k = 0; k < n; k++) {
			if (!m[k]->n || p[i] != m[k]->s[0])
				continue;
			switch (compare(s, m[k], i)) {
			case FOUND_YES:
				*which = k;
				return i;
			case FOUND_PART:
				return i;
			case FOUND_NO:
				break;
			}
		}
	return left;
}

size_t split_until(const struct splitter *s, const int *m, int n, int *which)
{
	const struct marker *mark[M_LAST];

	for (int k = 0; k < n; k++)
		mark[k] = &s->c->mark[m[k]];
	return until(s, mark, n, which);
}

/* ---- parts ---- */

/* Without marks of special tokens. */
void split_put(struct splitter *s, enum calls_part part, const char *p, size_t n)
{
	const char *mark;

	if (part >= CALLS_ID && s->muted)
		return;
	while (n && (mark = memchr(p, CALLS_MARK, n))) {
		if (mark > p)
			s->o.put(s->o.ctx, part, p, (size_t)(mark - p));
		n -= (size_t)(mark - p) + 1;
		p = mark + 1;
	}
	if (n)
		s->o.put(s->o.ctx, part, p, n);
}

static void put_content(struct splitter *s, const char *p, size_t n)
{
	split_put(s, CALLS_CONTENT, s->blank.p, s->blank.n);
	s->blank.n = 0;
	s->fresh = false;
	split_put(s, CALLS_CONTENT, p, n);
}

void split_open(struct splitter *s, enum split_state to)
{
	s->state = to;
	s->at = 0;
	s->in_call = false;
	s->name.n = s->id.n = s->word.n = s->args.n = 0;
	s->nested = 0;
	s->run = (struct json_run){ 0 };
	s->n_keys = 0;
}

static json_t *parameters(const struct splitter *s)
{
	json_t *tool, *f;
	size_t i;

	json_array_foreach(s->o.tools, i, tool) {
		f = json_object_get(tool, "function");
		if (json_string_length(json_object_get(f, "name")) == s->name.n &&
		    !memcmp(json_string_value(json_object_get(f, "name")), s->name.p, s->name.n))
			return json_object_get(f, "parameters");
	}
	return NULL;
}

void split_announce(struct splitter *s)
{
	s->name.n = calls_plain(s->name.p, s->name.n);
	s->parameters = parameters(s);
	s->muted = s->o.most && s->n_calls >= s->o.most;
	s->n_calls += !s->muted;
	s->in_call = true;
	s->keep_head = false;
	s->head.n = 0;
	s->blank.n = 0;
	if (s->id.n)
		split_put(s, CALLS_ID, s->id.p, s->id.n);
	split_put(s, CALLS_NAME, s->name.p, s->name.n);
}

void split_args(struct splitter *s, const char *p, size_t n)
{
	if (s->in_call)
		split_put(s, CALLS_ARGUMENTS, p, n);
	else
		bytes_add(s, &s->args, p, n);
}

void split_close(struct splitter *s)
{
	s->in_call = false;
	s->fresh = true;
	s->state = SPLIT_AFTER;
	s->at = 0;
}

/* What was consumed since the marker is content, unless its name was given. */
void split_fail(struct splitter *s)
{
	s->broken = true;
	s->in_list = false;
	s->keep_head = false;
	if (s->in_call) {
		s->in_call = false;
		s->state = SPLIT_SKIP;
		return;
	}
	s->in_section = false;
	s->state = SPLIT_TEXT;
	put_content(s, s->head.p, s->head.n);
	s->head.n = 0;
}

/* ---- text ---- */

static enum split_state state_of_call(const struct splitter *s)
{
	switch (s->c->format->style) {
	case CALL_OBJECT: return SPLIT_OBJECT;
	case CALL_PYTHON: return SPLIT_LITERAL;
	default: return SPLIT_NAME;
	}
}

/* A marker of a call or section is at the front. */
static void opens(struct splitter *s, int mark)
{
	if (!s->keep_head)
		s->head.n = 0;
	s->keep_head = true;
	split_take(s, s->c->mark[mark].n);
	s->in_list = false;
	if (mark == M_SECTION) {
		s->in_section = true;
		s->state = SPLIT_SECTION;
	} else {
		split_open(s, state_of_call(s));
	}
}

/* At the beginning of the answer: a thought's marker, perhaps after white space. */
static bool begin(struct splitter *s)
{
	const struct marker *m = &s->c->mark[M_THINK];
	size_t n, k = split_blanks(s);

	split_at(s, &n);
	if (k == n)
		return false;
	switch (compare(s, m, k)) {
	case FOUND_PART:
		return false;
	case FOUND_YES:
		split_take(s, k + m->n);
		s->state = SPLIT_THOUGHT;
		return true;
	case FOUND_NO:
		s->state = SPLIT_TEXT;
	}
	return true;
}

static bool thought(struct splitter *s)
{
	const struct marker *m[4] = { &s->c->mark[M_THINK_END] };
	const bool calls = s->o.parse_calls && s->c->think && s->c->think->ends_at_call;
	int n = 1, which;
	size_t k, left;

	if (s->at == 0) {             /* the marker of the beginning may come although the prompt had it */
		k = split_blanks(s);
		split_at(s, &left);
		if (!s->end && (k == left || compare(s, &s->c->mark[M_THINK], k) == FOUND_PART))
			return false;
		if (compare(s, &s->c->mark[M_THINK], k) == FOUND_YES)
			split_take(s, k + s->c->mark[M_THINK].n);
		s->at = 1;
	}
	if (s->c->think_also.n)
		m[n++] = &s->c->think_also;
	if (calls)
		m[n++] = &s->c->mark[s->c->mark[M_SECTION].n ? M_SECTION : M_CALL];
	k = until(s, m, n, &which);
	split_put(s, CALLS_REASONING, s->in.p + s->from, k);
	split_take(s, k);
	if (which < 0)
		return false;
	if (!calls || which < n - 1)
		split_take(s, m[which]->n);
	s->state = SPLIT_TEXT;
	return true;
}

static bool text(struct splitter *s)
{
	static const int openers[] = { M_SECTION, M_CALL };
	const struct call_format *f = s->c->format;
	size_t n, k, b = s->fresh ? split_blanks(s) : 0;
	int which = -1;
	const char *p;

	if (b) {                              /* it is content only if text follows */
		bytes_add(s, &s->blank, s->in.p + s->from, b);
		split_take(s, b);
		if (s->blank.n > BLANK_MOST)
			put_content(s, NULL, 0);
	}
	p = split_at(s, &n);
	if (!n)
		return false;
	if (s->o.parse_calls && f->bare && s->fresh && (*p == '{' || *p == '[') &&
	    (*p == '[' ? f->list : f->style == CALL_OBJECT)) {
		s->head.n = 0;
		s->keep_head = true;
		s->in_list = false;
		split_open(s, state_of_call(s));
		return true;
	}
	if (s->o.parse_calls && f->bare && s->fresh && s->n_calls && (*p == ';' || *p == ',')) {
		split_take(s, 1);             /* between two calls */
		return true;
	}
	k = s->o.parse_calls ? split_until(s, openers, 2, &which) : n;
	if (k)
		put_content(s, p, k);
	split_take(s, k);
	if (which >= 0)
		opens(s, openers[which]);
	return which >= 0;
}

/* Between the calls of a section. */
static bool section(struct splitter *s)
{
	static const int m[] = { M_CALL, M_SECTION_END };
	size_t n;

	split_take(s, split_blanks(s));
	split_at(s, &n);
	if (!n)
		return false;
	for (int i = 0; i < 2; i++)
		switch (split_find(s, m[i])) {
		case FOUND_PART:
			return false;
		case FOUND_YES:
			if (m[i] == M_CALL) {
				opens(s, M_CALL);
				return true;
			}
			split_take(s, s->c->mark[M_SECTION_END].n);
			s->in_section = s->keep_head = false;
			s->head.n = 0;
			s->state = SPLIT_TEXT;
			return true;
		case FOUND_NO:
			break;
		}
	split_fail(s);
	return true;
}

/* After the arguments: the end of the call, or the next one of a list. */
static bool after(struct splitter *s)
{
	const char *tail = s->c->format->tail;
	size_t n, k;
	const char *p;

	k = split_blanks(s);
	bytes_add(s, &s->blank, s->in.p + s->from, k);
	split_take(s, k);
	p = split_at(s, &n);
	if (!n)
		return false;
	if (s->at == 0 && tail) {             /* its white space is gone */
		tail += strspn(tail, "\n");
		k = strlen(tail);
		if (memcmp(p, tail, n < k ? n : k) == 0) {
			if (n < k && !s->end)
				return false;
			split_take(s, n < k ? n : k);
		}
		s->at = 1;
		return true;
	}
	switch (split_find(s, M_CALL_END)) {
	case FOUND_PART:
		return false;
	case FOUND_YES:
		split_take(s, s->c->mark[M_CALL_END].n);
		s->blank.n = 0;
		break;
	case FOUND_NO:
		break;
	}
	s->state = s->in_section ? SPLIT_SECTION : SPLIT_TEXT;
	return true;
}

/* A call went wrong after its name was given: drop the rest of it. */
static bool skip(struct splitter *s)
{
	static const int m[] = { M_CALL_END, M_SECTION_END };
	int which;

	split_take(s, split_until(s, m, 2, &which));
	if (which < 0)
		return false;
	split_take(s, s->c->mark[m[which]].n);
	s->in_section = s->in_section && which == 0;
	s->fresh = true;
	s->state = s->in_section ? SPLIT_SECTION : SPLIT_TEXT;
	return true;
}

static bool step(struct splitter *s)
{
	switch (s->state) {
	case SPLIT_BEGIN: return begin(s);
	case SPLIT_THOUGHT: return thought(s);
	case SPLIT_TEXT: return text(s);
	case SPLIT_SECTION: return section(s);
	case SPLIT_OBJECT: return split_object(s);
	case SPLIT_NAME: return split_name(s);
	case SPLIT_JSON: return split_json(s);
	case SPLIT_TAGS: return split_tags(s);
	case SPLIT_LITERAL: return split_literal(s);
	case SPLIT_HEAD: return split_head(s);
	case SPLIT_BODY: return split_body(s);
	case SPLIT_AFTER: return after(s);
	case SPLIT_SKIP: return skip(s);
	}
	return false;
}

static void run(struct splitter *s)
{
	bool goes_on = true;

	while (goes_on && !s->failed && (s->end || s->from < s->in.n)) {
		goes_on = step(s);
		if (s->keep_head && s->head.n > HEAD_MOST) {
			split_fail(s);
			goes_on = true;
		}
	}
	if (s->from) {
		memmove(s->in.p, s->in.p + s->from, s->in.n - s->from);
		s->in.n -= s->from;
		s->from = 0;
	}
}

void splitter_text(struct splitter *s, const char *text, size_t n)
{
	if (n && !s->failed && bytes_add(s, &s->in, text, n))
		run(s);
}

/* What is held back is content, unless a call was to come. */
void splitter_end(struct splitter *s)
{
	s->end = true;
	if (!s->in.p)                         /* pointers into it are made */
		bytes_add(s, &s->in, "", 0);
	run(s);
	if (s->failed)
		return;
	switch (s->state) {
	case SPLIT_BEGIN: case SPLIT_TEXT: case SPLIT_AFTER: case SPLIT_THOUGHT:
		break;
	case SPLIT_SECTION:
		s->cut = s->keep_head;        /* no call was in it */
		break;
	case SPLIT_HEAD:                      /* the head of a message that did not come is no text */
		s->head.n = s->in.n = 0;
		break;
	case SPLIT_BODY:
		s->cut = s->in_call && !s->run.done;
		break;
	default:
		s->cut = true;
	}
	if (s->o.forced) {
		s->cut = s->cut || s->in.n;
		return;
	}
	if (s->keep_head && s->head.n)
		put_content(s, s->head.p, s->head.n);
	if (s->in.n && !s->in_call)
		put_content(s, s->in.p, s->in.n);
	else if (s->blank.n && !s->n_calls)
		put_content(s, NULL, 0);
}
