/* special.c - see special.h. */
#include <stdlib.h>

#include "special.h"

int32_t special_id(const struct grammar *g, const char *s, size_t n)
{
	int32_t id = sr_text_id(grammar_text(g), s, n);

	return id < 0 ? -1 : id;
}

static bool among(const int32_t *ids, uint32_t n, int32_t id)
{
	for (uint32_t i = 0; i < n; i++)
		if (ids[i] == id)
			return true;
	return false;
}

int32_t special_except(struct grammar *g, const int32_t *ids, uint32_t n)
{
	const struct sr_text_info *info = sr_text_info(grammar_text(g));
	const struct sr_grammar_options *o = grammar_options(g);
	int32_t *rest = malloc((size_t)info->vocab * sizeof(*rest)), symbol;
	const char *piece;
	uint32_t k = 0;

	for (int32_t id = 0; rest && id < info->vocab; id++)
		if (!among(ids, n, id) && !among(info->stop, (uint32_t)info->n_stop, id) &&
		    !(o && among(o->stop, o->n_stop, id)) && sr_text_piece(grammar_text(g), id, &piece, NULL) >= 0)
			rest[k++] = id;
	symbol = rest ? grammar_token(g, rest, k) : -1;
	free(rest);
	return symbol;
}
