/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* test_unigram.c - vocabularies of unigrams, in a GGUF file and in tokenizer.json; the normal forms before them, and
 * WordPiece in a GGUF.  A slow search written here says which tokens have the largest sum of scores.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <cmocka.h>
#include <jansson.h>
#include <openssl/evp.h>

#include "adapters/text/slipring-text.h"
#include "adapters/text/unicode/charsmap.h"
#include "adapters/text/unicode/utf8.h"
#include "core/models/gguf.h"
#include "tests/rig/charsmap_write.h"
#include "tests/rig/gguf_write.h"

#define MARK "\u2581"
#define E_ACUTE "e\u0301"
enum { BOS, PAD, EOS, UNK, WORDS };

/* Scores whose sums are exact, so that equal ones are equal in any order. */
static const struct token { const char *s; double score; } tokens[] = {
	{ "<s>", 0 }, { "<pad>", 0 }, { "</s>", 0 }, { "<unk>", 0 }, { MARK, -3.125 }, { "a", -5.0625 }, { "b", -5.5 },
	{ "\u00e9", -6.75 }, { "ab", -7.25 }, { MARK "a", -6.015625 }, { MARK "ab", -9.25 }, { "aba", -8.875 }, { "ba", -7.75 },
	{ MARK "\u6f22", -8 }, { "bb", -9.3125 }, { "abab", -12.0625 }, { "\u6f22\u00e9", -11.375 }, { "f", -9 }, { "i", -9.125 },
};
enum { N_TOKENS = sizeof(tokens) / sizeof(*tokens) };

static const struct charsmap_entry entries[] = {
	{ "\t", " " }, { "\x7f", "" }, { E_ACUTE, "\u00e9" }, { "\u3000", " " }, { "\ufb01", "fi" }, { "\uff41", "a" },
};

static char path[] = "/tmp/slipring-unigram-XXXXXX", dir[] = "/tmp/slipring-unigram-XXXXXX";
static struct charsmap_table table;

/* ---- what is right ---- */

/* Is there a token of these bytes?  Its number, or -1. */
static int find(const char *s, size_t n)
{
	for (int t = WORDS; t < N_TOKENS; t++)
		if (strlen(tokens[t].s) == n && !memcmp(s, tokens[t].s, n))
			return t;
	return -1;
}

/* The best way to each place, by all tokens that end there; of equal ones that whose last token is longest.  What is
 * unknown costs 10 more than the least score. */
static int slow_encode(const char *s, size_t n, int32_t *ids)
{
	struct { double sum; size_t from; int32_t id; } *at = calloc(n + 1, sizeof(*at));
	int32_t *back = malloc((n + 1) * sizeof(*back));
	int out = 0, k = 0;

	for (size_t to = 1; to <= n; to++) {
		at[to].id = -1;
		for (size_t from = to > 16 ? to - 16 : 0; from < to; from++) {
			int id = find(s + from, to - from);
			bool one = ((uint8_t)s[from] & 0xc0) != 0x80;
			double sum;

			for (size_t i = from + 1; i < to; i++)
				one &= ((uint8_t)s[i] & 0xc0) == 0x80;
			one &= to == n || ((uint8_t)s[to] & 0xc0) != 0x80;
			if (id < 0 && !one)
				continue;
			sum = at[from].sum + (id < 0 ? -22.0625 : tokens[id].score);
			if (at[to].id >= 0 && sum <= at[to].sum)
				continue;
			at[to].sum = sum;
			at[to].from = from;
			at[to].id = id < 0 ? UNK : id;
		}
	}
	for (size_t i = n; i; i = at[i].from)
		back[k++] = at[i].id;
	while (k--)
		if (back[k] != UNK || !out || ids[out - 1] != UNK)
			ids[out++] = back[k];
	free(at);
	free(back);
	return out;
}

/* ---- the files ---- */

struct file { const char *model; int space, merge, map, no_scores, nan, accents; };

static int open_file(const struct file *f, struct sr_text **t, char *err, size_t errlen)
{
	static struct bytes w;
	const bool words = !strcmp(f->model, "bert");
	FILE *out = fopen(path, "w");

	put_head(&w, 3, 0, (uint64_t)(7 + (words ? 1 : 2) + !f->no_scores + (f->map != 0)));
	put_kv_str(&w, "general.architecture", "bert");
	put_kv_str(&w, "tokenizer.ggml.model", f->model);
	put_kv_u32(&w, "tokenizer.ggml.unknown_token_id", UNK);
	put_kv_u32(&w, words ? "tokenizer.ggml.cls_token_id" : "tokenizer.ggml.bos_token_id", BOS);
	put_kv_u32(&w, words ? "tokenizer.ggml.seperator_token_id" : "tokenizer.ggml.eos_token_id", EOS);
	put_key(&w, "tokenizer.ggml.tokens", GGUF_ARRAY);
	put_u32(&w, GGUF_STRING);
	put_u64(&w, N_TOKENS);
	for (int i = 0; i < N_TOKENS; i++)
		put_str(&w, tokens[i].s);
	put_key(&w, "tokenizer.ggml.token_type", GGUF_ARRAY);
	put_u32(&w, GGUF_I32);
	put_u64(&w, N_TOKENS);
	for (int i = 0; i < N_TOKENS; i++)
		put_u32(&w, i == UNK ? 2 : i < WORDS ? 3 : 1);
	for (int i = 0; i < 2 && !words; i++) {
		put_key(&w, i ? "tokenizer.ggml.remove_extra_whitespaces" : "tokenizer.ggml.add_space_prefix", GGUF_BOOL);
		put(&w, &(uint8_t){ (uint8_t)(i ? f->merge : f->space) }, 1);
	}
	if (words) {
		put_key(&w, "tokenizer.ggml.normalizer.strip_accents", GGUF_BOOL);
		put(&w, &(uint8_t){ !f->accents }, 1);
	}
	if (!f->no_scores) {
		put_key(&w, "tokenizer.ggml.scores", GGUF_ARRAY);
		put_u32(&w, GGUF_F32);
		put_u64(&w, N_TOKENS);
		for (int i = 0; i < N_TOKENS; i++)
			put(&w, &(float){ i == f->nan ? NAN : (float)tokens[i].score }, 4);
	}
	if (f->map) {
		put_key(&w, "tokenizer.ggml.precompiled_charsmap", GGUF_ARRAY);
		put_u32(&w, f->map == 1 ? GGUF_U8 : GGUF_I8);
		put_u64(&w, f->map == 1 ? table.n : 3);
		put(&w, table.bytes, f->map == 1 ? table.n : 3);
	}
	put_pad(&w, 32);
	assert_non_null(out);
	assert_int_equal(fwrite(w.b, 1, w.n, out), w.n);
	fclose(out);
	return sr_text_open(t, path, err, errlen);
}

static json_t *precompiled(void)
{
	unsigned char *text = malloc(table.n * 2);
	json_t *j;

	EVP_EncodeBlock(text, table.bytes, (int)table.n);
	j = json_pack("{s:s, s:s}", "type", "Precompiled", "precompiled_charsmap", text);
	free(text);
	return j;
}

#define META "{\"type\": \"Metaspace\", \"replacement\": \"\u2581\", \"prepend_scheme\": \"always\", \"split\": true}"
#define SPLIT "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"WhitespaceSplit\"}, " META "]}"
#define RUNS(to) "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \" {2,}\"}, \"content\": \"" to "\"}"

static int open_json_with(const char *pre, const char *more, const char *key, const char *value, struct sr_text **t,
                          char *err, size_t errlen)
{
	json_t *vocab = json_array(), *root, *model;
	char file[64];

	for (int i = 0; i < N_TOKENS; i++)
		json_array_append_new(vocab, json_pack("[s, f]", tokens[i].s, tokens[i].score));
	model = json_pack("{s:s, s:i, s:o}", "type", "Unigram", "unk_id", UNK, "vocab", vocab);
	root = json_pack("{s:o, s:o, s:{s:s, s:[o]}}", "model", model, "pre_tokenizer", json_loads(pre, 0, NULL),
	                 "normalizer", "type", "Sequence", "normalizers", precompiled());
	json_object_set_new(root, "added_tokens", json_loads("[{\"id\": 0, \"content\": \"<s>\", \"special\": true}]", 0, NULL));
	if (more)
		json_array_append_new(json_object_get(json_object_get(root, "normalizer"), "normalizers"),
		                      json_loads(more, 0, NULL));
	if (key)
		json_object_set_new(strncmp(key, "model.", 6) ? root : model, strncmp(key, "model.", 6) ? key : key + 6,
		                    json_loads(value, JSON_DECODE_ANY, NULL));
	snprintf(file, sizeof(file), "%s/tokenizer.json", dir);
	assert_int_equal(json_dump_file(root, file, 0), 0);
	json_decref(root);
	return sr_text_open(t, dir, err, errlen);
}

/* ---- cases ---- */

static void check(const struct sr_text *t, const char *text, const char *marked)
{
	static int32_t got[4096], want[4096];
	int64_t n = sr_text_encode(t, text, strlen(text), 0, got, 4096, 0);

	if (n != slow_encode(marked, strlen(marked), want))
		fail_msg("'%s': %lld ids", text, (long long)n);
	assert_memory_equal(got, want, (size_t)n * sizeof(*got));
}

static struct sr_text *gguf(int space, int merge, int map)
{
	struct sr_text *t = NULL;
	char err[400] = "";

	if (open_file(&(struct file){ "t5", space, merge, map, 0, -1, 0 }, &t, err, sizeof(err)))
		fail_msg("%s", err);
	return t;
}

static struct sr_text *json(const char *pre, const char *more)
{
	struct sr_text *t = NULL;
	char err[400] = "";

	if (open_json_with(pre, more, NULL, NULL, &t, err, sizeof(err)))
		fail_msg("%s", err);
	return t;
}

/* Random words, short and longer than what the search holds on the stack. */
static void best_sums(void **state)
{
	static const char *const parts[] = { "a", "b", "ab", "\u00e9", "\u6f22", "x", "y\u00fc", " " };
	struct sr_text *of[] = { gguf(1, 1, 0), json(SPLIT, NULL) };
	static char text[4096], marked[8192];

	(void)state;
	srand(11);
	for (int round = 0; round < 400; round++) {
		size_t n = 0, m = 0;
		bool inside = false;

		for (int i = rand() % (round % 20 ? 40 : 800); i >= 0; i--)
			n += (size_t)sprintf(text + n, "%s", parts[rand() % 8]);
		for (size_t i = 0; i < n; i++) {
			if (text[i] != ' ')
				m += (size_t)sprintf(marked + m, "%s%c", inside ? "" : MARK, text[i]);
			inside = text[i] != ' ';
		}
		marked[m] = 0;
		for (size_t k = 0; k < 2; k++)
			check(of[k], text, marked);
	}
	for (size_t k = 0; k < 2; k++)
		sr_text_close(of[k]);
}

/* White space, the longest and the shortest entry, and ends. */
static void normal_forms(void **state)
{
	struct sr_text *g = gguf(1, 1, 1), *whole = gguf(0, 0, 0), *xlmr = json(SPLIT, NULL), *meta = json(META, NULL),
		*runs = json(META, RUNS(" ")), *marked = json(META, RUNS(MARK));
	int32_t ids[8];

	(void)state;
	check(g, "\ta \u3000 b ", MARK "a" MARK "b");
	check(g, MARK "a", MARK MARK "a");             /* a written U+2581 is no space */
	check(g, "b" E_ACUTE "\ufb01\u0301\x7f\uff41", MARK "b\u00e9" "fi\u0301" "a");
	check(whole, " a  b", MARK "a" MARK MARK "b");
	check(xlmr, " a \u2003b\n", MARK "a" MARK "b");
	check(xlmr, "a" MARK MARK "b " MARK "a", MARK "a" MARK MARK "b" MARK "a");
	/* a cluster of five bytes becomes what it begins with; a longer one is looked at character by character */
	check(xlmr, "b" E_ACUTE "\ufb01\u0301\uff41", MARK "b\u00e9" "fi" "a");
	check(xlmr, "\ufb01\u0301\u0301", MARK "fi\u0301\u0301");
	check(meta, "a  b ", MARK "a" MARK MARK "b" MARK);
	check(runs, "a   b  ", MARK "a" MARK "b" MARK);
	check(marked, "a   b ", MARK "a" MARK "b" MARK);
	assert_int_equal(sr_text_encode(g, "a</s>b", 6, SR_TEXT_SPECIAL_PARSE | SR_TEXT_SPECIAL_ADD, ids, 8, 0), 5);
	assert_int_equal(ids[1], EOS);                 /* llama.cpp adds no <s>, and </s> at the end */
	assert_int_equal(ids[4], EOS);
	assert_int_equal(sr_text_encode(g, "</s>", 4, 0, ids, 8, 0), 2);
	assert_int_equal(ids[1], UNK);                 /* a control token is never made from text */
	for (size_t i = 0; i < 6; i++)
		sr_text_close(((struct sr_text *[]){ g, whole, xlmr, meta, runs, marked })[i]);
}

/* Each wrong table is refused, or read within its bounds; the sanitizers watch. */
static void wrong_tables(void **state)
{
	static const char text[] = "\ta" E_ACUTE "\ufb01\u3000x\uff41";
	static uint8_t bytes[sizeof(table.bytes)];
	struct charsmap m;
	size_t out_n;
	char *out;

	(void)state;
	assert_int_equal(charsmap_create(&m, table.bytes, 3), -EINVAL);
	assert_int_equal(charsmap_create(&m, table.bytes, 4 + 4 * CHARSMAP_UNITS), -EINVAL);
	assert_int_equal(charsmap_create(&m, table.bytes, table.n - 1), -EINVAL);      /* the last text has no end */
	srand(3);
	for (int round = 0; round < 2000; round++) {
		memcpy(bytes, table.bytes, table.n);
		for (int i = 0; i < 40; i++)
			bytes[4 + (size_t)rand() % (table.n - 5)] = (uint8_t)rand();
		assert_int_equal(charsmap_create(&m, bytes, table.n), 0);
		m.clusters = round % 2;
		if (charsmap_apply(&m, text, sizeof(text) - 1, &out, &out_n) == 0)
			free(out);
		charsmap_free(&m);
	}
}

/* WordPiece in a GGUF: U+2581 begins a word, and other tokens are inside one. */
static void words(void **state)
{
	struct sr_text *t = NULL;
	char err[400] = "", text[16];
	int32_t ids[8];

	(void)state;
	if (open_file(&(struct file){ "bert", 0, 0, 0, 1, -1, 0 }, &t, err, sizeof(err)))
		fail_msg("%s", err);
	assert_int_equal(sr_text_encode(t, "ABab a\u0301x!", 10, SR_TEXT_SPECIAL_ADD, ids, 8, 0), 6);
	assert_int_equal(ids[0], BOS);
	assert_int_equal(ids[1], 10);                  /* U+2581 ab, then ab */
	assert_int_equal(ids[2], 8);
	assert_int_equal(ids[3], UNK);
	assert_int_equal(ids[4], UNK);
	assert_int_equal(ids[5], EOS);
	assert_int_equal(sr_text_decode(t, ids + 1, 2, true, text, sizeof(text)), 4);
	assert_memory_equal(text, "abab", 4);
	sr_text_close(t);
}

/* Each character between a and b: left out, a word of its own, or anything else.  The sums are those of tokenizers
 * 0.23.3: BertPreTokenizer of what BertNormalizer makes of "a" + c + "b", for c in U+0080 .. U+1FFFF. */
static void unicode_8(void **state)
{
	struct { uint64_t n, sum; } out = { 0 }, alone = { 0 };
	struct sr_text *t = NULL;
	char err[400] = "", text[8] = "a";
	int32_t ids[8];

	(void)state;
	if (open_file(&(struct file){ "bert", 0, 0, 0, 1, -1, 0 }, &t, err, sizeof(err)))
		fail_msg("%s", err);
	for (uint32_t c = 0x80; c < 0x20000; c++) {
		size_t n = 1 + utf8_put(c, text + 1);
		int64_t got;

		if (c >= 0xd800 && c < 0xe000)
			continue;
		text[n++] = 'b';
		got = sr_text_encode(t, text, n, 0, ids, 8, 0);
		if (got == 1 && ids[0] == 10) {                        /* U+2581 ab */
			out.n++;
			out.sum += c;
		} else if (got == 3 && ids[2] == UNK) {           /* b begins a word: no token */
			alone.n++;
			alone.sum += c;
		}
	}
	sr_text_close(t);
	assert_int_equal(out.n, 7813);
	assert_int_equal(out.sum, 431779349);
	assert_int_equal(alone.n, 28794);
	assert_int_equal(alone.sum, 802442675);
}

/* U+0130 in lower case is i and a dot, which only accents that are kept show. */
static void dotted_i(void **state)
{
	(void)state;
	for (int accents = 0; accents < 2; accents++) {
		struct sr_text *t = NULL;
		char err[400] = "";
		int32_t ids[8];

		if (open_file(&(struct file){ "bert", 0, 0, 0, 1, -1, accents }, &t, err, sizeof(err)))
			fail_msg("%s", err);
		assert_int_equal(sr_text_encode(t, "a\u0130", 3, 0, ids, 8, 0), accents ? 1 : 2);
		assert_int_equal(ids[0], accents ? UNK : 9);           /* U+2581 a, then i */
		sr_text_close(t);
	}
}

static void refusals(void **state)
{
	static const struct { struct file f; int rc; const char *say; } files[] = {
		{ { "t5", 1, 1, 0, 1, -1, 0 }, -EINVAL, "tokenizer.ggml.scores: must be an array of" },
		{ { "t5", 1, 1, 0, 0, 9, 0 }, -EINVAL, "a score is not a number" },
		{ { "t5", 1, 1, 2, 0, -1, 0 }, -EINVAL, "precompiled_charsmap: must be an array of bytes" },
		{ { "t5", 0, 1, 0, 0, -1, 0 }, -ENOTSUP, "remove_extra_whitespaces without add_space_prefix" },
	};
	static const struct { const char *key, *value, *say; } parts[] = {
		{ "model.byte_fallback", "true", "byte_fallback" }, { "model.unk_id", "null", "unk_id must be a token" },
		{ "model.vocab", "[[\"<s>\", \"b\"]]", "there is no score for '<s>'" }, { "model.vocab", "{}", "model.vocab is not" },
		{ "normalizer", "{\"type\": \"NFKC\"}", "beside Unigram, normalizer 'NFKC'" },
		{ "normalizer", "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAA\"}", "is no table" },
		{ "normalizer", "{\"type\": \"Precompiled\"}", "in base64" },
		{ "pre_tokenizer", "{\"type\": \"ByteLevel\"}", "beside Unigram, pre_tokenizer 'ByteLevel'" },
		{ "decoder", "{\"type\": \"ByteLevel\"}", "beside Unigram, decoder 'ByteLevel'" },
	};
	struct sr_text *t;
	char err[400];

	(void)state;
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		assert_int_equal(open_file(&files[i].f, &t, err, sizeof(err)), files[i].rc);
		if (!strstr(err, files[i].say))
			fail_msg("%s: not '%s'", err, files[i].say);
	}
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		assert_true(open_json_with(META, NULL, parts[i].key, parts[i].value, &t, err, sizeof(err)) < 0);
		if (!strstr(err, parts[i].say))
			fail_msg("%s: not '%s'", err, parts[i].say);
	}
}

static int begin(void **state)
{
	int fd = mkstemp(path);

	(void)state;
	charsmap_write(&table, entries, sizeof(entries) / sizeof(*entries));
	return fd < 0 || close(fd) || !mkdtemp(dir) ? -1 : 0;
}

static int end(void **state)
{
	char file[64];

	(void)state;
	snprintf(file, sizeof(file), "%s/tokenizer.json", dir);
	unlink(file);
	return unlink(path) || rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(best_sums), cmocka_unit_test(normal_forms), cmocka_unit_test(wrong_tables),
		cmocka_unit_test(words), cmocka_unit_test(unicode_8), cmocka_unit_test(dotted_i), cmocka_unit_test(refusals),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
