/* LINK: */
/* test_gpu_runner.cc - what runs tests on a GPU (tests/cuda/cmocka.h, errors.h), by tests that fail in every way. */
#include <cmath>
#include <cstdlib>
#include <ctime>
extern "C" {
#include "tests/cuda/cmocka.h"
}
#include <fcntl.h>

static void right(void **) { within("good", 0.25, 1, "here"); assert_int_equal(1, 1); }
static void wrong(void **) { assert_int_equal(1, 2); }
static void left_out(void **) { skip(); }
static void traps(void **) { abort(); }
static void hangs(void **) { for (;;) pause(); }
static void leaves(void **) { _exit(9); }
static void off(void **)
{
	for (int i = 0; i < 9; i++)
		within("bad", i == 4 ? (double)NAN : i == 6 ? 2 : 0.1, 1, "shape %d", i);
	printf("went on\n");
}

/* Runs tests with their output to a file, and reads it.  Returns the number that failed. */
static int run(const CMUnitTest *t, int n, const char *pattern, char *text, size_t size)
{
	char path[] = "/tmp/gpu-runner-XXXXXX";
	int file = mkstemp(path), out = dup(1), err = dup(2), failed;
	ssize_t got;

	unlink(path);
	fflush(stdout);
	dup2(file, 1);
	dup2(file, 2);
	cmocka_set_test_filter(pattern);
	failed = check_all(t, n);
	fflush(stdout);
	dup2(out, 1);
	dup2(err, 2);
	close(out);
	close(err);
	got = pread(file, text, size - 1, 0);
	text[got > 0 ? got : 0] = 0;
	close(file);
	return failed;
}

static int missing;

static void says(const char *text, const char *line)
{
	if (strstr(text, line))
		return;
	printf("FAILED: \"%s\" is not in:\n%s", line, text);
	missing++;
}

int main(void)
{
	static const CMUnitTest tests[] = {
		cmocka_unit_test(right), cmocka_unit_test(wrong), cmocka_unit_test(left_out), cmocka_unit_test(traps),
		cmocka_unit_test(hangs), cmocka_unit_test(leaves), cmocka_unit_test(off),
	};
	static char text[1 << 16];

	setenv("CHECK_SECONDS", "1", 1);
	if (run(tests, 7, NULL, text, sizeof(text)) != 5)
		missing++;
	says(text, "error good                             0.25 of        1       1 compared, 0 over; largest: here");
	says(text, "[       OK ] right");
	says(text, "1 is 1, not 2");
	says(text, "[  FAILED  ] wrong");
	says(text, "[  SKIPPED ] left_out");
	says(text, "ERROR traps: ended by signal 6");
	says(text, "ERROR hangs: not done in 1 s\n");
	says(text, "[  FAILED  ] hangs");
	says(text, "ERROR leaves: exit 9");
	says(text, "OFF bad, shape 4: by nan, may be 1");
	says(text, "OFF bad, shape 6: by 2, may be 1");
	says(text, "went on");
	says(text, "9 compared, 2 over; largest: shape 4");
	says(text, "[  FAILED  ] off");
	says(text, "1 passed, 5 failed, 1 skipped");
	if (run(tests, 7, "r*", text, sizeof(text)) != 0)
		missing++;
	says(text, "1 passed, 0 failed, 0 skipped");
	if (!missing)
		printf("ok: 18 checks\n");
	return missing != 0;
}
