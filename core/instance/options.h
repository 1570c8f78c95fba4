/* options.h - the one table of options.  Parsing, YAML, --help, completion and the table in docs/vllm.md
 * come from it.  Only config.c and config_help.c include it.
 *
 * An entry is a flag (without its dashes), its value, what we do with it, and a sentence.  A flag marked
 * SET is ours, or means here what it means in vLLM.  vLLM's other flags are marked
 *
 *	ACCEPT  no value changes anything here: taken in silence
 *	WARN    it changes nothing here, but a user might think that it does: taken with a warning
 *	ONLY    taken with the values listed (its default or an equivalent), else refused
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stddef.h>

#include "config.h"

enum kind {
	YESNO,                 /* bool: --x, --no-x, --x=true */
	INT,                   /* int */
	SIZE,                  /* int64_t: 4096, 4k = 4000, 4K = 4096 */
	SIZE_AUTO,             /* the same; auto or -1 = -1 */
	U64,                   /* uint64_t */
	NUMBER,                /* double */
	TEXT,                  /* const char *; with choices, one of them */
	WORD,                  /* an enum: the index of the word in choices */
	LIST,                  /* const char *[CONFIG_LIST], and an int count directly after it */
};
enum action { SET, ACCEPT, WARN, ONLY };
enum topic { MODEL, MEMORY, SCHED, DEVICE, SERVER, HTTP, TLS, LOGGING, PARALLEL, OTHER, N_TOPICS };

struct option {
	const char *name;
	const char *also;      /* other spellings with their dashes, separated by spaces; NULL = none */
	uint8_t kind, action, topic, who;
	bool    common;        /* it is in the short help */
	size_t  at;            /* SET: offset of its field in struct config */
	double  min, max;      /* inclusive limits of a number */
	const char *value;     /* SET: the default as a user types it, NULL = none;
	                          ONLY: accepted values, separated by spaces ("" = no value) */
	const char *choices;   /* separated by spaces; NULL = anything */
	const char *help;
};

#define D_ FOR_DAEMON
#define H_ FOR_HTTP
#define AT(field) offsetof(struct config, field)
#define OPT(n, k, t, w, f, v, ...) { .name = n, .kind = k, .action = SET, .topic = t, .who = w, .at = AT(f), \
	.value = v, __VA_ARGS__ }
#define RANGE(lo, hi) .min = lo, .max = hi
#define COMMON .common = true
#define TAKE(n, k, a, t, h) { .name = n, .kind = k, .action = a, .topic = t, .who = D_ | H_, .help = h }
#define TAKE_AT(n, k, t, v, h) { .name = n, .kind = k, .action = ONLY, .topic = t, .who = D_ | H_, \
	.value = v, .help = h }

#define TERA 1099511627776.0

static const struct option options[] = {
	/* ---- model ---- */
	OPT("model", TEXT, MODEL, D_ | H_, model, NULL, COMMON,
	    .help = "a GGUF file, a Hugging Face directory, or an id in the local download cache; "
	            "also the first word without dashes; none: the default model"),
	OPT("served-model-name", LIST, MODEL, D_ | H_, served_name, NULL, COMMON,
	    .help = "the names that requests may use; the first is in the answers"),
	OPT("max-model-len", SIZE_AUTO, MODEL, D_ | H_, max_model_len, "0", RANGE(1, 1 << 28), COMMON,
	    .help = "longest prompt and answer together, in tokens; auto "
	            "or -1: as long as fits the KV cache"),
	OPT("dtype", TEXT, MODEL, D_, dtype, "auto", COMMON,
	    .choices = "auto half float16 bfloat16 float float32",
	    .help = "taken for scripts' sake: weights are computed with as "
	            "they are stored, and the memory plan says how"),
	OPT("quantization", TEXT, MODEL, D_, quantization, NULL, .also = "-q",
	    .help = "checked against what the model's files hold: gguf, awq, gptq, compressed-tensors, fp8"),
	OPT("load-format", TEXT, MODEL, D_, load_format, "auto", .choices = "auto safetensors gguf hf dummy",
	    .help = "dummy: random weights in the model's shape"),
	OPT("generation-config", TEXT, MODEL, D_ | H_, generation_config, "auto",
	    .help = "where default sampling settings come from: auto: the model's "
	            "generation_config.json; vllm: nowhere; or a folder"),
	OPT("tokenizer", TEXT, MODEL, D_ | H_, tokenizer, NULL,
	    .help = "another model whose tokenizer to use"),
	OPT("seed", U64, MODEL, D_ | H_, seed, "0",
	    .help = "taken for scripts' sake: a request without a seed of its own gets a fresh one"),
	TAKE("trust-remote-code", YESNO, ACCEPT, MODEL, "no code of a model is ever run"),
	TAKE("revision", TEXT, WARN, MODEL,
	    "nothing is downloaded: the cached revision that refs/main names is used"),
	TAKE("code-revision", TEXT, ACCEPT, MODEL, "no code of a model is ever run"),
	TAKE("tokenizer-revision", TEXT, WARN, MODEL, "nothing is downloaded"),
	TAKE("download-dir", TEXT, WARN, MODEL,
	    "nothing is downloaded; HF_HOME names the cache that is looked in"),
	TAKE_AT("tokenizer-mode", TEXT, MODEL, "auto hf slow", "there is one tokenizer"),
	TAKE_AT("skip-tokenizer-init", YESNO, MODEL, "false",
	    "clients of the rings need no tokenizer anyway"),
	TAKE_AT("config-format", TEXT, MODEL, "auto hf", "config.json or GGUF"),
	TAKE("model-impl", TEXT, ACCEPT, MODEL, "there is one implementation"),
	TAKE_AT("runner", TEXT, MODEL, "auto generate", "models generate"),
	TAKE_AT("convert", TEXT, MODEL, "auto none", "models generate"),
	TAKE_AT("task", TEXT, MODEL, "auto generate", "models generate"),
	TAKE_AT("hf-config-path", TEXT, MODEL, "", "config.json is the model's"),
	TAKE_AT("hf-overrides", TEXT, MODEL, "{}", "config.json is taken as it is"),
	TAKE_AT("hf-token", TEXT, MODEL, "", "nothing is downloaded"),
	TAKE_AT("override-generation-config", TEXT, MODEL, "{}", "defaults come from --generation-config"),
	TAKE_AT("rope-scaling", TEXT, MODEL, "{}", "set it in config.json"),
	TAKE_AT("rope-theta", NUMBER, MODEL, "", "set it in config.json"),
	TAKE_AT("disable-sliding-window", YESNO, MODEL, "false", "the model's window is used"),
	TAKE("disable-cascade-attn", YESNO, ACCEPT, MODEL, "there is none"),
	TAKE_AT("enable-prompt-embeds", YESNO, MODEL, "false", "prompts are text or token ids"),
	TAKE_AT("logits-processors", LIST, MODEL, "", "no code of users runs in the daemon"),
	TAKE_AT("logits-processor-pattern", TEXT, MODEL, "", "no code of users runs in the daemon"),
	TAKE("limit-mm-per-prompt", TEXT, ACCEPT, MODEL, "prompts are text"),
	TAKE("mm-processor-kwargs", TEXT, ACCEPT, MODEL, "prompts are text"),
	TAKE("mm-processor-cache-gb", NUMBER, ACCEPT, MODEL, "prompts are text"),
	TAKE("disable-mm-preprocessor-cache", YESNO, ACCEPT, MODEL, "prompts are text"),
	TAKE("language-model-only", YESNO, ACCEPT, MODEL, "prompts are text"),
	TAKE("allowed-local-media-path", TEXT, ACCEPT, MODEL, "prompts are text"),
	TAKE("model-loader-extra-config", TEXT, ACCEPT, MODEL,
	    "weights are read by O_DIRECT, many reads at a time"),
	TAKE("use-tqdm-on-load", YESNO, ACCEPT, MODEL, "a bar is shown on a terminal"),
	TAKE("safetensors-load-strategy", TEXT, ACCEPT, MODEL,
	    "weights are read by O_DIRECT, many reads at a time"),

	/* ---- memory ---- */
	OPT("gpu-memory-utilization", NUMBER, MEMORY, D_ | H_, gpu_memory_utilization, "0.92", RANGE(0.01, 1),
	    COMMON,
	    .help = "share of the device's memory, all of it, for weights, activations and KV cache; on "
	            "the CPU it counts only if given, and there the cgroup's memory is the whole"),
	OPT("kv-cache-memory-bytes", SIZE, MEMORY, D_, kv_cache_memory_bytes, "0", RANGE(1, 1024 * TERA),
	    COMMON,
	    .help = "the KV cache's own size; goes before --gpu-memory-utilization"),
	OPT("num-gpu-blocks-override", SIZE, MEMORY, D_, num_gpu_blocks_override, "0", RANGE(1, 1 << 30),
	    .help = "so many KV blocks, whatever fits"),
	OPT("block-size", INT, MEMORY, D_ | H_, block_size, "16", RANGE(8, 64),
	    .help = "tokens in a KV block: 8, 16, 32 or 64"),
	OPT("kv-cache-dtype", TEXT, MEMORY, D_ | H_, kv_cache_dtype, "auto",
	    .choices = "auto float16 half bfloat16 int8 fp8 fp8_e4m3 fp8_e5m2 fp8_inc int8_per_token_head "
	               "int4_per_token_head nvfp4",
	    .help = "how keys and values are stored; auto: what the device computes with; int8: nearly "
	            "twice the tokens on the CPU, a scale for each token and head"),
	OPT("enable-prefix-caching", YESNO, MEMORY, D_ | H_, enable_prefix_caching, "true", COMMON,
	    .help = "prompts that begin alike share KV blocks"),
	OPT("prefix-cache-scope", WORD, MEMORY, D_, prefix_cache_scope, "tenant", .choices = "uid tenant global",
	    .help = "who may share cached prefixes: uid: programs of one user of this machine; tenant: the same, and "
	            "over HTTP only holders of one API key; global: everybody"),
	TAKE("prefix-caching-hash-algo", TEXT, ACCEPT, MEMORY,
	    "blocks are found by keyed 128-bit XXH3, and their tokens compared"),
	TAKE("swap-space", NUMBER, WARN, MEMORY, "preempted requests are computed again, nothing is swapped"),
	TAKE_AT("cpu-offload-gb", NUMBER, MEMORY, "0", "weights stay on the device"),
	OPT("kv-offloading-size", NUMBER, MEMORY, D_, kv_offloading_size, "0", RANGE(0, 1 << 20),
	    .help = "GiB of host memory for cached blocks that leave the device; on the CPU for tests only"),
	TAKE_AT("kv-offloading-backend", TEXT, MEMORY, "native", "there is one kind of host tier"),
	TAKE("calculate-kv-scales", YESNO, ACCEPT, MEMORY, "int8 measures scales as tokens come; fp8 takes the checkpoint's, else 1"),
	TAKE("kv-cache-dtype-skip-layers", LIST, ACCEPT, MEMORY, "all layers are stored alike"),
	TAKE("kv-sharing-fast-prefill", YESNO, ACCEPT, MEMORY, "no layer shares another's cache"),
	TAKE("disable-hybrid-kv-cache-manager", YESNO, ACCEPT, MEMORY, "there is one manager"),
	TAKE("use-v2-block-manager", YESNO, WARN, MEMORY, "a flag of vLLM before 0.7"),
	TAKE("mamba-cache-dtype", TEXT, ACCEPT, MEMORY, "no such layers"),
	TAKE("mamba-ssm-cache-dtype", TEXT, ACCEPT, MEMORY, "no such layers"),
	TAKE("mamba-block-size", SIZE, ACCEPT, MEMORY, "no such layers"),
	TAKE_AT("kv-transfer-config", TEXT, MEMORY, "{}", "KV blocks do not leave the machine"),
	TAKE_AT("kv-events-config", TEXT, MEMORY, "{}", "no KV events"),
	TAKE_AT("ec-transfer-config", TEXT, MEMORY, "{}", "no encoder"),
	TAKE_AT("enable-sleep-mode", YESNO, MEMORY, "false", "the daemon gives back memory by ending"),

	/* ---- scheduler ---- */
	OPT("max-num-seqs", SIZE, SCHED, D_ | H_, max_num_seqs, "0", RANGE(1, 65536), COMMON,
	    .help = "most sequences computed at a time; default by device, 128 on the CPU"),
	OPT("max-num-batched-tokens", SIZE, SCHED, D_ | H_, max_num_batched_tokens, "0", RANGE(1, 1 << 20),
	    COMMON,
	    .help = "most tokens of one step; default by device, 2048 on the CPU"),
	OPT("knob-ceiling", TEXT, SCHED, D_, knob_ceiling, NULL,
	    .help = "how far \"slipring set\" can raise the two while the daemon runs: "
	            "max-num-seqs=N,max-num-batched-tokens=N; default: up to four times their value, or 256 "
	            "and 8192, as far as each costs at most 0.5 % of the memory"),
	OPT("long-prefill-token-threshold", SIZE, SCHED, D_, long_prefill_token_threshold, "0", RANGE(0,
	    1 << 20),
	    .help = "most tokens of one prompt in one step; 0: no such limit"),
	OPT("enable-chunked-prefill", YESNO, SCHED, D_, enable_chunked_prefill, "true",
	    .help = "--no-..: every prompt must fit one step, so "
	            "--max-num-batched-tokens must be at least --max-model-len"),
	OPT("scheduling-policy", TEXT, SCHED, D_ | H_, scheduling_policy, "fcfs", .choices = "fcfs priority",
	    .help = "priority: lower numbers first, then by arrival; over HTTP below 0 only by a key with a "
	            "lower min-priority in --api-key-file"),
	OPT("step-target-ms", NUMBER, SCHED, D_, step_target_ms, "0", RANGE(0, 60000),
	    .help = "prompt chunks shrink so that a step takes about so long; 0: by device, 50 on the CPU"),
	OPT("max-num-queued-reqs", SIZE, SCHED, D_ | H_, max_num_queued_reqs, "4096", RANGE(1, 1 << 24),
	    .help = "requests that may wait; more are answered 503"),
	OPT("max-num-queued-tokens", SIZE, SCHED, D_ | H_, max_num_queued_tokens, "2097152", RANGE(1, TERA),
	    .help = "tokens of their prompts, together"),
	TAKE_AT("max-num-scheduled-tokens", SIZE, SCHED, "", "as many as --max-num-batched-tokens"),
	TAKE_AT("max-num-partial-prefills", SIZE, SCHED, "1",
	    "prompts share a step's tokens in order of arrival"),
	TAKE_AT("max-long-partial-prefills", SIZE, SCHED, "1",
	    "prompts share a step's tokens in order of arrival"),
	TAKE("async-scheduling", YESNO, ACCEPT, SCHED,
	    "the device never waits for the host where it can run ahead"),
	OPT("scheduler-reserve-full-isl", YESNO, SCHED, D_, scheduler_reserve_full_isl, "true",
	    .help = "a prompt is admitted when all of it fits the free KV cache; --no-..: when its first "
	            "chunk does"),
	TAKE_AT("watermark", NUMBER, SCHED, "0", "a running sequence may take the last block"),
	TAKE_AT("scheduler-cls", TEXT, SCHED, "", "there is one scheduler"),
	TAKE("performance-mode", TEXT, WARN, SCHED, "set --max-num-seqs and --max-num-batched-tokens"),
	TAKE("disable-chunked-mm-input", YESNO, ACCEPT, SCHED, "prompts are text"),
	TAKE("num-scheduler-steps", SIZE, WARN, SCHED, "a flag of vLLM before 0.9: every step yields tokens"),
	TAKE("multi-step-stream-outputs", YESNO, WARN, SCHED, "a flag of vLLM before 0.9"),
	TAKE("num-lookahead-slots", SIZE, WARN, SCHED, "a flag of vLLM before 0.9"),
	TAKE("scheduler-delay-factor", NUMBER, WARN, SCHED, "a flag of vLLM before 0.9: nothing is delayed"),
	TAKE("preemption-mode", TEXT, WARN, SCHED,
	    "a flag of vLLM before 0.9: preempted requests are computed again"),

	/* ---- device ---- */
	OPT("device", WORD, DEVICE, D_, device, "auto", .choices = "auto cpu cuda null", COMMON,
	    .help = "auto: the GPU, or the CPU where there is none; a GPU that cannot be used is an "
	            "error; null: no model, tokens by a formula, to measure all the rest"),
	OPT("threads", INT, DEVICE, D_, threads, "0", RANGE(0, 1024),
	    .help = "that compute; 0: as many as cores we may use"),
	OPT("run-mode", WORD, DEVICE, D_, run_mode, "auto", .choices = "auto dedicated inline waiting",
	    .help = "how the daemon's thread waits for the device: dedicated polls a core of its own, inline "
	            "computes with it, waiting sleeps; auto: by device and cores we may use"),
	OPT("null-step-us", NUMBER, DEVICE, D_, null_step_us, "0", RANGE(0, 1e9),
	    .help = "--device null: time of a step"),
	OPT("null-token-us", NUMBER, DEVICE, D_, null_token_us, "0", RANGE(0, 1e9),
	    .help = "--device null: and of a token in it"),
	OPT("enforce-deterministic", YESNO, DEVICE, D_, enforce_deterministic, "false",
	    .help = "answers do not depend on what else is computed, nor on how a prompt is cut: one kernel for "
	            "each product and for attention, slower; on the CPU it is always so"),
	OPT("enforce-eager", YESNO, DEVICE, D_, enforce_eager, "false",
	    .help = "no CUDA graphs: each kernel is launched by itself; less memory, a longer step where it is short; "
	            "elsewhere it changes nothing"),
	TAKE("max-seq-len-to-capture", SIZE, ACCEPT, DEVICE, "graphs are used where the device has them"),
	{ .name = "compilation-config", .also = "-cc -O", .kind = TEXT, .action = ACCEPT, .topic = DEVICE,
	  .who = D_ | H_,
	  .help = "nothing is compiled at start; -O0 to -O3 too" },
	TAKE("optimization-level", TEXT, ACCEPT, DEVICE, "nothing is compiled at start"),
	TAKE("cuda-graph-sizes", LIST, ACCEPT, DEVICE, "graphs are used where the device has them"),
	TAKE("cudagraph-capture-sizes", LIST, ACCEPT, DEVICE, "graphs are used where the device has them"),
	TAKE("max-cudagraph-capture-size", SIZE, ACCEPT, DEVICE, "graphs are used where the device has them"),
	{ .name = "attention-config", .also = "-ac", .kind = TEXT, .action = ACCEPT, .topic = DEVICE,
	  .who = D_ | H_,
	  .help = "there is one attention for a device" },
	TAKE("attention-backend", TEXT, ACCEPT, DEVICE, "there is one attention for a device"),
	TAKE("kernel-config", TEXT, ACCEPT, DEVICE, "kernels are chosen by what the device can do"),
	TAKE("additional-config", TEXT, ACCEPT, DEVICE, "nothing reads it"),

	/* ---- server ---- */
	OPT("host", TEXT, SERVER, H_, host, "127.0.0.1", COMMON,
	    .help = "the address to listen on; 0.0.0.0 or :: for all"),
	OPT("port", INT, SERVER, H_, port, "8000", RANGE(0, 65535), COMMON,
	    .help = "0: any, which is printed"),
	OPT("uds", TEXT, SERVER, H_, uds, NULL, .help = "listen on this Unix socket instead"),
	OPT("api-key", LIST, SERVER, H_, api_key, NULL, COMMON,
	    .help = "requests must carry one of them; without the flag, "
	            "VLLM_API_KEY and SLIPRING_API_KEY count"),
	OPT("api-key-file", TEXT, SERVER, H_, api_key_file, NULL,
	    .help = "lines of a key, if you like its owner's name, and min-priority=N; read again on SIGHUP"),
	OPT("api-server-count", INT, SERVER, H_, api_server_count, "1", RANGE(1, 64),
	    .help = "processes that answer HTTP"),
	OPT("max-connections", INT, SERVER, H_, max_connections, "4096", RANGE(1, 1 << 20),
	    .help = "beyond it, one that showed no valid key is closed for each that comes"),
	OPT("max-body-bytes", SIZE, SERVER, H_, max_body_bytes, "64M", RANGE(1024, 1 << 30),
	    .help = "longer requests are answered 413"),
	OPT("root-path", TEXT, SERVER, H_, root_path, "", .help = "the path a proxy puts before ours"),
	OPT("allowed-hosts", LIST, SERVER, H_, allowed_hosts, NULL,
	    .help = "without API keys, names that Host may have besides localhost, IP addresses, this machine's "
	            "name and --host; * for any; others are answered 421"),
	OPT("allowed-origins", TEXT, SERVER, H_, allowed_origins, NULL,
	    .help = "a JSON list; CORS is off unless it is given"),
	OPT("allowed-methods", TEXT, SERVER, H_, allowed_methods, "[\"*\"]", .help = "a JSON list, for CORS"),
	OPT("allowed-headers", TEXT, SERVER, H_, allowed_headers, "[\"*\"]", .help = "a JSON list, for CORS"),
	OPT("allow-credentials", YESNO, SERVER, H_, allow_credentials, "false", .help = "for CORS"),
	OPT("instance", TEXT, SERVER, D_ | H_, instance, "default",
	    .help = "a name, where several daemons run on one machine"),
	OPT("socket", TEXT, SERVER, D_ | H_, socket, NULL,
	    .help = "where clients of the rings connect; default by instance"),
	OPT("socket-group", TEXT, SERVER, D_, socket_group, NULL,
	    .help = "users of this group may connect to the rings"),
	OPT("operator-group", TEXT, SERVER, D_, operator_group, NULL,
	    .help = "users of this group may change settings while the daemon runs (slipring set); "
	            "its own user and root may in any case"),
	OPT("max-clients", INT, SERVER, D_, max_clients, "256", RANGE(1, 4096),
	    .help = "programs connected to the rings"),
	OPT("gateway-user", TEXT, SERVER, D_, gateway_user, NULL,
	    .help = "whose requests may say for whom they are (the adapter's user); default: our own"),
	OPT("ready-file", TEXT, SERVER, H_, ready_file, NULL,
	    .help = "the URL is written there once requests are taken"),
	OPT("shutdown-timeout", NUMBER, SERVER, D_ | H_, shutdown_timeout, "30", RANGE(0, 86400),
	    .help = "seconds that running requests get after SIGTERM; vLLM's default is 0"),
	TAKE("disable-frontend-multiprocessing", YESNO, ACCEPT, SERVER,
	    "daemon and adapter are two processes"),
	TAKE_AT("headless", YESNO, SERVER, "false", "slipringd alone serves the rings without HTTP"),
	TAKE_AT("grpc", YESNO, SERVER, "false", "HTTP and rings"),
	TAKE_AT("middleware", LIST, SERVER, "", "put it into a proxy"),
	TAKE_AT("tokens-only", YESNO, SERVER, "false", "clients of the rings send token ids"),
	TAKE("h11-max-incomplete-event-size", SIZE, WARN, SERVER, "headers have limits of their own"),
	TAKE("h11-max-header-count", SIZE, WARN, SERVER, "headers have limits of their own"),

	/* ---- http ---- */
	OPT("chat-template", TEXT, HTTP, H_, chat_template, NULL, COMMON,
	    .help = "a file, or the template itself; default: the model's"),
	OPT("chat-template-content-format", TEXT, HTTP, H_, chat_template_content_format, "auto",
	    .choices = "auto string openai",
	    .help = "how message contents are given to the template"),
	OPT("response-role", TEXT, HTTP, H_, response_role, "assistant", .help = "role of the answers"),
	OPT("max-logprobs", INT, HTTP, H_, max_logprobs, "20", RANGE(-1, 20),
	    .help = "most alternatives that a request may ask for"),
	OPT("stream-interval", INT, HTTP, H_, stream_interval, "1", RANGE(1, 4096),
	    .help = "tokens in an event; first and last go at once"),
	OPT("return-tokens-as-token-ids", YESNO, HTTP, H_, return_tokens_as_token_ids, "false",
	    .help = "\"token_id:N\" for tokens in logprobs"),
	OPT("enable-prompt-tokens-details", YESNO, HTTP, H_, enable_prompt_tokens_details, "false",
	    .help = "cached_tokens in usage"),
	OPT("enable-server-load-tracking", YESNO, HTTP, H_, enable_server_load_tracking, "false",
	    .help = "/load counts requests"),
	OPT("enable-force-include-usage", YESNO, HTTP, H_, enable_force_include_usage, "false",
	    .help = "usage in every stream"),
	OPT("enable-request-id-headers", YESNO, HTTP, H_, enable_request_id_headers, "false",
	    .help = "X-Request-Id in answers"),
	TAKE_AT("logprobs-mode", TEXT, HTTP, "raw_logprobs",
	    "of the model's own distribution, before temperature and cuts"),
	TAKE("trust-request-chat-template", YESNO, ACCEPT, HTTP, "templates of requests run within limits"),
	TAKE_AT("default-chat-template-kwargs", TEXT, HTTP, "{}", "requests give them"),
	TAKE_AT("enable-auto-tool-choice", YESNO, HTTP, "false", "tool calls are not parsed yet"),
	TAKE_AT("tool-call-parser", TEXT, HTTP, "", "tool calls are not parsed yet"),
	TAKE_AT("tool-parser-plugin", TEXT, HTTP, "", "tool calls are not parsed yet"),
	TAKE_AT("tool-server", TEXT, HTTP, "", "tool calls are not parsed yet"),
	TAKE("exclude-tools-when-tool-choice-none", YESNO, ACCEPT, HTTP, "tool calls are not parsed yet"),
	TAKE_AT("reasoning-parser", TEXT, HTTP, "", "reasoning is not split off yet"),
	TAKE_AT("reasoning-parser-plugin", TEXT, HTTP, "", "reasoning is not split off yet"),
	TAKE_AT("reasoning-config", TEXT, HTTP, "{}", "reasoning is not split off yet"),
	TAKE("structured-outputs-config", TEXT, WARN, HTTP,
	    "structured outputs are refused by name until they exist"),
	TAKE("guided-decoding-backend", TEXT, WARN, HTTP,
	    "structured outputs are refused by name until they exist"),
	TAKE_AT("enable-per-request-metrics", YESNO, HTTP, "false", "see /metrics"),
	TAKE_AT("enable-tokenizer-info-endpoint", YESNO, HTTP, "false", "there is no such endpoint"),
	TAKE("fingerprint-mode", TEXT, ACCEPT, HTTP, "answers carry no fingerprint"),
	TAKE("disable-fastapi-docs", YESNO, ACCEPT, HTTP, "there are none"),
	TAKE("enable-offline-docs", YESNO, ACCEPT, HTTP, "there are none"),

	/* ---- tls ---- */
	OPT("ssl-keyfile", TEXT, TLS, H_, ssl_keyfile, NULL, .help = "PEM; with --ssl-certfile"),
	OPT("ssl-certfile", TEXT, TLS, H_, ssl_certfile, NULL, .help = "PEM; with --ssl-keyfile"),
	OPT("ssl-ca-certs", TEXT, TLS, H_, ssl_ca_certs, NULL,
	    .help = "PEM, of those who may sign clients' certificates"),
	OPT("ssl-cert-reqs", INT, TLS, H_, ssl_cert_reqs, "0", RANGE(0, 2),
	    .help = "clients' certificates: 0 unasked, 1 optional, 2 required"),
	TAKE_AT("ssl-ciphers", TEXT, TLS, "", "OpenSSL's defaults, TLS 1.2 up"),
	TAKE("enable-ssl-refresh", YESNO, WARN, TLS, "SIGHUP makes the adapter read certificates again"),

	/* ---- logging ---- */
	OPT("disable-log-stats", YESNO, LOGGING, D_ | H_, disable_log_stats, "false",
	    .help = "no line of rates every ten seconds"),
	OPT("uvicorn-log-level", TEXT, LOGGING, D_ | H_, log_level, "info", .also = "--log-level",
	    .choices = "critical error warning info debug trace",
	    .help = "the least important lines to print"),
	OPT("disable-uvicorn-access-log", YESNO, LOGGING, H_, disable_access_log, "false",
	    .also = "--disable-access-log",
	    .help = "no line per request"),
	OPT("metrics-port", INT, LOGGING, H_, metrics_port, "0", RANGE(0, 65535),
	    .help = "/metrics is on this port, with /health and /live, and not on the main one; 0: on the main one"),
	OPT("metrics-key", TEXT, LOGGING, H_, metrics_key, NULL,
	    .help = "/metrics asks for this key, which opens nothing else"),
	OPT("metrics-old-names", YESNO, LOGGING, H_, metrics_old_names, "false",
	    .help = "also the four names that vLLM has dropped "
	            "(gpu_cache_usage_perc, ..), for older dashboards"),
	TAKE("disable-log-requests", YESNO, ACCEPT, LOGGING, "prompts are never logged"),
	TAKE("enable-log-requests", YESNO, WARN, LOGGING, "prompts are never logged"),
	TAKE_AT("enable-log-outputs", YESNO, LOGGING, "false", "answers are never logged"),
	TAKE("enable-log-deltas", YESNO, ACCEPT, LOGGING, "answers are never logged"),
	TAKE("max-log-len", SIZE, ACCEPT, LOGGING, "prompts are never logged"),
	TAKE("log-error-stack", YESNO, ACCEPT, LOGGING, "errors are one line"),
	TAKE("log-config-file", TEXT, WARN, LOGGING, "lines go to stderr, one per event"),
	TAKE("disable-access-log-for-endpoints", TEXT, WARN, LOGGING,
	    "--disable-uvicorn-access-log is all or nothing"),
	TAKE_AT("otlp-traces-endpoint", TEXT, LOGGING, "", "no traces are sent yet"),
	TAKE_AT("collect-detailed-traces", LIST, LOGGING, "", "no traces are sent yet"),
	TAKE("kv-cache-metrics", YESNO, WARN, LOGGING, "ages of KV blocks are not sampled"),
	TAKE("kv-cache-metrics-sample", NUMBER, ACCEPT, LOGGING, "ages of KV blocks are not sampled"),
	TAKE("cudagraph-metrics", YESNO, WARN, LOGGING, "there are none"),
	TAKE("enable-mfu-metrics", YESNO, WARN, LOGGING, "slipring why says what bound the time"),
	TAKE("enable-logging-iteration-details", YESNO, WARN, LOGGING,
	    "slipring why says what limited each step"),
	TAKE("show-hidden-metrics-for-version", TEXT, WARN, LOGGING,
	    "--metrics-old-names prints four old names"),

	/* ---- parallel ---- */
	{ .name = "tensor-parallel-size", .also = "-tp", .kind = SIZE, .action = ONLY, .topic = PARALLEL,
	  .who = D_ | H_, .value = "1",
	  .help = "one device so far" },
	{ .name = "pipeline-parallel-size", .also = "-pp", .kind = SIZE, .action = ONLY, .topic = PARALLEL,
	  .who = D_ | H_, .value = "1",
	  .help = "one device so far" },
	{ .name = "data-parallel-size", .also = "-dp", .kind = SIZE, .action = ONLY, .topic = PARALLEL,
	  .who = D_ | H_, .value = "1",
	  .help = "start one --instance a device behind a load balancer" },
	{ .name = "decode-context-parallel-size", .also = "-dcp", .kind = SIZE, .action = ONLY,
	  .topic = PARALLEL, .who = D_ | H_, .value = "1",
	  .help = "one device so far" },
	{ .name = "prefill-context-parallel-size", .also = "-pcp", .kind = SIZE, .action = ONLY,
	  .topic = PARALLEL, .who = D_ | H_, .value = "1",
	  .help = "one device so far" },
	{ .name = "data-parallel-rank", .also = "-dpn", .kind = SIZE, .action = ONLY, .topic = PARALLEL,
	  .who = D_ | H_, .value = "0",
	  .help = "one replica" },
	{ .name = "data-parallel-size-local", .also = "-dpl", .kind = SIZE, .action = ONLY, .topic = PARALLEL,
	  .who = D_ | H_, .value = "1",
	  .help = "one replica" },
	TAKE("data-parallel-address", TEXT, ACCEPT, PARALLEL, "one replica"),
	TAKE("data-parallel-rpc-port", SIZE, ACCEPT, PARALLEL, "one replica"),
	TAKE("data-parallel-backend", TEXT, ACCEPT, PARALLEL, "one replica"),
	TAKE("data-parallel-start-rank", SIZE, ACCEPT, PARALLEL, "one replica"),
	TAKE_AT("data-parallel-hybrid-lb", YESNO, PARALLEL, "false", "one replica"),
	TAKE_AT("data-parallel-external-lb", YESNO, PARALLEL, "false", "one replica"),
	{ .name = "enable-expert-parallel", .also = "-ep", .kind = YESNO, .action = ONLY, .topic = PARALLEL,
	  .who = D_ | H_, .value = "false",
	  .help = "one device so far" },
	TAKE_AT("enable-eplb", YESNO, PARALLEL, "false", "no experts"),
	TAKE_AT("enable-dbo", YESNO, PARALLEL, "false", "one device so far"),
	{ .name = "nnodes", .also = "-n", .kind = SIZE, .action = ONLY, .topic = PARALLEL, .who = D_ | H_,
	  .value = "1",
	  .help = "one machine" },
	{ .name = "node-rank", .also = "-r", .kind = SIZE, .action = ONLY, .topic = PARALLEL, .who = D_ | H_,
	  .value = "0",
	  .help = "one machine" },
	TAKE("master-addr", TEXT, ACCEPT, PARALLEL, "one machine"),
	TAKE("master-port", SIZE, ACCEPT, PARALLEL, "one machine"),
	TAKE_AT("distributed-executor-backend", TEXT, PARALLEL, "mp uni", "one process computes"),
	TAKE("max-parallel-loading-workers", SIZE, ACCEPT, PARALLEL,
	    "weights are read by O_DIRECT, many reads at a time"),
	TAKE("disable-custom-all-reduce", YESNO, ACCEPT, PARALLEL, "one device so far"),
	TAKE_AT("ray-workers-use-nsight", YESNO, PARALLEL, "false", "no Ray"),
	TAKE_AT("worker-use-ray", YESNO, PARALLEL, "false", "no Ray"),
	TAKE_AT("engine-use-ray", YESNO, PARALLEL, "false", "no Ray"),
	TAKE_AT("worker-cls", TEXT, PARALLEL, "auto", "there is one worker"),
	TAKE_AT("worker-extension-cls", TEXT, PARALLEL, "", "there is one worker"),

	/* ---- other ---- */
	TAKE_AT("enable-lora", YESNO, OTHER, "false", "no adapters yet"),
	TAKE_AT("lora-modules", LIST, OTHER, "", "no adapters yet"),
	TAKE("max-loras", SIZE, ACCEPT, OTHER, "no adapters yet"),
	TAKE("max-lora-rank", SIZE, ACCEPT, OTHER, "no adapters yet"),
	TAKE("max-cpu-loras", SIZE, ACCEPT, OTHER, "no adapters yet"),
	TAKE("lora-dtype", TEXT, ACCEPT, OTHER, "no adapters yet"),
	TAKE("lora-extra-vocab-size", SIZE, ACCEPT, OTHER, "no adapters yet"),
	TAKE("fully-sharded-loras", YESNO, ACCEPT, OTHER, "no adapters yet"),
	TAKE_AT("enable-prompt-adapter", YESNO, OTHER, "false", "no adapters yet"),
	{ .name = "speculative-config", .also = "-sc", .kind = TEXT, .action = ONLY, .topic = OTHER,
	  .who = D_ | H_, .value = "{}",
	  .help = "no speculation yet" },
	TAKE_AT("speculative-model", TEXT, OTHER, "", "no speculation yet"),
	TAKE_AT("num-speculative-tokens", SIZE, OTHER, "0", "no speculation yet"),
	TAKE_AT("enable-return-routed-experts", YESNO, OTHER, "false", "no experts"),
	TAKE_AT("profiler-config", TEXT, OTHER, "{}", "no profiler over HTTP"),
	TAKE("enable-fault-tolerance", YESNO, ACCEPT, OTHER, "the adapter outlives the daemon"),
};

#undef D_
#undef H_
#undef AT
#undef OPT
#undef RANGE
#undef COMMON
#undef TAKE
#undef TAKE_AT
#undef TERA
#define N_OPTIONS ((int)(sizeof(options) / sizeof(*options)))

/* The index of an option; - and _ are the same.  -EINVAL: err asks "did you mean". */
int config_option(const char *name, char *err, size_t errlen);

#endif
