/* LINK: @kv core/events.c -lxxhash */
/* bench_events.c - what a published name costs: alone, shown to the adapter (prefix.h), and told (events.h).
 * 128 sequences fill a block in each step, as in a batch that decodes; the pool is twice as large.  The median of
 * rounds that take turns.  "touched" is the least that a page can cost: its line is prefetched and stored to, and
 * nobody looks what is there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/events.h"
#include "core/kv/kv.h"
#include "core/prefix.h"
#include "shmring/clock.h"

#define B      16
#define SEQS   128
#define BLOCKS 64               /* of a sequence */
#define ROUNDS 201

enum how { ALONE, TOUCHED, SHOWN, BOTH, TOLD, N_HOW };

struct sequence {
	struct kv_chunk chunk[BLOCKS * B / KV_CHUNK + 1];
	int32_t block[BLOCKS + 1];
	struct kv_table t;
};

static struct kv *kv[N_HOW];
static struct sequence seq[SEQS];
static struct prefix_page *touched;    /* as large as one that is shown */

static void make(enum how how)
{
	const struct prefix_secret secret = { { 1, 2 }, { 3, 4 } };
	struct kv_config c = { .n_blocks = 2 * SEQS * BLOCKS, .block_tokens = B, .key = { 7, 9 } };
	int fd;

	if ((how == SHOWN || how == BOTH) && prefix_create(&c.shown, &fd, c.n_blocks, &secret) < 0)
		exit(1);
	if (how == TOUCHED && prefix_create(&touched, &fd, c.n_blocks, &secret) < 0)
		exit(1);
	if ((how == TOLD || how == BOTH) && events_create(&c.events, &fd, c.n_blocks, 0, B) < 0)
		exit(1);
	if (kv_create(&kv[how], &c) < 0)
		exit(1);
}

static uint64_t *place(int s)
{
	return &prefix_bucket(touched, seq[s].t.key[0], 0)[seq[s].t.key[0] >> 29 & (PREFIX_PLACES - 1)];
}

static void touch(void)
{
	for (int s = 0; s < SEQS; s++)
		__builtin_prefetch(place(s), 1);
	for (int s = 0; s < SEQS; s++)
		__atomic_store_n(place(s), seq[s].t.key[0], __ATOMIC_RELAXED);
}

/* ns a name: all sequences grow and publish block by block, with new ids each round. */
static double round_of(enum how how, int32_t base)
{
	struct kv_table *t[SEQS];
	int32_t n[SEQS];
	uint64_t ns = 0;

	for (int s = 0; s < SEQS; s++) {
		for (int i = 0; i < BLOCKS * B; i++)
			seq[s].chunk[i / KV_CHUNK].id[i % KV_CHUNK] = base + s * 7919 + i;
		for (int i = 0; i < BLOCKS * B / KV_CHUNK; i++)
			seq[s].chunk[i].next = &seq[s].chunk[i + 1];
		seq[s].t = (struct kv_table){ .block = seq[s].block, .cap = BLOCKS, .at = seq[s].chunk };
		t[s] = &seq[s].t;
	}
	for (int b = 1; b <= BLOCKS; b++) {
		uint64_t began;

		kv_begin(kv[how], 0);
		for (int s = 0; s < SEQS; s++) {
			n[s] = b * B;
			kv_grow(kv[how], t[s], n[s]);
		}
		kv_launched(kv[how]);
		began = sr_now();
		kv_publish_many(kv[how], t, n, SEQS);
		if (how == TOUCHED)
			touch();
		ns += sr_now() - began;
	}
	for (int s = 0; s < SEQS; s++)
		kv_release(kv[how], t[s]);
	return (double)ns / (SEQS * BLOCKS);
}

static int by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(void)
{
	static const char *const name[] = { "alone", "touched", "shown", "shown and told", "told" };
	static double ns[N_HOW][ROUNDS];

	for (int h = 0; h < N_HOW; h++)
		make((enum how)h);
	for (int r = 0; r < ROUNDS; r++)
		for (int h = 0; h < N_HOW; h++)
			ns[h][r] = round_of((enum how)h, r * 1000003);
	for (int h = 0; h < N_HOW; h++) {
		qsort(ns[h], ROUNDS, sizeof(ns[h][0]), by_size);
		printf("%-16s %5.1f ns a published name (median of %d; quarter %.1f)\n", name[h], ns[h][ROUNDS / 2], ROUNDS,
		       ns[h][ROUNDS / 4]);
	}
	return 0;
}
