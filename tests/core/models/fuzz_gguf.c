/* LINK: core/models/gguf.c core/instance/refuse.c */
/* fuzz_gguf.c - any bytes give a table or an error sentence; everything in a table can be read. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/models/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static volatile uint8_t sink;

static void touch(const void *p, uint64_t n)
{
	const uint8_t *b = p;

	if (n)
		sink = b[0] ^ b[n - 1];
}

/* The first two bytes say how much of the file is here, so that -E2BIG is covered. */
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	uint64_t file = n < 2 ? 0 : n - 2 + (p[0] & 1 ? (uint64_t)p[1] << 4 : 0);
	struct gguf_string s;
	char err[300] = "";
	struct gguf *g;

	if (n < 2)
		return 0;
	if (gguf_parse(&g, p + 2, n - 2, file, err, sizeof(err)) != 0)
		return 0;
	for (uint64_t i = 0; i < g->n_values; i++) {
		const struct gguf_value *v = &g->value[i];
		const uint8_t *at = v->data;

		touch(v->key.s, v->key.n);
		touch(v->data, v->bytes);
		if (v->type == GGUF_ARRAY && v->item == GGUF_STRING)
			while (gguf_next_string(v, &at, &s))
				touch(s.s, s.n);
	}
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		const struct gguf_tensor *t = &g->tensor[i];

		touch(t->name.s, t->name.n);
		if (t->offset > file || t->bytes > file - t->offset)
			abort();
	}
	gguf_free(g);
	return 0;
}
