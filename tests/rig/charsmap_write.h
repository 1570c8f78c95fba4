/* charsmap_write.h - a table of normal forms as sentencepiece writes it, for tests: a double array of few entries. */
#ifndef CHARSMAP_WRITE_H
#define CHARSMAP_WRITE_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define CHARSMAP_UNITS 4096

struct charsmap_entry { const char *from, *to; };

struct charsmap_table {
	uint8_t bytes[4 + 4 * CHARSMAP_UNITS + 1024];
	size_t n;
	uint32_t unit[CHARSMAP_UNITS];
	bool used[CHARSMAP_UNITS], based[CHARSMAP_UNITS]; /* units; bases of nodes */
	char text[1024];
	uint32_t n_text;
};

/* Place the children of the node at `at`: entries [lo, hi) agree in their first `depth` bytes; sorted. */
static inline void charsmap_place(struct charsmap_table *t, const struct charsmap_entry *e, int lo, int hi, size_t depth,
                                  uint32_t at)
{
	uint32_t base = 1;

	for (bool fits = false; !fits; base += !fits) {
		assert(base < CHARSMAP_UNITS - 256);
		fits = !t->based[base];
		for (int i = lo; i < hi; i++)
			fits &= !t->used[base ^ (uint8_t)e[i].from[depth]];
	}
	t->based[base] = true;
	t->unit[at] |= (at ^ base) << 10;
	for (int i = lo; i < hi; i++)
		t->used[base ^ (uint8_t)e[i].from[depth]] = true;
	for (int i = lo, k; i < hi; i = k) {
		uint8_t c = (uint8_t)e[i].from[depth];

		for (k = i + 1; k < hi && (uint8_t)e[k].from[depth] == c; k++)
			;
		if (!c) {                      /* an entry ends here: what it becomes */
			t->unit[at] |= 1u << 8;
			t->unit[base] = 1u << 31 | t->n_text;
			strcpy(t->text + t->n_text, e[i].to);
			t->n_text += (uint32_t)strlen(e[i].to) + 1;
			continue;
		}
		t->unit[base ^ c] = c;
		charsmap_place(t, e, i, k, depth + 1, base ^ c);
	}
}

/* The entries must be sorted by the bytes of .from. */
static inline void charsmap_write(struct charsmap_table *t, const struct charsmap_entry *e, int n)
{
	uint32_t bytes = 4 * CHARSMAP_UNITS;

	memset(t, 0, sizeof(*t));
	t->used[0] = true;
	charsmap_place(t, e, 0, n, 0, 0);
	memcpy(t->bytes, &bytes, 4);
	memcpy(t->bytes + 4, t->unit, bytes);
	memcpy(t->bytes + 4 + bytes, t->text, t->n_text);
	t->n = 4 + bytes + t->n_text;
}

#endif
