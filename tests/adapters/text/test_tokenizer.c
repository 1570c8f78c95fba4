/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto -Wl,--wrap=pcre2_compile_8,--wrap=pcre2_code_free_8,--wrap=pcre2_match_data_create_8,--wrap=pcre2_match_data_free_8,--wrap=pcre2_match_context_create_8,--wrap=pcre2_match_context_free_8,--wrap=utf8_repair */
/* test_tokenizer.c - text to ids, with a small tokenizer made here (every rule of
 * tokenizer.json that is read or refused), and with the default model against recorded ids
 * (text_tokens.jsonl, text_chat.jsonl: lines of what transformers gives for that model).
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/stat.h>
#include <jansson.h>
#include <cmocka.h>

#include "adapters/text/pretokenize.h"
#include "adapters/text/slipring-text.h"

/* ---- what PCRE2 gives, and takes back --------------------------------------------------------- */

static int held, fails;          /* objects that were not freed; the next creation that fails, from 1 */

#define CREATES(type, name, args, pass) \
	type *__real_##name args; type *__wrap_##name args; \
	type *__wrap_##name args \
	{ \
		type *p = fails && !--fails ? NULL : __real_##name pass; \
		held += !!p; \
		return p; \
	}
#define FREES(type, name) \
	void __real_##name(type *p); void __wrap_##name(type *p); \
	void __wrap_##name(type *p) \
	{ \
		held -= !!p; \
		__real_##name(p); \
	}

CREATES(pcre2_code, pcre2_compile_8, (PCRE2_SPTR8 s, PCRE2_SIZE n, uint32_t how, int *e, PCRE2_SIZE *at,
                                      pcre2_compile_context *c), (s, n, how, e, at, c))
CREATES(pcre2_match_data, pcre2_match_data_create_8, (uint32_t n, pcre2_general_context *c), (n, c))
CREATES(pcre2_match_context, pcre2_match_context_create_8, (pcre2_general_context *c), (c))
CREATES(char, utf8_repair, (const char *s, size_t n, size_t *to), (s, n, to))
FREES(pcre2_code, pcre2_code_free_8)
FREES(pcre2_match_data, pcre2_match_data_free_8)
FREES(pcre2_match_context, pcre2_match_context_free_8)

/* ---- a small tokenizer ----------------------------------------------------------------------- */

static const char *const merges[] = {
	"h e", "l l", "he ll", "hell o", "\u0120 w", "o r", "\u0120w or", "\u0120wor l", "\u0120worl d",
	"\u0120 \u0120", "\u0120\u0120 \u0120\u0120", "1 2", "12 3", "a a", "aa aa",
};

#define N_MERGES (sizeof(merges) / sizeof(*merges))
#define SPECIAL  (256 + (int)N_MERGES)       /* <|x|>, then <think> and <pad> */

static int byte_char(int b)
{
	int more = 0;

	if ((b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff))
		return b;
	for (int i = 0; i < b; i++)
		more += !((i >= '!' && i <= '~') || (i >= 0xa1 && i <= 0xac) || (i >= 0xae && i <= 0xff));
	return 256 + more;
}

static json_t *added(int id, const char *s, const char *more)
{
	json_t *t = json_loads(more, 0, NULL);

	json_object_set_new(t, "id", json_integer(id));
	json_object_set_new(t, "content", json_string(s));
	return t;
}

/* Ids 0 .. 255 are the bytes, then the merges in order, then three added tokens. */
static json_t *tokenizer(void)
{
	json_t *root = json_loads("{\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
	                          "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []},"
	                          "\"added_tokens\": []}", 0, NULL);
	json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
	json_t *list = json_object_get(json_object_get(root, "model"), "merges");
	json_t *more = json_object_get(root, "added_tokens");
	char s[64];

	for (int b = 0; b < 256; b++) {
		int c = byte_char(b);

		if (c < 0x80)
			snprintf(s, sizeof(s), "%c", c);
		else
			snprintf(s, sizeof(s), "%c%c", 0xc0 | c >> 6, 0x80 | (c & 0x3f));
		json_object_set_new(vocab, s, json_integer(b));
	}
	for (size_t i = 0; i < N_MERGES; i++) {
		const char *space = strchr(merges[i], ' ');

		snprintf(s, sizeof(s), "%.*s%s", (int)(space - merges[i]), merges[i], space + 1);
		json_object_set_new(vocab, s, json_integer(256 + (int)i));
		if (i % 2)
			json_array_append_new(list, json_string(merges[i]));
		else
			json_array_append_new(list, json_pack("[s%, s]", merges[i], (size_t)(space - merges[i]), space + 1));
	}
	json_array_append_new(more, added(SPECIAL, "<|x|>", "{\"special\": true}"));
	json_array_append_new(more, added(SPECIAL + 1, "<think>", "{\"special\": false}"));
	json_array_append_new(more, added(SPECIAL + 2, "<pad>", "{\"special\": true, \"lstrip\": true, \"rstrip\": true}"));
	return root;
}

static char dir[] = "/tmp/slipring-text-XXXXXX";

static int write_json(const char *name, const json_t *root)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return json_dump_file(root, path, 0);
}

/* The tokenizer with one part replaced ("model.type", "\"WordPiece\""), opened. */
static int open_with(struct sr_text **t, const char *key, const char *value, char *err, size_t n)
{
	json_t *root = tokenizer(), *at = root;
	const char *dot = key ? strchr(key, '.') : NULL;
	int rc;

	if (dot) {
		at = json_object_get(root, "model");
		key = dot + 1;
	}
	if (key)
		json_object_set_new(at, key, json_loads(value, JSON_DECODE_ANY, NULL));
	assert_int_equal(write_json("tokenizer.json", root), 0);
	json_decref(root);
	err[0] = 0;
	rc = sr_text_open(t, dir, err, n);
	return rc;
}

static struct sr_text *small(const char *key, const char *value)
{
	struct sr_text *t = NULL;
	char err[512];

	if (open_with(&t, key, value, err, sizeof(err)))
		fail_msg("%s", err);
	return t;
}

#define NONE -1

static void check(const struct sr_text *t, const char *s, size_t n, int flags, const int32_t *want)
{
	int32_t ids[256];
	int64_t k = sr_text_encode(t, s, n, flags, ids, 256, 0);

	for (int64_t i = 0; i < k || want[i] != NONE; i++)
		if (i >= k || want[i] == NONE || ids[i] != want[i])
			fail_msg("'%.*s': id %d of %d is %d, not %d", (int)n, s, (int)i, (int)k, i < k ? ids[i] : NONE, want[i]);
}

#define IDS(...) ((const int32_t[]){ __VA_ARGS__, NONE })
#define CHECK(t, s, flags, ...) check(t, s, sizeof(s) - 1, flags, IDS(__VA_ARGS__))

static void merging(void **state)
{
	struct sr_text *t = small(NULL, NULL);

	(void)state;
	CHECK(t, "hello world", 0, 259, 264);
	CHECK(t, "hell", 0, 258);
	CHECK(t, "ello", 0, 'e', 257, 'o');
	CHECK(t, "aaaaaaa", 0, 270, 269, 'a');
	CHECK(t, "12312", 0, 268, 267);
	CHECK(t, "     x", 0, 266, ' ', 'x');           /* the last space goes with x, and " x" is no token */
	CHECK(t, "\xc3\xa9", 0, 0xc3, 0xa9);
	check(t, "", 0, 0, IDS(NONE));
	check(t, "a\0b", 3, 0, IDS('a', 0, 'b'));
	sr_text_close(t);
}

static void special_tokens(void **state)
{
	struct sr_text *t = small("post_processor", "{\"type\": \"TemplateProcessing\", \"single\": ["
		"{\"SpecialToken\": {\"id\": \"<|x|>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}],"
		"\"special_tokens\": {\"<|x|>\": {\"id\": \"<|x|>\", \"ids\": [271], \"tokens\": [\"<|x|>\"]}}}");
	bool special;
	const char *s;

	(void)state;
	CHECK(t, "<|x|>", 0, '<', '|', 'x', '|', '>');  /* a user's text makes no special tokens */
	CHECK(t, "<|x|>", SR_TEXT_SPECIAL_PARSE, SPECIAL);
	CHECK(t, "a<|x|>aa", SR_TEXT_SPECIAL_PARSE, 'a', SPECIAL, 269);
	CHECK(t, "<think>a", 0, SPECIAL + 1, 'a');      /* added, but not special */
	CHECK(t, "<|x<|x|>", SR_TEXT_SPECIAL_PARSE, '<', '|', 'x', SPECIAL);
	CHECK(t, "a  <pad> \n b", SR_TEXT_SPECIAL_PARSE, 'a', SPECIAL + 2, 'b');
	CHECK(t, "a", SR_TEXT_SPECIAL_ADD, SPECIAL, 'a');
	check(t, "", 0, SR_TEXT_SPECIAL_ADD, IDS(SPECIAL));
	assert_int_equal(sr_text_id(t, "<|x|>", 5), SPECIAL);
	assert_int_equal(sr_text_id(t, "hello", 5), 259);
	assert_int_equal(sr_text_id(t, "nope", 4), -ENOENT);
	assert_int_equal(sr_text_piece(t, SPECIAL, &s, &special), 5);
	assert_true(special);
	assert_int_equal(sr_text_piece(t, 264, &s, &special), 6);
	assert_memory_equal(s, " world", 6);
	assert_false(special);
	assert_int_equal(sr_text_spelling(t, 264, &s), 7);
	assert_int_equal(sr_text_piece(t, -1, &s, NULL), -EINVAL);
	assert_int_equal(sr_text_piece(t, sr_text_info(t)->vocab, &s, NULL), -EINVAL);
	sr_text_close(t);
}

static void limits(void **state)
{
	struct sr_text *t = small(NULL, NULL);
	int32_t ids[4] = { -7, -7, -7, -7 };
	char *s = malloc(1 << 20);

	(void)state;
	for (int i = 0; i < 1 << 20; i++)
		s[i] = "b "[i % 2];
	assert_int_equal(sr_text_encode(t, s, 1 << 20, 0, ids, 2, 0), 1 << 20);
	assert_int_equal(ids[2], -7);
	assert_int_equal(sr_text_encode(t, s, 1 << 20, 0, ids, 4, 100), 101);
	assert_int_equal(sr_text_encode(t, s, 100, 0, NULL, 0, 100), 100);
	assert_int_equal(sr_text_encode(t, s, 101, 0, NULL, 0, 100), 101);
	free(s);
	sr_text_close(t);
}

static void wrong_utf8(void **state)
{
	static const struct { const char *in, *as; } cases[] = {
		{ "\xff", "\ufffd" }, { "a\x80" "b", "a\ufffd" "b" }, { "\xe4\xbd", "\ufffd" }, { "\xe4\xbd" "a", "\ufffd" "a" },
		{ "\xf0\x9f\x98\xe4\xbd\xa0", "\ufffd\u4f60" }, { "\xed\xa0\x80", "\ufffd\ufffd\ufffd" },
		{ "\xc0\xaf", "\ufffd\ufffd" }, { "\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd" },
	};
	struct sr_text *t = small(NULL, NULL);
	int32_t a[64], b[64];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		int64_t n = sr_text_encode(t, cases[i].in, strlen(cases[i].in), 0, a, 64, 0);

		assert_int_equal(n, sr_text_encode(t, cases[i].as, strlen(cases[i].as), 0, b, 64, 0));
		assert_memory_equal(a, b, (size_t)n * 4);
	}
	sr_text_close(t);
}

static void normal_form(void **state)
{
	struct sr_text *t = small("normalizer", "{\"type\": \"NFC\"}");
	size_t n = 1 << 18;
	char *s = malloc(n);

	(void)state;
	CHECK(t, "e\xcc\x81", 0, 0xc3, 0xa9);
	CHECK(t, "\xe1\x84\x80\xe1\x85\xa1", 0, 0xea, 0xb0, 0x80);     /* Hangul */
	CHECK(t, "\xea\xb0\x80\xe1\x86\xa8", 0, 0xea, 0xb0, 0x81);
	/* U+11A7 is no final consonant, but a character of its own */
	CHECK(t, "\xea\xb0\x80\xe1\x86\xa7", 0, 0xea, 0xb0, 0x80, 0xe1, 0x86, 0xa7);
	CHECK(t, "\xe1\x86\xa7\xe1\x86\xa7" "e\xcc\x81", 0, 0xe1, 0x86, 0xa7, 0xe1, 0x86, 0xa7, 0xc3, 0xa9);
	CHECK(t, "q\xcc\x87\xcc\xa3", 0, 'q', 0xcc, 0xa3, 0xcc, 0x87);  /* marks in order of their class */
	for (size_t i = 0; i < n; i += 2)                               /* a run of marks in the worst order */
		memcpy(s + i, i < n / 2 ? "\xcc\x87" : "\xcc\xa3", 2);
	assert_int_equal(sr_text_encode(t, s, n, 0, NULL, 0, 0), (int64_t)n);
	free(s);
	sr_text_close(t);
}

/* Long pieces must not take quadratic time. */
static void long_pieces(void **state)
{
	static const char *const pieces[] = { "a", " ", "ab", "\xe4\xbd\xa0", "1", "\n ", "<", "a\xcc\x81" };
	struct sr_text *t = small("normalizer", "{\"type\": \"NFC\"}");
	size_t n = 1 << 19;
	char *s = malloc(n + 8);
	struct timespec from, to;

	(void)state;
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); i++) {
		size_t len = strlen(pieces[i]), k = 0;

		for (; k < n; k += len)
			memcpy(s + k, pieces[i], len);
		assert_true(sr_text_encode(t, s, k, SR_TEXT_SPECIAL_PARSE, NULL, 0, 0) > 0);
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	assert_true(to.tv_sec - from.tv_sec < 9);
	free(s);
	sr_text_close(t);
}

#define SPLIT "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Isolated\"}"

/* What a tokenizer.json may contain, and what is refused by name. */
static void refusals(void **state)
{
	static const struct { const char *key, *value, *named; int rc; } cases[] = {
		{ "normalizer", "{\"type\": \"Lowercase\"}", "Lowercase", -ENOTSUP },
		{ "pre_tokenizer", "{\"type\": \"Metaspace\"}", "Metaspace", -ENOTSUP },
		{ "pre_tokenizer", "null", "ByteLevel", -ENOTSUP },
		{ "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}", "add_prefix_space", -ENOTSUP },
		{ "pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"},"
		  "\"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"use_regex\": false}]}", "(a", -ENOTSUP },
		{ "pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"},"
		  "\"behavior\": \"MergedWithNext\"}, {\"type\": \"ByteLevel\"}]}", "MergedWithNext", -ENOTSUP },
		{ "pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [" SPLIT ", " SPLIT ", " SPLIT ", " SPLIT ", " SPLIT ", "
		  SPLIT ", " SPLIT ", " SPLIT ", " SPLIT ", {\"type\": \"ByteLevel\", \"use_regex\": false}]}", "more than", -ENOTSUP },
		{ "decoder", "{\"type\": \"WordPiece\"}", "WordPiece", -ENOTSUP },
		{ "post_processor", "{\"type\": \"BertProcessing\"}", "BertProcessing", -ENOTSUP },
		{ "model.type", "\"WordLevel\"", "WordLevel", -ENOTSUP },
		{ "model.byte_fallback", "true", "byte_fallback", -ENOTSUP },
		{ "model.dropout", "0.1", "dropout", -ENOTSUP },
		{ "model.merges", "[\"a nope\"]", "merges[0]", -EINVAL },
		{ "model.merges", "[[\"a\"]]", "merges[0]", -EINVAL },
		{ "model.merges", "5", "model.merges", -EINVAL },
		{ "model.vocab", "{\"a\": -1}", "'a'", -EINVAL },
		{ "model.vocab", "{\"a\": 99999999999}", "'a'", -EINVAL },
		{ "model.vocab", "{\"a\": 0, \"b\": 0}", "'b'", -EINVAL },
		{ "model.vocab", "[]", "model.vocab", -EINVAL },
		{ "added_tokens", "[{\"id\": 0, \"content\": \"\"}]", "added_tokens", -EINVAL },
		{ "added_tokens", "[{\"id\": 300, \"content\": \"q\", \"single_word\": true}]", "single_word", -ENOTSUP },
		{ "model", "[]", "model", -ENOTSUP },
	};
	struct sr_text *t;
	char err[600];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		t = NULL;
		if (open_with(&t, cases[i].key, cases[i].value, err, sizeof(err)) != cases[i].rc ||
		    !strstr(err, cases[i].named) || !strstr(err, "tokenizer.json"))
			fail_msg("%s = %s: '%s'", cases[i].key, cases[i].value, err);
	}
	assert_int_equal(sr_text_open(&t, "/nonexistent/model", err, sizeof(err)), -ENOENT);
}

/* Everything given with a chat reaches the model, or is refused by name. */
#define X "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]"

static void chat_inputs(const struct sr_text *t)
{
	static const struct { const char *own, *context, *want, *refused; } cases[] = {
		{ NULL, "{" X ", \"tools\": [1, 2]}", "T2", NULL },           /* by the template tool_use */
		{ NULL, "{" X ", \"tools\": []}", "<|x|>x<pad>", NULL },
		{ NULL, "{" X ", \"tools\": null, \"documents\": []}", "<|x|>x<pad>", NULL },
		{ NULL, "{" X ", \"documents\": [{}]}", NULL, "`documents`" },
		{ "x", "{" X ", \"tools\": [1]}", NULL, "`tools`" },
		{ "{% set tools = 1 %}{{ tools }}", "{" X ", \"tools\": [1]}", NULL, "`tools`" },
		{ "{% if tools %}{{ documents | length }}{% endif %}", "{" X ", \"tools\": [1], \"documents\": [{}]}", "1", NULL },
		{ "{{ tools is none }}{{ documents is none }}{{ bos_token }}", "{" X "}", "TrueTrue<|x|>", NULL },
		{ "{{ bos_token }}", "{" X ", \"bos_token\": \"B\", \"nobody_reads\": 1}", "B", NULL },
	};
	char *out, err[256];

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		int64_t n = sr_text_chat(t, cases[i].own, cases[i].context, &out, err, sizeof(err));

		if (cases[i].refused) {
			if (n != -EINVAL || !strstr(err, cases[i].refused))
				fail_msg("%s: %lld, %s", cases[i].context, (long long)n, n < 0 ? err : out);
			continue;
		}
		if (n < 0 || strcmp(out, cases[i].want))
			fail_msg("%s: %s", cases[i].context, n < 0 ? err : out);
		free(out);
	}
}

/* The files beside tokenizer.json. */
static void directory(void **state)
{
	json_t *config = json_pack("{s:s, s:{s:s}, s:f, s:[{s:s,s:s},{s:s,s:s}]}", "bos_token", "<|x|>", "eos_token",
		"content", "<pad>", "model_max_length", 1e30, "chat_template",
		"name", "tool_use", "template", "T{{ tools | length }}", "name", "default", "template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
	json_t *gen = json_pack("{s:[i,i]}", "eos_token_id", 3, SPECIAL + 2), *model = json_pack("{s:i,s:i}", "eos_token_id", 5, "vocab_size", 512);
	const struct sr_text_info *in;
	struct sr_text *t;
	char *out, err[256];

	(void)state;
	assert_int_equal(write_json("tokenizer_config.json", config) | write_json("generation_config.json", gen) |
	                 write_json("config.json", model), 0);
	t = small(NULL, NULL);
	in = sr_text_info(t);
	assert_int_equal(in->bos, SPECIAL);
	assert_int_equal(in->eos, SPECIAL + 2);
	assert_int_equal(in->vocab, 512);
	assert_int_equal(in->n_stop, 3);
	assert_int_equal(in->stop[1], 3);
	assert_false(in->add_bos);
	assert_int_equal(sr_text_chat(t, NULL, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}", &out, err, sizeof(err)), 12);
	assert_string_equal(out, "<|x|>hi<pad>");
	free(out);
	assert_int_equal(sr_text_chat(t, "{{ nope", "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}", &out, err, sizeof(err)),
	                 -EINVAL);               /* the model's template is not used instead */
	chat_inputs(t);
	assert_int_equal(sr_text_chat(t, NULL, "[]", &out, err, sizeof(err)), -EINVAL);
	sr_text_close(t);
	json_object_set_new(config, "add_bos_token", json_true());
	assert_int_equal(write_json("tokenizer_config.json", config), 0);
	t = small(NULL, NULL);
	assert_true(sr_text_info(t)->add_bos);
	CHECK(t, "a", SR_TEXT_SPECIAL_ADD, SPECIAL, 'a');
	CHECK(t, "a", 0, 'a');
	sr_text_close(t);
	json_decref(config);
	json_decref(gen);
	json_decref(model);
}

/* ---- pre-tokenizers -------------------------------------------------------------------------- */

struct cuts { char s[512]; size_t n; };

static int one_cut(void *arg, const char *s, size_t n)
{
	struct cuts *c = arg;

	c->n += (size_t)snprintf(c->s + c->n, sizeof(c->s) - c->n, "%s%.*s", c->n ? "\xc2\xb7" : "", (int)n, s);
	return 0;
}

static void pieces(void **state)
{
	static const struct { const char *name, *in, *want; } cases[] = {
		{ "gpt-2", "Hello  world's 123!! x", "Hello· · world·'s· 123·!!· x" },
		{ "gpt-2", "don'T stop\n\n  go", "don·'·T· stop·\n\n · go" },
		{ "default", "a   ", "a·   " },
		{ "starcoder", "ab 1234  5", "ab· ·1·2·3·4·  ·5" },
		{ "smollm", "ab 1234  5", "ab· 1234· · 5" },
		{ "llama-bpe", "Hello  world'S 12345!!\n\n x", "Hello· · world·'S· ·123·45·!!\n\n· x" },
		{ "llama3", "a\r\n\r\n b.c\t\td", "a·\r\n\r\n· b·.c·\t·\td" },
		{ "qwen2", "x=123 \xe4\xbd\xa0\xe5\xa5\xbd 'Re", "x·=·1·2·3· \xe4\xbd\xa0\xe5\xa5\xbd· '·Re" },
		{ "qwen35", "re\u0301sume\u0301 12", "re\u0301sume\u0301· ·1·2" },
		{ "qwen2", "re\u0301sum", "re·\u0301sum" },
		{ "gpt-4o", "HelloWorld ABCdef's 12345 a/b\n/", "Hello·World· ABCdef's· ·123·45· a·/b·\n·/" },
		{ "minimax-m2", "it'S: //\n\nx", "it'S·:· //\n\n·x" },
		{ "tekken", "HelloWorld's 123 x", "Hello·World·'s· ·1·2·3· x" },
		{ "kimi-k2", "abc\u4f60\u597dDEf'll 1234", "abc·\u4f60\u597d·DEf'll· ·123·4" },
		{ "gpt-4o", "abc\u4f60\u597dDEf", "abc\u4f60\u597d·DEf" },
		{ "deepseek-v3", "a1234\u4f60\u3042 .net+-  b\r\n", "a·123·4·\u4f60\u3042· .·net·+-· · b·\r\n" },
		{ "deepseek-llm", "Hi 123\r\n\u4f60x!!  y  ", "Hi· ·123·\r·\n·\u4f60·x·!!· · y·  " },
		{ "deepseek-coder", "Hi 12\n\u4f60 x+ y.", "Hi· ·1·2·\n·\u4f60· x·+· y·." },
		{ "falcon", "a1234. don't  x", "a·123·4·.· don·'·t· · x" },
		{ "glm4", "x12345 'S", "x·123·45· '·S" },
		{ "minicpm5", "x12345", "x·123·45" },
		{ "bailingmoe", "don'T a12\n\nb", "don·'T· a·1·2·\n\n·b" },
		{ "seed-coder", "a!!\nb", "a·!!·\n·b" },
		{ "exaone-moe", "ab cd!/ 1", "ab cd·!/· ·1" },
	};
	char err[200];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct pre p = { 0 };
		struct pre_work w;
		struct cuts c = { .n = 0 };

		assert_int_equal(pre_named(&p, cases[i].name, strlen(cases[i].name), err, sizeof(err)), 0);
		assert_int_equal(pre_begin(&w, &p, strlen(cases[i].in)), 0);
		assert_int_equal(pre_cut(&p, &w, cases[i].in, strlen(cases[i].in), one_cut, &c), 0);
		assert_string_equal(c.s, cases[i].want);
		pre_end(&w, &p);
		pre_free(&p);
	}
	assert_int_equal(pre_named(&(struct pre){ 0 }, "klingon", 7, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "klingon"));
}

/* An expression that a hostile file brings ends with -E2BIG. */
static void hostile_pattern(void **state)
{
	struct pre p = { 0 };
	struct pre_work w;
	struct cuts c = { .n = 0 };
	char err[200], s[201];

	(void)state;
	memset(s, 'a', 200);
	s[200] = 0;
	assert_int_equal(pre_add(&p, "(a|aa|aaa)+[bc]", 15, false, false, err, sizeof(err)), 0);
	assert_int_equal(pre_begin(&w, &p, 200), 0);
	assert_int_equal(pre_cut(&p, &w, s, 200, one_cut, &c), -E2BIG);
	pre_end(&w, &p);
	pre_free(&p);
}

/* An expression that matches nothing at a place goes on after the whole character that stands there. */
static void empty_matches(void **state)
{
	static const struct { const char *re, *in, *want; } cases[] = {
		{ "(?=[\u00a0\u00ff\u07ff])|.", "\u00ffb\u00a0b\u07ff", "\u00ff·b·\u00a0·b·\u07ff" },
		{ "(?=[\u0904\u0800\uffff])|.", "\u0904b\u0800b\uffff" "c", "\u0904·b·\u0800·b·\uffff·c" },
		{ "(?=[\U00010000\U0010ffff])|.", "\U00010000b\U0010ffff" "c", "\U00010000·b·\U0010ffff·c" },
		{ "(?=a)|.", "aba", "a·b·a" }, { "x*", "ab", "ab" },
	};
	char err[200];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct pre p = { 0 };
		struct pre_work w;
		struct cuts c = { .n = 0 };

		assert_int_equal(pre_add(&p, cases[i].re, strlen(cases[i].re), false, false, err, sizeof(err)), 0);
		assert_int_equal(pre_begin(&w, &p, strlen(cases[i].in)), 0);
		assert_int_equal(pre_cut(&p, &w, cases[i].in, strlen(cases[i].in), one_cut, &c), 0);
		assert_string_equal(c.s, cases[i].want);
		pre_end(&w, &p);
		pre_free(&p);
	}
}

/* Without memory for a search an error is returned, and earlier results are freed. */
static void no_memory(void **state)
{
	struct sr_text *t = small("normalizer", "{\"type\": \"NFC\"}");
	struct pre p = { 0 };
	struct pre_work w;
	int32_t ids[8];
	char err[200];
	int before = held;

	(void)state;
	assert_int_equal(pre_named(&p, "starcoder", 9, err, sizeof(err)), 0);
	assert_int_equal(p.n, 2);
	assert_int_equal(held, before + 2);
	for (fails = 1; fails <= 3; ) {
		int n = fails;

		assert_int_equal(pre_begin(&w, &p, 10), -ENOMEM);
		assert_int_equal(held, before + 2);
		fails = n + 1;
	}
	fails = 0;
	assert_int_equal(pre_begin(&w, &p, 10), 0);
	assert_int_equal(held, before + 5);
	pre_end(&w, &p);
	pre_free(&p);
	assert_int_equal(held, before);
	assert_int_equal(p.n, 0);
	for (fails = 1; fails <= 2; ) {
		int n = fails;

		assert_int_equal(sr_text_encode(t, "hello", 5, 0, ids, 8, 0), -ENOMEM);
		fails = n + 1;
	}
	fails = 1;                       /* the copy with U+FFFD */
	assert_int_equal(sr_text_encode(t, "\xff", 1, 0, ids, 8, 0), -ENOMEM);
	fails = 0;
	assert_int_equal(sr_text_encode(t, "hello", 5, 0, ids, 8, 0), 1);
	assert_int_equal(held, before);
	sr_text_close(t);
	assert_int_equal(held, before - 1);
}

static void expressions(void **state)
{
	const char *const *re = pre_expressions("refact", 6);

	(void)state;
	assert_non_null(re);
	assert_string_equal(re[0], "\\p{N}");
	assert_string_equal(re[1], pre_gpt2);
	re = pre_expressions("mpt", 3);
	assert_non_null(re);
	assert_string_equal(re[0], pre_gpt2);
	assert_null(re[1]);
	assert_null(pre_expressions("mp", 2));
	assert_null(pre_expressions("", 0));
}

/* ---- the default model ----------------------------------------------------------------------- */

static struct sr_text *default_model(void)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	struct sr_text *t = NULL;
	char path[4096], err[512];

	snprintf(path, sizeof(path), "%s%s/slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf",
	         cache && *cache ? cache : home ? home : "", cache && *cache ? "" : "/.cache");
	if (access(path, R_OK)) {
		print_message("SKIP: the default model is not at %s\n", path);
		skip();
	}
	if (sr_text_open(&t, path, err, sizeof(err)))
		fail_msg("%s", err);
	return t;
}

static void recorded_tokens(void **state)
{
	struct sr_text *t = default_model();
	FILE *f = fopen("tests/data/text_tokens.jsonl", "r");
	char line[65536], text[8192];
	int32_t ids[4096];
	int n = 0;

	(void)state;
	assert_non_null(f);
	for (; fgets(line, sizeof(line), f); n++) {
		json_t *j = json_loads(line, 0, NULL), *s = json_object_get(j, "text"), *want = json_object_get(j, "ids");
		int64_t k = sr_text_encode(t, json_string_value(s), json_string_length(s), SR_TEXT_SPECIAL_PARSE, ids, 4096, 0);

		assert_int_equal(k, json_array_size(want));
		for (int64_t i = 0; i < k; i++)
			assert_int_equal(ids[i], json_integer_value(json_array_get(want, (size_t)i)));
		k = sr_text_decode(t, ids, (size_t)k, false, text, sizeof(text));
		assert_int_equal(k, json_string_length(json_object_get(j, "decoded")));
		assert_memory_equal(text, json_string_value(json_object_get(j, "decoded")), (size_t)k);
		json_decref(j);
	}
	assert_true(n >= 50);
	fclose(f);
	sr_text_close(t);
}

static void recorded_chats(void **state)
{
	struct sr_text *t = default_model();
	FILE *f = fopen("tests/data/text_chat.jsonl", "r");
	char line[65536], err[512], *context, *out;
	int32_t ids[4096];
	int n = 0;

	(void)state;
	assert_non_null(f);
	for (; fgets(line, sizeof(line), f); n++) {
		json_t *j = json_loads(line, 0, NULL), *want = json_object_get(j, "ids");
		int64_t k;

		json_object_set_new(j, "add_generation_prompt", json_true());
		context = json_dumps(j, 0);
		k = sr_text_chat(t, NULL, context, &out, err, sizeof(err));
		assert_true(k > 0);
		assert_string_equal(out, json_string_value(json_object_get(j, "prompt")));
		k = sr_text_encode(t, out, (size_t)k, SR_TEXT_SPECIAL_PARSE, ids, 4096, 0);
		assert_int_equal(k, json_array_size(want));
		for (int64_t i = 0; i < k; i++)
			assert_int_equal(ids[i], json_integer_value(json_array_get(want, (size_t)i)));
		free(context);
		free(out);
		json_decref(j);
	}
	assert_true(n >= 3);
	fclose(f);
	sr_text_close(t);
}

static int make_dir(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	static const char *const names[] = { "tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json" };
	char path[128];

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		unlink(path);
	}
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(merging),
		cmocka_unit_test(special_tokens),
		cmocka_unit_test(limits),
		cmocka_unit_test(wrong_utf8),
		cmocka_unit_test(normal_form),
		cmocka_unit_test(long_pieces),
		cmocka_unit_test(refusals),
		cmocka_unit_test(pieces),
		cmocka_unit_test(hostile_pattern),
		cmocka_unit_test(empty_matches),
		cmocka_unit_test(no_memory),
		cmocka_unit_test(expressions),
		cmocka_unit_test(directory),
		cmocka_unit_test(recorded_tokens),
		cmocka_unit_test(recorded_chats),
	};

	return cmocka_run_group_tests_name("tokenizer", tests, make_dir, remove_dir);
}
