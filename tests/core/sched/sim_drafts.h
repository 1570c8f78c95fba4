/* sim_drafts.h - guesses for the simulator.  Included once by test_sim.c.
 *
 * The null device's tokens follow from all ids before them, so words do not come again by themselves.  Most requests
 * may draw two or three ids alone: then guesses are found for every token, and many are right.
 */
#ifndef SIM_DRAFTS_H
#define SIM_DRAFTS_H

static struct { uint64_t rows, tokens, right, at[SCHED_DRAFT_MOST]; } drafted;

static void make_drafts(void)
{
	sim.cfg.drafts.most = between(1, SCHED_DRAFT_MOST);
	sim.cfg.drafts.least = between(1, 3);
	sim.cfg.drafts.longest = sim.cfg.drafts.least + between(0, 8);
	sim.cfg.limits.drafts = between(1, 40);
}

static void make_guessable(struct request *r)
{
	if (below(4))
		make_list(r, SR_LIST_ALLOW, r->allow, between(1, 3));
}

static void count_drafts(void)
{
	drafted.rows += sim.n.drafts;
	drafted.tokens += sim.n.draft_tokens;
	drafted.right += sim.n.draft_accepted;
	assert(sim.n.draft_accepted <= sim.n.draft_tokens);
	for (int k = 0; k < SCHED_DRAFT_MOST; k++) {
		drafted.at[k] += sim.n.draft_right[k];
		assert(k == 0 || sim.n.draft_right[k] <= sim.n.draft_right[k - 1]);
	}
}

static void say_drafts(uint64_t n)
{
	uint64_t right = 0;

	for (int k = 0; k < SCHED_DRAFT_MOST; k++)
		right += drafted.at[k];
	printf("%ju seeds with guesses: %ju rows, %ju guesses, %ju right, the eighth of a row %ju times; ends: %ju stop, %ju "
	       "length, %ju cancelled, %ju late\n", n, drafted.rows, drafted.tokens, drafted.right,
	       drafted.at[7], total_ends[0], total_ends[1], total_ends[2], total_ends[3]);
	assert_int_equal(right, drafted.right);
	if (n >= 50)
		assert_true(drafted.rows > 3000 && drafted.right > 2000 && drafted.tokens > drafted.right + 2000 &&
			    drafted.at[7] > 50 && total_ends[0] > 100 && total_ends[1] > 100);
}

#endif
