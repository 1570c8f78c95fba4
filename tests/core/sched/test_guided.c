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
	for (int32_t k = 0; k < 1 + index % 5; k++)
		id[k] = (int32_t)(dice(index, k) % VOCAB);
	return (struct sched_guide){ .index = index, .kind = SR_GUIDE_IS, .n = 1 + index % 5, .id = id };
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
	struct sr_masks m;

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
	w.ops.masks(w.b, &m);
	for (int32_t i = 0; i < w.cfg.limits.masks; i++) /* the device may rely on it */
		assert_int_equal(m.word[(i + 1) * m.words - 1] >> VOCAB % 32, 0);
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

/* ---- the rules, one by one ------------------------------------------------------------------------ */

static void open_world(int32_t depth)
{
	set_up();
	sr_null_depth(depth);
	w.cfg.limits.masks = 16;
	assert_int_equal(try_open(), 0);
}

static int tell(uint64_t user_data, int32_t index, int32_t kind, int32_t n, const int32_t *id)
{
	const struct sched_guide g = { .index = index, .kind = kind, .n = n, .id = id };

	return sched_guide(w.s, &w.c[0], user_data, &g);
}

/* A client that is always late makes one row of nine miss in the end: after misses that follow each other 1, 2,
 * 4 and then 8 rows are planned only with their guide.  After 64 in time it begins anew. */
static void test_trust(void **state)
{
	struct guider c = { .script = &scripts[0], .user_data = 1 };
	struct sched_request q;
	int32_t drawn = -1;

	(void)state;
	open_world(1);
	q = guided(1, 20);
	expect(&scripts[0], (struct sr_null_request){ .sampling = { .top_p = 1, .repetition = 1 } }, 20);
	assert_int_equal(admit(0, &q), 0);
	give(&c);
	while (!end_of(1)) {
		int n;

		do {                    /* after each token one more batch is computed, without a guide */
			n = tokens_of(1);
			step();
		} while (tokens_of(1) != n);
		give(&c);
		if (w.n.guide_misses == 1 && drawn < 0)
			drawn = c.heard;
	}
	assert_int_equal(drawn, 1);     /* the first row has its guide: only rows of one token can miss */
	assert_int_equal(w.n.guide_misses, 7);  /* before tokens 1, 2, 4, 8, 16, 24, 32 */
	assert_int_equal(end_of(1)->computed, 20);
	tear_down();
}

/* The row beside one that misses or waits draws a token in every step. */
static void test_neighbour(void **state)
{
	(void)state;
	for (int gives = 0; gives < 2; gives++) {
		struct guider c = { .script = &scripts[0], .user_data = 1 };
		struct sched_request q;

		open_world(1);
		q = guided(1, 20);
		expect(&scripts[0], (struct sr_null_request){ .sampling = { .top_p = 1, .repetition = 1 } }, 20);
		assert_int_equal(admit(0, &q), 0);
		ask(1, 2, 20, 30);
		give(&c);
		step();
		for (int i = 1; i <= 30; i++) {
			step();
			assert_int_equal(tokens_of(2), i);
			if (gives && i % 5 == 0)
				give(&c);
		}
		assert_true(w.n.guide_misses > 0);
		sched_cancel(w.s, &w.c[0], 1);
		until_idle();
		tear_down();
	}
}

/* 64 forced ids: their tokens come at once, and one batch computes them all and draws the next. */
static void test_forced(void **state)
{
	int32_t id[SCHED_FORCED];
	struct sched_request q;
	uint64_t rows;

	(void)state;
	open_world(1);
	q = guided(1, 20);
	q.max_tokens = 400;
	assert_int_equal(admit(0, &q), 0);
	assert_int_equal(tell(1, 0, SR_GUIDE_FREE, 0, NULL), 0);
	step();
	step();
	assert_int_equal(tokens_of(1), 1);
	for (int k = 0; k < SCHED_FORCED; k++)
		id[k] = k + 1;
	step();                         /* the row planned for the second token misses */
	assert_int_equal(tell(1, 1, SR_GUIDE_IS, SCHED_FORCED, id), 0);
	assert_int_equal(tell(1, 65, SR_GUIDE_IS, 1, id), -EPROTO); /* one more than may be ahead */
	assert_int_equal(tell(1, 65, SR_GUIDE_FREE, 0, NULL), 0);
	rows = w.n.rows;
	step();
	assert_int_equal(tokens_of(1), 1 + SCHED_FORCED);
	step();
	assert_int_equal(tokens_of(1), 2 + SCHED_FORCED);
	assert_int_equal(w.n.rows - rows, 2);   /* the chunk, and the row after it */
	assert_int_equal(w.n.forced_tokens, SCHED_FORCED);
	for (int k = 0; k < 4; k++) {           /* 256 more: it asks for room for its ids */
		assert_int_equal(tell(1, 66 + k * SCHED_FORCED, SR_GUIDE_IS, SCHED_FORCED, id), 0);
		for (int i = 0; i < 3; i++)
			step();
	}
	assert_int_equal(tokens_of(1), 66 + 4 * SCHED_FORCED);
	sched_cancel(w.s, &w.c[0], 1);
	until_idle();
	tear_down();
}

/* A forced stop id ends the answer without a row, also before min_position. */
static void test_forced_stop(void **state)
{
	static const uint32_t stop[] = { 7 };
	static const int32_t id[] = { 5, 6, 7, 8 };
	struct sched_request q;

	(void)state;
	open_world(1);
	q = guided(1, 20);
	begin(&q, &(struct sr_null_request){ .sampling = { .top_p = 1, .repetition = 1, .min_position = 30 },
		.list = { [SR_LIST_STOP] = stop }, .n_list = { [SR_LIST_STOP] = 1 } }, 0);
	assert_int_equal(admit(0, &q), 0);
	assert_int_equal(tell(1, 0, SR_GUIDE_IS, 4, id), 0);
	until_idle();
	assert_int_equal(tokens_of(1), 3);
	assert_int_equal(end_of(1)->finish, SCHED_STOP);
	assert_int_equal(w.n.rows, 1);          /* the prompt's, without a draw */
	tear_down();
}

/* No id is left: the answer ends there. */
static void test_no_id(void **state)
{
	static const uint32_t none[WORDS], banned[] = { 1, 9 };
	const struct sched_guide g = { .index = 0, .kind = SR_GUIDE_BITS, .bits = none };
	struct sched_request q;

	(void)state;
	for (int by_list = 0; by_list < 2; by_list++) {
		open_world(2);
		q = guided(1, 20);
		if (by_list)
			begin(&q, &(struct sr_null_request){ .sampling = { .top_p = 1, .repetition = 1 },
				.list = { [SR_LIST_BAD] = banned }, .n_list = { [SR_LIST_BAD] = 2 } }, 0);
		assert_int_equal(admit(0, &q), 0);
		assert_int_equal(by_list ? tell(1, 0, SR_GUIDE_ONLY, 1, (int32_t[]){ 9 }) :
		                 sched_guide(w.s, &w.c[0], 1, &g), 0);
		until_idle();
		assert_int_equal(tokens_of(1), 0);
		assert_int_equal(end_of(1)->finish, -EDOM);
		assert_true(w.c[0].reserved == 0);
		tear_down();
	}
}

/* Ten seconds without a guide end it; time in which it has its guides does not count. */
static void test_silent(void **state)
{
	static const uint64_t S = 1000000000;
	struct sched_request q;

	(void)state;
	for (int first = 0; first < 2; first++) { /* silent from the first token on, or later */
		open_world(1);
		q = guided(1, 20);
		assert_int_equal(admit(0, &q), 0);
		step();
		for (int k = 0; first && k < 4; k++) {
			step();
			w.now += 9 * S;
			step();
			assert_int_equal(tell(1, k, SR_GUIDE_FREE, 0, NULL), 0);
			step();
			step();
			assert_int_equal(tokens_of(1), k + 1);
		}
		step();
		step();
		w.now += 10 * S - 100000;
		step();
		assert_null(end_of(1));
		assert_int_equal(w.st.why, WHY_GUIDE);
		w.now += 100000;
		step();
		assert_int_equal(end_of(1)->finish, -ETIMEDOUT);
		tear_down();
	}
}

/* What waits for its guide gives way to others after 100 ms, and only then; it goes on where it was. */
static void test_gives_way(void **state)
{
	struct guider c = { .script = &scripts[0], .user_data = 1 };
	struct sched_request q;

	(void)state;
	set_up();
	w.cfg.limits.masks = 16;
	w.cfg.knobs.max_seqs = 1;
	assert_int_equal(try_open(), 0);
	q = guided(1, 20);
	q.max_tokens = ANSWER;
	expect(&scripts[0], (struct sr_null_request){ .sampling = { .top_p = 1, .repetition = 1 } }, 20);
	assert_int_equal(admit(0, &q), 0);
	for (int i = 0; i < 10; i++) {
		give(&c);
		step();
	}
	for (int i = 0; i < 5; i++)
		step();
	w.now += 500000000;
	step();
	assert_int_equal(w.st.running, 1);      /* nobody wants its place */
	ask(1, 2, 20, 10);
	step();
	assert_int_equal(w.st.running, 1);
	step();
	step();
	assert_int_equal(tokens_of(2), 1);      /* it waited long before the other came */
	assert_int_equal(w.st.waiting, 1);
	for (int i = 0; i < 20; i++)
		step();
	assert_true(end_of(2) && !end_of(1));
	assert_int_equal(w.st.why, WHY_GUIDE);
	while (!end_of(1)) {
		give(&c);
		step();
	}
	listen_to(&c);
	assert_int_equal(c.heard, ANSWER);
	tear_down();
}

/* A tenant may hold eight times as many pairs as it leaves free, and one is given again only when no row can
 * read it. */
static void test_pairs(void **state)
{
	struct sched_request q;
	int n = 0;

	(void)state;
	set_up();
	sr_null_depth(2);
	w.cfg.limits.masks = 34;
	assert_int_equal(try_open(), 0);
	for (uint64_t name = 1; sched_guides_full(w.s, 0) == SCHED_ROOM; name++, n++) {
		q = guided(name, 20);
		assert_int_equal(sched_admit(w.s, &w.c[0], 0, &q, w.now), 0);
	}
	assert_int_equal(n, 16);
	assert_int_equal(sched_guides_alone(17), 16);
	assert_int_equal(sched_guides_full(w.s, 0), SCHED_OVER);
	assert_int_equal(sched_guides_full(w.s, 1), SCHED_ROOM);
	q = guided(1, 20);
	assert_int_equal(sched_admit(w.s, &w.c[1], 1, &q, w.now), 0);
	assert_int_equal(sched_guides_full(w.s, 1), SCHED_FULL);
	assert_int_equal(tell(1, 0, SR_GUIDE_FREE, 0, NULL), 0);
	step();                                 /* a row of 1 is in flight */
	sched_cancel(w.s, &w.c[0], 1);
	assert_int_equal(sched_guides_full(w.s, 1), SCHED_FULL);
	step();
	step();
	assert_true(sched_guides_full(w.s, 2) != SCHED_FULL);
	sched_forget(w.s, &w.c[0]);
	sched_forget(w.s, &w.c[1]);
	until_idle();
	tear_down();
}

/* Guides for what is not guided, and without masks nobody is. */
static void test_unknown(void **state)
{
	(void)state;
	open_world(1);
	ask(0, 1, 20, 3);
	assert_int_equal(tell(1, 0, SR_GUIDE_FREE, 0, NULL), -ENOENT);
	assert_int_equal(tell(2, 0, SR_GUIDE_FREE, 0, NULL), -ENOENT);
	until_idle();
	tear_down();
	set_up();
	assert_int_equal(try_open(), 0);
	assert_int_equal(sched_guides_full(w.s, 0), SCHED_FULL);
	tear_down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_trust),
		cmocka_unit_test(test_neighbour),
		cmocka_unit_test(test_forced),
		cmocka_unit_test(test_forced_stop),
		cmocka_unit_test(test_no_id),
		cmocka_unit_test(test_silent),
		cmocka_unit_test(test_gives_way),
		cmocka_unit_test(test_pairs),
		cmocka_unit_test(test_unknown),
	};

	return cmocka_run_group_tests_name("guided", tests, NULL, NULL);
}
