/* bench_options.c - the command line of `slipring bench serve`.  One table has the flags of
 * `vllm bench serve` with its defaults, and our own.
 *
 * Inside a flag - and _ are the same; so are --x=V and --x V.  A flag of vLLM that is not supported is
 * refused by name and never ignored, because a benchmark that does something else misleads.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/instance/config.h"
#include "core/instance/refuse.h"

enum kind { TEXT, COUNT, REAL, ON, OFF, SELF, WORDS, PASSED, PASSED_ON, REFUSED, TITLE };

struct flag {
	const char *name;
	enum kind kind;
	size_t at;                   /* offset in struct bench_options */
	double low, high;            /* limits of COUNT and REAL */
	const char *help;            /* NULL: not listed */
};

#define AT(field) offsetof(struct bench_options, field)
#define MANY 1e15

static const struct flag flags[] = {
	{ "The server", TITLE, 0, 0, 0, NULL },
	{ "backend", TEXT, AT(backend), 0, 0, "openai or vllm: completions (default); openai-chat" },
	{ "base-url", TEXT, AT(base_url), 0, 0,
	 "for example https://host:8000, instead of --host and --port" },
	{ "host", TEXT, AT(host), 0, 0, "127.0.0.1" },
	{ "port", COUNT, AT(port), 1, 65535, "8000" },
	{ "endpoint", TEXT, AT(endpoint), 0, 0, "/v1/completions; for openai-chat /v1/chat/completions" },
	{ "model", TEXT, AT(model), 0, 0, "default: the first that the server lists" },
	{ "served-model-name", TEXT, AT(served_name), 0, 0, "the model's name in requests, if it differs" },
	{ "tokenizer", TEXT, AT(tokenizer), 0, 0,
	 "a GGUF file, a directory, or a Hugging Face id in the local cache" },
	{ "skip-tokenizer-init", ON, AT(skip_tokenizer), 0, 0, "do not count tokens here; only for the custom "
	 "dataset" },
	{ "header", WORDS, AT(header), 0, 0, "NAME=VALUE ..., sent with each request" },
	{ "insecure", ON, AT(insecure), 0, 0, "do not check the server's certificate" },
	{ "ready-check-timeout-sec", REAL, AT(ready_timeout), 0, 1e6,
	 "seconds to wait until the server answers; 0: do not check" },
	{ "transport", TEXT, AT(transport), 0, 0,
	 "http (default), or ring: the daemon of this machine, without HTTP" },
	{ "socket", TEXT, AT(socket), 0, 0, "the daemon's socket, for the ring" },
	{ "instance", TEXT, AT(instance), 0, 0, "which daemon, for the ring and the limits; default: by the "
	 "port" },

	{ "Requests", TITLE, 0, 0, 0, NULL },
	{ "dataset-name", TEXT, AT(dataset), 0, 0,
	 "random (default), sharegpt, prefix_repetition, custom, timed_trace" },
	{ "dataset-path", TEXT, AT(dataset_path), 0, 0, "file of sharegpt, custom, timed_trace" },
	{ "num-prompts", COUNT, AT(n_prompts), 1, 1e8, "1000" },
	{ "seed", COUNT, AT(seed), 0, 4294967295.0, "0: draws the same prompts and arrivals each time" },
	{ "input-len", COUNT, AT(input_len), 1, 1e7, "length of prompts, whatever the dataset says" },
	{ "output-len", COUNT, AT(output_len), 1, 1e7, "length of answers, whatever the dataset says" },
	{ "random-input-len", COUNT, AT(random_input), 0, 1e7, "1024" },
	{ "random-output-len", COUNT, AT(random_output), 1, 1e7, "128" },
	{ "random-prefix-len", COUNT, AT(random_prefix), 0, 1e7, "0: tokens that all prompts begin with" },
	{ "random-range-ratio", TEXT, AT(random_range), 0, 0, "0.0: lengths vary up and down by this share" },
	{ "sharegpt-output-len", COUNT, AT(sharegpt_output), 1, 1e7, "default: the length of the dataset's "
	 "answers" },
	{ "custom-output-len", COUNT, AT(custom_output), -1, 1e7, "256; -1: \"output_tokens\" of each line" },
	{ "prefix-repetition-prefix-len", COUNT, AT(prefix_len), 0, 1e7, "256" },
	{ "prefix-repetition-suffix-len", COUNT, AT(suffix_len), 1, 1e7, "256" },
	{ "prefix-repetition-num-prefixes", COUNT, AT(n_prefixes), 1, 1e7, "10" },
	{ "prefix-repetition-output-len", COUNT, AT(prefix_output), 1, 1e7, "128" },
	{ "timed-trace-chunk-hash-size", COUNT, AT(trace_chunk), 1, 1e6,
	 "16: tokens that one hash stands for" },
	{ "timed-trace-sec-multiplier", REAL, AT(trace_seconds), 0, 1e9,
	 "1: seconds in a unit of the trace's clock" },
	{ "timed-trace-label-timestamp", TEXT, AT(trace_time), 0, 0, "timestamp" },
	{ "timed-trace-label-input-length", TEXT, AT(trace_input), 0, 0, "input_length" },
	{ "timed-trace-label-output-length", TEXT, AT(trace_output), 0, 0, "output_length" },
	{ "timed-trace-label-hash-ids", TEXT, AT(trace_hashes), 0, 0, "hash_ids" },
	{ "no-oversample", ON, AT(no_oversample), 0, 0,
	 "do not repeat prompts of a dataset that is too short" },
	{ "disable-shuffle", ON, AT(keep_order), 0, 0, "take the dataset in its order" },
	{ "skip-chat-template", ON, AT(no_template), 0, 0, "custom: send prompts as they are" },
	{ "chat-template-kwargs", TEXT, AT(template_kwargs), 0, 0, "custom: JSON for the template" },
	{ "prompt-token-ids", ON, AT(send_ids), 0, 0, "send ids instead of text (always over the rings)" },
	{ "ignore-eos", ON, AT(ignore_eos), 0, 0,
	 "answers always reach their length; default for random, timed_trace" },
	{ "logprobs", COUNT, AT(logprobs), 0, 1000, "number of logprobs to ask for" },
	{ "temperature", REAL, AT(temperature), 0, 100, "sampling: the server decides what is not given" },
	{ "top-p", REAL, AT(top_p), 0, 1, "" },
	{ "top-k", COUNT, AT(top_k), -1, 1e9, "" },
	{ "min-p", REAL, AT(min_p), 0, 1, "" },
	{ "frequency-penalty", REAL, AT(frequency), -2, 2, "" },
	{ "presence-penalty", REAL, AT(presence), -2, 2, "" },
	{ "repetition-penalty", REAL, AT(repetition), 0, 100, "" },
	{ "extra-body", TEXT, AT(extra_body), 0, 0, "JSON object, merged into each request" },
	{ "structured-output-schema", TEXT, AT(schema), 0, 0,
	 "file with a JSON schema that answers must keep to (only over HTTP)" },
	{ "structured-output-ratio", REAL, AT(structured), 0, 1, "1: share of the requests that send it" },

	{ "When", TITLE, 0, 0, 0, NULL },
	{ "request-rate", REAL, AT(rate), 1e-9, INFINITY, "requests per second; inf (default): all at once" },
	{ "burstiness", REAL, AT(burstiness), 1e-9, INFINITY,
	 "1: Poisson; less: bursts; more: even; inf: constant" },
	{ "max-concurrency", COUNT, AT(concurrency), 1, 1e6, "most requests in flight" },
	{ "ramp-up-strategy", TEXT, AT(ramp), 0, 0, "linear or exponential, with:" },
	{ "ramp-up-start-rps", REAL, AT(ramp_start), 0, 1e9, "" },
	{ "ramp-up-end-rps", REAL, AT(ramp_end), 0, 1e9, "" },
	{ "self-timed", SELF, AT(self_timed), 0, 0,
	 "timed_trace: by the trace's clock (default); --no-self-timed: by the rate" },
	{ "num-warmups", COUNT, AT(warmups), 0, 1e6, "requests before the clock starts" },

	{ "Results", TITLE, 0, 0, 0, NULL },
	{ "percentile-metrics", TEXT, AT(metrics), 0, 0, "ttft,tpot,itl; also e2el, client_queue_time, ..." },
	{ "metric-percentiles", TEXT, AT(percentiles), 0, 0, "99, for example 50,90,99.9" },
	{ "goodput", WORDS, AT(goodput), 0, 0, "ttft:MS tpot:MS e2el:MS: count the requests that keep all of "
	 "them" },
	{ "steady-state-threshold", REAL, AT(steady), 0.01, 1,
	 "0.95: share of the peak concurrency that is steady" },
	{ "save-result", ON, AT(save), 0, 0, "write a JSON file" },
	{ "save-detailed", ON, AT(detailed), 0, 0, "with --save-result: times, lengths and texts of each "
	 "request" },
	{ "append-result", ON, AT(append), 0, 0, "add to the file instead of replacing it" },
	{ "save-baseline", TEXT, AT(baseline), 0, 0, "keep the result under this name for slipring compare" },
	{ "result-dir", TEXT, AT(dir), 0, 0, "" },
	{ "result-filename", TEXT, AT(filename), 0, 0, "" },
	{ "report", TEXT, AT(report), 0, 0, "write a page of HTML with pictures, and a CSV file beside it" },
	{ "metadata", WORDS, AT(metadata), 0, 0, "KEY=VALUE ..., written to the file" },
	{ "label", TEXT, AT(label), 0, 0, "the beginning of the file's name" },
	{ "request-id-prefix", TEXT, AT(id_prefix), 0, 0, "the beginning of X-Request-Id" },
	{ "disable-tqdm", ON, AT(quiet), 0, 0, "no progress" },

	{ "trust-remote-code", PASSED_ON, 0, 0, 0, NULL }, /* there is no remote code */
	{ "no-stream", PASSED_ON, 0, 0, 0, NULL },         /* is about datasets, not answers */
	{ "tokenizer-mode", PASSED, 0, 0, 0, NULL },
	{ "random-batch-size", REFUSED, 0, 0, 0, NULL }, { "use-beam-search", REFUSED, 0, 0, 0, NULL },
	{ "lora-modules", REFUSED, 0, 0, 0, NULL }, { "lora-assignment", REFUSED, 0, 0, 0, NULL },
	{ "probe-request-rate", REFUSED, 0, 0, 0, NULL }, { "profile", REFUSED, 0, 0, 0, NULL },
	{ "plot-timeline", REFUSED, 0, 0, 0, NULL }, { "plot-dataset-stats", REFUSED, 0, 0, 0, NULL },
	{ "timeline-itl-thresholds", REFUSED, 0, 0, 0, NULL },
	{ "enable-multimodal-chat", REFUSED, 0, 0, 0, NULL },
	{ "hf-subset", REFUSED, 0, 0, 0, NULL }, { "hf-split", REFUSED, 0, 0, 0, NULL },
	{ "hf-name", REFUSED, 0, 0, 0, NULL }, { "hf-output-len", REFUSED, 0, 0, 0, NULL },
};
#define N_FLAGS ((int)(sizeof(flags) / sizeof(flags[0])))

static void help(void)
{
	printf("slipring bench serve [FLAGS]\n\n"
	       "Measures a server that speaks the OpenAI API, or the daemon of this machine over the\n"
	       "rings, with the flags, the definitions and the files of `vllm bench serve`.  For example:\n\n"
	       "  slipring bench serve --num-prompts 100 --request-rate 10 --save-baseline before\n"
	       "  slipring bench serve --transport ring --random-input-len 128 --max-concurrency 16\n");
	for (int i = 0; i < N_FLAGS; i++) {
		if (flags[i].kind == TITLE)
			printf("\n%s\n", flags[i].name);
		else if (flags[i].help)
			printf("  --%-33s %s\n", flags[i].name, flags[i].help);
	}
}

static bool same_flag(const char *given, size_t n, const char *name)
{
	if (n != strlen(name))
		return false;
	for (size_t i = 0; i < n; i++)
		if (given[i] != name[i] && !(given[i] == '_' && name[i] == '-'))
			return false;
	return true;
}

static int unknown(const char *word, const char *command, char *err, size_t errlen)
{
	const char *name[N_FLAGS], *near;
	int n = 0;

	for (int i = 0; i < N_FLAGS; i++)
		if (flags[i].help)
			name[n++] = flags[i].name;
	near = strncmp(word, "--", 2) ? NULL : config_nearest(word + 2, name, n);
	return refuse(-EINVAL, err, errlen, "unknown flag %s%s%s%s; see slipring %s --help", word,
	              near ? ", did you mean --" : "", near ? near : "", near ? "?" : "", command);
}

static int read_number(const struct flag *f, const char *value, void *at, char *err, size_t errlen)
{
	char *end;
	double v = strtod(value, &end);

	if (end == value || *end || !(v >= f->low && v <= f->high) || (f->kind == COUNT && v != floor(v)))
		return refuse(-EINVAL, err, errlen, "--%s %s: not a %snumber from %.12g to %.12g", f->name, value,
		              f->kind == COUNT ? "whole " : "", f->low, f->high);
	if (f->kind == COUNT)
		*(int64_t *)at = (int64_t)v;
	else
		*(double *)at = v;
	return 0;
}

/* Take flag f with the value after its = (or NULL), or with the words after it. */
static int take_flag(struct bench_options *o, const struct flag *f, const char *value, int argc, char **argv,
                     int *i, char *err, size_t errlen)
{
	void *at = (char *)o + f->at;
	struct bench_words *words = at;

	if (f->kind == ON || f->kind == PASSED_ON) {
		if (f->kind == ON)
			*(bool *)at = true;
		if (value)
			snprintf(err, errlen, "--%s takes no value", f->name);
		return value ? -EINVAL : 0;
	}
	if (f->kind == REFUSED)
		return refuse(-EINVAL, err, errlen, "--%s is not supported; without it the benchmark is the same as "
		              "vLLM's", f->name);
	if (f->kind == WORDS) {
		words->n = 0;
		while (value || (*i + 1 < argc && strncmp(argv[*i + 1], "--", 2))) {
			if (words->n == BENCH_WORDS)
				return refuse(-EINVAL, err, errlen, "--%s: more than %d values", f->name, BENCH_WORDS);
			words->word[words->n++] = value ? value : argv[++*i];
			value = NULL;
		}
		return 0;
	}
	if (!value && *i + 1 < argc)
		value = argv[++*i];
	if (!value)
		return refuse(-EINVAL, err, errlen, "--%s needs a value", f->name);
	if (f->kind == COUNT || f->kind == REAL)
		return read_number(f, value, at, err, errlen);
	if (f->kind == TEXT)
		*(const char **)at = value;
	return 0;
}

static const struct flag *find_flag(const char *name, size_t n)
{
	for (int i = 0; i < N_FLAGS; i++)
		if (flags[i].kind != TITLE && same_flag(name, n, flags[i].name))
			return &flags[i];
	return NULL;
}

static bool one_of(const char *s, const char *list)
{
	size_t n = strlen(s);

	for (const char *p = list; *p; p += strcspn(p, " ")) {
		p += strspn(p, " ");
		if (!strncmp(p, s, n) && (p[n] == ' ' || !p[n]))
			return true;
	}
	return false;
}

static int refuse_flag(char *err, size_t errlen, const char *fmt, const char *a, const char *b)
{
	return refuse(-EINVAL, err, errlen, fmt, a, b);
}

static bool is_object(const char *s)
{
	json_t *j = json_loads(s, 0, NULL);
	bool yes = json_is_object(j);

	json_decref(j);
	return yes;
}

/* The first word that does not look like NAME=VALUE, or NULL. */
static const char *no_pair(const struct bench_words *w)
{
	for (int i = 0; i < w->n; i++)
		if (!strchr(w->word[i], '=') || w->word[i][0] == '=')
			return w->word[i];
	return NULL;
}

static int check_ramp(const struct bench_options *o, char *err, size_t errlen)
{
	if (!o->ramp)
		return 0;
	if (!one_of(o->ramp, "linear exponential"))
		return refuse_flag(err, errlen, "--ramp-up-strategy %s%s: linear and exponential are possible",
		                   o->ramp, "");
	if (isfinite(o->rate))
		return refuse_flag(err, errlen, "--ramp-up-strategy %s%s: the rate comes from the ramp; leave out "
		                   "--request-rate", o->ramp, "");
	if (isnan(o->ramp_start) || isnan(o->ramp_end) || o->ramp_start > o->ramp_end || o->ramp_end <= 0)
		return refuse_flag(err, errlen,
		                   "--ramp-up-strategy %s%s needs --ramp-up-start-rps and, not below it, "
		                   "--ramp-up-end-rps", o->ramp, "");
	if (o->ramp_start <= 0)
		return refuse_flag(err, errlen, "--ramp-up-start-rps 0: a ramp begins above 0%s%s", "", "");
	return 0;
}

static int check_structured(const struct bench_options *o, char *err, size_t errlen)
{
	json_error_t e;
	json_t *schema;
	bool object;

	if (!o->schema && !isnan(o->structured))
		return refuse_flag(err, errlen, "--structured-output-ratio needs --structured-output-schema%s%s", "",
		                   "");
	if (!o->schema)
		return 0;
	if (bench_ring(o))
		return refuse_flag(err, errlen, "--structured-output-schema %s%s is for HTTP requests: over the "
		                   "rings the client would have to bound each token", o->schema, "");
	schema = json_load_file(o->schema, 0, &e);
	object = json_is_object(schema);
	json_decref(schema);
	if (!schema && e.line > 0)
		return refuse(-EINVAL, err, errlen, "--structured-output-schema %s: line %d, column %d: %s",
		              o->schema, e.line, e.column, e.text);
	if (!schema)
		return refuse_flag(err, errlen, "--structured-output-schema: %s%s", e.text, "");
	if (!object)
		return refuse_flag(err, errlen, "--structured-output-schema %s%s: not a JSON object", o->schema, "");
	return 0;
}

static int check_together(struct bench_options *o, char *err, size_t errlen)
{
	bool file = one_of(o->dataset, "sharegpt custom timed_trace");
	bool trace = !strcmp(o->dataset, "timed_trace");
	const char *bad;
	char name[16];
	double ms;

	if (!one_of(o->backend, "openai vllm openai-chat"))
		return refuse_flag(err, errlen, "--backend %s%s: openai, vllm and openai-chat are possible",
		                   o->backend, "");
	if (!one_of(o->transport, "http ring"))
		return refuse_flag(err, errlen, "--transport %s%s: http and ring are possible", o->transport, "");
	if (!file && !one_of(o->dataset, "random prefix_repetition"))
		return refuse_flag(err, errlen, "--dataset-name %s%s: random, sharegpt, prefix_repetition, custom "
		                   "and timed_trace are possible", o->dataset, "");
	if (file && !o->dataset_path)
		return refuse_flag(err, errlen, "--dataset-name %s needs --dataset-path%s", o->dataset, "");
	if (!file && o->dataset_path)
		return refuse_flag(err, errlen, "--dataset-path %s: the dataset %s is generated, not read from a "
		                   "file",
		                   o->dataset_path, o->dataset);
	if (bench_ring(o) && bench_chat(o))
		return refuse_flag(err, errlen, "--backend %s: the rings carry token ids, not conversations%s",
		                   o->backend, "");
	if (trace && bench_chat(o))
		return refuse_flag(err, errlen,
		                   "--dataset-name %s sends token ids, so --backend must be openai or vllm, not %s",
		                   o->dataset, o->backend);
	if (!trace && o->self_timed >= 0)
		return refuse_flag(err, errlen, "--self-timed is for --dataset-name timed_trace%s%s", "", "");
	if (bench_chat(o) && o->send_ids)
		return refuse_flag(err, errlen, "--prompt-token-ids needs --backend openai or vllm, not %s%s",
		                   o->backend, "");
	if (o->extra_body && !is_object(o->extra_body))
		return refuse_flag(err, errlen, "--extra-body %s%s: not a JSON object", o->extra_body, "");
	if (o->extra_body && bench_ring(o))
		return refuse_flag(err, errlen, "--extra-body is for HTTP requests%s%s", "", "");
	if (o->template_kwargs && !is_object(o->template_kwargs))
		return refuse_flag(err, errlen, "--chat-template-kwargs %s%s: not a JSON object",
		                   o->template_kwargs, "");
	if ((bad = no_pair(&o->header)))
		return refuse_flag(err, errlen, "--header %s%s: give NAME=VALUE", bad, "");
	if ((bad = no_pair(&o->metadata)))
		return refuse_flag(err, errlen, "--metadata %s%s: give KEY=VALUE", bad, "");
	for (int i = 0; i < o->goodput.n; i++)
		if (bench_slo(o->goodput.word[i], name, sizeof(name), &ms))
			return refuse_flag(err, errlen, "--goodput %s%s: ttft:MS, tpot:MS and e2el:MS are possible, "
			                   "MS not below 0", o->goodput.word[i], "");
	return check_structured(o, err, errlen) ? -EINVAL : check_ramp(o, err, errlen);
}

/* Set the options that follow from other flags. */
static void settle_options(struct bench_options *o)
{
	bool trace = !strcmp(o->dataset, "timed_trace");

	if (!o->endpoint)
		o->endpoint = bench_chat(o) ? "/v1/chat/completions" : "/v1/completions";
	if (trace || !strcmp(o->dataset, "random"))
		o->ignore_eos = true;
	if (o->self_timed < 0)
		o->self_timed = trace;
	if (isnan(o->structured))
		o->structured = o->schema ? 1 : 0;
}

bool bench_chat(const struct bench_options *o)
{
	return !strcmp(o->backend, "openai-chat");
}

bool bench_ring(const struct bench_options *o)
{
	return !strcmp(o->transport, "ring");
}

/* Of the first n requests these are the share, rounded up, for every n.  As doubles, 0.07 * 100 is a little
 * more than 7: a millionth is taken off first. */
bool bench_structured(const struct bench_options *o, size_t i)
{
	return ceil((double)(i + 1) * o->structured - 1e-6) > ceil((double)i * o->structured - 1e-6);
}

int bench_options(struct bench_options *o, int argc, char **argv, char *err, size_t errlen)
{
	*o = (struct bench_options){
		.backend = "openai", .transport = "http", .host = "127.0.0.1", .port = 8000,
		.dataset = "random", .n_prompts = 1000, .random_range = "0.0",
		.random_input = 1024, .random_output = 128, .custom_output = 256,
		.prefix_len = 256, .suffix_len = 256, .n_prefixes = 10, .prefix_output = 128,
		.trace_chunk = 16, .trace_seconds = 1, .trace_time = "timestamp", .trace_input = "input_length",
		.trace_output = "output_length", .trace_hashes = "hash_ids",
		.temperature = NAN, .top_p = NAN, .min_p = NAN, .frequency = NAN, .presence = NAN,
		.repetition = NAN, .top_k = -1, .logprobs = -1, .structured = NAN,
		.rate = INFINITY, .burstiness = 1, .ramp_start = NAN, .ramp_end = NAN, .self_timed = -1,
		.metrics = "ttft,tpot,itl", .percentiles = "99", .steady = 0.95,
	};
	for (int i = 1; i < argc; i++) {
		const char *word = argv[i], *equals = strchr(word, '=');
		size_t n = equals ? (size_t)(equals - word) : strlen(word);
		const struct flag *f = n > 2 && !strncmp(word, "--", 2) ? find_flag(word + 2, n - 2) : NULL;
		int rc;

		if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
			help();
			return 1;
		}
		if (same_flag(word, n, "--no-self-timed") || (f && f->kind == SELF)) {
			o->self_timed = f != NULL;
			continue;
		}
		rc = f ? take_flag(o, f, equals ? equals + 1 : NULL, argc, argv, &i, err, errlen) :
		     unknown(word, !strcmp(argv[0], "tune") ? "tune" : "bench serve", err, errlen);
		if (rc)
			return rc;
	}
	int rc = check_together(o, err, errlen);

	if (!rc)
		settle_options(o);
	return rc;
}
