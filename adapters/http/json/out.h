/* out.h - a growing byte buffer, and JSON written directly into it.
 *
 * It is used for every token, so there is no tree: the caller writes the punctuation.  Strings are escaped
 * as serde_json and Python's json.dumps(ensure_ascii=False) escape them.  Bytes that are not UTF-8 become
 * U+FFFD.  When memory is short, `failed` stays set and nothing more is added; check it once, at the end.
 */
#ifndef OUT_H
#define OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct out {
	char *p;
	size_t n, cap;
	bool failed;
};

bool out_grow(struct out *o, size_t n);           /* for out_room() */

/* Is there room for n more bytes at p + n?  This and out_bytes() are inline: an event makes some 40 calls. */
static inline bool out_room(struct out *o, size_t n)
{
	return !o->failed && (n <= o->cap - o->n || out_grow(o, n));
}

static inline void out_bytes(struct out *o, const void *p, size_t n)
{
	if (n && out_room(o, n)) {
		memcpy(o->p + o->n, p, n);
		o->n += n;
	}
}

void out_free(struct out *o);
void out_reset(struct out *o);                    /* empty, memory kept */
void out_str(struct out *o, const char *s);
void out_fmt(struct out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void out_int(struct out *o, int64_t v);

void out_json(struct out *o, const char *s, size_t n);    /* "quoted and escaped" */
void out_json_str(struct out *o, const char *s);          /* NULL gives null */
void out_escaped(struct out *o, const char *s, size_t n); /* the same without quotes */
/* The shortest decimal that reads back as v, like Python's repr: 1.0, -0.26282957196235657. */
void out_double(struct out *o, double v);
void out_ids(struct out *o, const int32_t *id, size_t n); /* [1,2,3] */

/* Length of the UTF-8 character that begins s[0..n), or 0 if no character begins there. */
size_t utf8_length(const char *s, size_t n);
size_t utf8_count(const char *s, size_t n);       /* code points; each bad byte counts as one */

#endif
