/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* test_guide.c - grammars as the engine follows them: against a recognizer that tries every way to derive
 * every string, and each mask against each token tried alone. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/rig/world_rig.h"

/* ---- a recognizer: which spans of a text does each symbol derive? ---- */

/* The terminals: by hand here, as expressions in terminal_expr(). */
static bool terminal_is(int k, const char *s, int n)
{
	static const char *const literal[] = { "a", "b", "c", "ab", "ca" };
	int i = 0;

	if (k < 5)
		return n == (int)strlen(literal[k]) && !memcmp(s, literal[k], (size_t)n);
	if (k == 5)                                          /* [ab]* */
		for (; i < n && s[i] != 'c'; i++) {}
	else if (k == 6)                                     /* a{1,3} */
		for (; i < n && n <= 3 && s[i] == 'a'; i++) {}
	else if (k == 7)                                     /* [abc]* without bb */
		for (; i < n && !(i + 1 < n && s[i] == 'b' && s[i + 1] == 'b'); i++) {}
	else                                                 /* [bc]{2} */
		return n == 2 && s[0] != 'a' && s[1] != 'a';
	return i == n && (k != 6 || n);
}

static bool members_derive(const struct world *w, const struct toy *y, uint64_t set, int count, bool rest, int i, int j)
{
	const struct grammar_members *m = &y->members;
	bool enough = !(m->required & ~set) && (uint32_t)count >= m->min;

	for (uint32_t g = 0; g < m->n_groups; g++)
		enough = enough && m->group[g] & set;
	if (enough && i == j)
		return true;
	if ((uint32_t)count >= m->max)
		return false;
	for (int from = i; from <= j; from++) {
		if (count && m->separator >= 0 ? !w->derives[m->separator][i][from] : from > i)
			continue;
		for (int to = from; to <= j; to++) {
			for (uint32_t k = 0; k < m->n; k++)
				if (!(set >> k & 1) && !(m->ordered && (rest || set >> k)) &&
				    w->derives[m->symbol[k]][from][to] &&
				    members_derive(w, y, set | 1ull << k, count + 1, rest, to, j))
					return true;
			if (m->rest >= 0 && to > from && w->derives[m->rest][from][to] &&
			    members_derive(w, y, set, count + 1, true, to, j))
				return true;
		}
	}
	return false;
}

static bool repeat_derives(const struct world *w, const struct toy *y, int count, int i, int j)
{
	if (count >= y->min && i == j)
		return true;
	if (count >= y->max || count > 2 * TEXT_MAX)
		return false;
	for (int from = i; from <= j; from++) {
		if (count && y->separator >= 0 ? !w->derives[y->separator][i][from] : from > i)
			continue;
		for (int to = from; to <= j; to++)
			if (w->derives[y->item][from][to] && repeat_derives(w, y, count + 1, to, j))
				return true;
	}
	return false;
}

static bool body_derives(const struct world *w, const struct rule *r, int k, int i, int j)
{
	if (k == r->n)
		return i == j;
	for (int to = i; to <= j; to++)
		if (w->derives[r->body[k]][i][to] && body_derives(w, r, k + 1, to, j))
			return true;
	return false;
}

static bool derives(const struct world *w, const struct toy *y, const char *s, int i, int j)
{
	bool yes = false;

	if (y->kind == SYMBOL_LEXEME)
		return terminal_is(y->terminal, s + i, j - i);
	if (y->kind == SYMBOL_REPEAT)
		return repeat_derives(w, y, 0, i, j);
	if (y->kind == SYMBOL_MEMBERS)
		return members_derive(w, y, 0, 0, false, i, j);
	for (int k = 0; k < y->n; k++)
		yes = yes || body_derives(w, &y->rule[k], 0, i, j);
	return yes;
}

/* The least fixed point over all spans; the last symbol is the whole. */
static bool recognizes(struct world *w, const char *s, int n)
{
	bool changed = true;

	memset(w->derives, 0, sizeof(w->derives));
	while (changed) {
		changed = false;
		for (int k = 0; k < w->n; k++)
			for (int i = 0; i <= n; i++)
				for (int j = i; j <= n; j++)
					if (!w->derives[k][i][j] && derives(w, &w->toy[k], s, i, j))
						changed = w->derives[k][i][j] = true;
	}
	return w->derives[w->n - 1][0][n];
}

/* ---- the comparison ---- */

struct check { struct world *w; const struct sr_text *t; const bool *begins; long masks, texts, forced; };

static int number_of(const char *s, int n)          /* a text over a, b, c: its place in an array */
{
	int k = 0;

	for (int i = 0; i < n; i++)
		k = k * 3 + s[i] - 'a' + 1;
	return k;
}

static void print_world(const struct world *w, const char *s, int n)
{
	print_message("text \"%.*s\"\n", n, s);
	for (int k = TERMINALS; k < w->n; k++) {
		const struct toy *y = &w->toy[k];
		const struct grammar_members *m = &y->members;
		if (y->kind == SYMBOL_REPEAT)
			print_message("%d = repeat %d, %d to %d, separator %d\n", k, y->item, y->min, y->max, y->separator);
		if (y->kind == SYMBOL_MEMBERS)
			print_message("%d = members %d %d %d (%u), required %d, ordered %d, rest %d, %u to %u, separator %d, "
			              "group %d\n", k, m->symbol[0], m->symbol[1], m->symbol[2], m->n, (int)m->required,
			              m->ordered, m->rest, m->min, m->max, m->separator, m->n_groups ? (int)y->group[0] : 0);
		for (int p = 0; p < y->n; p++) {
			print_message("%d ::=", k);
			for (int i = 0; i < y->rule[p].n; i++)
				print_message(" %d", y->rule[p].body[i]);
			print_message("\n");
		}
	}
}

/* All that is forced must be allowed, one after the other. */
static void take_forced(struct check *c, struct sr_guide *u, const struct sr_next *next)
{
	struct sr_guide *f;

	assert_int_equal(sr_guide_fork(&f, u), 0);
	for (uint32_t i = 0; i < next->n; i++)
		assert_int_equal(sr_guide_take(f, next->id[i]), 0);
	sr_guide_close(f);
	c->forced += next->n > 1;
}

static void follow(struct check *c, struct sr_guide *u, char *s, int n)
{
	uint32_t bits[1];
	struct sr_next next = rig_bits(u, c->t, bits);
	bool whole = recognizes(c->w, s, n);

	c->texts++;
	if (rig_allows(bits, END) != whole)
		print_world(c->w, s, n);
	assert_int_equal(rig_allows(bits, END), whole);
	assert_true(bits[0] & ((1u << N_WORDS) - 1));       /* no dead end */
	if (next.done)
		assert_int_equal(bits[0], 1u << END);
	if (next.kind == SR_GUIDE_IS)
		take_forced(c, u, &next);
	assert_false(rig_allows(bits, SPECIAL));
	for (int id = 0; id < SPECIAL; id++) {
		struct sr_guide *f;
		int rc, len = (int)strlen(words[id]);
		assert_int_equal(sr_guide_fork(&f, u), 0);
		rc = sr_guide_take(f, id);
		assert_true(rc == 0 || rc == -EINVAL);
		assert_int_equal(rc == 0, rig_allows(bits, id));
		c->masks++;
		if (n + len <= TEXT_MAX) {
			memcpy(s + n, words[id], (size_t)len);
			if (c->begins[number_of(s, n + len)])
				assert_int_equal(rc, 0);        /* some text of the language goes on so */
			if (!rc && len == 1 && n < TEXT_MAX - 1)
				follow(c, f, s, n + 1);
		}
		sr_guide_close(f);
	}
}

/* Which texts begin a text of the language of at most TEXT_MAX letters? */
static bool find_beginnings(struct world *w, bool *begins, char *s, int n)
{
	bool any = recognizes(w, s, n);

	for (int k = 0; k < 3 && n < TEXT_MAX; k++) {
		s[n] = (char)('a' + k);
		any |= find_beginnings(w, begins, s, n + 1);
	}
	begins[number_of(s, n)] = any;
	return any;
}

static void test_random_grammars(void **state)
{
	struct sr_text *t = rig_text(words, N_WORDS);
	const char *rounds = getenv("SLIPRING_GUIDE_ROUNDS");
	int n = rounds ? atoi(rounds) : 150, empty = 0;
	struct check c = { .t = t };
	struct world *w = calloc(1, sizeof(*w));
	bool *begins = calloc(2000, sizeof(*begins));
	char s[TEXT_MAX + 8];

	(void)state;
	assert_true(w && begins);
	c.w = w;
	c.begins = begins;
	for (int i = 0; i < n; i++) {
		struct sr_grammar *g;
		struct sr_guide *u;
		bool any;
		seed = (unsigned)i * 7919u + 1;
		random_world(w);
		any = find_beginnings(w, begins, s, 0);
		g = open_world(w, t);
		if (!g) {
			assert_false(any);
			empty++;
			continue;
		}
		assert_int_equal(sr_guide_open(&u, g), 0);
		sr_grammar_close(g);
		follow(&c, u, s, 0);
		sr_guide_close(u);
	}
	print_message("%d grammars (%d derive nothing), %ld texts, %ld tokens tried, %ld runs forced\n", n, empty,
	              c.texts, c.masks, c.forced);
	free(begins);
	free(w);
	sr_text_close(t);
}

/* Long answers: no dead end, and nothing refused that the mask allows.  SLIPRING_GUIDE_STEPS: how many tokens. */
static void test_random_answers(void **state)
{
	struct sr_text *t = rig_text(words, N_WORDS);
	const char *most = getenv("SLIPRING_GUIDE_STEPS");
	long steps = 0, answers = 0, over = 0, all = most ? atol(most) : 30000;
	struct world *w = calloc(1, sizeof(*w));

	(void)state;
	for (unsigned i = 0; steps < all; i++) {
		struct sr_grammar *g;
		seed = i * 104729u + 17;
		random_world(w);
		g = open_world(w, t);
		for (int k = 0; g && k < 20; k++, answers++)
			steps += world_walk(g, t, 400, &over);
		sr_grammar_close(g);
	}
	print_message("%ld answers, %ld over a budget, %ld tokens\n", answers, over, steps);
	assert_true(over * 100 <= answers);
	free(w);
	sr_text_close(t);
}

/* Threads share a grammar, and its caches are renewed all the while (make tsan). */
static struct sr_grammar *shared;

static void *share(void *arg)
{
	unsigned x = *(unsigned *)arg;
	uint32_t bits[1];

	for (int k = 0; k < 100; k++) {
		struct sr_guide *u, *f;
		struct sr_next next;
		int rc = sr_guide_open(&u, shared);
		for (int i = 0; !rc && i < 30; i++) {
			x = x * 1664525u + 1013904223u;
			if (sr_guide_next(u, &next, bits))
				break;
			if (!sr_guide_take(u, (int32_t)((x >> 8) % (unsigned)N_WORDS)) && i % 5 == 0 &&
			    !sr_guide_fork(&f, u)) {
				sr_guide_close(u);
				u = f;
			}
		}
		sr_guide_close(u);
	}
	return NULL;
}

static void test_threads(void **state)
{
	struct sr_text *t = rig_text(words, N_WORDS);
	struct world *w = calloc(1, sizeof(*w));
	unsigned start[] = { 1, 2, 3 };
	pthread_t thread[3];
	int done = 0, n;

	(void)state;
	for (seed = 5; done < 6;) {
		random_world(w);
		shared = open_world(w, t);
		if (!shared)
			continue;
		shared->most_bytes = done++ % 2 ? CACHE_BYTES : caches_bytes(shared->now) + 20000;
		for (n = 0; n < 3 && !pthread_create(&thread[n], NULL, share, &start[n]); n++) {}
		for (int i = 0; i < n; i++)             /* a machine may have no more threads */
			pthread_join(thread[i], NULL);
		assert_int_equal(shared->users, 1);
		assert_int_equal(shared->now->users, 0);
		sr_grammar_close(shared);
	}
	free(w);
	sr_text_close(t);
}

/* ---- the doors ---- */

static void test_choice(void **state)
{
	static const char source[] = "[\"ab\", \"abc\", \"ca\"]";
	struct sr_text *t = rig_text(words, N_WORDS);
	struct sr_grammar *g;
	struct sr_guide *u, *f;
	struct sr_next next;
	uint32_t bits[1];
	char err[256];

	(void)state;
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_CHOICE, source, strlen(source), NULL, err, sizeof(err)), 0);
	assert_int_equal(sr_guide_open(&u, g), 0);
	assert_int_equal(sr_guide_next(u, &next, bits), 0);
	assert_int_equal(next.kind, SR_GUIDE_ONLY);
	assert_int_equal(next.n, 5);                         /* a, c, ab, abc, ca */
	assert_int_equal(sr_guide_take(u, 1), -EINVAL);
	assert_int_equal(sr_guide_take(u, END), -EINVAL);
	assert_int_equal(sr_guide_take(u, 3), 0);            /* ab */
	assert_int_equal(sr_guide_fork(&f, u), 0);
	assert_int_equal(sr_guide_next(u, &next, bits), 0);
	assert_int_equal(next.n, 2);                         /* c or the end */
	assert_false(next.done);
	assert_int_equal(sr_guide_take(u, 2), 0);
	assert_int_equal(sr_guide_next(u, &next, bits), 0);
	assert_true(next.done);
	assert_int_equal(next.kind, SR_GUIDE_IS);
	assert_int_equal(next.id[0], END);
	assert_int_equal(sr_guide_take(u, END), 0);
	assert_int_equal(sr_guide_take(u, END), -EINVAL);
	assert_int_equal(sr_guide_take(f, END), 0);          /* the fork stayed where it was */
	assert_true(sr_grammar_bytes(g) > 0);
	sr_guide_close(u);
	sr_guide_close(f);
	sr_grammar_close(g);
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_CHOICE, "[]", 2, NULL, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "A choice is a JSON array of at least one string.");
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_CHOICE, "[1]", 3, NULL, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "A choice is a JSON array of strings; this is none. At /0");
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_CHOICE, "[", 1, NULL, err, sizeof(err)), -EINVAL);
	sr_text_close(t);
}

static void test_regex(void **state)
{
	static const char long_ahead[] = "(?=[a-z0-9]{60000,})([a-z][0-9])+";
	static const char source[] = "(ab|c){2}";
	struct sr_text *t = rig_text(words, N_WORDS);
	struct sr_grammar *g;
	struct sr_guide *u;
	struct sr_next next;
	uint32_t bits[1];
	char err[256];

	(void)state;
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_REGEX, source, strlen(source), NULL, err, sizeof(err)), 0);
	assert_int_equal(sr_guide_open(&u, g), 0);
	rig_bits(u, t, bits);
	assert_int_equal(bits[0], 1 << 0 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8);   /* a c ab abc ca cab */
	assert_int_equal(sr_guide_take(u, 6), 0);            /* ca */
	rig_bits(u, t, bits);
	assert_int_equal(bits[0], 1 << 1);                   /* b */
	assert_int_equal(sr_guide_take(u, 1), 0);
	assert_int_equal(sr_guide_next(u, &next, bits), 0);
	assert_true(next.done);
	sr_guide_close(u);
	sr_grammar_close(g);
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_REGEX, "a(", 2, NULL, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "The group is not closed. At 1:2");
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_REGEX, "a(?!a)(?=a)", 11, NULL, err, sizeof(err)), -EINVAL);
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_REGEX, long_ahead, strlen(long_ahead), NULL, err, sizeof(err)),
	                 -E2BIG);
	assert_string_equal(err, "It takes too long to find out if any text matches a pattern of the grammar.");
	sr_text_close(t);
}

/* Forced text stops where the answer may end; no token of the vocabulary fits; what leaves too few members. */
static void test_edges(void **state)
{
	static const char source[] = "[\"bb\", \"bba\"]";
	struct sr_text *t = rig_text(words, N_WORDS);
	struct sr_grammar *g;
	struct sr_guide *u;
	struct sr_next next;
	struct grammar_members m = { .n = 3, .ordered = true, .min = 2, .max = 3, .rest = -1, .separator = -1 };
	uint32_t bits[1] = { ~0u };
	char err[256];

	(void)state;
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_CHOICE, source, strlen(source), NULL, err, sizeof(err)), 0);
	assert_int_equal(sr_guide_open(&u, g), 0);
	assert_int_equal(sr_guide_next(u, &next, bits), 0);
	assert_int_equal(next.kind, SR_GUIDE_IS);
	assert_int_equal(next.n, 1);                         /* bb; then a or the end */
	assert_int_equal(next.id[0], 9);
	sr_guide_close(u);
	sr_grammar_close(g);
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_REGEX, "xa", 2, NULL, err, sizeof(err)), 0);
	assert_int_equal(sr_guide_open(&u, g), 0);
	assert_int_equal(sr_guide_next(u, &next, bits), 0);
	assert_false(next.done);
	assert_int_equal(next.kind, SR_GUIDE_BITS);
	assert_int_equal(bits[0], 0);
	sr_guide_close(u);
	sr_grammar_close(g);
	g = rig_grammar(t);
	for (int i = 0; i < 3; i++)
		m.symbol[i] = rig_word(g, words[i]);
	assert_int_equal(rig_seal(g, grammar_members(g->g, &m)), 0);
	assert_int_equal(sr_guide_open(&u, g), 0);
	rig_bits(u, t, bits);
	assert_int_equal(bits[0], 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5);   /* a b ab bc abc, not c */
	sr_guide_close(u);
	sr_grammar_close(g);
	sr_text_close(t);
}

/* ---- tokens by their number ---- */

static void test_tokens_and_until(void **state)
{
	static const int32_t special[] = { SPECIAL }, end[] = { END, SPECIAL };
	struct sr_text *t = rig_text(words, N_WORDS);
	struct sr_grammar *g = rig_grammar(t);
	int32_t until = grammar_until(g->g, special, 1), token = grammar_token(g->g, special, 1);
	int32_t body[] = { until, rig_word(g, "abc"), token, grammar_until(g->g, end, 2) }, rule = grammar_rule(g->g);
	struct sr_guide *u;
	struct sr_next next;
	uint32_t bits[1];

	(void)state;
	grammar_produce(g->g, rule, body, 4);
	assert_int_equal(rig_seal(g, rule), 0);
	assert_int_equal(sr_guide_open(&u, g), 0);
	for (int i = 0; i < 3; i++) {                        /* free up to <t>, whatever comes */
		next = rig_bits(u, t, bits);
		assert_int_equal(next.kind, SR_GUIDE_FREE);
		assert_int_equal(next.n, 1);
		assert_int_equal(next.id[0], SPECIAL);
		assert_int_equal(sr_guide_take(u, i), 0);
	}
	assert_int_equal(sr_guide_take(u, SPECIAL), 0);
	next = rig_bits(u, t, bits);
	assert_int_equal(next.kind, SR_GUIDE_IS);            /* abc, but what ends in <t> is not text */
	assert_int_equal(next.id[0], 5);
	assert_int_equal(sr_guide_take(u, SPECIAL), -EINVAL);
	assert_int_equal(sr_guide_take(u, 3), 0);
	assert_int_equal(sr_guide_take(u, 2), 0);
	next = rig_bits(u, t, bits);
	assert_int_equal(next.kind, SR_GUIDE_IS);
	assert_int_equal(next.n, 1);
	assert_int_equal(next.id[0], SPECIAL);
	assert_int_equal(sr_guide_take(u, 0), -EINVAL);
	assert_int_equal(sr_guide_take(u, SPECIAL), 0);
	next = rig_bits(u, t, bits);
	assert_int_equal(next.kind, SR_GUIDE_FREE);
	assert_int_equal(next.n, 2);
	assert_int_equal(sr_guide_take(u, SPECIAL), 0);
	next = rig_bits(u, t, bits);
	assert_true(next.done);
	sr_guide_close(u);
	sr_grammar_close(g);
	sr_text_close(t);
}

/* The grammar begins behind the thought; an id of the request ends the answer as the model's does. */
static void test_options(void **state)
{
	static const int32_t begin[] = { SPECIAL, 2 }, stop[] = { 0 };
	const struct sr_grammar_options o = { .size = sizeof(o), .begin = begin, .n_begin = 2, .stop = stop, .n_stop = 1 };
	struct sr_text *t = rig_text(words, N_WORDS);
	struct sr_grammar *g;
	struct sr_guide *u;
	struct sr_next next;
	uint32_t bits[1];
	char err[256];

	(void)state;
	assert_int_equal(sr_grammar_open(&g, t, SR_GRAMMAR_REGEX, "b*c", 3, &o, err, sizeof(err)), 0);
	assert_int_equal(sr_guide_open(&u, g), 0);
	next = rig_bits(u, t, bits);
	assert_int_equal(next.kind, SR_GUIDE_FREE);
	assert_int_equal(next.n, 2);
	assert_int_equal(sr_guide_take(u, 1), 0);
	assert_int_equal(sr_guide_take(u, 2), 0);            /* the second id that ends the thought */
	rig_bits(u, t, bits);
	assert_int_equal(bits[0], 1 << 1 | 1 << 2 | 1 << 4 | 1 << 9);   /* b c bc bb */
	assert_int_equal(sr_guide_take(u, 0), -EINVAL);
	assert_int_equal(sr_guide_take(u, 4), 0);
	rig_bits(u, t, bits);
	assert_int_equal(bits[0], 1 << 0 | 1 << END);
	assert_int_equal(sr_guide_next(u, &next, bits), 0);
	assert_true(next.done);
	assert_int_equal(next.kind, SR_GUIDE_IS);
	assert_int_equal(next.id[0], END);
	assert_int_equal(sr_guide_take(u, 0), 0);
	sr_guide_close(u);
	sr_grammar_close(g);
	sr_text_close(t);
}

/* ---- the default model's vocabulary ---- */

static struct sr_text *default_text(void)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char path[512], err[256];
	struct sr_text *t;

	snprintf(path, sizeof(path), "%s%s/slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf",
	         cache && *cache ? cache : home ? home : ".", cache && *cache ? "" : "/.cache");
	if (access(path, R_OK)) {
		print_message("SKIP the default model's vocabulary: there is no %s\n", path);
		return NULL;
	}
	assert_int_equal(sr_text_open(&t, path, err, sizeof(err)), 0);
	return t;
}

static uint32_t range(struct regexes *r, uint32_t first, uint32_t last)
{
	return regex_points(r, &(struct regex_range){ first, last }, 1);
}

/* A string of JSON of min to max characters: plain ones, \n, \", and é as \u00e9. */
static uint32_t string_of(struct regexes *r, uint32_t min, uint32_t max)
{
	struct regex_range plain[] = { { ' ', '"' - 1 }, { '"' + 1, '\\' - 1 }, { '\\' + 1, 0x10ffff } };
	uint32_t quote = regex_bytes(r, "\"", 1);
	uint32_t one = regex_or(r, regex_points(r, plain, 3), regex_or(r, regex_bytes(r, "\\n", 2),
	                        regex_or(r, regex_bytes(r, "\\\"", 2), regex_bytes(r, "\\u00e9", 6))));

	return regex_concat(r, quote, regex_concat(r, regex_repeat(r, one, min, max), quote));
}

/* {"name": S, "count": N, "tags": [S, ...]} with one blank behind marks, or none. */
static struct sr_grammar *person(const struct sr_text *t)
{
	struct sr_grammar *g = rig_grammar(t);
	struct regexes *r = grammar_regexes(g->g);
	int32_t blank = grammar_lexeme(g->g, regex_repeat(r, regex_bytes(r, " ", 1), 0, 1));
	int32_t text = grammar_lexeme(g->g, string_of(r, 0, REGEX_MANY)), rule = grammar_rule(g->g);
	int32_t few = grammar_lexeme(g->g, string_of(r, 2, 12));
	int32_t number = grammar_lexeme(g->g, regex_repeat(r, range(r, '0', '9'), 1, 3)), comma = grammar_rule(g->g);
	int32_t with[] = { rig_word(g, ","), blank };
	int32_t tags = grammar_repeat(g->g, few, 1, 3, comma);
	int32_t body[] = { rig_word(g, "{\"name\": "), text, rig_word(g, ", \"count\": "), number,
		rig_word(g, ", \"the tags of this person\": ["), tags, rig_word(g, "]}") };

	grammar_produce(g->g, comma, with, 2);
	grammar_produce(g->g, rule, body, 7);
	assert_int_equal(rig_seal(g, rule), 0);
	return g;
}

/* The mask against each token tried alone. */
static void compare_all(const struct sr_text *t, struct sr_guide *u)
{
	static uint32_t bits[8192];

	rig_bits(u, t, bits);
	for (int32_t id = 0; id < t->info.vocab; id++) {
		struct sr_guide *f;
		int rc;
		assert_int_equal(sr_guide_fork(&f, u), 0);
		rc = sr_guide_take(f, id);
		if ((rc == 0) != rig_allows(bits, id))
			print_message("token %d: take %d, mask %d\n", (int)id, rc, rig_allows(bits, id));
		assert_int_equal(rc == 0, rig_allows(bits, id));
		sr_guide_close(f);
	}
}

static const char *const people[] = {
	"{\"name\": \"Zo\\u00e9 \\\"the fox\\\" \\n J\u00f6rg \u65e5\u672c \U0001f98a\", \"count\": 42, "
	"\"the tags of this person\": [\"ab\", \"twelve chars\",\"\u65e5\u672c\"]}",
	"{\"name\": \"\", \"count\": 7, \"the tags of this person\": [\"   x\"]}",
};

static void test_default_vocabulary(void **state)
{
	struct sr_text *t = default_text();

	(void)state;
	if (!t)
		skip();
	for (size_t p = 0; p < sizeof(people) / sizeof(*people); p++) {
		struct sr_grammar *g = person(t);
		int32_t ids[256];
		struct sr_guide *u;
		int64_t n = sr_text_encode(t, people[p], strlen(people[p]), 0, ids, 256, 0);
		assert_int_equal(sr_guide_open(&u, g), 0);
		for (int64_t i = 0; i < n; i++) {
			compare_all(t, u);
			assert_int_equal(sr_guide_take(u, ids[i]), 0);
		}
		sr_guide_close(u);
		sr_grammar_close(g);
	}
	sr_text_close(t);
}

/* Whatever is forced on the way is what the tokenizer makes of the whole text. */
static void test_forced(void **state)
{
	struct sr_text *t = default_text();
	int forced = 0, drawn = 0;

	(void)state;
	if (!t)
		skip();
	for (size_t p = 0; p < sizeof(people) / sizeof(*people); p++) {
		static uint32_t bits[8192];
		struct sr_grammar *g = person(t);
		int32_t ids[256];
		struct sr_guide *u;
		int64_t n = sr_text_encode(t, people[p], strlen(people[p]), 0, ids, 256, 0);
		assert_int_equal(sr_guide_open(&u, g), 0);
		for (int64_t i = 0; i <= n;) {
			struct sr_next next = rig_bits(u, t, bits);
			if (next.kind == SR_GUIDE_IS) {
				for (uint32_t k = 0; k < next.n; k++, i++) {
					assert_int_equal(next.id[k], i < n ? ids[i] : t->info.eos);
					assert_int_equal(sr_guide_take(u, next.id[k]), 0);
				}
				forced += (int)next.n;
			} else {
				assert_true(i < n);
				assert_int_equal(sr_guide_take(u, ids[i++]), 0);
				drawn++;
			}
		}
		sr_guide_close(u);
		sr_grammar_close(g);
	}
	print_message("%d tokens forced, %d drawn\n", forced, drawn);
	assert_true(forced > 30);
	sr_text_close(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_choice),
		cmocka_unit_test(test_regex),
		cmocka_unit_test(test_edges),
		cmocka_unit_test(test_tokens_and_until),
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_default_vocabulary),
		cmocka_unit_test(test_forced),
		cmocka_unit_test(test_random_grammars),
		cmocka_unit_test(test_random_answers),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
