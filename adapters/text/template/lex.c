/* template/lex.c - template source to lexemes, with white-space control.
 *
 * As Jinja2 does with trim_blocks and lstrip_blocks, it drops the newline after a block or comment, and
 * the blanks before one that is the first in its line.  "-" drops all white space on its side, "+" none.
 * One newline at the end of the source is dropped.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"
#include "adapters/text/unicode/utf8.h"

struct lexer {
	struct arena *j;
	const char *s;
	size_t n, at;
	uint32_t line;
	struct lexeme *t;
	size_t n_t, cap;
};

static bool at(const struct lexer *x, const char *what)
{
	size_t n = strlen(what);

	return x->n - x->at >= n && !memcmp(x->s + x->at, what, n);
}

static bool blank(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static void skip(struct lexer *x, size_t n)
{
	for (; n; n--)
		x->line += x->s[x->at++] == '\n';
}

static void skip_blanks(struct lexer *x)
{
	while (x->at < x->n && blank(x->s[x->at]))
		skip(x, 1);
}

static struct lexeme *add_lexeme(struct lexer *x, enum lexeme_kind kind)
{
	if (x->n_t == x->cap) {
		size_t cap = x->cap ? 2 * x->cap : 256;
		struct lexeme *t = arena_alloc(x->j, cap * sizeof(*t));

		if (x->n_t)
			memcpy(t, x->t, x->n_t * sizeof(*t));
		x->t = t;
		x->cap = cap;
	}
	x->t[x->n_t] = (struct lexeme){ .kind = kind, .line = x->line };
	return &x->t[x->n_t++];
}

/* ---- text between the brackets --------------------------------------------------------------- */

/* Add the text before a tag; sign is the character after the tag's bracket. */
static void add_data(struct lexer *x, size_t from, size_t to, char sign, bool is_block)
{
	size_t k, end = to;

	if (sign == '-') {
		while (end > from && blank(x->s[end - 1]))
			end--;
	} else if (is_block && sign != '+') {
		for (k = end; k > from && x->s[k - 1] != '\n' && blank(x->s[k - 1]); k--)
			;
		if (k == 0 || x->s[k - 1] == '\n')
			end = k;
	}
	if (end > from)
		add_lexeme(x, T_DATA)->s = (struct str){ x->s + from, end - from };
}

/* Skip the closing bracket "%}" or "#}" of a block or comment; sign is the character before it. */
static void close_block(struct lexer *x, char sign)
{
	skip(x, 2);
	if (sign == '-')
		skip_blanks(x);
	else if (sign != '+' && x->at < x->n && x->s[x->at] == '\n')
		skip(x, 1);
}

static void comment(struct lexer *x)
{
	uint32_t line = x->line;

	skip(x, 2);
	while (!at(x, "#}")) {
		if (x->at >= x->n)
			template_fail(x->j, -EINVAL, line, "a comment is not closed by #}");
		skip(x, 1);
	}
	close_block(x, x->s[x->at - 1]);
}

/* Is "{% name %}" here?  Returns its length up to the closing bracket, or 0; *close: the bracket's sign. */
static size_t lone_tag(const struct lexer *x, const char *name, char *close)
{
	size_t i = x->at + 2, n = strlen(name);

	if (!at(x, "{%"))
		return 0;
	if (i < x->n && (x->s[i] == '-' || x->s[i] == '+'))
		i++;
	while (i < x->n && blank(x->s[i]))
		i++;
	if (x->n - i < n || memcmp(x->s + i, name, n))
		return 0;
	for (i += n; i < x->n && blank(x->s[i]); i++)
		;
	*close = ' ';
	if (i < x->n && (x->s[i] == '-' || x->s[i] == '+'))
		*close = x->s[i++];
	return x->n - i >= 2 && x->s[i] == '%' && x->s[i + 1] == '}' ? i - x->at : 0;
}

static bool raw(struct lexer *x)
{
	uint32_t line = x->line;
	size_t len, from;
	char sign;

	len = lone_tag(x, "raw", &sign);
	if (!len)
		return false;
	skip(x, len + 2);
	if (sign == '-')
		skip_blanks(x);
	for (from = x->at; !(len = lone_tag(x, "endraw", &sign)); skip(x, 1))
		if (x->at >= x->n)
			template_fail(x->j, -EINVAL, line, "raw is not closed by endraw");
	add_data(x, from, x->at, x->s[x->at + 2], true);
	skip(x, len);
	close_block(x, sign);
	return true;
}

/* ---- inside the brackets --------------------------------------------------------------------- */

static bool name_start(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80);
}

static bool digit(char c)
{
	return c >= '0' && c <= '9';
}

static int hex(char c)
{
	return digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 :
	       c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decode one escape by Python's rules; s is after the backslash.  Returns the bytes used, or 0 if it is no
 * escape and the backslash stays. */
static size_t lex_escape(const char *s, size_t n, char *out, unsigned *out_n)
{
	static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
	const char *p = memchr(from, s[0], sizeof(from) - 1);
	size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0, i;
	uint32_t cp = 0;

	*out_n = 1;
	if (p) {
		*out = to[p - from];
		return 1;
	}
	if (s[0] == '\n') {
		*out_n = 0;
		return 1;
	}
	if (s[0] >= '0' && s[0] <= '7') {
		for (i = 0; i < 3 && i < n && s[i] >= '0' && s[i] <= '7'; i++)
			cp = cp * 8 + (uint32_t)(s[i] - '0');
		*out_n = utf8_put(cp, out);
		return i;
	}
	if (!digits || n <= digits)
		return 0;
	for (i = 1; i <= digits; i++) {
		if (hex(s[i]) < 0)
			return 0;
		cp = cp << 4 | (uint32_t)hex(s[i]);
	}
	if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
		cp = 0xfffd;
	*out_n = utf8_put(cp, out);
	return digits + 1;
}

static void lex_string(struct lexer *x)
{
	char quote = x->s[x->at], *out;
	size_t from = x->at + 1, to = from, k = 0, used;
	struct lexeme *t = add_lexeme(x, T_STRING);
	unsigned len;

	while (to < x->n && x->s[to] != quote)
		to += x->s[to] == '\\' ? 2 : 1;
	if (to >= x->n)
		template_fail(x->j, -EINVAL, x->line, "a string is not closed by %c", quote);
	out = arena_alloc(x->j, to - from + 4);
	for (size_t i = from; i < to; i++) {
		if (x->s[i] == '\\' && (used = lex_escape(x->s + i + 1, to - i - 1, out + k, &len))) {
			k += len;
			i += used;
		} else {
			out[k++] = x->s[i];
		}
	}
	t->s = (struct str){ out, k };
	skip(x, to + 1 - x->at);
}

static void numeral(struct lexer *x, bool after_dot)
{
	char buf[64], *end;
	size_t k = 0, i = x->at;
	struct lexeme *t = add_lexeme(x, T_INT);

	for (; i < x->n && k < sizeof(buf) - 2; i++) {  /* an exponent adds two: its letter and its sign */
		char c = x->s[i];

		if (c == '_' && i + 1 < x->n && digit(x->s[i + 1]))
			continue;
		if (c == '.' && !after_dot && t->kind == T_INT && i + 1 < x->n && digit(x->s[i + 1]))
			t->kind = T_FLOAT;
		else if ((c == 'e' || c == 'E') && !after_dot && k && i + 1 < x->n &&
		         (digit(x->s[i + 1]) || (i + 2 < x->n && strchr("+-", x->s[i + 1]) && digit(x->s[i + 2])))) {
			t->kind = T_FLOAT;
			buf[k++] = c;
			c = x->s[++i];
		} else if (!digit(c))
			break;
		buf[k++] = c;
	}
	buf[k] = 0;
	errno = 0;
	if (t->kind == T_FLOAT)
		t->f = strtod(buf, &end);
	else
		t->i = strtoll(buf, &end, 10);
	if (*end || k >= sizeof(buf) - 2 || (errno && t->kind == T_INT))
		template_fail(x->j, -EINVAL, x->line, "number '%.40s' is too long", buf);
	x->at = i;
}

static int operator(struct lexer *x, int *nested)
{
	static const char twos[][3] = { "//", "**", "==", "!=", ">=", "<=" };
	char c = x->s[x->at];

	for (size_t i = 0; i < sizeof(twos) / sizeof(*twos); i++)
		if (at(x, twos[i])) {
			skip(x, 2);
			return OP2(twos[i][0], twos[i][1]);
		}
	if (!c || !strchr("+-/*%~[](){}<>=.:|,", c))
		template_fail(x->j, -EINVAL, x->line, "unexpected character '%c'", c);
	if (strchr("([{", c))
		++*nested;
	if (strchr(")]}", c) && --*nested < 0)
		template_fail(x->j, -EINVAL, x->line, "unexpected '%c'", c);
	skip(x, 1);
	return c;
}

/* Read a tag, from after its opening bracket to after the closing one. */
static void lex_tag(struct lexer *x, bool is_block)
{
	const char *close = is_block ? "%}" : "}}";
	uint32_t line = x->line;
	int nested = 0;

	if (at(x, "-") || at(x, "+"))
		skip(x, 1);
	for (;;) {
		skip_blanks(x);
		if (x->at >= x->n)
			template_fail(x->j, -EINVAL, line, "%s is not closed by %s", is_block ? "{%" : "{{", close);
		if (!nested) {
			char c = x->s[x->at];
			size_t sign = (c == '-' || (c == '+' && is_block)) && x->n - x->at > 2;

			if (x->n - x->at >= 2 + sign && !memcmp(x->s + x->at + sign, close, 2)) {
				add_lexeme(x, is_block ? T_CLOSE_BLOCK : T_CLOSE_OUT);
				skip(x, sign);
				if (is_block) {
					close_block(x, sign ? c : ' ');
				} else {
					skip(x, 2);
					if (sign)
						skip_blanks(x);
				}
				return;
			}
		}
		if (name_start(x->s[x->at])) {
			size_t from = x->at;
			struct lexeme *t = add_lexeme(x, T_NAME);

			while (x->at < x->n && (name_start(x->s[x->at]) || digit(x->s[x->at])))
				x->at++;
			t->s = (struct str){ x->s + from, x->at - from };
		} else if (digit(x->s[x->at])) {
			numeral(x, x->t[x->n_t - 1].kind == T_OP && x->t[x->n_t - 1].op == '.');
		} else if (x->s[x->at] == '\'' || x->s[x->at] == '"') {
			lex_string(x);
		} else {
			struct lexeme *t = add_lexeme(x, T_OP);

			t->op = operator(x, &nested);
		}
	}
}

/* Newlines of any kind become \n; the last one is dropped. */
static void normalize(struct lexer *x, const char *source, size_t n)
{
	char *s = arena_alloc(x->j, n + 1);
	size_t k = 0;

	for (size_t i = 0; i < n; i++) {
		if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n')
			continue;
		s[k++] = source[i] == '\r' ? '\n' : source[i];
	}
	if (k && s[k - 1] == '\n')
		k--;
	s[k] = 0;
	x->s = s;
	x->n = k;
}

struct lexeme *template_lex(struct arena *j, const char *source, size_t n)
{
	struct lexer x = { .j = j, .line = 1 };
	size_t from;
	char c;

	normalize(&x, source, n);
	while (x.at < x.n) {
		for (from = x.at; x.at < x.n; skip(&x, 1))
			if (at(&x, "{{") || at(&x, "{%") || at(&x, "{#"))
				break;
		c = x.n - x.at >= 2 ? x.s[x.at + 1] : 0;
		add_data(&x, from, x.at, x.n - x.at > 2 ? x.s[x.at + 2] : 0, c != '{' && x.at < x.n);
		if (x.at >= x.n)
			break;
		if (c == '#') {
			comment(&x);
		} else if (c == '{' || !raw(&x)) {
			add_lexeme(&x, c == '{' ? T_OPEN_OUT : T_OPEN_BLOCK);
			skip(&x, 2);
			lex_tag(&x, c != '{');
		}
	}
	add_lexeme(&x, T_END);
	return x.t;
}
