/* LINK: @models @config core/plan.c core/groups.c core/kv/most.c core/instance/knobs.c kernels/rope.c kernels/shape.c -ljansson -lyaml */
/* test_plan.c - the memory plan on a made-up device: what fits, and the error if it does not. */
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

#include "core/plan.h"

#define MB (1ll << 20)
#define GB (1ll << 30)

static struct sr_need needs;          /* what the device reports */
static int64_t per_slot = 4096, per_token; /* more bytes */
static struct sr_limits asked;        /* what it was last asked for */

static int device_plan(const struct sr_model *m, const struct sr_limits *lim, struct sr_need *out, char *err,
                       size_t n)
{
	(void)m;
	if (lim->kv_type != SR_KV_BF16) {
		snprintf(err, n, "this device has no such KV cache");
		return -ENOTSUP;
	}
	asked = *lim;
	*out = needs;
	out->slots = lim->slots * per_slot;
	out->scratch += lim->tokens * per_token;
	if (lim->group[0].layers)                 /* of the model's 2 */
		out->per_block = out->per_block * lim->group[0].layers / 2;
	return 0;
}
static struct sr_backend_ops device = { .version = SR_BACKEND_VERSION, .name = "cpu", .plan = device_plan };

static struct model *model;
static struct config cfg;
static struct plan plan;
static char err[4000];

static int make(const char *line)
{
	static char text[1000];
	char *argv[40] = { (char *)(uintptr_t)"test" };
	int argc = 1;

	config_free(&cfg);
	snprintf(text, sizeof(text), "%s", line);
	for (char *s = strtok(text, " "); s; s = strtok(NULL, " "))
		argv[argc++] = s;
	err[0] = 0;
	if (config_parse(&cfg, argc, argv, FOR_SERVE, err, sizeof(err)) != 0)
		fail_msg("%s: %s", line, err);
	return plan_make(&plan, &cfg, model, &device, err, sizeof(err));
}

static void good(const char *line)
{
	if (make(line) != 0)
		fail_msg("%s: %s", line, err);
	assert_true(plan.limits.seq_blocks <= plan.limits.n_blocks);
	assert_true(plan.limits.tokens >= plan.limits.rows && plan.limits.rows >= plan.limits.slots);
	assert_true(plan.batch_tokens >= plan.max_seqs && plan.max_seqs <= plan.limits.slots &&
	            plan.batch_tokens <= plan.limits.tokens);
	assert_memory_equal(&asked, &plan.limits, offsetof(struct sr_limits, n_blocks));
}

static void set_device(const char *name, int64_t total, int64_t avail)
{
	device.name = name;
	needs = (struct sr_need){ .weights = 100 * MB, .scratch = 20 * MB, .pinned = MB, .per_block = MB,
	                          .total = total, .avail = avail };
}

static int setup(void **state)
{
	static const char settings[] = "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 2, "
		"\"hidden_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
		"\"intermediate_size\": 128, \"vocab_size\": 1000, \"max_position_embeddings\": 4096, "
		"\"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true}";
	char dir[] = "/tmp/slipring-test-plan-XXXXXX", path[60];
	FILE *f;
	int rc;

	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/config.json", dir);
	if (!(f = fopen(path, "w")) || fputs(settings, f) < 0 || fclose(f) != 0)
		return -1;
	rc = model_open_dummy(&model, dir, err, sizeof(err));
	unlink(path);
	rmdir(dir);
	return rc;
}

static int teardown(void **state)
{
	(void)state;
	config_free(&cfg);
	model_close(model);
	return 0;
}

static void test_cpu(void **state)
{
	(void)state;
	set_device("cpu", 16 * GB, 15 * GB);
	good("");
	assert_true(plan.max_seqs == 128 && plan.batch_tokens == 2048 && plan.limits.seq_blocks == 256);
	assert_int_equal(plan.limits.n_blocks, 511);      /* 512 MiB, one block for the device itself */
	assert_int_equal(plan.kv_bytes, 512 * MB);
	assert_int_equal(plan.context, 4096);
	assert_true(plan.full_seqs > 1.99 && plan.full_seqs < 2);
	assert_true(plan.limits.threads >= 1);
	assert_non_null(strstr(plan.text, "GPU KV cache size: 8176 tokens"));
	assert_non_null(strstr(plan.text, "Maximum concurrency for 4096 tokens per request: 2.00x"));
	assert_non_null(strstr(plan.text, "dtype auto: stored as BF16"));
	set_device("cpu", 16 * GB, 1200 * MB);            /* never above a quarter of what is left */
	good("");
	assert_int_equal(plan.limits.n_blocks, 299);
	set_device("cpu", 16 * GB, 15 * GB);
	good("--gpu-memory-utilization 0.5 --threads 3");
	assert_int_equal(plan.limits.n_blocks,
	                 8192 - 121 - 2 - 1);  /* half of it, less weights and the rest */
	assert_int_equal(plan.limits.threads, 3);
	good("--kv-cache-memory-bytes 400M --gpu-memory-utilization 0.5");
	assert_int_equal(plan.limits.n_blocks, 399);
	good("--num-gpu-blocks-override 300");
	assert_int_equal(plan.limits.n_blocks, 300);
	good("--max-model-len 1000");
	assert_true(plan.context == 1000 && plan.limits.seq_blocks == 63);
	good("--max-model-len auto");
	assert_int_equal(plan.context, 4096);
	good("--max-model-len auto --kv-cache-memory-bytes 101M");
	assert_int_equal(plan.context, 1600);
	good("--block-size 32 --max-model-len 100");
	assert_true(plan.limits.block_tokens == 32 && plan.limits.seq_blocks == 4);
}

static void test_gpu(void **state)
{
	(void)state;
	set_device("cuda", 140 * GB, 139 * GB);
	good("");
	assert_true(plan.max_seqs == 1024 && plan.batch_tokens == 8192 && plan.limits.threads == 0);
	assert_in_range(plan.kv_bytes, 128 * GB, 129 * GB);
	set_device("cuda", 24 * GB, 23 * GB);
	good("");
	assert_true(plan.max_seqs == 256 && plan.batch_tokens == 2048);
	assert_true(plan.host_bytes + plan.kv_bytes <= (int64_t)(0.92 * 24 * GB));
	assert_true(plan.host_bytes + plan.kv_bytes > (int64_t)(0.92 * 24 * GB) - MB);
	set_device("cuda", 180 * GB, 179 * GB);
	needs.graphs = 64 * MB;
	good("");
	assert_true(plan.max_seqs == 1024 && plan.batch_tokens == 16384);
	assert_non_null(strstr(plan.text, "captured, and what libraries take"));
	good("--w4-activations fp8");
	assert_true(plan.limits.w4a8 && (good(""), !plan.limits.w4a8));
	good("--enforce-eager");
	assert_non_null(strstr(plan.text, "none; what libraries take"));
	set_device("cuda", 24 * GB, 23 * GB);
	model->kv_f8 = true;                      /* its files want an FP8 cache, which this device lacks */
	assert_int_equal(make(""), -ENOTSUP);
	good("--kv-cache-dtype bfloat16");
	set_device("cpu", 16 * GB, 15 * GB);      /* the CPU lacks it, too, but none is asked for */
	good("");
	assert_int_equal(make("--w4-activations fp8"), -ENOTSUP);
	assert_non_null(strstr(err, "the CPU does not have it"));
	model->kv_f8 = false;
}

/* What follows from the model: rows of logits by its vocabulary, and its types in the plan. */
static void test_of_the_model(void **state)
{
	static const struct { int32_t vocab, rows, gpu_rows, type; const char *says; } cases[] = {
		{ 1000, 64, 256, SR_BF16, "computed in bfloat16 or wider" },
		{ 1 << 17, 32, 256, SR_F32, "computed in float32" },
		{ 1 << 24, 4, 4, SR_Q4_1, "computed in 8-bit integers" },
	};
	const int32_t vocab = model->m.n_vocab, type = model->m.layer[0].q.type;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		model->m.n_vocab = cases[i].vocab;
		set_device("cuda", 24 * GB, 23 * GB);
		good("");
		assert_int_equal(plan.limits.logit_rows, cases[i].gpu_rows);
		set_device("cpu", 16 * GB, 15 * GB);
		model->m.layer[0].q.type = cases[i].type;
		good(i == 0 ? "--load-format hf" : i == 1 ? "--load-format safetensors" : "--load-format auto");
		assert_int_equal(plan.limits.logit_rows, cases[i].rows);
		if (!strstr(plan.text, cases[i].says))
			fail_msg("case %zu: %s", i, plan.text);
	}
	model->m.n_vocab = vocab;
	model->m.layer[0].q.type = type;
}

/* Blocks in host memory: beside the sum on a GPU, in it on the CPU; copies by bytes. */
static void test_tier(void **state)
{
	(void)state;
	set_device("cuda", 24 * GB, 23 * GB);
	good("--kv-offloading-size 8");
	assert_true(plan.limits.n_host_blocks == 8192 && plan.limits.copies == 32);
	assert_int_equal(plan.tier_bytes, 8 * GB);
	assert_in_range(plan.host_bytes + plan.kv_bytes, (int64_t)(0.92 * 24 * GB) - MB, (int64_t)(0.92 * 24 * GB));
	assert_non_null(strstr(plan.text, "8192 blocks of host memory, at most 32 moved in a step"));
	assert_non_null(strstr(plan.text, "the host tier not counted"));
	needs.per_block = 100 * MB;
	good("--kv-offloading-size 0.5 --max-model-len 100");
	assert_true(plan.limits.n_host_blocks == 5 && plan.limits.copies == 2);
	set_device("cpu", 16 * GB, 15 * GB);
	good("");
	assert_true(plan.limits.n_host_blocks == 0 && plan.limits.copies == 0 && plan.tier_bytes == 0);
	good("--kv-offloading-size 1");
	assert_true(plan.limits.n_host_blocks == 1024 && plan.limits.n_blocks == 511);
}

static void test_batching(void **state)
{
	(void)state;
	set_device("cpu", 16 * GB, 15 * GB);
	good("--max-num-seqs 256 --max-num-batched-tokens 32768");
	assert_true(plan.max_seqs == 256 && plan.batch_tokens == 32768);
	good("--max-num-batched-tokens 64");
	assert_true(plan.max_seqs == 64 && plan.batch_tokens == 64);
	good("--max-num-seqs 4000");
	assert_true(plan.max_seqs == 4000 && plan.batch_tokens == 4000);
	good("--max-num-seqs 2 --max-model-len 100");      /* no more than all of them could bring */
	assert_true(plan.max_seqs == 2 && plan.batch_tokens == 200);
	good("--no-enable-chunked-prefill");
	assert_int_equal(plan.batch_tokens, 4096);
	good("--no-enable-chunked-prefill --max-model-len 1000");
	assert_int_equal(plan.batch_tokens, 2048);
}

/* How far knobs can be raised: as asked, or as far as is cheap: 0.5 % of 16 GiB are 82 MiB. */
static void test_ceilings(void **state)
{
	static const struct { int64_t slot, token; const char *line; int32_t slots, tokens; int64_t cost; } cases[] = {
		{ 4096, 0, "", 512, 8192, 384 * 4096 },
		{ 4096, 0, "--max-num-seqs 4", 256, 8192, 252 * 4096 },
		{ 4096, 0, "--max-num-seqs 4 --max-num-batched-tokens 16", 256, 8192, 252 * 4096 },
		{ 4096, 0, "--max-num-seqs 1 --max-model-len 10", 256, 2560, 255 * 4096 },
		{ MB / 2, 0, "", 256, 8192, 64 * MB },         /* four times would cost 192 MiB */
		{ MB, 0, "", 128, 8192, 0 },
		{ 4096, MB / 64, "", 512, 4096, 384 * 4096 + 32 * MB },
		{ 4096, MB, "", 512, 2048, 384 * 4096 },
		{ MB, MB / 64, "--knob-ceiling max-num-seqs=200", 200, 4096, 72 * MB + 32 * MB },
		{ MB, MB, "--knob-ceiling max-num-batched-tokens=3k", 128, 3000, 952 * MB },
		{ MB, MB, "--knob-ceiling max-num-batched-tokens=2100,max-num-seqs=129", 129, 2100, 53 * MB },
		{ MB, MB, "--knob-ceiling max-num-seqs=128,max_num_batched_tokens=2048", 128, 2048, 0 },
		{ 4096, 0, "--knob-ceiling max-num-batched-tokens=300 --max-num-seqs 100 "
		  "--max-num-batched-tokens 256", 300, 300, 200 * 4096 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char say[80];

		set_device("cpu", 16 * GB, 15 * GB);
		per_slot = cases[i].slot;
		per_token = cases[i].token;
		good(cases[i].line);
		if (plan.limits.slots != cases[i].slots || plan.limits.tokens != cases[i].tokens ||
		    plan.ceiling_bytes != cases[i].cost)
			fail_msg("%s: %d slots, %d tokens, %lld bytes", cases[i].line, plan.limits.slots,
			         plan.limits.tokens, (long long)plan.ceiling_bytes);
		snprintf(say, sizeof(say), "can raise them to %d and %d, at %.1f MiB", cases[i].slots,
		         cases[i].tokens, (double)cases[i].cost / MB);
		assert_non_null(strstr(plan.text, say));
	}
	/* Default sizes shrink; sizes that were asked for do not. */
	per_slot = MB / 4;
	per_token = 0;
	set_device("cpu", 64 * GB, 480 * MB);
	good("--max-model-len 1024 --kv-cache-memory-bytes 300M");
	assert_true(plan.limits.slots == 128 && plan.ceiling_bytes == 0);
	assert_int_equal(make("--max-model-len 1024 --kv-cache-memory-bytes 300M --knob-ceiling "
	                      "max-num-seqs=256"), -ENOMEM);
	per_slot = 4096;
}

#define SIXTY "000000000000000000000000000000000000000000000000000000000000"
static const struct { const char *device; int64_t total,
                      avail; const char *line; int rc; const char *says; } bad[] = {
	{ "cpu", 16 * GB, 15 * GB, "--max-model-len 5000", -EINVAL,
	  "User-specified max_model_len (5000) is greater than the derived max_model_len (4096)" },
	{ "cpu", 16 * GB, 15 * GB, "--kv-cache-memory-bytes 100M", -ENOMEM,
	  "max seq len (4096), 0.25 GiB KV cache is needed, which is larger than the available KV cache "
	  "memory (0.10 GiB). Based on the available memory, the estimated maximum model length is 1584. "
	  "Give --max-model-len 1584" },
	{ "cpu", 16 * GB, 15 * GB, "--num-gpu-blocks-override 9", -ENOMEM,
	  "estimated maximum model length is 144" },
	{ "cpu", 16 * GB, 400 * MB, "", -ENOMEM, "estimated maximum model length is 1584" },
	{ "cpu", 16 * GB, 5 * MB, "", -ENOMEM, "No available memory for the cache blocks" },
	{ "cpu", 16 * GB, GB, "--kv-cache-memory-bytes 1G", -ENOMEM, "but only 1.00 of 16.00 GiB are free" },
	{ "cpu", 16 * GB, 12 * GB, "--gpu-memory-utilization 0.9", -ENOMEM,
	  "Free memory on device cpu (12.00/16.00 GiB) on startup is less than desired GPU memory "
	  "utilization (0.9, 14.40 GiB)" },
	{ "cuda", 24 * GB, 20 * GB, "", -ENOMEM, "Free memory on device cuda (20.00/24.00 GiB) on startup is "
	  "less than" },
	{ "cuda", 128 * MB, 128 * MB, "--gpu-memory-utilization 0.5", -ENOMEM,
	  "No available memory for the cache blocks" },
	{ "cpu", 16 * GB, 15 * GB, "--no-enable-chunked-prefill --max-num-batched-tokens 1024", -EINVAL,
	  "max_num_batched_tokens (1024) is smaller than max_model_len (4096)" },
	{ "cpu", 16 * GB, 15 * GB, "--max-num-seqs 10 --max-model-len 1 --max-num-batched-tokens 10", 0, "" },
	{ "cpu", 16 * GB, 15 * GB, "--kv-offloading-size 0.0001", -EINVAL,
	  "--kv-offloading-size 0.0001 GiB holds no block of 1.0 MiB" },
	{ "cpu", 16 * GB, 15 * GB, "--kv-offloading-size 20", -ENOMEM, "but only 15.00 of 16.00 GiB are free" },
	{ "cpu", 16 * GB, 15 * GB, "--knob-ceiling max-num-seqs=100", -EINVAL,
	  "--knob-ceiling max-num-seqs=100 is below --max-num-seqs, which is 128" },
	{ "cpu", 16 * GB, 15 * GB, "--knob-ceiling max-num-batched-tokens=100,max-num-seqs=300", -EINVAL,
	  "must be at least max-num-seqs" },
	{ "cpu", 16 * GB, 15 * GB, "--knob-ceiling max-num-batched-tokens=100", -EINVAL, "which is 2048" },
	{ "cpu", 16 * GB, 15 * GB, "--knob-ceiling step-target-ms=100", -EINVAL, "give max-num-seqs=N" },
	{ "cpu", 16 * GB, 15 * GB, "--knob-ceiling max-num-seqs", -EINVAL, "give max-num-seqs=N" },
	{ "cpu", 16 * GB, 15 * GB, "--knob-ceiling max-num-seqs=x", -EINVAL, "is a number of sequences" },
	{ "cpu", 16 * GB, 15 * GB, "--knob-ceiling max-num-seqs=1000000", -EINVAL, "goes up to 65536" },
	{ "cpu", 16 * GB, 15 * GB, "--knob-ceiling max-num-seqs=" SIXTY SIXTY SIXTY SIXTY SIXTY "1", -EINVAL,
	  "--knob-ceiling: longer than 255 bytes" },
	{ "cpu", 16 * GB, 15 * GB, "--quantization awq", -EINVAL, "--quantization awq, but this model's "
	  "weights are BF16" },
	{ "cpu", 16 * GB, 15 * GB, "--load-format gguf", -EINVAL, "--load-format gguf, but this model is "
	  "dummy" },
	{ "cpu", 16 * GB, 15 * GB, "--kv-cache-dtype nvfp4", -EINVAL, "--kv-cache-dtype nvfp4 is not "
	  "supported by Slipring" },
	{ "cpu", 16 * GB, 15 * GB, "--kv-cache-dtype fp8", -ENOTSUP, "this device has no such KV cache" },
};

/* The KV cache type by the files, and by the flag. */
static void test_quantization(void **state)
{
	static const struct { const char *is, *line; int rc; } cases[] = {
		{ "awq", "--quantization awq", 0 }, { "awq", "-q awq_marlin", 0 }, { "awq", "", 0 },
		{ "awq", "-q gptq", -EINVAL }, { "awq", "-q awq_other", -EINVAL }, { "awq", "-q aw", -EINVAL },
		{ "gguf", "-q gguf", 0 }, { "", "-q awq", -EINVAL },
	};

	(void)state;
	set_device("cpu", 16 * GB, 15 * GB);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		strcpy(model->quantization, cases[i].is);
		if (make(cases[i].line) != cases[i].rc)
			fail_msg("%s on %s: %s", cases[i].line, cases[i].is, err);
	}
	model->quantization[0] = 0;
}

static void test_bad(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		int rc;

		set_device(bad[i].device, bad[i].total, bad[i].avail);
		rc = make(bad[i].line);
		if (rc != bad[i].rc || !strstr(err, bad[i].says))
			fail_msg("%s: %d \"%s\" is not %d \"%s\"", bad[i].line, rc, err, bad[i].rc,
			         bad[i].says);
	}
}

/* The length that an error names is one that works. */
static void test_named_length_fits(void **state)
{
	(void)state;
	set_device("cpu", 16 * GB, 15 * GB);
	for (int mb = 3; mb < 257; mb += 11) {
		char line[200];
		const char *at;

		snprintf(line, sizeof(line), "--kv-cache-memory-bytes %dM", mb);
		assert_int_equal(make(line), -ENOMEM);
		at = strstr(err, "model length is ");
		assert_non_null(at);
		snprintf(line, sizeof(line), "--kv-cache-memory-bytes %dM --max-model-len %d", mb,
		         atoi(at + 16));
		good(line);
		snprintf(line, sizeof(line), "--kv-cache-memory-bytes %dM --max-model-len %d", mb,
		         atoi(at + 16) + 1);
		assert_int_equal(make(line), -ENOMEM);
	}
}

static void device_masks(struct sr_backend *b, struct sr_masks *out)
{
	(void)b;
	(void)out;
}

/* Two masks for each guided answer; none where the device has no masks. */
static void test_guided(void **state)
{
	static const struct { const char *line; int32_t masks; } cases[] = {
		{ "", 2 * (128 + 16 + 1) }, { "--max-num-seqs 7", 2 * 8 }, { "--max-num-seqs 64 --max-guided-seqs 5", 10 },
		{ "--max-guided-seqs 4000", 8000 },
	};

	(void)state;
	set_device("cpu", 16 * GB, 15 * GB);
	good("");
	assert_int_equal(plan.limits.masks, 0);
	device.masks = device_masks;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char say[80];

		good(cases[i].line);
		if (plan.limits.masks != cases[i].masks)
			fail_msg("%s: %d", cases[i].line, plan.limits.masks);
		snprintf(say, sizeof(say), "masks of %d guided answers (--max-guided-seqs)", cases[i].masks / 2);
		assert_non_null(strstr(plan.text, say));
	}
	device.masks = NULL;
}

/* What --speculative-config takes, and models of which nothing is guessed. */
static void test_guesses(void **state)
{
	static const char line[] = "--speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":5}";
	const struct sr_model before = model->m;

	(void)state;
	set_device("cpu", 16 * GB, 15 * GB);
	good("");
	assert_int_equal(plan.limits.drafts, 0);
	good(line);
	assert_true(plan.limits.drafts >= 5 && plan.limits.drafts % 5 == 0);
	assert_non_null(strstr(plan.text, "by 5 to 5 words that stand there once more (--speculative-config)"));
	model->m.delta = (struct sr_delta){ .k_heads = 2, .v_heads = 2, .k_dim = 16, .v_dim = 16, .conv = 4 };
	assert_int_equal(make(line), -ENOTSUP);
	assert_non_null(strstr(err, "--speculative-config: LlamaForCausalLM has layers with a state for each sequence"));
	model->m = before;
}

/* One of two layers looks back 128 tokens: two groups of one layer. */
static void test_groups(void **state)
{
	struct sr_model *m = &model->m;
	const struct sr_model before = *m;

	(void)state;
	set_device("cpu", 16 * GB, 15 * GB);
	needs.kinds_in_groups = 1;
	good("");
	assert_int_equal(plan.limits.n_groups, 1);           /* no layer has a window */
	assert_null(strstr(plan.text, "KV groups"));
	m->n_kinds = 2;
	m->kind[1] = m->kind[0];
	m->kind[1].window = 128;
	m->layer[1].kind = 1;
	good("");
	assert_int_equal(plan.limits.n_groups, 2);
	assert_true(plan.limits.group[0].window == 0 && plan.limits.group[1].window == 128);
	assert_true(plan.limits.group[0].layers == 1 && plan.limits.group[1].per_block == MB / 2);
	assert_int_equal(plan.limits.n_blocks, 1023);        /* of half the size */
	assert_int_equal(plan.kv_tokens, (int64_t)(1023 / (256.0 + 11) * 4096));
	assert_non_null(strstr(plan.text, "KV groups           2      of up to 1 layers, 1 with all tokens, 1 with a "
	                       "window's; 0 places are padding"));
	assert_non_null(strstr(plan.text, "267      blocks for a request of 4096 tokens: 52.1 % of the bytes"));
	assert_non_null(strstr(plan.text, "GPU KV cache size: 15693 tokens"));
	good("--max-model-len 128");                         /* no longer than the window: nothing to gain */
	assert_int_equal(plan.limits.n_groups, 1);
	good("--disable-hybrid-kv-cache-manager");
	assert_int_equal(plan.limits.n_groups, 1);
	good("--kv-offloading-size 0.5");
	assert_true(plan.limits.n_groups == 2 && plan.limits.n_host_blocks == 1024);
	assert_int_equal(plan.limits.copies, 64);            /* 32 MiB, and more than twice the 9 blocks of a unit */
	m->kind[1].window = 2000;
	good("--kv-offloading-size 0.5");
	assert_int_equal(plan.limits.copies, 2 + 2 * 126);
	m->kind[1].window = 128;
	needs.kinds_in_groups = 0;                           /* a device that does not know groups */
	good("");
	assert_int_equal(plan.limits.n_groups, 1);
	needs.kinds_in_groups = 1;
	good("--max-model-len auto --kv-cache-memory-bytes 201M --max-num-batched-tokens 256 --max-num-seqs 8");
	assert_true(plan.context < 4096 && plan.context > 2000);
	assert_int_equal(make("--max-model-len 4096 --kv-cache-memory-bytes 100M --max-num-batched-tokens 256 "
	                      "--max-num-seqs 8"), -ENOMEM);
	assert_non_null(strstr(err, "larger than the available KV cache memory"));
	*m = before;
	m->layer[1].kind = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cpu), cmocka_unit_test(test_gpu), cmocka_unit_test(test_of_the_model), cmocka_unit_test(test_tier),
		cmocka_unit_test(test_batching), cmocka_unit_test(test_ceilings), cmocka_unit_test(test_guided),
		cmocka_unit_test(test_bad), cmocka_unit_test(test_quantization), cmocka_unit_test(test_named_length_fits),
		cmocka_unit_test(test_guesses), cmocka_unit_test(test_groups),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
