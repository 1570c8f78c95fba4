/* LINK: @cpu tests/rig/drive.c tests/rig/tiny.c -Wl,--wrap=syscall */
/* test_nodes.c - made-up tables of nodes: lists of processors; threads run where they should, weights and keys lie
 * on their nodes, barriers of two levels hold, and results are those of one node to the bit. */
#include "kernels/nodes.c"

#include <linux/futex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

/* Calls of mbind(), as made: policy, first word of the mask, bytes. */
static struct { int policy; unsigned long mask; size_t bytes; } bound[64];
static int n_bound;

long __real_syscall(long n, ...);
long __wrap_syscall(long n, ...);
long __wrap_syscall(long n, ...)
{
	va_list ap;
	long a[6];

	va_start(ap, n);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	if (n == SYS_mbind) {
		if (n_bound < 64) {
			bound[n_bound].bytes = (size_t)a[1];
			bound[n_bound].policy = (int)a[2];
			bound[n_bound++].mask = *(const unsigned long *)a[3];
		}
		return 0;
	}
	return __real_syscall(n, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void set_list(const char *list)
{
	if (list)
		setenv("VLLM_CPU_OMP_THREADS_BIND", list, 1);
	else
		unsetenv("VLLM_CPU_OMP_THREADS_BIND");
}

static cpu_set_t ours;

static void test_lists(void **state)
{
	static const char *const wrong[] = { "x", "0-", "3-1", "0||1", "|0", "0|", "0;1", "-1", "0,x", "99999" };
	static const struct { const char *s; int n, first, last; } right[] = {
		{ "0", 1, 0, 0 }, { "0-3", 4, 0, 3 }, { "1,5-6", 3, 1, 6 }, { "7,", 1, 7, 7 },
	};
	struct nodes m;
	cpu_set_t set;
	char err[200];

	(void)state;
	for (size_t i = 0; i < sizeof(right) / sizeof(*right); i++) {
		assert_true(parse_cpus(right[i].s, strlen(right[i].s), &set));
		assert_int_equal(CPU_COUNT(&set), right[i].n);
		assert_true(CPU_ISSET(right[i].first, &set) && CPU_ISSET(right[i].last, &set));
	}
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		set_list(wrong[i]);
		assert_int_equal(nodes_find(&m, err, sizeof(err)), -EINVAL);
		assert_non_null(strstr(err, "lists of processors, such as 0-31|32-63, are expected"));
	}
	for (const char *const *none = (const char *const[]){ "auto", "all", "nobind", "", NULL, "end" };
	     !*none || strcmp(*none, "end"); none++) {
		set_list(*none);
		assert_int_equal(nodes_find(&m, err, sizeof(err)), 0);
		assert_true(m.n >= 1);
	}
	set_list("0-1023|1000-1023");            /* the second has none of ours, or the machine is large */
	assert_int_equal(nodes_find(&m, err, sizeof(err)), 0);
	assert_true(CPU_EQUAL(&m.node[0].cpus, &ours));
	for (int parts = 1; parts < 20; parts++)         /* in order, and as equal as can be */
		for (int n = 1; n <= parts && n <= NODES_MAX; n++) {
			int has[NODES_MAX] = { 0 };

			for (int i = 0; i < parts; i++) {
				assert_in_range(node_of(i, parts, n), i ? node_of(i - 1, parts, n) : 0, n - 1);
				has[node_of(i, parts, n)]++;
			}
			for (int k = 0; k < n; k++)
				assert_in_range(has[k], parts / n, parts / n + 1);
		}
	set_list(NULL);
}

/* A table of n nodes out of the processors that there are, some of them in several. */
static struct nodes made_up(int n)
{
	struct nodes m = { .n = n };
	int cpu[64], n_cpus = 0;

	for (int c = 0; c < CPU_SETSIZE && n_cpus < 64; c++)
		if (CPU_ISSET(c, &ours))
			cpu[n_cpus++] = c;
	for (int k = 0; k < n; k++) {
		CPU_ZERO(&m.node[k].cpus);
		CPU_SET(cpu[k % n_cpus], &m.node[k].cpus);
		m.node[k].memory = k;
	}
	return m;
}

static struct {
	struct team *team;
	struct nodes nodes;
	_Atomic int arrived[64], wrong;
} j;

enum { ROUNDS = 300 };

static void run_rounds(void *ctx, int i)
{
	cpu_set_t set;
	int now = *(int *)ctx;

	if (sched_getaffinity(0, sizeof(set), &set) < 0 ||
	    !CPU_EQUAL(&set, &j.nodes.node[node_of(i, 6, j.nodes.n)].cpus))
		atomic_fetch_add(&j.wrong, 1);
	for (int r = 0; r < ROUNDS; r++) {
		atomic_fetch_add(&j.arrived[r % 64], 1);
		team_barrier(j.team);
		if (atomic_load(&j.arrived[r % 64]) != now)
			atomic_fetch_add(&j.wrong, 1);
		team_barrier(j.team);
		if (i == 0)
			atomic_store(&j.arrived[r % 64], 0);
	}
}

/* Six threads on one to four nodes, all of them or the first few: nobody passes a barrier before all are there. */
static void test_barriers(void **state)
{
	(void)state;
	for (int n = 2; n <= 4; n++) {
		memset(j.arrived, 0, sizeof(j.arrived));
		j.wrong = 0;
		j.nodes = made_up(n);
		assert_int_equal(team_create(&j.team, 6, &j.nodes), 0);
		for (int now = 6; now >= 1; now--)
			team_run_some(j.team, now, run_rounds, &now);
		team_run(j.team, run_rounds, &(int){ 6 });
		team_destroy(j.team);
		assert_int_equal(j.wrong, 0);
		sched_setaffinity(0, sizeof(ours), &ours);
	}
}

struct record { struct sr_result result[40]; int n; };

static void play(struct drive *d, const struct sr_model *m, struct record *r)
{
	int32_t text[300], back[2] = { 40, 41 };

	for (int i = 0; i < 300; i++)
		text[i] = (i * 37 + i / 5) % m->n_vocab;
	r->n = 0;
	drive_begin(d, 0, NULL);
	drive_range(d, 0, 0, 3);
	drive_begin(d, 1, NULL);
	drive_range(d, 1, 8, 20);
	drive_row(d, 0, 0, text, 30, 0, 1);
	drive_row(d, 1, 0, text, 280, 0, 1);
	drive_step(d);
	for (int i = 0; i < 2; i++)              /* out to the host tier, and in again elsewhere */
		d->batch->copy[d->batch->n_copies++] = (struct sr_copy){ .device = i, .host = i, .out = 1 };
	drive_step(d);
	for (int i = 0; i < 2; i++)
		d->batch->copy[d->batch->n_copies++] = (struct sr_copy){ .device = back[i], .host = i, .out = 0 };
	drive_blocks(d, 0, 0, back, 2);
	for (int i = 0; i < 15; i++) {
		drive_row(d, 0, 30 + i, NULL, 1, 0, 1);
		drive_row(d, 1, 280 + i, NULL, 1, 0, 1);
		drive_step(d);
		r->result[r->n++] = d->batch->result[0];
		r->result[r->n++] = d->batch->result[1];
	}
}

static const char *list_of(int n, char *text, size_t size)
{
	struct nodes m = made_up(n);
	size_t at = 0;

	for (int k = 0; k < n; k++)
		for (int c = 0; c < CPU_SETSIZE; c++)
			if (CPU_ISSET(c, &m.node[k].cpus))
				at += (size_t)snprintf(text + at, size - at, "%s%d", k ? "|" : "", c);
	return text;
}

static void test_bits(void **state)
{
	static const int32_t types[] = { SR_Q4_1, SR_BF16, SR_AWQ4 };
	struct record one, is;

	(void)state;
	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
		struct sr_model shape = tiny_shape();
		struct tiny *t;

		shape.kind[0].n_heads = 6;
		shape.kind[0].n_kv_heads = 3;
		shape.d_model = 128;
		t = tiny_create(&shape, types[i], 0, 9);
		for (int n = 1; n <= 3; n++) {
			struct sr_limits lim = drive_limits();
			struct drive d;
			const char *kind;
			char list[200];

			set_list(list_of(n, list, sizeof(list)));
			lim.threads = 4;
			n_bound = 0;
			if (drive_open(&d, sr_cpu_ops(), &t->m, &t->src, &lim))
				fail_msg("%s", d.err);
			assert_int_equal(d.b->nodes.n, n);
			assert_int_equal(d.b->n_pools, n);
			assert_true((sr_cpu_ops()->kv(d.b, 0, &kind) == NULL) == (n > 1));
			play(&d, &t->m, n == 1 ? &one : &is);
			if (n > 1) {
				assert_int_equal(is.n, one.n);
				assert_memory_equal(is.result, one.result, (size_t)one.n * sizeof(one.result[0]));
			}
			drive_close(&d);
			sched_setaffinity(0, sizeof(ours), &ours);
		}
		tiny_destroy(t);
	}
	set_list(NULL);
}

/* Each thread's weights and each pool of keys are bound to their node, the rest is interleaved; with one node nothing
 * is called. */
static void test_bound(void **state)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_Q4_1, 0, 9);
	struct sr_limits lim = drive_limits();
	int kind[4] = { 0 };
	struct drive d;
	char list[200];

	(void)state;
	lim.threads = 4;
	set_list(list_of(1, list, sizeof(list)));
	n_bound = 0;
	assert_int_equal(drive_open(&d, sr_cpu_ops(), &t->m, &t->src, &lim), 0);
	drive_close(&d);
	assert_int_equal(n_bound, 0);
	set_list(list_of(2, list, sizeof(list)));
	assert_int_equal(drive_open(&d, sr_cpu_ops(), &t->m, &t->src, &lim), 0);
	for (int i = 0; i < n_bound; i++) {
		assert_true(bound[i].bytes > 0 && bound[i].bytes % 4096 == 0);
		kind[bound[i].policy]++;
	}
	if (d.b->nodes.node[0].memory < 0) {
		printf("SKIP: this machine does not say which node a processor is on\n");
		assert_int_equal(n_bound, 0);
	} else {
		assert_int_equal(kind[MPOL_PREFERRED_], 4 + 2);  /* arenas, pools */
		assert_int_equal(kind[MPOL_INTERLEAVE_], 1);
	}
	drive_close(&d);
	sched_setaffinity(0, sizeof(ours), &ours);
	n_bound = 0;                             /* two nodes of their own */
	nodes_bind(&(struct nodes){ .n = 2, .node = { { .memory = 0 }, { .memory = 5 } } }, 1, list, 1);
	assert_int_equal(n_bound, 0);            /* not a whole page */
	nodes_bind(&(struct nodes){ .n = 2, .node = { { .memory = 0 }, { .memory = 5 } } }, 1, (void *)8192, 8192);
	assert_true(n_bound == 1 && bound[0].mask == 1ul << 5 && bound[0].bytes == 8192);
	nodes_interleave(&(struct nodes){ .n = 2, .node = { { .memory = 0 }, { .memory = 5 } } }, (void *)8192, 8192);
	assert_true(n_bound == 2 && bound[1].mask == (1ul << 5 | 1ul));
	set_list(NULL);
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lists), cmocka_unit_test(test_barriers), cmocka_unit_test(test_bits),
		cmocka_unit_test(test_bound),
	};

	sched_getaffinity(0, sizeof(ours), &ours);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
