/* property.c - see property.h.  General categories and case are utf8proc's; scripts and properties PCRE2's.
 *
 * Planes 4 to 16 have nothing assigned but tags and private use, so one character stands for many of them.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <errno.h>
#include <pcre2.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "adapters/text/unicode/utf8.h"
#include "property.h"

#define NAME_MOST 64

/* ---- general categories ---- */

static const struct category { const char *name[3]; uint32_t mask; } categories[] = {
#define C(c) (1u << UTF8PROC_CATEGORY_##c)
	{ { "Cn", "Unassigned" }, C(CN) },
	{ { "Lu", "Uppercase_Letter" }, C(LU) },
	{ { "Ll", "Lowercase_Letter" }, C(LL) },
	{ { "Lt", "Titlecase_Letter" }, C(LT) },
	{ { "Lm", "Modifier_Letter" }, C(LM) },
	{ { "Lo", "Other_Letter" }, C(LO) },
	{ { "Mn", "Nonspacing_Mark" }, C(MN) },
	{ { "Mc", "Spacing_Mark" }, C(MC) },
	{ { "Me", "Enclosing_Mark" }, C(ME) },
	{ { "Nd", "Decimal_Number", "digit" }, C(ND) },
	{ { "Nl", "Letter_Number" }, C(NL) },
	{ { "No", "Other_Number" }, C(NO) },
	{ { "Pc", "Connector_Punctuation" }, C(PC) },
	{ { "Pd", "Dash_Punctuation" }, C(PD) },
	{ { "Ps", "Open_Punctuation" }, C(PS) },
	{ { "Pe", "Close_Punctuation" }, C(PE) },
	{ { "Pi", "Initial_Punctuation" }, C(PI) },
	{ { "Pf", "Final_Punctuation" }, C(PF) },
	{ { "Po", "Other_Punctuation" }, C(PO) },
	{ { "Sm", "Math_Symbol" }, C(SM) },
	{ { "Sc", "Currency_Symbol" }, C(SC) },
	{ { "Sk", "Modifier_Symbol" }, C(SK) },
	{ { "So", "Other_Symbol" }, C(SO) },
	{ { "Zs", "Space_Separator" }, C(ZS) },
	{ { "Zl", "Line_Separator" }, C(ZL) },
	{ { "Zp", "Paragraph_Separator" }, C(ZP) },
	{ { "Cc", "Control", "cntrl" }, C(CC) },
	{ { "Cf", "Format" }, C(CF) },
	{ { "Cs", "Surrogate" }, C(CS) },
	{ { "Co", "Private_Use" }, C(CO) },
	{ { "L", "Letter" }, C(LU) | C(LL) | C(LT) | C(LM) | C(LO) },
	{ { "LC", "Cased_Letter" }, C(LU) | C(LL) | C(LT) },
	{ { "M", "Mark", "Combining_Mark" }, C(MN) | C(MC) | C(ME) },
	{ { "N", "Number" }, C(ND) | C(NL) | C(NO) },
	{ { "P", "Punctuation", "punct" }, C(PC) | C(PD) | C(PS) | C(PE) | C(PI) | C(PF) | C(PO) },
	{ { "S", "Symbol" }, C(SM) | C(SC) | C(SK) | C(SO) },
	{ { "Z", "Separator" }, C(ZS) | C(ZL) | C(ZP) },
	{ { "C", "Other" }, C(CC) | C(CF) | C(CS) | C(CO) | C(CN) },
	{ { "Any" }, UINT32_MAX },
	{ { "Assigned" }, ~C(CN) },
#undef C
};

static uint32_t category_mask(const char *name)
{
	for (size_t i = 0; i < sizeof(categories) / sizeof(categories[0]); i++)
		for (int k = 0; k < 3 && categories[i].name[k]; k++)
			if (!strcmp(categories[i].name[k], name))
				return categories[i].mask;
	return 0;
}

/* ---- every character once ---- */

/* first .. last, all alike if `alike`: first is looked at for them. */
static const struct part { uint32_t first, last; bool alike;
} parts[] = {
	{ 0, 0x3ffff, false },
#define PLANE(p) { (p) << 16, (p) << 16 | 0xfffd, true }, { (p) << 16 | 0xfffe, (p) << 16 | 0xffff, true }
	PLANE(0x4),
	PLANE(0x5),
	PLANE(0x6),
	PLANE(0x7),
	PLANE(0x8),
	PLANE(0x9),
	PLANE(0xa),
	PLANE(0xb),
	PLANE(0xc),
	PLANE(0xd),
	{ 0xe0000, 0xe0fff, false },
	{ 0xe1000, 0xefffd, true },
	{ 0xefffe, 0xeffff, true },
	PLANE(0xf),
	PLANE(0x10),
#undef PLANE
};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

struct set { struct regex_range *range; int n, cap; };

static int put(struct set *s, uint32_t first, uint32_t last)
{
	struct regex_range *p;

	if (s->n && s->range[s->n - 1].last + 1 == first) {
		s->range[s->n - 1].last = last;
		return 0;
	}
	if (s->n == s->cap) {
		p = realloc(s->range, (size_t)(s->cap + 64) * 2 * sizeof(*p));
		if (!p)
			return -ENOMEM;
		s->range = p;
		s->cap = (s->cap + 64) * 2;
	}
	s->range[s->n++] = (struct regex_range){ first, last };
	return 0;
}

static int by_category(struct set *s, uint32_t mask)
{
	int rc = 0;

	for (size_t i = 0; i < PARTS; i++)
		for (uint32_t cp = parts[i].first; cp <= parts[i].last && !rc; cp++) {
			uint32_t last = parts[i].alike ? parts[i].last : cp;

			if (mask >> utf8proc_category((utf8proc_int32_t)cp) & 1)
				rc = put(s, cp, last);
			cp = last;
		}
	return rc;
}

/* All characters that by_script() looks at, in UTF-8.  Surrogates are in no script. */
static size_t every(char *s)
{
	size_t n = 0;

	for (size_t i = 0; i < PARTS; i++)
		for (uint32_t cp = parts[i].first; cp <= parts[i].last; cp++) {
			if (cp < 0xd800 || cp > 0xdfff)
				n += utf8_put(cp, s + n);
			if (parts[i].alike)
				break;
		}
	return n;
}

/* The runs of characters that re matches. */
static int by_runs(struct set *s, const pcre2_code *re, const char *text, size_t n)
{
	pcre2_match_data *m = pcre2_match_data_create(1, NULL);
	size_t at = 0, i;
	uint32_t cp;
	int rc = m ? 0 : -ENOMEM;

	while (!rc && at < n && pcre2_match(re, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, m, NULL) > 0) {
		const PCRE2_SIZE *o = pcre2_get_ovector_pointer(m);

		for (i = o[0], at = o[1]; i < at && !rc;) {
			size_t k = 0;

			i += utf8_next(text + i, n - i, &cp);
			while (!(parts[k].first <= cp && cp <= parts[k].last))
				k++;
			rc = put(s, cp, parts[k].alike ? parts[k].last : cp);
		}
	}
	pcre2_match_data_free(m);
	return rc;
}

static pcre2_code *compile(const char *prefix, const char *name)
{
	char re[NAME_MOST + 16];
	PCRE2_SIZE at;
	pcre2_code *code;
	int error;

	snprintf(re, sizeof(re), "\\p{%s%s}+", prefix, name);
	code = pcre2_compile((PCRE2_SPTR)re, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);
	if (code)
		pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
	return code;
}

static int by_script(struct set *s, const char *prefix, const char *name)
{
	pcre2_code *code = compile(prefix, name);
	char *text;
	int rc = -ENOMEM;

	if (!code)
		return -EINVAL;
	text = malloc((0x40000 + 0x1000 + 64) * 4);
	if (text)
		rc = by_runs(s, code, text, every(text));
	free(text);
	pcre2_code_free(code);
	return rc;
}

/* ---- names ---- */

/* Found so far.  PCRE2 takes a name in any case and with any underscores: key is without, so there are no
 * more than properties. */
static struct kept { struct kept *next; struct set set; char key[NAME_MOST]; } *kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *value_of(const char *name, const char *key, const char *long_key)
{
	const char *eq = strchr(name, '=');
	size_t n = eq ? (size_t)(eq - name) : 0;

	if (!eq || !((strlen(key) == n && !memcmp(name, key, n)) ||
	             (strlen(long_key) == n && !memcmp(name, long_key, n))))
		return NULL;
	return eq + 1;
}

static int find(struct set *s, const char *name)
{
	const char *v;
	int rc;

	if (!strcmp(name, "ASCII"))
		return put(s, 0, 0x7f);
	if ((v = value_of(name, "sc", "Script")))
		return by_script(s, "sc:", v);
	if ((v = value_of(name, "scx", "Script_Extensions")))
		return by_script(s, "scx:", v);
	v = value_of(name, "gc", "General_Category");
	if (category_mask(v ? v : name))
		return by_category(s, category_mask(v ? v : name));
	/* PCRE2 has names of its own, such as Xan. */
	if (v || strchr(name, '=') || (name[0] == 'X' && strlen(name) == 3))
		return -EINVAL;
	rc = by_script(s, "sc:", name);
	return rc == -EINVAL ? by_script(s, "", name) : rc;
}

static int find_kept(const char *name, const char *key, const struct kept **out)
{
	struct kept *k;
	int rc;

	for (k = kept; k && strcmp(k->key, key); k = k->next)
		;
	if (!k) {
		k = calloc(1, sizeof(*k));
		if (!k)
			return -ENOMEM;
		strcpy(k->key, key);
		rc = find(&k->set, name);
		if (rc) {
			free(k->set.range);
			free(k);
			return rc;
		}
		k->next = kept;
		kept = k;
	}
	*out = k;
	return 0;
}

int property_ranges(const char *name, size_t n, const struct regex_range **out)
{
	char copy[NAME_MOST], key[NAME_MOST];
	const struct kept *k = NULL;
	size_t len = 0;
	int rc;

	if (n < 1 || n >= NAME_MOST)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		copy[i] = name[i];
		if (!isalnum((unsigned char)name[i]) && name[i] != '_' && name[i] != '=')
			return -EINVAL;
		if (name[i] != '_')
			key[len++] = (char)tolower((unsigned char)name[i]);
	}
	copy[n] = key[len] = '\0';
	pthread_mutex_lock(&lock);
	rc = find_kept(copy, key, &k);
	pthread_mutex_unlock(&lock);
	if (rc)
		return rc;
	*out = k->set.range;
	return k->set.n;
}

/* ---- case ---- */

#define CASED_LAST 0x1ffff           /* no character above has another case */
#define CASED_MOST 8192

struct folded { uint32_t fold, cp; };

static struct { uint32_t *cp; struct folded *by_fold; size_t n; } cased;

/* Equal for characters that differ in case alone.  The dotted and the dotless i are no case of i. */
static uint32_t fold(uint32_t cp)
{
	if (cp == 0x130 || cp == 0x131)
		return cp;
	return (uint32_t)utf8proc_tolower(utf8proc_toupper((utf8proc_int32_t)cp));
}

static int by_fold(const void *x, const void *y)
{
	const struct folded *a = x, *b = y;

	return a->fold != b->fold ? (a->fold > b->fold) - (a->fold < b->fold) : (a->cp > b->cp) - (a->cp < b->cp);
}

static int by_number(const void *x, const void *y)
{
	uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

	return (a > b) - (a < b);
}

static void find_cased(void)
{
	struct folded *all = malloc(CASED_MOST * sizeof(*all));
	uint32_t *cp = malloc(CASED_MOST * sizeof(*cp));
	size_t n = 0, k = 0;

	for (uint32_t c = 0; all && cp && c <= CASED_LAST && n < CASED_MOST; c++)
		if (fold(c) != c || utf8proc_toupper((utf8proc_int32_t)c) != (utf8proc_int32_t)c)
			all[n++] = (struct folded){ fold(c), c };
	if (!all || !cp) {
		free(all);
		free(cp);
		return;
	}
	qsort(all, n, sizeof(*all), by_fold);
	for (size_t i = 0; i < n; i++)
		if ((k && all[k - 1].fold == all[i].fold) || (i + 1 < n && all[i + 1].fold == all[i].fold)) {
			cp[k] = all[i].cp;
			all[k++] = all[i];
		}
	qsort(cp, k, sizeof(*cp), by_number);
	cased.by_fold = all;
	cased.cp = cp;
	cased.n = k;
}

const uint32_t *property_cased(size_t *n)
{
	const uint32_t *cp;

	pthread_mutex_lock(&lock);
	if (!cased.cp)                       /* after a failure, too */
		find_cased();
	*n = cased.n;
	cp = cased.cp;
	pthread_mutex_unlock(&lock);
	return cp;
}

unsigned property_cases(uint32_t cp, uint32_t out[4])
{
	uint32_t f = fold(cp);
	size_t lo = 0, hi, n;
	unsigned k = 0;

	if (cp > CASED_LAST || !property_cased(&n))
		return 0;
	for (hi = n; lo < hi;) {
		size_t mid = (lo + hi) / 2;

		if (cased.by_fold[mid].fold < f)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < n && cased.by_fold[lo].fold == f && k < 4; lo++)
		if (cased.by_fold[lo].cp != cp)
			out[k++] = cased.by_fold[lo].cp;
	return k;
}
