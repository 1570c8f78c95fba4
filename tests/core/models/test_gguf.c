/* LINK: core/models/gguf.c core/instance/refuse.c -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=open,--wrap=fstat,--wrap=mmap,--wrap=pread */
/* test_gguf.c - the GGUF parser: one good file, and a table of false ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "core/models/gguf.h"
#include "tests/rig/gguf_write.h"
#include "tests/rig/nth_call.h"

static struct bytes w;
static char err[400];

static int parse(struct gguf **g, size_t n, uint64_t file)
{
	uint8_t *copy = malloc(n + 1);    /* on the heap, so that a sanitizer finds overruns */
	int rc;

	memcpy(copy, w.b, n);
	err[0] = 0;
	rc = gguf_parse(g, copy, n, file, err, sizeof(err));
	if (rc == 0) {                    /* the table points into the bytes */
		gguf_free(*g);
		assert_int_equal(gguf_parse(g, w.b, n, file, err, sizeof(err)), 0);
	}
	free(copy);
	return rc;
}

static void write_good(void)
{
	put_head(&w, 3, 2, 5);
	put_kv_str(&w, "general.architecture", "llama");
	put_kv_u32(&w, "llama.block_count", 2);
	put_kv_f32(&w, "llama.eps", 0.5f);
	put_key(&w, "tokens", GGUF_ARRAY);
	put_u32(&w, GGUF_STRING);
	put_u64(&w, 3);
	put_str(&w, "a");
	put_str(&w, "");
	put_str(&w, "ccc");
	put_key(&w, "flag", GGUF_BOOL);
	put(&w, "\1", 1);
	put_tensor(&w, "one", 2, 64, 3, 8, 0);        /* Q8_0: 6 blocks of 34 bytes */
	put_tensor(&w, "two", 1, 5, 0, 0, 224);       /* F32 */
	put_pad(&w, 32);
	put_zeros(&w, 224 + 20);
}

static void test_good(void **state)
{
	const struct gguf_value *v;
	const struct gguf_tensor *t;
	struct gguf_string s;
	const uint8_t *at;
	struct gguf *g;
	uint64_t u = 0;
	double d = 0;
	bool b = false;

	(void)state;
	write_good();
	assert_int_equal(parse(&g, w.n, w.n), 0);
	assert_int_equal(g->n_tensors, 2);
	assert_int_equal(gguf_u64(g, "llama.block_count", &u), 0);
	assert_int_equal(u, 2);
	assert_int_equal(gguf_u64(g, "llama.eps", &u), -EINVAL);
	assert_int_equal(gguf_u64(g, "nothing", &u), -ENOENT);
	assert_int_equal(gguf_f64(g, "llama.eps", &d), 0);
	assert_true(d == 0.5);
	assert_int_equal(gguf_bool(g, "flag", &b), 0);
	assert_true(b);
	assert_int_equal(gguf_str(g, "general.architecture", &s), 0);
	assert_true(s.n == 5 && memcmp(s.s, "llama", 5) == 0);
	v = gguf_find(g, "tokens");
	assert_int_equal(v->n, 3);
	at = v->data;
	assert_true(gguf_next_string(v, &at, &s) && s.n == 1 && gguf_next_string(v, &at, &s) && s.n == 0);
	assert_true(gguf_next_string(v, &at, &s) && s.n == 3 && !gguf_next_string(v, &at, &s));
	t = gguf_tensor(g, "one");
	assert_true(t && t->bytes == 204 && t->dim[0] == 64 && t->dim[1] == 3 && t->dim[2] == 1);
	assert_int_equal(t->offset, g->data_offset);
	assert_int_equal(gguf_tensor(g, "two")->offset, g->data_offset + 224);
	assert_null(gguf_tensor(g, "tw"));
	assert_string_equal(gguf_type_name(3), "Q4_1");
	assert_string_equal(gguf_type_name(34), "TQ1_0");
	assert_string_equal(gguf_type_name(99), "99");
	gguf_free(g);
}

/* Every truncation is refused: -E2BIG if more of the file may come, -EINVAL if not. */
static void test_cut(void **state)
{
	struct gguf *g;
	size_t head;

	(void)state;
	write_good();
	assert_int_equal(parse(&g, w.n, w.n), 0);
	head = g->data_offset;
	gguf_free(g);
	for (size_t n = 0; n < w.n; n++) {
		assert_int_equal(parse(&g, n, n), -EINVAL);
		assert_true(err[0]);
	}
	for (size_t n = 0; n < head - 31; n++)
		assert_int_equal(parse(&g, n, w.n), -E2BIG);
	for (size_t n = head; n < w.n; n++) {
		assert_int_equal(parse(&g, n, w.n), 0);
		gguf_free(g);
	}
}

/* ---- lies ------------------------------------------------------------------------------------- */

#define NOTHING put_zeros(&w, 64)
static void key_bell(void)     { put_head(&w, 3, 0, 1); put_key(&w, "k\a\033[2J\177", 13); NOTHING; }
static void key_80(void)       { put_head(&w, 3, 0, 1); put_key(&w, "12345678901234567890123456789012345678901234567890"
                                                               "123456789012345678901234567890 and more", 13);
                                 NOTHING; }
static void version_0(void)    { write_good(); w.b[4] = 0; }
static void magic(void)        { write_good(); w.b[0] = 'g'; }
static void version(void)      { write_good(); w.b[4] = 1; }
static void big_endian(void)   { write_good(); memcpy(w.b + 4, "\0\0\0\3", 4); }
static void tensors_2_60(void) { put_head(&w, 3, 1ull << 60, 0); NOTHING; }
static void values_2_60(void)  { put_head(&w, 3, 0, 1ull << 60); NOTHING; }
static void values_max(void)   { put_head(&w, 3, UINT64_MAX, UINT64_MAX); NOTHING; }
static void key_long(void)     { put_head(&w, 3, 0, 1); put_u64(&w, UINT64_MAX); NOTHING; }
static void key_past_end(void) { put_head(&w, 3, 0, 1); put_u64(&w, 1000); NOTHING; }
static void key_empty(void)    { put_head(&w, 3, 0, 1); put_kv_u32(&w, "", 1); NOTHING; }
static void type_13(void)      { put_head(&w, 3, 0, 1); put_key(&w, "k", 13); NOTHING; }
static void bool_2(void)       { put_head(&w, 3, 0, 1); put_key(&w, "k", GGUF_BOOL); put(&w, "\2",
                                                                                         1); NOTHING; }
static void twice(void)        { put_head(&w, 3, 0, 2); put_kv_u32(&w, "k",
                                                                   1); put_kv_u32(&w, "k", 2); NOTHING; }
static void string_past(void)  { put_head(&w, 3, 0, 1); put_key(&w, "k",
                                                                GGUF_STRING); put_u64(&w,
                                                                                      1ull << 63); NOTHING; }

static void array(uint32_t item, uint64_t n)
{
	put_head(&w, 3, 0, 1);
	put_key(&w, "k", GGUF_ARRAY);
	put_u32(&w, item);
	put_u64(&w, n);
	NOTHING;
}
static void array_2_60(void)    { array(GGUF_U32, 1ull << 60); }
static void array_wraps(void)   { array(GGUF_U32, 1ull << 62); }
static void strings_2_60(void)  { array(GGUF_STRING, 1ull << 60); }
static void nested(void)        { array(GGUF_ARRAY, 1); }
static void item_99(void)       { array(99, 1); }

static void tensor(uint32_t dims, uint64_t d0, uint64_t d1, uint32_t type, uint64_t offset)
{
	put_head(&w, 3, 1, 0);
	put_tensor(&w, "t", dims, d0, d1, type, offset);
	put_pad(&w, 32);
	put_zeros(&w, 128);
}
static void dims_0(void)        { tensor(0, 0, 0, 0, 0); }
static void dims_5(void)        { tensor(5, 1, 1, 0, 0); }
static void dim_zero(void)      { tensor(2, 4, 0, 0, 0); }
static void dim_wraps(void)     { tensor(2, 1ull << 33, 1ull << 33, 0, 0); }
static void dim_large(void)     { tensor(1, 1ull << 62, 1, 0, 0); }
static void half_block(void)    { tensor(2, 33, 1, 2, 0); }
static void unaligned(void)     { tensor(1, 4, 1, 0, 4); }
static void past_end(void)      { tensor(1, 4, 1, 0, 128); }
static void offset_wraps(void)  { tensor(1, 4, 1, 0, UINT64_MAX - 31); }
static void data_missing(void)  { put_head(&w, 3, 1, 0); put_tensor(&w, "t", 1, 4, 1, 0, 0); }

static void two(const char *a, const char *b, uint64_t second)
{
	put_head(&w, 3, 2, 0);
	put_tensor(&w, a, 1, 16, 1, 0, 0);
	put_tensor(&w, b, 1, 16, 1, 0, second);
	put_pad(&w, 32);
	put_zeros(&w, 256);
}
static void same_name(void)     { two("t", "t", 64); }
static void overlap(void)       { two("a", "b", 32); }
static void same_place(void)    { two("a", "b", 0); }
static void long_name(void)     { two("a",
                                      "12345678901234567890123456789012345678901234567890123456789012345",
                                      64); }

static void same_overlap(void)  { two("ab", "abc", 32); }     /* one name is a prefix of the other */
static void names_twice(void)   { two("t", "t", 32); }        /* and overlap: the first fault is reported */
static void values_twice(void)
{
	put_head(&w, 3, 2, 2);
	put_kv_u32(&w, "k", 1);
	put_kv_u32(&w, "k", 2);
	put_tensor(&w, "t", 1, 16, 1, 0, 0);
	put_tensor(&w, "t", 1, 16, 1, 0, 0);
	put_pad(&w, 32);
	put_zeros(&w, 256);
}
static void dims_wrap(void)
{
	put_head(&w, 3, 1, 0);
	put_str(&w, "t");
	put_u32(&w, 3);
	put_u64(&w, 1ull << 29);              /* 2^29 * 2 * 2^33 = 2^63 */
	put_u64(&w, 2);
	put_u64(&w, 1ull << 33);
	NOTHING;
}

static void alignment(uint32_t a)
{
	put_head(&w, 3, 0, 1);
	put_kv_u32(&w, "general.alignment", a);
	NOTHING;
}
static void alignment_0(void)   { alignment(0); }
static void alignment_24(void)  { alignment(24); }
static void alignment_big(void) { alignment(1u << 31); }
static void alignment_str(void) { put_head(&w, 3, 0, 1); put_kv_str(&w, "general.alignment", "32"); NOTHING; }

#define LIE(f, text) { #f, f, text }
static const struct { const char *name; void (*write)(void); const char *says; } lies[] = {
	LIE(magic, "magic at offset 0"), LIE(version, "version at offset 4 is 1"), LIE(big_endian,
	                                                                               "big endian"),
	LIE(tensors_2_60, "tensor_count at offset 8"), LIE(values_2_60, "kv_count at offset 16"),
	LIE(version_0, "version at offset 4 is 0; 2 and 3 are supported"),
	LIE(key_bell, "value k??[2J? at offset"), LIE(key_80, "34567890 at offset"),
	LIE(same_overlap, "overlaps that of"), LIE(dims_wrap, "dimension 2 is 8589934592"),
	LIE(values_twice, "key k at offset 49 is there twice"), LIE(names_twice, "tensor t at offset 65 is there twice"),
	LIE(values_max, "tensor_count at offset 8"), LIE(key_long, "key at offset 24 is"),
	LIE(key_past_end, "key at offset 32 needs 1000 bytes, but the file ends at 96"),
		LIE(key_empty, "is empty"),
	LIE(type_13, "value k at offset 33 has type 13"), LIE(bool_2, "a boolean is 0 or 1, not 2"),
	LIE(twice, "key k at offset 49 is there twice"), LIE(string_past, "string of k at offset 45 needs"),
	LIE(array_2_60, "value of k at offset 49 needs"), LIE(array_wraps, "items, more than the file holds"),
	LIE(strings_2_60, "strings, more than the file holds"), LIE(nested, "items of type 9"),
	LIE(item_99, "items of type 99"), LIE(dims_0, "tensor t at offset 24 has 0 dimensions"),
	LIE(dims_5, "has 5 dimensions"), LIE(dim_zero, "dimension 1 is 0"), LIE(dim_wraps,
	                                                                        "dimension 1 is 8589934592"),
	LIE(dim_large, "is too large"), LIE(half_block, "no multiple of the 32 of a Q4_0 block"),
	LIE(unaligned, "data offset 4 is no multiple of the alignment 32"), LIE(past_end,
	                                                                        "goes past the end of the "
	                                                                        "file"),
	LIE(offset_wraps, "goes past the end of the file"), LIE(data_missing, "tensor data should begin"),
	LIE(same_name, "tensor t at offset 65 is there twice"), LIE(overlap, "its data overlaps that of a"),
	LIE(same_place, "overlaps"), LIE(long_name, "is 65 bytes long; at most 64"),
	LIE(alignment_0, "general.alignment is 0"), LIE(alignment_24, "general.alignment is 24"),
	LIE(alignment_big, "general.alignment is 2147483648"), LIE(alignment_str, "general.alignment is no integer from 0 up"),
};

static void test_lies(void **state)
{
	struct gguf *g;

	(void)state;
	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		lies[i].write();
		if (parse(&g, w.n, w.n) != -EINVAL || !strstr(err, lies[i].says))
			fail_msg("%s: \"%s\" does not say \"%s\"", lies[i].name, err, lies[i].says);
		assert_null(g);
	}
}

/* Any integer type is accepted as an integer, any float type as a float; a negative size is refused. */
static void test_value_types(void **state)
{
	static const uint8_t two[8] = { 2 }, minus[8] = { 255, 255, 255, 255, 255, 255, 255, 255 };
	static const struct { uint32_t type; size_t n; const void *value; int as_u64; uint64_t u; } cases[] = {
		{ GGUF_U8, 1, two, 0, 2 }, { GGUF_I8, 1, two, 0, 2 }, { GGUF_U16, 2, two, 0, 2 },
		{ GGUF_I16, 2, two, 0, 2 }, { GGUF_U32, 4, two, 0, 2 }, { GGUF_I32, 4, two, 0, 2 },
		{ GGUF_U64, 8, two, 0, 2 }, { GGUF_I64, 8, two, 0, 2 }, { GGUF_U8, 1, minus, 0, 255 },
		{ GGUF_U64, 8, minus, 0, UINT64_MAX }, { GGUF_I8, 1, minus, -EINVAL, 0 },
		{ GGUF_I16, 2, minus, -EINVAL, 0 }, { GGUF_I32, 4, minus, -EINVAL, 0 },
		{ GGUF_I64, 8, minus, -EINVAL, 0 }, { GGUF_BOOL, 1, "\1", -EINVAL, 0 },
		{ GGUF_F32, 4, two, -EINVAL, 0 }, { GGUF_F64, 8, two, -EINVAL, 0 },
	};
	struct gguf_string s;
	struct gguf *g;
	double d;
	bool b;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		bool is_float = cases[i].type == GGUF_F32 || cases[i].type == GGUF_F64;
		uint64_t u = 0;

		put_head(&w, 3, 0, 1);
		put_key(&w, "k", cases[i].type);
		put(&w, cases[i].value, cases[i].n);
		assert_int_equal(parse(&g, w.n, w.n), 0);
		if (gguf_u64(g, "k", &u) != cases[i].as_u64 || u != cases[i].u)
			fail_msg("case %zu: %llu", i, (unsigned long long)u);
		assert_int_equal(gguf_f64(g, "k", &d), is_float ? 0 : -EINVAL);
		assert_int_equal(gguf_bool(g, "k", &b), cases[i].type == GGUF_BOOL ? 0 : -EINVAL);
		assert_int_equal(gguf_str(g, "k", &s), -EINVAL);
		assert_int_equal(gguf_bool(g, "other", &b), -ENOENT);
		gguf_free(g);
	}
	array(GGUF_U8, 3);                    /* neither strings nor numbers */
	assert_int_equal(parse(&g, w.n, w.n), 0);
	assert_int_equal(gguf_u64(g, "k", &(uint64_t){ 0 }), -EINVAL);
	gguf_free(g);
}

static void test_unknown_type(void **state)
{
	struct gguf *g;

	(void)state;
	tensor(1, 4, 1, 77, 0);               /* listed, without a size: its user refuses it */
	assert_int_equal(parse(&g, w.n, w.n), 0);
	assert_int_equal(g->tensor[0].bytes, 0);
	gguf_free(g);
}

static void test_files(void **state)
{
	char path[] = "/tmp/slipring-test-gguf-XXXXXX";
	int fd = mkstemp(path);
	struct gguf_file f;

	(void)state;
	write_good();
	assert_int_equal(write(fd, w.b, w.n), w.n);
	close(fd);
	assert_int_equal(gguf_open(&f, path, err, sizeof(err)), 0);
	assert_int_equal(f.g->n_values, 5);
	gguf_close(&f);
	assert_int_equal(gguf_read(&f, path, err, sizeof(err)), 0);
	assert_int_equal(f.g->n_tensors, 2);
	gguf_close(&f);
	assert_int_equal(truncate(path, 100), 0);
	assert_int_equal(gguf_read(&f, path, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, path));
	assert_int_equal(truncate(path, 0), 0);
	assert_int_equal(gguf_open(&f, path, err, sizeof(err)), -EINVAL);
	unlink(path);
	assert_int_equal(gguf_read(&f, path, err, sizeof(err)), -ENOENT);
	assert_int_equal(gguf_open(&f, "/tmp", err, sizeof(err)), -EINVAL);
	assert_int_equal(gguf_read(&f, "/dev/null", err, sizeof(err)), -EINVAL);
}

/* A head larger than the first read. */
static void test_large_head(void **state)
{
	char path[] = "/tmp/slipring-test-gguf-XXXXXX";
	static const uint8_t zeros[1 << 16];
	int fd = mkstemp(path);
	struct gguf_file f;

	(void)state;
	put_head(&w, 3, 0, 1);
	put_key(&w, "k", GGUF_ARRAY);
	put_u32(&w, GGUF_U8);
	put_u64(&w, 100 * sizeof(zeros));
	assert_int_equal(write(fd, w.b, w.n), w.n);
	for (int i = 0; i < 100; i++)
		assert_int_equal(write(fd, zeros, sizeof(zeros)), sizeof(zeros));
	close(fd);
	assert_int_equal(gguf_read(&f, path, err, sizeof(err)), 0);
	assert_int_equal(gguf_find(f.g, "k")->n, 100 * sizeof(zeros));
	gguf_close(&f);
	unlink(path);
}

/* Names are found by bisection; a linear search would take a minute for 200,000. */
#define MANY 200000
static void test_many_tensors(void **state)
{
	static const uint8_t entry[4 + 8 + 4 + 8] = { 1, 0, 0, 0, 1 };      /* one F32, at 0 */
	uint8_t *head = malloc(MANY * (8 + 12 + sizeof(entry)) + 100), *p;
	clock_t start;
	struct gguf *g;

	(void)state;
	assert_non_null(head);
	put_head(&w, 3, MANY, 0);
	memcpy(head, w.b, w.n);
	p = head + w.n;
	for (uint64_t i = 0; i < MANY; i++) {
		uint64_t at = 32 * i, n = (uint64_t)sprintf((char *)p + 8, "x.%ju", (uintmax_t)(i * 7919 % MANY));

		memcpy(p, &n, 8);
		memcpy(p + 8 + n, entry, sizeof(entry));
		memcpy(p + 8 + n + 16, &at, 8);
		p += 8 + n + sizeof(entry);
	}
	memset(p, 0, 32);
	start = clock();
	assert_int_equal(gguf_parse(&g, head, (size_t)(p - head) + 32, 1 << 30, err, sizeof(err)), 0);
	for (uint64_t i = 0; i < MANY; i++) {
		char name[20];

		snprintf(name, sizeof(name), "x.%ju", (uintmax_t)(i * 7919 % MANY));
		assert_ptr_equal(gguf_tensor(g, name), &g->tensor[i]);
	}
	assert_null(gguf_tensor(g, "x.200000"));
	start = clock() - start;
	gguf_free(g);
	free(head);
	if (start > 2 * CLOCKS_PER_SEC)
		fail_msg("%d tensors took %.2f s", MANY, (double)start / CLOCKS_PER_SEC);
}

/* Memory, descriptors, mappings and the disk fail at any call: an error sentence, and nothing is left. */
static char calls_path[] = "/tmp/slipring-test-gguf-XXXXXX";

static int map_it(char *why, size_t n)
{
	struct gguf_file f;
	int rc = gguf_open(&f, calls_path, why, n);

	if (rc == 0)
		gguf_close(&f);
	return rc;
}

static int read_it(char *why, size_t n)
{
	struct gguf_file f;
	int rc = gguf_read(&f, calls_path, why, n);

	if (rc == 0) {
		assert_int_equal(f.g->n_values, 5);
		gguf_close(&f);
	}
	return rc;
}

static void test_calls_that_fail(void **state)
{
	int fd = mkstemp(calls_path);

	(void)state;
	write_good();
	assert_int_equal(write(fd, w.b, w.n), w.n);
	close(fd);
	nth_each(NTH_FAILS, map_it, calls_path);
	for (enum nth how = NTH_FAILS; how <= NTH_ENDS; how++)
		nth_each(how, read_it, calls_path);
	unlink(calls_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good), cmocka_unit_test(test_cut), cmocka_unit_test(test_lies),
		cmocka_unit_test(test_value_types), cmocka_unit_test(test_unknown_type), cmocka_unit_test(test_files),
		cmocka_unit_test(test_large_head), cmocka_unit_test(test_many_tensors),
		cmocka_unit_test(test_calls_that_fail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
