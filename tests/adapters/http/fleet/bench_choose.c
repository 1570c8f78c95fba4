/* LINK: adapters/http/fleet/choose.c adapters/http/fleet/known.c core/instance/ask.c @kv */
/* bench_choose.c - what knowing costs: a daemon, to show the name of a block that it publishes; an adapter, to
 * choose among 8 daemons for a prompt of 2,048 tokens, with the processor's caches swept in between.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/http/fleet/choose.h"
#include "adapters/http/fleet/known.h"
#include "core/kv/kv.h"
#include "shmring/clock.h"

#define B        16
#define BLOCKS   32768               /* of a daemon: 524,288 tokens */
#define TABLES   16
#define TABLE    64                  /* blocks of a table */
#define ROUNDS   4000
#define DAEMONS  8
#define PROMPT   2048
#define CHOICES  2000
#define RUNS     15

static const struct prefix_secret secret = { { 1, 2 }, { 3, 4 } };

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* ns per block that grow, publish and release take, evictions included. */
static double publish(struct prefix_page *shown)
{
	static struct kv_chunk chunk[TABLES][TABLE * B / KV_CHUNK + 1];
	static int32_t storage[TABLES][KV_TABLE_INTS(1, TABLE + 1)], n[TABLES];
	struct kv_table t[TABLES], *all[TABLES];
	struct kv *kv;
	uint64_t began;
	int32_t id = 0;

	if (kv_create(&kv, &(struct kv_config){ .n_blocks = BLOCKS, .block_tokens = B, .key = { 1, 2 }, .shown = shown }) < 0)
		exit(1);
	for (int i = 0; i < TABLES; i++)
		for (int c = 0; c < TABLE * B / KV_CHUNK; c++)
			chunk[i][c].next = &chunk[i][c + 1];
	began = sr_now();
	for (int round = 0; round < ROUNDS; round++) {
		if (round == ROUNDS / 2)
			began = sr_now();     /* the cache is full: each block evicts one */
		for (int i = 0; i < TABLES; i++) {
			t[i] = (struct kv_table){ .block = storage[i], .cap = TABLE + 1, .at = chunk[i] };
			chunk[i][0].id[0] = id++;
			all[i] = &t[i];
		}
		kv_begin(kv, 0);
		for (int b = 1; b <= TABLE; b++) {
			for (int i = 0; i < TABLES; i++) {
				kv_grow(kv, &t[i], b * B);
				n[i] = b * B;
			}
			kv_publish_many(kv, all, n, TABLES);
		}
		for (int i = 0; i < TABLES; i++)
			kv_release(kv, &t[i]);
		kv_launched(kv);
	}
	began = sr_now() - began;
	kv_destroy(kv);
	return (double)began / (ROUNDS / 2) / TABLES / TABLE;
}

static void bench_publish(void)
{
	double without[RUNS], with[RUNS], more[RUNS];
	struct prefix_page *p;
	int fd;

	for (int i = 0; i < RUNS; i++) {
		if (prefix_create(&p, &fd, BLOCKS, &secret) < 0)
			exit(1);
		close(fd);
		if (i % 2)
			with[i] = publish(p), without[i] = publish(NULL);
		else
			without[i] = publish(NULL), with[i] = publish(p);
		more[i] = with[i] - without[i];
		prefix_destroy(p);
	}
	qsort(without, RUNS, sizeof(double), by_value);
	qsort(with, RUNS, sizeof(double), by_value);
	qsort(more, RUNS, sizeof(double), by_value);
	printf("publish and evict a block: %.1f ns, with its name shown %.1f ns; %.1f ns more (quartiles %.1f .. %.1f)\n",
	       without[RUNS / 2], with[RUNS / 2], more[RUNS / 2], more[RUNS / 4], more[RUNS * 3 / 4]);
}

static void bench_choice(size_t swept)
{
	static struct known_names names;
	static int32_t ids[CHOICES][PROMPT];
	static char sweep[32 << 20];
	static double took[CHOICES];
	struct known *known[DAEMONS];
	const struct prefix_page *seen;
	struct prefix_page *page[DAEMONS];
	uint64_t salt = prefix_salt(&secret, PREFIX_GLOBAL, 0, 0, 0), sum = 0;
	int fd;

	for (int d = 0; d < DAEMONS; d++) {
		if (prefix_create(&page[d], &fd, BLOCKS, &secret) < 0)
			exit(1);
		page[d]->block_tokens = B;
		page[d]->scope = PREFIX_GLOBAL;
		if (prefix_open(&seen, fd) < 0 || known_create(&known[d]) < 0)
			exit(1);
		known_renew(known[d], seen);
		for (int i = 0; i < BLOCKS; i++)
			prefix_put(page[d], ((uint64_t)rand() << 33) ^ ((uint64_t)rand() << 11) ^ (uint64_t)rand());
		close(fd);
	}
	for (int c = 0; c < CHOICES; c++) {
		struct choose_load l[DAEMONS];
		struct known_ask ask[DAEMONS];
		struct sr_request q = { .prompt = ids[c], .n_prompt = PROMPT };
		struct prefix_name at = { { 0, 0 } };
		uint64_t began;

		for (int i = 0; i < PROMPT; i++)
			ids[c][i] = rand() % 50000;
		for (int b = 0; b < PROMPT / B * (c % 9) / 8; b++) {  /* one daemon has 0 to 8 eighths of it */
			at = prefix_name(secret.name, at.w, salt, ids[c] + b * B, B);
			prefix_put(page[c % DAEMONS], at.w[0]);
		}
		for (size_t i = 0; i < swept; i += 64)
			sum += (uint64_t)++sweep[i];
		began = sr_now();
		for (int d = 0; d < DAEMONS; d++)
			ask[d] = (struct known_ask){ .known = known[d], .gateway = true };
		known_tokens(ask, DAEMONS, &q, &names, began);
		for (int d = 0; d < DAEMONS; d++)
			l[d] = (struct choose_load){ .usable = true, .rate = 20000, .running = d, .max_seqs = 64, .left_s = 1,
				.cached = ask[d].tokens };
		sum += (uint64_t)choose_best(l, DAEMONS, PROMPT, c % DAEMONS);
		took[c] = (double)(sr_now() - began) / 1e3;
	}
	qsort(took, CHOICES, sizeof(double), by_value);
	printf("choose among %d daemons for %d tokens, %zu MiB swept: median %.1f us, p99 %.1f us (sum %llu)\n", DAEMONS,
	       PROMPT, swept >> 20, took[CHOICES / 2], took[CHOICES * 99 / 100], (unsigned long long)(sum & 1));
}

int main(void)
{
	bench_publish();
	bench_choice(0);
	bench_choice(2 << 20);
	bench_choice(32 << 20);
	return 0;
}
