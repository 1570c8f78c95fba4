/* watch.c - clocks, power and temperature of GPU 0 while something runs, by NVML, for `make gpu-check`:
 *
 *	watch         a line of what they are now
 *	watch load    a look every 0.2 s until SIGTERM; then what they were, and WARNING if the clocks were held
 *	              back by more than the power limit
 *
 * What NVML does not tell is left out; without it there is one line that says so. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/machine/nvml.h"

#define LOOKS 3000                    /* ten minutes */

static volatile sig_atomic_t ended;
static struct nvml_gpu gpu[NVML_MOST];
static int mhz[LOOKS];

static void on_end(int sig)
{
	(void)sig;
	ended = 1;
}

static bool look(void)
{
	if (nvml_look(gpu) > 0)
		return true;
	printf("clocks and power are not known: NVML does not answer\n");
	return false;
}

static int now(void)
{
	char why[80];

	if (!look())
		return 0;
	if (gpu->sm_mhz >= 0)
		printf("%d of %d MHz, ", gpu->sm_mhz, gpu->sm_mhz_most);
	if (gpu->power_mw >= 0)
		printf("%.0f W of %.0f, ", gpu->power_mw / 1e3, gpu->power_limit_mw / 1e3);
	if (gpu->celsius >= 0)
		printf("%d C, ", gpu->celsius);
	if (gpu->memory_used >= 0)
		printf("%.1f of %.1f GiB in use, ", (double)gpu->memory_used / 0x1p30,
			(double)gpu->memory_total / 0x1p30);
	printf("%d programs%s%s\n", gpu->n_programs > 0 ? gpu->n_programs : 0,
		*nvml_held_back(gpu->held_back, why, sizeof(why)) ? ", held back by " : "", why);
	return 0;
}

static int by_value(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

static int under_load(void)
{
	const struct timespec pause = { 0, 200000000 };
	int n = 0, clocks = 0, watts = 0, celsius = 0, capped = 0, amiss = 0, bits = 0;
	char why[80];

	signal(SIGTERM, on_end);
	for (; n < LOOKS && !ended; n++, nanosleep(&pause, NULL)) {
		if (!look())
			return 0;
		if (gpu->sm_mhz >= 0 && gpu->busy_percent != 0)
			mhz[clocks++] = gpu->sm_mhz;
		watts = gpu->power_mw / 1000 > watts ? gpu->power_mw / 1000 : watts;
		celsius = gpu->celsius > celsius ? gpu->celsius : celsius;
		if (gpu->held_back > 0) {
			bits |= gpu->held_back & ~NVML_CAPPED;
			capped += (gpu->held_back & NVML_CAPPED) != 0;
			amiss += (gpu->held_back & ~NVML_CAPPED) != 0;
		}
	}
	qsort(mhz, (size_t)clocks, sizeof(mhz[0]), by_value);
	if (clocks)
		printf("%d MHz in the middle, least %d, of %d; ", mhz[clocks / 2], mhz[0], gpu->sm_mhz_most);
	printf("at most %d W, %d C; at the power limit in %d of %d looks\n", watts, celsius, capped, n);
	if (amiss)
		printf("WARNING: clocks were held back by %s in %d of %d looks: this GPU can do more than these "
			"figures\n", nvml_held_back(bits, why, sizeof(why)), amiss, n);
	return 0;
}

int main(int argc, char **argv)
{
	return argc == 2 && !strcmp(argv[1], "load") ? under_load() : now();
}
