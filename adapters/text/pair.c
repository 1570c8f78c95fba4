/* pair.c - two texts as one prompt, as the model's tokenizer pairs them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

struct half { int32_t *id; int64_t n; };

/* The ids of one text: all are counted, at most `most` are kept. */
static int encode_half(const struct sr_text *t, const char *s, size_t n, int flags, size_t most,
                       struct half *out)
{
	size_t cap = n / 2 + 16;

	for (;;) {
		int32_t *id;

		cap = most && cap > most ? most : cap;
		id = realloc(out->id, (cap + 1) * sizeof(*id));
		if (!id)
			return -ENOMEM;
		out->id = id;
		out->n = sr_text_encode(t, s, n, flags & ~SR_TEXT_SPECIAL_ADD, id, cap, 0);
		if (out->n < 0)
			return (int)out->n;
		if ((size_t)out->n <= cap || (most && cap == most))
			return 0;
		cap = (size_t)out->n;
	}
}

/* transformers' longest_first: the longer text is cut down to the shorter, then both alike. */
static void cut(struct half *a, struct half *b, int64_t most)
{
	struct half *low = a->n > b->n ? b : a, *high = low == a ? b : a;

	if (a->n + b->n <= most)
		return;
	high->n = low->n > most ? low->n : low->n > most - low->n ? low->n : most - low->n;
	if (low->n + high->n <= most)
		return;
	low->n = most / 2;
	high->n = most - low->n;
}

struct ids { int32_t *id; size_t cap; int64_t n; };

static void put(struct ids *o, const int32_t *id, int64_t n)
{
	for (int64_t i = 0; i < n; i++, o->n++)
		if ((size_t)o->n < o->cap)
			o->id[o->n] = id[i];
}

int64_t sr_text_encode_pair(const struct sr_text *t, const char *a, size_t n_a, const char *b, size_t n_b,
                            int flags, size_t most, int32_t *ids, size_t cap, uint32_t *second)
{
	const size_t special = (size_t)(t->n_prefix + t->n_between + t->n_suffix);
	struct half first = { 0 }, other = { 0 };
	struct ids out = { ids, ids ? cap : 0, 0 };
	int rc;

	*second = 0;
	if (t->no_pairs)
		return -ENOTSUP;
	if (most && most < special)
		return -EINVAL;
	rc = encode_half(t, a, n_a, flags, most, &first);
	if (!rc)
		rc = encode_half(t, b, n_b, flags, most, &other);
	if (!rc && most)
		cut(&first, &other, (int64_t)(most - special));
	if (!rc) {
		put(&out, t->prefix, t->n_prefix);
		put(&out, first.id, first.n);
		if (t->pair_types)
			*second = (uint32_t)(out.n + t->n_between_first);
		put(&out, t->between, t->n_between);
		put(&out, other.id, other.n);
		put(&out, t->suffix, t->n_suffix);
	}
	free(first.id);
	free(other.id);
	return rc ? rc : out.n;
}
