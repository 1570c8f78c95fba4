/* template/strings.c - the methods of Python's strings, on UTF-8. */
#include <string.h>
#include <utf8proc.h>

#include "impl.h"
#include "adapters/text/unicode/utf8.h"

/* str.isspace(): Unicode's White_Space and the four information separators. */
bool py_space(uint32_t cp)
{
	return utf8_space(cp) || (cp >= 0x1c && cp <= 0x1f);
}

static bool among(struct str chars, uint32_t cp)
{
	uint32_t c;

	for (size_t i = 0; i < chars.n;) {
		i += utf8_next(chars.s + i, chars.n - i, &c);
		if (c == cp)
			return true;
	}
	return false;
}

struct str str_strip(struct render *r, struct str s, struct str chars, bool any_space, int sides)
{
	uint32_t cp;
	unsigned len;

	while (sides & 1 && s.n) {
		len = utf8_next(s.s, s.n, &cp);
		if (any_space ? !py_space(cp) : !among(chars, cp))
			break;
		spend(r, 1 + chars.n / 16);      /* each may be looked for in all of them */
		s.s += len;
		s.n -= len;
	}
	while (sides & 2 && s.n) {
		size_t k = s.n - 1;

		while (k && ((uint8_t)s.s[k] & 0xc0) == 0x80)
			k--;
		utf8_next(s.s + k, s.n - k, &cp);
		if (any_space ? !py_space(cp) : !among(chars, cp))
			break;
		spend(r, 1 + chars.n / 16);
		s.n = k;
	}
	return s;
}

static bool cased(uint32_t cp)
{
	utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

	return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

/* how: u(pper), l(ower), c(apitalize), t(itle as in Python: a capital after each non-letter), w(ords as in
 * the filter "title": a capital after blanks, "-", "(", "{", "[", "<"). */
struct str str_case(struct render *r, struct str s, char how)
{
	struct string_builder t = { .r = r };
	bool start = true, up;
	uint32_t cp;

	builder_put(&t, STR(""));
	for (size_t i = 0; i < s.n;) {
		i += utf8_next(s.s + i, s.n - i, &cp);
		up = how == 'u' || (how != 'l' && start);
		if (how == 't')
			start = !cased(cp);
		else if (how == 'w')
			start = py_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
		else
			start = false;
		if (up && cp == 0xdf)
			builder_put(&t, how == 'u' || how == 'w' ? STR("SS") : STR("Ss"));
		else
			builder_char(&t, (uint32_t)(up ? utf8proc_toupper((int32_t)cp) : utf8proc_tolower((int32_t)cp)));
	}
	return (struct str){ t.s, t.n };
}

struct str str_escape(struct render *r, struct value v)
{
	static const char from[] = "&<>'\"", *const to[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
	struct str s = to_str(r, v);
	struct string_builder t = { .r = r };
	const char *p;

	if (v.t == V_STR && v.markup)
		return s;
	builder_put(&t, STR(""));
	for (size_t i = 0; i < s.n; i++) {
		p = s.s[i] ? strchr(from, s.s[i]) : NULL;
		builder_put(&t, p ? (struct str){ to[p - from], strlen(to[p - from]) } : (struct str){ s.s + i, 1 });
	}
	return (struct str){ t.s, t.n };
}

struct str str_replace(struct render *r, struct str s, struct str from, struct str to, int64_t most)
{
	struct string_builder t = { .r = r };
	const char *p;
	uint32_t cp;

	builder_put(&t, STR(""));
	for (; most && (from.n || s.n); most--) {
		if (from.n) {
			p = memmem(s.s, s.n, from.s, from.n);
			if (!p)
				break;
			builder_put(&t, (struct str){ s.s, (size_t)(p - s.s) });
			builder_put(&t, to);
			s.n -= (size_t)(p - s.s) + from.n;
			s.s = p + from.n;
		} else {                         /* once before each character, and once at the end */
			size_t len = utf8_next(s.s, s.n, &cp);

			builder_put(&t, to);
			builder_put(&t, (struct str){ s.s, len });
			s.s += len;
			s.n -= len;
		}
	}
	if (!from.n && most)
		builder_put(&t, to);
	builder_put(&t, s);
	return (struct str){ t.s, t.n };
}

struct list_builder { struct render *r; struct value *v; size_t n, cap; };

static void add_part(struct list_builder *p, const char *s, size_t n)
{
	if (p->n == p->cap) {
		size_t cap = p->cap ? 2 * p->cap : 16;
		struct value *v = arena_alloc(&p->r->mem, cap * sizeof(*v));

		if (p->n)
			memcpy(v, p->v, p->n * sizeof(*v));
		p->v = v;
		p->cap = cap;
	}
	p->v[p->n++] = v_str((struct str){ s, n });
	spend(p->r, 1);
}

static struct value_list *built_list(struct list_builder *p)
{
	struct value_list *l = arena_alloc(&p->r->mem, sizeof(*l));

	*l = (struct value_list){ p->n, p->v };
	return l;
}

/* The first sep in s, or the last one. */
static const char *find_separator(struct str s, struct str sep, bool last)
{
	if (!last)
		return memmem(s.s, s.n, sep.s, sep.n);
	for (size_t i = s.n; i-- > 0;)
		if (s.n - i >= sep.n && !memcmp(s.s + i, sep.s, sep.n))
			return s.s + i;
	return NULL;
}

static void reverse(struct list_builder *p)
{
	for (size_t i = 0; i < p->n / 2; i++) {
		struct value v = p->v[i];

		p->v[i] = p->v[p->n - 1 - i];
		p->v[p->n - 1 - i] = v;
	}
}

static size_t word_start(struct str s, bool last)
{
	uint32_t cp;
	size_t i, k;

	if (!last) {
		for (i = 0; i < s.n; i += k) {
			k = utf8_next(s.s + i, s.n - i, &cp);
			if (py_space(cp))
				return i;
		}
		return s.n;
	}
	for (i = s.n; i > 0; i = k) {
		for (k = i - 1; k && ((uint8_t)s.s[k] & 0xc0) == 0x80; k--)
			;
		utf8_next(s.s + k, i - k, &cp);
		if (py_space(cp))
			return i;
	}
	return 0;
}

struct value_list *str_split(struct render *r, struct str s, const struct str *sep, int64_t most, bool right)
{
	struct list_builder p = { .r = r };
	const char *at;
	size_t k;

	spend(r, s.n / 16);
	if (sep && !sep->n)
		fail(r, "empty separator");
	while (sep && most-- && (at = find_separator(s, *sep, right))) {
		k = (size_t)(at - s.s);
		if (right) {
			add_part(&p, at + sep->n, s.n - k - sep->n);
			s.n = k;
		} else {
			add_part(&p, s.s, k);
			s.s = at + sep->n;
			s.n -= k + sep->n;
		}
	}
	if (sep) {
		add_part(&p, s.s, s.n);
	} else {
		for (;; most--) {
			s = str_strip(p.r, s, STR(""), true, right ? 2 : 1);
			if (!s.n)
				break;
			if (!most) {
				add_part(&p, s.s, s.n);
				break;
			}
			k = word_start(s, right);
			if (right) {
				add_part(&p, s.s + k, s.n - k);
				s.n = k;
			} else {
				add_part(&p, s.s, k);
				s.s += k;
				s.n -= k;
			}
		}
	}
	if (right)
		reverse(&p);
	return built_list(&p);
}

struct value_list *str_lines(struct render *r, struct str s)
{
	struct list_builder p = { .r = r };
	size_t from = 0, i = 0, k;
	uint32_t cp;

	while (i < s.n) {
		k = utf8_next(s.s + i, s.n - i, &cp);
		if ((cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
		    cp == 0x2028 || cp == 0x2029) {
			add_part(&p, s.s + from, i - from);
			if (cp == '\r' && i + 1 < s.n && s.s[i + 1] == '\n')
				k = 2;
			from = i + k;
		}
		i += k;
	}
	if (from < s.n)
		add_part(&p, s.s + from, s.n - from);
	return built_list(&p);
}

struct value_list *str_chars(struct render *r, struct str s)
{
	struct list_builder p = { .r = r };
	uint32_t cp;
	size_t k;

	for (size_t i = 0; i < s.n; i += k) {
		k = utf8_next(s.s + i, s.n - i, &cp);
		add_part(&p, s.s + i, k);
	}
	return built_list(&p);
}
