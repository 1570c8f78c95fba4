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

/* The first line of gpu-check: what the GPU is, or why it cannot be used. */
static void probe_says_words(int code, const char *words)
{
	char path[] = "/tmp/slipring-probe-XXXXXX", command[] = "bench", what[] = "probe", text[600] = "";
	char *argv[] = { command, what, NULL };
	int fd = mkstemp(path), old;
	ssize_t n;

	assert_true(fd >= 0);
	fflush(stdout);
	old = dup(1);
	dup2(fd, 1);
	assert_int_equal(bench_main(2, argv), code);
	fflush(stdout);
	dup2(old, 1);
	close(old);
	n = pread(fd, text, sizeof(text) - 1, 0);
	close(fd);
	unlink(path);
	if (n <= 0 || !strstr(text, words))
		fail_msg("\"%s\" is not in: %s", words, text);
}

static void test_probe(void **)
{
	probe_says_words(0, "GPU 0: compute capability 8.0, 4 processors, ");
	probe_says_words(0, " of 1.0 GiB are free; driver for CUDA 13.0, this build CUDA 13.0");
	emu_integrated = true;
	probe_says_words(0, "(the host's own memory)");
	emu_integrated = false;
	emu_capability = 75;
	probe_says_words(1, "compute capability 7.5; 8.0 (Ampere) or later is needed");
	emu_capability = 80;
	emu_devices = 0;
	probe_says_words(1, "CUDA cannot use GPU 0: ");
	emu_devices = 1;
	emu_fail(1, cudaErrorInsufficientDriver);
	probe_says_words(1, "(cudaErrorInsufficientDriver); ");
	emu_fail(1, cudaErrorMemoryAllocation);
	probe_says_words(1, "another program has it");
	emu_fail(2, cudaErrorECCUncorrectable);
	probe_says_words(1, "uncorrected memory error");
	emu_recover();               /* it poisons the context */
}

/* Each part of a step for each number of tokens and kind of weights, and nothing twice. */
static void test_every_verb(void **)
{
	static const char *const verbs[] = { "begin", "angles", "embed", "norm", "q, k, v", "rope and store", "attention", "o",
		"gate and up", "activation", "down", "last norm", "head", "sample, greedy" };
	char path[] = "/tmp/slipring-verbs-XXXXXX", command[] = "bench", scale[] = "tiny", time[] = "3600", what[] = "verbs";
	char *argv[] = { command, scale, path, time, what, NULL };
	int fd = mkstemp(path), n = 0;
	json_t *rows, *row;
	size_t i;

	assert_true(fd >= 0);
	emu_capability = 89;
	emu_lt_library = "libcublasLt.so.13"; /* which is looked for once in a process */
	read_ceiling = 0;
	assert_int_equal(bench_main(5, argv), 0);
	emu_capability = 80;
	rows = json_load_file(path, 0, NULL);
	assert_non_null(rows);
	for (const auto &k : kinds)
		for (int32_t tokens : tiny.verb_rows)
			for (const char *verb : verbs) {
				bool of_prompt = tokens == tiny.verb_rows[4], last = !strcmp(verb, "last norm") ||
					!strcmp(verb, "head") || !strncmp(verb, "sample", 6);
				int found = 0;

				json_array_foreach(rows, i, row) {
					const char *name = json_string_value(json_object_get(row, "verb"));

					found += name && !strcmp(name, verb) && json_integer_value(json_object_get(row, "tokens")) ==
						tokens && !strcmp(json_string_value(json_object_get(row, "kind")), k.name) &&
						json_number_value(json_object_get(row, "verb_us")) > 0;
				}
				if (found != !(of_prompt && last))
					fail_msg("%s, %d tokens, %s: %d lines", verb, tokens, k.name, found);
				n += found;
			}
	assert_int_equal(n, 3 * (5 * 14 - 3));
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
		cmocka_unit_test(test_probe),
		cmocka_unit_test(test_every_verb),
		cmocka_unit_test(test_every_cell),
		cmocka_unit_test(test_every_cell_with_fp8_instructions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
