/* derive.c - a row for a chat template of no row in the table.  The template renders chats that differ in one
 * thing: a name, an argument, a second call.  What stays equal around it are the markers.  A row counts only
 * if the splitter reads all these chats back with it; else there is none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/template/template.h"
#include "impl.h"

#define STEPS 1000000              /* of one rendering */
#define OUTPUT 65536
#define MARKERS 1024               /* bytes of all of a row */
#define SEEN 4096                  /* bytes of the calls that are read back */

/* No template says these; no two have the first or last letter in common where they are compared. */
#define TEXT "zulu_content_z"
#define FIRST "alpha_name"
#define SECOND "quick_word"
#define KEY "kappa_key"
#define VALUE "violet_val"
#define KEY_TWO "mu_field"
#define VALUE_TWO "jade_item"
#define KEY_NUMBER "sum_count"
#define NUMBER_VALUE 7301

struct span { const char *p; size_t n; };

enum chat { PLAIN, ONE, OTHER, NUMBER, TWO /* arguments */, BOTH /* functions */, N_CHATS };

/* How a template gets a chat. */
enum way_ids { WAY_LONG, WAY_NINE, WAY_FUNCTIONS, N_WAY_IDS };
static const char *const way_id[] = { "chatcmpl-tool-8d3f0a21", "a1B2c3D4e", "functions." };

struct way { bool parts; enum way_ids ids; bool text; /* arguments are a JSON text */ };

struct derived {
	struct call_format row;        /* first: it is freed by its address */
	size_t n;
	bool full;
	char text[MARKERS];
};

struct trial {
	const struct template *template;
	const char *think_end;         /* or NULL */
	struct way way;
	char *out[N_CHATS];            /* NULL: the template fails */
	struct span in[N_CHATS];       /* what the model writes of it */
	struct derived *d;
};

/* Of chat ONE: before, begin, FIRST, rest, end.  between: rest and the next begin, of chat BOTH. */
struct shape { struct span before, begin, rest, end, between; };

/* ---- spans ---- */

static struct span from_to(const char *p, const char *end) { return (struct span){ p, (size_t)(end - p) }; }
static const char *end_of(struct span s) { return s.p + s.n; }
static bool blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static struct span left(struct span s)
{
	while (s.n && blank(*s.p))
		s = (struct span){ s.p + 1, s.n - 1 };
	return s;
}

static struct span right(struct span s)
{
	while (s.n && blank(s.p[s.n - 1]))
		s.n--;
	return s;
}

static struct span trim(struct span s) { return left(right(s)); }

static bool equal(struct span a, struct span b) { return a.n == b.n && !memcmp(a.p, b.p, a.n); }

static const char *find(struct span s, const char *what)
{
	return memmem(s.p, s.n, what, strlen(what));
}

/* NULL: it is not there, or twice. */
static const char *find_once(struct span s, const char *what)
{
	const char *at = find(s, what);

	return at && !find(from_to(at + 1, end_of(s)), what) ? at : NULL;
}

/* The front of a that b has, too.  Unless it is all of a, it ends inside no character and inside no <..>. */
static struct span same_front(struct span a, struct span b)
{
	const char *open;
	size_t k = 0;

	while (k < a.n && k < b.n && a.p[k] == b.p[k])
		k++;
	if (k == a.n)
		return a;
	while (k && ((unsigned char)a.p[k] & 0xc0) == 0x80)
		k--;
	open = memrchr(a.p, '<', k);
	if (open && !memchr(open, '>', k - (size_t)(open - a.p)))
		k = (size_t)(open - a.p);
	return (struct span){ a.p, k };
}

/* The back of a that b has, too.  It begins inside no character and inside no <..>. */
static struct span same_back(struct span a, struct span b)
{
	const char *open, *close;
	struct span s;
	size_t k = 0;

	while (k < a.n && k < b.n && a.p[a.n - 1 - k] == b.p[b.n - 1 - k])
		k++;
	s = (struct span){ end_of(a) - k, k };
	while (s.n && ((unsigned char)*s.p & 0xc0) == 0x80)
		s = (struct span){ s.p + 1, s.n - 1 };
	open = memchr(s.p, '<', s.n);
	close = memchr(s.p, '>', s.n);
	return close && (!open || close < open) ? from_to(close + 1, end_of(s)) : s;
}

/* ---- chats ---- */

static json_t *arguments(enum chat chat)
{
	if (chat == NUMBER)
		return json_pack("{si}", KEY_NUMBER, NUMBER_VALUE);
	if (chat == TWO)
		return json_pack("{ss ss}", KEY, VALUE, KEY_TWO, VALUE_TWO);
	return json_pack("{ss}", KEY, VALUE);
}

static const char *name_of(enum chat chat, int i) { return chat == OTHER || i ? SECOND : FIRST; }

static json_t *call(const struct way *w, enum chat chat, int i)
{
	json_t *given = arguments(chat);
	char text[256], id[64];
	size_t n;

	if (w->text) {
		n = json_dumpb(given, text, sizeof(text), 0);
		json_decref(given);
		given = json_stringn(text, n);
	}
	if (w->ids == WAY_FUNCTIONS)
		snprintf(id, sizeof(id), "%s%s:0", way_id[w->ids], name_of(chat, i));
	else
		snprintf(id, sizeof(id), "%s", way_id[w->ids]);
	return json_pack("{ss ss s{ss so}}", "id", id, "type", "function", "function", "name", name_of(chat, i),
	                 "arguments", given);
}

static json_t *content(const struct way *w, const char *s)
{
	if (!w->parts)
		return json_string(s);
	return *s ? json_pack("[{ss ss}]", "type", "text", "text", s) : json_array();
}

static json_t *answer(const struct way *w, enum chat chat)
{
	json_t *said = content(w, chat == PLAIN ? TEXT : "");

	if (chat == PLAIN)
		return json_pack("{ss so}", "role", "assistant", "content", said);
	if (chat == BOTH)
		return json_pack("{ss so s[oo]}", "role", "assistant", "content", said, "tool_calls",
		                 call(w, chat, 0), call(w, chat, 1));
	return json_pack("{ss so s[o]}", "role", "assistant", "content", said, "tool_calls", call(w, chat, 0));
}

static json_t *tool(const char *name)
{
	return json_pack("{ss s{ss ss s{ss s{s{ss} s{ss} s{ss}}}}}", "type", "function", "function", "name", name,
	                 "description", "It answers.", "parameters", "type", "object", "properties", KEY, "type",
	                 "string", KEY_TWO, "type", "string", KEY_NUMBER, "type", "integer");
}

static char *render(const struct trial *y, enum chat chat)
{
	const struct template_budget budget = { .steps = STEPS, .output = OUTPUT };
	json_t *vars = json_pack("{s[{ss so} o] s[oo] ss ss sb sn}", "messages", "role", "user", "content",
	                         content(&y->way, "Hello."), answer(&y->way, chat), "tools", tool(FIRST),
	                         tool(SECOND), "bos_token", "", "eos_token", "", "add_generation_prompt", 0,
	                         "documents");
	char why[256], *out = NULL;

	if (vars && template_render(y->template, vars, &budget, &out, why, sizeof(why)) < 0)
		out = NULL;
	json_decref(vars);
	return out;
}

/* What the model writes: where the chat differs from the one of text alone.  Before that text may stand an
 * empty thought; anything else is a head of its own, and no row says that. */
static bool written(struct trial *y, enum chat chat)
{
	const struct span plain = { y->out[PLAIN], strlen(y->out[PLAIN]) },
	                  s = { y->out[chat], strlen(y->out[chat]) };
	const char *text = find_once(plain, TEXT);
	struct span front = same_front(plain, s), back = same_back(plain, s), before, after;

	if (!text || end_of(front) > text || back.p < text + strlen(TEXT) || front.n + back.n > s.n)
		return false;
	before = trim(from_to(end_of(front), text));
	after = trim(from_to(text + strlen(TEXT), back.p));
	y->in[chat] = (struct span){ s.p + front.n, s.n - front.n - back.n };
	return !after.n && (!before.n || (y->think_end && find(before, y->think_end)));
}

/* ---- what is around a call ---- */

static bool cut_calls(const struct trial *y, struct shape *h)
{
	const struct span one = y->in[ONE], other = y->in[OTHER], both = y->in[BOTH];
	const char *name = find_once(one, FIRST), *next = find_once(other, SECOND), *second;
	struct span pre, post, mid;

	if (!name || !next)
		return false;
	pre = from_to(one.p, name);
	post = from_to(name + strlen(FIRST), end_of(one));
	if (!equal(pre, from_to(other.p, next)) || !equal(post, from_to(next + strlen(SECOND), end_of(other))))
		return false;
	*h = (struct shape){ .before = { pre.p, 0 }, .begin = left(pre), .rest = right(post),
	                     .end = { end_of(post), 0 } };
	if (!y->out[BOTH])                    /* it may allow one call only */
		return true;
	name = find_once(both, FIRST);
	second = find_once(both, SECOND);
	if (!name || !second || second < name || !equal(pre, from_to(both.p, name)) ||
	    !equal(post, from_to(second + strlen(SECOND), end_of(both))))
		return false;
	mid = from_to(name + strlen(FIRST), second);
	h->begin = left(same_back(pre, mid));
	h->rest = right(same_front(post, mid));
	if (h->begin.n + h->rest.n > mid.n)
		return false;
	h->before = trim(from_to(pre.p, h->begin.p));
	h->end = trim(from_to(end_of(h->rest), end_of(post)));
	h->between = from_to(mid.p + h->rest.n, end_of(mid) - h->begin.n);
	return true;
}

/* ---- rows ---- */

/* A copy that lives as long as the row; NULL: empty. */
static const char *keep(struct derived *d, struct span s)
{
	char *p = d->text + d->n;

	d->full |= s.n + 1 > MARKERS - d->n;
	if (!s.n || d->full)
		return NULL;
	memcpy(p, s.p, s.n);
	p[s.n] = 0;
	d->n += s.n + 1;
	return p;
}

static void keep_section(struct derived *d, const struct shape *h)
{
	d->row.mark[M_SECTION] = keep(d, h->before);
	d->row.mark[M_SECTION_END] = keep(d, h->end);
	d->row.between = keep(d, h->between);
}

/* The JSON object at p, and how long it is. */
static json_t *object_at(const char *p, const char *end, size_t *n)
{
	json_error_t e;
	json_t *v = p ? json_loadb(p, (size_t)(end - p), JSON_DISABLE_EOF_CHECK, &e) : NULL;

	*n = v ? (size_t)e.position : 0;
	if (json_is_object(v))
		return v;
	json_decref(v);
	return NULL;
}

/* Which members of a call have its name and its arguments? */
static bool fields(struct derived *d, json_t *o)
{
	json_t *inner = json_object_get(o, "function"), *given = arguments(ONE), *v;
	struct call_format *row = &d->row;
	const char *key;

	json_object_foreach(json_is_object(inner) ? inner : o, key, v) {
		struct span k = { key, strlen(key) };

		if (json_is_string(v) && !strcmp(json_string_value(v), FIRST))
			row->name_field = keep(d, k);
		else if (json_equal(v, given) && !strcmp(key, FIRST))
			row->name_field = row->args_field = "";
		else if (json_equal(v, given))
			row->args_field = keep(d, k);
	}
	json_decref(given);
	return row->name_field && row->args_field;
}

/* The JSON object that the name is in, or NULL; *n: its bytes from *open on. */
static json_t *around_name(const struct shape *h, const char **open, size_t *n)
{
	json_t *o;

	*open = memchr(h->begin.p, '{', h->begin.n);
	o = object_at(*open, end_of(h->rest), n);
	if (o && *open + *n > h->rest.p)
		return o;
	json_decref(o);
	return NULL;
}

static bool object(struct trial *y, const struct shape *h)
{
	struct call_format *row = &y->d->row;
	struct span before, after, list = h->before, list_end = h->end;
	const char *open;
	size_t n;
	json_t *o = around_name(h, &open, &n);
	const bool found = o && fields(y->d, o);
	bool own;

	json_decref(o);
	if (!found)
		return false;
	before = right(from_to(h->begin.p, open));
	after = trim(from_to(open + n, end_of(h->rest)));
	own = !list.n && !list_end.n && before.n && after.n && before.p[before.n - 1] == '[' && *after.p == ']';
	if (own) {                            /* each call is in a list of its own */
		list = before;
		list_end = after;
		before.n = after.n = 0;
	}
	row->style = CALL_OBJECT;
	row->list = list.n && list_end.n && list.p[list.n - 1] == '[' && *list_end.p == ']';
	if (row->list) {
		row->mark[M_CALL] = keep(y->d, right((struct span){ list.p, list.n - 1 }));
		row->mark[M_CALL_END] = keep(y->d, left((struct span){ list_end.p + 1, list_end.n - 1 }));
	} else {
		row->mark[M_SECTION] = keep(y->d, h->before);
		row->mark[M_SECTION_END] = keep(y->d, h->end);
		row->mark[M_CALL] = keep(y->d, before);
		row->mark[M_CALL_END] = keep(y->d, after);
		row->gap = keep(y->d, from_to(end_of(before), open));
	}
	if (own)
		row->between = ", ";
	else
		row->between = h->between.p ? keep(y->d, h->between) : "; ";
	row->bare = !row->mark[M_CALL];
	return row->list ? !before.n && !after.n && (!row->bare || *row->name_field) :
		!row->bare || (!h->before.n && *row->name_field);
}

/* What is between the name and the arguments: an id, or markers. */
static bool name_end(struct trial *y, struct span begin, struct span s)
{
	struct call_format *row = &y->d->row;
	const char *id = way_id[y->way.ids], *at = find(s, id);
	const size_t n = strlen(id);

	if (y->way.ids == WAY_FUNCTIONS) {
		if (begin.n <= n || memcmp(end_of(begin) - n, id, n) || s.n < 2 || memcmp(s.p, ":0", 2))
			return false;
		row->prefix = id;
		begin.n -= n;
		s = (struct span){ s.p + 2, s.n - 2 };
	} else if (at) {
		row->mark[M_ID] = keep(y->d, from_to(s.p, at));
		s = from_to(at + n, end_of(s));
		if (!row->mark[M_ID])
			return false;
	}
	row->mark[M_CALL] = keep(y->d, trim(begin));
	if (trim(s).n)
		row->mark[M_NAME_END] = keep(y->d, s);
	else
		row->gap = keep(y->d, s);
	return row->mark[M_CALL];
}

static bool named(struct trial *y, const struct shape *h)
{
	struct call_format *row = &y->d->row;
	const char *open = memchr(h->rest.p, '{', h->rest.n), *end = end_of(h->rest), *tag;
	json_t *given = arguments(ONE), *o;
	bool found;
	size_t n;

	o = object_at(open, end, &n);
	found = o && json_equal(o, given);
	json_decref(o);
	json_decref(given);
	if (!found || !name_end(y, h->begin, from_to(h->rest.p, open)))
		return false;
	row->style = CALL_NAMED;
	keep_section(y->d, h);
	tag = memchr(open + n, '<', (size_t)(end - open) - n);
	if (tag) {
		row->tail = keep(y->d, from_to(open + n, tag));
		row->mark[M_CALL_END] = keep(y->d, from_to(tag, end));
	} else {
		row->mark[M_CALL_END] = keep(y->d, left(from_to(open + n, end)));
	}
	return true;
}

/* KEY_END and VALUE: what is between a key and its value. */
static void keep_colon(struct derived *d, struct span s)
{
	const char *close = memchr(s.p, '>', s.n);
	struct span value = close ? trim(from_to(close + 1, end_of(s))) : (struct span){ s.p, 0 };

	d->row.mark[M_KEY_END] = keep(d, value.n ? from_to(s.p, close + 1) : right(s));
	d->row.mark[M_VALUE] = keep(d, value);
}

static bool tagged(struct trial *y, const struct shape *h)
{
	struct call_format *row = &y->d->row;
	const char *name = find_once(y->in[TWO], FIRST), *key = find_once(h->rest, KEY),
	           *value = find_once(h->rest, VALUE), *value2, *key2;
	struct span first, last, mid, s;

	value2 = name ? find_once(y->in[TWO], VALUE) : NULL;
	key2 = name ? find_once(y->in[TWO], KEY_TWO) : NULL;
	if (!key || !value || value < key || !value2 || !key2 || key2 < value2)
		return false;
	first = from_to(h->rest.p, key);
	last = from_to(value + strlen(VALUE), end_of(h->rest));
	mid = from_to(value2 + strlen(VALUE), key2);
	s = from_to(key + strlen(KEY), value);
	row->style = CALL_TAGGED;
	row->lines = s.n && last.n && end_of(s)[-1] == '\n' && *last.p == '\n';
	keep_section(y->d, h);
	row->mark[M_CALL] = keep(y->d, trim(h->begin));
	keep_colon(y->d, s);
	s = left(same_back(first, mid));
	row->mark[M_KEY] = keep(y->d, s);
	first = from_to(first.p, s.p);
	row->mark[M_NAME_END] = keep(y->d, right(first));
	row->gap = keep(y->d, from_to(end_of(right(first)), s.p));
	s = right(same_front(last, mid));
	row->mark[M_VALUE_END] = keep(y->d, row->lines ? left(s) : s);
	row->mark[M_CALL_END] = keep(y->d, trim(from_to(end_of(s), end_of(last))));
	return row->mark[M_CALL] && row->mark[M_KEY] && row->mark[M_KEY_END] && row->mark[M_VALUE_END] &&
		row->mark[M_CALL_END];
}

/* ---- does the splitter read it? ---- */

#define BEFORE_NAME '\1'
#define AFTER_NAME '\2'

struct seen { char s[SEEN]; size_t n; bool wrong; };

static void see(struct seen *s, const char *p, size_t n)
{
	s->wrong |= n > SEEN - s->n;
	if (s->wrong)
		return;
	memcpy(s->s + s->n, p, n);
	s->n += n;
}

static void put(void *ctx, enum calls_part part, const char *p, size_t n)
{
	struct seen *s = ctx;

	if (part == CALLS_ARGUMENTS) {
		see(s, p, n);
	} else if (part == CALLS_NAME) {
		see(s, (const char[]){ BEFORE_NAME }, 1);
		see(s, p, n);
		see(s, (const char[]){ AFTER_NAME }, 1);
	} else if (part != CALLS_ID) {
		s->wrong |= trim((struct span){ p, n }).n != 0;
	}
}

/* The calls of the chat and nothing else. */
static bool same_calls(const struct seen *s, enum chat chat)
{
	struct span left_over = { s->s, s->n };
	json_t *given = arguments(chat), *v;
	bool ok = !s->wrong;

	for (int i = 0; ok && i < (chat == BOTH ? 2 : 1); i++) {
		char head[32];
		const int n = snprintf(head, sizeof(head), "%c%s%c", BEFORE_NAME, name_of(chat, i), AFTER_NAME);
		const char *end;

		ok = left_over.n > (size_t)n && !memcmp(left_over.p, head, (size_t)n);
		if (!ok)
			break;
		left_over = (struct span){ left_over.p + n, left_over.n - (size_t)n };
		end = memchr(left_over.p, BEFORE_NAME, left_over.n);
		end = end ? end : end_of(left_over);
		v = json_loadb(left_over.p, (size_t)(end - left_over.p), 0, NULL);
		ok = v && json_equal(v, given);
		json_decref(v);
		left_over = from_to(end, end_of(left_over));
	}
	json_decref(given);
	return ok && !left_over.n;
}

static bool reads_back(const struct trial *y, enum chat chat)
{
	struct calls c = { .format = &y->d->row };
	json_t *tools = json_pack("[oo]", tool(FIRST), tool(SECOND));
	struct seen seen = { .n = 0 };
	const struct splitter_options o = { .begin = CALLS_ANSWERING, .tools = tools, .parse_calls = true,
	                                    .put = put, .ctx = &seen };
	struct splitter *s;
	bool ok = false;

	for (int i = 0; i < M_LAST; i++)
		if (c.format->mark[i])
			c.mark[i] = (struct marker){ (char *)(uintptr_t)c.format->mark[i], strlen(c.format->mark[i]),
				-1 };
	s = splitter_create(&c, &o);
	if (s) {
		splitter_text(s, y->in[chat].p, y->in[chat].n);
		splitter_end(s);
		ok = splitter_result(s).whole && same_calls(&seen, chat);
	}
	splitter_free(s);
	json_decref(tools);
	return ok;
}

/* ---- trials ---- */

static bool fits(struct trial *y, const struct shape *h, bool (*style)(struct trial *, const struct shape *))
{
	struct derived *d = y->d;

	memset(d, 0, sizeof(*d));
	d->row.name[0] = "derived";
	d->row.ids = y->way.ids == WAY_NINE ? CALLS_IDS_NINE : CALLS_IDS_LONG;
	if (!style(y, h) || d->full)
		return false;
	for (enum chat i = ONE; i < N_CHATS; i++)
		if (y->out[i] && !reads_back(y, i))
			return false;
	return true;
}

static bool try_way(struct trial *y)
{
	struct shape h;
	const char *open;
	bool json;
	json_t *o;
	size_t n;

	for (enum chat i = PLAIN; i < N_CHATS; i++) {
		y->out[i] = render(y, i);
		if (!y->out[i] && i != BOTH)
			return false;
		if (y->out[i] && i != PLAIN && !written(y, i))
			return false;
	}
	if (!cut_calls(y, &h))
		return false;
	o = around_name(&h, &open, &n);
	json = o;
	json_decref(o);
	return json ? fits(y, &h, object) : fits(y, &h, named) || fits(y, &h, tagged);
}

static bool try_all(struct trial *y)
{
	bool found = false;

	for (int i = 0; !found && i < 4 * N_WAY_IDS; i++) {
		y->way = (struct way){ .parts = i / (2 * N_WAY_IDS), .ids = i / 2 % N_WAY_IDS, .text = i % 2 };
		found = try_way(y);
		for (int k = 0; k < N_CHATS; k++) {
			free(y->out[k]);
			y->out[k] = NULL;
		}
	}
	return found;
}

struct call_format *format_derived(const char *source, const char *think_end)
{
	struct trial y = { .think_end = think_end };
	struct template *t = NULL;
	char why[256];

	if (!source || template_compile(&t, source, strlen(source), why, sizeof(why)) < 0)
		return NULL;
	y.template = t;
	if (template_reads(t, "tools"))
		y.d = calloc(1, sizeof(*y.d));
	if (y.d && !try_all(&y)) {
		free(y.d);
		y.d = NULL;
	}
	template_free(t);
	return y.d ? &y.d->row : NULL;
}
