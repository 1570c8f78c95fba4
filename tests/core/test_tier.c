/* LINK: @slipringd shmring/client.c */
/* test_tier.c - the host tier of the KV cache with real numbers: the whole daemon on the CPU, a model of
 * random weights, and more prompts than the device's blocks hold.  Repeated, each prompt finds its prefix in
 * the host tier and gets the same answer, to the last bit of its log-probabilities.  Without a tier it is
 * computed again, with the same answer.
 */
#include "tests/rig/slipringd.h"

enum { PROMPTS = 6, LENGTH = 400, ANSWER = 24, BLOCKS = 64, BLOCK = 16 };

struct said { int32_t id[ANSWER]; float logprob[ANSWER]; uint32_t cached; };

static void ask(struct sr_conn *c, int prompt, struct said *out)
{
	static int32_t ids[LENGTH];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = LENGTH, .max_tokens = ANSWER,
		.flags = SR_IGNORE_EOS, .n_top = 1 };
	struct sr_token t = { 0 };

	for (int i = 0; i < LENGTH; i++)
		ids[i] = (i * 31 + prompt * 101 + i * i * (prompt + 1)) % 256;
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	while (t.kind != SR_END) {
		int e = sr_next(c, &t);

		if (!e)
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 20000) > 0);
		else if (t.kind == SR_TOKEN) {
			assert_true(t.index < ANSWER);
			out->id[t.index] = t.id;
			out->logprob[t.index] = t.logprob;
		}
	}
	assert_int_equal(t.end.finish, SR_LENGTH);
	assert_int_equal(t.end.n_tokens, ANSWER);
	out->cached = t.end.cached;
}

static bool same(const struct said *a, const struct said *b)
{
	return memcmp(a->id, b->id, sizeof(a->id)) == 0 && memcmp(a->logprob, b->logprob, sizeof(a->logprob)) == 0;
}

/* All prompts, twice.  Returns what the device copied meanwhile. */
static uint64_t ask_twice(const char *flags, struct said said[2][PROMPTS])
{
	char line[200];
	const struct stats_page *st;
	struct sr_conn *c;
	uint64_t copied;
	pid_t pid;

	snprintf(line, sizeof(line), "--device cpu --threads 1 --num-gpu-blocks-override %d --block-size %d "
	         "--max-model-len 500 %s", BLOCKS, BLOCK, flags);
	pid = home_start_with(&home, NULL, "0", line);
	c = home_connect(&home, 0, 0);
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < PROMPTS; i++)
			ask(c, i, &said[round][i]);
	assert_int_equal(stats_open(&st, home.dir), 0);
	copied = st->count.bytes_copied;
	stats_close(st);
	sr_close(c);
	assert_int_equal(home_stop(pid), 0);
	return copied;
}

static void a_prefix_comes_back_from_the_host(void **state)
{
	/* 1 layer, K and V of 32 numbers in bf16; each prompt's whole blocks but the last token's, down and up */
	const uint64_t block = 2 * 32 * 2 * BLOCK, whole = (LENGTH - 1) / BLOCK;
	static struct said with[2][PROMPTS], without[2][PROMPTS];
	uint64_t copied = ask_twice("--kv-offloading-size 0.002", with);

	(void)state;
	assert_true(PROMPTS * whole > BLOCKS);
	assert_int_equal(ask_twice("", without), 0);
	for (int i = 0; i < PROMPTS; i++) {
		assert_int_equal(with[0][i].cached, 0);
		assert_int_equal(with[1][i].cached, whole * BLOCK);
		assert_int_equal(without[1][i].cached, 0);
		assert_true(same(&with[0][i], &with[1][i]));
		assert_true(same(&with[0][i], &without[0][i]) && same(&with[0][i], &without[1][i]));
		for (int k = 0; k < i; k++)            /* the answers differ from each other */
			assert_false(same(&with[0][i], &with[0][k]));
	}
	print_message("%ju KiB copied, for %d prompts of %ju KiB\n", (uintmax_t)copied >> 10, PROMPTS,
	              (uintmax_t)(whole * block) >> 10);
	assert_true(copied >= 2 * (PROMPTS * whole - BLOCKS) * block);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(a_prefix_comes_back_from_the_host) };

	return cmocka_run_group_tests(tests, home_setup, home_teardown);
}
