/* grammar_rig.h - a vocabulary of single bytes and some special tokens, and whether a text keeps to a grammar. */
#ifndef GRAMMAR_RIG_H
#define GRAMMAR_RIG_H

#include <stdio.h>

#include "tests/rig/guide_rig.h"

/* Ids: 0 .. 254 are the bytes 1 .. 255; then these; the last one ends an answer. */
static const char *const rig_special[] = { "<think>", "</think>", "<tool>", "<end>" };

#define RIG_BYTES 255
#define RIG_END   (RIG_BYTES + 3)

static inline struct sr_text *rig_bytes_text(void)
{
	static char bytes[RIG_BYTES][2];
	const char *words[RIG_END + 1];

	for (int i = 0; i < RIG_BYTES; i++) {
		bytes[i][0] = (char)(i + 1);
		words[i] = bytes[i];
	}
	memcpy(words + RIG_BYTES, rig_special, sizeof(rig_special));
	return rig_text(words, RIG_END + 1);
}

static inline void rig_bytes_close(struct sr_text *t)
{
	sr_text_close(t);
}

/* The next id of a text: `\1` before it says that a special token is meant. */
static inline int32_t rig_next_id(const char **s)
{
	if (**s != 1)
		return (uint8_t) * (*s)++ - 1;
	for (int i = 0; i < 4; i++)
		if (!strncmp(*s + 1, rig_special[i], strlen(rig_special[i]))) {
			*s += 1 + strlen(rig_special[i]);
			return RIG_BYTES + i;
		}
	abort();
}

/* Bytes of text that the guide takes, or -1: all of it, and the answer may end there. */
static inline int rig_keeps(struct sr_grammar *g, const char *text)
{
	const char *s = text;
	struct sr_guide *u;
	int at = -1;

	if (sr_guide_open(&u, g))
		abort();
	while (*s && at < 0) {
		const char *before = s;

		if (sr_guide_take(u, rig_next_id(&s)))
			at = (int)(before - text);
	}
	if (at < 0 && sr_guide_take(u, RIG_END))
		at = (int)(s - text);
	sr_guide_close(u);
	return at;
}

#endif
