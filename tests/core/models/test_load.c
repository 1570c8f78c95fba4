/* LINK: core/models/load.c core/instance/io.c -luring -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=open,--wrap=fstat,--wrap=mmap,--wrap=pread,--wrap=io_read_start,--wrap=preadv2 */
/* test_load.c - reads of weights: every way, every alignment, and a file that shrinks. */
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
#include <unistd.h>

#include "core/models/load.h"
#include "tests/rig/nth_call.h"

#define BYTES (3u << 20)
static char path[] = "/tmp/slipring-test-load-XXXXXX";
static uint8_t *truth;

static int setup(void **state)
{
	int fd = mkstemp(path);

	(void)state;
	truth = malloc(BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		truth[i] = (uint8_t)(i * 2654435761u >> 13);
	assert_true(fd >= 0 && write(fd, truth, BYTES) == BYTES);
	fsync(fd);
	close(fd);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(path);
	free(truth);
	return 0;
}

static uint64_t seen;
static void on_progress(void *ctx, uint64_t bytes) { (void)ctx; seen = bytes; }

static const struct { uint64_t offset, bytes; } part[] = {
	{ 0, 1 }, { 0, 4096 }, { 1, 4095 }, { 4095, 2 }, { 4096, 8192 }, { 12345, 54321 }, { 100, 1 << 20 },
	{ BYTES - 1, 1 }, { BYTES - 5000, 5000 }, { BYTES - 4096, 4096 }, { 0, BYTES },
};
#define PARTS (sizeof(part) / sizeof(*part))

static void read_parts(int io_flags, bool cached)
{
	char *file[] = { path }, err[512] = "", *buf;
	const struct sr_source *src;
	struct load *l;
	struct io *io;
	uint64_t total = 0;
	size_t each;
	int fd = open(path, O_RDONLY);

	if (!cached)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	else
		assert_int_equal(pread(fd, (void *)truth, BYTES, 0), BYTES);
	close(fd);
	assert_int_equal(io_create(&io, io_flags), 0);
	assert_int_equal(load_create(&l, io, file, 1, on_progress, NULL, err, sizeof(err)), 0);
	src = load_source(l);
	each = BYTES + src->slack;
	buf = malloc(PARTS * each + 1);
	assert_int_equal(src->arena(src->ctx, buf, PARTS * each), 0);
	for (size_t i = 0; i < PARTS; i++) {
		const struct sr_extent e = { part[i].offset, part[i].bytes, 0 };

		assert_int_equal(src->read(src->ctx, &e, 0, e.bytes, buf + i * each + i % 2, i), 0);
		total += e.bytes;
	}
	for (size_t n = 0; n < PARTS; n++) {
		uint64_t i = 99;
		void *at = NULL;

		assert_int_equal(src->wait(src->ctx, &i, &at), 0);
		assert_true(i < PARTS);
		assert_true((char *)at >= buf + i * each &&
		            (char *)at + part[i].bytes <= buf + (i + 1) * each + i % 2);
		assert_memory_equal(at, truth + part[i].offset, part[i].bytes);
	}
	assert_int_equal(seen, total);
	load_destroy(l);
	io_destroy(io);
	free(buf);
}

static void test_ways(void **state)
{
	(void)state;
	read_parts(0, true);
	read_parts(0, false);
	read_parts(IO_EPOLL, true);
	read_parts(IO_EPOLL, false);
}

/* Reads beyond the room are refused with -EAGAIN, and none is lost. */
static void test_many(void **state)
{
	char *file[] = { path }, err[512] = "", buf[4096 * 4];
	const struct sr_extent e = { 10, 100, 0 };
	const struct sr_source *src;
	struct load *l;
	struct io *io;
	uint64_t tag;
	void *at;
	int n = 0, refused = 0;

	(void)state;
	assert_int_equal(io_create(&io, 0), 0);
	assert_int_equal(load_create(&l, io, file, 1, NULL, NULL, err, sizeof(err)), 0);
	src = load_source(l);
	for (int i = 0; i < 200; i++)
		while (src->read(src->ctx, &e, 0, 100, buf, (uint64_t)i) == -EAGAIN) {
			refused++;
			assert_int_equal(src->wait(src->ctx, &tag, &at), 0);
			n++;
		}
	for (; n < 200; n++)
		assert_int_equal(src->wait(src->ctx, &tag, &at), 0);
	assert_true(refused > 0);
	load_destroy(l);
	io_destroy(io);
}

static void test_shrunk(void **state)
{
	char *file[] = { path }, err[512] = "", *buf = malloc(BYTES + 16384);
	const struct sr_extent e = { 1 << 20, 1 << 20, 0 };
	const struct sr_source *src;
	struct load *l;
	struct io *io;
	uint64_t tag;
	void *at;

	(void)state;
	for (int cached = 0; cached < 2; cached++) {
		int fd = open(path, O_RDWR);

		assert_int_equal(ftruncate(fd, BYTES), 0);
		fsync(fd);
		if (!cached)
			posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		assert_int_equal(io_create(&io, 0), 0);
		assert_int_equal(load_create(&l, io, file, 1, NULL, NULL, err, sizeof(err)), 0);
		assert_int_equal(ftruncate(fd, (1 << 20) + 777), 0);
		src = load_source(l);
		assert_int_equal(src->read(src->ctx, &e, 0, e.bytes, buf, 7), 0);
		assert_int_equal(src->wait(src->ctx, &tag, &at), -EIO);
		assert_int_equal(tag, 7);
		assert_non_null(strstr(load_error(l), "offset 1049353: the file ends here"));
		load_destroy(l);
		io_destroy(io);
		close(fd);
	}
	free(buf);
}

/* A made-up result of the first read past the page cache. */
static struct { bool on; int64_t say; } disk;
static bool cached = true;             /* RWF_NOWAIT succeeds */
static struct { struct io_read *r; struct io_timer t; struct io *io; } late;

static void say_late(struct io_timer *t)
{
	(void)t;
	if (disk.say > 0)                  /* bytes that it has read */
		memcpy(late.r->buf, truth + late.r->offset, (size_t)disk.say);
	late.r->fn(late.r, disk.say);
}

int __real_io_read_start(struct io *io, struct io_read *r);
int __wrap_io_read_start(struct io *io, struct io_read *r);
int __wrap_io_read_start(struct io *io, struct io_read *r)
{
	if (!disk.on)
		return __real_io_read_start(io, r);
	disk.on = false;
	if (disk.say == -ENOBUFS)
		return -EAGAIN;            /* other reads fill the loop */
	late.r = r;
	late.t = (struct io_timer){ .fn = say_late };
	io_timer_set(io, &late.t, 1);
	return 0;
}

ssize_t __real_preadv2(int fd, const struct iovec *iov, int n, off_t o, int flags);
ssize_t __wrap_preadv2(int fd, const struct iovec *iov, int n, off_t o, int flags);
ssize_t __wrap_preadv2(int fd, const struct iovec *iov, int n, off_t o, int flags)
{
	errno = EAGAIN;
	return cached ? __real_preadv2(fd, iov, n, o, flags) : -1;
}

/* A read past the page cache that comes in parts, or is refused, is made through it.  A failing
 * disk is an error that says where. */
static void test_disks(void **state)
{
	static const struct { int64_t say; int rc; const char *says; } cases[] = {
		{ 4096, 0, "" },                   /* the rest is asked for */
		{ 8192, 0, "" }, { 1000, 0, "" },  /* in the middle of a block: the rest is read through the cache */
		{ 100 << 10, 0, "" },
		{ -EINVAL, 0, "" },                /* another block size than ours */
		{ -EINTR, 0, "" }, { -EAGAIN, 0, "" }, { -ENOBUFS, 0, "" },
		{ -EIO, -EIO, "offset 8192: Input/output error" },
		{ 0, -EIO, "offset 8192: the file ends here; it was longer when it was opened" },
	};
	char *file[] = { path }, err[512] = "", *buf = aligned_alloc(4096, 256 << 10);
	const struct sr_extent e = { 8200, 100 << 10, 0 };
	struct load *l;
	struct io *io;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const struct sr_source *src;
		uint64_t tag;
		void *at;
		int rc;

		memset(buf, 0, 256 << 10);
		cached = false;
		assert_int_equal(io_create(&io, 0), 0);
		assert_int_equal(load_create(&l, io, file, 1, NULL, NULL, err, sizeof(err)), 0);
		cached = true;
		src = load_source(l);
		if (!src->slack) {
			print_message("SKIP: no O_DIRECT in /tmp\n");
			skip();
		}
		disk.on = true;
		disk.say = cases[i].say;
		assert_int_equal(src->read(src->ctx, &e, 0, e.bytes, buf, 5), 0);
		rc = src->wait(src->ctx, &tag, &at);
		if (rc != cases[i].rc || !strstr(load_error(l), cases[i].says))
			fail_msg("case %zu: %d \"%s\"", i, rc, load_error(l));
		if (rc == 0)
			assert_memory_equal(at, truth + 8200, 100 << 10);
		else
			assert_non_null(strstr(load_error(l), path));
		load_destroy(l);
		io_destroy(io);
	}
	free(buf);
}

/* Of several errors the first is reported.  A load that is given up waits for reads under way. */
static void test_first_error(void **state)
{
	char *file[] = { path }, err[512] = "", *buf = aligned_alloc(4096, 1 << 20);
	const struct sr_extent first = { 4096, 100, 0 }, second = { 400000, 100, 0 };
	const struct sr_source *src;
	uint64_t tag;
	struct load *l;
	struct io *io;
	void *at;

	(void)state;
	for (int given_up = 0; given_up < 2; given_up++) {
		assert_int_equal(io_create(&io, 0), 0);
		cached = given_up == 0;
		assert_int_equal(load_create(&l, io, file, 1, NULL, NULL, err, sizeof(err)), 0);
		cached = true;
		src = load_source(l);
		nth = (typeof(nth)){ .at = 1, .how = NTH_ENDS };
		assert_int_equal(src->read(src->ctx, &first, 0, 100, buf, 1), 0);
		nth = (typeof(nth)){ .at = 1, .how = NTH_FAILS };
		assert_int_equal(src->read(src->ctx, &second, 0, 100, buf + (1 << 19), 2), 0);
		nth.at = 0;
		for (int i = 0; i < 2 && !given_up; i++)
			assert_int_equal(src->wait(src->ctx, &tag, &at), -EIO);
		if (!given_up)
			assert_non_null(strstr(load_error(l), "offset 4096: the file ends here"));
		load_destroy(l);
		io_destroy(io);
	}
	free(buf);
}

static int read_it(char *why, size_t n)
{
	char *file[] = { path }, *buf = malloc(30000);
	const struct sr_extent e = { 77, 20000, 0 };
	const struct sr_source *src;
	struct load *l = NULL;
	struct io *io = NULL;
	uint64_t tag;
	void *at;
	int rc = !buf ? -ENOMEM : io_create(&io, IO_EPOLL);

	if (rc)
		snprintf(why, n, "%s: not of the load", path);
	else if ((rc = load_create(&l, io, file, 1, NULL, NULL, why, n)) == 0) {
		src = load_source(l);
		assert_int_equal(src->read(src->ctx, &e, 0, e.bytes, buf, 1), 0);
		rc = src->wait(src->ctx, &tag, &at);
		snprintf(why, n, "%s", load_error(l));
		if (rc == 0)
			assert_memory_equal(at, truth + 77, 20000);
	} else if (rc == -ENOMEM) {
		assert_non_null(strstr(why, "no memory to read 1 files of weights"));
		snprintf(why, n, "%s", path);
	}
	load_destroy(l);
	io_destroy(io);
	free(buf);
	return rc;
}

/* A stop is reported at once, and nothing more is written to the buffers. */
static void test_stop(void **state)
{
	(void)state;
	for (int way = 0; way < 2; way++) {
		const size_t each = BYTES + 4 * 4096;
		char *file[] = { path }, err[512] = "", *buf = malloc(16 * each), *same = malloc(16 * each);
		struct sr_extent e = { 0, BYTES, 0 };
		const struct sr_source *src;
		struct load *l;
		struct io *io;
		uint64_t tag;
		void *at;

		assert_true(buf && same);
		cached = way == 1;
		assert_int_equal(io_create(&io, 0), 0);
		assert_int_equal(load_create(&l, io, file, 1, NULL, NULL, err, sizeof(err)), 0);
		src = load_source(l);
		for (uint64_t i = 0; i < 16; i++)
			assert_int_equal(src->read(src->ctx, &e, 0, BYTES, buf + i * each, i), 0);
		assert_int_equal(src->wait(src->ctx, &tag, &at), 0);
		load_stop(l);
		assert_int_equal(src->wait(src->ctx, &tag, &at), -EIO);
		assert_string_equal(load_error(l), "");
		memset(buf, 0xa5, 16 * each);
		memset(same, 0xa5, 16 * each);
		load_destroy(l);
		io_destroy(io);
		assert_memory_equal(buf, same, 16 * each);
		free(buf);
		free(same);
	}
	cached = true;
}

static void test_calls_that_fail(void **state)
{
	(void)state;
	for (enum nth how = NTH_FAILS; how <= NTH_ENDS; how++)
		nth_each(how, read_it, path);
}

static void test_made_up(void **state)
{
	const struct sr_extent ones = { 4, 64, LOAD_ONES }, noise = { 1000, 4096, LOAD_RANDOM };
	char err[512] = "";
	uint16_t a[2048], b[2048];
	const struct sr_source *src;
	struct load *l;
	struct io *io;
	uint64_t tag;
	void *at;
	int minus = 0;

	(void)state;
	assert_int_equal(io_create(&io, 0), 0);
	assert_int_equal(load_create(&l, io, NULL, 0, NULL, NULL, err, sizeof(err)), 0);
	src = load_source(l);
	assert_int_equal(src->slack, 0);
	assert_int_equal(src->read(src->ctx, &ones, 0, 64, a, 1), 0);
	for (int i = 0; i < 32; i++)
		assert_int_equal(a[i], 0x3f80);
	assert_int_equal(src->read(src->ctx, &noise, 0, 4096, a, 2), 0);
	for (int i = 0; i < 2048; i++) {
		assert_in_range(a[i] & 0x7fff, 0x3c00, 0x3cff);        /* 2^-7 up to 2^-5 */
		minus += a[i] >> 15;
	}
	assert_in_range(minus, 800, 1248);
	assert_int_equal(src->read(src->ctx, &noise, 14, 1001, b, 3), 0);
	assert_memory_equal((char *)a + 14, b, 1001);              /* the same from any start */
	for (uint64_t i = 1; i <= 3; i++) {
		assert_int_equal(src->wait(src->ctx, &tag, &at), 0);
		assert_int_equal(tag, i);
	}
	load_destroy(l);
	io_destroy(io);
}

static void test_refused(void **state)
{
	static const char *const bad[] = { "/nowhere/at/all", "/tmp", "/dev/zero" };
	struct load *l;
	struct io *io;

	(void)state;
	assert_int_equal(io_create(&io, 0), 0);
	for (unsigned i = 0; i < 3; i++) {
		char *file[] = { (char *)(uintptr_t)bad[i] }, err[512] = "";

		assert_true(load_create(&l, io, file, 1, NULL, NULL, err, sizeof(err)) < 0);
		assert_non_null(strstr(err, bad[i]));
	}
	io_destroy(io);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ways), cmocka_unit_test(test_many), cmocka_unit_test(test_made_up),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_disks), cmocka_unit_test(test_first_error),
		cmocka_unit_test(test_calls_that_fail), cmocka_unit_test(test_stop),
		cmocka_unit_test(test_shrunk),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
