/* LINK: core/models/safetensors.c core/instance/refuse.c -ljansson -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=open,--wrap=fstat,--wrap=mmap,--wrap=pread */
/* test_safetensors.c - the safetensors parser, and directories of shards: good ones and lies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/models/safetensors.h"
#include "tests/rig/nth_call.h"

static char err[5000];

/* A file of this header and `data` bytes of data: n bytes at *out. */
static size_t make(uint8_t **out, const char *header, size_t data)
{
	uint64_t len = strlen(header);

	*out = calloc(1, 8 + len + data);
	memcpy(*out, &len, 8);
	memcpy(*out + 8, header, len);
	return 8 + len + data;
}

static int parse(struct safetensors **s, const char *header, size_t data)
{
	uint8_t *p;
	size_t n = make(&p, header, data);
	int rc;

	err[0] = 0;
	rc = safetensors_parse(s, p, n, n, err, sizeof(err));
	free(p);
	return rc;
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}"
#define GOOD "{" B ",\"__metadata__\":{\"format\":\"pt\"}," A "}"

static const struct safetensor *find(const struct safetensors *s, const char *name)
{
	for (uint64_t i = 0; i < s->n; i++)
		if (strcmp(s->tensor[i].name, name) == 0)
			return &s->tensor[i];
	return NULL;
}

static void test_good(void **state)
{
	const struct safetensor *t;
	struct safetensors *s;

	(void)state;
	assert_int_equal(parse(&s, GOOD, 32), 0);
	assert_int_equal(s->n, 2);
	t = find(s, "a");
	assert_true(t && t->n_dims == 2 && t->dim[0] == 2 && t->dim[1] == 3 && t->bytes == 24);
	assert_int_equal(t->offset, 8 + strlen(GOOD));
	t = find(s, "b");
	assert_true(t && strcmp(t->dtype, "BF16") == 0 && t->offset == 8 + strlen(GOOD) + 24);
	assert_null(find(s, "c"));
	safetensors_free(s);
	assert_int_equal(parse(&s, "{}", 0), 0);
	assert_null(find(s, "a"));
	safetensors_free(s);
	/* a scalar, and nothing at all */
	assert_int_equal(parse(&s, "{\"x\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
	                           "\"y\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[8,8]}}", 8),
	                           0);
	safetensors_free(s);
}

static void test_cut(void **state)
{
	struct safetensors *s;
	uint8_t *p;
	size_t n = make(&p, GOOD, 32);

	(void)state;
	for (size_t k = 0; k < n; k++) {
		uint8_t *q = malloc(k + 1);

		memcpy(q, p, k);
		assert_int_equal(safetensors_parse(&s, q, k, k, err, sizeof(err)), -EINVAL);
		assert_int_equal(safetensors_parse(&s, q, k, n, err, sizeof(err)), k < n - 32 ? -E2BIG : 0);
		safetensors_free(s);
		free(q);
	}
	free(p);
}

#define T(body) "{\"t\":{" body "}}"
static const struct { const char *header; size_t data; const char *says; } lies[] = {
	{ "", 0, "header at offset" }, { "[]", 0, "no JSON object" }, { "{", 0, "header at offset 9" },
	{ "{} x", 0, "header at offset" }, { "{" A "," A "}", 48, "duplicate" }, { "{\"t\":1}", 0,
	                                                                           "tensor t: is no object" },
	{ T("\"dtype\":\"F32\""), 0, "data_offsets is no pair" },
	{ T("\"dtype\":3,\"shape\":[],\"data_offsets\":[0,4]"), 4, "tensor t: is no object with dtype" },
	{ T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]"), 4, "no pair" },
	{ T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]"), 4, "no pair" },
	{ T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]"), 4, "no pair" },
	{ T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]"), 4,
	  "4 to 0 are not inside the 4 bytes" },
	{ T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]"), 4, "0 to 8 are not inside" },
	{ T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,99999999999999999999]"), 4,
	  "too big integer" },
	{ T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"), 4,
	  "hold 4 bytes, but shape and dtype need 8" },
	{ T("\"dtype\":\"Q32\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, "dtype Q32 is unknown" },
	{ T("\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]"), 4, "shape[0] is no size" },
	{ T("\"dtype\":\"F32\",\"shape\":\"x\",\"data_offsets\":[0,4]"), 4, "shape is no list" },
	{ T("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), 4,
	  "shape is no list of at most 8" },
	{ T("\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]"), 0, "too large" },
	{ T("\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"), 0, "too large" },
	{ T("\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,0]"), 0, "no whole number of bytes" },
	{ "{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor t: is no object with dtype, shape and" },
	{ T("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), 4, "shape is no list" },
	{ T("\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]"), 4, "shape[0] is no size" },
	{ T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{}"), 4, "no pair" },
	{ T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]"), 4, "no pair" },
	{ "{\"\\u001b[2J\\u007f\":1}", 0, "tensor ?[2J?: is no object" },           /* not to a terminal */
	{ "{" A "}", 32, "the tensors end at 24 of the data, but the file holds 32" },
	{ "{" B "}", 32, "tensor b: its data begins at 24" },
	{ "{" A ",\"c\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[20,28]}}", 28,
	  "tensor c: its data begins at 20" },
};

static void test_lies(void **state)
{
	struct safetensors *s;

	(void)state;
	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		if (parse(&s, lies[i].header, lies[i].data) != -EINVAL || !strstr(err, lies[i].says))
			fail_msg("%s: \"%s\" does not say \"%s\"", lies[i].header, err, lies[i].says);
		assert_null(s);
	}
}

static void test_long_name(void **state)
{
	static char header[1300];
	struct safetensors *s;

	(void)state;
	for (int n = 1024; n <= 1025; n++) {
		memset(header, 'n', sizeof(header));
		memcpy(header, "{\"", 2);
		strcpy(header + 2 + n, "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
		assert_int_equal(parse(&s, header, 4), n == 1024 ? 0 : -EINVAL);
		safetensors_free(s);
	}
	assert_non_null(strstr(err, "nnn..: its name is longer than 1024 bytes"));
}

static void test_header_length(void **state)
{
	static const uint64_t lengths[] = { 3, 100, 100u << 20, (100u << 20) + 1, 1ull << 60, UINT64_MAX };
	struct safetensors *s;
	uint8_t p[10] = { 0, 0, 0, 0, 0, 0, 0, 0, '{', '}' };

	(void)state;
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		memcpy(p, &lengths[i], 8);
		assert_int_equal(safetensors_parse(&s, p, 10, 10, err, sizeof(err)), -EINVAL);
		assert_non_null(strstr(err, "header length at offset 0"));
	}
}

/* ---- directories ---------------------------------------------------------------------------- */

static char dir[] = "/tmp/slipring-test-st-XXXXXX";

static void put_text(const char *name, const char *text)
{
	char path[200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_non_null(f = fopen(path, "w"));
	fputs(text, f);
	fclose(f);
}

static void put_shard(const char *name, const char *header, size_t data)
{
	char path[200];
	uint8_t *p;
	size_t n = make(&p, header, data);
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_non_null(f = fopen(path, "w"));
	assert_int_equal(fwrite(p, 1, n, f), n);
	fclose(f);
	free(p);
}

/* The file claims this header length. */
static void put_number(const char *name, uint64_t n)
{
	char path[200];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_non_null(f = fopen(path, "r+"));
	assert_int_equal(fwrite(&n, 8, 1, f), 1);
	fclose(f);
}

static void drop(const char *name)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	unlink(path);
}

#define INDEX "model.safetensors.index.json"
#define MAP(m) "{\"metadata\":{},\"weight_map\":{" m "}}"
#define C "{\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"

static void test_shards(void **state)
{
	struct safetensors_set *s;

	(void)state;
	assert_non_null(mkdtemp(dir));
	assert_int_equal(safetensors_open(&s, dir, err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "neither model.safetensors nor"));
	put_shard("1.safetensors", GOOD, 32);
	put_shard("2.safetensors", C, 4);
	put_text(INDEX, MAP("\"c\":\"2.safetensors\",\"a\":\"1.safetensors\",\"b\":\"1.safetensors\""));
	assert_int_equal(safetensors_open(&s, dir, err, sizeof(err)), 0);
	assert_int_equal(s->n, 2);
	assert_true(s->n_tensors == 3 && safetensors_lookup(s, "c")->file == 0);
	assert_true(safetensors_lookup(s, "a")->file == 1 && safetensors_lookup(s, "b")->file == 1);
	assert_string_equal(safetensors_lookup(s, "b")->t->name, "b");
	assert_null(safetensors_lookup(s, "d"));
	assert_null(safetensors_lookup(s, ""));
	safetensors_close(s);
	put_shard("model.safetensors", C, 4);         /* one file goes before an index */
	assert_int_equal(safetensors_open(&s, dir, err, sizeof(err)), 0);
	assert_int_equal(s->n, 1);
	assert_non_null(safetensors_lookup(s, "c"));
	assert_null(safetensors_lookup(s, "a"));
	safetensors_close(s);
	drop("model.safetensors");
}

#define LONG "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789" \
	"0123456789012345678901"
static const struct { const char *index, *says; int rc; } bad_index[] = {
	{ "{", "line 1, column 1", -EINVAL }, { "[]", "weight_map is missing", -EINVAL },
	{ "{\"weight_map\":[]}", "weight_map is missing", -EINVAL },
	{ MAP("\"c\":\"../2.safetensors\""), "weight_map.c is no name", -EINVAL },
	{ MAP("\"c\":\"/etc/passwd\""), "weight_map.c is no name", -EINVAL },
	{ MAP("\"c\":\"sub/2.safetensors\""), "weight_map.c is no name", -EINVAL },
	{ MAP("\"c\":\"2.bin\""), "weight_map.c is no name", -EINVAL },
	{ MAP("\"c\":\".safetensors\""), "weight_map.c is no name", -EINVAL },
	{ MAP("\"c\":7"), "weight_map.c is no name", -EINVAL },
	{ MAP("\"c\":\"3.safetensors\""), "3.safetensors", -ENOENT },
	{ MAP("\"z\":\"2.safetensors\""), "no such tensor in 2.safetensors", -EINVAL },
	{ MAP("\"a\":\"1.safetensors\",\"c\":\"4.safetensors\""), "4.safetensors: tensor a is in 1.safetensors too",
	  -EINVAL },
	{ MAP("\"c\":\"fifo.safetensors\""), "is no regular file", -EINVAL },
	{ MAP("\"c\":\"dir.safetensors\""), "is no regular file", -EINVAL },
	{ MAP("\"c\":\"zero.safetensors\""), "is no regular file", -EINVAL },
	{ MAP("\"c\":\"short.safetensors\""), "the file has 3 bytes", -EINVAL },
	{ MAP("\"c\":\"sparse.safetensors\""), "header at offset 8", -EINVAL },
	{ MAP("\"c\":\"huge.safetensors\""), "length at offset 0 is 104857601; at most 104857600", -EINVAL },
	{ MAP("\"c\":\"lie.safetensors\""), "header length at offset 0 is 99; at most 2 are possible", -EINVAL },
	{ MAP("\"c\":\".c.safetensors\""), "weight_map.c is no name", -EINVAL },
	{ MAP("\"c\":\"" LONG LONG "x.safetensors\""), "weight_map.c is no name", -EINVAL },
};

static void test_bad_index(void **state)
{
	struct safetensors_set *s;
	char path[200];

	(void)state;
	put_shard("4.safetensors", "{" A ",\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[24,28]}}",
	          28);
	put_text("short.safetensors", "abc");
	put_text("sparse.safetensors", "");
	snprintf(path, sizeof(path), "%s/sparse.safetensors", dir);
	assert_int_equal(truncate(path, 1ll << 40), 0);       /* a terabyte of nothing */
	put_shard("lie.safetensors", "{}", 0);
	put_number("lie.safetensors", 99);
	put_shard("huge.safetensors", "{}", 0);
	put_number("huge.safetensors", (100 << 20) + 1);
	snprintf(path, sizeof(path), "%s/huge.safetensors", dir);
	assert_int_equal(truncate(path, 200 << 20), 0);
	snprintf(path, sizeof(path), "%s/fifo.safetensors", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	snprintf(path, sizeof(path), "%s/dir.safetensors", dir);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/zero.safetensors", dir);
	assert_int_equal(symlink("/dev/zero", path), 0);
	for (size_t i = 0; i < sizeof(bad_index) / sizeof(*bad_index); i++) {
		int rc;

		put_text(INDEX, bad_index[i].index);
		rc = safetensors_open(&s, dir, err, sizeof(err));
		if (rc != bad_index[i].rc || !strstr(err, bad_index[i].says))
			fail_msg("%s: %d \"%s\" does not say \"%s\"", bad_index[i].index, rc, err,
			         bad_index[i].says);
		assert_null(s);
	}
}

/* More files than any model has: a bound on what a stranger's index may make us open. */
static void test_many_shards(void **state)
{
	static char index[4200 * 40];
	struct safetensors_set *s;
	char from[200], to[200];
	int len = sprintf(index, "{\"weight_map\":{");

	(void)state;
	put_shard("0.safetensors", "{}", 0);
	snprintf(from, sizeof(from), "%s/0.safetensors", dir);
	for (int i = 0; i <= 4096; i++) {
		snprintf(to, sizeof(to), "%s/n%d.safetensors", dir, i);
		assert_int_equal(link(from, to), 0);
		len += sprintf(index + len, "%s\"t%d\":\"n%d.safetensors\"", i ? "," : "", i, i);
	}
	strcpy(index + len, "}}");
	put_text(INDEX, index);
	assert_int_equal(safetensors_open(&s, dir, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "weight_map names more than 4096 files"));
}

/* Many names in many files: no name is looked for file by file, or 100,000 names in 2,000 files take seconds. */
#define MANY_FILES 2000
#define MANY_NAMES 50                  /* in each file */
static void test_many_names(void **state)
{
	static char index[MANY_FILES * MANY_NAMES * 36], header[MANY_NAMES * 64];
	struct safetensors_set *s;
	char name[40];
	int len = sprintf(index, "{\"weight_map\":{");
	clock_t start;

	(void)state;
	for (int f = 0; f < MANY_FILES; f++) {
		int n = sprintf(header, "{");

		for (int t = 0; t < MANY_NAMES; t++)
			n += sprintf(header + n, "%s\"t%d.%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
			             t ? "," : "", f, t);
		strcpy(header + n, "}");
		snprintf(name, sizeof(name), "m%d.safetensors", f);
		put_shard(name, header, 0);
	}
	for (int t = 0; t < MANY_NAMES; t++)
		for (int f = 0; f < MANY_FILES; f++)
			len += sprintf(index + len, "%s\"t%d.%d\":\"m%d.safetensors\"", t || f ? "," : "", f, t, f);
	strcpy(index + len, "}}");
	put_text(INDEX, index);
	start = clock();
	assert_int_equal(safetensors_open(&s, dir, err, sizeof(err)), 0);
	for (int f = 0; f < MANY_FILES; f++)
		for (int t = 0; t < MANY_NAMES; t++) {
			snprintf(name, sizeof(name), "t%d.%d", f, t);
			assert_int_equal(safetensors_lookup(s, name)->file, f);
		}
	start = clock() - start;
	assert_int_equal(s->n_tensors, MANY_FILES * MANY_NAMES);
	safetensors_close(s);
	if (start > 2 * CLOCKS_PER_SEC)
		fail_msg("%d names in %d files took %.2f s", MANY_FILES * MANY_NAMES, MANY_FILES,
		         (double)start / CLOCKS_PER_SEC);
}

/* Memory, descriptors and the disk may fail at any call: a sentence, and nothing is left behind. */
static int open_it(char *why, size_t n)
{
	struct safetensors_set *s;
	int rc = safetensors_open(&s, dir, why, n);

	if (rc == 0) {
		assert_int_equal(s->n, 2);
		safetensors_close(s);
	}
	return rc;
}

static void test_calls_that_fail(void **state)
{
	(void)state;
	put_text(INDEX, MAP("\"c\":\"2.safetensors\",\"a\":\"1.safetensors\",\"b\":\"1.safetensors\""));
	for (enum nth how = NTH_FAILS; how <= NTH_ENDS; how++)
		nth_each(how, open_it, dir);
}

static void test_text(void **state)
{
	char path[200], *text;
	size_t n;

	(void)state;
	put_text("text", "abc");
	snprintf(path, sizeof(path), "%s/text", dir);
	assert_int_equal(safetensors_text(&text, &n, path, 3, err, sizeof(err)), 0);
	assert_true(n == 3 && strcmp(text, "abc") == 0);
	free(text);
	assert_int_equal(safetensors_text(&text, &n, path, 2, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "/text: has 3 bytes; at most 2 are allowed"));
	assert_null(text);
}

static int teardown(void **state)
{
	char command[200];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good), cmocka_unit_test(test_cut), cmocka_unit_test(test_lies),
		cmocka_unit_test(test_long_name), cmocka_unit_test(test_header_length), cmocka_unit_test(test_shards),
		cmocka_unit_test(test_bad_index), cmocka_unit_test(test_text), cmocka_unit_test(test_calls_that_fail),
		cmocka_unit_test(test_many_shards), cmocka_unit_test(test_many_names),
	};

	return cmocka_run_group_tests(tests, NULL, teardown);
}
