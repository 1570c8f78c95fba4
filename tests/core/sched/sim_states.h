/* sim_states.h - the simulator's models whose layers have a state.  Included once by test_sim.c.  The null device
 * checks that each row continues the state of the tokens before it, and that no row writes what another one uses.
 */
#ifndef SIM_STATES_H
#define SIM_STATES_H

static struct { uint64_t few, cached, preempted, kept, hit, evicted; } states;

/* Draw how many there are: from one alone to more than the sequences need. */
static void make_states(void)
{
	struct sr_limits *l = &sim.cfg.limits;

	l->n_states = below(4) ? between(1, 2 * l->slots) : between(2 * l->slots, 60);
	l->n_host_blocks = l->copies = sim.cfg.knobs.copies = 0;
	l->cmds += 2 * (l->rows + 1);
	states.few += l->n_states < l->slots;
}

static void count_states(const struct kv_stats *k, uint64_t cached_tokens)
{
	assert(k->n_states_free + k->n_states_cached == sim.cfg.limits.n_states);
	states.cached += cached_tokens;
	states.preempted += sim.n.preemptions;
	states.kept += k->states_kept;
	states.hit += k->states_hit;
	states.evicted += k->states_evicted;
}

static void say_states(uint64_t n)
{
	printf("%ju seeds with states: %ju with fewer than slots; ends: %ju stop, %ju length; snapshots kept %ju, hit %ju, "
	       "evicted %ju; tokens cached %ju, preemptions %ju\n", n, states.few, total_ends[0], total_ends[1], states.kept,
	       states.hit, states.evicted, states.cached, states.preempted);
	if (n >= 50)
		assert_true(states.few > 5 && states.kept > 10000 && states.hit > 500 && states.evicted > 1000 &&
			    states.cached > 10000 && states.preempted > 100 && total_ends[0] > 100 && total_ends[1] > 100);
}

#endif
