/* LINK: @config tools/bench/bench_arrival.c tools/bench/bench_data.c tools/bench/bench_files.c tools/bench/bench_sse.c tools/bench/bench_metrics.c tools/bench/bench_report.c tools/bench/bench_save.c core/instance/fresh.c tools/bench/bench_options.c core/figures/figures.c core/instance/stats.c -ljansson -lyaml */
/* test_bench.c - `slipring bench serve` without a server: draws equal to numpy's and Python's,
 * events of a stream in torn buffers, percentiles by hand, flags, datasets, and the printed block.
 *
 * data/bench_block.txt was printed by `vllm bench serve` itself (0.32), its clock and its requests
 * replaced by those of made_up() below.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/bench.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static char err[6000];

/* ---- a tokenizer with a token for each byte, 0 to 3 of them special ----------------------------- */

static struct sr_text_info info = { .vocab = 128, .bos = -1, .eos = 0 };
static struct sr_text *const text = (struct sr_text *)&info;

const struct sr_text_info *sr_text_info(const struct sr_text *t)
{
	(void)t;
	return &info;
}

int64_t sr_text_encode(const struct sr_text *t, const char *s, size_t n, int flags, int32_t *ids, size_t cap,
                       size_t limit)
{
	(void)t, (void)flags, (void)limit;
	for (size_t i = 0; i < n && i < cap; i++)
		ids[i] = (unsigned char)s[i];
	return (int64_t)n;
}

/* "ab" is decoded as one character less, so that prompts must be filled up */
int64_t sr_text_decode(const struct sr_text *t, const int32_t *ids, size_t n, bool skip, char *out,
                       size_t cap)
{
	size_t k = 0;

	(void)t, (void)skip;
	for (size_t i = 0; i < n; i++) {
		if (i + 1 < n && ids[i] == 'a' && ids[i + 1] == 'b')
			continue;
		if (k < cap)
			out[k] = (char)ids[i];
		k++;
	}
	return (int64_t)k;
}

int sr_text_piece(const struct sr_text *t, int32_t id, const char **out, bool *special)
{
	(void)t;
	*out = "";
	*special = id < 4;
	return id < info.vocab ? 1 : -EINVAL;
}

int64_t sr_text_chat(const struct sr_text *t, const char *tmpl, const char *context, char **out, char *why,
                     size_t n)
{
	(void)t, (void)tmpl, (void)context, (void)out;
	snprintf(why, n, "no template here");
	return -EINVAL;
}

/* ---- draws ------------------------------------------------------------------------------------- */

/* numpy.random.default_rng(7).integers(89, 168, 4), (0, 49152, 3); default_rng(2**32+5) */
static void pcg_is_numpys(void **state)
{
	static const uint64_t first[] = { 163, 138, 143, 159 }, second[] = { 28424, 38126, 40975 },
	                      third[] = { 132, 774, 778, 470 };
	struct pcg g;

	(void)state;
	pcg_seed(&g, 7);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(89 + pcg_below(&g, 79), first[i]);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(pcg_below(&g, 49152), second[i]);
	pcg_seed(&g, (1ull << 32) + 5);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(pcg_below(&g, 1000), third[i]);
}

/* numpy.random.seed(7); gamma(1), gamma(.5), gamma(4), three of each */
static void twister_is_numpys(void **state)
{
	static const struct { double shape, value; } cases[] = {
		{ 1, 0.07937690952144451 }, { 1, 1.5137586745587868 }, { 1, 0.5769818641565158 },
		{ 0.5, 0.6338320100308473 }, { 0.5, 0.29166323544585904 }, { 0.5, 0.005191365818426143 },
		{ 4, 9.074435330870868 }, { 4, 3.6641242314746996 }, { 4, 3.363079247947062 },
	};
	struct twister t;

	(void)state;
	twister_seed_numpy(&t, 7);
	for (size_t i = 0; i < N(cases); i++)
		assert_true(fabs(twister_gamma(&t, cases[i].shape) - cases[i].value) < 1e-12);
}

/* random.seed(7); shuffle(list(range(8))), choice(range(10)) x 4; seed(2**33+1), randrange(10**6) x 3 */
static void twister_is_pythons(void **state)
{
	static const int shuffled[] = { 6, 7, 2, 4, 0, 3, 1, 5 }, chosen[] = { 5, 9, 0, 8 },
	                 big[] = { 612907, 100799, 271090 };
	int v[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	struct twister t;

	(void)state;
	twister_seed_python(&t, 7);
	for (size_t i = 8; i-- > 1;) {
		size_t k = twister_below(&t, i + 1);
		int swap = v[i];

		v[i] = v[k];
		v[k] = swap;
	}
	assert_memory_equal(v, shuffled, sizeof(v));
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(twister_below(&t, 10), chosen[i]);
	twister_seed_python(&t, (1ull << 33) + 1);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(twister_below(&t, 1000000), big[i]);
}

static void arrivals(void **state)
{
	static const struct { double burstiness, variation; } cases[] = {
		{ 0.25, 2.0 }, { 1, 1.0 }, { 4, 0.5 }, { INFINITY, 0 },
	};
	static struct bench_prompt prompt[20000];
	static double at[N(prompt)];
	struct bench_load l = { .prompt = prompt, .n = N(prompt) };

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		struct bench_options o = { .rate = 50, .burstiness = cases[i].burstiness, .seed = 3 };
		double square = 0, mean = 1 / o.rate, variation;

		assert_int_equal(bench_arrivals(at, &l, &o), 0);
		assert_true(fabs(at[l.n - 1] - (double)l.n / o.rate) < 1e-6);
		for (size_t k = 0; k < l.n; k++) {
			double gap = at[k] - (k ? at[k - 1] : 0);

			assert_true(gap >= 0);
			square += (gap - mean) * (gap - mean);
		}
		variation = sqrt(square / (double)l.n) / mean;
		assert_true(fabs(variation - cases[i].variation) < 0.05);
	}
	struct bench_options all = { .rate = INFINITY, .burstiness = 1 };

	assert_int_equal(bench_arrivals(at, &l, &all), 0);
	assert_true(at[0] == 0 && at[l.n - 1] == 0);
	struct bench_options ramp = { .rate = INFINITY, .burstiness = INFINITY, .ramp = "linear",
	                             .ramp_start = 1, .ramp_end = 3 };

	l.n = 3;                                  /* rates 1, 2, 3 */
	assert_int_equal(bench_arrivals(at, &l, &ramp), 0);
	assert_true(fabs(at[0] - 1) + fabs(at[1] - 1.5) + fabs(at[2] - 1.5 - 1.0 / 3) < 1e-9);
}

/* ---- events ------------------------------------------------------------------------------------ */

struct seen { int events, chunks, done; int64_t n_prompt,
             n_output; char text[200]; size_t n_text; char error[100]; };

static int see(void *arg, const struct sse_event *e)
{
	struct seen *s = arg;

	s->events++;
	s->done += e->done;
	s->chunks += e->choices;
	if (e->text)
		s->n_text += sse_unescape(e->text, e->n_text, s->text + s->n_text);
	if (e->n_output >= 0)
		s->n_output = e->n_output;
	if (e->n_prompt >= 0)
		s->n_prompt = e->n_prompt;
	if (e->error)
		s->error[sse_unescape(e->error, e->n_error, s->error)] = 0;
	return 0;
}

static const char stream[] =
	": a comment\r\n"
	"data: {\"id\":\"a\\\"{[\",\"choices\":[{\"index\":0,\"text\":\"Gr\\u00fc\\u00dfe \\\"\",\"logprobs\":{\"x\":[1,{}]}}]}\n\n"
	"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\\ud83d\\ude00\\n\"}}],\"usage\":null}\r\n\r\n"
	"event: x\ndata:{\"choices\": [ ], \"usage\" : {\"prompt_tokens\": 12,\"completion_tokens\":34,"
	"\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n"
	"data: [DONE]\n\n";

static void events_are_read_however_torn(void **state)
{
	size_t n = sizeof(stream) - 1;

	(void)state;
	for (size_t step = 1; step <= n; step++) {
		struct seen s = { 0 };
		struct sse sse = { 0 };

		for (size_t at = 0; at < n; at += step)
			assert_int_equal(sse_feed(&sse, stream + at, at + step < n ? step : n - at, see, &s),
			                 0);
		assert_int_equal(sse_end(&sse, see, &s), 0);
		sse_free(&sse);
		assert_int_equal(s.events, 4);
		assert_int_equal(s.chunks, 2);
		assert_int_equal(s.done, 1);
		assert_int_equal(s.n_prompt, 12);
		assert_int_equal(s.n_output, 34);
		s.text[s.n_text] = 0;
		assert_string_equal(s.text, "Gr\xc3\xbc\xc3\x9f" "e \"\xf0\x9f\x98\x80\n");
	}
}

static void rubbish_is_no_event(void **state)
{
	static const struct { const char *line; int rc; } cases[] = {
		{ "data: {\"choices\":[{\"text\":\"x\"}]}\n", 0 }, { "data: <html>\n", -EBADMSG },
			{ "data: {\"a\":1\n", -EBADMSG },
		{ "data: {\"a\" 1}\n", -EBADMSG }, { "data: {\"a\":\"x}\n", -EBADMSG }, { "data: {} {}\n",
		                                                                         -EBADMSG },
		{ "data: [1]\n", -EBADMSG }, { "data: {\"a\":]}\n", -EBADMSG }, { "data: {,,}\n", -EBADMSG },
		{ "data: {\"a\":\"\\\n", -EBADMSG }, { "retry: 10\n", 0 }, { "\n", 0 }, { "data:\n", 0 },
	};

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		struct seen s = { 0 };
		struct sse sse = { 0 };

		assert_int_equal(sse_feed(&sse, cases[i].line, strlen(cases[i].line), see, &s), cases[i].rc);
		sse_free(&sse);
	}
	struct seen s = { 0 };
	struct sse sse = { 0 };
	static const char broke[] = "data: {\"error\":{\"message\":\"out of \\\"KV\\\"\",\"code\":500}}\n";

	assert_int_equal(sse_feed(&sse, broke, sizeof(broke) - 1, see, &s), 0);
	assert_string_equal(s.error, "out of \"KV\"");
	sse_free(&sse);
}

static void half_a_pair_is_replaced(void **state)
{
	static const struct { const char *in, *out; } cases[] = {
		{ "\\ud83d", "\xef\xbf\xbd" }, { "\\ude00x", "\xef\xbf\xbdx" }, { "\\ud83dx",
		                                                                 "\xef\xbf\xbdx" },
		{ "a\\/b\\\\", "a/b\\" }, { "\\u12", "?12" }, { "\\t", "\t" },
	};
	char out[32];

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		size_t n = sse_unescape(cases[i].in, strlen(cases[i].in), out);

		assert_int_equal(n, strlen(cases[i].out));
		assert_memory_equal(out, cases[i].out, n);
		assert_true(n <= strlen(cases[i].in));
	}
}

/* ---- numbers ----------------------------------------------------------------------------------- */

static void percentiles_by_hand(void **state)
{
	static const struct { double p, of_five, of_four; } cases[] = {
		{ 0, 1, 1 }, { 25, 2, 1.75 }, { 50, 3, 2.5 }, { 99, 4.96, 3.97 }, { 100, 5, 4 },
	};
	double v[] = { 5, 1, 4, 2, 3 };
	struct bench_stat s;

	(void)state;
	bench_stat(&s, v, 5, (const double[]){ 99 }, 1);
	assert_true(s.mean == 3 && s.median == 3 && fabs(s.std - sqrt(2)) < 1e-12 &&
	            fabs(s.p[0] - 4.96) < 1e-12);
	for (size_t i = 0; i < N(cases); i++) {
		assert_true(fabs(bench_percentile(v, 5, cases[i].p) - cases[i].of_five) < 1e-12);
		assert_true(fabs(bench_percentile(v, 4, cases[i].p) - cases[i].of_four) < 1e-12);
	}
	bench_stat(&s, v, 0, (const double[]){ 99 }, 1);
	assert_true(s.mean == 0 && s.median == 0 && s.p[0] == 0);
}

static void reals_are_pythons(void **state)
{
	static const struct { double v; const char *s; } cases[] = {
		{ 10, "10.0" }, { 0.5, "0.5" }, { 50, "50.0" }, { 0.1, "0.1" }, { INFINITY, "inf" },
			{ 1234567, "1234567.0" },
		{ 0, "0.0" }, { 1.0 / 3, "0.3333333333333333" },
	};
	char out[64];

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		bench_real(out, sizeof(out), cases[i].v);
		assert_string_equal(out, cases[i].s);
	}
}

/* Six requests of a fake clock: the same as those that the golden file was printed from. */
static void made_up(struct bench_run *r, struct bench_answer *a)
{
	for (int i = 0; i < 6; i++) {
		a[i] = (struct bench_answer){ .state = i < 5 ? BENCH_OK : BENCH_FAILED, .n_input = 100 +
		                             (uint32_t)i, .due = 100,
		                              .start = 100 + 0.5 * i, .ttft = 0.05 + 0.01 * i,
		                              .n_output = 10 * (uint32_t)i + 1, .n_itl = i < 5 ?
		                              10 * (size_t)i : 0 };
		double sum = 0;

		a[i].n_chunks = a[i].n_itl + 1;
		a[i].itl = calloc(a[i].n_itl + 1, sizeof(double));
		for (size_t k = 0; k < a[i].n_itl; k++)
			sum += a[i].itl[k] = 0.01 * (double)(1 + (k + (size_t)i) % 3);
		a[i].latency = a[i].ttft + sum;
	}
	snprintf(a[5].error, sizeof(a[5].error), "boom");
	r->answer = a;
	r->n_sent = r->n_done = 6;
	r->n_failed = 1;
	r->begin = 100;
	r->end = 110.25;
}

static struct bench_options parsed(const char *const *words, int n)
{
	char *argv[40] = { (char[]){ "serve" } };
	struct bench_options o;

	for (int i = 0; i < n; i++)
		argv[i + 1] = (char *)(uintptr_t)words[i];
	err[0] = 0;
	if (bench_options(&o, n + 1, argv, err, sizeof(err)))
		fail_msg("%s", err);
	return o;
}

static char *slurp(const char *path)
{
	char *s = calloc(1, 1 << 16);
	FILE *f = fopen(path, "r");

	if (!f)
		fail_msg("%s: %s", path, strerror(errno));
	if (f && fread(s, 1, (1 << 16) - 1, f) == 0)
		fail_msg("%s is empty", path);
	if (f)
		fclose(f);
	return s;
}

static const char *const golden_flags[] = {
	"--request-rate", "10", "--max_concurrency=4", "--goodput", "ttft:70", "tpot:21",
		"--metric-percentiles", "50,99.9",
	"--percentile-metrics", "ttft,tpot,itl,e2el,client_queue_time,e2el_including_client_queue",
		"--metadata", "who=me",
};

static void the_block_is_vllms(void **state)
{
	struct bench_options o = parsed(golden_flags, N(golden_flags));
	struct bench_load load = { .n = 6 };
	struct bench_run r = { .o = &o, .load = &load, .text = text };
	struct bench_answer a[6];
	struct bench_summary s;
	char *got = NULL, *want = slurp("tests/data/bench_block.txt");
	size_t n;
	FILE *f = open_memstream(&got, &n);

	(void)state;
	made_up(&r, a);
	assert_int_equal(bench_summarize(&s, &r, err, sizeof(err)), 0);
	bench_print(f, &s, &r);
	fclose(f);
	assert_string_equal(got, want);
	for (int i = 0; i < 6; i++)
		free(a[i].itl);
	free(got);
	free(want);
}

static void the_file_has_vllms_keys(void **state)
{
	static const char *const keys[] = {
		"date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "who",
			"request_rate",
		"burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens",
		"total_output_tokens", "request_throughput", "request_goodput", "output_throughput",
		"total_token_throughput", "input_lens", "output_lens", "ttfts", "itls", "latencies",
			"start_times",
		"queue_times", "generated_texts", "errors", "max_output_tokens_per_s",
			"max_concurrent_requests", "rtfx",
		"mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p50_ttft_ms", "p99.9_ttft_ms",
	};
	struct bench_options o = parsed(golden_flags, N(golden_flags));
	struct bench_about about = { "m", NULL, 0 };
	struct bench_load load = { .n = 6 };
	struct bench_run r = { .o = &o, .load = &load, .text = text };
	struct bench_answer a[6];
	struct bench_summary s;
	const char *key;
	json_t *j, *value;
	size_t i = 0;

	(void)state;
	made_up(&r, a);
	assert_int_equal(bench_summarize(&s, &r, err, sizeof(err)), 0);
	j = bench_result(&s, &r, &about, true);
	json_object_foreach(j, key, value) {
		if (i < N(keys))
			assert_string_equal(key, keys[i]);
		i++;
	}
	assert_true(i > N(keys));
	assert_int_equal(json_array_size(json_object_get(j, "ttfts")), 6);
	assert_int_equal(json_array_size(json_array_get(json_object_get(j, "itls"), 4)), 40);
	assert_string_equal(json_string_value(json_array_get(json_object_get(j, "errors"), 5)), "boom");
	assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "slipring"), "format")),
	                 BENCH_FORMAT);
	json_decref(j);
	j = bench_result(&s, &r, &about, false);
	assert_null(json_object_get(j, "ttfts"));
	json_decref(j);
	for (i = 0; i < 6; i++)
		free(a[i].itl);
}

/* ---- flags ------------------------------------------------------------------------------------- */

static void wrong_flags_are_named(void **state)
{
	static const struct { const char *word[6]; const char *says; } cases[] = {
		{ { "--reqest-rate", "1" }, "did you mean --request-rate?" },
		{ { "--request-rate", "0" }, "--request-rate 0: not a number from" },
		{ { "--num-prompts", "1.5" }, "--num-prompts 1.5: not a whole number" },
		{ { "--num-prompts" }, "--num-prompts needs a value" },
		{ { "--backend", "vllm-rerank" }, "--backend vllm-rerank: openai, vllm and openai-chat" },
		{ { "--dataset-name", "hf" }, "--dataset-name hf: random, sharegpt" },
		{ { "--dataset-name", "sharegpt" }, "needs --dataset-path" },
		{ { "--dataset-path", "x" }, "generated, not read" },
		{ { "--goodput", "ttft" }, "--goodput ttft: ttft:MS" },
		{ { "--goodput", "itl:3" }, "--goodput itl:3" },
		{ { "--goodput", "ttft:-3" }, "--goodput ttft:-3" },
		{ { "--transport", "ring", "--backend", "openai-chat" }, "the rings carry token ids" },
		{ { "--lora-modules", "x" }, "--lora-modules is not supported" },
		{ { "--extra-body", "[1]" }, "not a JSON object" },
		{ { "--header", "x" }, "--header x: give NAME=VALUE" },
		{ { "--structured-output-ratio", "0.5" },
		  "--structured-output-ratio needs --structured-output-schema" },
		{ { "--structured-output-ratio", "1.5" }, "--structured-output-ratio 1.5: not a number from 0 to 1" },
		{ { "--transport", "ring", "--structured-output-schema", "/x" },
		  "--structured-output-schema /x is for HTTP requests" },
		{ { "--structured-output-schema", "/nowhere/x" }, "--structured-output-schema: unable to open /nowhere/x" },
		{ { "--ramp-up-strategy", "linear" }, "needs --ramp-up-start-rps" },
		{ { "--self-timed" }, "is for --dataset-name timed_trace" },
		{ { "serve" }, "unknown flag serve" },
	};

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		char *argv[8] = { (char[]){ "serve" } };
		struct bench_options o;
		int n = 1;

		for (; cases[i].word[n - 1]; n++)
			argv[n] = (char *)(uintptr_t)cases[i].word[n - 1];
		assert_int_equal(bench_options(&o, n, argv, err, sizeof(err)), -EINVAL);
		if (!strstr(err, cases[i].says))
			fail_msg("\"%s\" does not say \"%s\"", err, cases[i].says);
	}
}

static void the_share_is_spread(void **state)
{
	static const double share[] = { 0, 0.01, 0.07, 0.1, 0.25, 0.29, 1 / 3.0, 0.5, 0.7, 0.99, 1 };

	(void)state;
	for (size_t k = 0; k < N(share); k++) {
		struct bench_options o = { .structured = share[k] };
		size_t n = 0, percent = (size_t)lround(share[k] * 100);

		for (size_t i = 0; i < 1000; i++) {
			double part = share[k] * (double)(i + 1);

			n += bench_structured(&o, i);
			assert_true((double)n > part - 1e-5 && (double)n < part + 1);
			if (i == 99 && fabs(share[k] * 100 - (double)percent) < 1e-9)
				assert_int_equal(n, percent);
		}
		assert_true(bench_structured(&o, 0) == (share[k] > 0));
	}
}

/* ---- datasets ---------------------------------------------------------------------------------- */

static char path[] = "/tmp/slipring-test-bench-XXXXXX";

static void put_file(const char *s)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	fputs(s, f);
	fclose(f);
}

static void schemas_are_read(void **state)
{
	static const struct { const char *file, *says; } cases[] = {
		{ "{\"type\":\"object\"}", NULL }, { "[1]", ": not a JSON object" },
		{ "{\n\"type\":\n", ": line 3, column 0: " }, { "", ": line 1, column 0: " },
	};

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		char *argv[] = { (char[]){ "serve" }, (char[]){ "--structured-output-schema" }, path };
		struct bench_options o;

		put_file(cases[i].file);
		assert_int_equal(bench_options(&o, 3, argv, err, sizeof(err)), cases[i].says ? -EINVAL : 0);
		if (cases[i].says && (!strstr(err, cases[i].says) || !strstr(err, path)))
			fail_msg("\"%s\" does not say \"%s\" of %s", err, cases[i].says, path);
		if (!cases[i].says)
			assert_true(o.structured == 1);
	}
}

static void random_prompts_are_exact(void **state)
{
	static const char *const flags[] = { "--num-prompts", "50", "--random-input-len", "100",
	                                    "--random-range-ratio", "0.3",
	                                     "--random-output-len", "10", "--random-prefix-len", "7",
	                                     "--seed", "5" };
	struct bench_options o = parsed(flags, N(flags));
	struct bench_load l = { 0 }, again = { 0 };
	unsigned least = 1000, most = 0;

	(void)state;
	assert_int_equal(bench_load(&l, &o, text, err, sizeof(err)), 0);
	assert_int_equal(bench_load(&again, &o, text, err, sizeof(err)), 0);
	assert_int_equal(l.n, 50);
	assert_true(o.ignore_eos);
	for (size_t i = 0; i < l.n; i++) {
		const struct bench_prompt *p = &l.prompt[i];

		assert_in_range(p->n_ids, 77, 137);
		assert_in_range(p->max_tokens, 7, 13);
		assert_int_equal(p->n_text, p->n_ids);    /* exact as text, too */
		assert_memory_equal(p->ids, l.prompt[0].ids, 7 * sizeof(int32_t));
		assert_int_equal(p->n_ids, again.prompt[i].n_ids);
		assert_memory_equal(p->ids, again.prompt[i].ids, p->n_ids * sizeof(int32_t));
		least = p->n_ids < least ? p->n_ids : least;
		most = p->n_ids > most ? p->n_ids : most;
	}
	assert_true(least < 90 && most > 124);
	bench_load_free(&l);
	bench_load_free(&again);
}

static void prefixes_repeat(void **state)
{
	static const char *const flags[] = { "--dataset-name", "prefix_repetition", "--num-prompts", "25",
	                                     "--prefix-repetition-num-prefixes", "4",
	                                     "--prefix-repetition-prefix-len", "32",
	                                     "--prefix-repetition-suffix-len", "8" };
	struct bench_options o = parsed(flags, N(flags));
	struct bench_load l = { 0 };

	(void)state;
	assert_int_equal(bench_load(&l, &o, text, err, sizeof(err)), 0);
	assert_int_equal(l.n, 24);
	for (size_t i = 0; i < l.n; i++) {
		int same = 0;

		for (size_t k = 0; k < l.n; k++)
			same += !memcmp(l.prompt[i].ids, l.prompt[k].ids, 32 * sizeof(int32_t));
		assert_int_equal(same, 6);
	}
	bench_load_free(&l);
}

static void traces_keep_time_and_prefixes(void **state)
{
	const char *const flags[] = { "--dataset-name", "timed_trace", "--dataset-path", path,
	                             "--timed-trace-chunk-hash-size", "4",
	                              "--timed-trace-sec-multiplier", "0.001" };
	struct bench_options o = parsed(flags, N(flags));
	struct bench_load l = { 0 };
	double at[2];

	(void)state;
	put_file("{\"timestamp\":0,\"input_length\":10,\"output_length\":3,\"hash_ids\":[1,2,3]}\n\n"
	         "{\"timestamp\":1500,\"input_length\":8,\"output_length\":5,\"hash_ids\":[1,2]}\n");
	assert_int_equal(bench_load(&l, &o, text, err, sizeof(err)), 0);
	assert_int_equal(l.n, 2);
	assert_int_equal(l.prompt[0].n_ids, 10);
	assert_int_equal(l.prompt[1].n_ids, 8);
	assert_int_equal(l.prompt[1].max_tokens, 5);
	assert_memory_equal(l.prompt[0].ids, l.prompt[1].ids, 8 * sizeof(int32_t));
	assert_int_equal(bench_arrivals(at, &l, &o), 0);
	assert_true(at[0] == 0 && at[1] == 1.5);
	bench_load_free(&l);
}

static void short_datasets_repeat(void **state)
{
	const char *const flags[] = { "--dataset-name", "custom", "--dataset-path", path, "--num-prompts",
	                             "5",
	                              "--custom-output-len", "-1", "--skip-chat-template" };
	struct bench_options o = parsed(flags, N(flags));
	struct bench_load l = { 0 };

	(void)state;
	put_file("{\"prompt\":\"one\",\"output_tokens\":3}\n{\"prompt\":\"two\",\"output_tokens\":4}\n");
	assert_int_equal(bench_load(&l, &o, text, err, sizeof(err)), 0);
	assert_int_equal(l.n, 5);
	for (size_t i = 0; i < l.n; i++)
		assert_int_equal(l.prompt[i].max_tokens, strcmp(l.prompt[i].text, "one") ? 4 : 3);
	bench_load_free(&l);
	o.no_oversample = true;
	assert_int_equal(bench_load(&l, &o, text, err, sizeof(err)), 0);
	assert_int_equal(l.n, 2);
	bench_load_free(&l);
}

static void broken_lines_are_named(void **state)
{
	static const struct { const char *dataset, *file, *says; } cases[] = {
		{ "custom", "{\"prompt\":\"x\",\"output_tokens\":3}\n{\"prompt\":\n", "line 2: " },
		{ "custom", "{\"prompt\":\"x\"}\n", "line 1: no field \"output_tokens\"" },
		{ "custom", "{\"prompt\":\"x\",\"output_tokens\":\"3\"}\n",
		 "line 1: not a number of tokens: \"output_tokens\"" },
		{ "custom", "\n\n{\"text\":\"x\"}\n", "line 3: no field \"prompt\"" },
		{ "custom", "[1]\n", "line 1: not a JSON object" },
		{ "custom", "", "no usable prompt" },
		{ "timed_trace", "{\"input_length\":3}\n", "line 1: no field \"timestamp\"" },
		{ "timed_trace",
		 "{\"timestamp\":1,\"input_length\":30,\"output_length\":3,\"hash_ids\":[1]}\n",
		  "line 1: fewer hashes than the prompt has chunks" },
		{ "timed_trace",
		 "{\"timestamp\":1,\"input_length\":-3,\"output_length\":3,\"hash_ids\":[1]}\n",
		 "\"input_length\"" },
		{ "timed_trace", "", "it holds no request" },
		{ "sharegpt", "{\"a\":1}", "a list of conversations" },
		{ "sharegpt", "[\n{,\n]", "line 2: " },
		{ "sharegpt", "[{\"conversations\":[{\"value\":1},{}]}]",
		 "a conversation's turn has no text" },
		{ "sharegpt", "[]", "no usable prompt" },
	};

	(void)state;
	for (size_t i = 0; i < N(cases); i++) {
		const char *const flags[] = { "--dataset-name", cases[i].dataset, "--dataset-path", path,
		                             "--custom-output-len", "-1",
		                              "--skip-chat-template" };
		struct bench_options o = parsed(flags, N(flags));
		struct bench_load l = { 0 };

		put_file(cases[i].file);
		assert_true(bench_load(&l, &o, text, err, sizeof(err)) < 0);
		if (!strstr(err, cases[i].says) || !strstr(err, path))
			fail_msg("\"%s\" does not say \"%s\" of %s", err, cases[i].says, path);
		assert_int_equal(l.n, 0);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(pcg_is_numpys), cmocka_unit_test(twister_is_numpys),
			cmocka_unit_test(twister_is_pythons),
		cmocka_unit_test(arrivals), cmocka_unit_test(events_are_read_however_torn),
		cmocka_unit_test(rubbish_is_no_event), cmocka_unit_test(half_a_pair_is_replaced),
		cmocka_unit_test(percentiles_by_hand), cmocka_unit_test(reals_are_pythons),
		cmocka_unit_test(the_block_is_vllms), cmocka_unit_test(the_file_has_vllms_keys),
		cmocka_unit_test(wrong_flags_are_named), cmocka_unit_test(the_share_is_spread),
		cmocka_unit_test(schemas_are_read), cmocka_unit_test(random_prompts_are_exact),
		cmocka_unit_test(prefixes_repeat), cmocka_unit_test(traces_keep_time_and_prefixes),
		cmocka_unit_test(short_datasets_repeat), cmocka_unit_test(broken_lines_are_named),
	};
	int fd = mkstemp(path), rc;

	if (fd < 0)
		return 1;
	close(fd);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	return rc;
}
