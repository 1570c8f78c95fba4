/* tune_options.c - the command line of `slipring tune`.  Other flags describe the traffic and are those of
 * `slipring bench serve`.  Words after -- are flags of tune's own daemon. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"
#include "core/instance/refuse.h"

static void help(void)
{
	printf("slipring tune [FLAGS] [TRAFFIC]               the daemon that runs\n"
	       "slipring tune [FLAGS] [TRAFFIC] -- MODEL ...  one of its own, with flags of slipring serve\n"
	       "\n"
	       "Walks through the checklist by measuring: baseline, limits, memory and length, prefix cache,\n"
	       "batching, a quantized model, several devices, and a proof of the best settings against the old\n"
	       "ones, in turns.\n"
	       "All runs send the same requests at the same moments over the rings, greedily.  A change counts\n"
	       "if it is beyond noise.  Knobs are turned while the daemon runs, and put back at the end,\n"
	       "however it ends.  A daemon is restarted only if tune started it.  After an interruption\n"
	       "it continues where it was.\n"
	       "\n"
	       "TRAFFIC is described as for slipring bench serve (slipring bench serve --help): best a trace of\n"
	       "your own (slipring record), or --dataset-name sharegpt, custom, prefix_repetition, random.\n"
	       "\n"
	       "  slipring record --for 10m today.jsonl\n"
	       "  slipring tune --dataset-name timed_trace --dataset-path today.jsonl\n"
	       "\n"
	       "  --goal GOAL        throughput (default): tokens/s, all requests sent at once unless a rate is\n"
	       "                     given; goodput: requests/s that keep --slo, by the trace's clock or a rate\n"
	       "  --slo BOUND ...    ttft:MS tpot:MS e2el:MS, for --goal goodput\n"
	       "  --budget TIME      30m: then the best settings so far are proved; also 90s, 2h\n"
	       "  --threshold P      2: changes below P per cent do not count\n"
	       "  --pairs N          3: runs of each in the proof, 2 to 8\n"
	       "  --quantized MODEL  a smaller model of the same vocabulary, measured too, and how far its\n"
	       "                     answers differ (needs -- )\n"
	       "  --devices N        weigh N devices: as replicas, as ranks of one model, or both (needs -- ).\n"
	       "                     Default: the GPUs that are visible, or the nodes of the CPU\n"
	       "  --out DIR          slipring-tune: where results, YAML and the systemd drop-in go\n"
	       "  --apply            keep the best settings in force, if they are proved\n"
	       "  --prove DIR        repeat the proof in DIR: is the verdict the same?\n"
	       "  --dry-run          show what would be done\n"
	       "  --fresh            forget what an interrupted tune has measured\n"
	       "  --instance NAME    which daemon (default: \"default\")\n");
}

static double seconds(const char *s)
{
	double v = figures_time(s);

	return v >= 1 && v < 1e7 ? v : NAN;
}

static int refuse_value(char *err, size_t errlen, const char *flag, const char *value, const char *right)
{
	return refuse(-EINVAL, err, errlen, "--%s %s: %s", flag, value, right);
}

static int pass(struct tune_options *o, const char *word, char *err, size_t errlen)
{
	if (o->n_bench == TUNE_WORDS)
		return refuse(-EINVAL, err, errlen, "the traffic has more than %d words", TUNE_WORDS);
	o->bench[o->n_bench++] = (char *)(uintptr_t)word;
	return 0;
}

static bool passed(const struct tune_options *o, const char *flag)
{
	size_t n = strlen(flag);

	for (int i = 0; i < o->n_bench; i++)
		if (!strncmp(o->bench[i], flag, n) && (!o->bench[i][n] || o->bench[i][n] == '='))
			return true;
	return false;
}

/* Take a flag of tune with a value.  1: taken; 0: not a flag of tune; -EINVAL. */
static int valued(struct tune_options *o, const char *name, const char *value, char *err, size_t errlen)
{
	const char **text = !strcmp(name, "instance") ? &o->instance : !strcmp(name, "out") ? &o->out :
	                    !strcmp(name, "prove") ? &o->prove : !strcmp(name, "quantized") ? &o->sibling : NULL;
	char *end;

	if (text)
		*text = value;
	else if (!strcmp(name, "goal")) {
		if (strcmp(value, "throughput") && strcmp(value, "goodput"))
			return refuse_value(err, errlen, name, value, "throughput and goodput are possible");
		o->goal = !strcmp(value, "goodput") ? GOAL_GOODPUT : GOAL_THROUGHPUT;
	} else if (!strcmp(name, "budget")) {
		o->budget = seconds(value);
		if (isnan(o->budget))
			return refuse_value(err, errlen, name, value, "not a time such as 90s, 30m or 2h");
	} else if (!strcmp(name, "threshold")) {
		o->threshold = strtod(value, &end) / 100;
		if (end == value || *end || !(o->threshold >= 0.001 && o->threshold <= 0.5))
			return refuse_value(err, errlen, name, value, "not a number of per cent from 0.1 to 50");
	} else if (!strcmp(name, "pairs")) {
		o->pairs = (int)strtol(value, &end, 10);
		if (end == value || *end || o->pairs < 2 || o->pairs > 8)
			return refuse_value(err, errlen, name, value, "not a number from 2 to 8");
	} else if (!strcmp(name, "devices")) {
		o->devices = (int)strtol(value, &end, 10);
		if (end == value || *end || o->devices < 1 || o->devices > 64)
			return refuse_value(err, errlen, name, value, "not a number from 1 to 64");
	} else {
		return 0;
	}
	return 1;
}

static int tune_word(struct tune_options *o, int argc, char **argv, char *err, size_t errlen)
{
	static const char *const ours[] = { "instance", "out", "prove", "quantized", "goal", "budget",
	                                    "threshold", "pairs", "devices" };
	const size_t n_ours = sizeof(ours) / sizeof(ours[0]);
	int rc = 0, slo = 0;

	for (int i = 1; !rc && i < argc; i++) {
		const char *w = argv[i], *equals = strchr(w, '=');
		size_t n = equals ? (size_t)(equals - w) : strlen(w), k = 0;

		slo = slo && strncmp(w, "--", 2);     /* words after --slo, up to the next flag */
		if (slo)
			rc = pass(o, w, err, errlen);
		else if (!strcmp(w, "--"))
			break;
		else if (!strcmp(w, "--dry-run"))
			o->dry_run = true;
		else if (!strcmp(w, "--apply"))
			o->apply = true;
		else if (!strcmp(w, "--fresh"))
			o->fresh = true;
		else if (!strcmp(w, "--slo"))
			slo = 1, rc = pass(o, "--goodput", err, errlen);
		else {
			while (k < n_ours && (strncmp(w, "--", 2) || n - 2 != strlen(ours[k]) ||
			                      strncmp(w + 2, ours[k], n - 2)))
				k++;
			if (k < n_ours && !equals && i + 1 == argc)
				return refuse_value(err, errlen, ours[k], "", "it needs a value");
			if (k < n_ours)
				rc = valued(o, ours[k], equals ? equals + 1 : argv[++i], err, errlen);
			else
				rc = pass(o, w, err, errlen);
			rc = rc < 0 ? rc : 0;
		}
	}
	return rc;
}

/* Set the options of the traffic that follow from the goal. */
static int settle_options(struct tune_options *o, char *err, size_t errlen)
{
	bool timed = passed(o, "--self-timed") || passed(o, "--no-self-timed");
	bool trace = false;
	char **argv = o->bench;
	int rc = 0;

	for (int i = 0; i < o->n_bench; i++)
		trace |= strstr(argv[i], "timed_trace") != NULL;
	if (passed(o, "--transport") || passed(o, "--base-url") || passed(o, "--host") || passed(o, "--port"))
		return refuse(-EINVAL, err, errlen, "tune measures the daemon over the rings: leave out --transport, "
		              "--base-url, --host and --port");
	if (trace && !timed && (o->goal == GOAL_THROUGHPUT || passed(o, "--request-rate")))
		rc = pass(o, "--no-self-timed", err, errlen);
	if (!rc && !passed(o, "--num-prompts") && !passed(o, "--dataset-path")) {
		rc = pass(o, "--num-prompts", err, errlen);
		rc = rc ? rc : pass(o, "200", err, errlen);
	}
	return rc;
}

int tune_traffic(struct tune_options *o, char *err, size_t errlen)
{
	char *argv[TUNE_WORDS + 4] = { (char *)(uintptr_t)"tune", (char *)(uintptr_t)"--transport",
	                               (char *)(uintptr_t)"ring" };
	int rc;

	memcpy(argv + 3, o->bench, (size_t)o->n_bench * sizeof(*argv));
	rc = bench_options(&o->traffic, o->n_bench + 3, argv, err, errlen);
	if (rc)
		return rc;
	o->traffic.quiet = true;
	if (!(o->traffic.temperature > 0) || isnan(o->traffic.temperature))
		o->traffic.temperature = 0;
	if (o->goal == GOAL_GOODPUT && !o->traffic.goodput.n)
		return refuse(-EINVAL, err, errlen, "--goal goodput needs --slo, for example --slo ttft:200 tpot:50");
	if (o->goal == GOAL_THROUGHPUT && o->traffic.goodput.n)
		return refuse(-EINVAL, err, errlen, "--slo is for --goal goodput");
	if (o->goal == GOAL_GOODPUT && isinf(o->traffic.rate) && o->traffic.self_timed <= 0 &&
	    !o->traffic.concurrency)
		return refuse(-EINVAL, err, errlen, "--goal goodput needs to know when requests come: a timed_trace, "
		              "--request-rate or --max-concurrency");
	return 0;
}

int tune_options(struct tune_options *o, int argc, char **argv, char *err, size_t errlen)
{
	int rc, end = 1;

	*o = (struct tune_options){ .out = "slipring-tune", .budget = 1800, .threshold = 0.02, .pairs = 3 };
	while (end < argc && strcmp(argv[end], "--"))
		end++;
	for (int i = 1; i < end; i++)
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
			help();
			return 1;
		}
	if (end < argc) {
		o->server = argv + end + 1;
		o->n_server = argc - end - 1;
		if (o->n_server > TUNE_WORDS - 16)
			return refuse(-EINVAL, err, errlen, "more than %d words after --", TUNE_WORDS - 16);
	}
	rc = tune_word(o, end, argv, err, errlen);
	if (rc || o->prove)
		return rc;
	rc = settle_options(o, err, errlen);
	return rc ? rc : tune_traffic(o, err, errlen);
}
