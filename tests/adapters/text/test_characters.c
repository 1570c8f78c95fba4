/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* test_characters.c - SentencePiece vocabularies: characters that merge by score (GGUF) or by a list
 * (tokenizer.json), bytes for what has no token, the space before a text.  A slow encoder written here says
 * what is right.
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

#include "adapters/text/slipring-text.h"
#include "core/models/gguf.h"
#include "tests/rig/gguf_write.h"

#define MARK "\u2581"
enum { UNK, BOS, EOS, BYTES, WORDS = BYTES + 256 };   /* 0 is <unk>; a byte's token is BYTES + byte */

/* The tokens after the bytes.  The score of each is minus its place, if `tie` is not set. */
static const char *const plain[] = {
	MARK, "a", "b", "c", "\u00e9", "\u6f22", "ab", MARK "a", MARK "ab", "abc", "bc", MARK MARK, "ca", "aa",
	MARK MARK MARK MARK, "b\u00e9", NULL
};
/* One of them goes over a space, so that text cannot be cut into words. */
static const char *const over_space[] = {
	MARK, "a", "b", "c", "ab", "b" MARK, "b" MARK "a", MARK "a", "a" MARK, "ca", "ab" MARK "ca", NULL
};

/* Each merge comes after those that make its sides, so that long words are merged by windows. */
static const char *const in_order[] = { MARK, "a", "\u00e9", "\u6f22", "a\u00e9", "\u6f22" "a", NULL };

static char path[] = "/tmp/slipring-characters-XXXXXX", dir[] = "/tmp/slipring-characters-XXXXXX";

/* ---- what is right ---- */

struct token { char s[16]; float score; };

static struct token tokens[WORDS + 32];
static int n_tokens;
static uint32_t end_type = 3;      /* of </s>: a control token */

static void define(const char *const *words, bool tie)
{
	n_tokens = WORDS;
	snprintf(tokens[UNK].s, 16, "<unk>");
	snprintf(tokens[BOS].s, 16, "<s>");
	snprintf(tokens[EOS].s, 16, "</s>");
	for (int b = 0; b < 256; b++)
		snprintf(tokens[BYTES + b].s, 16, "<0x%02X>", b);
	for (int i = 0; words[i]; i++, n_tokens++) {
		snprintf(tokens[n_tokens].s, 16, "%s", words[i]);
		tokens[n_tokens].score = tie ? (float)-(i / 4) : (float)-i;
	}
}

static int find(const char *s, size_t n)
{
	for (int i = WORDS; i < n_tokens; i++)
		if (strlen(tokens[i].s) == n && !memcmp(tokens[i].s, s, n))
			return i;
	return -1;
}

/* Merge the best pair, the leftmost if equal, until none is left; each step looks at all. */
static int slow_encode(const char *s, size_t n, int32_t *ids)
{
	size_t *at = malloc((n + 2) * sizeof(*at)), parts = 0;
	int out = 0;

	for (size_t i = 0; i < n; i++)
		if (((uint8_t)s[i] & 0xc0) != 0x80)
			at[parts++] = i;
	at[parts] = n;
	for (;;) {
		float best = -INFINITY;
		size_t where = 0;

		for (size_t i = 0; i + 1 < parts; i++) {
			int id = find(s + at[i], at[i + 2] - at[i]);

			if (id >= 0 && tokens[id].score > best && find(s + at[i], at[i + 1] - at[i]) >= 0 &&
			    find(s + at[i + 1], at[i + 2] - at[i + 1]) >= 0) {
				best = tokens[id].score;
				where = i;
			}
		}
		if (best == -INFINITY)
			break;
		memmove(at + where + 1, at + where + 2, (parts-- - where - 1) * sizeof(*at));
	}
	for (size_t i = 0; i < parts; i++) {
		int id = find(s + at[i], at[i + 1] - at[i]);

		for (size_t b = at[i]; id < 0 && b < at[i + 1]; b++)
			ids[out++] = BYTES + (uint8_t)s[b];
		if (id >= 0)
			ids[out++] = id;
	}
	free(at);
	return out;
}

/* ---- the files ---- */

struct file {
	const char *model, *arch;
	int n_scores;                  /* -1: no scores */
	int space;                     /* add_space_prefix; -1: no key */
	int nan_at, missing;           /* a score; a byte's token that has another name */
	const char *wrong_space;       /* the value of add_space_prefix as text */
};

static const struct file normal = { "llama", "llama", 0, -1, -1, -1, NULL };

static int open_file(const struct file *f, struct sr_text **t, char *err, size_t errlen)
{
	static struct bytes w;
	int n_scores = f->n_scores ? f->n_scores : n_tokens, keys = 5 + (f->space >= 0 || f->wrong_space);
	FILE *out = fopen(path, "w");

	put_head(&w, 3, 0, (uint64_t)keys + (n_scores >= 0));
	put_key(&w, "general.architecture", GGUF_STRING);
	put_str(&w, f->arch);
	put_key(&w, "tokenizer.ggml.model", GGUF_STRING);
	put_str(&w, f->model);
	put_key(&w, "tokenizer.ggml.bos_token_id", GGUF_U32);
	put_u32(&w, BOS);
	put_key(&w, "tokenizer.ggml.tokens", GGUF_ARRAY);
	put_u32(&w, GGUF_STRING);
	put_u64(&w, (uint64_t)n_tokens);
	for (int i = 0; i < n_tokens; i++)
		put_str(&w, i == f->missing ? "<0x0>" : tokens[i].s);
	put_key(&w, "tokenizer.ggml.token_type", GGUF_ARRAY);
	put_u32(&w, GGUF_I32);
	put_u64(&w, (uint64_t)n_tokens);
	for (int i = 0; i < n_tokens; i++)
		put_u32(&w, i == UNK ? 2 : i == EOS ? end_type : i < BYTES ? 3 : i < WORDS ? 6 : 1);
	if (n_scores >= 0) {
		put_key(&w, "tokenizer.ggml.scores", GGUF_ARRAY);
		put_u32(&w, GGUF_F32);
		put_u64(&w, (uint64_t)n_scores);
		for (int i = 0; i < n_scores; i++)
			put(&w, i == f->nan_at ? &(float){ NAN } : &tokens[i].score, 4);
	}
	if (f->space >= 0) {
		put_key(&w, "tokenizer.ggml.add_space_prefix", GGUF_BOOL);
		put(&w, &(uint8_t){ (uint8_t)f->space }, 1);
	} else if (f->wrong_space) {
		put_key(&w, "tokenizer.ggml.add_space_prefix", GGUF_STRING);
		put_str(&w, f->wrong_space);
	}
	put_pad(&w, 32);
	assert_non_null(out);
	assert_int_equal(fwrite(w.b, 1, w.n, out), w.n);
	fclose(out);
	return sr_text_open(t, path, err, errlen);
}

static struct sr_text *opened(const struct file *f)
{
	struct sr_text *t = NULL;
	char err[400] = "";

	if (open_file(f, &t, err, sizeof(err)))
		fail_msg("%s", err);
	return t;
}

/* The same vocabulary as tokenizer.json: the pairs of each token, by falling score. */
static json_t *tokenizer(void)
{
	json_t *root = json_loads(
		"{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"\u2581\"},"
		" {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\u2581\"}]},"
		" \"pre_tokenizer\": null, \"added_tokens\": [{\"id\": 1, \"content\": \"<s>\", \"special\": true},"
		" {\"id\": 2, \"content\": \"</s>\", \"special\": true}],"
		" \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\"}, {\"type\": \"ByteFallback\"},"
		" {\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]},"
		" \"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {}, \"merges\": []}}", 0, NULL);
	json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
	json_t *merges = json_object_get(json_object_get(root, "model"), "merges");

	for (int i = 0; i < n_tokens; i++) {
		const char *s = tokens[i].s;

		json_object_set_new(vocab, s, json_integer(i));
		for (size_t k = 1; i >= WORDS && k < strlen(s); k++)
			if (find(s, k) >= 0 && find(s + k, strlen(s) - k) >= 0)
				json_array_append_new(merges, json_pack("[s%, s]", s, k, s + k));
	}
	return root;
}

/* The tokenizer, with `value` at `key` of its root or of its model. */
static int open_json_with(const char *key, const char *value, struct sr_text **t, char *err, size_t errlen)
{
	json_t *root = tokenizer(), *at = root;
	char file[64];

	if (key && !strncmp(key, "model.", 6)) {
		at = json_object_get(root, "model");
		key += 6;
	}
	if (key)
		json_object_set_new(at, key, json_loads(value, JSON_DECODE_ANY, NULL));
	snprintf(file, sizeof(file), "%s/tokenizer.json", dir);
	assert_int_equal(json_dump_file(root, file, 0), 0);
	json_decref(root);
	return sr_text_open(t, dir, err, errlen);
}

static struct sr_text *opened_json(const char *key, const char *value)
{
	struct sr_text *t = NULL;
	char err[400] = "";

	if (open_json_with(key, value, &t, err, sizeof(err)))
		fail_msg("%s", err);
	return t;
}

/* ---- cases ---- */

static void check(const struct sr_text *t, const char *text, int flags, const char *marked)
{
	int32_t got[256], want[256];
	int64_t n = sr_text_encode(t, text, strlen(text), flags, got, 256, 0);

	assert_int_equal(n, slow_encode(marked, strlen(marked), want));
	assert_memory_equal(got, want, (size_t)n * sizeof(*got));
}

static void by_score(void **state)
{
	struct sr_text *t;
	int32_t ids[16];

	(void)state;
	define(plain, false);
	t = opened(&normal);
	assert_string_equal(sr_text_info(t)->pre, "sentencepiece");
	assert_true(sr_text_info(t)->add_bos);
	check(t, "abc ab", 0, MARK "abc" MARK "ab");
	check(t, "", 0, "");
	check(t, " ", 0, MARK MARK);
	check(t, "   a  b\n", 0, MARK MARK MARK MARK "a" MARK MARK "b\n");
	check(t, "x\u00e9b\u00e9\u6f22\u6f23\U0001f600", 0, MARK "x\u00e9b\u00e9\u6f22\u6f23\U0001f600");
	check(t, MARK "a", 0, MARK MARK "a");          /* a written U+2581 is a space */
	check(t, "<0x41>", 0, MARK "<0x41>");          /* the name of a byte is no byte */
	/* each text between control tokens begins with a space; an empty one does not */
	assert_int_equal(sr_text_encode(t, "<s>a</s><s>b", 12, SR_TEXT_SPECIAL_PARSE, ids, 16, 0), 6);
	assert_int_equal(ids[0], BOS);
	assert_int_equal(ids[1], find(MARK "a", 4));
	assert_int_equal(ids[2], EOS);
	assert_int_equal(ids[3], BOS);
	assert_int_equal(ids[4], find(MARK, 3));
	assert_int_equal(ids[5], find("b", 1));
	assert_int_equal(sr_text_encode(t, "a", 1, SR_TEXT_SPECIAL_ADD, ids, 16, 0), 2);
	assert_int_equal(ids[0], BOS);
	sr_text_close(t);
	t = opened(&(struct file){ "llama", "llama", 0, 0, -1, -1, NULL });
	check(t, "ab a", 0, "ab" MARK "a");
	sr_text_close(t);
}

/* Random texts, short and longer than the encoder's windows. */
static void random_texts(void **state)
{
	static const char *const alphabet[] = { "ab ", "b a", " ", " ", "a", "b", "c", "\u00e9", "\u6f22", "x" };
	const struct { const char *const *words; bool tie; int from; } kinds[] = {
		{ plain, false, 0 }, { plain, true, 0 }, { over_space, false, 0 }, { over_space, true, 0 },
		{ in_order, false, 4 },
	};
	static char text[16384], marked[16384 * 3];
	static int32_t got[16384 * 3], want[16384 * 3];

	(void)state;
	srand(7);
	for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
		struct sr_text *t;

		define(kinds[k].words, kinds[k].tie);
		t = opened(&normal);
		for (int round = 0; round < 60; round++) {
			int parts = round < 50 ? rand() % 60 : 1500, n_want;
			size_t n = 0, m = (size_t)sprintf(marked, "%s", MARK);

			for (int i = 0; i < parts; i++)
				n += (size_t)sprintf(text + n, "%s", alphabet[kinds[k].from + rand() % (10 - kinds[k].from)]);
			for (size_t i = 0; i < n; i++)
				m += (size_t)sprintf(marked + m, "%.*s", text[i] == ' ' ? 3 : 1,
				                     text[i] == ' ' ? MARK : text + i);
			if (!n)
				continue;
			n_want = slow_encode(marked, m, want);
			assert_int_equal(sr_text_encode(t, text, n, 0, got, sizeof(got) / 4, 0), n_want);
			assert_memory_equal(got, want, (size_t)n_want * sizeof(*got));
		}
		sr_text_close(t);
	}
}

/* tokenizer.json and GGUF of one vocabulary agree; each way to put the first space. */
static void from_json(void **state)
{
	static const char *const texts[] = { "abc ab", " a", "  ", "\u6f22 abcaab\u00e9", "x y", "ca  caa" };
	static const struct { const char *scheme, *text, *marked; } schemes[] = {
		{ "\"always\"", "a b", MARK "a" MARK "b" }, { "\"always\"", " a", MARK "a" },
		{ "\"always\"", "<s>a", MARK "a" }, { "\"never\"", "a b", "a" MARK "b" },
		{ "\"first\"", "ab", MARK "ab" }, { "\"first\"", "<s>ab", "ab" },
		{ "null, \"add_prefix_space\": false", "ab", "ab" },
	};
	struct sr_text *t, *g;

	(void)state;
	define(plain, false);
	t = opened_json(NULL, NULL);
	g = opened(&normal);
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		int32_t a[64], b[64];
		int64_t n = sr_text_encode(t, texts[i], strlen(texts[i]), 0, a, 64, 0);

		assert_int_equal(sr_text_encode(g, texts[i], strlen(texts[i]), 0, b, 64, 0), n);
		assert_memory_equal(a, b, (size_t)n * sizeof(*a));
	}
	sr_text_close(t);
	sr_text_close(g);
	for (size_t i = 0; i < sizeof(schemes) / sizeof(*schemes); i++) {
		bool special = schemes[i].text[0] == '<';
		int32_t got[64], want[64];
		int64_t n;
		char value[200];
		json_t *root = tokenizer();
		char file[64];

		snprintf(value, sizeof(value), "{\"type\": \"Metaspace\", \"replacement\": \"\u2581\", \"split\": false, "
		         "\"prepend_scheme\": %s}", schemes[i].scheme);
		json_object_set_new(root, "normalizer", json_null());
		json_object_set_new(root, "pre_tokenizer", json_loads(value, 0, NULL));
		json_object_set_new(root, "decoder", json_loads("{\"type\": \"Metaspace\"}", 0, NULL));
		snprintf(file, sizeof(file), "%s/tokenizer.json", dir);
		assert_int_equal(json_dump_file(root, file, 0), 0);
		json_decref(root);
		assert_int_equal(sr_text_open(&t, dir, value, sizeof(value)), 0);
		n = sr_text_encode(t, schemes[i].text, strlen(schemes[i].text), SR_TEXT_SPECIAL_PARSE, got, 64, 0);
		assert_int_equal(n - special, slow_encode(schemes[i].marked, strlen(schemes[i].marked), want));
		assert_memory_equal(got + special, want, (size_t)(n - special) * sizeof(*got));
		sr_text_close(t);
	}
}

/* Metaspace that splits: a run of spaces is not one token. */
static void splits(void **state)
{
	struct sr_text *t;
	json_t *root;
	char file[64], err[400];
	int32_t ids[8];

	(void)state;
	define(plain, false);
	root = tokenizer();
	json_object_set_new(root, "normalizer", json_null());
	json_object_set_new(root, "pre_tokenizer", json_loads("{\"type\": \"Metaspace\", \"replacement\": \"\u2581\", "
	                                                      "\"prepend_scheme\": \"never\"}", 0, NULL));
	snprintf(file, sizeof(file), "%s/tokenizer.json", dir);
	assert_int_equal(json_dump_file(root, file, 0), 0);
	json_decref(root);
	assert_int_equal(sr_text_open(&t, dir, err, sizeof(err)), 0);
	assert_int_equal(sr_text_encode(t, "b  a", 4, 0, ids, 8, 0), 3);
	assert_int_equal(ids[1], find(MARK, 3));
	assert_int_equal(ids[2], find(MARK "a", 4));
	sr_text_close(t);
}

/* Ids to text: the first space goes, but not where the text goes on; bytes become characters. */
static void decoding(void **state)
{
	struct sr_text *t;
	struct sr_detok d;
	int32_t ids[64];
	char out[256];
	int64_t n;

	(void)state;
	define(plain, false);
	t = opened(&normal);
	n = sr_text_encode(t, "ab \u6f23 c", 8, 0, ids, 64, 0);
	assert_int_equal(sr_text_decode(t, ids, (size_t)n, true, out, sizeof(out)), 8);
	assert_memory_equal(out, "ab \u6f23 c", 8);
	for (int go_on = 0; go_on < 2; go_on++) {
		int k = 0;

		sr_detok_init(&d, true);
		d.started = go_on;
		for (int64_t i = 0; i < n; i++) {
			int m = sr_detok_push(&d, t, ids[i], out + k, sizeof(out) - (size_t)k);

			assert_true(m >= 0);
			k += m;
		}
		assert_int_equal(k, 8 + go_on);
		assert_memory_equal(out, " ab \u6f23 c" + !go_on, (size_t)k);
	}
	ids[0] = BOS;                                  /* written, it is the beginning of the text */
	ids[1] = find(MARK "a", 4);
	assert_int_equal(sr_text_decode(t, ids, 2, false, out, sizeof(out)), 5);
	assert_memory_equal(out, "<s> a", 5);
	assert_int_equal(sr_text_decode(t, ids, 2, true, out, sizeof(out)), 1);
	sr_text_close(t);
	t = opened(&(struct file){ "llama", "llama", 0, 0, -1, -1, NULL });
	assert_int_equal(sr_text_decode(t, ids, 2, true, out, sizeof(out)), 2);
	sr_text_close(t);
}

/* Phi-3's added tokens take the white space behind them.  Its </s> is one, but no control token. */
static void phi3(void **state)
{
	static const char *const words[] = { MARK, "a", MARK "a", NULL };
	struct sr_text *t;
	int32_t ids[16];

	(void)state;
	define(words, false);
	t = opened(&(struct file){ "llama", "phi3", 0, 0, -1, -1, NULL });
	assert_int_equal(sr_text_encode(t, "</s> \n a", 8, SR_TEXT_SPECIAL_PARSE, ids, 16, 0), 2);
	assert_int_equal(ids[1], find("a", 1));
	assert_int_equal(sr_text_encode(t, "<s> a", 5, SR_TEXT_SPECIAL_PARSE, ids, 16, 0), 2);
	assert_int_equal(ids[1], find(MARK "a", 4));
	sr_text_close(t);
	end_type = 4;
	t = opened(&(struct file){ "llama", "phi3", 0, 0, -1, -1, NULL });
	assert_int_equal(sr_text_encode(t, "</s> \n a", 8, 0, ids, 16, 0), 2);
	assert_int_equal(ids[1], find("a", 1));
	sr_text_close(t);
	end_type = 3;
}

static void refusals(void **state)
{
	const struct { struct file f; int rc; const char *say; } files[] = {
		{ { "llama", "llama", -1, -1, -1, -1, NULL }, -EINVAL, "tokenizer.ggml.scores: must be an array of" },
		{ { "llama", "llama", 3, -1, -1, -1, NULL }, -EINVAL, "tokenizer.ggml.scores: must be an array of" },
		{ { "llama", "llama", 0, -1, WORDS, -1, NULL }, -EINVAL, "a score is not a number" },
		{ { "llama", "llama", 0, -1, -1, BYTES + 10, NULL }, -EINVAL, "has no token <0x0A>" },
		{ { "llama", "llama", 0, -1, -1, -1, "yes" }, -EINVAL, "add_space_prefix: must be a bool" },
		{ { "gemma4", "llama", 0, -1, -1, -1, NULL }, -EINVAL, "tokenizer.ggml.merges: it is missing" },
		{ { "rwkv", "llama", 0, -1, -1, -1, NULL }, -ENOTSUP, "'rwkv' is not supported: it must be gpt2" },
	};
	static const struct { const char *key, *value, *say; } parts[] = {
		{ "model.byte_fallback", "false", "byte_fallback" },
		{ "normalizer", "{\"type\": \"Prepend\", \"prepend\": \"\u2581\"}", "without Replace, normalizer 'Prepend'" },
		{ "normalizer", "{\"type\": \"Prepend\", \"prepend\": \"x\"}", "normalizer 'Prepend'" },
		{ "normalizer", "{\"type\": \"Replace\", \"pattern\": {\"String\": \"x\"}, \"content\": \"\u2581\"}",
		  "normalizer 'Replace'" },
		{ "normalizer", "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \" \"}, \"content\": \"\u2581\"}",
		  "normalizer 'Replace'" },
		{ "pre_tokenizer", "{\"type\": \"ByteLevel\"}", "pre_tokenizer 'ByteLevel'" },
		{ "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"String\": \"x\"}}", "pre_tokenizer 'Split'" },
		{ "pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"\u2581\"}", "'always'" },
		{ "pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"_\"}", "Metaspace" },
		{ "decoder", "{\"type\": \"ByteLevel\"}", "decoder 'ByteLevel'" },
		{ "decoder", "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"WordPiece\"}]}", "decoder 'WordPiece'" },
		{ "decoder", "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Strip\", \"content\": \" \", \"start\": 2}]}",
		  "Strip of more than a first space" },
		{ "added_tokens", "[{\"id\": 1, \"content\": \"<s>\", \"special\": true, \"normalized\": true}]",
		  "beside normalizer Prepend, added_tokens with 'normalized'" },
	};
	struct sr_text *t;
	char err[400];

	(void)state;
	define(plain, false);
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		assert_int_equal(open_file(&files[i].f, &t, err, sizeof(err)), files[i].rc);
		if (!strstr(err, files[i].say))
			fail_msg("%s: not '%s'", err, files[i].say);
	}
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		assert_int_equal(open_json_with(parts[i].key, parts[i].value, &t, err, sizeof(err)), -ENOTSUP);
		if (!strstr(err, parts[i].say))
			fail_msg("%s: not '%s'", err, parts[i].say);
	}
	t = opened_json("pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"String\": \" \"}}");   /* Gemma's */
	sr_text_close(t);
}

static int begin(void **state)
{
	int fd = mkstemp(path);

	(void)state;
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
		cmocka_unit_test(by_score), cmocka_unit_test(random_texts), cmocka_unit_test(from_json),
		cmocka_unit_test(splits), cmocka_unit_test(decoding), cmocka_unit_test(phi3),
		cmocka_unit_test(refusals),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
