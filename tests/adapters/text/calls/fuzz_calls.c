/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* fuzz_calls.c - any text as an answer in any format.  In pieces it gives the same parts as whole, and
 * arguments that are translated are JSON.  The first two bytes choose the format and the pieces.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/calls/calls.h"
#include "adapters/text/unicode/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct parts { char *p, *args; size_t n, n_args; int last; };

static const char *const names[] = { "hermes", "qwen3_coder", "llama3_json", "openai", "mistral",
  "deepseek_v3",
	"kimi_k2", "glm45", "gemma4", "pythonic", "olmo3", "apertus", "deepseek_v32", "generic", "minimax_m2" };
#define N_NAMES (sizeof(names) / sizeof(names[0]))

/* Are the arguments since the last name JSON? */
static void check(const struct parts *r)
{
	json_error_t e;
	json_t *v = r->n_args ? json_loadb(r->args, r->n_args, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e) : NULL;

	if (r->n_args && !v && json_error_code(&e) != json_error_numeric_overflow)
		abort();
	json_decref(v);
}

static void put(void *ctx, enum calls_part part, const char *s, size_t n)
{
	struct parts *r = ctx;

	if (r->last != (int)part || part == CALLS_NAME)
		r->p[r->n++] = (char)part;
	r->last = (int)part;
	memcpy(r->p + r->n, s, n);
	r->n += n;
	if (part == CALLS_NAME)
		r->n_args = 0;
	if (part == CALLS_ARGUMENTS) {
		memcpy(r->args + r->n_args, s, n);
		r->n_args += n;
	}
}

static struct splitter_result split(const struct calls *c, int how, const char *text, size_t n, size_t piece,
                                    struct parts *r)
{
	struct splitter_options o = { .begin = (enum calls_begin)(how % 3), .parse_calls = how & 4 || !(how & 8),
	                              .forced = how & 16, .put = put, .ctx = r };
	struct splitter *s = splitter_create(c, &o);
	struct splitter_result result;

	r->p = malloc(16 * n + 4096);
	r->args = malloc(16 * n + 4096);
	r->last = -1;
	if (!s || !r->p || !r->args)
		abort();
	for (size_t i = 0; i < n; i += piece)
		splitter_text(s, text + i, i + piece < n ? piece : n - i);
	splitter_end(s);
	result = splitter_result(s);
	splitter_free(s);
	return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct calls *c[N_NAMES];
	struct parts a = { 0 }, b = { 0 };
	struct splitter_result whole, pieces;
	const char *text = (const char *)data + 2, *name;
	char err[2048];

	if (n < 3 || !utf8_valid(text, n - 2) || memchr(text, 0, n - 2))
		return 0;
	name = names[data[0] % N_NAMES];
	if (!c[data[0] % N_NAMES] && calls_open(&c[data[0] % N_NAMES], name, "qwen3", NULL, NULL, err,
	  sizeof(err)))
		abort();
	whole = split(c[data[0] % N_NAMES], data[1] & 31, text, n - 2, n - 2, &a);
	pieces = split(c[data[0] % N_NAMES], data[1] & 31, text, n - 2, 1 + (data[1] >> 5), &b);
	if (a.n != b.n || memcmp(a.p, b.p, a.n) || whole.calls != pieces.calls || whole.whole != pieces.whole)
		abort();
	if (whole.whole && whole.calls && (!strcmp(name, "glm45") || !strcmp(name, "gemma4") || !strcmp(name,
	  "pythonic")))
		check(&a);
	free(a.p);
	free(b.p);
	free(a.args);
	free(b.args);
	return 0;
}
