/* vocab.h - the tokens of a model: the spelling of each, the bytes (its piece) it stands for, and the
 * maps from both back to its id.
 *
 * Byte-level vocabularies spell a byte as a printable character (GPT-2's table: 'A' is A, a
 * space is U+0120).  So a spelling is text, although the piece may be half a character.
 * SentencePiece vocabularies are of characters: they spell a space as U+2581, and a byte that no other
 * token can make as <0x0A>.
 */
#ifndef VOCAB_H
#define VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {                       /* kinds of a token: a bit set */
	VOCAB_ADDED = 1,         /* found in text by its spelling, before merging */
	VOCAB_SPECIAL = 2,       /* control: never made from a user's text, skipped in answers */
	VOCAB_RAW = 4,           /* not byte-level: the piece is the spelling itself */
	VOCAB_THERE = 8,         /* the id is in use */
	VOCAB_BYTE = 16,         /* SentencePiece: its piece is one byte; only used where no token fits */
};

struct vocab_span { uint32_t at, n; };             /* in vocab.chars */
struct vocab_slot { uint32_t hash; int32_t id; };  /* id < 0: empty */
struct vocab_map  { struct vocab_slot *slot; uint32_t mask; };

struct vocab {
	int32_t n, cap;              /* ids are 0 .. n-1 */
	int32_t n_there;             /* ids in use */
	uint8_t *kind;               /* [cap] */
	struct vocab_span *spelling; /* [cap] */
	struct vocab_span *piece;    /* [cap] */
	char *chars;
	size_t n_chars, chars_cap;
	size_t longest;              /* the most bytes of text that one piece gives */
	struct vocab_map by_spelling, by_piece;
	int32_t byte[256];           /* the token of each byte; -1 = the vocabulary has none */
	bool characters;             /* SentencePiece; set before vocab_seal */
	bool words;                  /* WordPiece, likewise */
};

void vocab_init(struct vocab *v);
void vocab_free(struct vocab *v);

/* Define an id; a second call for it replaces its kind.  0, -ENOMEM, or -EINVAL: the id is negative or
 * above 2^24, it has another spelling already, or the spelling is too long. */
int  vocab_set(struct vocab *v, int64_t id, const char *spelling, size_t n, unsigned kind);

/* Build pieces and maps, after the last vocab_set.  0 or -ENOMEM. */
int  vocab_seal(struct vocab *v);

int32_t vocab_by_spelling(const struct vocab *v, const char *s, size_t n); /* or -1 */
int32_t vocab_by_piece(const struct vocab *v, const char *s, size_t n);    /* of ordinary tokens; or -1 */

/* U+2581 becomes a space.  out has room for n bytes and may be s; returns the length. */
size_t vocab_spaces(const char *s, size_t n, char *out);

#endif
