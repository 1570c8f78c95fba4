/* added.h - tokens that are found in text by their spelling, before any other step: the control
 * tokens of a chat, and words added to a vocabulary after training.
 */
#ifndef ADDED_H
#define ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
	const char *s;               /* not owned */
	uint32_t n;
	int32_t id;
	bool special;                /* found only if the caller allows it */
	bool lstrip, rstrip;         /* includes the white space on that side */
};

struct added {
	struct added_token *token;   /* [n] sorted by bytes, after added_seal */
	uint32_t n, cap;
	bool first[256];             /* some token begins with this byte */
};

int  added_put(struct added *a, const struct added_token *t);  /* 0 or -ENOMEM */
void added_seal(struct added *a);
void added_free(struct added *a);

/* The first token in s at or after byte `at`, the longest if several begin there; NULL: none.
 * It covers the bytes [*from, *to). */
const struct added_token *added_find(const struct added *a, const char *s, size_t n, size_t at,
                                     bool special, size_t *from, size_t *to);

#endif
