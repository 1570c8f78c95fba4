/* LINK: @sched @null -lxxhash */
/* test_guided.c - guided answers: every kind of guide, early, late and never; misses, forced ids, and how they
 * end.  Whatever the timing, the answer is the one that the null device's function gives. */
#include "tests/rig/sched_world.h"

#define ANSWER 40
#define WORDS  ((VOCAB + 31) / 32)

/* What the client of the test says of its answer.  It knows the tokens before `index`. */
struct script {
	const char *what;
	/* Guide for the token at index; `ids` is what it may point to. */
	struct sched_guide (*guide)(int32_t index, int32_t *ids, uint32_t *bits);
};

static uint32_t dice(int32_t a, int32_t b)
{
	return (uint32_t)(a * 7919 + b * 104729 + 12345) * 2654435761u >> 8;
}

static struct sched_guide by_bits(int32_t index, int32_t *id, uint32_t *bits)
{
	(void)id;
	for (int32_t k = 0; k < WORDS; k++)
		bits[k] = dice(index, k) | 1u << 31; /* beyond the vocabulary in the last word: never looked at */
	return (struct sched_guide){ .index = index, .kind = SR_GUIDE_BITS, .bits = bits };
}

static struct sched_guide by_only(int32_t index, int32_t *id, uint32_t *bits)
{
	int32_t n = 1 + index % SR_GUIDE_IDS;

	(void)bits;
	for (int32_t k = 0; k < n; k++)
		id[k] = (int32_t)(dice(index, k) % VOCAB);
	return (struct sched_guide){ .index = index, .kind = SR_GUIDE_ONLY, .n = n, .id = id };
}

static struct sched_guide by_is(int32_t index, int32_t *id, uint32_t *bits)
{
	(void)bits;
	for (int32_t k = 0; k < 5; k++)
		id[k] = (int32_t)(dice(index, k) % VOCAB);
	return (struct sched_guide){ .index = index, .kind = SR_GUIDE_IS, .n = 5, .id = id };
}

static struct sched_guide by_free(int32_t index, int32_t *id, uint32_t *bits)
{
	(void)id;
	(void)bits;
	return (struct sched_guide){ .index = index, .kind = SR_GUIDE_FREE };
}

/* Free until one of 12 of the 97 ids. */
static struct sched_guide by_until(int32_t index, int32_t *id, uint32_t *bits)
{
	struct sched_guide g = by_only(11, id, bits);

	g.index = index;
	g.kind = SR_GUIDE_FREE;
	return g;
}

static struct sched_guide by_all(int32_t index, int32_t *id, uint32_t *bits)
{
	switch (dice(index, 99) % 5) {
	case 0:  return by_bits(index, id, bits);
	case 1:  return by_only(index, id, bits);
	case 2:  return by_is(index, id, bits);
	case 3:  return by_free(index, id, bits);
	default: return by_until(index, id, bits);
	}
}

static const struct script scripts[] = {
	{ "bits", by_bits }, { "only", by_only }, { "is", by_is }, { "free", by_free }, { "until", by_until },
	{ "all of them", by_all },
};

static bool among(const struct sched_guide *g, int32_t id)
{
	for (int32_t k = 0; k < g->n; k++)
		if (g->id[k] == id)
			return true;
	return false;
}

/* A guided answer as it must be, and which of its ids are not drawn. */
static struct { int32_t id[IDS], n_prompt; bool forced[IDS]; } want;

static void expect(const struct script *s, struct sr_null_request as, int32_t n_prompt)
{
	uint32_t bits[WORDS], only[WORDS];
	int32_t id[SCHED_FORCED], n = n_prompt;

	memset(&want, 0, sizeof(want));
	memcpy(want.id, ids, (size_t)n_prompt * sizeof(ids[0]));
	want.n_prompt = as.n_prompt = n_prompt;
	as.vocab = VOCAB;
	while (n < n_prompt + ANSWER) {
		struct sched_guide g = s->guide(n - n_prompt, id, bits);
		bool more = g.kind == SR_GUIDE_FREE && g.n;

		memset(only, 0, sizeof(only));
		for (int32_t k = 0; g.kind == SR_GUIDE_ONLY && k < g.n; k++)
			only[g.id[k] / 32] |= 1u << g.id[k] % 32;
		as.mask = g.kind == SR_GUIDE_BITS ? bits : g.kind == SR_GUIDE_ONLY ? only : NULL;
		for (int32_t k = 0; g.kind == SR_GUIDE_IS && k < g.n; k++) {
			want.forced[n] = true;
			want.id[n++] = g.id[k];
		}
		if (g.kind == SR_GUIDE_IS)
			continue;
		do {
			want.id[n] = sr_null_next(&as, want.id, n);
			n++;
		} while (more && !among(&g, want.id[n - 1]) && n < n_prompt + ANSWER);
	}
}

/* ---- a client that guides ------------------------------------------------------------------------- */

struct guider {
	const struct script *script;
	uint64_t user_data;
	int32_t  told;           /* the next index without a guide */
	int32_t  heard;          /* tokens */
	bool     free;           /* the guide at `told` was SR_GUIDE_FREE with ids, none of which it heard */
	int32_t  id[IDS];
	int      read;           /* of w.heard[] */
};

static void listen_to(struct guider *c)
{
	for (; c->read < w.n_heard; c->read++) {
		const struct sched_event *e = &w.heard[c->read].e;

		if (e->user_data != c->user_data || e->kind == SCHED_END)
			continue;
		assert_int_equal(e->position, want.n_prompt + c->heard);
		assert_int_equal(e->id, want.id[e->position]);
		if (want.forced[e->position])
			assert_true(e->rank == (e->n_top > 0) && e->logprob == 0);
		c->id[c->heard++] = e->id;
	}
}

/* Give the guides that it can know. */
static void give(struct guider *c)
{
	uint32_t bits[WORDS];
	int32_t id[SCHED_FORCED], from = c->told;

	listen_to(c);
	while (c->told <= c->heard && !end_of(c->user_data)) {
		struct sched_guide g = c->script->guide(c->told, id, bits);

		if (!c->free)
			assert_int_equal(sched_guide(w.s, &w.c[0], c->user_data, &g), 0);
		if (g.kind == SR_GUIDE_FREE && g.n) {
			for (c->free = true; from < c->heard && c->free; from++)
				c->free = from < c->told || !among(&g, c->id[from]);
			if (c->free)
				return;
			c->told = from;
		} else {
			c->told += g.kind == SR_GUIDE_IS ? g.n : 1;
		}
		memset(bits, 0x55, sizeof(bits));       /* copied */
		sched_check(w.s);
	}
}

static struct sched_request guided(uint64_t user_data, int32_t n_prompt)
{
	struct sched_request q = request(user_data, n_prompt, ANSWER);

	q.guided = true;
	return q;
}

/* Guides come `late` steps after the token before them. */
static void play(const struct script *s, int32_t depth, int late, bool history, int32_t n_top)
{
	struct guider c = { .script = s, .user_data = 1 };
	struct sr_null_request as = { .sampling = { .top_p = 1, .repetition = 1 }, .history = history };
	struct sched_request q;

	set_up();
	sr_null_depth(depth);
	w.cfg.limits.masks = 16;
	assert_int_equal(try_open(), 0);
	q = guided(1, 20);
	q.history = history;
	q.n_top = (uint8_t)n_top;
	expect(s, as, 20);
	assert_int_equal(admit(0, &q), 0);
	for (int i = 0; !end_of(1); i++) {
		assert_true(i < 5000);
		if (i % (late + 1) == late)
			give(&c);
		step();
	}
	until_idle();
	listen_to(&c);
	assert_int_equal(c.heard, ANSWER);
	assert_int_equal(end_of(1)->finish, SCHED_LENGTH);
	assert_true(w.c[0].reserved == 0);
	if (late == 0 && depth == 1)
		assert_int_equal(w.n.guide_misses, 0);
	tear_down();
}

static void test_answers(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++)
		for (int32_t depth = 1; depth <= 3; depth++)
			for (int late = 0; late <= 5; late++)
				for (int n_top = 0; n_top <= 3; n_top += 3) {
					play(&scripts[i], depth, late, false, n_top);
					play(&scripts[i], depth, late, true, n_top);
				}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_answers) };

	return cmocka_run_group_tests_name("guided", tests, NULL, NULL);
}
