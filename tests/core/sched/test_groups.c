/* LINK: @sched @null @cpu core/groups.c tests/rig/tiny.c -lxxhash */
/* test_groups.c - a model with windows on the CPU, its layers in one group and in several: the same answers to the
 * bit, with fewer blocks.  Conversations, prompts that begin alike, chunks, preemptions.
 */
#include "core/groups.h"
#include "kernels/cpu/cpu.h"
#include "tests/rig/sched_world.h"
#include "tests/rig/tiny.h"

#define LAYERS 6
#define TALKS  4
#define TURNS  3
#define ANSWER 20
#define MOST   (TALKS * TURNS)
#define SMALL  44              /* blocks of a pool that is too small for all: with a host tier */

struct run {
	int32_t id[MOST][ANSWER], cached[MOST], peak;
	float   logprob[MOST][ANSWER];
	int32_t preempted;
	uint64_t copies_in;
};

static struct tiny *tiny;

/* Layers 2 and 5 look back at everything, the others at the last `window` tokens. */
static void make_model(int32_t window, int32_t full_every)
{
	static struct sr_layer layers[LAYERS];
	struct sr_model shape = tiny_shape();

	tiny_window(&shape, layers, window);
	shape.n_vocab = VOCAB;
	shape.n_layers = LAYERS;
	for (int l = 0; l < LAYERS; l++)
		layers[l] = (struct sr_layer){ .kind = full_every && l % full_every == full_every - 1 };
	tiny = tiny_create(&shape, SR_Q8_0, 0, 5);
}

static void open_world(int32_t n_blocks, int32_t chunk, int32_t kv_type, bool groups)
{
	struct sr_limits *l = &w.cfg.limits;

	set_up();
	*l = (struct sr_limits){ .n_groups = 1, .block_tokens = B, .seq_blocks = 24, .slots = 8, .rows = 8,
				 .tokens = chunk < 64 ? 64 : 256,
				 .cmds = 200, .words = 4000, .logit_rows = 8, .threads = 2, .worked = 1, .world = 1,
				 .kv_type = kv_type };
	w.cfg.knobs = (struct sched_knobs){ .max_seqs = 8, .batch_tokens = l->tokens, .chunk_max = chunk, .queue_requests = 64,
					    .queue_tokens = 4000, .quantum = 32, .first_chunk = n_blocks < 100 };
	w.cfg.context = 350;
	if (groups)
		groups_choose(l, &tiny->m, w.cfg.context);
	l->n_blocks = n_blocks;
	if (n_blocks == SMALL) {
		l->n_host_blocks = 200;
		l->copies = w.cfg.knobs.copies = 40;
	}
	w.device = sr_cpu_ops();
	w.model = &tiny->m;
	w.src = &tiny->src;
	assert_int_equal(try_open(), 0);
}

/* Turn t of a talk: what was said before, and 40 ids more.  All begin with the same 50. */
static void ask_turn(struct run *r, int talk, int turn)
{
	uint64_t user_data = (uint64_t)(turn * TALKS + talk);
	struct sched_request q;
	int32_t prompt[400], n = 0;

	for (int t = 0; t <= turn; t++) {
		for (int i = 0; i < (t ? 37 : 90); i++)
			prompt[n++] = i < 50 && !t ? i * i % VOCAB : (i * (talk + 3) + t) % VOCAB;
		for (int i = 0; t < turn && i < ANSWER; i++)
			prompt[n++] = r->id[t * TALKS + talk][i];
	}
	q = request(user_data, n, ANSWER);
	q.prompt = prompt;
	q.no_cache = false;
	assert_int_equal(admit(0, &q), 0);
}

static void hear(struct run *r)
{
	int n[MOST] = { 0 };

	for (int i = 0; i < w.n_heard; i++) {
		const struct sched_event *e = &w.heard[i].e;
		uint64_t k = e->user_data;

		if (e->kind == SCHED_TOKEN) {
			r->id[k][n[k]] = e->id;
			r->logprob[k][n[k]++] = e->logprob;
		} else {
			assert_int_equal(e->finish, SCHED_LENGTH);
			r->cached[k] = e->cached;
			r->preempted += e->preempted;
		}
	}
}

static void run(struct run *r, int32_t n_blocks, int32_t chunk, int32_t kv_type, bool groups)
{
	struct kv_stats k;

	memset(r, 0, sizeof(*r));
	open_world(n_blocks, chunk, kv_type, groups);
	for (int turn = 0; turn < TURNS; turn++) {
		for (int talk = 0; talk < TALKS; talk++)
			ask_turn(r, talk, turn);
		for (int i = 0; sched_busy(w.s); i++) {
			assert_true(i < 5000);
			step();
			kv_stats(w.kv, &k);
			r->peak = k.n_held > r->peak ? k.n_held : r->peak;
		}
		r->copies_in = k.copies_in;
		r->preempted = 0;
		hear(r);
	}
	tear_down();
}

static void same(const struct run *a, const struct run *b)
{
	assert_memory_equal(a->id, b->id, sizeof(a->id));
	assert_memory_equal(a->logprob, b->logprob, sizeof(a->logprob));
}

static void test_same_bits(void **state)
{
	static const struct { int32_t window, full_every, kv, n_groups, layers; } models[] = {
		{ 40, 3, SR_KV_BF16, 3, 2 }, { 17, 3, SR_KV_I8, 3, 2 }, { 64, 2, SR_KV_BF16, 2, 3 },
		{ 33, 0, SR_KV_BF16, 1, 6 }, { 5, 6, SR_KV_BF16, 6, 1 },
	};
	static struct run one, many;

	(void)state;
	for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
		make_model(models[m].window, models[m].full_every);
		run(&one, 200, 256, models[m].kv, false);
		for (int32_t chunk = 256; chunk >= 16; chunk /= 4) {
			run(&many, 400, chunk, models[m].kv, true);
			same(&many, &one);
			assert_int_equal(many.preempted, 0);
			for (int k = TALKS; k < MOST; k++) /* each later turn finds what one group finds */
				assert_true(many.cached[k] >= one.cached[k] && one.cached[k] > 80);
		}
		assert_int_equal(w.cfg.limits.n_groups, models[m].n_groups);
		assert_int_equal(w.cfg.limits.group[0].layers, models[m].layers);
		print_message("window %d, %d groups of %d layers: at most %d of its blocks, %d layers' worth; one group: %d\n",
			      models[m].window, models[m].n_groups, models[m].layers, many.peak,
			      many.peak * models[m].layers, one.peak * LAYERS);
		assert_true(many.peak * models[m].layers < one.peak * LAYERS);
		tiny_destroy(tiny);
	}
}

/* What a table of inner loops reads through stale entries has no weight. */
static void test_tables(void **state)
{
	static const char *tables[] = { "plain", "avx2", "avx512vnni", "avx512" };
	static struct run one, many;

	(void)state;
	make_model(19, 3);
	for (size_t k = 0; k < sizeof(tables) / sizeof(*tables); k++)
		for (int32_t kv = SR_KV_BF16; kv <= SR_KV_I8 && kern_pick(tables[k]); kv += SR_KV_I8 - SR_KV_BF16) {
			setenv("SLIPRING_CPU", tables[k], 1);
			run(&one, 200, 256, kv, false);
			run(&many, 90, 64, kv, true);
			same(&many, &one);
		}
	unsetenv("SLIPRING_CPU");
	tiny_destroy(tiny);
}

/* A pool that is too small for all: sequences give way and come back, cached blocks go to the host tier and come
 * back. */
static void test_preempted(void **state)
{
	static struct run one, many;

	(void)state;
	make_model(40, 3);
	run(&one, 200, 256, SR_KV_BF16, false);
	run(&many, SMALL, 32, SR_KV_BF16, true);
	assert_true(many.preempted > 0 && many.copies_in > 0);
	same(&many, &one);
	tiny_destroy(tiny);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_same_bits), cmocka_unit_test(test_tables),
					    cmocka_unit_test(test_preempted) };

	return cmocka_run_group_tests_name("groups", tests, NULL, NULL);
}
