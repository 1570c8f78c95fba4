/* LINK: core/models/gguf.c core/models/gguf_parts.c core/instance/refuse.c -Wl,--wrap=calloc,--wrap=malloc */
/* test_gguf_parts.c - a GGUF of several parts: joined to one table; and each way in which parts can fail to belong
 * together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/models/gguf_parts.h"
#include "tests/rig/gguf_write.h"

static char dir[] = "/tmp/slipring-test-parts-XXXXXX", err[1000];
static struct bytes w;
static int calls, fail_at;

void *__real_calloc(size_t n, size_t size);
void *__real_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t n);

void *__wrap_calloc(size_t n, size_t size)
{
	return ++calls == fail_at ? NULL : __real_calloc(n, size);
}

void *__wrap_malloc(size_t n)
{
	return ++calls == fail_at ? NULL : __real_malloc(n);
}

/* What a part says; tensors are vectors of 8 named by letters. */
struct part { uint32_t count, no, tensors; const char *names; };

static const char *path_of(const char *name)
{
	static char path[200];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static void write_part(const char *name, struct part p)
{
	uint32_t n = (uint32_t)strlen(p.names);
	FILE *f = fopen(path_of(name), "w");

	put_head(&w, 3, n, 3);
	put_kv_u32(&w, "split.count", p.count);
	put_kv_u32(&w, "split.no", p.no);
	put_kv_u32(&w, "split.tensors.count", p.tensors);
	for (uint32_t i = 0; i < n; i++)
		put_tensor(&w, (char[]){ p.names[i], 0 }, 1, 8, 0, 0, 32 * i);
	put_pad(&w, 32);
	put_zeros(&w, 32 * n);
	assert_non_null(f);
	assert_int_equal(fwrite(w.b, 1, w.n, f), w.n);
	fclose(f);
}

static void write_good(void)
{
	write_part("m-00001-of-00003.gguf", (struct part){ 3, 0, 4, "d" });
	write_part("m-00002-of-00003.gguf", (struct part){ 3, 1, 4, "ca" });
	write_part("m-00003-of-00003.gguf", (struct part){ 3, 2, 4, "b" });
}

static void test_joined(void **state)
{
	struct gguf_parts p;

	(void)state;
	write_good();
	if (gguf_read_parts(&p, path_of("m-00001-of-00003.gguf"), err, sizeof(err)))
		fail_msg("%s", err);
	assert_int_equal(p.n, 3);
	assert_int_equal(p.g->n_tensors, 4);
	assert_int_equal(gguf_tensor(p.g, "a")->part, 1);
	assert_int_equal(gguf_tensor(p.g, "b")->part, 2);
	assert_int_equal(gguf_tensor(p.g, "c")->part, 1);
	assert_int_equal(gguf_tensor(p.g, "d")->part, 0);
	assert_int_equal(gguf_tensor(p.g, "a")->offset, gguf_tensor(p.g, "c")->offset + 32);
	assert_string_equal(p.path[2], path_of("m-00003-of-00003.gguf"));
	gguf_close_parts(&p);
}

static void refused(const char *name, const char *says, int line)
{
	struct gguf_parts p;
	int rc = gguf_read_parts(&p, path_of(name), err, sizeof(err));

	if (rc >= 0 || !strstr(err, says) || !strstr(err, dir))
		fail_msg("line %d: %d \"%s\" is not \"%s\"", line, rc, rc ? err : "", says);
	assert_null(p.file);
}
#define REFUSED(name, says) refused(name, says, __LINE__)

static void test_wrong(void **state)
{
	(void)state;
	write_good();
	REFUSED("m-00002-of-00003.gguf", "part 2 of 3 of a model; the model is named by its first part, ");
	assert_non_null(strstr(err, "m-00001-of-00003.gguf"));
	write_part("m-00003-of-00003.gguf", (struct part){ 3, 1, 4, "b" });
	REFUSED("m-00001-of-00003.gguf", "inside it is part 2 of 3 with 4 tensors in all; part 3 of 3 with 4");
	write_part("m-00003-of-00003.gguf", (struct part){ 3, 2, 5, "b" });
	REFUSED("m-00001-of-00003.gguf", "inside it is part 3 of 3 with 5 tensors");
	write_part("m-00003-of-00003.gguf", (struct part){ 3, 2, 4, "c" });
	REFUSED("m-00001-of-00003.gguf", "tensor c is in two parts");
	write_part("m-00003-of-00003.gguf", (struct part){ 3, 2, 4, "be" });
	REFUSED("m-00001-of-00003.gguf", "split.tensors.count is 4, but its 3 parts have 5 tensors");
	write_part("m-00003-of-00003.gguf", (struct part){ 3, 3, 4, "b" });
	REFUSED("m-00001-of-00003.gguf", "split.no is missing, or no number below split.count, 3");
	assert_int_equal(unlink(path_of("m-00003-of-00003.gguf")), 0);
	REFUSED("m-00001-of-00003.gguf", "m-00003-of-00003.gguf: No such file");
	write_part("other.gguf", (struct part){ 3, 0, 4, "d" });
	REFUSED("other.gguf", "its name does not end in -00001-of-00003.gguf");
	write_part("m-00001-of-00003.gguf", (struct part){ 4, 0, 4, "d" });
	REFUSED("m-00001-of-00003.gguf", "its name does not end in -00001-of-00004.gguf");
	write_part("other.gguf", (struct part){ 100000, 0, 4, "d" });
	REFUSED("other.gguf", "split.count is no number from 1 to 512");
}

/* Says that it is the only part: any name will do. */
static void test_single(void **state)
{
	struct gguf_parts p;

	(void)state;
	write_part("one.gguf", (struct part){ 1, 0, 1, "d" });
	assert_int_equal(gguf_read_parts(&p, path_of("one.gguf"), err, sizeof(err)), 0);
	assert_int_equal(p.n, 1);
	gguf_close_parts(&p);
}

static void test_names(void **state)
{
	int32_t no = 0, of = 0;

	(void)state;
	assert_true(gguf_part_name("a/m-00012-of-00345.gguf", &no, &of));
	assert_int_equal(no, 12);
	assert_int_equal(of, 345);
	assert_false(gguf_part_name("m-0012-of-00345.gguf", &no, &of));
	assert_false(gguf_part_name("m-00012-of-0034x.gguf", &no, &of));
	assert_false(gguf_part_name("00012-of-00345.gguf", &no, &of));
	assert_false(gguf_part_name("", &no, &of));
}

/* Each allocation fails in turn. */
static void test_no_memory(void **state)
{
	struct gguf_parts p;
	int rc = -ENOMEM;

	(void)state;
	write_good();
	for (int i = 1; rc == -ENOMEM; i++) {
		calls = 0;
		fail_at = i;
		rc = gguf_read_parts(&p, path_of("m-00001-of-00003.gguf"), err, sizeof(err));
		fail_at = 0;
		assert_true(i < 100);
	}
	assert_int_equal(rc, 0);
	gguf_close_parts(&p);
}

static int set_up(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
	char command[200];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_joined), cmocka_unit_test(test_wrong), cmocka_unit_test(test_single),
		cmocka_unit_test(test_names), cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
