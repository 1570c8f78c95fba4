/* LINK: core/models/locate.c core/models/gguf.c core/instance/refuse.c -lcrypto */
/* test_locate.c - what a MODEL is: file, directory, id in the download cache, or the default. */
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
#include <unistd.h>

#include "core/models/locate.h"
#include "tests/rig/gguf_write.h"

static char dir[] = "/tmp/slipring-test-locate-XXXXXX";
static char err[5000];

static const char *in(const char *name)
{
	static char path[4][300];
	static int i;

	i = (i + 1) % 4;
	snprintf(path[i], sizeof(path[i]), "%s/%s", dir, name);
	return path[i];
}

static void put_file(const char *name, const void *p, size_t n)
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s", in(name));
	for (char *s = path + strlen(dir) + 1; (s = strchr(s, '/')) != NULL; *s++ = '/') {
		*s = 0;
		mkdir(path, 0700);
	}
	assert_non_null(f = fopen(path, "w"));
	assert_int_equal(fwrite(p, 1, n, f), n);
	fclose(f);
}

static int setup(void **state)
{
	static struct bytes w;

	(void)state;
	if (!mkdtemp(dir))
		return -1;
	setenv("HOME", in("home"), 1);
	unsetenv("XDG_CACHE_HOME");
	unsetenv("HF_HOME");
	unsetenv("HF_HUB_CACHE");
	put_head(&w, 3, 0, 1);
	put_key(&w, "tokenizer.ggml.tokens", 9);
	put_u32(&w, 8);
	put_u64(&w, 2);
	put_str(&w, "a");
	put_str(&w, "b");
	put_file("x.gguf", w.b, w.n);
	put_file("one/x.gguf", w.b, w.n);
	put_file("two/x.gguf", w.b, w.n);
	put_file("one/.gguf", "", 0);                  /* an extension alone is not a name */
	put_file("one/x.gguf.part", "", 0);
	put_file("two/y.gguf", w.b, w.n);
	put_file("none/readme", "", 0);
	put_file("hf/config.json", "{}", 2);
	put_file("hf/tokenizer.json", "abc", 3);
#define HUB(base) base "/models--org--name/refs/main"
#define REV(base) base "/models--org--name/snapshots/0123abc/config.json"
	put_file(HUB("home/.cache/huggingface/hub"), "0123abc\n", 8);
	put_file(REV("home/.cache/huggingface/hub"), "{}", 2);
	put_file(HUB("hfhome/hub"), "0123abc", 7);
	put_file(REV("hfhome/hub"), "{}", 2);
#define QUANTS "home/.cache/huggingface/hub/models--org--quants"
	put_file(QUANTS "/refs/main", "fe", 2);
	put_file(QUANTS "/snapshots/fe/m-Q4_K_M.gguf", w.b, w.n);
	put_file(QUANTS "/snapshots/fe/m-IQ4_K_M.gguf", w.b, w.n);
	put_file(QUANTS "/snapshots/fe/Q8_0/m.Q8_0-00001-of-00002.gguf", w.b, w.n);
	put_file(QUANTS "/snapshots/fe/Q8_0/m.Q8_0-00002-of-00002.gguf", w.b, w.n);
	put_file(QUANTS "/snapshots/fe/m-F16.gguf", w.b, w.n);
	put_file(QUANTS "/snapshots/fe/n-F16.gguf", w.b, w.n);
	put_file("parts/m-00001-of-00002.gguf", w.b, w.n);
	put_file("parts/m-00002-of-00002.gguf", w.b, w.n);
	put_file("hfhome/hub/models--gpt2/refs/main", "../../../..", 11);
	put_file("hfhome/hub/models--a--b/refs/main", "gone", 4);
	put_file("hfhome/hub/models--a--empty/refs/main", "", 0);
	put_file("hfhome/hub/models--a--in/refs/main", "x/../..", 7);
	put_file("hfhome/hub/models--a--file/refs/main", "file", 4);
	put_file("hfhome/hub/models--a--file/snapshots/file", "", 0);
	put_head(&w, 3, 0, 0);
	put_file("bare.gguf", w.b, w.n);
	if (symlink(in("loop"), in("loop")) < 0 || chmod(in("hfhome/hub/models--a--file"), 0700) < 0)
		return -1;
	return mkfifo(in("fifo"), 0600);
}

static int teardown(void **state)
{
	char command[200];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

static void found(const char *model, const char *path, const char *name, bool gguf, int line)
{
	struct located l;
	int rc = locate_model(&l, model, err, sizeof(err));

	if (rc || strcmp(l.path, path) != 0 || strcmp(l.name, name) != 0 || l.gguf != gguf)
		fail_msg("line %d: %d %s; path %s, name %s, gguf %d", line, rc, rc ? err : "", l.path, l.name,
		         l.gguf);
}
#define FOUND(model, path, name, gguf) found(model, path, name, gguf, __LINE__)

static void refused(const char *model, int rc, const char *says, int line)
{
	struct located l;
	int got = locate_model(&l, model, err, sizeof(err));

	if (got != rc || !strstr(err, says))
		fail_msg("line %d: %d \"%s\" is not %d \"%s\"", line, got, got ? err : "", rc, says);
}
#define REFUSED(model, rc, says) refused(model, rc, says, __LINE__)

static void test_paths(void **state)
{
	(void)state;
	FOUND(in("x.gguf"), in("x.gguf"), in("x.gguf"), true);
	FOUND(in("hf"), in("hf"), in("hf"), false);
	FOUND(in("one"), in("one/x.gguf"), in("one"), true);
	FOUND(in("parts"), in("parts/m-00001-of-00002.gguf"), in("parts"), true);
	REFUSED(in("two"), -EINVAL, "holds 2 GGUF files and no config.json");
	REFUSED(in("none"), -EINVAL, "holds no config.json and no GGUF file");
	REFUSED(in("fifo"), -EINVAL, "is no regular file or directory");
	REFUSED("/dev/zero", -EINVAL, "is no regular file or directory");
	REFUSED(in("nothing"), -ENOENT, "no such file or directory");
	REFUSED("./a/b/c", -ENOENT, "no such file or directory");
	REFUSED("../x", -ENOENT, "no such file or directory");
	REFUSED(in("x.gguf/y"), -ENOENT, "no such file or directory");
	REFUSED(in("loop"), -ELOOP, "Too many levels of symbolic links");
	/* neither an existing path nor an id: nothing to download */
	REFUSED("a//b", -ENOENT, "a//b: no such file or directory");
	REFUSED("a/-b", -ENOENT, "a/-b: no such file or directory");
	REFUSED("a/", -ENOENT, "a/: no such file or directory");
	REFUSED("a..b", -ENOENT, "a..b: no such file or directory");
	REFUSED("a--b", -ENOENT, "a--b: no such file or directory");
	REFUSED("a b", -ENOENT, "a b: no such file or directory");
}

/* A path longer than a name: the last part is the name. */
static void test_long_paths(void **state)
{
	char path[700], slashes[710], part[101];
	size_t n;

	(void)state;
	memset(part, 'p', 100);
	part[100] = 0;
	snprintf(path, sizeof(path), "%s", in(part));
	for (int i = 0; i < 3; i++) {
		assert_int_equal(mkdir(path, 0700), 0);
		n = strlen(path);
		snprintf(path + n, sizeof(path) - n, "/%.90s%d", part, i);
	}
	assert_int_equal(mkdir(path, 0700), 0);
	n = strlen(path);
	strcpy(path + n, "/config.json");
	fclose(fopen(path, "w"));
	path[n] = 0;
	FOUND(path, path, path + n - 91, false);
	snprintf(slashes, sizeof(slashes), "%s//", path);
	FOUND(slashes, slashes, path + n - 91, false);
	memset(path, '/', 300);                    /* the root is not a model */
	path[300] = 0;
	REFUSED(path, -EINVAL, "holds no config.json and no GGUF file");
	memset(path, 'a', 280);
	path[280] = path[281] = '/';
	path[282] = 0;
	REFUSED(path, -ENAMETOOLONG, "File name too long");
	memset(path, 'a', 201);
	path[201] = 0;
	REFUSED(path, -ENOENT, "no such file or directory");
}

static void test_ids(void **state)
{
	static const char snapshot[] = "home/.cache/huggingface/hub/models--org--name/snapshots/0123abc";

	(void)state;
	FOUND("org/name", in(snapshot), "org/name", false);
	FOUND("org/quants:q4_k_m", in(QUANTS "/snapshots/fe/m-Q4_K_M.gguf"), "org/quants:q4_k_m", true);
	FOUND("org/quants:Q8_0", in(QUANTS "/snapshots/fe/Q8_0/m.Q8_0-00001-of-00002.gguf"), "org/quants:Q8_0", true);
	REFUSED("org/quants:F16", -EINVAL, "holds 2 GGUF files whose names end in F16");
	REFUSED("org/quants:K_M", -EINVAL, "holds 2 GGUF files whose names end in K_M");
	REFUSED("org/quants:4_K_M", -EINVAL, "holds 0 GGUF files whose names end in 4_K_M");
	REFUSED("org/quants", -EINVAL, "holds 4 GGUF files and no config.json");
	REFUSED("org/name:Q4_0", -EINVAL, "holds 0 GGUF files");
	REFUSED("org/other:Q4_0", -ENOENT, "to download it: slipring pull org/other:Q4_0");
	REFUSED("org/name:", -ENOENT, "org/name:: no such file or directory");
	REFUSED("org/name:a/b", -ENOENT, "no such file or directory");
	REFUSED("org/other", -ENOENT, "to download it: slipring pull org/other");
	REFUSED("gpt2", -ENOENT, "slipring pull gpt2");
	setenv("HF_HOME", in("hfhome"), 1);
	FOUND("org/name", in("hfhome/hub/models--org--name/snapshots/0123abc"), "org/name", false);
	REFUSED("gpt2", -ENOENT, "slipring pull gpt2");          /* refs/main leads out of the cache */
	REFUSED("a/b", -ENOENT, "slipring pull a/b");            /* the snapshot is gone */
	REFUSED("a/empty", -ENOENT, "slipring pull a/empty");
	REFUSED("a/in", -ENOENT, "slipring pull a/in");          /* a path where a revision should be */
	REFUSED("a/file", -ENOENT, "slipring pull a/file");      /* a file where a snapshot should be */
	setenv("HF_HUB_CACHE", in("home/.cache/huggingface/hub"), 1);
	FOUND("org/name", in(snapshot), "org/name", false);
	setenv("HF_HUB_CACHE", "", 1);                         /* empty is not given */
	REFUSED("gpt2", -ENOENT, "hfhome/hub; to download it");
	unsetenv("HF_HUB_CACHE");
	setenv("HF_HOME", "", 1);
	FOUND("org/name", in(snapshot), "org/name", false);
	unsetenv("HF_HOME");
	setenv("XDG_CACHE_HOME", in("xdg"), 1);
	REFUSED("org/name", -ENOENT, "xdg/huggingface/hub; to download it: slipring pull org/name");
	unsetenv("XDG_CACHE_HOME");
}

/* No variable says where to look, or its value cannot be a path. */
static void test_no_home(void **state)
{
	static char longest[5000];

	(void)state;
	memset(longest, 'd', sizeof(longest) - 1);
	for (int i = 0; i < 3; i++) {
		if (i == 0)
			unsetenv("HOME");
		else
			setenv("HOME", i == 1 ? "" : longest, 1);
		REFUSED("org/name", -ENOENT, "neither HOME nor HF_HOME is a path of downloaded models");
		REFUSED(NULL, -ENOENT, "neither HOME nor XDG_CACHE_HOME is a path to the default one");
	}
	setenv("HOME", in("home"), 1);
	setenv("XDG_CACHE_HOME", longest, 1);
	REFUSED(NULL, -ENOENT, "neither HOME nor XDG_CACHE_HOME is a path to the default one");
	unsetenv("XDG_CACHE_HOME");
	setenv("HF_HUB_CACHE", longest, 1);
	REFUSED("org/name", -ENOENT, "neither HOME nor HF_HOME is a path of downloaded models");
	unsetenv("HF_HUB_CACHE");
}

static void test_default(void **state)
{
	(void)state;
	REFUSED(NULL, -ENOENT, "name a MODEL, or download it by tools/fetch-model.sh");
	put_file("home/.cache/slipring/models/" LOCATE_DEFAULT, "", 0);
	FOUND(NULL, in("home/.cache/slipring/models/" LOCATE_DEFAULT), "SmolLM2-135M-Instruct.Q4_1", true);
	FOUND("", in("home/.cache/slipring/models/" LOCATE_DEFAULT), "SmolLM2-135M-Instruct.Q4_1", true);
	setenv("XDG_CACHE_HOME", in("elsewhere"), 1);
	REFUSED(NULL, -ENOENT, "elsewhere/slipring/models");
	unsetenv("XDG_CACHE_HOME");
}

static void test_long_names(void **state)
{
	char name[6000];

	(void)state;
	memset(name, 'a', sizeof(name));
	name[sizeof(name) - 1] = 0;
	REFUSED(name, -ENAMETOOLONG, "at most");
	name[300] = 0;
	REFUSED(name, -ENAMETOOLONG, "at most");
}

static void test_vocab_hash(void **state)
{
	/* sha256 of tokens "a" and "b" as a GGUF has them; of "abc"; of nothing */
	static const uint8_t abc[4] = { 0xba, 0x78, 0x16, 0xbf }, nothing[4] = { 0xe3, 0xb0, 0xc4, 0x42 };
	struct located l;
	uint8_t a[32], b[32];

	(void)state;
	assert_int_equal(locate_model(&l, in("hf"), err, sizeof(err)), 0);
	assert_int_equal(locate_vocab_hash(&l, a, err, sizeof(err)), 0);
	assert_memory_equal(a, abc, 4);
	unlink(in("hf/tokenizer.json"));
	assert_int_equal(locate_vocab_hash(&l, a, err, sizeof(err)), 0);
	assert_memory_equal(a, nothing, 4);
	assert_int_equal(locate_model(&l, in("x.gguf"), err, sizeof(err)), 0);
	assert_int_equal(locate_vocab_hash(&l, a, err, sizeof(err)), 0);
	assert_int_equal(locate_model(&l, in("one"), err, sizeof(err)), 0);
	assert_int_equal(locate_vocab_hash(&l, b, err, sizeof(err)), 0);
	assert_memory_equal(a, b, 32);
	assert_memory_not_equal(a, nothing, 32);
	assert_int_equal(locate_model(&l, in("bare.gguf"), err, sizeof(err)), 0);      /* no vocabulary in it */
	assert_int_equal(locate_vocab_hash(&l, a, err, sizeof(err)), 0);
	assert_memory_equal(a, nothing, 4);
	put_file("x.gguf", "GGUF", 4);
	assert_int_equal(locate_model(&l, in("x.gguf"), err, sizeof(err)), 0);
	assert_int_equal(locate_vocab_hash(&l, a, err, sizeof(err)), -EINVAL);
}

/* Directories without a tokenizer, and failures while reading one. */
static void test_wrong_vocabulary(void **state)
{
	struct located l;
	uint8_t a[32];

	(void)state;
	assert_int_equal(locate_model(&l, in("hf"), err, sizeof(err)), 0);
	assert_int_equal(mkdir(in("hf/tokenizer.json"), 0700), 0);
	assert_int_equal(locate_vocab_hash(&l, a, err, sizeof(err)), -EISDIR);
	assert_non_null(strstr(err, "hf/tokenizer.json: Is a directory"));
	rmdir(in("hf/tokenizer.json"));
	assert_int_equal(symlink(in("loop"), in("hf/tokenizer.json")), 0);
	assert_int_equal(locate_vocab_hash(&l, a, err, sizeof(err)), -ELOOP);
	assert_non_null(strstr(err, "hf/tokenizer.json: Too many levels"));
	unlink(in("hf/tokenizer.json"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_paths), cmocka_unit_test(test_ids), cmocka_unit_test(test_default),
		cmocka_unit_test(test_no_home), cmocka_unit_test(test_long_names), cmocka_unit_test(test_long_paths),
		cmocka_unit_test(test_vocab_hash), cmocka_unit_test(test_wrong_vocabulary),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
