/* trie.h - the bytes of a vocabulary's ordinary tokens as a flat tree, made once per vocabulary.
 *
 * Nodes stand in depth-first order: the children of node i begin at i + 1, and the next node that is not
 * below it is i + size.  Special tokens are not in it, so text never becomes one.  Nor are tokens of no
 * bytes, and of more than TRIE_DEPTH bytes: a grammar never allows those.
 */
#ifndef TRIE_H
#define TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vocab;

#define TRIE_NONE  0xffffffu         /* no token ends here */
#define TRIE_DEPTH 255

struct trie_node {
	uint32_t byte : 8, token : 24;
	uint32_t depth : 8, size : 24;       /* depth of the first byte: 1; size: nodes of the subtree */
};

struct trie {
	struct trie_node *node;
	uint32_t n;
	uint32_t longest;            /* bytes of the longest token in it */
	int32_t *twin;               /* [vocab] the next token of the same bytes, or -1 */
	bool twins;                  /* any of them is not -1 */
};

/* What masks need of a vocabulary.  A plain token is whole characters that stand for themselves in a JSON
 * string: no quote, backslash, control character or part of a character. */
#define PLAIN_MOST 24                /* characters; a longer token is not called plain */

struct tokens {
	struct trie all;
	struct trie rest;            /* of the tokens that are not plain */
	uint32_t *in_all;            /* [rest.n] the node of `all` with the same bytes */
	uint32_t words;              /* of a bit set of ids */
	uint32_t *plain;             /* [PLAIN_MOST + 1][words] plain tokens of at most so many characters */
};

/* vocab: ids are below it.  0; -ENOMEM, also if the tree would have 2^24 nodes. */
int  tokens_create(struct tokens *t, const struct vocab *v, uint32_t vocab);
void tokens_free(struct tokens *t);

/* The number of bytes of a token that stands in the tree, else 0; *s points to them. */
uint32_t trie_bytes(const struct vocab *v, int32_t id, const uint8_t **s);

#endif
