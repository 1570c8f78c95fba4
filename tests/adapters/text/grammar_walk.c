/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* grammar_walk.c - JSON Schemas through the guide, for programs that judge: tests/schema_suite.py and others.
 *
 * A line in is an object: schema (any JSON) and, as wanted, additional_properties, compact (no whitespace),
 * lenient, texts (strings: does the guide take each, and may the answer end there?), walks (how many random
 * answers), seed.  A line out: error (text) and code, or took (booleans), at (bytes taken of each), walked
 * (strings; null if it did not end within 4,000 bytes), us (time of sr_grammar_open) and note.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shmring/clock.h"
#include "tests/rig/guide_rig.h"

#define MOST 4000                /* bytes of a random answer */

static char byte[256][2];
static const char *words[300];
static int n_words, end;

static struct sr_text *vocabulary(void)
{
	static const char *const more[] = { "{\"", "\":", "\", \"", "\"}", "true", "false", "null",
		                                "[{",  "}]",  ", ",     "ab",  "12",   "\\u",   ".5" };

	for (int b = 1; b < 256; b++) {
		byte[b][0] = (char)b;
		words[n_words++] = byte[b];
	}
	for (size_t i = 0; i < sizeof(more) / sizeof(*more); i++)
		words[n_words++] = more[i];
	words[end = n_words++] = "<end>";
	return rig_text(words, n_words);
}

/* *at: the bytes that were taken. */
static bool takes(struct sr_grammar *g, const struct sr_text *t, const char *s, size_t n, size_t *at)
{
	uint32_t bits[16];
	struct sr_guide *u;
	bool ok = true;

	if (sr_guide_open(&u, g))
		abort();
	for (*at = 0; *at < n && ok; *at += ok)
		ok = s[*at] && !sr_guide_take(u, (uint8_t)s[*at] - 1);
	if (ok) {
		rig_bits(u, t, bits);
		ok = rig_allows(bits, end);
	}
	sr_guide_close(u);
	return ok;
}

static uint64_t state;

static uint32_t below(uint32_t n)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(state >> 33) % n;
}

/* A random answer.  Prefers quotes, brackets and the end, so that it ends. */
static json_t *walk(struct sr_grammar *g, const struct sr_text *t)
{
	uint32_t bits[16], allowed[300], n, k, length = 0;
	char text[MOST + 16];
	struct sr_guide *u;

	if (sr_guide_open(&u, g))
		abort();
	for (;;) {
		rig_bits(u, t, bits);
		n = 0;
		for (int id = 0; id < n_words; id++)
			if (rig_allows(bits, id))
				allowed[n++] = (uint32_t)id;
		if (!n) {
			fprintf(stderr, "dead end after %.*s\n", (int)length, text);
			exit(3);
		}
		k = allowed[below(n)];
		if (rig_allows(bits, end) && below(2))
			k = (uint32_t)end;
		for (const char *p = "\"]},"; *p && n > 1 && below(6) == 0; p++)
			if (rig_allows(bits, *p - 1))
				k = (uint32_t)*p - 1;
		if (k == (uint32_t)end || length + 8 > MOST)
			break;
		if (sr_guide_take(u, (int32_t)k)) {
			fprintf(stderr, "allowed, but not taken, after %.*s: %s\n", (int)length, text, words[k]);
			exit(3);
		}
		memcpy(text + length, words[k], strlen(words[k]));
		length += (uint32_t)strlen(words[k]);
	}
	sr_guide_close(u);
	return k == (uint32_t)end ? json_stringn(text, length) : json_null();
}

static json_t *answer(const struct sr_text *t, const json_t *ask)
{
	struct sr_grammar_options o = { .size = sizeof(o),
		.additional_properties = json_is_true(json_object_get(ask, "additional_properties")),
		.disable_any_whitespace = json_is_true(json_object_get(ask, "compact")),
		.lenient = json_is_true(json_object_get(ask, "lenient")) };
	char *schema = json_dumps(json_object_get(ask, "schema"), JSON_ENCODE_ANY | JSON_COMPACT), err[1024] = "";
	json_t *out = json_object(), *took = json_array(), *walked = json_array(), *text;
	uint64_t begin = sr_now();
	struct sr_grammar *g;
	json_t *at = json_array();
	size_t i, n;
	int rc;

	rc = sr_grammar_open(&g, t, SR_GRAMMAR_JSON, schema, strlen(schema), &o, err, sizeof(err));
	json_object_set_new(out, "us", json_integer((json_int_t)(sr_now() - begin) / 1000));
	free(schema);
	if (rc) {
		json_object_set_new(out, "error", json_string(err));
		json_object_set_new(out, "code", json_integer(rc));
		json_decref(took);
		json_decref(at);
		json_decref(walked);
		return out;
	}
	json_object_set_new(out, "note", json_string(err));
	json_array_foreach(json_object_get(ask, "texts"), i, text) {
		json_array_append_new(
			took, json_boolean(takes(g, t, json_string_value(text), json_string_length(text), &n)));
		json_array_append_new(at, json_integer((json_int_t)n));
	}
	state = (uint64_t)json_integer_value(json_object_get(ask, "seed"));
	for (json_int_t k = json_integer_value(json_object_get(ask, "walks")); k > 0; k--)
		json_array_append_new(walked, walk(g, t));
	json_object_set_new(out, "took", took);
	json_object_set_new(out, "at", at);
	json_object_set_new(out, "walked", walked);
	sr_grammar_close(g);
	return out;
}

int main(void)
{
	struct sr_text *t = vocabulary();
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;

	while ((n = getline(&line, &cap, stdin)) > 0) {
		json_error_t e;
		json_t *ask = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &e), *out;

		if (!ask) {
			printf("{\"error\": \"input\", \"code\": 0}\n");
			fflush(stdout);
			continue;
		}
		out = answer(t, ask);
		json_dumpf(out, stdout, JSON_COMPACT);
		printf("\n");
		fflush(stdout);
		json_decref(out);
		json_decref(ask);
	}
	free(line);
	sr_text_close(t);
	return 0;
}
