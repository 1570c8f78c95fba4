/* charsmap.h - SentencePiece's table of normal forms ("precompiled_charsmap"): what runs of bytes become.
 *
 * The table is a double array of bytes over a list of texts, as sentencepiece and darts-clone write it.
 * Two ways to use it are known, and they differ.  sentencepiece and llama.cpp replace the longest entry
 * that begins at a place.  Hugging Face's tokenizers look at a whole cluster of characters, and replace
 * all of it by the shortest entry that it begins with; if there is none, they look at its characters one
 * by one.
 */
#ifndef CHARSMAP_H
#define CHARSMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct charsmap {
	uint32_t *unit;              /* the double array */
	uint32_t n;
	char *text;                  /* what entries become: NUL ends each, and the last */
	uint32_t n_text;
	bool clusters;               /* as Hugging Face's tokenizers use it */
};

#define CHARSMAP_MAX (16u << 20)     /* bytes of a table; that of NFKC has 240,000 */

/* A copy of the n bytes of a table.  0, -ENOMEM, or -EINVAL: they are none. */
int  charsmap_create(struct charsmap *m, const void *table, size_t n);
void charsmap_free(struct charsmap *m);

/* s is valid UTF-8.  *out is malloc'ed.  0, -ENOMEM, or -E2BIG: the text grows beyond 16 times its length. */
int  charsmap_apply(const struct charsmap *m, const char *s, size_t n, char **out, size_t *out_n);

#endif
