/* quantize_pieces.c - see quantize_pieces.h.  Source: how transformers converts SentencePiece models. */
#include "quantize_pieces.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TYPE_NORMAL = 1 };

/* A piece s cut behind `left` bytes. */
struct merge {
	const char *s;
	uint32_t n, left;              /* bytes */
	uint32_t left_chars, right_chars;
	float score;
	uint32_t order;                /* among equals the first */
};
struct merges { struct merge *all; size_t n, cap; };

static uint32_t chars(const char *s, uint32_t n)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < n; i++)
		count += ((uint8_t)s[i] & 0xc0) != 0x80;
	return count;
}

static bool add(struct merges *m, struct merge one)
{
	if (m->n == m->cap) {
		size_t cap = m->cap ? 2 * m->cap : 4096;
		struct merge *more = realloc(m->all, cap * sizeof(*more));

		if (!more)
			return false;
		m->all = more;
		m->cap = cap;
	}
	one.order = (uint32_t)m->n;
	m->all[m->n++] = one;
	return true;
}

static bool cut(struct merges *m, const json_t *vocab, const struct gguf_string *s, float score)
{
	for (uint32_t at = 1; at < s->n; at++) {
		uint32_t n = (uint32_t)s->n;

		if (((uint8_t)s->s[at] & 0xc0) == 0x80 || !json_object_getn(vocab, s->s, at) ||
		    !json_object_getn(vocab, s->s + at, n - at))
			continue;
		if (!add(m, (struct merge){ s->s, n, at, chars(s->s, at), chars(s->s + at, n - at), score, 0 }))
			return false;
	}
	return true;
}

static int by_score(const void *a, const void *b)
{
	const struct merge *x = a, *y = b;

	if (x->score != y->score)
		return x->score > y->score ? -1 : 1;
	if (x->left_chars != y->left_chars)
		return x->left_chars > y->left_chars ? -1 : 1;
	if (x->right_chars != y->right_chars)
		return x->right_chars > y->right_chars ? -1 : 1;
	return x->order < y->order ? -1 : 1;
}

static json_t *list_of(const struct merges *m)
{
	json_t *all = json_array();

	for (size_t i = 0; all && i < m->n; i++) {
		const struct merge *one = &m->all[i];

		if (json_array_append_new(all, json_pack("[o, o]", json_stringn(one->s, one->left),
		                                         json_stringn(one->s + one->left, one->n - one->left)))) {
			json_decref(all);
			return NULL;
		}
	}
	return all;
}

json_t *quantize_pieces_merges(const struct gguf *g, const json_t *vocab)
{
	const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.tokens");
	const struct gguf_value *scores = gguf_find(g, "tokenizer.ggml.scores");
	const struct gguf_value *types = gguf_find(g, "tokenizer.ggml.token_type");
	const uint8_t *at = v->data;
	struct merges m = { 0 };
	struct gguf_string s;
	json_t *list;
	bool ok = scores && scores->type == GGUF_ARRAY && scores->item == GGUF_F32 && scores->n == v->n;

	for (uint64_t i = 0; ok && gguf_next_string(v, &at, &s); i++) {
		int32_t type = TYPE_NORMAL;
		float score;

		memcpy(&score, scores->data + 4 * i, 4);
		if (types && types->type == GGUF_ARRAY && types->item == GGUF_I32 && i < types->n)
			memcpy(&type, types->data + 4 * i, 4);
		if (type == TYPE_NORMAL)
			ok = cut(&m, vocab, &s, score);
	}
	if (m.n)
		qsort(m.all, m.n, sizeof(*m.all), by_score);
	list = ok ? list_of(&m) : NULL;
	free(m.all);
	return list;
}
