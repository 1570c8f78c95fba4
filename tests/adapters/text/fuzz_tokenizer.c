/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* fuzz_tokenizer.c - any bytes as text through tokenizers of every family, and back.
 *
 * The vocabulary is made here: all bytes and a few merges.  What comes back must be the text
 * with U+FFFD for what was no UTF-8, whatever the pieces were.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/text.h"
#include "adapters/text/unicode/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct sr_text *make(const char *pre)
{
	static const char *const merges[][2] = { { "t", "h" }, { "th", "e" }, { "a", "a" }, { "aa", "aa" }, { "\u0120", "\u0120" } };
	struct sr_text *t = calloc(1, sizeof(*t));
	struct added_token end = { "<|end|>", 7, 300, true, false, false };
	char s[8], err[200];

	vocab_init(&t->vocab);
	for (int b = 0, more = 256; b < 256; b++) {
		int itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae);

		vocab_set(&t->vocab, b, s, utf8_put((uint32_t)(itself ? b : more++), s), 0);
	}
	for (int i = 0; i < 5; i++) {
		snprintf(s, sizeof(s), "%s%s", merges[i][0], merges[i][1]);
		vocab_set(&t->vocab, 256 + i, s, strlen(s), 0);
	}
	vocab_set(&t->vocab, 300, "<|end|>", 7, VOCAB_ADDED | VOCAB_SPECIAL);
	if (vocab_seal(&t->vocab) || bpe_create(&t->bpe, &t->vocab, 5) || added_put(&t->before, &end) ||
	    pre_named(&t->pre, pre, strlen(pre), err, sizeof(err)))
		abort();
	for (int i = 0; i < 5; i++)
		if (bpe_add(&t->bpe, merges[i][0], strlen(merges[i][0]), merges[i][1], strlen(merges[i][1])))
			abort();
	added_seal(&t->before);
	t->info.vocab = t->vocab.n;
	return t;
}

/* A SentencePiece vocabulary: tokens over spaces, of bytes, and of two scripts. */
static struct sr_text *make_characters(void)
{
	static const char *const words[] = { " ", "a", "b", "ab", " a", "a b", "  ", "\u00e9", "b\u00e9", "\n\n", "\n" };
	struct sr_text *t = calloc(1, sizeof(*t));
	float score[256 + 11];
	char s[8];

	vocab_init(&t->vocab);
	t->vocab.characters = true;
	for (int i = 0; i < 256 + 11; i++) {
		score[i] = (float)-(i / 2);
		if (i < 256)
			snprintf(s, sizeof(s), "<0x%02X>", i);
		else
			snprintf(s, sizeof(s), "%s", words[i - 256]);
		vocab_set(&t->vocab, i, s, strlen(s), 0);
	}
	if (vocab_seal(&t->vocab) || bpe_create_scored(&t->bpe, &t->vocab, score) ||
	    text_seal_pieces(t, s, sizeof(s)))
		abort();
	t->info.vocab = t->vocab.n;
	return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const char *const names[] = { "gpt-2", "starcoder", "llama3", "qwen2" };
	static struct sr_text *t[5];
	const char *s = (const char *)data;
	int32_t *ids = malloc((n * 3 + 1) * sizeof(*ids));
	size_t want_n, cap = n * 9 + 16;
	char *want = utf8_repair(s, n, &want_n), *out = malloc(cap);
	int64_t k, len;

	for (int i = 0; i < 5; i++) {
		if (!t[i])
			t[i] = i < 4 ? make(names[i]) : make_characters();
		k = sr_text_encode(t[i], s, n, i % 2 ? SR_TEXT_SPECIAL_PARSE : 0, ids, n * 3 + 1, 0);
		if (k < 0 || k > (int64_t)n * 3)
			abort();
		len = sr_text_decode(t[i], ids, (size_t)k, false, out, cap);
		if (i == 4)                      /* U+2581 is a space there */
			want_n = vocab_spaces(want, want_n, want);
		if (len != (int64_t)want_n || memcmp(out, want, want_n))
			abort();
	}
	free(ids);
	free(want);
	free(out);
	return 0;
}
