/* impl.h - what the files of structural tags share. */
#ifndef TAGS_IMPL_H
#define TAGS_IMPL_H

#include "adapters/text/grammar/regex.h"
#include "tags.h"

#define TAGS_MARKERS 32  /* strings that may end one free text: each walks the vocabulary once */
#define TAGS_LIST 256    /* strings or tokens that free text may not have */
#define TAGS_STRING  65536 /* bytes of one string */

/* Where a format stands in the document; index if key is NULL. */
struct tags_place {
	const struct tags_place *up;
	const char *key;
	size_t index;
};

struct tags_special {
	const char *s;
	int n;
	int32_t id;
};

struct tags {
	struct grammar *g;
	struct regexes *x;
	struct grammar_error *e;
	struct tags_special *special; /* by first byte, then the longest first */
	uint32_t n_special;
	uint32_t first[257]; /* special[first[b]] .. begin with byte b */
	uint32_t any;        /* a character */
	uint32_t text;       /* any text */
	uint32_t more;       /* one byte or more */
};

/* A string that ends free text, and what must follow it. */
struct tags_marker {
	bool plain;     /* no special token is in it */
	uint32_t expr;  /* if plain */
	int32_t token;  /* it begins with this special token; or -1 */
	int32_t symbol; /* of all of it */
	int32_t rest;   /* of all but the token; -1: nothing */
	int32_t then;   /* what follows the marker; -1: nothing */
	bool again;     /* and then free text again */
};

struct tags_markers {
	struct tags_marker m[TAGS_MARKERS];
	uint32_t n;
};

/* Refuse; returns -1. */
__attribute__((format(printf, 4, 5))) int32_t tags_fail(struct tags *t, int code, const struct tags_place *at,
                                                        const char *format, ...);

/* What another compiler said of a part; returns -1. */
int32_t tags_pass_on(struct tags *t, const struct tags_place *at, const struct grammar_error *e);

/* The JSON pointer of a place.  Returns its length. */
size_t tags_place_text(char *out, size_t cap, const struct tags_place *at);

/* ---- members of a format: fields.c.  An error is in t->e ---- */

/* Refuse a member that is not among `known`, which are separated by blanks. */
bool tags_only(struct tags *t, json_t *f, const char *known, const struct tags_place *at);
json_t *tags_field(struct tags *t, json_t *f, const char *key, json_type type, const struct tags_place *at);
/* Optional: true, false or null; a count, `none` if it is absent or null. */
bool tags_flag(struct tags *t, json_t *f, const char *key, const struct tags_place *at);
uint32_t tags_count(struct tags *t, json_t *f, const char *key, uint32_t none, const struct tags_place *at);
/* A token by its number or spelling, or -1; and the ids of an optional list: their number. */
int32_t tags_token(struct tags *t, const json_t *v, const struct tags_place *at);
uint32_t tags_tokens(struct tags *t, json_t *f, const char *key, int32_t ids[TAGS_LIST],
                     const struct tags_place *at);
bool tags_is_text(struct tags *t, const json_t *v, const char *what, const struct tags_place *at);
uint32_t tags_excludes(struct tags *t, json_t *f, const struct tags_place *at); /* an expression */

/* ---- formats: tags.c, dispatch.c.  end: the markers that follow directly.  NULL: any other
 * format follows; no markers: the answer ends ---- */

int32_t tags_format(struct tags *t, json_t *f, const struct tags_markers *end, const struct tags_place *at);
int32_t tags_end(struct tags *t, const struct tags_markers *end); /* any of the markers; -1: none */
int32_t tags_ended(struct tags *t, int32_t symbol, const struct tags_markers *end);
int32_t tags_tag(struct tags *t, json_t *tag, int32_t begin, const struct tags_place *at);
int32_t tags_any_tag(struct tags *t, json_t *list, const struct tags_place *at);
json_t *tags_list(struct tags *t, json_t *f, const struct tags_place *at);
json_t *tags_token_field(const json_t *v); /* of {"type": "token", "token": ..}; or NULL */
int32_t tags_triggered(struct tags *t, json_t *f, bool tokens, const struct tags_markers *end,
                       const struct tags_place *at);
int32_t tags_rules(struct tags *t, json_t *f, bool tokens, const struct tags_markers *end,
                   const struct tags_place *at);

/* ---- symbols ---- */

/* Symbols: all of n in a row, and any one of n. */
int32_t tags_all(struct tags *t, const int32_t *symbol, uint32_t n);
int32_t tags_any(struct tags *t, const int32_t *symbol, uint32_t n);

/* The symbol of a string; special tokens in it by their ids. */
int32_t tags_string(struct tags *t, const char *s, size_t n, const struct tags_place *at);

/* Add a string or a token to markers. */
void tags_mark(struct tags *t, struct tags_markers *k, const char *s, size_t n, const struct tags_place *at);
void tags_mark_token(struct tags *t, struct tags_markers *k, int32_t id, const struct tags_place *at);

/* What follows a format: one of its markers, any other format, or the end of the answer. */
enum tags_after { TAGS_MARKER, TAGS_ANY, TAGS_LAST };

static inline bool tags_marked(const struct tags_markers *end)
{
	return end && end->n;
}

static inline enum tags_after tags_after(const struct tags_markers *end)
{
	return !end ? TAGS_ANY : end->n ? TAGS_MARKER : TAGS_LAST;
}

/* Free text without any of `excludes` (an expression, or REGEX_NONE) and of at most max_chars characters, up
 * to and with a marker of k, and on as the marker says.  It needs a marker only if after is TAGS_MARKER. */
int32_t tags_free(struct tags *t, const struct tags_markers *k, uint32_t excludes, uint32_t max_chars,
                  enum tags_after after);

/* Any tokens but these, up to and with a marker of k, all of which begin with a token. */
int32_t tags_free_tokens(struct tags *t, const struct tags_markers *k, const int32_t *ids, uint32_t n,
                         enum tags_after after);

/* Arguments between markers, by an object schema: xml.c. */
int32_t tags_xml(struct tags *t, json_t *schema, const char *style, bool any_order,
                 const struct tags_place *at);

#endif
