/* LINK: @cpu kernels/bits.c @models core/models/load.c core/instance/io.c core/instance/log.c tests/rig/drive.c tests/models/family.c tests/models/same.c -ljansson -luring */
/* test_bits.c - holds SR_BITS (kernels/backend.h): tiny models of every family compute, to the bit, what they computed
 * when that number was raised last, with each table of kernels that this machine has.  tests/models/bits has the
 * number, sr_bits() of the machine where it was written, and a hash of the results of each model and table.
 *
 * If this fails, answers have changed.  Where that is meant, raise SR_BITS and write the file anew:
 *
 *	build/tests/test_bits --write
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/models/family.h"

#define FILE_NAME "tests/models/bits"
#define MOST      512

static const char *const table[] = { "plain", "avx2", "avx512vnni", "avx512" };

static struct line { char name[64], table[16]; uint64_t hash; } was[MOST];
static int n_was;

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < n; i++)
		h = (h ^ b[i]) * 0x100000001b3u;
	return h;
}

/* Of all results of a prompt, token by token, with the KV cache that is usual.  False: this machine or build lacks the
 * table, or the model does not run. */
static bool bits_of(const struct family *f, const char *kernels, uint64_t *hash)
{
	static struct family_answer a;
	struct drive d = { 0 };

	setenv("SLIPRING_CPU", kernels, 1);
	if (family_open(&d, sr_cpu_ops(), f->hf, SR_KV_BF16, 1))
		return false;
	family_answer(&d, f, f->prompt[1].n, &a);
	drive_close(&d);
	*hash = 0xcbf29ce484222325u;
	for (int i = 0; i < f->prompt[1].n; i++) {
		*hash = mix(*hash, &a.result[i].id, sizeof(a.result[i].id));
		*hash = mix(*hash, &a.result[i].logprob, sizeof(a.result[i].logprob));
	}
	return true;
}

static uint64_t recorded(const char *name, const char *kernels)
{
	for (int i = 0; i < n_was; i++)
		if (!strcmp(was[i].name, name) && !strcmp(was[i].table, kernels))
			return was[i].hash;
	return 0;
}

/* Each model and table: into f, or held to what is recorded. */
static void go_through(FILE *out)
{
	int n, bad = 0;
	char **name = family_names(&n);

	for (int i = 0; i < n; i++) {
		struct family *f = family_make(name[i]);

		for (size_t k = 0; k < sizeof(table) / sizeof(*table); k++) {
			uint64_t now, then = recorded(name[i], table[k]);

			if (!bits_of(f, table[k], &now))
				continue;
			if (out)
				fprintf(out, "%s %s %016" PRIx64 "\n", name[i], table[k], now);
			else if (!then)
				printf("%s %s: not recorded\n", name[i], table[k]);
			else if (now != then && ++bad)
				printf("%s %s: other bits than those of SR_BITS %u\n", name[i], table[k], SR_BITS);
		}
		family_free(f);
		free(name[i]);
	}
	free(name);
	if (bad)
		fail_msg("%d models compute something else than before: undo it, or raise SR_BITS in kernels/backend.h and "
		         "run build/tests/test_bits --write", bad);
}

static void test_bits(void **state)
{
	FILE *f = fopen(FILE_NAME, "r");
	unsigned number;
	uint64_t machine;

	(void)state;
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%u %" SCNx64, &number, &machine), 2);
	for (struct line *l = was; n_was < MOST && fscanf(f, "%63s %15s %" SCNx64, l->name, l->table, &l->hash) == 3; l++)
		n_was++;
	fclose(f);
	if (number != SR_BITS)
		fail_msg(FILE_NAME " is of SR_BITS %u, this is %u: run build/tests/test_bits --write", number, SR_BITS);
	if (machine != sr_bits()) {
		printf("SKIP: the C library computes other last bits here than where " FILE_NAME " was written\n");
		skip();
	}
	go_through(NULL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_bits) };
	FILE *f;

	if (argc == 2 && !strcmp(argv[1], "--write")) {
		f = fopen(FILE_NAME, "w");
		if (!f)
			return 1;
		fprintf(f, "%u %016" PRIx64 "\n", SR_BITS, sr_bits());
		go_through(f);
		return fclose(f) != 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
