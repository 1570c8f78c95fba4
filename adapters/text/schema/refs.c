/* refs.c - where each subschema stands in the document, and what a reference means.
 *
 * The document is walked once, before anything is expanded. $id and $anchor count only where a schema
 * stands: not in enum, const or an unknown keyword.  Nothing is fetched: a reference out of the document is
 * refused.
 */
#include <stdio.h>
#include <stdlib.h>

#include "impl.h"

enum content { PLAIN, SCHEMA, SCHEMAS, MAP };  /* what the value of a keyword holds */

static enum content content_of(const char *keyword)
{
	static const struct { const char *name; enum content what; } known[] = {
		{ "properties", MAP }, { "patternProperties", MAP }, { "$defs", MAP }, { "definitions", MAP },
		{ "dependentSchemas", MAP }, { "dependencies", MAP }, { "additionalProperties", SCHEMA },
		{ "propertyNames", SCHEMA }, { "unevaluatedProperties", SCHEMA }, { "items", SCHEMAS },
		{ "additionalItems", SCHEMA }, { "unevaluatedItems", SCHEMA }, { "contains", SCHEMA },
		{ "prefixItems", SCHEMAS }, { "allOf", SCHEMAS }, { "anyOf", SCHEMAS }, { "oneOf", SCHEMAS },
		{ "not", SCHEMA }, { "if", SCHEMA }, { "then", SCHEMA }, { "else", SCHEMA },
		{ "contentSchema", SCHEMA },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (!strcmp(keyword, known[i].name))
			return known[i].what;
	return PLAIN;
}

/* ---- places ---- */

static uint32_t hash_address(const void *p)
{
	return (uint32_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15ull >> 32);
}

static const struct where *find_where(const struct schema *s, const json_t *v)
{
	for (uint32_t i = hash_address(v) & (s->where_cap - 1), n; (n = s->where_of[i]);
	     i = (i + 1) & (s->where_cap - 1))
		if (s->where[n - 1].json == v)
			return &s->where[n - 1];
	return NULL;
}

static uint32_t count_values(const json_t *v)
{
	uint32_t n = 1;
	const char *key;
	json_t *sub;
	size_t i;

	if (json_is_object(v)) {
		json_object_foreach((json_t *)v, key, sub)
			if (json_is_object(sub) || json_is_array(sub))
				n += count_values(sub);
	} else {
		json_array_foreach(v, i, sub)
			if (json_is_object(sub) || json_is_array(sub))
				n += count_values(sub);
	}
	return n;
}

static void add_escaped(char *to, size_t n, size_t *at, const char *s)
{
	for (; *s && *at + 3 < n; s++) {
		const char *with = *s == '~' ? "~0" : *s == '/' ? "~1" : NULL;

		to[(*at)++] = with ? with[0] : *s;
		if (with)
			to[(*at)++] = with[1];
	}
	to[*at] = 0;
}

void schema_pointer(struct schema *s, const json_t *schema, char *to, size_t n)
{
	const struct where *w = find_where(s, schema), *way[256];
	size_t at = (size_t)snprintf(to, n, "%s", s->at), depth = 0;

	for (; w && w != s->where && depth < 256; w = &s->where[w->up])
		way[depth++] = w;
	if (at >= n)
		at = n - 1;
	while (depth-- && at + 24 < n) {
		to[at++] = '/';
		if (way[depth]->key)
			add_escaped(to, n, &at, way[depth]->key);
		else
			at += (size_t)snprintf(to + at, n - at, "%zu", way[depth]->index);
	}
}

/* ---- URIs: enough of RFC 3986 for $id and $ref ---- */

static size_t scheme_of(const char *u)
{
	size_t n = strspn(u, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");

	return n && u[n] == ':' ? n + 1 : 0;
}

static void drop_dots(char *path)
{
	char *from = path, *to = path;

	while (*from) {
		if (!strncmp(from, "/./", 3))
			from += 2;
		else if (!strncmp(from, "/../", 4)) {
			from += 3;
			while (to > path && *--to != '/')
				;
		} else {
			*to++ = *from++;
		}
	}
	*to = 0;
}

/* ref without its fragment, resolved against base. */
static const char *resolve_uri(struct schema *s, const char *base, const char *ref)
{
	size_t n = strcspn(ref, "#"), scheme = scheme_of(base), keep;
	const char *slash;
	char *u = schema_take(s, strlen(base) + n + 2, 1);
	size_t authority = scheme;

	if (base[scheme] == '/' && base[scheme + 1] == '/')
		authority = scheme + 2 + strcspn(base + scheme + 2, "/");
	if (!n)
		keep = strlen(base);
	else if (scheme_of(ref) && scheme_of(ref) <= n)
		keep = 0;
	else if (n > 1 && ref[0] == '/' && ref[1] == '/')
		keep = scheme;
	else if (ref[0] == '/')
		keep = authority;
	else
		keep = (slash = strrchr(base + authority, '/')) ? (size_t)(slash - base) + 1 : authority;
	memcpy(u, base, keep);
	memcpy(u + keep, ref, n);
	if (keep && n && strlen(u) > authority)
		drop_dots(u + authority);
	return u;
}

static int draft_of(const char *uri, int otherwise)
{
	static const struct { const char *name; int draft; } known[] = {
		{ "draft-03", 4 }, { "draft-04", 4 }, { "draft-06", 6 }, { "draft-07", 7 },
		{ "2019-09", 2019 }, { "2020-12", 2020 },
	};

	for (size_t i = 0; uri && i < sizeof(known) / sizeof(*known); i++)
		if (strstr(uri, known[i].name))
			return known[i].draft;
	return otherwise;
}

/* ---- the walk ---- */

static void add_anchor(struct schema *s, uint32_t resource, const char *name, json_t *v)
{
	if (!(s->n_anchors & (s->n_anchors - 1)) && s->n_anchors != 1) {
		struct anchor *more = schema_take(s, s->n_anchors ? 2 * s->n_anchors : 2, sizeof(*more));

		if (s->n_anchors)
			memcpy(more, s->anchor, s->n_anchors * sizeof(*more));
		s->anchor = more;
	}
	s->anchor[s->n_anchors++] = (struct anchor){ resource, name, v };
}

static uint32_t add_resource(struct schema *s, const char *uri, json_t *root, int draft)
{
	if (!(s->n_resources & (s->n_resources - 1)) && s->n_resources != 1) {
		struct resource *more = schema_take(s, s->n_resources ? 2 * s->n_resources : 2, sizeof(*more));

		if (s->n_resources)
			memcpy(more, s->resource, s->n_resources * sizeof(*more));
		s->resource = more;
	}
	s->resource[s->n_resources] = (struct resource){ uri, root, draft };
	return s->n_resources++;
}

/* The identifiers of a schema; returns the resource that it belongs to. */
static uint32_t identify(struct schema *s, json_t *v, uint32_t base)
{
	int draft = draft_of(json_string_value(json_object_get(v, "$schema")), s->resource[base].draft);
	const char *id = json_string_value(json_object_get(v, draft == 4 ? "id" : "$id"));
	const char *anchor = json_string_value(json_object_get(v, "$anchor"));
	const char *dynamic = json_string_value(json_object_get(v, "$dynamicAnchor"));

	if (!base && v == s->resource[0].root)
		s->resource[0].draft = draft;
	if (id && draft <= 7 && json_object_get(v, "$ref"))
		id = NULL;
	if (id && draft <= 7 && id[0] == '#') {
		add_anchor(s, base, id + 1, v);
	} else if (id && id[0] != '#') {
		const char *uri = resolve_uri(s, s->resource[base].uri, id);

		if (v == s->resource[0].root)
			s->resource[0].uri = uri;
		else
			base = add_resource(s, uri, v, draft);
	}
	if (anchor)
		add_anchor(s, base, anchor, v);
	if (dynamic)
		add_anchor(s, base, dynamic, v);
	return base;
}

static void walk(struct schema *s, json_t *v, enum content what, struct where at, unsigned depth)
{
	uint32_t me = s->n_where++, i;
	const char *key;
	json_t *sub;
	size_t index;

	if (depth > 200)
		schema_fail(s, -E2BIG, NULL, "The JSON schema is nested deeper than 200 levels.");
	at.json = v;
	if (what == SCHEMA && json_is_object(v))
		at.base = identify(s, v, at.base);
	s->where[me] = at;
	for (i = hash_address(v) & (s->where_cap - 1); s->where_of[i]; i = (i + 1) & (s->where_cap - 1))
		;
	s->where_of[i] = me + 1;
	if (json_is_object(v)) {
		json_object_foreach(v, key, sub) {
			enum content c = what == SCHEMA ? content_of(key) : what == MAP ? SCHEMA : PLAIN;

			if (c == SCHEMAS && json_is_object(sub))
				c = SCHEMA;
			if (json_is_object(sub) || json_is_array(sub))
				walk(s, sub, c, (struct where){ .up = me, .key = key, .base = at.base }, depth + 1);
		}
	} else {
		json_array_foreach(v, index, sub)
			if (json_is_object(sub) || json_is_array(sub))
				walk(s, sub, what == SCHEMAS ? SCHEMA : PLAIN,
				     (struct where){ .up = me, .index = index, .base = at.base }, depth + 1);
	}
}

void schema_index(struct schema *s, json_t *root)
{
	uint32_t n = count_values(root);

	s->where = schema_take(s, n, sizeof(*s->where));
	for (s->where_cap = 16; s->where_cap < 2 * n; s->where_cap *= 2)
		;
	s->where_of = schema_take(s, s->where_cap, sizeof(*s->where_of));
	add_resource(s, "", root, 2020);
	if (json_is_object(root))
		walk(s, root, SCHEMA, (struct where){ .base = 0 }, 0);
}

int schema_draft(struct schema *s, const json_t *schema)
{
	const struct where *w = find_where(s, schema);

	return w ? s->resource[w->base].draft : 2020;
}

/* ---- references ---- */

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* One step of a pointer, decoded from p (up to a slash) to `to`. */
static const char *decode_step(const char *p, char *to)
{
	for (; *p && *p != '/'; p++) {
		if (*p == '%' && hex(p[1]) >= 0 && hex(p[2]) >= 0) {
			*to++ = (char)(hex(p[1]) << 4 | hex(p[2]));
			p += 2;
		} else {
			*to++ = *p;
		}
	}
	*to = 0;
	return p;
}

static json_t *follow(struct schema *s, json_t *v, const char *p)
{
	char *step = schema_take(s, strlen(p) + 1, 1), *end, *a, *b;

	while (v && *p == '/') {
		p = decode_step(p + 1, step);
		for (a = b = step; *a; a++)
			*b++ = *a == '~' && (a[1] == '0' || a[1] == '1') ? (*++a == '0' ? '~' : '/') : *a;
		*b = 0;
		if (json_is_array(v))
			v = *step && strspn(step, "0123456789") == strlen(step) ?
			    json_array_get(v, strtoul(step, &end, 10)) : NULL;
		else
			v = json_object_get(v, step);
	}
	return v;
}

static json_t *find_anchor(const struct schema *s, uint32_t resource, const char *name)
{
	for (uint32_t i = 0; i < s->n_anchors; i++)
		if (s->anchor[i].resource == resource && !strcmp(s->anchor[i].name, name))
			return s->anchor[i].json;
	return NULL;
}

json_t *schema_resolve(struct schema *s, const json_t *schema, const char *ref)
{
	const struct where *w = find_where(s, schema);
	const char *uri = resolve_uri(s, w ? s->resource[w->base].uri : "", ref), *fragment = strchr(ref, '#');
	json_t *to = NULL;
	uint32_t i;

	for (i = 0; i < s->n_resources; i++)
		if (!strcmp(s->resource[i].uri, uri))
			break;
	if (i == s->n_resources)
		schema_fail(s, -ENOTSUP, schema, "The JSON schema refers to \"%.200s\", which is not in it; Slipring "
		            "fetches no schemas.", ref);
	if (!fragment || !fragment[1])
		to = s->resource[i].root;
	else if (fragment[1] == '/')
		to = follow(s, s->resource[i].root, fragment + 1);
	else
		to = find_anchor(s, i, fragment + 1);
	if (!to)
		schema_fail(s, -EINVAL, schema, "The JSON schema refers to \"%.200s\", which is not in it.", ref);
	return to;
}
