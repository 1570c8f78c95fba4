/* LINK: @cuda kernels/cuda/[!b]*.cu -ljansson */
/* test_cuda_bench.cc - the benchmark of `make gpu-check`, with a small shape in the emulation, so that its first
 * run on a GPU does not fail on a mistake: every cell is there and is a number.  Its times here mean
 * nothing. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
}
#include <unistd.h>

#include "tests/emu/lt.h"

#define main bench_main
#include "tests/cuda/bench.cc"
#undef main

/* Cells of a whole run: ceilings; of each kind of weights products, decode, graphs, prompts; of two kinds their speed
 * beside bf16's; of bf16 idle, sampling, attention. */
#define EACH  (4 + 4 + 3 + 8 + 4 + 3 + 2)
#define CELLS (1 + 3 * EACH + 2 * 4 + 2 + 1 + 3 + 2)

static void run(int capability)
{
	char path[] = "/tmp/slipring-bench-XXXXXX", command[] = "bench", scale[] = "tiny";
	char *argv[] = { command, scale, path, NULL };
	int fd = mkstemp(path);
	json_error_t why;
	json_t *rows, *row;
	size_t i;

	assert_true(fd >= 0);
	emu_capability = capability;
	emu_lt_library = "libcublasLt.so.13";
	read_ceiling = 0;
	memset(library_s, 0, sizeof(library_s));
	assert_int_equal(bench_main(3, argv), 0);
	emu_capability = 80;
	rows = json_load_file(path, 0, &why);
	if (!rows)
		fail_msg("%s, line %d", why.text, why.line);
	assert_int_equal(json_array_size(rows), CELLS);
	json_array_foreach(rows, i, row) {
		const char *name = json_string_value(json_object_get(row, "row"));
		double us = json_number_value(json_object_get(row, i ? "us" : "read_gb_s"));
		double part = json_number_value(json_object_get(row, i ? "part" : "mma_bf16_top_s"));

		assert_non_null(name);
		if (!(us > 0 && part > 0))
			fail_msg("%s: %g us, part %g", name, us, part);
	}
	json_decref(rows);
	close(fd);
	unlink(path);
	assert_int_equal(emu_allocations, 0);
}

static void test_every_cell(void **)
{
	run(80);
}

static void test_every_cell_with_fp8_instructions(void **)
{
	run(89);
}

int main()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_cell),
		cmocka_unit_test(test_every_cell_with_fp8_instructions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
