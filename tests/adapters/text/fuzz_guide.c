/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* fuzz_guide.c - bytes decide on a grammar and on answers to it: no dead end, and a mask is what is taken. */
#include <stdint.h>

#include "tests/rig/world_rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct sr_text *t;
	static struct world w;
	struct sr_grammar *g;
	long over = 0;

	if (!t)
		t = rig_text(words, N_WORDS);
	fuzz = data;
	n_fuzz = n;
	random_world(&w);
	g = open_world(&w, t);
	while (g && n_fuzz)
		world_walk(g, t, (int)n_fuzz + 8, &over);
	sr_grammar_close(g);
	return 0;
}
