/* LINK: @config core/reload.c core/instance/knobs.c core/instance/log.c -lyaml */
/* test_reload.c - settings read again: changed ones are applied, others stay as an operator left them,
 * and a wrong file changes nothing.  control_set is a stand-in that remembers. */
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

#include "core/instance/log.h"
#include "core/reload.h"

static struct {
	int64_t value[N_KNOBS];
	unsigned which;
	int n, answer;
} given;

int control_set(struct control *c, const int64_t value[N_KNOBS], unsigned which, char *say, size_t n)
{
	(void)c;
	memcpy(given.value, value, sizeof(given.value));
	given.which = which;
	given.n++;
	if (given.answer < 0)
		snprintf(say, n, "it does not fit");
	return given.answer;
}

static char path[64];
static struct config started;
static struct reload r;
static char *argv[8];

static void file(const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

/* A daemon started with this file, and perhaps one more flag. */
static void begin(const char *text, const char *flag)
{
	char err[300] = "";
	int argc = 0;

	memset(&given, 0, sizeof(given));
	file(text);
	argv[argc++] = (char *)(uintptr_t)"slipringd";
	argv[argc++] = (char *)(uintptr_t)"--config";
	argv[argc++] = path;
	if (flag)
		argv[argc++] = (char *)(uintptr_t)flag;
	if (config_parse(&started, argc, argv, FOR_DAEMON, err, sizeof(err)) != 0)
		fail_msg("%s", err);
	r = (struct reload){ .argc = argc, .argv = argv, .seqs = 128, .tokens = 2048 };
	reload_create(&r, &started);
}

static void end(void)
{
	reload_destroy(&r);
	config_free(&started);
}

/* Read the settings again; the log's lines go to `said`. */
static char said[4000];

static int again(char *err, size_t n)
{
	FILE *to = tmpfile();
	int kept = dup(STDERR_FILENO), result;
	size_t len;

	assert_true(to && kept >= 0);
	fflush(stderr);
	dup2(fileno(to), STDERR_FILENO);
	result = reload_now(&r, err, n);
	dup2(kept, STDERR_FILENO);
	close(kept);
	rewind(to);
	len = fread(said, 1, sizeof(said) - 1, to);
	said[len] = 0;
	fclose(to);
	return result;
}

static int set_up(void **state)
{
	int fd;

	(void)state;
	strcpy(path, "/tmp/test-reload-XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	return close(fd);
}

static int tear_down(void **state)
{
	(void)state;
	return unlink(path);
}

#define BIT(k) (1u << KNOB_##k)

static void test_changes(void **state)
{
	static const struct {
		const char *before, *flag, *after;
		unsigned which;               /* knobs that are given to control_set, */
		int64_t value;                /* each at this */
		const char *changed, *restart; /* what the log names; NULL: no such line */
	} cases[] = {
		{ "", NULL, "", 0, 0, NULL, NULL },
		{ "max-num-seqs: 4\n", NULL, "# the same\nmax_num_seqs: 4\n", 0, 0, NULL, NULL },
		{ "max-num-seqs: 4\n", NULL, "max-num-seqs: 9\n", BIT(MAX_NUM_SEQS), 9, "max-num-seqs", NULL },
		{ "", NULL, "max-num-seqs: 9\n", BIT(MAX_NUM_SEQS), 9, "max-num-seqs", NULL },
		{ "", NULL, "max-num-batched-tokens: 900\n", BIT(MAX_NUM_BATCHED_TOKENS), 900, "max-num-batched-tokens",
		  NULL },
		{ "", NULL, "max-num-seqs: 50\nmax-num-batched-tokens: 50\n",
		  BIT(MAX_NUM_SEQS) | BIT(MAX_NUM_BATCHED_TOKENS), 50, "max-num-seqs, max-num-batched-tokens", NULL },
		{ "", NULL, "long-prefill-token-threshold: 64\n", BIT(LONG_PREFILL), 64,
		  "long-prefill-token-threshold", NULL },
		{ "", NULL, "scheduling-policy: priority\n", BIT(POLICY), 1, "scheduling-policy", NULL },
		{ "scheduling-policy: priority\n", NULL, "", BIT(POLICY), 0, "scheduling-policy", NULL },
		{ "", NULL, "enable-prefix-caching: false\n", BIT(PREFIX_CACHING), 0, "enable-prefix-caching", NULL },
		{ "enable-prefix-caching: false\n", NULL, "", BIT(PREFIX_CACHING), 1, "enable-prefix-caching", NULL },
		{ "", NULL, "step-target-ms: 2.5\n", BIT(STEP_TARGET), 2500, "step-target-ms", NULL },
		/* the command line wins over the file, again */
		{ "", "--max-num-seqs=7", "max-num-seqs: 9\n", 0, 0, NULL, NULL },
		/* not knobs, but can change, too */
		{ "", NULL, "shutdown-timeout: 3\n", 0, 0, "shutdown-timeout", NULL },
		{ "", NULL, "disable-log-stats: true\n", 0, 0, "disable-log-stats", NULL },
		{ "", NULL, "uvicorn-log-level: debug\n", 0, 0, "uvicorn-log-level", NULL },
		/* settings that cannot change are named, and stay */
		{ "", NULL, "block-size: 32\n", 0, 0, NULL, "block-size" },
		{ "", NULL, "block-size: 32\nmax-num-seqs: 9\n", BIT(MAX_NUM_SEQS), 9, "max-num-seqs", "block-size" },
		/* removed from the file: the plan's value was not computed at start */
		{ "max-num-seqs: 4\n", NULL, "", 0, 0, NULL, "max-num-seqs" },
		{ "max-num-batched-tokens: 400\n", NULL, "", 0, 0, NULL, "max-num-batched-tokens" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char err[300] = "", line[200];

		begin(cases[i].before, cases[i].flag);
		file(cases[i].after);
		if (again(err, sizeof(err)) != 0)
			fail_msg("case %zu: %s", i, err);
		assert_int_equal(given.n, 1);
		if (given.which != cases[i].which)
			fail_msg("case %zu: knobs %x", i, given.which);
		for (int k = 0; k < N_KNOBS; k++)
			if (given.which & 1u << k)
				assert_int_equal(given.value[k], cases[i].value);
		snprintf(line, sizeof(line), "changed: %s\n", cases[i].changed ? cases[i].changed : "");
		if (!strstr(said, cases[i].changed ? line : "nothing changed that can change"))
			fail_msg("case %zu said: %s", i, said);
		snprintf(line, sizeof(line), "need a restart: %s\n", cases[i].restart ? cases[i].restart : "");
		if (cases[i].restart ? !strstr(said, line) : strstr(said, "need a restart") != NULL)
			fail_msg("case %zu said: %s", i, said);
		end();
	}
}

/* Not set at start, set later, removed again: back to the plan's value. */
static void test_back(void **state)
{
	static const struct { const char *text; enum knob k; int64_t planned; } cases[] = {
		{ "max-num-seqs: 9\n", KNOB_MAX_NUM_SEQS, 128 },
		{ "max-num-batched-tokens: 900\n", KNOB_MAX_NUM_BATCHED_TOKENS, 2048 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char err[300];

		begin("", NULL);
		file(cases[i].text);
		assert_int_equal(again(err, sizeof(err)), 0);
		file("");
		assert_int_equal(again(err, sizeof(err)), 0);
		assert_int_equal(given.which, 1u << cases[i].k);
		assert_int_equal(given.value[cases[i].k], cases[i].planned);
		end();
	}
}

/* A knob turned by hand stays: only what differs from the last reading is given. */
static void test_by_hand(void **state)
{
	char err[300];

	(void)state;
	begin("max-num-seqs: 4\n", NULL);
	file("max-num-seqs: 9\nuvicorn-log-level: debug\n");
	assert_int_equal(again(err, sizeof(err)), 0);
	assert_int_equal(given.which, BIT(MAX_NUM_SEQS));
	file("max-num-seqs: 9\nuvicorn-log-level: info\n");
	assert_int_equal(again(err, sizeof(err)), 0);
	assert_int_equal(given.which, 0);
	assert_string_equal(r.seen.log_level, "info");
	assert_int_equal(r.seen.max_num_seqs, 9);
	end();
}

/* Settings that need a restart are named at each reading, until they are as at start. */
static void test_restart(void **state)
{
	static const struct { const char *text; bool restart; } again_and_again[] = {
		{ "block-size: 32\n", true }, { "block-size: 32\n", true }, { "block-size: 32\nmax-num-seqs: 9\n", true },
		{ "", false }, { "", false },
	};
	char err[300];

	(void)state;
	begin("", NULL);
	for (size_t i = 0; i < sizeof(again_and_again) / sizeof(again_and_again[0]); i++) {
		file(again_and_again[i].text);
		assert_int_equal(again(err, sizeof(err)), 0);
		if (!strstr(said, "need a restart: block-size\n") == again_and_again[i].restart)
			fail_msg("reading %zu said: %s", i, said);
	}
	end();
}

/* A wrong file changes nothing, and the next right one is applied. */
static void test_wrong(void **state)
{
	static const struct { const char *text, *say; } cases[] = {
		{ "max-num-seqs: many\n", "max-num-seqs" },
		{ "max-num-seqs: 9\nno-such-flag: 1\n", "no-such-flag" },
		{ "max-num-seqs: [\n", "" },
		{ NULL, "" },                            /* no file */
	};
	char err[1000];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		begin("max-num-seqs: 4\n", NULL);
		if (cases[i].text)
			file(cases[i].text);
		else
			assert_int_equal(unlink(path), 0);
		*err = 0;
		assert_int_equal(again(err, sizeof(err)), -EINVAL);
		if (!*err || !strstr(err, cases[i].say))
			fail_msg("case %zu says: %s", i, err);
		assert_int_equal(given.n, 0);
		assert_int_equal(r.seen.max_num_seqs, 4);
		file("max-num-seqs: 5\n");
		assert_int_equal(again(err, sizeof(err)), 0);
		assert_int_equal(given.value[KNOB_MAX_NUM_SEQS], 5);
		end();
	}
	begin("max-num-seqs: 4\n", NULL);                /* right, but the daemon refuses */
	file("max-num-seqs: 5000\nuvicorn-log-level: debug\n");
	given.answer = -ERANGE;
	assert_int_equal(again(err, sizeof(err)), -EINVAL);
	assert_string_equal(err, "it does not fit");
	assert_string_equal(said, "");
	assert_int_equal(r.seen.max_num_seqs, 4);
	given.answer = 0;
	assert_int_equal(again(err, sizeof(err)), 0);    /* it is tried again */
	assert_int_equal(given.which, BIT(MAX_NUM_SEQS));
	end();
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = { T(test_changes), T(test_back), T(test_by_hand), T(test_restart), T(test_wrong) };
#undef T

	return cmocka_run_group_tests_name("reload", tests, NULL, NULL);
}
