/* LINK: core/keep.c core/prefix.c @kv core/instance/fresh.c -lxxhash */
/* test_keep.c - cached prefixes in a file: what comes back is what was there, in its order; and a file with any one
 * byte changed, cut anywhere, or of anything else, is refused and leaves the cache empty. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/keep.h"

#define TOKENS 8
#define BLOCKS 12
#define BYTES  40

static unsigned char memory[BLOCKS][BYTES];
static const char *kind_now = "toy";

static void *toy_kv(struct sr_backend *b, int32_t i, const char **kind)
{
	(void)b;
	assert_in_range(i, 0, BLOCKS - 1);
	*kind = kind_now;
	return memory[i];
}

static const struct sr_backend_ops ops = { .name = "toy", .kv = toy_kv };
static const struct prefix_secret secret = { { 1, 2 }, { 3, 4 } };
static char dir[64], path[80], err[300];
static struct keep keep;

static struct kv *make(uint64_t key)
{
	const struct kv_config c = { .n_blocks = BLOCKS, .block_tokens = TOKENS, .key = { key, ~key }, .n_owners = 2 };
	struct kv *kv;

	assert_int_equal(kv_create(&kv, &c), 0);
	return kv;
}

static void ids_of(struct kv_chunk *c, int text)
{
	*c = (struct kv_chunk){ 0 };
	for (int i = 0; i < KV_CHUNK; i++)
		c->id[i] = i < TOKENS ? 7 : text * 100 + i;  /* the first block is common to all */
}

/* Compute n blocks of a text and release them: each block's content is its ids and its salt. */
static int32_t compute(struct kv *kv, int text, int32_t n, uint64_t salt)
{
	struct kv_chunk c;
	int32_t block[KV_TABLE_INTS(1, BLOCKS)], found;
	struct kv_table t = { .block = block, .cap = BLOCKS, .salt = salt, .at = &c };

	ids_of(&c, text);
	kv_begin(kv, 0);
	found = kv_match(kv, &t, n * TOKENS + 1);
	assert_int_equal(kv_grow(kv, &t, n * TOKENS), 0);
	for (int32_t j = 0; j < n; j++) {
		unsigned char want[BYTES];

		memset(want, 0, sizeof(want));
		memcpy(want, &c.id[j * TOKENS], TOKENS * 4);
		memcpy(want + TOKENS * 4, &salt, sizeof(salt));
		if (j * TOKENS < found)
			assert_memory_equal(memory[block[j]], want, BYTES);
		else
			memcpy(memory[block[j]], want, BYTES);
	}
	kv_launched(kv);
	kv_publish(kv, &t, n * TOKENS);
	kv_release(kv, &t);
	kv_check(kv);
	return found;
}

static struct kv *filled(void)
{
	struct kv *kv = make(5);

	memset(memory, 0, sizeof(memory));
	assert_int_equal(compute(kv, 1, 4, 11), 0);
	assert_int_equal(compute(kv, 2, 3, 11), TOKENS);
	assert_int_equal(compute(kv, 3, 2, 12), 0);
	return kv;
}

static int set_up(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/slipring-keep-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/x.kv", dir);
	keep = (struct keep){ .dir = dir, .name = "x.kv", .most = 1 << 20, .ops = &ops, .block_tokens = TOKENS,
	                      .n_blocks = BLOCKS, .block_bytes = BYTES, .identity = { 8, 9 } };
	kind_now = "toy";
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(dir);
}

static int put(void)
{
	struct kv *kv = filled();
	int n = keep_write(&keep, &secret, kv, err, sizeof(err));

	kv_destroy(kv);
	return n;
}

/* Into the cache of the next daemon, which names blocks by another key. */
static int get(struct kv **out)
{
	memset(memory, 0, sizeof(memory));
	*out = make(6);
	return keep_read(&keep, &secret, *out, err, sizeof(err));
}

static void comes_back(void **state)
{
	struct prefix_secret s = { { 0 }, { 0 } };
	struct kv_saved saved[BLOCKS];
	struct kv *kv;

	(void)state;
	assert_int_equal(get(&kv), -ENOENT);
	assert_int_equal(keep_secret(&keep, &s, err, sizeof(err)), -ENOENT);
	kv_destroy(kv);
	assert_int_equal(put(), 8);
	assert_int_equal(keep_secret(&keep, &s, err, sizeof(err)), 0);
	assert_memory_equal(&s, &secret, sizeof(s));
	assert_int_equal(get(&kv), 8);
	kv_check(kv);
	assert_int_equal(kv_saved(kv, saved, BLOCKS), 8);
	assert_true(saved[0].salt == 12 && saved[0].parent == -1 && saved[1].parent == 0); /* the last one first */
	assert_int_equal(compute(kv, 2, 3, 11), 3 * TOKENS);
	assert_int_equal(compute(kv, 1, 4, 11), 4 * TOKENS);
	assert_int_equal(compute(kv, 3, 2, 12), 2 * TOKENS);
	assert_int_equal(compute(kv, 3, 2, 13), 0);              /* another salt */
	kv_destroy(kv);
}

/* What was used last, parents with their children. */
static void as_much_as_fits(void **state)
{
	struct kv *kv;

	(void)state;
	keep.most = 96 + 3 * (16 + 4 * TOKENS + BYTES + 16) + 5;
	assert_int_equal(put(), 3);
	assert_int_equal(get(&kv), 3);
	assert_int_equal(compute(kv, 3, 2, 12), 2 * TOKENS);
	assert_int_equal(compute(kv, 1, 4, 11), TOKENS);         /* the block that all begin with */
	kv_destroy(kv);
	keep.most = 10;
	assert_int_equal(put(), 0);
	assert_int_equal(get(&kv), 0);
	kv_destroy(kv);
	keep.most = 1 << 20;
	assert_int_equal(put(), 8);
	keep.n_blocks = 4;                                       /* a smaller cache takes the newest */
	memset(memory, 0, sizeof(memory));
	kv = NULL;
	assert_int_equal(kv_create(&kv, &(struct kv_config){ .n_blocks = 4, .block_tokens = TOKENS }), 0);
	assert_int_equal(keep_read(&keep, &secret, kv, err, sizeof(err)), 4);
	kv_check(kv);
	kv_destroy(kv);
}

static void refused(int want, const char *what, size_t at)
{
	static const unsigned char zero[BLOCKS][BYTES];
	struct kv_stats st;
	struct kv *kv;
	int r = get(&kv);

	kv_stats(kv, &st);
	if (r >= 0 || (want && r != want) || st.n_free != BLOCKS || memcmp(memory, zero, sizeof(zero)))
		fail_msg("%s at %zu: %d, %d blocks are free", what, at, r, st.n_free);
	kv_destroy(kv);
}

static void write_file(const unsigned char *p, size_t n)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_int_equal(write(fd, p, n), n);
	close(fd);
}

static void any_byte(void **state)
{
	static unsigned char all[4096];
	ssize_t n;
	int fd;

	(void)state;
	assert_int_equal(put(), 8);
	fd = open(path, O_RDONLY);
	n = read(fd, all, sizeof(all));
	close(fd);
	assert_int_equal(n, 96 + 8 * (16 + 4 * TOKENS + BYTES + 16));
	for (ssize_t i = 0; i < n; i++) {
		all[i] ^= (unsigned char)(1 << i % 8);
		write_file(all, (size_t)n);
		refused(0, "a changed byte", (size_t)i);
		all[i] ^= (unsigned char)(1 << i % 8);
	}
	for (ssize_t i = 0; i < n; i += 7) {
		write_file(all, (size_t)i);
		refused(-EPROTO, "cut", (size_t)i);
	}
	write_file(all, (size_t)n + 1);
	refused(-EPROTO, "longer", 0);
}

/* Of another model, back end, block size or secret; not a file of ours alone, in a folder of ours alone. */
static void anything_else(void **state)
{
	struct prefix_secret other = { { 1, 2 }, { 3, 5 } };
	struct kv *kv;
	char real[96];

	(void)state;
	assert_int_equal(put(), 8);
	keep.identity[1] = 1;
	refused(-ESTALE, "identity", 0);
	keep.identity[1] = 9;
	kind_now = "other";
	refused(-ESTALE, "kind", 0);
	kind_now = "toy";
	keep.block_bytes--;
	refused(-ESTALE, "bytes of a block", 0);
	keep.block_bytes++;
	keep.block_tokens = 16;
	refused(-ESTALE, "tokens of a block", 0);
	keep.block_tokens = TOKENS;
	kv = make(6);
	assert_int_equal(keep_read(&keep, &other, kv, err, sizeof(err)), -ESTALE);
	kv_destroy(kv);
	chmod(path, 0640);
	refused(-EPERM, "readable by others", 0);
	chmod(path, 0600);
	chmod(dir, 0720);
	refused(-EPERM, "a folder that others write", 0);
	assert_int_equal(put(), -EPERM);
	chmod(dir, 0700);
	snprintf(real, sizeof(real), "%s.real", path);
	rename(path, real);
	assert_int_equal(symlink(real, path), 0);
	refused(-ELOOP, "a link", 0);
	assert_int_equal(put(), 8);               /* the link is replaced, what it points to is not */
	assert_int_equal(get(&kv), 8);
	kv_destroy(kv);
	unlink(real);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	refused(-EPERM, "a pipe", 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(comes_back, set_up, tear_down),
		cmocka_unit_test_setup_teardown(as_much_as_fits, set_up, tear_down),
		cmocka_unit_test_setup_teardown(any_byte, set_up, tear_down),
		cmocka_unit_test_setup_teardown(anything_else, set_up, tear_down),
	};

	return cmocka_run_group_tests_name("keep", tests, NULL, NULL);
}
