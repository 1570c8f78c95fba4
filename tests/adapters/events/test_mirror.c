/* LINK: @events @kv core/instance/kv_events.c -lxxhash -ljansson -lzmq */
/* test_mirror.c - what is told of a daemon's blocks is what its KV cache has, whatever was missed. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "adapters/events/batch.h"
#include "adapters/events/mirror.h"
#include "core/instance/kv_events.h"
#include "core/kv/kv.h"
#include "core/prefix.h"

#define B      16
#define BLOCKS 256
#define HOST   64
#define TEXTS  48
#define SALT   7

static const struct prefix_secret secret = { { 1, 2 }, { 3, 4 } };
static uint64_t rnd_state = 88172645463325252u;

static uint32_t rnd(uint32_t n)
{
	rnd_state ^= rnd_state << 13;
	rnd_state ^= rnd_state >> 7;
	rnd_state ^= rnd_state << 17;
	return (uint32_t)(rnd_state % n);
}

/* ---- a KV cache that shows its names in both ways ---- */

struct world {
	struct kv *kv;
	struct prefix_page *shown;
	struct events_page *events;
	const struct events_page *seen;
	struct mirror *mirror;
	struct mirror_sink sink;
	/* what was told: names, by tier; a subscriber's set */
	struct { uint64_t name[2 * (BLOCKS + HOST)]; int n; } told[2];
	int stored, removed, cleared;
	bool parents;             /* each block comes behind its parent, if that is cached at all */
};

static void on_stored(void *ctx, const struct mirror_block *b)
{
	struct world *w = ctx;

	for (int i = 0; i < w->told[b->host].n; i++)
		assert_true(w->told[b->host].name[i] != b->name);   /* never twice */
	w->told[b->host].name[w->told[b->host].n++] = b->name;
	w->stored++;
	if (w->parents && b->parent) {
		bool known = false;

		for (int t = 0; t < 2; t++)
			for (int i = 0; i < w->told[t].n; i++)
				known |= w->told[t].name[i] == b->parent;
		assert_true(known || !prefix_has(w->shown, b->parent));
	}
}

static void on_removed(void *ctx, uint64_t name, int32_t group, bool host)
{
	struct world *w = ctx;
	int i = 0;

	assert_int_equal(group, 0);
	while (i < w->told[host].n && w->told[host].name[i] != name)
		i++;
	assert_true(i < w->told[host].n);                       /* only what was told */
	w->told[host].name[i] = w->told[host].name[--w->told[host].n];
	w->removed++;
}

static void on_cleared(void *ctx)
{
	struct world *w = ctx;

	w->told[0].n = w->told[1].n = 0;
	w->cleared++;
}

static struct world *make(void)
{
	struct world *w = calloc(1, sizeof(*w));
	int fd;

	assert_int_equal(prefix_create(&w->shown, &fd, BLOCKS + HOST, &secret), 0);
	close(fd);
	assert_int_equal(events_create(&w->events, &fd, BLOCKS, HOST, B), 0);
	w->events->salt = SALT;
	assert_int_equal(events_open(&w->seen, fd), 0);
	close(fd);
	assert_int_equal(kv_create(&w->kv, &(struct kv_config){ .n_blocks = BLOCKS, .n_host = HOST, .block_tokens = B,
	                     .copies = 16, .key = { 7, 9 }, .n_owners = 1, .shown = w->shown, .events = w->events }), 0);
	assert_int_equal(mirror_create(&w->mirror, w->seen), 0);
	w->sink = (struct mirror_sink){ w, on_stored, on_removed, on_cleared };
	return w;
}

static void end(struct world *w)
{
	kv_destroy(w->kv);
	mirror_destroy(w->mirror);
	events_close(w->seen);
	events_destroy(w->events);
	prefix_destroy(w->shown);
	free(w);
}

/* A prompt of n tokens is computed and released; texts share beginnings. */
static void prompt(struct world *w, int32_t text, int32_t n, uint64_t salt)
{
	struct kv_chunk chunk[8];
	int32_t block[40];
	struct kv_table t = { .block = block, .cap = 32, .salt = salt, .at = chunk };

	for (int i = 0; i < 8; i++) {
		chunk[i].next = i < 7 ? &chunk[i + 1] : NULL;
		for (int j = 0; j < KV_CHUNK; j++)
			chunk[i].id[j] = (i == 0 ? text / 4 : text) * 1000 + i * KV_CHUNK + j;
	}
	kv_begin(w->kv, 16);
	kv_match(w->kv, &t, n);
	assert_int_equal(kv_grow(w->kv, &t, n), 0);
	kv_launched(w->kv);
	kv_publish(w->kv, &t, n);
	kv_release(w->kv, &t);
}

static int by_value(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* What was told, both tiers, is what the page of prefixes shows. */
static void same(struct world *w)
{
	static uint64_t have[4 * (BLOCKS + HOST)], told[4 * (BLOCKS + HOST)];
	int n = 0, m = 0;

	for (uint32_t b = 0; b < w->shown->n_buckets; b++)
		for (int k = 0; k < PREFIX_PLACES; k++)
			if (w->shown->bucket[b][k])
				have[n++] = w->shown->bucket[b][k];
	for (int t = 0; t < 2; t++)
		for (int i = 0; i < w->told[t].n; i++)
			told[m++] = w->told[t].name[i];
	assert_int_equal(n, m);
	qsort(have, (size_t)n, sizeof(*have), by_value);
	qsort(told, (size_t)m, sizeof(*told), by_value);
	assert_memory_equal(have, told, (size_t)n * sizeof(*have));
}

static void load(struct world *w, int prompts)
{
	for (int i = 0; i < prompts; i++)
		prompt(w, (int32_t)rnd(TEXTS), 1 + (int32_t)rnd(500), SALT);
}

/* ---- tests ---- */

/* Turn by turn: blocks come behind their parents, and evictions are told. */
static void follows(void **state)
{
	struct world *w = make();

	(void)state;
	mirror_turn(w->mirror, &w->sink, UINT64_MAX);
	w->parents = true;
	for (int i = 0; i < 300; i++) {
		load(w, (int)rnd(8));
		mirror_turn(w->mirror, &w->sink, UINT64_MAX);
		same(w);
	}
	assert_true(w->stored > 1000 && w->removed > 1000);
	assert_true(w->told[1].n > 0);                          /* the host tier, too */
	assert_int_equal(mirror_overruns(w->mirror), 0);
	end(w);
}

/* Bounded turns lag behind and catch up. */
static void in_parts(void **state)
{
	struct world *w = make();

	(void)state;
	mirror_turn(w->mirror, &w->sink, UINT64_MAX);
	load(w, 200);
	while (mirror_turn(w->mirror, &w->sink, 7))
		;
	same(w);
	end(w);
}

/* A reader that comes late, or is a round too late, compares all blocks: parents first. */
static void overrun(void **state)
{
	struct world *w = make();

	(void)state;
	load(w, 50);
	w->parents = true;
	mirror_turn(w->mirror, &w->sink, UINT64_MAX);
	same(w);
	for (int round = 0; round < 3; round++) {
		uint64_t n = w->events->n;

		while (w->events->n - n < EVENTS_RING)
			load(w, 10);
		mirror_turn(w->mirror, &w->sink, UINT64_MAX);
		assert_int_equal(mirror_overruns(w->mirror), round + 1);
		same(w);
	}
	load(w, 20);
	mirror_turn(w->mirror, &w->sink, UINT64_MAX);
	same(w);
	end(w);
}

/* All is told anew: once each, parents first. */
static void anew(void **state)
{
	struct world *w = make();

	(void)state;
	load(w, 60);
	mirror_turn(w->mirror, &w->sink, UINT64_MAX);
	w->parents = true;
	mirror_tell_all(w->mirror, &w->sink);
	assert_int_equal(w->cleared, 1);
	same(w);
	end(w);
}

/* Blocks of another salt are not told. */
static void salts(void **state)
{
	struct world *w = make();

	(void)state;
	prompt(w, 1, 100, SALT + 1);
	prompt(w, 2, 100, SALT);
	mirror_turn(w->mirror, &w->sink, UINT64_MAX);
	assert_int_equal(w->stored, 100 / B);
	prompt(w, 3, 200, SALT + 1);
	mirror_turn(w->mirror, &w->sink, UINT64_MAX);
	assert_int_equal(w->stored, 100 / B);
	end(w);
}

/* Nobody but the daemon writes; a page of another shape is refused. */
static void page(void **state)
{
	struct events_page *p;
	const struct events_page *seen;
	struct events_name n;
	int32_t ids[B];
	int fd, other = memfd_create("test", MFD_ALLOW_SEALING);

	(void)state;
	assert_int_equal(events_create(&p, &fd, 8, 0, B), 0);
	assert_true(mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	assert_int_equal(ftruncate(fd, 0), -1);
	p->block_tokens = 65;
	assert_int_equal(events_open(&seen, fd), -EPROTO);
	p->block_tokens = B;
	p->n_blocks = 9;
	assert_int_equal(events_open(&seen, fd), -EPROTO);
	p->n_blocks = 8;
	assert_int_equal(events_open(&seen, other), -EPROTO);
	assert_int_equal(events_open(&seen, fd), 0);
	assert_int_equal(events_read(seen, 3, &n, ids), 0);
	events_begin((struct events_name *)(p->name + 3 * p->name_bytes));
	assert_int_equal(events_read(seen, 3, &n, ids), -EAGAIN);  /* half written */
	events_end(p, (struct events_name *)(p->name + 3 * p->name_bytes), EVENTS_LIVE - EVENTS_BUSY, 3);
	assert_int_equal(events_read(seen, 3, &n, ids), 1);
	events_close(seen);
	close(fd);
	close(other);
	events_destroy(p);
}

/* The bytes of small batches, as msgspec writes vLLM's classes. */
static void bytes(void **state)
{
	static struct batch b = { .rank = 0, .block_tokens = 2 };
	static const int32_t ids[4] = { 1, 300, 70000, 2 };
	static const char map[] =
		"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x93"
		"\x81\xa4type\xb0" "AllBlocksCleared"
		"\x8a\xa4type\xab" "BlockStored" "\xac" "block_hashes" "\x92\xcf\x80\0\0\0\0\0\0\1\x05"
		"\xb1" "parent_block_hash" "\xc0\xa9" "token_ids" "\x94\1\xcd\1\x2c\xce\0\1\x11\x70\2\xaa" "block_size" "\2"
		"\xa7" "lora_id" "\xc0\xa6" "medium" "\xa3" "GPU" "\xa9" "lora_name" "\xc0\xa9" "group_idx" "\0"
		"\xb2" "kv_cache_spec_kind" "\xae" "full_attention"
		"\x84\xa4type\xac" "BlockRemoved" "\xac" "block_hashes" "\x91\x05\xa6" "medium" "\xa3" "CPU"
		"\xa9" "group_idx" "\0" "\0";
	static const char array[] =
		"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x93"
		"\x91\xb0" "AllBlocksCleared"
		"\x98\xab" "BlockStored" "\x92\xcf\x80\0\0\0\0\0\0\1\x05\xc0\x94\1\xcd\1\x2c\xce\0\1\x11\x70\2\2\xc0\xa3"
		"GPU" "\xc0"
		"\x93\xac" "BlockRemoved" "\x91\x05\xa3" "CPU" "\0";
	const unsigned char *got;
	bool failed;
	size_t n;

	(void)state;
	assert_null(batch_take(&b, 1.5, &n, &failed));
	assert_false(failed);
	for (int k = 0; k < 2; k++) {
		b.arrays = k;
		batch_cleared(&b);
		batch_stored(&b, &(struct mirror_block){ 0x8000000000000001u, 0, 0, false, ids });
		batch_stored(&b, &(struct mirror_block){ 5, 0x8000000000000001u, 0, false, ids + 2 });
		batch_removed(&b, 5, 0, true);
		got = batch_take(&b, 1.5, &n, &failed);
		assert_non_null(got);
		assert_int_equal(n, k ? sizeof(array) - 1 : sizeof(map) - 1);
		assert_memory_equal(got, k ? array : map, n);
	}
	batch_free(&b);
}

static void settings(void **state)
{
	static const struct { const char *text, *say; } wrong[] = {
		{ "[]", "must be a JSON object" }, { "{", "must be a JSON object" },
		{ "{\"publisher\":\"kafka\"}", "\"publisher\" must be \"zmq\" or \"null\"" },
		{ "{\"endpoint\":\"udp://x:1\"}", "\"endpoint\" must begin with tcp:// or ipc://" },
		{ "{\"endpoint\":null}", "\"endpoint\" must begin" },
		{ "{\"replay_endpoint\":\"x\"}", "\"replay_endpoint\" must begin" },
		{ "{\"buffer_steps\":0}", "\"buffer_steps\" must be a number" },
		{ "{\"encoding\":\"json\"}", "\"encoding\" must be \"map\" or \"array\"" },
		{ "{\"enable_kv_cache_events\":1}", "must be true or false" }, { "{\"topics\":\"\"}", "\"topics\" is no member" },
		{ "{\"topic\":5}", "\"topic\" must be a short text" },
	};
	struct kv_events e;
	char err[512];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(kv_events_parse(&e, wrong[i].text, err, sizeof(err)), -EINVAL);
		if (!strstr(err, wrong[i].say))
			fail_msg("%s: %s", wrong[i].text, err);
	}
	assert_int_equal(kv_events_parse(&e, NULL, err, sizeof(err)), 0);
	assert_false(e.on);
	assert_int_equal(kv_events_parse(&e, "{}", err, sizeof(err)), 0);
	assert_false(e.on);
	assert_int_equal(kv_events_parse(&e, "{\"enable_kv_cache_events\":true}", err, sizeof(err)), 0);
	assert_true(e.on && !e.arrays && !e.topic_given);
	assert_string_equal(e.endpoint, "tcp://lo:5557");
	assert_int_equal(e.steps, 10000);
	assert_int_equal(kv_events_parse(&e, "{\"enable_kv_cache_events\":true,\"publisher\":\"null\",\"topic\":\"\","
	                                 "\"replay_endpoint\":null,\"encoding\":\"array\",\"user\":\"nobody\"}", err,
	                                 sizeof(err)), 0);
	assert_true(!e.on && e.arrays && e.topic_given && !*e.replay);
	assert_string_equal(e.user, "nobody");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(follows), cmocka_unit_test(in_parts), cmocka_unit_test(overrun), cmocka_unit_test(anew),
		cmocka_unit_test(salts), cmocka_unit_test(page), cmocka_unit_test(bytes), cmocka_unit_test(settings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
