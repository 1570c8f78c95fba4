/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strndup */
/* test_open_gguf.c - a tokenizer from a GGUF file's keys, written here: what each key changes, and which
 * values are refused, with the key's name in the sentence. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "adapters/text/slipring-text.h"
#include "core/models/gguf.h"
#include "tests/rig/gguf_write.h"
#include "tests/rig/nth_alloc.h"

FAILS(char *, strndup, (const char *s, size_t n), (s, n))

/* One key of the file.  A key of MORE replaces the one of the same name. */
struct kv {
	const char *key;
	uint32_t type, item;       /* item: of an array */
	uint64_t number;
	const char *text;          /* of a string; of an array of strings, each ended by '|' */
	const int32_t *numbers;    /* of an array of numbers: as many as number says */
};

#define K(name) "tokenizer.ggml." name
#define U32(name, v) { .key = K(name), .type = GGUF_U32, .number = v }
#define BOOL(name, v) { .key = K(name), .type = GGUF_BOOL, .number = v }
#define TEXT(name, v) { .key = K(name), .type = GGUF_STRING, .text = v }
#define LIST(name, v) { .key = K(name), .type = GGUF_ARRAY, .item = GGUF_STRING, .text = v }
#define INTS(name, ...) { .key = K(name), .type = GGUF_ARRAY, .item = GGUF_I32, \
	.number = sizeof((int32_t[]){ __VA_ARGS__ }) / 4, .numbers = (const int32_t[]){ __VA_ARGS__ } }
#define GONE(name) { .key = K(name), .type = GONE_TYPE }
#define TEMPLATE(name, v) { .key = "tokenizer.chat_template" name, .type = GGUF_STRING, .text = v }

enum { GONE_TYPE = 99, NORMAL = 1, UNKNOWN, CONTROL, USER };
enum { A, B, AB, ABA, BOS, EOS, TURN, THINK, PLAIN_END, UNK, N_TOKENS };

static const struct kv standard[] = {
	TEXT("model", "gpt2"), TEXT("pre", "gpt-2"),
	LIST("tokens", "a|b|ab|aba|<s>|</s>|<turn>|<think>|<end_of_turn>|<unk>|"),
	INTS("token_type", NORMAL, NORMAL, NORMAL, NORMAL, CONTROL, CONTROL, CONTROL, USER, NORMAL, UNKNOWN),
	LIST("merges", "a b|ab a|"),
	U32("bos_token_id", BOS), U32("eos_token_id", EOS),
};

static char path[] = "/tmp/slipring-gguf-XXXXXX";

/* Items end with |.  In an item ! is written as |. */
static void put_list(struct bytes *w, const struct kv *v)
{
	uint64_t n = 0;

	for (const char *p = v->text; *p; p++)
		n += *p == '|';
	put_u64(w, n);
	for (const char *p = v->text, *end; *p; p = end + 1) {
		end = strchr(p, '|');
		put_u64(w, (uint64_t)(end - p));
		for (; p < end; p++)
			put(w, *p == '!' ? "|" : p, 1);
	}
}

static void put_kv(struct bytes *w, const struct kv *v)
{
	put_key(w, v->key, v->type);
	if (v->type == GGUF_STRING) {
		put_str(w, v->text);
	} else if (v->type == GGUF_BOOL) {
		put(w, &v->number, 1);
	} else if (v->type != GGUF_ARRAY) {
		put(w, &v->number, 4);
	} else {
		put_u32(w, v->item);
		if (v->item == GGUF_STRING) {
			put_list(w, v);
		} else {
			put_u64(w, v->number);
			put(w, v->numbers, 4 * v->number);
		}
	}
}

/* Write the standard file with `more` instead of its own keys of these names, and open it. */
static int open_with(const struct kv *more, size_t n_more, struct sr_text **t, char *err, size_t errlen)
{
	static struct bytes body, all;
	uint64_t n = 0;
	FILE *f = fopen(path, "w");

	body.n = 0;
	for (size_t i = 0; i < sizeof(standard) / sizeof(*standard); i++) {
		bool replaced = false;

		for (size_t k = 0; k < n_more; k++)
			replaced |= !strcmp(more[k].key, standard[i].key);
		if (!replaced)
			put_kv(&body, &standard[i]), n++;
	}
	for (size_t k = 0; k < n_more; k++)
		if (more[k].type != GONE_TYPE)
			put_kv(&body, &more[k]), n++;
	put_head(&all, 3, 0, n);
	put(&all, body.b, body.n);
	put_pad(&all, 32);
	assert_non_null(f);
	assert_int_equal(fwrite(all.b, 1, all.n, f), all.n);
	assert_int_equal(fclose(f), 0);
	snprintf(err, errlen, "-");
	*t = NULL;
	return sr_text_open(t, path, err, errlen);
}

static struct sr_text *opened(const struct kv *more, size_t n_more)
{
	struct sr_text *t;
	char err[600];

	if (open_with(more, n_more, &t, err, sizeof(err)))
		fail_msg("%s", err);
	return t;
}

#define N(list) (sizeof(list) / sizeof(*(list)))
#define OPENED(...) opened((const struct kv[]){ __VA_ARGS__ }, N(((const struct kv[]){ __VA_ARGS__ })))

static void ids(const struct sr_text *t, const char *s, int flags, const char *want)
{
	int32_t id[32];
	int64_t n = sr_text_encode(t, s, strlen(s), flags, id, 32, 0);
	char is[200] = "";

	for (int64_t i = 0; i < n; i++)
		snprintf(is + strlen(is), sizeof(is) - strlen(is), "%s%d", i ? " " : "", id[i]);
	assert_string_equal(is, want);
}

static void stops(struct sr_text *t, const char *want)
{
	const struct sr_text_info *in = sr_text_info(t);
	char is[100] = "";

	for (int i = 0; i < in->n_stop; i++)
		snprintf(is + strlen(is), sizeof(is) - strlen(is), "%s%d", i ? " " : "", in->stop[i]);
	assert_string_equal(is, want);
	sr_text_close(t);
}

static void the_standard_file(void **state)
{
	struct sr_text *t = opened(NULL, 0);
	const struct sr_text_info *in = sr_text_info(t);
	const char *s;
	bool special;

	(void)state;
	assert_int_equal(in->vocab, N_TOKENS);
	assert_int_equal(in->bos, BOS);
	assert_int_equal(in->eos, EOS);
	assert_false(in->add_bos);
	assert_null(in->chat_template);
	assert_string_equal(in->pre, "gpt-2");
	ids(t, "abaab", 0, "3 2");
	ids(t, "a<s>b", SR_TEXT_SPECIAL_PARSE, "0 4 1");
	ids(t, "a<think>b<unk>", SR_TEXT_SPECIAL_PARSE, "0 7 1 9");
	ids(t, "<think>", 0, "7");               /* the user's own token is found in any text */
	ids(t, "ab", SR_TEXT_SPECIAL_ADD, "2");  /* the file asks for none */
	for (int32_t id = 0; id < N_TOKENS; id++) {
		assert_true(sr_text_piece(t, id, &s, &special) > 0);
		assert_int_equal(special, id == BOS || id == EOS || id == TURN || id == UNK);
	}
	stops(t, "5");
}

static void edges(void **state)
{
	struct sr_text *t = OPENED(BOOL("add_bos_token", 1), BOOL("add_eos_token", 1));

	(void)state;
	assert_true(sr_text_info(t)->add_bos);
	ids(t, "ab", SR_TEXT_SPECIAL_ADD, "4 2 5");
	ids(t, "ab", 0, "2");
	sr_text_close(t);
	t = OPENED(BOOL("add_bos_token", 1), BOOL("add_eos_token", 1), GONE("bos_token_id"), GONE("eos_token_id"));
	assert_int_equal(sr_text_info(t)->bos, -1);
	assert_int_equal(sr_text_info(t)->eos, -1);
	assert_false(sr_text_info(t)->add_bos);
	ids(t, "ab", SR_TEXT_SPECIAL_ADD, "2");
	stops(t, "");
	t = OPENED(BOOL("add_eos_token", 1), U32("bos_token_id", 0), U32("eos_token_id", 0));
	ids(t, "ab", SR_TEXT_SPECIAL_ADD, "2 0"); /* id 0 is an id */
	stops(t, "0");
	t = OPENED(TEXT("pre", "llama-bpe"), U32("bos_token_id", 0));   /* this family adds it at the start */
	assert_true(sr_text_info(t)->add_bos);
	ids(t, "ab", SR_TEXT_SPECIAL_ADD, "0 2");
	sr_text_close(t);
	t = OPENED(TEXT("pre", "llama-bpe"), BOOL("add_bos_token", 0)); /* the file's own setting wins */
	assert_false(sr_text_info(t)->add_bos);
	ids(t, "ab", SR_TEXT_SPECIAL_ADD, "2");
	sr_text_close(t);
	t = OPENED(TEXT("pre", "dbrx"));         /* the same expression, another default */
	assert_false(sr_text_info(t)->add_bos);
	sr_text_close(t);
}

static void what_ends_an_answer(void **state)
{
	int32_t type[N_TOKENS] = { NORMAL, NORMAL, NORMAL, NORMAL, CONTROL, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL };
	struct kv types = { .key = K("token_type"), .type = GGUF_ARRAY, .item = GGUF_I32,
	                    .number = N_TOKENS, .numbers = type };

	(void)state;
	stops(OPENED(U32("eot_token_id", TURN), U32("eom_token_id", THINK)), "5 6 7");
	stops(OPENED(U32("eot_token_id", EOS), U32("eom_token_id", 0)), "5 0");
	stops(OPENED(LIST("tokens", "a|b|ab|aba|<s>|</s>|<end>|<think>|<end_of_turn>|<unk>|")), "5");
	type[PLAIN_END] = CONTROL;               /* found by its spelling, but only if special */
	stops(OPENED(types), "5 8");
	type[PLAIN_END] = USER;
	stops(OPENED(types), "5");
	type[TURN] = type[THINK] = type[PLAIN_END] = CONTROL;     /* gpt-oss: a message's end is not a turn's */
	stops(OPENED(LIST("tokens", "a|b|ab|aba|<s>|</s>|<!end!>|<!call!>|<!return!>|<unk>|"), types), "5 8 7");
	stops(OPENED(LIST("tokens", "a|b|ab|aba|<s>|</s>|<!end!>|<!other!>|<!return!>|<unk>|"), types), "5 6");
	type[TURN] = CONTROL;
	type[THINK] = type[PLAIN_END] = USER;
	type[0] = CONTROL;
	stops(OPENED(LIST("tokens", "<end_of_turn>|b|c|d|<s>|</s>|e|f|g|h|"), types, LIST("merges", "")), "5 0");
}

static void kinds_of_tokens(void **state)
{
	struct sr_text *t = OPENED(INTS("token_type", NORMAL, NORMAL, NORMAL, NORMAL, CONTROL));
	bool special;
	const char *s;

	(void)state;
	sr_text_piece(t, BOS, &s, &special);
	assert_true(special);
	sr_text_piece(t, EOS, &s, &special);     /* past the list's end: an ordinary one */
	assert_false(special);
	sr_text_close(t);
	t = OPENED(GONE("token_type"));
	for (int32_t id = 0; id < N_TOKENS; id++) {
		sr_text_piece(t, id, &s, &special);
		assert_false(special);
	}
	sr_text_close(t);
}

static void pre_tokenizers(void **state)
{
	static const char *const nfc[] = { "qwen2", "deepseek-r1-qwen" };
	static const char *const not[] = { "gpt-2", "stablelm2", "default" };
	struct sr_text *t;

	(void)state;
	for (size_t i = 0; i < N(nfc) + N(not); i++) {
		t = OPENED(TEXT("pre", i < N(nfc) ? nfc[i] : not[i - N(nfc)]),
		           LIST("tokens", "a|\xc3\x8c|\xc4\xa3|\xc3\x83|\xc2\xa1|"), GONE("token_type"),
		           LIST("merges", ""), U32("bos_token_id", 0), U32("eos_token_id", 0));
		/* an a and an accent: \u00e1, the bytes c3 a1, after composition */
		ids(t, "a\xcc\x81", 0, i < N(nfc) ? "3 4" : "0 1 2");
		sr_text_close(t);
	}
	t = OPENED(GONE("pre"), BOOL("add_space_prefix", 0));
	assert_string_equal(sr_text_info(t)->pre, "default");
	sr_text_close(t);
}

#define CHAT "{\"messages\": [{\"role\": \"user\"}]"

static void templates(void **state)
{
	struct sr_text *t = OPENED(TEMPLATE("", "P{{ eos_token }}"), TEMPLATE(".tool_use", "T{{ tools | length }}"));
	char *out, err[200];

	(void)state;
	assert_string_equal(sr_text_info(t)->chat_template, "P{{ eos_token }}");
	assert_int_equal(sr_text_chat(t, NULL, CHAT "}", &out, err, sizeof(err)), 5);
	assert_string_equal(out, "P</s>");
	free(out);
	assert_int_equal(sr_text_chat(t, NULL, CHAT ", \"tools\": [1, 2]}", &out, err, sizeof(err)), 2);
	assert_string_equal(out, "T2");
	free(out);
	sr_text_close(t);
	t = OPENED(TEMPLATE("", "{{ bos_token }}"), U32("bos_token_id", 1));  /* a token of one character */
	assert_int_equal(sr_text_chat(t, NULL, CHAT "}", &out, err, sizeof(err)), 1);
	assert_string_equal(out, "b");
	free(out);
	sr_text_close(t);
	t = opened(NULL, 0);
	assert_int_equal(sr_text_chat(t, NULL, CHAT "}", &out, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "the model has no chat template");
	sr_text_close(t);
	t = OPENED(TEMPLATE("", "{{ nope"));     /* completions still work */
	assert_int_equal(sr_text_chat(t, NULL, CHAT "}", &out, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "line 1"));
	sr_text_close(t);
}

static void refusals(void **state)
{
	const struct { struct kv kv; int rc; const char *say; } cases[] = {
		{ GONE("model"), -EINVAL, "tokenizer.ggml.model: missing" },
		{ TEXT("model", "llama"), -EINVAL, "tokenizer.ggml.scores: must be an array of 10 float32" },
		{ TEXT("model", "gpt3"), -ENOTSUP, "tokenizer.ggml.model 'gpt3' is not supported" },
		{ TEXT("model", "gpt22"), -ENOTSUP, "tokenizer.ggml.model 'gpt22' is not supported" },
		{ TEXT("model", "0123456789012345678901234567890123456789x"), -ENOTSUP,
		  "model '0123456789012345678901234567890123456789' is" },
		{ TEXT("pre", "klingon"), -ENOTSUP, "'klingon' (tokenizer.ggml.pre)" },
		{ U32("pre", 1), -EINVAL, "tokenizer.ggml.pre: must be a string" },
		{ BOOL("add_space_prefix", 1), -ENOTSUP, "tokenizer.ggml.add_space_prefix is not supported" },
		{ U32("add_space_prefix", 0), -EINVAL, "tokenizer.ggml.add_space_prefix: must be a bool" },
		{ U32("model", 1), -EINVAL, "tokenizer.ggml.model: missing, or no string" },
		{ { .key = "tokenizer.chat_template", .type = GGUF_U32 }, -EINVAL, "tokenizer.chat_template: must be a string" },
		{ { .key = "tokenizer.chat_template.tool_use", .type = GGUF_BOOL }, -EINVAL,
		  "tokenizer.chat_template.tool_use: must be a string" },
		{ GONE("tokens"), -EINVAL, "tokenizer.ggml.tokens: it is missing" },
		{ TEXT("tokens", "a"), -EINVAL, "tokenizer.ggml.tokens: must be an array of strings" },
		{ INTS("tokens", 1), -EINVAL, "tokenizer.ggml.tokens: must be an array of strings" },
		{ TEXT("token_type", "a"), -EINVAL, "tokenizer.ggml.token_type: must be an array of int32" },
		{ LIST("token_type", "a|"), -EINVAL, "tokenizer.ggml.token_type: must be an array of int32" },
		{ GONE("merges"), -EINVAL, "tokenizer.ggml.merges: it is missing" },
		{ INTS("merges", 1), -EINVAL, "tokenizer.ggml.merges: must be an array of strings" },
		{ LIST("merges", "a b|a c|"), -EINVAL, "tokenizer.ggml.merges[1] 'a c': not two tokens" },
		{ LIST("merges", "ab|"), -EINVAL, "tokenizer.ggml.merges[0] 'ab': not two tokens" },
		{ LIST("merges", "a |"), -EINVAL, "tokenizer.ggml.merges[0] 'a ': not two tokens" },
		{ LIST("merges", " b|"), -EINVAL, "tokenizer.ggml.merges[0] ' b': not two tokens" },
		{ LIST("merges", "a b|b a|"), -EINVAL, "tokenizer.ggml.merges[1] 'b a': not two tokens" },
		{ LIST("merges", "a 01234567890123456789012345678901234567890123456789012345678901234|"), -EINVAL,
		  "[0] 'a 0123456789012345678901234567890123456789012345678901234567': not" },
		{ U32("bos_token_id", N_TOKENS), -EINVAL, "tokenizer.ggml.bos_token_id: must be an id below 10" },
		{ TEXT("bos_token_id", "4"), -EINVAL, "tokenizer.ggml.bos_token_id: must be an id below 10" },
		{ U32("eos_token_id", N_TOKENS), -EINVAL, "tokenizer.ggml.eos_token_id: must be an id below 10" },
		{ U32("eot_token_id", N_TOKENS), -EINVAL, "tokenizer.ggml.eot_token_id: must be an id below 10" },
		{ U32("eom_token_id", UINT32_MAX), -EINVAL, "tokenizer.ggml.eom_token_id: must be an id below 10" },
		{ U32("add_bos_token", 1), -EINVAL, "tokenizer.ggml.add_bos_token: must be a bool" },
		{ U32("add_eos_token", 1), -EINVAL, "tokenizer.ggml.add_eos_token: must be a bool" },
	};

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		struct sr_text *t;
		char err[600];
		int rc = open_with(&cases[i].kv, 1, &t, err, sizeof(err));

		if (rc != cases[i].rc || !strstr(err, cases[i].say) || strncmp(err, path, strlen(path)))
			fail_msg("case %zu: %d, %s", i, rc, err);
		assert_null(t);
	}
}

/* Each allocation of a start fails once: an error sentence, or the file still opens. */
static void no_memory(void **state)
{
	static const struct kv more[] = { TEMPLATE("", "P") };
	struct sr_text *t;
	char err[600];
	int n = 1, ok = 0;

	(void)state;
	for (; n < 10000; n++) {
		calls = 0;
		fails = n;
		if (open_with(more, 1, &t, err, sizeof(err)) == 0) {
			sr_text_close(t);
			ok++;
		} else {
			assert_null(t);
			if (strlen(err) < 10 || err[strlen(err) - 1] == ' ')
				fail_msg("allocation %d: '%s'", n, err);
		}
		if (calls < n)
			break;
	}
	fails = 0;
	assert_true(n > 10 && n < 10000);
	assert_true(ok < n / 2);
}

static int json_fails, json_calls;

static void *json_alloc(size_t n)
{
	return ++json_calls == json_fails ? NULL : __real_malloc(n);
}

/* jansson finds no memory for what a chat's template is given besides the messages. */
static void no_memory_for_a_chat(void **state)
{
	struct sr_text *t = OPENED(TEMPLATE("", "{{ bos_token }}x"));
	char *out, err[200];
	int read, n_failed = 0;

	(void)state;
	json_set_alloc_funcs(json_alloc, free);
	json_calls = 0;
	json_decref(json_loads(CHAT "}", 0, NULL));  /* jansson does not check all its own allocations */
	read = json_calls;
	json_calls = 0;
	assert_int_equal(sr_text_chat(t, NULL, CHAT "}", &out, err, sizeof(err)), 4);
	free(out);
	for (int n = json_calls; n > read; n--) {
		int64_t rc;

		json_calls = 0;
		json_fails = n;
		snprintf(err, sizeof(err), "-");
		rc = sr_text_chat(t, NULL, CHAT "}", &out, err, sizeof(err));
		if (rc >= 0) {
			assert_string_equal(out, "<s>x");
			free(out);
			continue;
		}
		assert_int_equal(rc, -ENOMEM);
		assert_string_equal(err, "no memory");
		n_failed++;
	}
	json_set_alloc_funcs(malloc, free);
	assert_true(n_failed > 2);
	sr_text_close(t);
}

static int make_file(void **state)
{
	int fd = mkstemp(path);

	(void)state;
	return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
	(void)state;
	return unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_standard_file),
		cmocka_unit_test(edges),
		cmocka_unit_test(what_ends_an_answer),
		cmocka_unit_test(kinds_of_tokens),
		cmocka_unit_test(pre_tokenizers),
		cmocka_unit_test(templates),
		cmocka_unit_test(refusals),
		cmocka_unit_test(no_memory),
		cmocka_unit_test(no_memory_for_a_chat),
	};

	return cmocka_run_group_tests_name("open_gguf", tests, make_file, remove_file);
}
