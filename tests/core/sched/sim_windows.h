/* sim_windows.h - the simulator's models whose layers come in groups.  Included once by test_sim.c.  The null
 * device checks what each row's windows hold.
 */
#ifndef SIM_WINDOWS_H
#define SIM_WINDOWS_H

static struct { uint64_t models, without_full, slid, cached, evicted, in, out; } windows;

/* Draw groups: one to four, the first with a window in one model of five.  The device looks for the token before
 * a row's in the first group, so its window is not 1. */
static void make_windows(void)
{
	struct sr_limits *l = &sim.cfg.limits;
	struct kv_config kv = { .block_tokens = l->block_tokens };
	int32_t least;

	l->n_groups = kv.n_groups = between(1, 4);
	for (int32_t g = 0; g < l->n_groups; g++)
		if (g > 0 || l->n_groups == 1 || below(5) == 0)
			l->group[g].window = kv.group[g].window = below(4) ? between(g == 0 ? 2 : 1, 70) : between(70, 2 * PROMPT);
	if (below(2)) {                        /* windows are copied at once, or not at all */
		l->n_host_blocks *= l->n_groups;
		l->copies = sim.cfg.knobs.copies = l->copies * between(1, 12);
	} else {
		l->n_host_blocks = 0;
	}
	l->n_blocks += (l->n_groups - 1) * between(8, 30);
	least = kv_most(&kv, sim.cfg.context - 1, l->tokens);
	if (l->n_blocks < least)
		l->n_blocks = least;
	l->cmds += (l->n_groups - 1) * (l->rows + 1);
	l->words += (l->n_groups - 1) * (l->rows + l->seq_blocks);
	windows.models++;
	windows.without_full += l->group[0].window > 0;
}

static void count_windows(const struct kv_stats *k, uint64_t cached_tokens)
{
	windows.slid += k->slid;
	windows.cached += cached_tokens;
	windows.evicted += k->evictions;
	windows.in += k->copies_in;
	windows.out += k->copies_out;
}

static void say_windows(uint64_t n)
{
	printf("%ju seeds with windows: %ju without a full group; ends: %ju stop, %ju length; blocks that left a window "
	       "%ju, evictions %ju, tokens cached %ju, copies in %ju, out %ju\n", n, windows.without_full, total_ends[0], total_ends[1],
	       windows.slid, windows.evicted, windows.cached, windows.in, windows.out);
	if (n >= 100)
		assert_true(windows.without_full > 10 && windows.slid > 10000 && windows.evicted > 1000 &&
			    windows.cached > 1000 && windows.in > 1000 && windows.out > 1000 && total_ends[0] > 100 && total_ends[1] > 100);
}

#endif
