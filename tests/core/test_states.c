/* LINK: @slipringd shmring/client.c */
/* test_states.c - a model whose layers have a state (the recorded Qwen 3.5), served by the whole daemon on the CPU.
 * Prefixes are continued from snapshots: at the end of a prompt, at the end of an answer, and where prompts part.
 * Each answer has the same bits without a prefix cache, alone, in company, with hardly any states, and in small
 * chunks.
 */
#include "tests/rig/slipringd.h"

enum { LENGTH = 150, ANSWER = 40, BLOCK = 16, ASKED = 9 };

static char folder[64] = "/tmp/slipring-states-XXXXXX";

struct said { int32_t id[ANSWER]; float logprob[ANSWER]; uint32_t cached; int n; };

static void submit(struct sr_conn *c, uint64_t user_data, const int32_t *ids, int n)
{
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = (uint32_t)n, .max_tokens = ANSWER,
		.flags = SR_IGNORE_EOS, .n_top = 1, .user_data = user_data };

	assert_int_equal(sr_submit(c, &q, NULL), 0);
}

/* Take what comes until `ends` requests have ended; said[user_data] is their answer. */
static void take(struct sr_conn *c, struct said *said, int ends)
{
	struct sr_token t;

	while (ends) {
		int e = sr_next(c, &t);

		if (!e) {
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 20000) > 0);
			continue;
		}
		if (t.kind == SR_TOKEN) {
			assert_true(t.index < ANSWER);
			said[t.user_data].id[t.index] = t.id;
			said[t.user_data].logprob[t.index] = t.logprob;
		} else if (t.kind == SR_END) {
			assert_int_equal(t.end.finish, SR_LENGTH);
			said[t.user_data].cached = t.end.cached;
			ends--;
		}
	}
}

static int32_t id_of(int prompt, int i)
{
	return (i * 31 + prompt * 101 + i * i * (prompt + 1)) % 110 + 1;
}

/* Prompt 0 and 1 are the same; 2 goes on after the answer of 0; 3, 4 and 5 begin like 0 and part from it in block 5;
 * 6, 7 and 8 are others, all asked at once. */
static void ask_all(const char *flags, struct said said[ASKED])
{
	static int32_t ids[ASKED][LENGTH + ANSWER + 20];
	const int n[ASKED] = { LENGTH, LENGTH, LENGTH + ANSWER + 9, LENGTH, LENGTH, LENGTH, 97, LENGTH, 33 };
	char line[300];
	struct sr_conn *c;
	pid_t pid;

	memset(said, 0, ASKED * sizeof(*said));
	snprintf(line, sizeof(line), "--device cpu --threads 2 --load-format auto --num-gpu-blocks-override 200 "
	         "--max-num-seqs 8 --prefix-cache-scope global %s", flags);
	pid = home_start_with(&home, NULL, "0", line);
	c = home_connect(&home, 0, 0);
	for (int p = 0; p < ASKED; p++) {
		for (int i = 0; i < n[p]; i++)
			ids[p][i] = id_of(p < 2 || (p < 6 && i < 5 * BLOCK + 3) || p == 2 ? 0 : p, i);
		for (int i = 0; p == 2 && i < ANSWER; i++)
			ids[p][LENGTH + i] = said[0].id[i];
		submit(c, (uint64_t)p, ids[p], n[p]);
		if (p < 6)
			take(c, said, 1);
	}
	take(c, said, 3);
	sr_close(c);
	assert_int_equal(home_stop(pid), 0);
}

static void assert_same(const struct said *a, const struct said *b)
{
	for (int p = 0; p < ASKED; p++) {
		if (memcmp(a[p].id, b[p].id, sizeof(a->id)) || memcmp(a[p].logprob, b[p].logprob, sizeof(a->logprob)))
			fail_msg("prompt %d has another answer", p);
	}
}

static void prefixes_go_on_from_snapshots(void **state)
{
	static struct said with[ASKED], other[ASKED];
	const uint32_t whole = (LENGTH - 1) / BLOCK * BLOCK, answered = (LENGTH + ANSWER - 1) / BLOCK * BLOCK;

	(void)state;
	ask_all("--no-enable-prefix-caching", other);
	for (int p = 0; p < ASKED; p++)
		assert_int_equal(other[p].cached, 0);
	ask_all("", with);
	assert_same(with, other);
	assert_int_equal(with[0].cached, 0);
	assert_int_equal(with[1].cached, whole);      /* the end of a prompt */
	assert_int_equal(with[2].cached, answered);   /* the end of an answer */
	assert_int_equal(with[3].cached, 0);          /* the blocks are there, but no state where it parts .. */
	assert_int_equal(with[4].cached, 5 * BLOCK);  /* .. until that one has kept it */
	assert_int_equal(with[5].cached, 5 * BLOCK);
	ask_all("--max-states 1", other);
	assert_same(with, other);
	ask_all("--max-states 3 --max-num-batched-tokens 21", other);
	assert_same(with, other);
}

static int setup(void **state)
{
	char command[200];

	if (home_setup(state))
		return -1;
	assert_non_null(mkdtemp(folder));
	snprintf(command, sizeof(command), "python3 tests/models/tiny.py qwen3.5 '%s'", folder);
	assert_int_equal(system(command), 0);
	assert_in_range(snprintf(home.model, sizeof(home.model), "%.30s/hf", folder), 1, sizeof(home.model) - 1);
	return 0;
}

static int teardown(void **state)
{
	char command[200];

	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	assert_int_equal(system(command), 0);
	return home_teardown(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(prefixes_go_on_from_snapshots) };

	return cmocka_run_group_tests(tests, setup, teardown);
}
