/* tag.c - the structural tag of a format: what its calls look like, for the grammar that forces them.  A call
 * is a sequence of its markers, the function's name and arguments that keep to the function's schema.
 */
#include <string.h>

#include "impl.h"

#define NAMES "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-" /* of Python's functions */

struct tag {
	const struct calls *c;
	const struct calls_wish *w;
	const char *style;             /* of the arguments, in the words of structural tags; NULL: JSON */
	int trigger;                   /* the marker that begins calls in free text; */
	size_t cut;                    /* bytes at its front that the next one is without */
	bool lost;                     /* no memory */
	const char *why;               /* a call cannot be written, or NULL */
};

/* ---- formats of tags ---- */

static json_t *kept(struct tag *t, json_t *v)
{
	t->lost |= !v;
	return v;
}

static json_t *sequence(struct tag *t, json_t *list)
{
	return kept(t, json_pack("{ss so}", "type", "sequence", "elements", list));
}

static json_t *either(struct tag *t, json_t *list)
{
	return kept(t, json_pack("{ss so}", "type", "or", "elements", list));
}

static json_t *pattern(struct tag *t, const char *p)
{
	return kept(t, json_pack("{ss ss}", "type", "regex", "pattern", p));
}

static void add(struct tag *t, json_t *list, json_t *v)
{
	t->lost |= json_array_append_new(list, v) < 0;
}

static void add_plain(struct tag *t, json_t *list, const char *s, size_t n)
{
	if (n)
		add(t, list, json_pack("{ss ss%}", "type", "const_string", "value", s, n));
}

/* The spelling of the special token at s, which follows CALLS_MARK. */
static const char *token_at(const struct tag *t, const char *s, size_t n)
{
	for (int i = 0; i < t->c->n_tokens; i++)
		if (strlen(t->c->spelling[i]) <= n && !memcmp(s, t->c->spelling[i], strlen(t->c->spelling[i])))
			return t->c->spelling[i];
	return NULL;
}

/* Text and special tokens. */
static void add_text(struct tag *t, json_t *list, const char *s, size_t n)
{
	const char *mark, *token;

	while (n && (mark = memchr(s, CALLS_MARK, n))) {
		add_plain(t, list, s, (size_t)(mark - s));
		n -= (size_t)(mark - s) + 1;
		s = mark + 1;
		token = token_at(t, s, n);
		if (!token)
			continue;
		add(t, list, json_pack("{ss ss}", "type", "token", "token", token));
		s += strlen(token);
		n -= strlen(token);
	}
	add_plain(t, list, s, n);
}

static void add_mark(struct tag *t, json_t *list, int mark)
{
	size_t cut = mark == t->trigger ? t->cut : 0;

	if (t->c->mark[mark].n > cut)
		add_text(t, list, t->c->mark[mark].s + cut, t->c->mark[mark].n - cut);
}

static void add_string(struct tag *t, json_t *list, const char *s)
{
	if (s)
		add_plain(t, list, s, strlen(s));
}

static json_t *optional_mark(struct tag *t, int mark)
{
	json_t *list = json_array();

	add_mark(t, list, mark);
	return kept(t, json_pack("{ss so}", "type", "optional", "content", sequence(t, list)));
}

/* The name inside a JSON string. */
static void add_json_name(struct tag *t, json_t *list, const json_t *name)
{
	char s[6 * NAME_MOST + 2];
	size_t n = json_dumpb(name, s, sizeof(s), JSON_ENCODE_ANY | JSON_ENSURE_ASCII);

	if (n > sizeof(s))
		t->lost = true;
	else
		add_plain(t, list, s, n);
}

/* ---- calls ---- */

static void add_arguments(struct tag *t, json_t *list, json_t *function)
{
	json_t *schema = json_object_get(function, "parameters"), *v;
	const json_t *strict = json_object_get(function, "strict");

	/* In a free answer only strict functions are bound. */
	if (!json_is_object(schema) || (!t->w->forced && !json_is_true(strict)))
		v = json_pack("{ss s{ss}}", "type", "json_schema", "json_schema", "type", "object");
	else
		v = json_pack("{ss sO}", "type", "json_schema", "json_schema", schema);
	if (v && t->style && json_object_set_new(v, "style", json_string(t->style)) < 0)
		t->lost = true;
	add(t, list, v);
}

/* {"name": "F", "arguments": A} */
static json_t *object(struct tag *t, json_t *function)
{
	const struct call_format *f = t->c->format;
	const json_t *name = json_object_get(function, "name");
	json_t *list = json_array();

	if (!*f->name_field) {
		add_string(t, list, "{");
		add_json_name(t, list, name);
	} else {
		if (!strcmp(f->name_field, "tool_name")) {
			add_string(t, list, "{\"tool_call_id\": \"");
			add(t, list, pattern(t, "[0-9]{1,4}"));
			add_string(t, list, "\", \"");
		} else {
			add_string(t, list, "{\"");
		}
		add_string(t, list, f->name_field);
		add_string(t, list, "\": ");
		add_json_name(t, list, name);
		add_string(t, list, ", \"");
		add_string(t, list, f->args_field);
		add_string(t, list, "\"");
	}
	add_string(t, list, ": ");
	add_arguments(t, list, function);
	add_string(t, list, "}");
	return sequence(t, list);
}

/* Python's F(K=V, ..), or Gemma's F{K:V,..}. */
static json_t *literal(struct tag *t, json_t *function, const char *name)
{
	const bool python = t->c->format->style == CALL_PYTHON;
	json_t *list = json_array();

	if (!python)
		add_mark(t, list, M_CALL);
	else if (strspn(name, NAMES) != strlen(name) || strchr("0123456789", *name))
		t->why = "has no way to write the name of a function";
	add_string(t, list, name);
	add_string(t, list, python ? "(" : "{");
	add_arguments(t, list, function);
	add_string(t, list, python ? ")" : "}");
	if (!python)
		add_mark(t, list, M_CALL_END);
	return sequence(t, list);
}

/* One call with its markers, but not those of a list or section. */
static json_t *call(struct tag *t, json_t *function)
{
	const struct call_format *f = t->c->format;
	const char *name = json_string_value(json_object_get(function, "name"));
	json_t *list;

	if (f->style == CALL_OBJECT && f->list)
		return object(t, function);
	if (f->style == CALL_PYTHON || f->style == CALL_GEMMA)
		return literal(t, function, name);
	list = json_array();
	if (!f->bare)
		add_mark(t, list, M_CALL);
	if (f->style == CALL_OBJECT) {
		add_string(t, list, f->gap);
		add(t, list, object(t, function));
		add_string(t, list, f->gap);
	} else if (f->style == CALL_HARMONY) {
		add_string(t, list, "commentary to=functions.");
		add_string(t, list, name);
		add_string(t, list, " ");
		add_mark(t, list, M_CONSTRAIN);
		add_string(t, list, "json");
		add_mark(t, list, M_MESSAGE);
		add_arguments(t, list, function);
		return sequence(t, list);
	} else {
		add_string(t, list, f->prefix);
		add_string(t, list, name);
		if (f->prefix)
			add(t, list, pattern(t, ":[0-9]{1,4}"));
		add_mark(t, list, M_NAME_END);
		add_string(t, list, f->gap);
		add_arguments(t, list, function);
		if (t->style)
			add(t, list, pattern(t, "\n?"));
		add_string(t, list, f->tail);
	}
	add_mark(t, list, M_CALL_END);
	return sequence(t, list);
}

/* Any of the functions. */
static json_t *any_call(struct tag *t)
{
	json_t *list = json_array(), *tool, *function, *name;
	size_t i;

	json_array_foreach(t->w->tools, i, tool) {
		function = json_object_get(tool, "function");
		name = json_object_get(function, "name");
		if (!t->w->name || !strcmp(t->w->name, json_string_value(name)))
			add(t, list, call(t, function));
	}
	return either(t, list);
}

/* All calls with what is around and between them. */
static json_t *all_calls(struct tag *t)
{
	const struct call_format *f = t->c->format;
	const bool list = (f->style == CALL_OBJECT && f->list) || f->style == CALL_PYTHON;
	const bool sections = f->style != CALL_HARMONY, python = f->style == CALL_PYTHON && !f->list;
	json_t *out = json_array(), *more;

	if (sections && t->c->mark[M_SECTION].n) {
		add_mark(t, out, M_SECTION);
		t->cut = 0;
		add_string(t, out, f->gap);
	}
	if (list) {
		if (!f->bare)
			add_mark(t, out, M_CALL);
		add_string(t, out, python ? NULL : "[");
	}
	add(t, out, any_call(t));
	t->cut = 0;
	if (t->w->many && f->style != CALL_HARMONY) {
		more = json_array();
		add_string(t, more, f->between);
		add(t, more, any_call(t));
		add(t, out, json_pack("{ss so}", "type", "star", "content", sequence(t, more)));
	}
	if (list) {
		add_string(t, out, python ? NULL : "]");
		if (!f->bare)
			add_mark(t, out, M_CALL_END);
		else if (t->c->mark[M_CALL_END].n)
			add(t, out, optional_mark(t, M_CALL_END));
	}
	if (sections && t->c->mark[M_SECTION].n) {
		add_string(t, out, f->gap);
		add_mark(t, out, M_SECTION_END);
	}
	return sequence(t, out);
}

/* ---- what may stand before them ---- */

/* Text up to a marker, as a tag without a beginning. */
static json_t *up_to(struct tag *t, const struct marker *end)
{
	const char *token = *end->s == CALLS_MARK ? token_at(t, end->s + 1, end->n - 1) : NULL;
	json_t *v = token ? json_pack("{ss ss}", "type", "token", "token", token) :
		json_stringn(end->s, end->n);

	return kept(t, json_pack("{ss ss s{ss} so}", "type", "tag", "begin", "", "content", "type",
	                         token ? "any_tokens" : "any_text", "end", v));
}

static json_t *thought(struct tag *t, bool begins)
{
	json_t *list = json_array();

	if (begins)
		add_mark(t, list, M_THINK);
	add(t, list, up_to(t, &t->c->mark[M_THINK_END]));
	return sequence(t, list);
}

/* gpt-oss: a message on this channel, before others. */
static json_t *message(struct tag *t, const char *channel)
{
	json_t *list = json_array();

	add_mark(t, list, M_CHANNEL);
	add_string(t, list, channel);
	add_mark(t, list, M_MESSAGE);
	add(t, list, up_to(t, &t->c->mark[M_END]));
	add_mark(t, list, M_START);
	add_string(t, list, "assistant");
	return sequence(t, list);
}

static json_t *forced(struct tag *t)
{
	const bool harmony = t->c->format->style == CALL_HARMONY;
	json_t *list = json_array();

	if (harmony || (t->w->begin == CALLS_EITHER && t->c->think && !t->w->after_thought))
		add(t, list, json_pack("{ss so}", "type", "optional", "content",
		                       harmony ? message(t, "analysis") : thought(t, true)));
	else if (t->w->begin == CALLS_THINKING && !t->w->after_thought)
		add(t, list, thought(t, false));
	if (t->c->think && !harmony)
		add(t, list, pattern(t, "[ \t\r\n]{0,8}"));
	add(t, list, all_calls(t));
	return sequence(t, list);
}

/* Text in which the first piece of a marker, a token if it is one, begins calls. */
static json_t *free_text(struct tag *t)
{
	const struct marker *m = &t->c->mark[t->trigger];
	const char *token = *m->s == CALLS_MARK ? token_at(t, m->s + 1, m->n - 1) : NULL;
	json_t *begin = token ? json_string(token) : json_stringn(m->s, m->n);

	t->cut = token ? strlen(token) + 1 : m->n;
	return kept(t, json_pack("{ss s[[oo]] sb}", "type", token ? "token_dispatch" : "dispatch", "rules",
	                         begin, all_calls(t), "loop", t->w->many));
}

/* Any number of messages, then the answer or a call. */
static json_t *messages(struct tag *t)
{
	json_t *before = json_array(), *last = json_array(), *text = json_array(), *list = json_array();

	add(t, before, message(t, "analysis"));
	add(t, before, message(t, "commentary"));
	add(t, list, json_pack("{ss so}", "type", "star", "content", either(t, before)));
	add_mark(t, text, M_CHANNEL);
	add_string(t, text, "final");
	add_mark(t, text, M_MESSAGE);
	add(t, text, json_pack("{ss}", "type", "any_text"));
	add(t, last, sequence(t, text));
	add(t, last, all_calls(t));
	add(t, list, either(t, last));
	return sequence(t, list);
}

/* Text that does not begin as calls do, or calls. */
static json_t *bare(struct tag *t)
{
	const struct call_format *f = t->c->format;
	json_t *either_of = json_array(), *list = json_array(), *calls = json_array();

	add(t, list, pattern(t, f->style == CALL_PYTHON ? "[ \t\r\n]*[^ \t\r\n[]" :
	                        f->list ? "[ \t\r\n]*[^ \t\r\n{[]" : "[ \t\r\n]*[^ \t\r\n{]"));
	add(t, list, t->c->mark[M_CALL].n ? free_text(t) : kept(t, json_pack("{ss}", "type", "any_text")));
	t->cut = 0;
	add(t, either_of, pattern(t, "[ \t\r\n]*"));
	add(t, either_of, sequence(t, list));
	add(t, calls, pattern(t, "[ \t\r\n]{0,8}"));
	if (t->c->mark[M_CALL].n)
		add(t, calls, optional_mark(t, M_CALL));
	add(t, calls, all_calls(t));
	add(t, either_of, sequence(t, calls));
	return either(t, either_of);
}

/* ---- the tag ---- */

/* Are arguments written the same in both? */
static bool same_arguments(const struct call_format *f, const struct call_format *g)
{
	for (int i = M_KEY; i <= M_VALUE_END; i++)
		if (!f->mark[i] != !g->mark[i] || (f->mark[i] && strcmp(f->mark[i], g->mark[i])))
			return false;
	return f->flagged == g->flagged && f->lines == g->lines;
}

static const char *style_of(const struct call_format *f)
{
	static const struct { const char *format, *style; } styles[] = {
		{ "qwen3_coder", "qwen_xml" }, { "glm45", "glm_xml" }, { "minimax_m2", "minimax_xml" },
		{ "deepseek_v32", "deepseek_xml" }, { "step3", "step_xml" },
	};

	if (f->style == CALL_PYTHON)
		return "python";
	if (f->style == CALL_GEMMA)
		return !strcmp(f->mark[M_QUOTE], "<escape>") ? "functiongemma" : "gemma4";
	for (size_t i = 0; f->style == CALL_TAGGED && i < sizeof(styles) / sizeof(styles[0]); i++)
		if (same_arguments(f, format_named(styles[i].format)))
			return styles[i].style;
	return NULL;
}

json_t *calls_tag(const struct calls *c, const struct calls_wish *w, const char **err)
{
	const struct call_format *f = c->format;
	struct tag t = { .c = c, .w = w, .style = style_of(f),
	                 .trigger = c->mark[M_SECTION].n ? M_SECTION : M_CALL };
	json_t *format;

	*err = NULL;
	if (f->style == CALL_NONE || (f->style == CALL_TAGGED && !t.style)) {
		*err = "has no grammar yet";
		return NULL;
	}
	if (!w->forced && f->bare && c->think && !w->after_thought && w->begin != CALLS_ANSWERING) {
		*err = "has no marker before calls, and its thoughts none of one token";
		return NULL;
	}
	format = w->forced ? forced(&t) : f->style == CALL_HARMONY ? messages(&t) :
		f->bare ? bare(&t) : free_text(&t);
	format = json_pack("{ss so}", "type", "structural_tag", "format", format);
	if (!t.lost && format && !t.why)
		return format;
	json_decref(format);
	*err = t.lost ? NULL : t.why;
	return NULL;
}
