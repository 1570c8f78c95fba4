/* LINK: kernels/cuda/guard/missing.c */
/* test_missing.c - the sentence that says why CUDA finds no GPU, for each thing that can be missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/guard/missing.h"

static char root[] = "/tmp/slipring-missing-XXXXXX";

static void says(int driver, int runtime, const char *words)
{
	char text[256] = "";

	gpu_missing(text, sizeof(text), root, driver, runtime);
	if (!strstr(text, words))
		fail_msg("\"%s\" is not in: %s", words, text);
}

static void make(const char *path, int is_folder)
{
	char whole[200];
	FILE *f;

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	if (is_folder) {
		assert_int_equal(mkdir(whole, 0700), 0);
		return;
	}
	assert_non_null(f = fopen(whole, "w"));
	fclose(f);
}

static void drop(const char *path)
{
	char whole[200];

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	assert_int_equal(remove(whole), 0);
}

/* Each step mends one thing, and the next one is named. */
static void test_each(void **state)
{
	static const char *const folders[] = { "/dev", "/proc", "/proc/driver", "/proc/driver/nvidia" };

	(void)state;
	assert_non_null(mkdtemp(root));
	says(0, 13000, "no NVIDIA driver is loaded");
	for (size_t i = 0; i < 4; i++)
		make(folders[i], 1);
	make("/proc/driver/nvidia/version", 0);
	says(0, 13000, "/dev/nvidiactl is not there");
	make("/dev/nvidiactl", 0);
	says(13000, 13000, "/dev/nvidia-uvm is not there: \"nvidia-modprobe -u\"");
	make("/dev/nvidia-uvm", 0);
	says(12040, 13000, "the driver is for CUDA 12.4 and this build for 13.0");
	says(13000, 13000, "CUDA_VISIBLE_DEVICES");
	says(0, 13000, "CUDA_VISIBLE_DEVICES");
	drop("/dev/nvidia-uvm");
	drop("/dev/nvidiactl");
	drop("/proc/driver/nvidia/version");
	for (size_t i = 4; i-- > 0;)
		drop(folders[i]);
	drop("");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
