/* open_json.h - parts of tokenizer.json, for the two files that read it. */
#ifndef OPEN_JSON_H
#define OPEN_JSON_H

#include <jansson.h>
#include <string.h>

#include "text.h"

#define TOKENIZER "tokenizer.json"
#define SPACE_MARK "\xe2\x96\x81"    /* U+2581, SentencePiece's space */

struct json_reader {
	struct sr_text *t;
	const char *dir;
	char *err;
	size_t errlen;
};

/* Returns rc, and the sentence: what is wrong in the file, and with `name`, if there is one. */
int reject_file(const struct json_reader *j, int rc, const char *file, const char *what, const char *name);

/* Model.vocab and added_tokens.  unigrams: added tokens may be normalized.  0 or -errno, here and below. */
int read_json_tokens(const struct json_reader *j, const json_t *root, bool unigrams);
int32_t json_id(const json_t *v, int32_t n);   /* v as an id below n; -1: it is none */
int read_metaspace(const struct json_reader *j, const json_t *p);
/* The normalizer n: none, one, or a Sequence of them. */
int read_normalizers(const struct json_reader *j, const json_t *n,
                     int (*read_one)(const struct json_reader *j, const json_t *n));

/* open_unigram.c: all but the post-processor. */
int read_unigram(const struct json_reader *j, const json_t *root);

static inline const char *type_name_of(const json_t *j)
{
	const char *s = json_string_value(json_object_get(j, "type"));

	return s ? s : "(none)";
}

static inline bool is_true(const json_t *j, const char *key) { return json_is_true(json_object_get(j, key)); }

static inline bool is_text(const json_t *v, const char *want)
{
	return json_is_string(v) && !strcmp(json_string_value(v), want);
}

#endif
