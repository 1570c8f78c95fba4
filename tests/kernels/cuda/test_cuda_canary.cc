/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_canary.cc - the process in which special kernels are tried before the daemon uses them: each way in which
 * they can fail, by stand-ins and by the emulation's kernels; and the file with what was found. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <pthread.h>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kernels/cuda/guard/canary.h"
#include "tests/cuda/pair.h"

/* ---- stand-ins ------------------------------------------------------------------------------- */

#define N 4

enum way { FINE, WRONG, TRAPS, HANGS, FAILS, NO_MEMORY };

struct plot { enum way way[N], plain; }; /* what each of four kernels does, and what they stand on */

static const char *stand_in_name(int special)
{
	static const char *const names[N] = { "one", "two", "three", "four" };

	return names[special];
}

static int act(enum way way)
{
	switch (way) {
	case TRAPS: {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		raise(SIGKILL);
		break;
	}
	case HANGS:
		for (;;)
			pause();
	case FAILS:
		return -EIO;
	case NO_MEMORY:
		return -EAGAIN;
	default:
		break;
	}
	return 0;
}

static int stand_in(void *ctx, uint32_t *without, int to)
{
	const struct plot *p = (const struct plot *)ctx;
	int e = act(p->plain);

	for (int i = 0; i < N && !e; i++) {
		if (*without >> i & 1)
			continue;
		canary_say(to, i);
		e = act(p->way[i]);
		if (e)
			break;
		if (p->way[i] == WRONG)
			*without |= 1u << i;
		canary_say(to, CANARY_PLAIN);
	}
	return e;
}

static void test_ways(void **)
{
	static const struct { struct plot plot; uint32_t before, after; int r; const char *words; } cases[] = {
		{ { { FINE, FINE, FINE, FINE }, FINE }, 0, 0, 0, "" },
		{ { { FINE, FINE, FINE, FINE }, FINE }, 2, 2, 0, "" },
		{ { { FINE, WRONG, FINE, WRONG }, FINE }, 0, 10, 0, "" },
		{ { { FINE, FINE, TRAPS, FINE }, FINE }, 0, 4, 0, "" },
		{ { { FAILS, FINE, FINE, FINE }, FINE }, 0, 1, 0, "" },
		{ { { FINE, FINE, FINE, HANGS }, FINE }, 0, 8, 0, "" },
		{ { { TRAPS, WRONG, FAILS, TRAPS }, FINE }, 0, 15, 0, "" },
		{ { { TRAPS, FINE, FINE, FINE }, FINE }, 1, 1, 0, "" },    /* it is not tried */
		{ { { FINE, NO_MEMORY, FINE, FINE }, FINE }, 0, 0, -EAGAIN, "no memory or no GPU" },
		{ { { FINE, FINE, FINE, FINE }, NO_MEMORY }, 0, 0, -EAGAIN, "no memory or no GPU" },
		{ { { FINE, FINE, FINE, FINE }, TRAPS }, 0, 0, -EIO, "nothing can take the place of ends" },
		{ { { FINE, FINE, FINE, FINE }, FAILS }, 0, 0, -EIO, "nothing can take the place of fails" },
	};

	for (const auto &c : cases) {
		bool hangs = c.plot.way[3] == HANGS;   /* on a busy machine others may seem to hang, too */
		struct canary k = { stand_in, (void *)&c.plot, stand_in_name, N, 20000, hangs ? 2000 : 20000 };
		uint32_t without = c.before;
		char why[300] = "";

		assert_int_equal(canary_run(&k, &without, why, sizeof(why)), c.r);
		assert_int_equal(hangs ? without & c.after : without, c.after);
		assert_true(strstr(why, c.words) != NULL);
		assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);      /* no child is left */
	}
}

static void test_plain_hangs(void **)
{
	struct plot plot = { { FINE, FINE, FINE, FINE }, HANGS };
	struct canary k = { stand_in, &plot, stand_in_name, N, 50, 50 };
	uint32_t without = 0;
	char why[300] = "";

	assert_int_equal(canary_run(&k, &without, why, sizeof(why)), -EIO);
	assert_true(strstr(why, "hangs") != NULL);
}

/* ---- what was found ----------------------------------------------------------------------------- */

static void put_file(const std::string &path, const char *text)
{
	FILE *f = fopen(path.c_str(), "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void test_key(void **)
{
	char dir[] = "/tmp/canary-XXXXXX";
	std::string at = mkdtemp(dir);
	const void *code = (const void *)test_key;
	uint64_t key, same;

	assert_int_equal(canary_key(dir, code, "x", 1), 0);            /* there is no driver */
	put_file(at + "/version", "580.1\n");
	assert_int_equal(canary_key(dir, code, "x", 1), 0);            /* and no GPU */
	mkdir((at + "/gpus").c_str(), 0700);
	mkdir((at + "/gpus/1").c_str(), 0700);
	put_file(at + "/gpus/1/information", "Model: \t H100\nIRQ: 7\n");
	key = canary_key(dir, code, "x", 1);
	assert_true(key != 0);
	put_file(at + "/gpus/1/information", "Model: \t H100\nIRQ: 8\n");
	same = canary_key(dir, code, "x", 1);
	assert_true(same == key);
	assert_true(canary_key(dir, code, "y", 1) != key);
	put_file(at + "/version", "580.2\n");
	assert_true(canary_key(dir, code, "x", 1) != key);
	put_file(at + "/version", "580.1\n");
	put_file(at + "/gpus/1/information", "Model: \t H200\n");
	assert_true(canary_key(dir, code, "x", 1) != key);
	assert_int_equal(system(("rm -r " + at).c_str()), 0);
}

static void test_file(void **)
{
	char dir[] = "/tmp/canary-XXXXXX", path[200];
	std::string at = mkdtemp(dir);
	uint32_t without = 77;
	struct stat st;

	setenv("STATE_DIRECTORY", (at + "/a/b").c_str(), 1);
	assert_int_equal(canary_file(path, sizeof(path)), 0);
	unsetenv("STATE_DIRECTORY");
	assert_string_equal(path, (at + "/a/b/cuda-checked").c_str());
	assert_int_equal(canary_known(path, 5, &without), -ENOENT);
	assert_int_equal(canary_keep(path, 5, 0), 0);
	assert_int_equal(canary_keep(path, 0xfedcba9876543210, 0x88), 0);
	assert_int_equal(canary_known(path, 5, &without), 0);
	assert_int_equal(without, 0);
	assert_int_equal(canary_known(path, 0xfedcba9876543210, &without), 0);
	assert_int_equal(without, 0x88);
	assert_int_equal(canary_known(path, 6, &without), -ENOENT);
	for (int i = 0; i < 4000; i++)
		assert_int_equal(canary_keep(path, (uint64_t)i + 100, 1), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_true(st.st_size <= 64 << 10);
	assert_int_equal(canary_known(path, 4099, &without), 0);
	assert_int_equal(chmod(path, 0622), 0);                        /* others may have written it */
	assert_int_equal(canary_known(path, 4099, &without), -ENOENT);
	assert_int_equal(canary_keep(path, 1, 1), -EPERM);
	assert_int_equal(system(("rm -r " + at).c_str()), 0);
}

/* ---- the back end's kernels ---------------------------------------------------------------------- */

static uint32_t open_with(int32_t type, int gpu, const char *spoiled, size_t shared, enum emu_how how)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = limits();
	struct tiny *t;
	struct drive d;
	uint32_t without;

	shape.kind[0].head_dim = 64;
	t = tiny_create(&shape, type, TINY_UNTIED, 3);
	emu_capability = gpu;
	emu_spoiled = spoiled;
	emu_spoiled_shared = shared;
	emu_spoiled_how = how;
	lim.worked = 0;
	lim.self_check = 2;
	lim.eager = 1;
	if (drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim))
		fail_msg("%s", d.err);
	without = d.b->d.without;
	drive_close(&d);
	tiny_destroy(t);
	emu_capability = 80;
	emu_spoiled = NULL;
	emu_spoiled_shared = 0;
	emu_spoiled_how = EMU_WRONG;
	assert_int_equal(emu_allocations, 0);
	return without;
}

static void test_kernels(void **)
{
	assert_int_equal(open_with(SR_BF16, 80, NULL, 0, EMU_WRONG), 0);
	assert_int_equal(open_with(SR_BF16, 80, "rows_args", 0, EMU_TRAPS), 1 << SPECIAL_DENSE_FEW);
	assert_int_equal(open_with(SR_Q4_1, 90, "hopper_args", 0, EMU_WRONG), 1 << SPECIAL_HOPPER_MANY);
	assert_int_equal(open_with(SR_BF16, 90, "sample_args", 0, EMU_WRONG_PARTS), 1 << SPECIAL_SAMPLE_BLOCKS);
}

/* A step that fails as a graph alone. */
static void test_graphs(void **)
{
	emu_spoiled_in_graphs = true;
	assert_int_equal(open_with(SR_BF16, 80, "add_norm_args", 0, EMU_TRAPS), 1 << SPECIAL_GRAPHS);
	emu_spoiled_in_graphs = false;
}

/* One that never returns; on a busy machine others may seem to hang, too. */
static void test_kernel_hangs(void **)
{
	canary_patience_ms = 3000;
	assert_true(open_with(SR_BF16, 80, "rows_args", 0, EMU_HANGS) & 1 << SPECIAL_DENSE_FEW);
	canary_patience_ms = 20000;
}

static void starve(void)
{
	emu_fail(20, cudaErrorMemoryAllocation);
}

/* A child without memory proves nothing, and nothing is switched off. */
static void test_no_memory(void **)
{
	pthread_atfork(NULL, NULL, starve);    /* each child from now on: the last test */
	emu_spoiled_in_graphs = true;
	assert_int_equal(open_with(SR_BF16, 80, "add_norm_args", 0, EMU_TRAPS), 0);
	emu_spoiled_in_graphs = false;
}

/* Without a kernel that is right there is no device, and nothing of this process has touched it. */
static void test_nothing_left(void **)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = limits();
	struct tiny *t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 3);
	struct drive d;

	emu_spoiled = "attend_args";
	emu_spoiled_how = EMU_TRAPS;
	lim.worked = 0;
	lim.self_check = 2;
	assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), -EIO);
	assert_true(strstr(d.err, "that nothing can take the place of fails on this GPU") != NULL);
	emu_spoiled = NULL;
	emu_spoiled_how = EMU_WRONG;
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ways),
		cmocka_unit_test(test_plain_hangs),
		cmocka_unit_test(test_key),
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_kernels),
		cmocka_unit_test(test_graphs),
		cmocka_unit_test(test_kernel_hangs),
		cmocka_unit_test(test_nothing_left),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests_name("cuda_canary", tests, NULL, NULL);
}
