/* groups.c - see groups.h. */
#include "core/groups.h"

#include <string.h>

#include "core/kv/kv.h"
#include "kernels/shape.h"

#define WORTH 0.97      /* more groups must take less than this share of what fewer take */

/* Layers that look back equally far, and have a cache of their own; width: elements of a token in the widest. */
struct alike { int32_t window, n, width; };

/* Kinds by how far they look back, those that look back at everything first. */
static int32_t kinds_of(const struct sr_model *m, struct alike *out)
{
	int32_t n = 0;

	for (int32_t l = 0; l < m->n_layers; l++) {
		const struct sr_attn *kind = kind_of(m, l);
		int32_t window = shape_window(kind), width = kind->n_kv_heads * shape_kv(kind), i = 0;

		if (!has_kv(m, l))
			continue;
		while (i < n && out[i].window != window)
			i++;
		if (i == n)
			out[n++] = (struct alike){ window, 0, 1 };
		out[i].n++;
		out[i].width = width > out[i].width ? width : out[i].width;
		if (window == 0 && i > 0) {
			struct alike full = out[i];

			out[i] = out[0];
			out[0] = full;
		}
	}
	return n;
}

/* Groups of as many layers as have `room` elements of a token.  False: there are too many. */
static bool deal(struct sr_limits *l, const struct alike *kind, int32_t n_kinds, int64_t room)
{
	l->n_groups = 0;
	for (int32_t i = 0; i < n_kinds; i++)
		for (int32_t left = kind[i].n, layers = (int32_t)(room / kind[i].width); left > 0; left -= layers) {
			if (l->n_groups == SR_GROUPS_MAX)
				return false;
			l->group[l->n_groups++] = (struct sr_group){ .window = kind[i].window, .layers = layers };
		}
	return true;
}

int32_t groups_most(const struct sr_limits *l, int32_t n, int32_t step)
{
	struct kv_config c = { .block_tokens = l->block_tokens, .n_groups = l->n_groups };

	for (int32_t g = 0; g < l->n_groups; g++)
		c.group[g].window = l->group[g].window;
	return kv_most(&c, n, step);
}

int32_t groups_unit(const struct sr_limits *l)
{
	int32_t n = 0;

	for (int32_t g = 0; g < l->n_groups; g++)
		if (l->group[g].window > 0)
			n += (l->group[g].window - 1 + l->block_tokens - 1) / l->block_tokens + 1;
	return n;
}

int32_t groups_padding(const struct sr_limits *l, const struct sr_model *m)
{
	int32_t places = 0;

	for (int32_t g = 0; g < l->n_groups; g++)
		places += l->group[g].layers;
	for (int32_t i = 0; i < m->n_layers; i++)
		places -= has_kv(m, i);
	return places > 0 ? places : 0;
}

void groups_choose(struct sr_limits *l, const struct sr_model *m, int32_t context)
{
	struct alike kind[SR_KINDS];
	int32_t n_kinds = kinds_of(m, kind), all = 0, widest = 1;
	struct sr_limits best = *l, look = *l;
	double least = 0;

	for (int32_t i = 0; i < n_kinds; i++) {
		all += kind[i].n;
		least += (double)kind[i].n * kind[i].width;
		widest = kind[i].width > widest ? kind[i].width : widest;
	}
	best.n_groups = 1;
	best.group[0] = (struct sr_group){ 0 };
	least *= groups_most(&best, context, 1);
	for (int32_t layers = all; layers >= 1 && deal(&look, kind, n_kinds, (int64_t)layers * widest);
	     layers--) {
		double cost = (double)layers * widest * groups_most(&look, context, 1);

		if (cost < WORTH * least) {
			least = cost;
			best = look;
		}
	}
	l->n_groups = best.n_groups;
	memcpy(l->group, best.group, sizeof(l->group));
}
