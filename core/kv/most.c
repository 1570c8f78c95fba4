/* most.c - how many blocks a sequence may hold.  Functions of their arguments; the memory plan calls them, too. */
#include "core/kv/impl.h"

int32_t most_reach(const struct kv_config *c, int32_t group)
{
	int32_t w = c->group[group].window;

	return w > 0 ? (int32_t)(((int64_t)w - 1 + c->block_tokens - 1) / c->block_tokens) : 0;
}

int32_t most_of_window(const struct kv_config *c, int32_t group, int32_t n, int32_t step)
{
	int64_t B = c->block_tokens, all = (n + B - 1) / B, most = most_reach(c, group) + 2 + (step + B - 1) / B;

	return (int32_t)(most < all ? most : all);
}

int32_t kv_most(const struct kv_config *cfg, int32_t n, int32_t step)
{
	int64_t sum = 0, all = ((int64_t)n + cfg->block_tokens - 1) / cfg->block_tokens;

	for (int32_t g = 0; g == 0 || g < cfg->n_groups; g++)
		sum += cfg->group[g].window > 0 ? most_of_window(cfg, g, n, step) : all;
	return sum < INT32_MAX ? (int32_t)sum : INT32_MAX;
}
