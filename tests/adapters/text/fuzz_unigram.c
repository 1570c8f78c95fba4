/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* fuzz_unigram.c - any bytes as a table of normal forms, then as text, in both ways to use it; what comes out goes
 * through a vocabulary of unigrams, and back. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/text.h"
#include "adapters/text/unicode/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct sr_text *make(void)
{
	static const char *const words[] = { "\u2581", "a", "b", "ab", "\u2581a", "aba", "\u00e9", "b\u00e9", "\n\n", "\n" };
	struct sr_text *t = calloc(1, sizeof(*t));
	double *score = calloc(12, sizeof(*score));
	char err[200];

	vocab_init(&t->vocab);
	t->vocab.characters = true;
	vocab_set(&t->vocab, 0, "<unk>", 5, VOCAB_ADDED | VOCAB_SPECIAL);
	for (int i = 0; i < 10; i++) {
		score[i + 1] = -i - 0.1 * i * i;
		vocab_set(&t->vocab, i + 1, words[i], strlen(words[i]), 0);
	}
	if (vocab_seal(&t->vocab) || unigram_create(&t->unigram, &t->vocab, score, -20, 0) ||
	    text_seal_unigram(t, err, sizeof(err)))
		abort();
	t->info.vocab = t->vocab.n;
	return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct sr_text *t;
	size_t cut = n ? data[0] * 8u : 0, out_n, most;
	int32_t *ids;

	if (!t)
		t = make();
	if (n < 2 || cut > n - 1)
		return 0;
	t->step[0] = charsmap_create(&t->charsmap, data + 1, cut) ? 0 : STEP_CHARSMAP;
	most = n * 40;
	ids = malloc(most * sizeof(*ids));
	for (int way = 0; way < 6; way++) {
		char *want = utf8_repair((const char *)data + 1 + cut, n - 1 - cut, &out_n);
		int64_t k;

		t->charsmap.clusters = way % 2;
		t->white = (enum text_white)(way / 2);
		t->lead = way ? LEAD_UNLESS_SPACE : LEAD_NONE;
		k = sr_text_encode(t, want, out_n, 0, ids, most, 0);
		if (k > (int64_t)most || (k < 0 && k != -E2BIG))
			abort();
		for (int64_t i = 0; i < k; i++)
			if (ids[i] < 0 || ids[i] >= t->vocab.n)
				abort();
		free(want);
	}
	free(ids);
	charsmap_free(&t->charsmap);
	return 0;
}
