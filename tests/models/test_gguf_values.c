/* LINK: @models @text kernels/rope.c -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* test_gguf_values.c - hostile GGUF files: each key of tiny models and tokenizers becomes what it must not be, and so
 * do the items of lists, and the shape, type, place and name of each tensor, one at a time.  The model and the
 * tokenizer open or are refused in one sentence that names the key or a tensor, within little time and memory: no
 * file asks for more than its size allows.  Every 101st is tried, from SLIPRING_SEED on; SLIPRING_FAMILIES=all tries all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <sys/mman.h>

#include "adapters/text/slipring-text.h"
#include "core/models/model.h"
#include "tests/rig/gguf_table.h"

#define RECORDED "tests/models/recorded"
#define MEMORY   ((size_t)64 << 20)    /* bytes of address space, beyond what the test has at start */

static char path[64], err[1000], text[3000];
static int fd;
static const char *name;               /* of the table that is tried */
static struct table *t;
static int step, turn, tried, opened[2], unnamed;

/* ---- one file ------------------------------------------------------------------------------------- */

static void inside(const struct sr_tensor *w, uint64_t file, const char *what)
{
	struct sr_stored last;

	if (w->type == SR_NONE)
		return;
	last = sr_stored_of(w, w->count > 1 ? w->count - 1 : 0);
	if (last.data.offset > file || last.data.bytes > file - last.data.offset || !w->name)
		fail_msg("%s, %s: tensor %s is outside of the file", name, what, w->name ? w->name : "?");
}

/* Does the sentence name the key, another one that does not fit to it, or such a tensor? */
static void names_key(int rc, const char *key, const char *what)
{
	if (!rc || !*key || strstr(err, key) || strstr(err, "tensor "))
		return;
	for (int i = 0; i < t->n_keys; i++) {
		const char *own = strchr(t->key[i].name, '.');

		if (strstr(err, t->key[i].name) || (own && strlen(own) > 8 && strstr(err, own + 1)))
			return;
	}
	unnamed++;
	printf("%s, %s: %s\n", name, what, err);
}

static void try_model(const char *what, const char *key, bool dummy, uint64_t file)
{
	double begin = cpu_seconds();
	struct model *md;
	int rc;

	err[0] = 0;
	rc = dummy ? model_open_dummy(&md, path, err, sizeof(err)) : model_open(&md, path, err, sizeof(err));
	keeps_bounds(rc, err, begin, name, what);
	names_key(rc, key, what);
	if (rc)
		return;
	opened[0] += !dummy;
	for (int32_t l = 0; l < md->m.n_layers && !dummy; l++) {
		inside(&md->m.layer[l].q, file, what);
		inside(&md->m.layer[l].up, file, what);
		inside(&md->m.layer[l].down, file, what);
		inside(&md->m.layer[l].expert_down, file, what);
	}
	model_close(md);
}

static void try_text(const char *what, const char *key)
{
	static int32_t ids[3 * sizeof(text)];
	static char out[16 * sizeof(text)];
	double begin = cpu_seconds();
	struct sr_text *s;
	int64_t n;
	int rc;

	err[0] = 0;
	rc = sr_text_open(&s, path, err, sizeof(err));
	names_key(rc, key, what);
	if (rc == 0) {
		opened[1]++;
		n = sr_text_encode(s, text, sizeof(text), SR_TEXT_SPECIAL_PARSE | SR_TEXT_SPECIAL_ADD, ids,
		                   sizeof(ids) / sizeof(*ids), 0);
		for (int64_t i = 0; i < n; i++)
			assert_in_range(ids[i], 0, sr_text_info(s)->vocab - 1);
		if (n > 0)
			sr_text_decode(s, ids, (size_t)n, false, out, sizeof(out));
		sr_text_close(s);
	}
	keeps_bounds(rc, err, begin, name, what);
}

/* The table as it now is, key being the one that was changed, or "". */
static void attempt(const char *what, const char *key)
{
	bool model = t->n_tensors > 0, words = false;
	uint64_t file;

	for (int i = 0; i < t->n_keys; i++)
		words |= strncmp(t->key[i].name, "tokenizer.ggml.", 15) == 0 && strstr(t->key[i].name, "tokens");
	table_write(t, fd, &file);
	tried++;
	if (model) {
		try_model(what, key, false, file);
		try_model(what, key, true, file);
	}
	if (words || !model)
		try_text(what, key);
}

static bool skipped(void) { return turn++ % step != 0; }

/* ---- all files of a table --------------------------------------------------------------------------- */

static void walk_values(struct table_key *k)
{
	struct table_blob old = k->value, other = { 0 };
	char what[200];

	for (int i = 0; i < GGUF_VALUES + GGUF_ITEMS; i++) {
		if (i >= GGUF_VALUES && old.p[0] != GGUF_ARRAY)
			break;
		if (skipped())
			continue;
		other.n = 0;
		snprintf(what, sizeof(what), "%.96s with value %d", k->name, i);
		if (i < GGUF_VALUES)
			gguf_hostile(&other, i);
		else if (!gguf_hostile_item(&other, &old, i - GGUF_VALUES))
			continue;
		k->value = other;
		attempt(what, k->name);
		k->value = old;
	}
	free(other.p);
}

/* It is missing, is there twice, has no name, or one of 70,000 bytes by its length alone. */
static void walk_key(int at)
{
	struct table_key *k = &t->key[at], old = *k;
	char what[200], key[96];

	snprintf(key, sizeof(key), "%s", k->name);
	walk_values(k);
	snprintf(what, sizeof(what), "without %.96s", key);
	*k = t->key[--t->n_keys];
	if (!skipped())
		attempt(what, key);
	t->key[t->n_keys++] = *k;
	*k = old;
	snprintf(what, sizeof(what), "%.96s twice", key);
	t->key[t->n_keys++] = old;
	if (!skipped())
		attempt(what, key);
	t->n_keys--;
	snprintf(what, sizeof(what), "%.96s with an empty name", key);
	k->name[0] = 0;
	if (!skipped())
		attempt(what, "");
	*k = old;
}

static void walk_tensor(int e)
{
	struct table_tensor old = t->tensor[e], last = t->tensor[t->n_tensors - 1];
	int n = t->n_tensors;
	char what[200];

	for (int i = 0; i < GGUF_TENSORS; i++) {
		if (skipped() || (i == 24 && n == 1))
			continue;
		snprintf(what, sizeof(what), "tensor %s, change %d", old.name, i);
		gguf_hostile_tensor(t, e, i);
		attempt(what, "");
		t->n_tensors = n;
		t->tensor[n - 1] = last;
		t->tensor[e] = old;
	}
}

static void walk_table(const char *of, const json_t *keys, const json_t *tensors)
{
	int before = opened[0] + opened[1];

	name = of;
	t = table_read(keys, tensors);
	attempt("as it is", "");
	if (opened[0] + opened[1] == before)
		fail_msg("%s is refused as it is: %s", name, err);
	for (int i = 0; i < t->n_keys; i++)
		walk_key(i);
	for (int i = 0; i < t->n_tensors; i++)
		walk_tensor(i);
	table_free(t);
}

/* ---- the tables --------------------------------------------------------------------------------------- */

#define K(name, kind, value) "[\"tokenizer.ggml." name "\",\"" kind "\"," value "]"
#define ENDS K("bos_token_id", "u32", "5") "," K("eos_token_id", "u32", "6") "," K("eot_token_id", "u32", "6") "," \
	K("eom_token_id", "u32", "6") "," K("add_bos_token", "bool", "true") "," K("add_eos_token", "bool", "true")
#define CHAT "[\"tokenizer.chat_template\",\"str\",\"{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}\"]," \
	"[\"tokenizer.chat_template.tool_use\",\"str\",\"{{ tools }}\"],[\"general.alignment\",\"u32\",32]"
#define WORDS "\"a\",\"b\",\"ab\",\"aba\",\"\u2581\",\"<s>\",\"</s>\",\"<x>\",\"<unk>\""
#define TYPES K("token_type", "i32[]", "[1,1,1,1,1,3,3,4,2]")
#define SCORES K("scores", "f32[]", "[-1,-2,-3,-4,-5,0,0,0,0]")
#define VECTOR(name, n) "[\"" name ".weight\",[" n "],\"x\",[],\"\"],[\"" name ".bias\",[" n "],\"x\",[],\"\"]"
#define MATRIX(name, n, k) "[\"" name ".weight\",[" n "," k "],\"x\",[],\"\"]"
#define LINEAR(name, n, k) MATRIX(name, n, k) ",[\"" name ".bias\",[" n "],\"x\",[],\"\"]"
#define ONE(name) "[\"" name ".weight\",[64],\"x\",[],\"\"]"
#define SIZES(arch) "[\"general.architecture\",\"str\",\"" arch "\"],[\"general.type\",\"str\",\"model\"]," \
	"[\"" arch ".context_length\",\"u32\",8],[\"" arch ".embedding_length\",\"u32\",64]," \
	"[\"" arch ".feed_forward_length\",\"u32\",96],[\"" arch ".block_count\",\"u32\",1]," \
	"[\"" arch ".attention.head_count\",\"u32\",4],[\"" arch ".pooling_type\",\"u32\",1]," \
	"[\"" arch ".attention.layer_norm_epsilon\",\"f32\",1e-12],[\"" arch ".attention.causal\",\"bool\",false]," \
	"[\"tokenizer.ggml.token_type_count\",\"u32\",2],"
#define CUT K("model", "str", "\"bert\"") "," K("tokens", "str[]", "[\"[PAD]\",\"[UNK]\",\"[CLS]\",\"[SEP]\",\"\u2581a\",\"b\"," \
	"\"\u2581ab\",\"a\"]") "," K("token_type", "i32[]", "[3,3,3,3,1,1,1,1]") "," K("unknown_token_id", "u32", "1") "," \
	K("cls_token_id", "u32", "2") "," K("seperator_token_id", "u32", "3") "," K("add_sep_token", "bool", "true") "," \
	K("normalizer.lowercase", "bool", "true") "," K("normalizer.strip_accents", "bool", "true")

/* Tokenizers of each kind without a model, and encoders with theirs. */
static const struct { const char *name, *keys, *tensors; } tables[] = {
	{ "gpt2", "[" K("model", "str", "\"gpt2\"") "," K("pre", "str", "\"qwen2\"") "," K("tokens", "str[]", "[" WORDS "]") ","
	  TYPES "," K("merges", "str[]", "[\"a b\",\"ab a\"]") "," K("add_space_prefix", "bool", "false") "," ENDS "," CHAT "]", "[]" },
	{ "llama", "[\"bytes\"," K("model", "str", "\"llama\"") "," K("tokens", "str[]", "[" WORDS "]") "," TYPES "," SCORES ","
	  K("add_space_prefix", "bool", "true") "," ENDS ",[\"general.architecture\",\"str\",\"phi3\"]]", "[]" },
	{ "gemma4", "[\"bytes\"," K("model", "str", "\"gemma4\"") "," K("tokens", "str[]", "[" WORDS "]") "," TYPES ","
	  K("merges", "str[]", "[\"a b\",\"ab a\"]") "," ENDS "]", "[]" },
	{ "t5", "[" K("model", "str", "\"t5\"") "," K("tokens", "str[]", "[" WORDS "]") "," TYPES "," SCORES ","
	  K("unknown_token_id", "u32", "8") "," K("add_space_prefix", "bool", "true") ","
	  K("remove_extra_whitespaces", "bool", "true") "," K("treat_whitespace_as_suffix", "bool", "false") ","
	  K("precompiled_charsmap", "u8[]", "[4,0,0,0,0,0,0,0,0]") "," ENDS "]", "[]" },
	{ "bert", "[" SIZES("bert") CUT "]", "["
	  MATRIX("token_embd", "8", "64") "," MATRIX("position_embd", "8", "64") "," MATRIX("token_types", "2", "64") ","
	  VECTOR("token_embd_norm", "64") "," LINEAR("blk.0.attn_q", "64", "64") "," LINEAR("blk.0.attn_k", "64", "64") ","
	  LINEAR("blk.0.attn_v", "64", "64") "," LINEAR("blk.0.attn_output", "64", "64") "," LINEAR("blk.0.ffn_up", "96", "64") ","
	  LINEAR("blk.0.ffn_down", "64", "96") "," VECTOR("blk.0.attn_output_norm", "64") "," VECTOR("blk.0.layer_output_norm", "64")
	  "]" },
	{ "nomic-bert", "[" SIZES("nomic-bert") "[\"nomic-bert.rope.freq_base\",\"f32\",1000]," CUT "]", "["
	  MATRIX("token_embd", "8", "64") "," MATRIX("token_types", "2", "64") "," VECTOR("token_embd_norm", "64") ","
	  MATRIX("blk.0.attn_qkv", "192", "64") "," MATRIX("blk.0.attn_output", "64", "64") "," MATRIX("blk.0.ffn_up", "96", "64") ","
	  MATRIX("blk.0.ffn_gate", "96", "64") "," MATRIX("blk.0.ffn_down", "64", "96") ","
	  VECTOR("blk.0.attn_output_norm", "64") "," VECTOR("blk.0.layer_output_norm", "64") "]" },
	{ "modern-bert", "[" SIZES("modern-bert") "[\"modern-bert.rope.freq_base\",\"f32\",160000],"
	  "[\"modern-bert.rope.freq_base_swa\",\"f32\",10000],[\"modern-bert.attention.sliding_window\",\"u32\",4],"
	  "[\"modern-bert.attention.sliding_window_pattern\",\"u32\",3],[\"modern-bert.rope.scaling.type\",\"str\",\"none\"],"
	  "[\"modern-bert.hidden_activation\",\"str\",\"gelu\"],[\"modern-bert.vocab_size\",\"u32\",8]," CUT "]", "["
	  MATRIX("token_embd", "8", "64") "," ONE("token_embd_norm") "," MATRIX("blk.0.attn_qkv", "192", "64") ","
	  MATRIX("blk.0.attn_output", "64", "64") "," ONE("blk.0.ffn_norm") "," MATRIX("blk.0.ffn_up", "192", "64") ","
	  MATRIX("blk.0.ffn_down", "64", "96") "," ONE("output_norm") "]" },
};

static json_t *parsed(const char *s)
{
	json_error_t why;
	json_t *j = json_loads(s, 0, &why);

	if (!j)
		fail_msg("%s at %d: %.60s", why.text, why.position, s + (why.position > 30 ? why.position - 30 : 0));
	return j;
}

/* SentencePiece's vocabularies have a token for each byte, behind the others. */
static void add_bytes(json_t *keys)
{
	const json_t *key;
	size_t i;

	json_array_remove(keys, 0);
	json_array_foreach(keys, i, key) {
		const char *of = json_string_value(json_array_get(key, 0));
		json_t *list = json_array_get(key, 2);
		char token[8];

		for (int b = 0; b < 256 && json_is_array(list) && !strstr(of, "merges"); b++) {
			snprintf(token, sizeof(token), "<0x%02X>", b);
			json_array_append_new(list, strstr(of, "tokens") ? json_string(token) :
			                      strstr(of, "type") ? json_integer(6) : json_real(0));
		}
	}
}

static void test_tokenizers(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++) {
		json_t *keys = parsed(tables[i].keys), *tensors = parsed(tables[i].tensors);

		if (json_is_string(json_array_get(keys, 0)))
			add_bytes(keys);
		walk_table(tables[i].name, keys, tensors);
		json_decref(keys);
		json_decref(tensors);
	}
}

static int is_json(const struct dirent *e)
{
	size_t n = strlen(e->d_name);

	return n > 5 && strcmp(e->d_name + n - 5, ".json") == 0;
}

static void test_models(void **state)
{
	struct dirent **list;
	int n = scandir(RECORDED, &list, is_json, alphasort), read = 0;

	(void)state;
	assert_true(n > 0);
	for (int i = 0; i < n; i++) {
		char file[400];
		json_t *rec;

		snprintf(file, sizeof(file), RECORDED "/%s", list[i]->d_name);
		rec = json_load_file(file, 0, NULL);
		assert_non_null(rec);
		if (json_object_get(rec, "gguf_keys")) {
			walk_table(list[i]->d_name, json_object_get(rec, "gguf_keys"), json_object_get(rec, "to_gguf"));
			read++;
		}
		json_decref(rec);
		free(list[i]);
	}
	free(list);
	assert_true(read >= 45);
	printf("%d files tried, %d models and %d tokenizers opened; %d sentences name neither key nor tensor\n", tried,
	       opened[0], opened[1], unnamed);
	assert_true(opened[0] > 50 && opened[1] > 10 && opened[0] + opened[1] < tried);
	assert_int_equal(unnamed, 0);
}

static int set_up(void **state)
{
	static const char some[] = "aaaa aab  ba\t12345 \u00e9\u6771<s>\n";
	const char *seed = getenv("SLIPRING_SEED");

	(void)state;
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = i < sizeof(text) / 2 ? 'a' : some[i % (sizeof(some) - 1)];
	step = getenv("SLIPRING_FAMILIES") ? 1 : 101;
	turn = step - 1 - (int)(seed ? strtoul(seed, NULL, 10) % (unsigned)step : 0);
	fd = memfd_create("gguf", MFD_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return fd < 0 ? -1 : limit_memory(MEMORY);
}

static int tear_down(void **state)
{
	(void)state;
	return close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_tokenizers), cmocka_unit_test(test_models) };

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
