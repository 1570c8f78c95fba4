/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* test_hostile_tokenizer.c - hostile tokenizers: each value of tokenizer.json, of the files beside it and of those of
 * pooling is replaced by what it must not be, one at a time.  The tokenizer opens or is refused in one sentence, and
 * what it opens encodes, within little time and memory: no file asks for more than its size allows.  Every 29th is
 * tried; SLIPRING_FAMILIES=all tries all.
 */
#include <sys/stat.h>

#include "adapters/text/text.h"
#include "core/models/pooling.h"
#include "tests/rig/hostile_values.h"

#define MEMORY ((size_t)64 << 20)  /* bytes of address space, beyond what the test has at start */

static char dir[] = "/tmp/slipring-hostile-text-XXXXXX", err[1000], text[20000];
static const char *name, *file;    /* of the walk: which tokenizer, which of its files */
static json_t *root;
static int tried, opened;

static void put(const char *of, const json_t *j)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/%s", dir, of);
	assert_int_equal(json_dump_file(j, path, JSON_COMPACT | JSON_ENCODE_ANY), 0);
}

/* What is opened must work, on text that makes expressions go back. */
static void use(struct sr_text *t)
{
	static int32_t ids[3 * sizeof(text)];
	static char out[16 * sizeof(text)];
	int64_t n = sr_text_encode(t, text, sizeof(text), SR_TEXT_SPECIAL_PARSE, ids, sizeof(ids) / sizeof(*ids), 0);

	assert_true(n >= -ENOMEM - 1000 && n <= (int64_t)(sizeof(ids) / sizeof(*ids)));
	for (int64_t i = 0; i < n; i++)
		assert_in_range(ids[i], 0, sr_text_info(t)->vocab - 1);
	if (n > 0)
		sr_text_decode(t, ids, (size_t)n, false, out, sizeof(out));
}

static void attempt(const char *what)
{
	double begin = cpu_seconds();
	struct sr_text *t = NULL;
	int rc;

	put(file, root);
	err[0] = 0;
	rc = sr_text_open(&t, dir, err, sizeof(err));
	tried++;
	if (rc == 0) {
		opened++;
		use(t);
		sr_text_close(t);
	}
	keeps_bounds(rc, err, begin, name, what);
}

static char *repeated(const char *head, const char *one, int n, const char *tail)
{
	size_t len = strlen(one), at = strlen(head);
	char *s = malloc(at + len * (size_t)n + strlen(tail) + 1);

	assert_non_null(s);
	memcpy(s, head, at);
	for (int i = 0; i < n; i++, at += len)
		memcpy(s + at, one, len);
	strcpy(s + at, tail);
	return s;
}

static json_t *text_of(char *s)
{
	json_t *j = json_string(s);

	free(s);
	return j;
}

static json_t *deep(bool objects)
{
	json_t *j = json_pack("{s:s}", "type", "Sequence");

	for (int i = 0; i < 1500; i++)
		j = objects ? json_pack("{s:s, s:o}", "type", "Sequence", "x", j) : json_pack("[o]", j);
	return j;
}

/* One that nests as the reader goes. */
static json_t *nested_sequence(void)
{
	json_t *j = json_pack("{s:s}", "type", "ByteLevel");

	for (int i = 0; i < 900; i++)
		j = json_pack("{s:s, s:[o]}", "type", "Sequence", "pretokenizers", j);
	return j;
}

#define MORE 18
static json_t *value(int i)
{
	if (i < HOSTILE_VALUES)
		return hostile_value(i);
	switch (i - HOSTILE_VALUES) {
	case 0:  return json_integer((1 << 24) - 1);
	case 1:  return json_integer(1 << 20);
	case 2:  return json_integer(((json_int_t)1 << 32) + 1);
	case 3:  return json_string("(((((a{1,999}){1,999}){1,999}){1,999}){1,999})");
	case 4:  return json_string("(a*)*b|(?:a|aa)+$|(a+a+)+b");
	case 5:  return text_of(repeated("", "(", 2000, ""));
	case 6:  return text_of(repeated("", "(?=", 1000, ")"));
	case 7:  return text_of(repeated("", "\\p{L}{0,999}", 300, ""));
	case 8:  return text_of(repeated("[", "\\x{10ffff}-", 300, "]"));
	case 9:  return text_of(repeated("(?<=", "a{1,255}", 200, ")b"));
	case 10: return text_of(repeated("a", "b", 1 << 20, " c"));
	case 11: return long_list(5000, json_string("a b"));
	case 12: return long_list(5000, json_pack("[ss]", "a", "b"));
	case 13: return deep(true);
	case 14: return deep(false);
	case 15: return json_string("");
	case 16: return json_string("x\ny\x7f");
	default: return json_string("(?R)|(?:(?1)a|b)(x)");
	}
}

static struct hostile_walk walk = { .value = value, .n_values = HOSTILE_VALUES + MORE, .items = 12, .attempt = attempt };

/* ---- the tokenizers ------------------------------------------------------------------------------ */

#define ADDED "\"added_tokens\":[{\"id\":300,\"content\":\"<s>\",\"special\":true,\"lstrip\":false,\"rstrip\":false," \
	"\"normalized\":false,\"single_word\":false},{\"id\":301,\"content\":\"<x>\",\"special\":false}],"
#define ENDS "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"," \
	"\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\"," \
	"\"ids\":[300],\"tokens\":[\"<s>\"]}}},"
#define META "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"always\",\"split\":true}"

static const struct { const char *name, *json; } tokenizers[] = {
	{ "byte level", "{" ADDED ENDS "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]},"
	  "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a+|b\"},"
	  "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\","
	  "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
	  "\"dropout\":null,\"continuing_subword_prefix\":null,\"byte_fallback\":false,\"ignore_merges\":true,\"vocab\":{"
	  "\"a\":0,\"b\":1,\"ab\":2,\"aa\":3},\"merges\":[\"a b\",[\"a\",\"a\"]]}}" },
	{ "characters", "{" ADDED ENDS "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
	  "\"prepend\":\"\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},"
	  "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \","
	  "\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":256,\"b\":257,"
	  "\"ab\":258},\"merges\":[\"a b\"]}}" },
	{ "words", "{" ADDED "\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"lowercase\":true,"
	  "\"handle_chinese_chars\":true,\"strip_accents\":null},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
	  "\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"<s>\",300],\"sep\":[\"<x>\",301]},\"model\":{"
	  "\"type\":\"WordPiece\",\"unk_token\":\"b\",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100,"
	  "\"vocab\":{\"a\":0,\"b\":1,\"##a\":2}}}" },
	{ "unigrams", "{\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true}],\"normalizer\":{\"type\":"
	  "\"Sequence\",\"normalizers\":[{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},{\"type\":\"Replace\","
	  "\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
	  "{\"type\":\"WhitespaceSplit\"}," META "]},\"decoder\":" META ",\"model\":{\"type\":\"Unigram\",\"unk_id\":0,"
	  "\"byte_fallback\":false,\"vocab\":[[\"<unk>\",0],[\"a\",-1.5],[\"<s>\",0],[\"\u2581\",-2],[\"aa\",-3]]}}" },
};

static json_t *load(const char *s)
{
	json_error_t why;
	json_t *j = json_loads(s, 0, &why);

	if (!j)
		fail_msg("%s at %d", why.text, why.position);
	return j;
}

/* Tokens of all bytes, behind what the walk goes into. */
static void add_bytes(json_t *of)
{
	json_t *vocab = json_object_get(json_object_get(of, "model"), "vocab");
	char token[8];

	for (int b = 0; b < 256; b++) {
		snprintf(token, sizeof(token), "<0x%02X>", b);
		json_object_set_new(vocab, token, json_integer(b));
	}
}

static json_t *tokenizer(int i)
{
	json_t *j = load(tokenizers[i].json);

	name = tokenizers[i].name;
	if (i == 1)
		add_bytes(j);
	return j;
}

static void over(const char *of, json_t *j)
{
	int before = opened;

	file = of;
	root = j;
	attempt("as it is");
	assert_int_equal(opened, before + 1);
	walk_hostile(&walk, j, "");
	put(file, root);
}

static void tokenizer_files(void **state)
{
	static const char settings[] = "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"<x>\"},\"add_bos_token\":true,"
		"\"model_max_length\":1e30,\"chat_template\":[{\"name\":\"default\",\"template\":\"{{ bos_token }}\"}]}";
	static const char stops[] = "{\"eos_token_id\":[0,1],\"vocab_size\":400,\"architectures\":[\"LlamaForCausalLM\"]}";

	(void)state;
	for (int i = 0; i < (int)(sizeof(tokenizers) / sizeof(*tokenizers)); i++) {
		json_t *j = tokenizer(i), *more = load(settings), *config = load(stops);
		json_t *nested = nested_sequence();

		over("tokenizer.json", j);
		json_object_set_new(root, "pre_tokenizer", nested);
		attempt("with a nest of Sequence");
		json_decref(j);
		put("tokenizer.json", j = tokenizer(i));
		over("tokenizer_config.json", more);
		over("config.json", config);
		json_decref(j);
		json_decref(more);
		json_decref(config);
	}
	printf("%d files tried, %d tokenizers opened\n", tried, opened);
	assert_true(opened > 50 && opened < tried);
}

/* Of a directory, of root as it is in its file, and of root as --pooler-config. */
static void attempt_pooling(const char *what)
{
	double begin = cpu_seconds();
	char *words = json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY);
	struct pooling p = { 0 };
	int rc;

	put(file, root);
	err[0] = 0;
	rc = pooling_read(&p, dir, false, err, sizeof(err));
	tried++;
	opened += rc == 0;
	keeps_bounds(rc, err, begin, name, what);
	assert_non_null(words);
	err[0] = 0;
	rc = pooling_config(&p, words, err, sizeof(err));
	keeps_bounds(rc, err, begin, "--pooler-config", what);
	free(words);
}

static void pooling_files(void **state)
{
	static const struct { const char *file, *json; } files[] = {
		{ "modules.json", "[{\"idx\":0,\"type\":\"x.Transformer\",\"path\":\"\"},{\"idx\":1,\"type\":\"x.Pooling\","
		  "\"path\":\"1_Pooling\"},{\"idx\":2,\"type\":\"x.Normalize\",\"path\":\"2_Normalize\"}]" },
		{ "1_Pooling/config.json", "{\"word_embedding_dimension\":96,\"pooling_mode_mean_tokens\":true,"
		  "\"pooling_mode_cls_token\":false}" },
		{ "sentence_bert_config.json", "{\"max_seq_length\":256}" },
		{ "more.json", "{\"pooling_type\":\"MEAN\",\"normalize\":true,\"task\":\"embed\"}" },
	};
	char path[200];

	(void)state;
	snprintf(path, sizeof(path), "%s/1_Pooling", dir);
	assert_int_equal(mkdir(path, 0700), 0);
	tried = opened = 0;
	walk.attempt = attempt_pooling;
	for (int again = 0; again < 2; again++)
		for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
			name = file = files[i].file;
			root = load(files[i].json);
			put(file, root);
			if (again)
				walk_hostile(&walk, root, "");
			put(file, root);
			json_decref(root);
		}
	printf("%d files of pooling tried, %d read\n", tried, opened);
	assert_true(opened > 5 && opened < tried);
}

/* Numbers that are right only if their high bits are lost. */
static void wide_numbers(void **state)
{
	json_t *j = tokenizer(2);
	struct sr_text *t;

	(void)state;
	json_object_set_new(json_object_get(j, "model"), "max_input_chars_per_word", json_integer(((json_int_t)1 << 32) + 1));
	put("tokenizer.json", j);
	assert_int_equal(sr_text_open(&t, dir, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "max_input_chars_per_word must be 1 to 200"));
	json_decref(j);
}

/* A few tokens in tokenizer.json, and as many rows as config.json says. */
static void rows(void **state)
{
	static const json_int_t most = 1 << 18, many[] = { (1 << 18) + 1, (1 << 24) - 1, 1 << 24, (json_int_t)1 << 62 };
	json_t *j = tokenizer(2), *config = json_pack("{s:I}", "vocab_size", most);
	struct sr_text *t;

	(void)state;
	put("tokenizer.json", j);
	put("config.json", config);
	assert_int_equal(sr_text_open(&t, dir, err, sizeof(err)), 0);
	assert_int_equal(sr_text_info(t)->vocab, most);
	sr_text_close(t);
	for (size_t i = 0; i < sizeof(many) / sizeof(*many); i++) {
		json_object_set_new(config, "vocab_size", json_integer(many[i]));
		put("config.json", config);
		assert_int_equal(sr_text_open(&t, dir, err, sizeof(err)), -EINVAL);
		assert_non_null(strstr(err, "config.json: vocab_size is "));
		assert_non_null(strstr(err, "tokenizer.json has 302 ids"));
	}
	json_decref(config);
	json_decref(j);
}

static int set_up(void **state)
{
	static const char some[] = "aaaa aab  ba\t12345 \u00e9\u6771<s>\n";

	(void)state;
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = i < sizeof(text) / 2 ? 'a' : some[i % (sizeof(some) - 1)];
	walk.step = getenv("SLIPRING_FAMILIES") ? 1 : 29;
	return mkdtemp(dir) && limit_memory(MEMORY) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokenizer_files), cmocka_unit_test(pooling_files), cmocka_unit_test(wide_numbers), cmocka_unit_test(rows),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
