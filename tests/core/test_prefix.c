/* LINK: core/prefix.c @kv */
/* test_prefix.c - the page shows what the KV cache has published; secrets; what a match would find. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/kv/kv.h"
#include "core/prefix.h"

#define B 16

static const struct prefix_secret secret = { { 1, 2 }, { 3, 4 } };
static uint64_t rnd_state = 88172645463325252u;

static uint64_t rnd(void)
{
	rnd_state ^= rnd_state << 13;
	rnd_state ^= rnd_state >> 7;
	return rnd_state ^= rnd_state << 17;
}

/* A table of half as many names as blocks loses none, and takes all of them out again. */
static void room(void **state)
{
	enum { N = 100000 };
	static uint64_t name[N];
	struct prefix_page *p;
	int fd, lost = 0;

	(void)state;
	assert_int_equal(prefix_create(&p, &fd, N, &secret), 0);
	for (int i = 0; i < N; i++)
		prefix_put(p, name[i] = rnd() | 1);
	for (int i = 0; i < N; i++)
		lost += !prefix_has(p, name[i]);
	assert_int_equal(lost, 0);
	for (int i = 0; i < N; i += 2)
		prefix_take(p, name[i]);
	for (int i = 0; i < N; i++)
		assert_int_equal(prefix_has(p, name[i]), i % 2);
	close(fd);
	prefix_destroy(p);
}

/* Only the daemon writes; a page of another shape is refused. */
static void page(void **state)
{
	struct prefix_page *p;
	const struct prefix_page *seen;
	int fd, other = memfd_create("test", MFD_ALLOW_SEALING);

	(void)state;
	assert_int_equal(prefix_create(&p, &fd, 100, &secret), 0);
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(prefix_open(&seen, fd), -EPROTO);     /* the daemon has not said how long its blocks are */
	p->block_tokens = B;
	assert_int_equal(prefix_open(&seen, fd), 0);
	prefix_put(p, 77);
	assert_true(prefix_has(seen, 77));
	assert_memory_equal(&seen->secret, &secret, sizeof(secret));
	prefix_close(seen);
	p->n_buckets *= 2;
	assert_int_equal(prefix_open(&seen, fd), -EPROTO);
	assert_int_equal(ftruncate(other, 1 << 20), 0);
	assert_int_equal(prefix_open(&seen, other), -EPROTO);  /* its owner could cut it */
	close(other);
	close(fd);
	p->n_buckets /= 2;
	prefix_destroy(p);
}

/* Replicas that a service manager starts get the secret from it. */
static void credentials(void)
{
	char dir[] = "/tmp/test_prefix.XXXXXX", path[64];
	struct prefix_secret a, b = { { 5, 6 }, { 7, 8 } };
	FILE *f;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/" PREFIX_CREDENTIAL, dir);
	setenv("CREDENTIALS_DIRECTORY", dir, 1);
	assert_int_equal(prefix_secret(&a), 0);                /* it has none: random */
	f = fopen(path, "w");
	assert_int_equal(fwrite(&b, sizeof(b), 1, f), 1);
	fclose(f);
	assert_int_equal(prefix_secret(&a), 1);
	assert_memory_equal(&a, &b, sizeof(a));
	assert_int_equal(truncate(path, sizeof(b) - 1), 0);
	assert_int_equal(prefix_secret(&a), -EINVAL);          /* too short: no key at all */
	unsetenv("CREDENTIALS_DIRECTORY");
	unlink(path);
	rmdir(dir);
}

static void secrets(void **state)
{
	struct prefix_secret a, b;
	char text[16];
	int fd = prefix_secret_fd();

	(void)state;
	assert_true(fd >= 0);
	snprintf(text, sizeof(text), "%d", dup(fd));
	setenv(PREFIX_SECRET_FD, text, 1);
	assert_int_equal(prefix_secret(&a), 1);
	assert_null(getenv(PREFIX_SECRET_FD));
	snprintf(text, sizeof(text), "%d", dup(fd));
	setenv(PREFIX_SECRET_FD, text, 1);
	assert_int_equal(prefix_secret(&b), 1);
	assert_memory_equal(&a, &b, sizeof(a));
	assert_int_equal(prefix_secret(&b), 0);                /* without the environment: random */
	assert_memory_not_equal(&a, &b, sizeof(a));
	setenv(PREFIX_SECRET_FD, "0", 1);
	assert_int_equal(prefix_secret(&b), -EINVAL);
	close(fd);
	unsetenv(PREFIX_SECRET_FD);
	credentials();
	/* A tenant never equals a uid; scopes keep apart what they say. */
	assert_int_equal(prefix_tenant(&a, 7, true, 0), 7);
	assert_int_equal(prefix_tenant(&a, 7, false, 9), 7);
	assert_true(prefix_tenant(&a, 7, true, 9) >> 63);
	assert_true(prefix_salt(&a, PREFIX_BY_UID, 7, 1, 0) == prefix_salt(&a, PREFIX_BY_UID, 7, 2, 0));
	assert_true(prefix_salt(&a, PREFIX_BY_TENANT, 7, 1, 0) != prefix_salt(&a, PREFIX_BY_TENANT, 7, 2, 0));
	assert_true(prefix_salt(&a, PREFIX_GLOBAL, 7, 1, 0) == prefix_salt(&a, PREFIX_GLOBAL, 8, 2, 0));
	assert_true(prefix_salt(&a, PREFIX_GLOBAL, 7, 1, 0) != prefix_salt(&a, PREFIX_GLOBAL, 7, 1, 5));
}

/* ---- beside the KV cache ---- */

#define LONGEST 640
struct seq { struct kv_table t; struct kv_chunk chunk[LONGEST / KV_CHUNK + 2]; int32_t n; };

static void ids_of(struct seq *s, uint64_t seed, int32_t n)
{
	s->n = n;
	for (int32_t i = 0; i < LONGEST / KV_CHUNK + 2; i++) {
		s->chunk[i].next = i < LONGEST / KV_CHUNK + 1 ? &s->chunk[i + 1] : NULL;
		for (int32_t k = 0; k < KV_CHUNK; k++) {
			int32_t at = i * KV_CHUNK + k;

			/* Prompts of 3 families; each parts from its family after a multiple of 5 tokens. */
			s->chunk[i].id[k] = at < (int32_t)(seed % 100) * 5 ? (int32_t)(seed % 3) * 1000 + at : (int32_t)seed + at;
		}
	}
}

static int32_t shown_of(const struct prefix_page *p, const struct seq *s, uint64_t salt)
{
	uint64_t low[LONGEST / B];
	struct prefix_name at = { { 0, 0 } };
	int32_t n = (s->n - 1) / B;

	for (int32_t i = 0; i < n; i++) {
		at = prefix_name(secret.name, at.w, salt, s->chunk[i * B / KV_CHUNK].id + i * B % KV_CHUNK, B);
		low[i] = at.w[0];
	}
	return prefix_match(p, low, n);
}

/* What the page says of a prompt is what kv_match finds, at each of 20,000 moments of a random load. */
static void beside_kv(int32_t window, int32_t n_host)
{
	enum { N = 12 };
	static struct seq s[N];
	static int32_t storage[N][2 * (LONGEST / B + 2)];
	struct prefix_page *p;
	struct kv *kv;
	int fd, hits = 0;

	memset(s, 0, sizeof(s));
	assert_int_equal(prefix_create(&p, &fd, 200 + n_host, &secret), 0);
	close(fd);
	assert_int_equal(kv_create(&kv, &(struct kv_config){ .n_blocks = 200, .n_host = n_host, .block_tokens = B, .copies = 8,
		.key = { 1, 2 }, .n_groups = window ? 2 : 1, .group = { { 0 }, { window } }, .shown = p }), 0);
	for (int step = 0; step < 20000; step++) {
		struct seq *q = &s[rnd() % N];
		int32_t shown, got;

		kv_begin(kv, 8);
		if (q->t.n) {
			kv_release(kv, &q->t);
		} else {
			ids_of(q, rnd() % 60, 1 + (int32_t)(rnd() % LONGEST));
			q->t = (struct kv_table){ .block = storage[q - s], .cap = LONGEST / B + 1, .salt = rnd() % 2,
			                          .at = q->chunk, .end = q->n / B };
			shown = shown_of(p, q, q->t.salt);
			got = kv_match(kv, &q->t, q->n) / B;
			if (!n_host)
				assert_int_equal(got, shown);
			else
				assert_true(got <= shown);       /* its copies may have to wait */
			hits += got > 0;
			if (kv_grow(kv, &q->t, q->n) == 0)
				kv_publish(kv, &q->t, q->n);
			else
				kv_release(kv, &q->t);
		}
		kv_launched(kv);
	}
	assert_true(hits > 1000);
	for (struct seq *q = s; q < s + N; q++)
		kv_release(kv, &q->t);
	kv_check(kv);
	kv_destroy(kv);
	prefix_destroy(p);
}

static void full(void **state) { (void)state; beside_kv(0, 0); }
static void two_tiers(void **state) { (void)state; beside_kv(0, 150); }
static void windows(void **state) { (void)state; beside_kv(64, 0); }

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(room), cmocka_unit_test(page), cmocka_unit_test(secrets), cmocka_unit_test(full),
		cmocka_unit_test(two_tiers), cmocka_unit_test(windows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
