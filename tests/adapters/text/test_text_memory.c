/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=strndup */
/* test_text_memory.c - each of our allocations fails once, while a tokenizer is opened and while it works: an
 * error sentence, an error code, or the correct result. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "adapters/text/unicode/normalize.h"
#include "adapters/text/slipring-text.h"
#include "tests/rig/nth_alloc.h"

FAILS(char *, strdup, (const char *s), (s))
FAILS(char *, strndup, (const char *s, size_t n), (s, n))

static char dir[] = "/tmp/slipring-text-memory-XXXXXX";

static void put(const char *name, const char *text)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	assert_true(f && fputs(text, f) >= 0 && !fclose(f));
}

static void remove_all(void)
{
	char path[128];

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, i ? "tokenizer_config.json" : "tokenizer.json");
		unlink(path);
	}
	rmdir(dir);
}

static int make_dir(void **state)
{
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	put("tokenizer.json", "{\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
	    "\"add_prefix_space\": false}, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", "
	    "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"\xc3\x83\": 3, \"\xc2\xa9\": 5}, \"merges\": [\"a b\"]}, \"added_tokens\": "
	    "[{\"id\": 4, \"content\": \"<x>\", \"special\": true}]}");
	put("tokenizer_config.json", "{\"bos_token\": \"a\", \"chat_template\": "
	    "\"{{ bos_token }}{% for m in messages %}{{ m.content | trim }}{% endfor %}\"}");
	return 0;
}

static int drop_dir(void **state)
{
	(void)state;
	remove_all();
	return 0;
}

static void opening(void **state)
{
	int n = 1, rc = -1, told = 0;

	(void)state;
	for (; rc; n++) {
		struct sr_text *t = NULL;
		char err[256] = "", *out = NULL, why[256] = "";

		calls = 0, fails = n;
		rc = sr_text_open(&t, dir, err, sizeof(err));
		fails = 0;
		if (rc) {
			assert_int_equal(rc, -ENOMEM);
			assert_null(t);
			told += strstr(err, "memory") != NULL;
			assert_true(*err);
		} else if (calls >= n) {       /* optional parts report it when they are used */
			rc = (int)sr_text_chat(t, NULL, "{\"messages\": [{\"role\": \"user\"}]}", &out, why, sizeof(why));
			if (rc >= 0 || !strstr(why, "memory"))
				fail_msg("call %d: %d, %s, %s", n, rc, why, out);
			assert_null(out);
			sr_text_close(t);
		} else {
			assert_int_equal(sr_text_chat(t, NULL, "{\"messages\": [{\"role\": \"user\", \"content\": \" b\"}]}", &out, why,
			                              sizeof(why)), 2);
			assert_string_equal(out, "ab");
			free(out);
			sr_text_close(t);
		}
	}
	assert_in_range(n, 10, 200);
	assert_true(told > 0);
	sr_text_close(NULL);
}

static void working(void **state)
{
	static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \" ab \"}, "
	                           "{\"role\": \"user\", \"content\": [\"b\"]}]}";
	int64_t n_ids = -1, n_chat = -1;
	struct sr_text *t;
	int32_t ids[16];
	char err[256];

	(void)state;
	assert_int_equal(sr_text_open(&t, dir, err, sizeof(err)), 0);
	for (int n = 1; n_ids < 0; n++) {
		calls = 0, fails = n;
		n_ids = sr_text_encode(t, "abae\xcc\x81<x>", 9, SR_TEXT_SPECIAL_PARSE, ids, 16, 0);
		fails = 0;
		if (n_ids < 0)
			assert_int_equal(n_ids, -ENOMEM);
		assert_true(n > 1 || n_ids < 0);
	}
	assert_int_equal(n_ids, 5);                /* e and its mark are one character of two bytes */
	assert_memory_equal(ids, ((int32_t[]){ 2, 0, 3, 5, 4 }), sizeof(*ids) * 5);
	calls = 0, fails = 1;                  /* what is not UTF-8 is repaired in memory of its own */
	assert_int_equal(sr_text_encode(t, "ab\xff", 3, 0, ids, 16, 0), -ENOMEM);
	fails = 0;
	for (int n = 1; n_chat < 0; n++) {
		char *out = NULL;

		err[0] = 0;
		calls = 0, fails = n;
		n_chat = sr_text_chat(t, NULL, chat, &out, err, sizeof(err));
		fails = 0;
		if (n_chat < 0) {
			assert_int_equal(n_chat, -ENOMEM);
			assert_non_null(strstr(err, "memory"));
		} else {
			assert_string_equal(out, "aabb");
			assert_string_equal(err, "");
			free(out);
		}
		assert_true(n > 1 || n_chat < 0);
	}
	assert_int_equal(sr_text_chat(t, "{{ nope", chat, &(char *){ NULL }, err, sizeof(err)), -EINVAL); /* not by its own */
	assert_int_equal(sr_text_chat(t, "\xff", chat, &(char *){ NULL }, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "is not UTF-8"));
	n_chat = -1;
	for (int n = 1; n_chat < 0; n++) {
		char *out = NULL;

		calls = 0, fails = n;
		n_chat = sr_text_chat(t, "{{ 1 }}", chat, &out, err, sizeof(err));
		fails = 0;
		assert_int_equal(n_chat, out ? 1 : -ENOMEM);
		free(out);
	}
	sr_text_close(t);
}

/* The properties of an open tokenizer; last, without tokenizer_config.json. */
static void says_what_it_is(void **state)
{
	static const uint8_t none[sizeof(((struct sr_text_info *)0)->vocab_hash)];
	struct sr_text *t;
	char path[128], err[256], *out;

	(void)state;
	assert_int_equal(sr_text_open(&t, dir, err, sizeof(err)), 0);
	assert_int_equal(sr_text_info(t)->bos, 0);
	assert_memory_not_equal(sr_text_info(t)->vocab_hash, none, sizeof(none));
	sr_text_close(t);
	snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(sr_text_open(&t, dir, err, sizeof(err)), 0);
	assert_true(sr_text_info(t)->bos == -1 && sr_text_info(t)->eos == -1 && !sr_text_info(t)->n_stop);
	assert_int_equal(sr_text_chat(t, NULL, "{\"messages\": [{\"role\": \"user\"}]}", &out, err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "the model has no chat template");
	sr_text_close(t);
}

/* The form itself: characters that become four, and more marks than the first memory holds. */
static void normal_form(void **state)
{
	char s[700], *out;
	size_t n = 0, out_n;
	int rc = -1;

	(void)state;
	for (int i = 0; i < 150; i++, n += 3)
		memcpy(s + n, "\xe1\xbe\x82", 3);      /* U+1F82: a letter and three marks */
	for (int i = 0; i < 100; i++, n += 2)
		memcpy(s + n, i % 2 ? "\xcc\xa3" : "\xcc\x81", 2);     /* of class 220 and of 230 */
	for (int k = 1; rc; k++) {
		calls = 0, fails = k;
		rc = normalize_nfc(s, n, &out, &out_n);
		fails = 0;
		assert_true(k > 5 ? !rc : rc == -ENOMEM);      /* characters, more of them, marks twice, the text */
		assert_true(rc == 0 || !out);
	}
	assert_int_equal(out_n, n);
	assert_memory_equal(out, s, 149 * 3);               /* each of them is composed again */
	for (size_t i = 0; i < 50; i++) {                  /* behind the last one, by class */
		assert_memory_equal(out + 150 * 3 + 2 * i, "\xcc\xa3", 2);
		assert_memory_equal(out + 150 * 3 + 100 + 2 * i, "\xcc\x81", 2);
	}
	free(out);
	assert_int_equal(normalize_nfc("plain", 5, &out, &out_n), 0);
	assert_null(out);                                  /* as it is */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opening), cmocka_unit_test(working), cmocka_unit_test(normal_form),
		cmocka_unit_test(says_what_it_is),
	};

	return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
