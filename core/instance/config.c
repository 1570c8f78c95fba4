/* config.c - reads flags, YAML and environment into struct config, by the table in options.c.
 *
 *	defaults < --config FILE.yaml < command line;  VLLM_API_KEY if no key is given
 *
 * Every value goes through set_option(), the one place that checks kinds, ranges and choices.
 * Strings point into argv, or into memory that config_free releases.
 */
#include "config.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <yaml.h>

#include "config_drafts.h"
#include "options.h"
#include "refuse.h"

enum source { BY_DEFAULT, BY_FILE, BY_FLAG };

struct parsing {
	struct config *c;
	enum config_for who;
	enum source source;
	uint8_t from[OPTIONS_MAX];       /* enum source of each value */
	char where[4200];              /* "FILE: line L, column C: ", or "" on the command line */
	char *err;
	size_t errlen;
};

struct owned { struct owned *next; char s[]; };

__attribute__((format(printf, 2, 3)))
static int config_fail(struct parsing *p, const char *fmt, ...)
{
	char what[700];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return refuse(-EINVAL, p->err, p->errlen, "%s%s", p->where, what);
}

void config_free(struct config *c)
{
	for (struct owned *o = c->owned, *next; o; o = next) {
		next = o->next;
		free(o);
	}
	memset(c, 0, sizeof(*c));
}

/* ---- names ---------------------------------------------------------------------------------- */

/* The i-th word of a list separated by spaces; returns its length, 0 if there is none. */
static size_t word(const char *list, int i, const char **at)
{
	size_t n = 0;

	for (*at = list ? list : ""; ; *at += n) {
		*at += strspn(*at, " ");
		n = strcspn(*at, " ");
		if (n == 0 || i-- == 0)
			return n;
	}
}

static int word_index(const char *list, const char *s)
{
	const char *at;
	size_t n;

	for (int i = 0; (n = word(list, i, &at)) != 0; i++)
		if (n == strlen(s) && memcmp(at, s, n) == 0)
			return i;
	return -1;
}

static int option_index(const char *name)
{
	for (int i = 0; i < n_options; i++)
		if (strcmp(options[i].name, name) == 0)
			return i;
	return -1;
}

/* The option of a flag or key (- equals _), and whether "no-" turns it off. */
static int find_option(struct parsing *p, const char *given, const char *shown, bool *off)
{
	const char *name[OPTIONS_MAX], *near;
	char flat[96];
	size_t n = strcspn(given, ".");    /* compilation-config.mode is a part of a JSON value */
	int i;

	*off = false;
	snprintf(flat, sizeof(flat), "%.*s", (int)(n < 90 ? n : 90), given);
	for (char *c = flat; *c; c++)
		if (*c == '_')
			*c = '-';
	i = option_index(flat);
	if (i < 0 && strncmp(flat, "no-", 3) == 0 && (i = option_index(flat + 3)) >= 0) {
		if (options[i].kind == YESNO)
			*off = true;
		else
			i = -1;
	}
	if (i >= 0 && given[n] && options[i].kind != PARTS &&
	    (options[i].kind != TEXT || options[i].action == SET))
		return config_fail(p, "%s: %s has no parts", shown, options[i].name);
	if (i >= 0)
		return i;
	for (int k = 0; k < n_options; k++)
		name[k] = options[k].name;
	near = config_nearest(flat, name, n_options);
	if (near)
		return config_fail(p, "%s is unknown; did you mean %s%s?", shown, p->source == BY_FLAG ? "--" : "",
		                   near);
	return config_fail(p, "%s is unknown; --help all lists every flag", shown);
}

/* ---- values --------------------------------------------------------------------------------- */

/* 4096, 4k = 4000, 25.6k = 25600, 4K = 4096; k m g t, K M G T.  0, or -EINVAL and the reason. */
static int parse_size(const char *s, int64_t *out, const char **why)
{
	static const char decimal[] = "kmgt", binary[] = "KMGT";
	double scale = 1, v;
	const char *unit;
	char *end;

	*why = "is not a number such as 4096, 4k (4000) or 4K (4096)";
	if (!isdigit((unsigned char)*s) || strpbrk(s, "xXeEpPnN"))
		return -EINVAL;
	v = strtod(s, &end);
	if (*end && (unit = strchr(decimal, *end)) != NULL && !end[1])
		scale = pow(1000, (double)(unit - decimal + 1));
	else if (*end && (unit = strchr(binary, *end)) != NULL && !end[1])
		scale = pow(1024, (double)(unit - binary + 1));
	else if (*end)
		return -EINVAL;
	if (memchr(s, '.', (size_t)(end - s)) && (scale == 1 || isupper((unsigned char)*end))) {
		*why = scale == 1 ? "must be a whole number"
		                  : "has a fraction of a binary unit; k m g t (powers of 1000) allow one";
		return -EINVAL;
	}
	v = rint(v * scale);
	if (v > 9e15) {
		*why = "is too large";
		return -EINVAL;
	}
	*out = (int64_t)v;
	return 0;
}

static int parse_yesno(const char *s, bool *out)
{
	static const char yes[] = "true yes on 1", no[] = "false no off 0";
	char low[8] = "";

	for (size_t i = 0; s[i] && i < sizeof(low) - 1; i++)
		low[i] = (char)tolower((unsigned char)s[i]);
	*out = word_index(yes, low) >= 0;
	return *out || word_index(no, low) >= 0 ? 0 : -EINVAL;
}

/* Read a value of a numeric kind as a number, and check its range. */
static int parse_number(struct parsing *p, const struct option *o, const char *s, bool check, double *d,
                        int64_t *i)
{
	const char *why = "is not a whole number";
	bool is_auto = o->kind == SIZE_AUTO && (strcmp(s, "auto") == 0 || strcmp(s, "-1") == 0);
	char *end;
	int rc = 0;

	errno = 0;
	if (o->kind == NUMBER) {
		why = "is not a number";
		*d = strtod(s, &end);
		rc = *s && !*end && isfinite(*d) && !isspace((unsigned char)*s) ? 0 : -EINVAL;
	} else if (o->kind == U64) {
		*i = (int64_t)strtoull(s, &end, 10);
		rc = isdigit((unsigned char)*s) && !*end && !errno ? 0 : -EINVAL;
		check = false;
	} else if (o->kind == INT) {
		*i = strtoll(s, &end, 10);
		rc = (isdigit((unsigned char)*s) || *s == '-') && !*end && !errno ? 0 : -EINVAL;
	} else if (is_auto) {
		*i = -1;
		check = false;
	} else {
		rc = parse_size(s, i, &why);
	}
	if (rc)
		return config_fail(p, "%s %.60s %s", o->name, *s ? s : "\"\"", why);
	if (o->kind != NUMBER)
		*d = (double)*i;
	if (check && o->max > o->min && (*d < o->min || *d > o->max))
		return config_fail(p, "%s is %.60s; %.16g to %.16g are allowed", o->name, s, o->min, o->max);
	return 0;
}

/* Is s one of the values that are accepted for a flag of vLLM? */
static bool taken(const struct option *o, const char *s)
{
	bool b;

	if (o->kind == YESNO)
		return parse_yesno(s, &b) == 0 && !b;
	if (word_index(o->value, s) >= 0)
		return true;
	if (o->kind == SIZE || o->kind == NUMBER)      /* 0.0 equals 0 */
		for (const char *at = o->value; *at; ) {
			char *end;

			if (*s && strtod(s, &end) == strtod(at, NULL) && !*end)
				return true;
			at += strcspn(at, " ");
			at += strspn(at, " ");
		}
	return (o->kind == TEXT || o->kind == LIST) && (!*s || strcmp(s, "None") == 0 ||
	                                                strcmp(s, "null") == 0);
}

static int take_foreign(struct parsing *p, const struct option *o, const char *s)
{
	bool b, http;

	if (o->kind == YESNO && parse_yesno(s, &b) != 0)
		return config_fail(p, "%s is %.60s; true or false are allowed", o->name, s);
	if (o->action == ONLY && o->kind == YESNO && !taken(o, s))
		return config_fail(p, "--%s is not supported by Slipring: %s", o->name, o->help);
	if (o->action == ONLY && !taken(o, s))
		return config_fail(p, "--%s %.60s is not supported by Slipring: %s (accepted: %s)", o->name, s,
		                   o->help,
		                   *o->value ? o->value : "none");
	http = o->topic == SERVER || o->topic == HTTP || o->topic == TLS;
	if (o->action == WARN && p->who == (http ? FOR_HTTP : FOR_DAEMON))
		fprintf(stderr, "warning: %s--%s has no effect: %s\n", p->where, o->name, o->help);
	return 0;
}

/* Set option i to s.  `first`: the only value, or the first of a list. */
static int set_option(struct parsing *p, int i, const char *s, bool first)
{
	const struct option *o = &options[i];
	void *at = (char *)p->c + o->at;
	int64_t n = 0;
	double d = 0;
	int rc = 0;

	assert(p->source >= p->from[i]);   /* sources come in this order: defaults, file, command line */
	p->from[i] = (uint8_t)p->source;
	if (o->action != SET)
		return take_foreign(p, o, s);
	if ((o->kind == TEXT || o->kind == WORD) && o->choices && word_index(o->choices, s) < 0)
		return config_fail(p, "%s is %.60s; one of these is allowed: %s", o->name, s, o->choices);
	switch ((enum kind)o->kind) {
	case YESNO:
		if (parse_yesno(s, at) != 0)
			return config_fail(p, "%s is %.60s; true or false are allowed", o->name, s);
		break;
	case TEXT:
		*(const char **)at = s;
		break;
	case WORD:
		*(int *)at = word_index(o->choices, s);
		break;
	case LIST: case PARTS: {
		const char **list = at;
		int *count = (int *)(list + CONFIG_LIST);

		if (first)
			*count = 0;
		if (*count == CONFIG_LIST)
			return config_fail(p, "%s has more than %d values", o->name, CONFIG_LIST);
		list[(*count)++] = s;
		break;
	}
	case INT: case SIZE: case SIZE_AUTO: case U64: case NUMBER:
		rc = parse_number(p, o, s, p->source != BY_DEFAULT, &d, &n);
		if (rc)
			return rc;
		if (o->kind == NUMBER)
			*(double *)at = d;
		else if (o->kind == INT)
			*(int *)at = (int)n;
		else
			*(int64_t *)at = n;
		break;
	}
	return 0;
}

/* set_option() with a copy of s, for a text that does not last; the copy lives as long as the config. */
static int set_copy(struct parsing *p, int i, const char *s, bool first)
{
	struct owned *o = malloc(sizeof(*o) + strlen(s) + 1);

	if (!o)
		return config_fail(p, "no memory for the value of %s", options[i].name);
	strcpy(o->s, s);
	o->next = p->c->owned;
	p->c->owned = o;
	return set_option(p, i, o->s, first);
}

/* A member of an option of kind PARTS: `given` is a flag with the member's path behind its first dot.
 * Without a dot s is the whole object. */
static int set_part(struct parsing *p, int i, const char *given, const char *s)
{
	const bool first = p->from[i] != p->source;
	const char *dot = strchr(given, '.');
	char text[4096];

	if (!dot)
		return set_copy(p, i, s, first);
	if (snprintf(text, sizeof(text), "%s=%s", dot + 1, s) >= (int)sizeof(text))
		return config_fail(p, "%.60s is longer than %zu bytes", given, sizeof(text));
	return set_copy(p, i, text, first);
}

/* ---- YAML ----------------------------------------------------------------------------------- */

struct yaml { struct parsing *p; yaml_document_t doc; const char *file; };

static void at_node(struct yaml *y, const yaml_node_t *n)
{
	snprintf(y->p->where, sizeof(y->p->where), "%.4000s: line %zu, column %zu: ", y->file,
	         n->start_mark.line + 1, n->start_mark.column + 1);
}

static bool is_null(const yaml_node_t *n)
{
	const char *s = (const char *)n->data.scalar.value;

	return n->type == YAML_SCALAR_NODE && n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
	       (!*s || !strcmp(s, "~") || !strcmp(s, "null") || !strcmp(s, "None"));
}

/* A YAML list [a, b] for a flag that takes a JSON list in one string. */
static int set_json_list(struct yaml *y, int i, const yaml_node_t *list)
{
	char text[4096] = "[";
	size_t len = 1;

	const yaml_node_item_t *end = list->data.sequence.items.top;

	for (yaml_node_item_t *it = list->data.sequence.items.start; it < end; it++) {
		const yaml_node_t *n = yaml_document_get_node(&y->doc, *it);

		at_node(y, n);
		if (n->type != YAML_SCALAR_NODE || strpbrk((char *)n->data.scalar.value, "\"\\\n"))
			return config_fail(y->p, "%s must be a list of plain words", options[i].name);
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s\"%s\"", len > 1 ? ", " : "",
		                        (char *)n->data.scalar.value);
		if (len + 2 > sizeof(text))
			return config_fail(y->p, "%s is longer than %zu bytes", options[i].name, sizeof(text));
	}
	strcpy(text + len, "]");
	return set_copy(y->p, i, text, true);
}

/* The members of a mapping, and of those in it: `name` is the path of flag and members so far. */
static int set_members(struct yaml *y, int i, const char *name, const yaml_node_t *n)
{
	char path[96];
	int rc = 0;

	if (n->type == YAML_SCALAR_NODE)
		return set_part(y->p, i, name, (char *)n->data.scalar.value);
	if (n->type != YAML_MAPPING_NODE ||
	    (strchr(name, '.') && n->data.mapping.pairs.start == n->data.mapping.pairs.top))
		return config_fail(y->p, "%s takes one value", name);
	for (yaml_node_pair_t *pair = n->data.mapping.pairs.start; pair < n->data.mapping.pairs.top && !rc; pair++) {
		const yaml_node_t *key = yaml_document_get_node(&y->doc, pair->key);

		at_node(y, key);
		if (key->type != YAML_SCALAR_NODE ||
		    snprintf(path, sizeof(path), "%s.%s", name, (char *)key->data.scalar.value) >= (int)sizeof(path))
			return config_fail(y->p, "%s: a member must be a name, nested names at most %zu bytes long",
			                   options[i].name, sizeof(path));
		rc = set_members(y, i, path, yaml_document_get_node(&y->doc, pair->value));
	}
	return rc;
}

static int set_node(struct yaml *y, int i, const char *name, bool off, const yaml_node_t *n)
{
	const struct option *o = &options[i];
	int rc = 0;
	bool b;

	if (is_null(n))
		return 0;
	if (o->kind == PARTS)
		return set_members(y, i, name, n);
	if (n->type == YAML_SEQUENCE_NODE && o->kind == TEXT)
		return set_json_list(y, i, n);
	if (n->type == YAML_SEQUENCE_NODE && o->kind == LIST) {
		yaml_node_item_t *first = n->data.sequence.items.start;

		for (yaml_node_item_t *it = first; it < n->data.sequence.items.top && !rc; it++) {
			const yaml_node_t *one = yaml_document_get_node(&y->doc, *it);

			at_node(y, one);
			if (one->type != YAML_SCALAR_NODE)
				return config_fail(y->p, "%s must be a list of words", o->name);
			rc = set_copy(y->p, i, (char *)one->data.scalar.value, it == first);
		}
		return rc;
	}
	if (n->type == YAML_MAPPING_NODE && o->kind == TEXT && o->action != SET)
		return set_option(y->p, i, n->data.mapping.pairs.start == n->data.mapping.pairs.top ? "{}" : "{..}",
		                  true);
	if (n->type != YAML_SCALAR_NODE)
		return config_fail(y->p, "%s takes one value", o->name);
	if (off) {
		if (parse_yesno((char *)n->data.scalar.value, &b) != 0)
			return config_fail(y->p, "no-%s is %.60s; true or false are allowed", o->name,
			                   (char *)n->data.scalar.value);
		return set_option(y->p, i, b ? "false" : "true", true);
	}
	return set_copy(y->p, i, (char *)n->data.scalar.value, true);
}

static int read_document(struct yaml *y)
{
	yaml_node_t *root = yaml_document_get_root_node(&y->doc);
	uint8_t seen[OPTIONS_MAX] = { 0 };
	bool off;

	for (const yaml_node_t *n = y->doc.nodes.start; n < y->doc.nodes.top; n++)
		if (n->type == YAML_SCALAR_NODE && strlen((char *)n->data.scalar.value) != n->data.scalar.length) {
			at_node(y, n);
			return config_fail(y->p, "%.60s contains a zero byte", (char *)n->data.scalar.value);
		}
	if (!root || is_null(root))
		return 0;                  /* empty, or comments only */
	at_node(y, root);
	if (root->type != YAML_MAPPING_NODE)
		return config_fail(y->p, "the file must be a list of \"flag: value\" lines");
	for (yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top;
	     pair++) {
		const yaml_node_t *key = yaml_document_get_node(&y->doc, pair->key);
		const yaml_node_t *value = yaml_document_get_node(&y->doc, pair->value);
		const char *name = (const char *)key->data.scalar.value;
		int i, rc;

		at_node(y, key);
		if (key->type != YAML_SCALAR_NODE || !*name)
			return config_fail(y->p, "a key must be the name of a flag");
		if (strlen(name) > 80)
			return config_fail(y->p, "%.40s.. is unknown", name);
		i = find_option(y->p, name, name, &off);
		if (i < 0)
			return i;
		if (seen[i]++ && !strchr(name, '.'))
			return config_fail(y->p, "%s is given twice", name);
		at_node(y, value);
		if ((rc = set_node(y, i, name, off, value)) != 0)
			return rc;
	}
	return 0;
}

/* Parse the text of a YAML file; the fuzzer calls this, too. */
static int read_yaml(struct parsing *p, const char *file, const unsigned char *text, size_t n)
{
	struct yaml y = { .p = p, .file = file };
	yaml_parser_t parser;
	int rc;

	if (!yaml_parser_initialize(&parser))
		return config_fail(p, "%.500s: no memory to read it", file);
	yaml_parser_set_input_string(&parser, text, n);
	p->source = BY_FILE;
	if (yaml_parser_load(&parser, &y.doc)) {
		rc = read_document(&y);
		yaml_document_delete(&y.doc);
	} else if (parser.error == YAML_MEMORY_ERROR) {
		rc = config_fail(p, "%.500s: no memory to read it", file);
	} else {
		snprintf(p->where, sizeof(p->where), "%.4000s: line %zu, column %zu: ", file,
		         parser.problem_mark.line + 1,
		         parser.problem_mark.column + 1);
		rc = config_fail(p, "%s", parser.problem ? parser.problem : "is not YAML");
	}
	yaml_parser_delete(&parser);
	if (rc == 0)
		p->where[0] = 0;
	return rc;
}

static int read_config_file(struct parsing *p, const char *path)
{
	static const size_t most = 1 << 20;
	FILE *f = fopen(path, "re");
	unsigned char *text = malloc(most);
	struct stat st;
	size_t n;
	int rc;

	if (!f || !text || fstat(fileno(f), &st) < 0) {
		rc = config_fail(p, "--config %.500s: %s", path, strerror(errno));
	} else if (S_ISDIR(st.st_mode)) {
		rc = config_fail(p, "--config %.500s: is a directory", path);
	} else {
		n = fread(text, 1, most, f);
		if (ferror(f))
			rc = config_fail(p, "--config %.500s: %s", path, strerror(errno));
		else if (n == most)
			rc = config_fail(p, "--config %.500s: is longer than 1 MiB", path);
		else
			rc = read_yaml(p, path, text, n);
	}
	if (f)
		fclose(f);
	free(text);
	return rc;
}

/* ---- the command line ----------------------------------------------------------------------- */

struct words { int argc; char **argv; int at; };

/* Is the word a value: not a flag, or a negative number? */
static bool is_value(const char *s)
{
	return s[0] != '-' || !s[1] || isdigit((unsigned char)s[1]) || s[1] == '.';
}

/* -q awq, -tp 2, -tp=2, -O3, -O.mode=3: `also` in the table has the short spellings. */
static int find_short(struct parsing *p, const char *w, const char **value)
{
	size_t n = strcspn(w, "=."), len;
	const char *at;

	*value = strchr(w, '=') ? strchr(w, '=') + 1 : NULL;
	if (w[1] == 'O' && isdigit((unsigned char)w[2])) {
		*value = w + 2;
		n = 2;
	}
	for (int i = 0; i < n_options; i++)
		for (int k = 0; (len = word(options[i].also, k, &at)) != 0; k++)
			if (len == n && memcmp(at, w, n) == 0)
				return i;
	return config_fail(p, "%.60s is unknown; --help all lists every flag", w);
}

/* Take one flag at w->at; moves w->at past it and its values. */
static int take_flag(struct parsing *p, struct words *w)
{
	const char *arg = w->argv[w->at++], *value = NULL;
	char name[96], shown[100];
	bool off = false, b;
	int i, rc;

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(arg, "="), arg);
	if (arg[0] == '-' && arg[1] != '-') {
		i = find_short(p, arg, &value);
	} else if (word_index("--log-level --disable-access-log", name) >= 0) {
		i = find_short(p, arg, &value);
	} else {
		if (strlen(name) > 90)
			return config_fail(p, "%.60s.. is unknown", arg);
		value = strchr(arg, '=') ? strchr(arg, '=') + 1 : NULL;
		snprintf(shown, sizeof(shown), "%s", name);
		i = find_option(p, name + 2, shown, &off);
	}
	if (i < 0)
		return i;
	if (options[i].kind == YESNO) {
		if (!value && w->at < w->argc && word_index("true false True False", w->argv[w->at]) >= 0)
			value = w->argv[w->at++];      /* "--flag true", as in old scripts */
		if (value && parse_yesno(value, &b) != 0)
			return config_fail(p, "--%s is %.60s; true or false are allowed", options[i].name, value);
		return set_option(p, i, (value ? b : true) != off ? "true" : "false", true);
	}
	if (options[i].kind == PARTS && (value || (w->at < w->argc && is_value(w->argv[w->at]))))
		return set_part(p, i, name, value ? value : w->argv[w->at++]);
	if (value)
		return set_option(p, i, value, p->from[i] != BY_FLAG);
	if (w->at >= w->argc || !is_value(w->argv[w->at]))
		return config_fail(p, "--%s needs a value", options[i].name);
	rc = set_option(p, i, w->argv[w->at++], p->from[i] != BY_FLAG);
	while (rc == 0 && options[i].kind == LIST && w->at < w->argc && is_value(w->argv[w->at]))
		rc = set_option(p, i, w->argv[w->at++], false);
	return rc;
}

/* --config FILE is read first, wherever it stands, because the other words override it. */
static int take_config(struct parsing *p, struct words *w)
{
	int rc = 0;

	for (int i = 1; i < w->argc && rc == 0 && strcmp(w->argv[i], "--") != 0; i++)
		if (strncmp(w->argv[i], "--config=", 9) == 0)
			rc = read_config_file(p, p->c->config_file = w->argv[i] + 9);
		else if (strcmp(w->argv[i], "--config") == 0)
			rc = i + 1 < w->argc ? read_config_file(p, p->c->config_file = w->argv[i + 1])
			                     : config_fail(p, "--config needs the name of a file");
	return rc;
}

static int take_words(struct parsing *p, struct words *w)
{
	int model = option_index("model"), rc = 0;
	bool only_values = false, have = false;

	p->source = BY_FLAG;
	while (w->at < w->argc && rc == 0) {
		const char *arg = w->argv[w->at];

		if (only_values || is_value(arg)) {
			w->at++;
			rc = !have ? set_option(p, model, arg, true)
			           : config_fail(p, "%.200s: a MODEL was already given, %.200s", arg, p->c->model);
			have = true;
		} else if (strcmp(arg, "--") == 0) {
			w->at++;
			only_values = true;
		} else if (strcmp(arg, "--config") == 0) {
			w->at += 2;
		} else if (strncmp(arg, "--config=", 9) == 0) {
			w->at++;
		} else {
			rc = take_flag(p, w);
		}
	}
	return rc;
}

/* 1; or -EINVAL and one sentence: there is no help on that topic. */
static int helped(const struct parsing *p, const char *topic)
{
	if (!config_help(stdout, topic, p->who))
		return 1;
	config_option(topic + strspn(topic, "-"), p->err, p->errlen);
	return -EINVAL;
}

/* --help, --help WORD, --help=WORD, -h, --version: 1 if one was given, or -EINVAL as above. */
static int asked(const struct parsing *p, const struct words *w)
{
	for (int i = 1; i < w->argc && strcmp(w->argv[i], "--") != 0; i++) {
		const char *a = w->argv[i];

		if (strcmp(a, "--version") == 0) {
			printf("%s\n", SLIPRING_VERSION);
			return 1;
		}
		if (strcmp(a, "-h") == 0 || strcmp(a, "--help") == 0)
			return helped(p, i + 1 < w->argc ? w->argv[i + 1] : NULL);
		if (strncmp(a, "--help=", 7) == 0)
			return helped(p, a + 7);
	}
	return 0;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void take_environment(struct parsing *p)
{
	static const char *const var[] = { "VLLM_API_KEY", "SLIPRING_API_KEY" };

	for (int i = 0; i < 2 && !p->from[option_index("api-key")]; i++) {
		const char *v = getenv(var[i]);

		if (v && *v && p->c->n_api_keys < CONFIG_LIST)
			p->c->api_key[p->c->n_api_keys++] = v;
	}
}

/* 900, 900s, 15m, 1.5h: in seconds. */
static int read_duration(struct parsing *p, const char *name, const char *s, double *out)
{
	char *end;
	double v = strtod(s, &end), unit = 1;

	if (*end && !end[1])
		unit = *end == 's' ? 1 : *end == 'm' ? 60 : *end == 'h' ? 3600 : 0;
	else if (*end)
		unit = 0;
	if (end == s || !isdigit((unsigned char)*s) || !(v * unit >= 0) || v * unit > 1e7 || unit == 0)
		return config_fail(p, "%s %.60s is not a time such as 900, 90s, 15m or 1h", name, s);
	*out = v * unit;
	return 0;
}

/* Check what concerns several values together. */
static int check_together(struct parsing *p)
{
	const struct config *c = p->c;

	if (!c->ssl_keyfile != !c->ssl_certfile)
		return config_fail(p, "--ssl-keyfile and --ssl-certfile go together; only --ssl-%s is given",
		                   c->ssl_keyfile ? "keyfile" : "certfile");
	if (c->ssl_ca_certs && !c->ssl_certfile)
		return config_fail(p, "--ssl-ca-certs needs --ssl-certfile and --ssl-keyfile");
	if (c->block_size & (c->block_size - 1))
		return config_fail(p, "block-size is %d; 8, 16, 32 and 64 are allowed", c->block_size);
	if (c->max_num_seqs && c->max_num_batched_tokens && c->max_num_batched_tokens < c->max_num_seqs)
		return config_fail(p, "max_num_batched_tokens (%" PRId64 ") must be greater than or equal to "
		                   "max_num_seqs (%" PRId64 ").",
		                   c->max_num_batched_tokens, c->max_num_seqs);
	if (read_duration(p, "stop-when-idle", c->stop_when_idle, &p->c->stop_when_idle_s))
		return -EINVAL;
	if (c->data_parallel_rank >= c->data_parallel_size)
		return config_fail(p, "data-parallel-rank is %d; with --data-parallel-size %d the ranks are 0 to %d",
		                   c->data_parallel_rank, c->data_parallel_size, c->data_parallel_size - 1);
	if (c->data_parallel_size_local && c->data_parallel_size_local != c->data_parallel_size)
		return config_fail(p, "data-parallel-size-local is %d and data-parallel-size is %d: all replicas run "
		                   "on this machine, so they must be equal", c->data_parallel_size_local,
		                   c->data_parallel_size);
	if (c->data_parallel_external_lb && c->data_parallel_rank < 0)
		return config_fail(p, "--data-parallel-external-lb needs --data-parallel-rank");
	if (c->socket && c->data_parallel_size > 1)
		return config_fail(p, "--socket names one daemon, and --data-parallel-size %d starts several: name "
		                   "them with --instance", c->data_parallel_size);
	for (int i = 0; i < c->n_api_keys; i++)
		if (!*c->api_key[i])
			return config_fail(p, "api-key: a key is empty");
	return config_drafts(p->c, p->err, p->errlen);
}

/* Started as `vllm` (CONFIG_AS_VLLM), a server is found from outside its container without any flag, as vLLM is. */
static int set_defaults(struct parsing *p)
{
	p->source = BY_DEFAULT;
	for (int i = 0; i < n_options; i++)
		if (options[i].action == SET && options[i].value && set_option(p, i, options[i].value, true) != 0)
			return -EINVAL;
	if (!getenv(CONFIG_AS_VLLM))
		return 0;
	if (set_option(p, option_index("host"), "0.0.0.0", true) != 0)
		return -EINVAL;
	return set_option(p, option_index("allowed-hosts"), "*", true);
}

int config_option(const char *name, char *err, size_t errlen)
{
	struct config none = { 0 };
	struct parsing p = { .c = &none, .err = err, .errlen = errlen, .source = BY_FLAG };
	bool off;

	return find_option(&p, name, name, &off);
}

int config_parse(struct config *c, int argc, char **argv, enum config_for who, char *err, size_t errlen)
{
	struct parsing p = { .c = c, .who = who, .err = err, .errlen = errlen };
	struct words w = { argc, argv, 1 };
	int rc;

	memset(c, 0, sizeof(*c));
	rc = asked(&p, &w);
	if (rc)
		return rc;
	rc = set_defaults(&p);
	if (rc == 0)
		rc = take_config(&p, &w);
	if (rc == 0)
		rc = take_words(&p, &w);
	if (rc == 0) {
		take_environment(&p);
		if (c->max_logprobs < 0)       /* vLLM's value for "no limit" */
			c->max_logprobs = 20;
		c->gpu_memory_utilization_given =
			p.from[option_index("gpu-memory-utilization")] != BY_DEFAULT;
		rc = check_together(&p);
	}
	if (rc)
		config_free(c);
	return rc;
}
