/* LINK: @config -lyaml -Wl,--wrap=geteuid,--wrap=mkdir,--wrap=lstat */
/* test_config.c - flags, YAML, help: what scripts give, what is set, what is printed. */
#include "core/instance/config.c"               /* before cmocka, whose fail() is a macro */

#include <fcntl.h>
#include <setjmp.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/instance/stats.h"

static struct config c;
static char err_text[2000];

/* A command line, split at spaces ('~' in a word is a space). */
static int run(const char *line)
{
	static char text[4000];
	char *argv[80] = { (char *)(uintptr_t)"test" };
	int argc = 1;

	snprintf(text, sizeof(text), "%s", line);
	for (char *s = strtok(text, " "); s; s = strtok(NULL, " ")) {
		for (char *t = s; *t; t++)
			if (*t == '~')
				*t = ' ';
		argv[argc++] = s;
	}
	err_text[0] = 0;
	return config_parse(&c, argc, argv, FOR_SERVE, err_text, sizeof(err_text));
}

static void good(const char *line)
{
	if (run(line) != 0)
		fail_msg("%s: %s", line, err_text);
}

static void test_defaults(void **state)
{
	(void)state;
	good("");
	assert_null(c.model);
	assert_true(c.gpu_memory_utilization == 0.92 && !c.gpu_memory_utilization_given);
	assert_true(c.block_size == 16 && c.enable_prefix_caching && c.enable_chunked_prefill &&
	            c.max_model_len == 0);
	assert_true(c.port == 8000 && c.api_server_count == 1 && c.max_body_bytes == 64 << 20 &&
	            c.max_logprobs == 20);
	assert_string_equal(c.host, "127.0.0.1");
	assert_string_equal(c.dtype, "auto");
	assert_string_equal(c.scheduling_policy, "fcfs");
	assert_true(c.device == DEVICE_AUTO && c.prefix_cache_scope == SCOPE_TENANT && c.shutdown_timeout == 30);
	assert_null(c.allowed_origins);
	config_free(&c);
}

/* The commands people paste must start unchanged. */
static void test_scripts(void **state)
{
	static const char *const lines[] = {
		("--model meta-llama/Meta-Llama-3.1-8B-Instruct --gpu-memory-utilization 0.95 --max-model-len "
		"4096 --max-num-seqs 256 --enable-prefix-caching --dtype half --port 8000"),
		"m --max-num-seqs 256 --max-num-batched-tokens 32768",
		"m --disable-log-requests --swap-space 4 --use-v2-block-manager --guided-decoding-backend "
			"outlines",
		"m -tp 1 -pp 1 -dp 1 -O3 --enforce-eager --trust-remote-code --async-scheduling",
		"m -O.mode=3 --compilation-config.level 3 --compilation-config {\"a\":1} -cc.mode=none",
		"m --tensor-parallel-size 1 --pipeline-parallel-size=1 --kv-cache-dtype auto --block_size 16",
		"m --swap_space 0 --cpu-offload-gb 0.0 --num-speculative-tokens 0 --kv-transfer-config {}",
		"m --api-key secret --host 0.0.0.0 --uvicorn-log-level warning --served-model-name a b",
		"m --load-format auto --quantization None --seed 0 --max-logprobs 20 --generation-config "
			"vllm",
		"m --disable-log-stats --stream-interval 1 --scheduling-policy priority --watermark 0.0",
		"m --prefix-caching-hash-algo sha256_cbor --max-seq-len-to-capture 8192 "
			"--num-scheduler-steps 8",
		"m --enable-chunked-prefill False --max-num-batched-tokens 9000 --logprobs-mode raw_logprobs",
		"m --allowed-origins [\"*\"] --ssl-keyfile k --ssl-certfile c --root-path /v --middleware "
			"None",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
		good(lines[i]);
		config_free(&c);
	}
	good(lines[0]);
	assert_string_equal(c.model, "meta-llama/Meta-Llama-3.1-8B-Instruct");
	assert_true(c.gpu_memory_utilization == 0.95 && c.gpu_memory_utilization_given &&
	            c.max_model_len == 4096);
	assert_true(c.max_num_seqs == 256 && c.enable_prefix_caching && c.port == 8000);
	assert_string_equal(c.dtype, "half");
	config_free(&c);
}

/* Called as vllm, a server is found from outside; flags say otherwise. */
static void test_as_vllm(void **state)
{
	(void)state;
	good("m");
	assert_string_equal(c.host, "127.0.0.1");
	assert_int_equal(c.n_allowed_hosts, 0);
	config_free(&c);
	setenv(CONFIG_AS_VLLM, "1", 1);
	good("m");
	assert_string_equal(c.host, "0.0.0.0");
	assert_int_equal(c.n_allowed_hosts, 1);
	assert_string_equal(c.allowed_hosts[0], "*");
	config_free(&c);
	good("m --host ::1 --allowed-hosts a b");
	assert_string_equal(c.host, "::1");
	assert_int_equal(c.n_allowed_hosts, 2);
	assert_string_equal(c.allowed_hosts[0], "a");
	config_free(&c);
	unsetenv(CONFIG_AS_VLLM);
}

/* The stats page has a row for each. */
static void test_clients(void **state)
{
	char line[64];

	(void)state;
	snprintf(line, sizeof(line), "--max-clients %d", STATS_CLIENTS);
	good(line);
	assert_int_equal(c.max_clients, STATS_CLIENTS);
	config_free(&c);
	snprintf(line, sizeof(line), "--max-clients %d", STATS_CLIENTS + 1);
	assert_true(run(line) < 0);
	assert_non_null(strstr(err_text, "1 to 4096 are allowed"));
}

static void test_forms(void **state)
{
	(void)state;
	good("--max_num_seqs=4k --max-num-batched-tokens 25.6k --kv-cache-memory-bytes 2G --max-model-len "
	     "auto");
	assert_true(c.max_num_seqs == 4000 && c.max_num_batched_tokens == 25600);
	assert_true(c.kv_cache_memory_bytes == 2ll << 30 && c.max_model_len == -1);
	config_free(&c);
	good("--max-model-len -1 --no-enable-prefix-caching --enable-chunked-prefill=true --port=0");
	assert_true(c.max_model_len == -1 && !c.enable_prefix_caching && c.port == 0);
	config_free(&c);
	good("--enable-lora=false --tool-call-parser None --tool-call-parser null --tool-call-parser= -cc.a=1");
	config_free(&c);
	good("--log-level debug --max-logprobs -1 --gpu-memory-utilization .5 --ssl-certfile c --ssl-keyfile k "
	     "--ssl-ca-certs a - ");
	assert_string_equal(c.model, "-");         /* an ordinary word */
	assert_true(c.max_logprobs == 20 && c.gpu_memory_utilization == 0.5);
	config_free(&c);
	good("--port 1 --port 2 --api-key a --api-key b c");
	assert_true(c.port == 2 && c.n_api_keys == 3);
	assert_string_equal(c.api_key[2], "c");
	config_free(&c);
}

#define EIGHTY "12345678901234567890123456789012345678901234567890123456789012345678901234567890"
struct wrong { const char *line, *says; };
static const struct wrong wrong[] = {
	{ "--max-num-seq 5", "--max-num-seq is unknown; did you mean --max-num-seqs?" },
	{ "--gpu-memory-utilisation 0.9", "did you mean --gpu-memory-utilization?" },
	{ "--max-num-batched 9", "did you mean --max-num-batched-tokens?" },
	{ "--xyzzy 5", "--xyzzy is unknown; --help all" }, { "-z", "-z is unknown" }, { "-tq 2",
	                                                                                "-tq is unknown" },
	{ "--no-port", "--no-port is unknown" }, { "--port.x 3", "port has no parts" },
	{ "--max-num-seqs", "--max-num-seqs needs a value" }, { "--max-num-seqs --port 3",
	                                                        "--max-num-seqs needs a value" },
	{ "--max-num-seqs 0", "max-num-seqs is 0; 1 to 65536 are allowed" },
	{ "--max-num-seqs 65537", "1 to 65536 are allowed" }, { "--max-num-seqs -5",
	                                                        "is not a number such as 4096" },
	{ "--max-num-seqs 4x", "is not a number such as" }, { "--max-num-seqs 4kk", "is not a number such as" },
	{ "--max-num-seqs 0x10", "is not a number such as" }, { "--max-num-seqs 1e3", "is not a number such as" },
	{ "--max-num-seqs 1.5K", "fraction of a binary unit" }, { "--max-num-seqs 1.5",
	                                                          "must be a whole number" },
	{ "--max-num-seqs 99999999999999999999", "is too large" }, { "--max-model-len 0", "1 to" },
	{ "--max-model-len Auto", "is not a number" }, { "--port 70000", "port is 70000; 0 to 65535 are "
	                                              "allowed" },
	{ "--port 8k", "port 8k is not a whole number" }, { "--port -1", "port is -1" },
	{ "--port=", "port \"\" is not a whole" },
	{ "--gpu-memory-utilization 1.01", "0.01 to 1 are allowed" }, { "--gpu-memory-utilization 0",
	                                                                "0.01 to 1" },
	{ "--gpu-memory-utilization nan", "is not a number" }, { "--seed -1", "seed -1 is not a whole number" },
	{ "--dtype bf16", "one of these is allowed: auto half" }, { "--device gpu", "auto cpu cuda null" },
	{ "--enable-prefix-caching=maybe", "true or false" }, { "--block-size 24", "8, 16, 32 and 64" },
	{ "--pipeline-parallel-size 2", "--pipeline-parallel-size 2 is not supported by Slipring: --tensor-parallel-size "
	  "divides a model among devices (accepted: 1)" },
	{ "--tensor-parallel-size 17", "tensor-parallel-size is 17; 1 to 16 are allowed" },
	{ "-dp 65", "data-parallel-size is 65; 1 to 64 are allowed" },
	{ "-dp 2 -dpn 2", "with --data-parallel-size 2 the ranks are 0 to 1" },
	{ "-dp 4 -dpl 2", "data-parallel-size-local is 2 and data-parallel-size is 4" },
	{ "-dp 2 --socket /x", "--socket names one daemon" },
	{ "-dp 2 --data-parallel-external-lb", "needs --data-parallel-rank" },
	{ "-pp=4", "--pipeline-parallel-size 4 is not supported" }, { "--enable-lora",
	                                                            "--enable-lora is not supported" },
	{ "--speculative-config {\"n\":1}", "n is not supported; method, num_speculative_tokens" },
	{ "--speculative-config.n 1", "--speculative-config: n is not supported" },
	{ "-sc.method eagle3", "method eagle3 is not supported yet; the method \"ngram\" is" },
	{ "-sc {\"method\":\"ngram\"}", "num_speculative_tokens is missing" },
	{ "-sc {\"num_speculative_tokens\":4}", "the method is missing" },
	{ "-sc {\"method\":\"ngram\",\"num_speculative_tokens\":17}", "num_speculative_tokens is 17; 1 to 16" },
	{ "-sc {\"method\":\"ngram\",\"num_speculative_tokens\":-1}", "num_speculative_tokens is -1; 1 to 16" },
	{ "-sc {\"method\":\"ngram\",\"prompt_lookup_max\":33}", "prompt_lookup_max is 33; 1 to 32" },
	{ "-sc {\"method\":\"ngram\",\"num_speculative_tokens\":4,\"prompt_lookup_max\":3,\"prompt_lookup_min\":4}",
	  "prompt_lookup_min=4 must be <= prompt_lookup_max=3" },
	{ "-sc {\"method\":[\"ngram\"]}", "each member is a name" }, { "-sc {\"method\":", "is no JSON object" },
	{ "-sc ngram", "ngram is not supported" },
	{ "--tool-parser-plugin x", "--tool-parser-plugin x is not supported by Slipring: no code" },
	{ "--ssl-keyfile k", "go together; only --ssl-keyfile is given" }, { "--ssl-ca-certs x",
	                                                                     "needs --ssl-certfile" },
	{ "--max-num-seqs 64 --max-num-batched-tokens 32", "max_num_batched_tokens (32) must be greater than "
	  "or equal to" },
	{ "a b", "b: a MODEL was already given, a" }, { "--config /nowhere",
	                                               "--config /nowhere: No such file" },
	{ "--config /tmp", "--config /tmp: is a directory" }, { "--config",
	                                                        "--config needs the name of a file" },
	{ "--api-key 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17", "api-key has more than 16 values" },
	{ "--" EIGHTY "5678", "78 is unknown; --help all" }, { "--" EIGHTY "567890123456", ".. is unknown" },
	{ "--model.part x", "model has no parts" }, { "--max-num-seqs 4KK", "is not a number such as" },
	{ "--max-num-seqs -", "max-num-seqs - is not a number such as" }, { "--max-num-seqs 4.5x", "is not a number such as" },
	{ "--enable-prefix-caching=enthusiastically", "is enthusiastically; true or false" },
	{ "--gpu-memory-utilization=", "gpu-memory-utilization \"\" is not a number" },
	{ "--gpu-memory-utilization=~0.5", "is not a number" }, { "--gpu-memory-utilization 0.5x", "is not a number" },
	{ "--gpu-memory-utilization inf", "is not a number" }, { "--seed 1x", "seed 1x is not a whole number" },
	{ "--seed 99999999999999999999", "is not a whole number" }, { "--port 99999999999999999999", "is not a whole" },
	{ "--port 80x", "port 80x is not a whole number" }, { "--port x", "port x is not a whole number" },
	{ "--enable-lora=maybe", "enable-lora is maybe; true or false" },
	{ "--cpu-offload-gb 0x", "--cpu-offload-gb 0x is not supported" },
	{ "--ssl-certfile c", "go together; only --ssl-certfile is given" }, { "--api-key=", "a key is empty" },
	{ "--config /proc/self/mem", "--config /proc/self/mem: Input/output error" }
};

static void test_wrong(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		if (run(wrong[i].line) != -EINVAL || !strstr(err_text, wrong[i].says))
			fail_msg("%s: \"%s\" does not say \"%s\"", wrong[i].line, err_text, wrong[i].says);
}

/* ---- YAML ------------------------------------------------------------------------------------- */

static char yaml_path[] = "/tmp/slipring-test-config-XXXXXX";

static const char *with(const char *text, const char *more)
{
	static char line[400];
	FILE *f = fopen(yaml_path, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
	snprintf(line, sizeof(line), "--config %s %s", yaml_path, more);
	return line;
}

static void test_yaml(void **state)
{
	char line[100];

	(void)state;
	good(with("# comment\nmodel: org/name\nserved-model-name: [a, b]\nmax_num_seqs: 4k\nport: "
	          "9000\nenable-prefix-caching: false\ncompilation-config:\n  mode: 3\nallowed-origins: "
	          "[\"*\", \"http://x\"]\nchat-template: |\n  line one\n  line two\nuds: "
	          "null\nno-enable-chunked-prefill: off\n",
	          ""));
	assert_string_equal(c.model, "org/name");
	assert_true(c.n_served_names == 2 && c.max_num_seqs == 4000 && !c.enable_prefix_caching &&
	            c.port == 9000);
	assert_string_equal(c.allowed_origins, "[\"*\", \"http://x\"]");
	assert_string_equal(c.chat_template, "line one\nline two\n");
	assert_true(c.enable_chunked_prefill && !c.uds);
	config_free(&c);
	good(with("port: 1\nserved-model-name: [a, b]\nmodel: x\n", "--port 2 --served-model-name z -- y"));
	assert_int_equal(c.port, 2);              /* the command line wins, lists as a whole, in any order */
	assert_int_equal(c.n_served_names, 1);
	assert_string_equal(c.served_name[0], "z");
	assert_string_equal(c.model, "y");
	config_free(&c);
	for (size_t i = 0; i < 5; i++) {              /* null, in every spelling */
		static const char *const nothing[] = { "", "~\n", "null\n", "# none\n", "---\n...\n" };

		good(with(nothing[i], ""));
		config_free(&c);
	}
	good(with("uds: ~\nmodel:\nssl-keyfile: None\ncompilation-config: {}\nno-enable-prefix-caching: true\n"
	          "compilation-config.a: 1\ncompilation-config.b: 2\nhost: \"null\"\n", ""));
	assert_true(!c.uds && !c.model && !c.ssl_keyfile && !c.enable_prefix_caching);
	assert_string_equal(c.host, "null");         /* in quotes it is a string */
	config_free(&c);
	good(with("structured-outputs-config:\n  lenient: yes\n  a: {b: 1, c: x}\nport: 1\n", ""));
	assert_int_equal(c.n_structured_outputs, 3);
	assert_string_equal(c.structured_outputs[0], "lenient=yes");
	assert_string_equal(c.structured_outputs[2], "a.c=x");
	config_free(&c);
	good(with("structured-outputs-config.lenient: true\nstructured-outputs-config.a: 1\n", ""));
	assert_int_equal(c.n_structured_outputs, 2);
	assert_string_equal(c.structured_outputs[1], "a=1");
	config_free(&c);
	snprintf(line, sizeof(line), "--config=%s", yaml_path);
	with("port: 7\n", "");
	good(line);
	assert_int_equal(c.port, 7);
	config_free(&c);
}

/* A JSON object, whole or member by member: in the order given, and the command line wins as a whole. */
static void test_parts(void **state)
{
	char line[200];

	(void)state;
	good("m --structured_outputs_config={\"backend\":\"auto\"} --structured-outputs-config.disable_any_whitespace "
	     "true --structured-outputs-config.a.b=c=d");
	assert_int_equal(c.n_structured_outputs, 3);
	assert_string_equal(c.structured_outputs[0], "{\"backend\":\"auto\"}");
	assert_string_equal(c.structured_outputs[1], "disable_any_whitespace=true");
	assert_string_equal(c.structured_outputs[2], "a.b=c=d");
	config_free(&c);
	snprintf(line, sizeof(line), "--structured-outputs-config.lenient true --config=%s", yaml_path);
	with("structured-outputs-config: {a: 1, b: 2}\n", "");
	good(line);
	assert_int_equal(c.n_structured_outputs, 1);
	config_free(&c);
}

/* --speculative-config in each of its forms. */
static void test_drafts(void **state)
{
	static const struct { const char *line; int most, least, longest; } cases[] = {
		{ "m", 0, 0, 0 }, { "m -sc {}", 0, 0, 0 }, { "m --speculative-config None", 0, 0, 0 },
		{ "m -sc {\"method\":\"ngram\",\"num_speculative_tokens\":4}", 4, 5, 5 },
		{ "m -sc={\"model\":\"[ngram]\",\"num_speculative_tokens\":16,\"prompt_lookup_min\":2}", 16, 2, 2 },
		{ "m -sc.method ngram -sc.num_speculative_tokens 3 -sc.prompt_lookup_max=32 -sc.prompt_lookup_min 1", 3, 1, 32 },
		{ "m --speculative_config.method ngram --speculative_config.num_speculative_tokens 1", 1, 5, 5 },
	};
	char line[300];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		good(cases[i].line);
		assert_int_equal(c.draft_most, cases[i].most);
		assert_int_equal(c.draft_least, cases[i].least);
		assert_int_equal(c.draft_longest, cases[i].longest);
		config_free(&c);
	}
	with("speculative-config:\n  method: ngram\n  num_speculative_tokens: 7\n  prompt_lookup_max: 9\n", "");
	snprintf(line, sizeof(line), "m --config=%s", yaml_path);
	good(line);
	assert_true(c.draft_most == 7 && c.draft_least == 9 && c.draft_longest == 9);
	config_free(&c);
}

static const struct { const char *text, *says; } bad_yaml[] = {
	{ "structured-outputs-config: [1]\n", "structured-outputs-config takes one value" },
	{ "structured-outputs-config: {a: {}}\n", "structured-outputs-config.a takes one value" },
	{ "structured-outputs-config:\n  [a]: 1\n", "a member must be a name" },
	{ "port: 80\nprot: foo\n", ": line 2, column 1: prot is unknown; did you mean port?" },
	{ "port: 8x\n", ": line 1, column 7: port 8x is not a whole number" },
	{ "\nport: [8\n", ": line 3, column 1: did not find expected" },
	{ "port: [8, 9]\n", ": line 1, column 7: port takes one value" },
	{ "port: {a: 1}\n", "port takes one value" }, { "- port\n", "must be a list of \"flag: value\" lines" },
	{ "[a]: 1\n", "a key must be the name of a flag" }, { "port: 1\nport: 2\n",
	                                                 ": line 2, column 1: port is given twice" },
	{ "port: 1\nPort: 2\n", "Port is unknown" }, { "served-model-name: [[a]]\n", "must be a list of words" },
	{ "pipeline-parallel-size: 2\n", ": line 1, column 25: --pipeline-parallel-size 2 is not supported" },
	{ "enable-prefix-caching: perhaps\n", "true or false are allowed" },
	{ "speculative-config:\n  n: {}\n", "speculative-config.n takes one value" }, { "\tport: 1\n", "line 1, column 1" },
	{ "allowed-origins: [[a]]\n", "a list of plain words" }, { "allowed-origins: [\"a\\nb\"]\n", "plain words" },
	{ "chat-template: {a: 1}\n", "chat-template takes one value" }, { "\"\": 1\n", "a key must be the name of a flag" },
	{ "no-enable-chunked-prefill: perhaps\n", "no-enable-chunked-prefill is perhaps; true or false" },
	{ "api-key: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]\n", "api-key has more than 16" },
	{ EIGHTY "1: 2\n", "67890.. is unknown" }, { "a: 1\n", "a is unknown" },
	{ "port: \"80\\0x\"\n", ": line 1, column 7: 80 contains a zero byte" },
	{ "\"port\\0x\": 80\n", ": line 1, column 1: port contains a zero byte" },
	{ "a: *x\n", "line 1, column" }, { "allowed-origins: [\"a\\\"b\"]\n", "a list of plain words" },
};

static void test_bad_yaml(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bad_yaml) / sizeof(*bad_yaml); i++)
		if (run(with(bad_yaml[i].text, "")) != -EINVAL || !strstr(err_text, bad_yaml[i].says) ||
		    !strstr(err_text, yaml_path))
			fail_msg("%s: \"%s\" does not say \"%s\"", bad_yaml[i].text, err_text,
			         bad_yaml[i].says);
}

/* Files that are too long: a megabyte of comments, a list that is one value of 4 KiB at most. */
static void test_long_files(void **state)
{
	static const struct { const char *line; int n; const char *says; } cases[] = {
		{ "# a comment of a line in a file that has many of them and nothing else\n", 20000, "longer than 1 MiB" },
		{ "  - http://origin-of-a-page.example\n", 200, "allowed-origins is longer than 4096 bytes" },
	};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		FILE *f = fopen(yaml_path, "w");
		char line[100];

		fputs(i == 1 ? "allowed-origins:\n" : "", f);
		for (int k = 0; k < cases[i].n; k++)
			fputs(cases[i].line, f);
		fclose(f);
		snprintf(line, sizeof(line), "--config %s", yaml_path);
		assert_int_equal(run(line), -EINVAL);
		if (!strstr(err_text, cases[i].says))
			fail_msg("\"%s\" does not say \"%s\"", err_text, cases[i].says);
	}
}

/* ---- the rest ------------------------------------------------------------------------------------ */

static void test_keys(void **state)
{
	(void)state;
	setenv("VLLM_API_KEY", "from-environment", 1);
	good("");
	assert_int_equal(c.n_api_keys, 1);
	assert_string_equal(c.api_key[0], "from-environment");
	config_free(&c);
	good("--api-key a");
	assert_int_equal(c.n_api_keys, 1);
	assert_string_equal(c.api_key[0], "a");
	config_free(&c);
	setenv("SLIPRING_API_KEY", "ours", 1);
	good("");
	assert_int_equal(c.n_api_keys, 2);
	assert_string_equal(c.api_key[1], "ours");
	config_free(&c);
	setenv("VLLM_API_KEY", "", 1);               /* empty is not given */
	good("");
	assert_int_equal(c.n_api_keys, 1);
	config_free(&c);
	unsetenv("SLIPRING_API_KEY");
	unsetenv("VLLM_API_KEY");
}

/* What a run writes to stdout or stderr. */
static const char *written(int to, const char *line, enum config_for who, int rc)
{
	static char text[1 << 17];
	FILE *f = tmpfile();
	int kept = dup(to), got;
	char words[200], *argv[20] = { (char *)(uintptr_t)"test" };
	int argc = 1;
	size_t n;

	assert_true(f && kept >= 0);
	snprintf(words, sizeof(words), "%s", line);
	for (char *s = strtok(words, " "); s; s = strtok(NULL, " "))
		argv[argc++] = s;
	fflush(NULL);
	dup2(fileno(f), to);
	got = config_parse(&c, argc, argv, who, err_text, sizeof(err_text));
	fflush(NULL);
	dup2(kept, to);
	close(kept);
	assert_int_equal(got, rc);
	rewind(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	fclose(f);
	config_free(&c);
	return text;
}

static void test_asked(void **state)
{
	static const struct { const char *line, *says; } cases[] = {
		{ "--version", SLIPRING_VERSION "\n" }, { "m --port 1 --help", "usage: slipring" },
		{ "-h", "usage: slipring" }, { "--help max-num-seqs", "--max-num-seqs N" },
		{ "--help=memory", "--gpu-memory-utilization" }, { "--no-such-flag --help all", "--ssl-keyfile" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const char *text = written(STDOUT_FILENO, cases[i].line, FOR_SERVE, 1);

		if (!strstr(text, cases[i].says))
			fail_msg("%s writes: %s", cases[i].line, text);
	}
	assert_string_equal(written(STDOUT_FILENO, "-- --help", FOR_SERVE, 0), "");     /* a MODEL of that name */
	assert_string_equal(written(STDOUT_FILENO, "--help --max-num-seq", FOR_SERVE, -EINVAL), "");
	assert_string_equal(err_text, "max-num-seq is unknown; did you mean --max-num-seqs?");
}

/* Each program accepts all of vLLM's flags.  The program that a flag concerns warns about it, once. */
static void test_warnings(void **state)
{
	static const struct { const char *line; enum config_for who; const char *says; } cases[] = {
		{ "m --swap-space 4", FOR_DAEMON, "warning: --swap-space has no effect: preempted requests" },
		{ "m --swap-space 4", FOR_HTTP, NULL }, { "m --swap-space 4", FOR_SERVE, NULL },
		{ "m --guided-decoding-backend x", FOR_HTTP, "warning: --guided-decoding-backend has no effect: " },
		{ "m --guided-decoding-backend x", FOR_DAEMON, NULL },
		{ "m --h11-max-header-count 9", FOR_HTTP, "warning: --h11-max-header-count has no effect: " },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const char *text = written(STDERR_FILENO, cases[i].line, cases[i].who, 0);

		if (cases[i].says ? strncmp(text, cases[i].says, strlen(cases[i].says)) != 0 : *text != 0)
			fail_msg("case %zu, %s: %s", i, cases[i].line, text);
	}
}

/* One name alone, as "slipring set" and reload look it up. */
static void test_option(void **state)
{
	static const char longest[] = EIGHTY EIGHTY;

	(void)state;
	assert_string_equal(options[config_option("max_num_seqs", err_text, sizeof(err_text))].name, "max-num-seqs");
	assert_int_equal(config_option("max-num-seq", err_text, sizeof(err_text)), -EINVAL);
	assert_non_null(strstr(err_text, "max-num-seq is unknown; did you mean --max-num-seqs?"));
	assert_int_equal(config_option(longest, err_text, sizeof(err_text)), -EINVAL);
	assert_non_null(strstr(err_text, "is unknown; --help all"));
}

static void test_nearest(void **state)
{
	static const char *const names[] = { "serve", "chat", "generate", "show", "ping" };

	(void)state;
	assert_string_equal(config_nearest("sevre", names, 5), "serve");
	assert_string_equal(config_nearest("generat", names, 5), "generate");
	assert_null(config_nearest("xyz", names, 5));
	assert_null(config_nearest("", names, 5));
}

static void test_run_dir(void **state)
{
	char dir[200], made[300], base[] = "/tmp/slipring-test-run-XXXXXX";
	struct config k = { .instance = "a" };
	struct stat st;

	(void)state;
	assert_non_null(mkdtemp(base));
	setenv("RUNTIME_DIRECTORY", base, 1);
	assert_int_equal(config_run_dir("default", dir, sizeof(dir)), 0);
	assert_string_equal(dir, base);
	assert_int_equal(config_run_dir("gpu-0", dir, sizeof(dir)), 0);
	snprintf(made, sizeof(made), "%s/gpu-0", base);
	assert_string_equal(dir, made);
	assert_int_equal(config_make_run_dir(dir, err_text, sizeof(err_text)), 0);
	assert_int_equal(config_make_run_dir(dir, err_text, sizeof(err_text)), 0);
	assert_int_equal(stat(dir, &st), 0);
	assert_int_equal(st.st_mode & 022, 0);
	chmod(dir, 0777);
	assert_int_equal(config_make_run_dir(dir, err_text, sizeof(err_text)), -EPERM);
	assert_non_null(strstr(err_text, "nobody else may write there"));
	rmdir(dir);
	assert_int_equal(symlink("/tmp", dir), 0);
	assert_true(config_make_run_dir(dir, err_text, sizeof(err_text)) < 0);
	unlink(dir);
	for (const char *const *bad = (const char *const[]){ "..", ".", "a/b", "", "a b", "x\n",
	                                                     NULL }; *bad; bad++)
		assert_int_equal(config_run_dir(*bad, dir, sizeof(dir)), -EINVAL);
	assert_int_equal(config_run_dir("default", dir, 5), -ENAMETOOLONG);
	assert_int_equal(config_socket(&k, dir, sizeof(dir)), 0);
	snprintf(made, sizeof(made), "%s/a/slipring.sock", base);
	assert_string_equal(dir, made);
	k.socket = "/x.sock";
	assert_int_equal(config_socket(&k, dir, sizeof(dir)), 0);
	assert_string_equal(dir, "/x.sock");
	rmdir(base);
	unsetenv("RUNTIME_DIRECTORY");
}

static uid_t self;                     /* 0: the real one */

uid_t __real_geteuid(void);
uid_t __wrap_geteuid(void);
uid_t __wrap_geteuid(void) { return self ? self - 1 : __real_geteuid(); }

/* Where the run directory is, by user and environment. */
static void test_run_dir_of_whom(void **state)
{
	static const struct { uid_t uid; const char *base, *xdg, *instance, *want; } cases[] = {
		{ 0,  NULL,        NULL,         NULL,      "/run/slipring" },
		{ 0,  NULL,        "/run/user/0", "default", "/run/slipring" },
		{ 0,  NULL,        NULL,         "b",       "/run/slipring/b" },
		{ 0,  "/run/a:/x", NULL,         "b",       "/run/a/b" },
		{ 0,  "",          NULL,         NULL,      "/run/slipring" },
		{ 77, NULL,        "/run/user/77", NULL,    "/run/user/77/slipring" },
		{ 77, NULL,        "/run/user/77", "b",     "/run/user/77/slipring/b" },
		{ 77, NULL,        "",           NULL,      "/tmp/slipring-77" },
		{ 77, NULL,        NULL,         "b",       "/tmp/slipring-77/b" },
	};
	const char *was = getenv("XDG_RUNTIME_DIR");
	char dir[200], kept[200];

	(void)state;
	snprintf(kept, sizeof(kept), "%s", was ? was : "");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		self = cases[i].uid + 1;
		unsetenv("RUNTIME_DIRECTORY");
		unsetenv("XDG_RUNTIME_DIR");
		if (cases[i].base)
			setenv("RUNTIME_DIRECTORY", cases[i].base, 1);
		if (cases[i].xdg)
			setenv("XDG_RUNTIME_DIR", cases[i].xdg, 1);
		assert_int_equal(config_run_dir(cases[i].instance, dir, sizeof(dir)), 0);
		assert_string_equal(dir, cases[i].want);
	}
	self = 0;
	unsetenv("RUNTIME_DIRECTORY");
	if (was)
		setenv("XDG_RUNTIME_DIR", kept, 1);
	else
		unsetenv("XDG_RUNTIME_DIR");
}

/* stat() of /tmp/slipring-77 as the case says; of everything else the real one. */
static const struct in_tmp { mode_t mode; uid_t uid; } *there;

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
	if (strcmp(path, "/tmp/slipring-77") != 0)
		return __real_mkdir(path, mode);
	assert_int_equal(mode, 0700);
	errno = there->mode ? EEXIST : 0;
	return there->mode ? -1 : 0;
}

int __real_lstat(const char *path, struct stat *st);
int __wrap_lstat(const char *path, struct stat *st);
int __wrap_lstat(const char *path, struct stat *st)
{
	if (strcmp(path, "/tmp/slipring-77") != 0)
		return __real_lstat(path, st);
	*st = (struct stat){ .st_mode = there->mode ? there->mode : S_IFDIR | 0700, .st_uid = there->uid };
	return 0;
}

/* Any user may have made the folder in /tmp.  In another user's folder no program looks for a daemon or an
 * instance, and no daemon starts. */
static void test_run_dir_of_strangers(void **state)
{
	static const struct { struct in_tmp there; int want; } cases[] = {
		{ { 0, 77 }, 0 },                                /* just made */
		{ { S_IFDIR | 0700, 77 }, 0 },
		{ { S_IFDIR | 0755, 77 }, 0 },
		{ { S_IFDIR | 0700, 78 }, -EPERM },
		{ { S_IFDIR | 0700, 0 }, -EPERM },
		{ { S_IFDIR | 0770, 77 }, -EPERM },
		{ { S_IFDIR | 0702, 77 }, -EPERM },
		{ { S_IFLNK | 0777, 77 }, -EPERM },
		{ { S_IFREG | 0600, 77 }, -EPERM },
	};
	static const char *const instance[] = { "default", "b" };
	const char *was = getenv("XDG_RUNTIME_DIR");
	char dir[200], kept[200], err[300];

	(void)state;
	snprintf(kept, sizeof(kept), "%s", was ? was : "");
	unsetenv("RUNTIME_DIRECTORY");
	unsetenv("XDG_RUNTIME_DIR");
	self = 77 + 1;
	for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
		struct config k = { .instance = instance[i % 2] };

		there = &cases[i / 2].there;
		assert_int_equal(config_find_run_dir(k.instance, dir, sizeof(dir)), cases[i / 2].want);
		assert_int_equal(config_socket(&k, dir, sizeof(dir)), cases[i / 2].want);
		if (cases[i / 2].want)
			assert_true(config_make_run_dir(i % 2 ? "/tmp/slipring-77/b" : "/tmp/slipring-77", err,
			                                sizeof(err)) < 0);
	}
	assert_non_null(strstr(config_run_dir_why(-EPERM), "nobody else may write"));
	setenv("RUNTIME_DIRECTORY", "/run/a", 1);                /* a named directory is used */
	assert_int_equal(config_find_run_dir("b", dir, sizeof(dir)), 0);
	assert_string_equal(dir, "/run/a/b");
	self = 0;
	unsetenv("RUNTIME_DIRECTORY");
	if (was)
		setenv("XDG_RUNTIME_DIR", kept, 1);
}

static void test_run_dir_refused(void **state)
{
	static char longest[5000];
	char base[] = "/tmp/slipring-test-run-XXXXXX", file[64], below[80], err[300];
	struct config k = { .socket = longest };
	int fd;

	(void)state;
	memset(longest, 'x', sizeof(longest) - 1);
	assert_int_equal(config_make_run_dir(longest, err, sizeof(err)), -ENAMETOOLONG);
	assert_int_equal(config_socket(&k, file, sizeof(file)), -ENAMETOOLONG);
	k = (struct config){ .instance = "a/b" };
	assert_int_equal(config_socket(&k, file, sizeof(file)), -EINVAL);
	longest[49] = 0;                         /* a name has 48 bytes at most */
	assert_int_equal(config_run_dir(longest, file, sizeof(file)), -EINVAL);
	fd = mkstemp(base);
	assert_true(fd >= 0 && close(fd) == 0);
	snprintf(below, sizeof(below), "%s/a", base);
	assert_int_equal(config_make_run_dir(base, err, sizeof(err)), -ENOTDIR);
	assert_non_null(strstr(err, "is not a directory"));
	assert_int_equal(config_make_run_dir(below, err, sizeof(err)), -ENOTDIR);
	assert_non_null(strstr(err, "cannot be made"));
	unlink(base);
	assert_int_equal(mkdir(base, 0700), 0);
	self = 54321 + 1;                        /* not ours */
	assert_int_equal(config_make_run_dir(base, err, sizeof(err)), -EPERM);
	self = 0;
	rmdir(base);
}

/* The help without a topic names the program, and its own flags alone. */
static void test_short_help(void **state)
{
	static char text[1 << 16];

	(void)state;
	for (int who = FOR_DAEMON; who <= FOR_SERVE; who *= 2) {
		FILE *f = fmemopen(text, sizeof(text), "w");

		assert_int_equal(config_help(f, who == FOR_HTTP ? "" : NULL, (enum config_for)who), 0);
		fclose(f);
		assert_non_null(strstr(text, "usage: slipring"));
		assert_true((strstr(text, "--port ") != NULL) == (who != FOR_DAEMON));
	}
}

static size_t help(const char *topic, char *to, size_t n, int rc)
{
	FILE *f = fmemopen(to, n, "w");

	assert_int_equal(config_help(f, topic, FOR_SERVE), rc);
	fclose(f);
	return strlen(to);
}

/* Every option is in the help, under a topic, and the table does not contradict itself. */
static void test_table(void **state)
{
	static char all[1 << 17], one[4096];

	(void)state;
	assert_true(help("all", all, sizeof(all), 0) < sizeof(all) - 1);
	for (int i = 0; i < n_options; i++) {
		const struct option *o = &options[i];
		char flag[80];

		snprintf(flag, sizeof(flag), "%s%s", o->kind == YESNO && o->action == SET ? "]" : "--",
		         o->name);
		assert_non_null(strstr(all, flag));
		assert_int_equal(option_index(o->name), i);         /* no name twice */
		assert_true(o->help && *o->help && o->who);
		assert_true(o->action != ONLY || o->value);
		assert_true(o->action != SET || o->at || strcmp(o->name, "model") == 0);
	}
	help("--max-num-seqs", one, sizeof(one), 0);
	assert_non_null(strstr(one, "--max-num-seqs N   (1 to 65536)"));
	help("memory", one, sizeof(one), 0);
	help(NULL, one, sizeof(one), 0);
	assert_non_null(strstr(one, "usage: slipring serve"));
	*one = 0;
	help("memori", one, sizeof(one), -EINVAL);
	assert_string_equal(one, "");
}

/* docs/vllm.md names every flag of vLLM's. */
static void test_documented(void **state)
{
	static char text[1 << 18];
	int fd = open("docs/vllm.md", O_RDONLY);
	ssize_t n;

	(void)state;
	if (fd < 0) {
		print_message("SKIP: docs/vllm.md is not here (run from the top of the tree)\n");
		skip();
	}
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	assert_true(n > 0);
	for (int i = 0; i < n_options; i++) {
		char flag[80];

		snprintf(flag, sizeof(flag), "| `--%s`", options[i].name);
		if (!strstr(text, flag))
			fail_msg("docs/vllm.md does not name --%s", options[i].name);
	}
}

/* Which settings differ at the second reading, for the flags of one program. */
static void test_differ(void **state)
{
	static const struct { const char *a, *b; enum config_for who; const char *names; } cases[] = {
		{ "", "", FOR_DAEMON, "" },
		{ "--seed 1 --max-num-seqs 4 -q awq", "-q awq --max_num_seqs=4 --seed 1", FOR_DAEMON, "" },
		{ "", "--max-num-seqs 4 --shutdown-timeout 5.5 --device cpu --no-enable-prefix-caching", FOR_DAEMON,
		  "enable-prefix-caching max-num-seqs device shutdown-timeout " },
		{ "-q awq --threads 2", "--max-model-len auto --threads 3", FOR_DAEMON,
		  "max-model-len quantization threads " },
		{ "--served-model-name a b", "--served-model-name a c", FOR_DAEMON, "served-model-name " },
		{ "--served-model-name a b", "--served-model-name a", FOR_DAEMON, "served-model-name " },
		{ "--served-model-name a", "--served-model-name a", FOR_DAEMON, "" },
		{ "--port 1", "--port 2", FOR_DAEMON, "" }, { "--port 1", "--port 2", FOR_HTTP, "port " },
		{ "--revision x", "--revision y", FOR_DAEMON, "" },      /* changes nothing here */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		static char texts[4000];              /* run() has one buffer for its words */
		const char *name[64];
		char all[1000] = "";
		struct config first;
		int n;

		good(cases[i].a);
		first = c;
		if (first.quantization)
			first.quantization = strcpy(texts, first.quantization);
		for (int k = 0; k < first.n_served_names; k++)
			first.served_name[k] = strcpy(texts + 100 * (k + 1), first.served_name[k]);
		good(cases[i].b);
		n = config_differ(&first, &c, cases[i].who, name, 64);
		for (int k = 0; k < n; k++)
			strcat(strcat(all, name[k]), " ");
		assert_string_equal(all, cases[i].names);
		assert_int_equal(config_differ(&first, &c, cases[i].who, name, 1), n > 0);
		config_free(&first);
		config_free(&c);
	}
}

static int setup(void **state)
{
	int fd = mkstemp(yaml_path);

	(void)state;
	unsetenv("VLLM_API_KEY");
	unsetenv("SLIPRING_API_KEY");
	return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state)
{
	(void)state;
	return unlink(yaml_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults), cmocka_unit_test(test_scripts), cmocka_unit_test(test_forms),
		cmocka_unit_test(test_wrong), cmocka_unit_test(test_yaml), cmocka_unit_test(test_parts),
		cmocka_unit_test(test_bad_yaml),
		cmocka_unit_test(test_keys), cmocka_unit_test(test_nearest), cmocka_unit_test(test_run_dir),
		cmocka_unit_test(test_run_dir_of_whom), cmocka_unit_test(test_run_dir_of_strangers),
		cmocka_unit_test(test_run_dir_refused),
		cmocka_unit_test(test_short_help), cmocka_unit_test(test_drafts),
		cmocka_unit_test(test_table), cmocka_unit_test(test_documented), cmocka_unit_test(test_differ),
		cmocka_unit_test(test_long_files), cmocka_unit_test(test_asked), cmocka_unit_test(test_warnings),
		cmocka_unit_test(test_option), cmocka_unit_test(test_as_vllm), cmocka_unit_test(test_clients),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
