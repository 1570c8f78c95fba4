/* tune_steps.c - the checklist, step by step: measure, read the limits, then try one change after the other.
 * A change is kept only if its gain exceeds the noise.  The proof is the last step. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shmring/slipring.h"
#include "tune.h"
#include "tune_search.h"
#include "core/instance/refuse.h"

#define BASE_RUNS  2             /* runs of the baseline before the search; the proof adds more */
#define BASE_MOST  5             /* the same if they differ much and are short */
#define BASE_WIDE  1.25
#define AGAIN      2             /* times that a doubtful pair is measured again */
#define AGAIN_MOST 8             /* the same if all of them take less than AGAIN_TIME */
#define AGAIN_TIME 0.01
#define GIVE_UP    1.25          /* times the best run's time: a longer run is surely worse */
#define DEVIATIONS 3             /* standard deviations that it must be longer, too */
#define MATTERS    0.05          /* smallest share of the time that matters */
#define TOKENS_LEAST 32

const char *const tune_verdict[] = { "same", "better", "worse" };

/* ---- words ------------------------------------------------------------------------------------- */

static const char *unit(const struct tune *t)
{
	return t->o.goal == GOAL_GOODPUT ? "good req/s" : "tok/s";
}

void tune_tell(const struct tune *t, const struct tune_trial *tr, char *out, size_t n)
{
	char value[32];
	size_t at = 0;

	*out = 0;
	for (int k = 0; k < N_KNOBS; k++) {
		if (tr->s.knob[k] == t->start.knob[k])
			continue;
		knob_format((enum knob)k, tr->s.knob[k], value, sizeof(value));
		at += (size_t)snprintf(out + at, at < n ? n - at : 0, "%s%s %s", at ? ", " : "",
		                       knob_info((enum knob)k)->name, value);
	}
	if (*tr->flags)
		at += (size_t)snprintf(out + at, at < n ? n - at : 0, "%s%s", at ? ", " : "", tr->flags);
	if (!at)
		snprintf(out, n, "as it is");
}

static void tune_limits(const struct tune_trial *tr, char *out, size_t n)
{
	size_t at = 0;

	*out = 0;
	for (int i = 0; i < N_WHY; i++)
		if (i != WHY_EMPTY && tr->why[i] >= MATTERS)
			at += (size_t)snprintf(out + at, at < n ? n - at : 0, "%s%s %.0f %%", at ? ", " : "",
			                       sched_why_name(i), tr->why[i] * 100);
	if (!at)
		snprintf(out, n, "nothing");
}

static void print_change(const struct change *c)
{
	if (isnan(c->low))
		printf("%+7.1f %%", (c->ratio - 1) * 100);
	else
		printf("%+7.1f %% (%+.1f to %+.1f)", (c->ratio - 1) * 100, (c->low - 1) * 100, (c->high - 1) * 100);
}

static void print_trial(const struct tune *t, const struct tune_trial *a, const struct tune_trial *b,
                        const char *verdict)
{
	char what[300], before[200], after[200];
	struct change c = tune_change(t, a, b);

	tune_tell(t, b, what, sizeof(what));
	tune_limits(a, before, sizeof(before));
	tune_limits(b, after, sizeof(after));
	printf("   %-58s ", what);
	if (b->cut && !b->n) {
		printf("stopped after %.1f s: worse\n", b->seconds);
	} else {
		print_change(&c);
		printf("  %s; %s%s%s\n", verdict, before, strcmp(before, after) ? " -> " : "",
		       strcmp(before, after) ? after : "");
		if (b->same < b->compared)
			printf("   NOTE: %zu of %zu answers differ from the baseline's: on this device they depend on "
			       "other requests in the batch\n", b->compared - b->same, b->compared);
	}
	fflush(stdout);
}

static void step(int n, const char *title)
{
	printf("\n%d  %s\n", n, title);
	fflush(stdout);
}

/* ---- is it better? ----------------------------------------------------------------------------- */

/* The longest time in seconds that a run may take and still be better than a. */
static double patience(const struct tune *t, const struct tune_trial *a)
{
	int freedom;
	double noise = tune_noise(t, &freedom);

	return a->seconds * fmax(GIVE_UP, freedom ? exp(DEVIATIONS * noise) : 1) + 0.2;
}

/* Measure b against a, and both again in turns while the result is unclear.  1: better; 0: not; -errno. */
static int contest(struct tune *t, struct tune_trial *a, struct tune_trial *b, char *err, size_t errlen)
{
	const char *verdict = "";
	struct change c;
	int rc = 0, won = 0, again = AGAIN;

	if (!b->n && !b->cut)
		rc = tune_send(t, b, patience(t, a), err, errlen);
	for (int tries = 0; rc == 0 && b->n; tries++) {
		c = tune_change(t, a, b);
		verdict = "not better";
		if (c.ratio < 1 + t->o.threshold)
			break;
		if (c.low > 1) {
			verdict = "better";
			won = 1;
			break;
		}
		verdict = "within noise: refused";
		if ((a->seconds + b->seconds) * AGAIN_MOST < t->o.budget * AGAIN_TIME)
			again = AGAIN_MOST;
		if (tries == again)
			break;
		rc = tune_send(t, a, 0, err, errlen);
		if (!rc)
			rc = tune_send(t, b, patience(t, a), err, errlen);
	}
	if (rc < 0)
		return rc;
	print_trial(t, a, b, verdict);
	return won;
}

int tune_challenge(struct tune *t, const struct tune_setting *s, char *err, size_t errlen)
{
	struct tune_trial *b = tune_trial(t, s);
	int won;

	if (!b || b == &t->trial[t->best])
		return 0;
	won = contest(t, &t->trial[t->best], b, err, errlen);
	if (won > 0)
		t->best = (int)(b - t->trial);
	return won;
}

/* ---- 1, 2: as it is ---------------------------------------------------------------------------- */

/* Could any setting keep these bounds?  A request alone is served as fast as possible. */
static int check_slo(struct tune *t, char *err, size_t errlen)
{
	double alone[3], ms;
	int rc = tune_alone(t, &alone[0], &alone[1], &alone[2], err, errlen); /* also warms up */
	char name[16];

	for (int i = 0; !rc && i < t->o.traffic.goodput.n; i++) {
		const char *word = t->o.traffic.goodput.word[i];

		if (bench_slo(word, name, sizeof(name), &ms))
			return -EINVAL;
		double v = alone[!strcmp(name, "ttft") ? 0 : !strcmp(name, "tpot") ? 1 : 2] * 1000;

		if (v <= ms)
			continue;
		snprintf(err, errlen, "--slo %s is impossible here: a request alone on the server needs %.1f ms",
		         word, v);
		rc = -ERANGE;
	}
	return rc;
}

/* Half the confidence interval of its mean, as a logarithm; INFINITY: not known yet. */
static double baseline_half(const struct tune *t, const struct tune_trial *tr)
{
	int freedom;
	double noise = tune_noise(t, &freedom);

	return freedom ? student_quantile(0.975, freedom) * noise / sqrt(tr->n) : INFINITY;
}

static int baseline(struct tune *t, char *err, size_t errlen)
{
	struct tune_trial *tr = tune_trial(t, &t->start);
	int rc = check_slo(t, err, errlen), had = tr->n;
	double half = baseline_half(t, tr);

	t->base = t->best = (int)(tr - t->trial);
	step(1, "Baseline");
	while (!rc && (tr->n < BASE_RUNS || (tr->n < BASE_MOST && half > log(BASE_WIDE) &&
	                                     tr->seconds * BASE_MOST < t->o.budget * AGAIN_TIME * 2))) {
		rc = tune_send(t, tr, t->o.budget - t->spent, err, errlen);
		if (rc == 1) {
			snprintf(err, errlen, "--budget %.0f s ended before the traffic was sent once: allow more, or "
			         "send less (--num-prompts)", t->o.budget);
			rc = -ETIME;
		}
		if (!rc)
			printf("   run %d: %.2f %s, %.1f s\n", tr->n, tr->score[tr->n - 1], unit(t), tr->seconds);
		fflush(stdout);
		half = baseline_half(t, tr);
	}
	if (rc)
		return rc;
	printf("   %.2f %s, +- %.1f %%%s\n", tune_mean(tr), unit(t), (exp(half) - 1) * 100,
	       had ? " (with runs of before the interruption)" : "");
	return 0;
}

static void limits(const struct tune *t)
{
	const struct tune_trial *b = &t->trial[t->base];
	char words[200];

	step(2, "What held it back");
	tune_limits(b, words, sizeof(words));
	printf("   %s%s", words, strcmp(words, "nothing") ? " of the time" : "");
	if (b->why[WHY_EMPTY] >= MATTERS)
		printf("; empty %.0f %%: %s", b->why[WHY_EMPTY] * 100,
		       figures_empty(words, sizeof(words), b->empty, 1));
	printf("\n");
	if (t->o.goal == GOAL_THROUGHPUT && b->why[WHY_EMPTY] > 0.9)
		printf("   The server keeps up with this traffic, so the traffic sets the throughput: %s, or tune "
		       "for latency (--goal goodput --slo).\n",
		       isinf(t->o.traffic.rate) && t->o.traffic.self_timed <= 0 ?
		       "send more at once (--num-prompts, --max-concurrency)" :
		       "send it faster (--request-rate inf)");
	fflush(stdout);
}

/* ---- 3: memory and length ---------------------------------------------------------------------- */

static double kv_share(const struct tune_trial *tr)
{
	return tr->why[WHY_KV] + tr->why[WHY_ORDER];
}

/* The context length that the traffic needs, plus a quarter, in multiples of 256. */
static int64_t length_for(const struct tune *t)
{
	return ((int64_t)t->longest + t->longest / 4 + 255) / 256 * 256;
}

static void check_memory(const struct tune *t)
{
	const struct stats_page *p = t->in.page;
	double tokens = (double)(p->n_blocks * p->block_tokens);
	double mean = (double)(t->n_prompt + t->n_output) / (double)t->load.n;

	step(3, "Memory and length");
	printf("   the KV cache holds %.0f tokens: %.0f sequences as long as this traffic's mean (%.0f), %.0f as "
	       "long as its longest (%u)\n", tokens, tokens / mean, mean, tokens / t->longest, t->longest);
	if (length_for(t) < (int64_t)p->max_model_len)
		printf("   max-model-len is %llu; this traffic needs %lld with a quarter to spare: it only bounds "
		       "one request and gains nothing by itself, so it stays\n",
		       (unsigned long long)p->max_model_len, (long long)length_for(t));
	fflush(stdout);
}

/* Host memory in bytes that may still be taken.  The device's memory is checked by its own plan. */
static uint64_t spare(void)
{
	FILE *f = fopen("/proc/meminfo", "r");
	unsigned long long kib = 0;
	char line[200];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib * 1024 / 5 * 4;
}

/* Try more KV memory if blocks were short.  This needs restarts, so it needs tune's own daemon. */
static int more_memory(struct tune *t, char *err, size_t errlen)
{
	const struct tune_trial *b = &t->trial[t->best];
	struct tune_setting s = b->s;
	uint64_t bytes = t->in.page->kv_bytes;
	char flags[200], was[200], lost[120];
	bool any;
	int rc = 1;

	figures_lost(lost, sizeof(lost), &b->count, &any);
	if (kv_share(b) < MATTERS && !any)
		return 0;
	step(3, "Memory, again: KV blocks are short now");
	if (!t->server.n) {
		printf("   blocks were short %.0f %% of the time, %s: restart it with more than "
		       "--kv-cache-memory-bytes %llu; a running daemon cannot take more\n", kv_share(b) * 100,
		       lost, (unsigned long long)bytes);
		return 0;
	}
	while (rc > 0 && kv_share(&t->trial[t->best]) >= MATTERS) {
		if (bytes * 2 - t->in.page->kv_bytes > spare() && strcmp(t->in.page->device, "cuda")) {
			printf("   this machine has no memory for more\n");
			return 0;
		}
		snprintf(was, sizeof(was), "%s", t->server.flags);
		snprintf(flags, sizeof(flags), "--kv-cache-memory-bytes %llu", (unsigned long long)(bytes *= 2));
		rc = tune_server_again(t, flags, err, errlen);
		if (rc) {
			printf("   %s: %s\n", flags, err);
			rc = 0;
		} else {
			rc = tune_challenge(t, &s, err, errlen);
		}
		if (rc == 0)
			return tune_server_again(t, was, err, errlen);
	}
	return rc < 0 ? rc : 0;
}

/* ---- 4: prefix cache --------------------------------------------------------------------------- */

static int prefix_cache(struct tune *t, bool again, char *err, size_t errlen)
{
	struct tune_setting s = t->trial[t->best].s;
	const struct tune_trial *was = &t->trial[t->best], *other;
	int won;

	s.knob[KNOB_PREFIX_CACHING] = !s.knob[KNOB_PREFIX_CACHING];
	other = tune_trial(t, &s);
	if (!other || (again && (other->n || other->cut)))
		return 0;
	if (!again)
		step(4, "Prefix cache, the other way");
	won = tune_challenge(t, &s, err, errlen);
	if (won >= 0 && !again) {
		const struct tune_trial *on = s.knob[KNOB_PREFIX_CACHING] ? other : was;

		if (!isnan(on->hit_rate))
			printf("   with it, %.0f %% of the prompts' tokens were found in the cache\n",
			       on->hit_rate * 100);
	}
	return won < 0 ? won : 0;
}

/* ---- 5: batching ------------------------------------------------------------------------------- */

struct batching {
	struct tune *t;
	struct search s;
	enum knob knob[SEARCH_AXES];
	char *err;
	size_t errlen;
};

/* The time in us that step-target-ms 0 stands for. */
static int64_t by_device_us(const struct tune *t)
{
	return strcmp(t->in.page->device, "cuda") ? 50000 : 5000;
}

static int try_point(void *ctx, const int *at)
{
	struct batching *b = ctx;
	struct tune_setting s = b->t->trial[b->t->best].s;

	for (int k = 0; k < b->s.n; k++) {
		int64_t v = b->s.axis[k].value[at[k]];

		s.knob[b->knob[k]] = b->knob[k] == KNOB_STEP_TARGET && v == by_device_us(b->t) &&
		                     !b->t->start.knob[KNOB_STEP_TARGET] ? 0 : v;
	}
	return tune_challenge(b->t, &s, b->err, b->errlen);
}

/* Add an axis from `least` to the knob's ceiling, or to `matters` if that is less. */
static void axis(struct batching *b, enum knob k, int64_t least, int64_t matters)
{
	struct search *s = &b->s;
	int64_t now = b->t->trial[b->t->best].s.knob[k], most = b->t->in.page->knob_ceiling[k];

	if (k == KNOB_STEP_TARGET && !now)
		now = by_device_us(b->t);
	most = most > matters ? matters : most;
	most = most < now ? now : most;
	least = least > now ? now : least;
	b->knob[s->n] = k;
	s->at[s->n] = search_ladder(&s->axis[s->n], least, most, now);
	s->n++;
}

static int64_t up_to_rung(int64_t v)
{
	int64_t r = 1;

	while (r < v)
		r *= 2;
	return r;
}

/* Choose the axes worth climbing.  The axis whose limit was met most often comes first. */
static void axes(struct batching *b)
{
	const struct tune_trial *best = &b->t->trial[b->t->best];
	int64_t n = up_to_rung((int64_t)b->t->load.n), tokens = up_to_rung((int64_t)b->t->n_prompt + n);

	b->s.n = 0;
	axis(b, KNOB_MAX_NUM_SEQS, 1, n);
	axis(b, KNOB_MAX_NUM_BATCHED_TOKENS, TOKENS_LEAST, tokens);
	b->s.axis[1].above = 0;
	if (best->why[WHY_STEP_TIME] >= MATTERS)
		axis(b, KNOB_STEP_TARGET, 12500, 800000);
	if (best->why[WHY_TOKENS] > best->why[WHY_SEQS]) {
		struct search_axis a = b->s.axis[0];
		int at = b->s.at[0];

		b->s.axis[0] = b->s.axis[1];
		b->s.at[0] = b->s.at[1];
		b->s.axis[1] = a;
		b->s.at[1] = at;
		b->s.axis[0].above = 1;
		b->knob[0] = KNOB_MAX_NUM_BATCHED_TOKENS;
		b->knob[1] = KNOB_MAX_NUM_SEQS;
	}
}

/* Report knobs whose best value is at the allocated ceiling and might be higher. */
static void ceiling(const struct tune *t)
{
	static const struct { enum knob k; int why; } knobs[] = {
		{ KNOB_MAX_NUM_SEQS, WHY_SEQS }, { KNOB_MAX_NUM_BATCHED_TOKENS, WHY_TOKENS } };
	const struct tune_trial *b = &t->trial[t->best];

	for (int i = 0; i < 2; i++) {
		enum knob k = knobs[i].k;

		if (b->s.knob[k] >= t->in.page->knob_ceiling[k] && b->why[knobs[i].why] >= MATTERS)
			printf("   STOPPED BY THE CEILING: %s cannot go above %lld while the daemon runs; start it with "
			       "--knob-ceiling %s=%lld to look further\n", knob_info(k)->name,
			       (long long)t->in.page->knob_ceiling[k], knob_info(k)->name,
			       (long long)t->in.page->knob_ceiling[k] * 4);
	}
}

static int batching(struct tune *t, const char *title, char *err, size_t errlen)
{
	struct batching b = { .t = t, .err = err, .errlen = errlen };
	int rc;

	step(5, title);
	axes(&b);
	rc = search_climb(&b.s, try_point, &b);
	if (!rc)
		ceiling(t);
	return rc;
}

/* ---- 6, 7 -------------------------------------------------------------------------------------- */

/* Print how far another model's answers agree with these: equal answers, and tokens until they differ. */
static void drift(const struct bench_run *a, const struct bench_run *b)
{
	size_t same = 0, n = 0;
	double until = 0, of = 0;

	for (size_t i = 0; i < a->n_sent && i < b->n_sent; i++) {
		const struct bench_answer *x = &a->answer[i], *y = &b->answer[i];
		size_t k = 0, most = x->n_ids < y->n_ids ? x->n_ids : y->n_ids;

		if (x->state != BENCH_OK || y->state != BENCH_OK)
			continue;
		while (k < most && x->ids[k] == y->ids[k])
			k++;
		n++;
		same += k == x->n_ids && k == y->n_ids;
		until += (double)k;
		of += (double)x->n_ids;
	}
	printf("   drift: %zu of %zu greedy answers are the same to the end; %.0f %% of all tokens come before "
	       "the first difference\n", same, n, of > 0 ? until / of * 100 : 0);
}

/* Do both models have the same vocabulary?  0, -errno. */
static int same_vocabulary(const struct tune *t, char *err, size_t errlen)
{
	struct sr_conn *c;
	const struct sr_options o = { .size = sizeof(o), .name = "slipring tune" };
	int rc = instance_connect(&c, t->socket, &o, err, errlen);

	if (rc < 0)
		return rc;
	rc = memcmp(sr_model(c)->vocab_hash, sr_text_info(t->text)->vocab_hash, 32) ? -EINVAL : 0;
	sr_close(c);
	if (rc)
		snprintf(err, errlen, "--quantized %s: its vocabulary is another", t->o.sibling);
	return rc;
}

static int measure_sibling(struct tune *t, char *err, size_t errlen)
{
	struct bench_run a = { 0 }, b = { 0 };
	struct tune_trial *best = &t->trial[t->best], *tr;
	char flags[200];
	int rc = tune_ids(t, 64, &a, err, errlen);

	snprintf(flags, sizeof(flags), "%s", t->server.flags);
	t->server.model = t->o.sibling;
	if (!rc)
		rc = tune_server_again(t, flags, err, errlen);
	if (!rc)
		rc = same_vocabulary(t, err, errlen);
	if (!rc)
		rc = tune_ids(t, 64, &b, err, errlen);
	if (!rc) {
		/* Its runs do not belong to the setting: it gets its own trial, which cannot be the best. */
		snprintf(t->server.flags, sizeof(t->server.flags), "--model %.180s", t->o.sibling);
		tr = tune_trial(t, &best->s);
		rc = tr ? tune_send(t, tr, best->seconds * 2, err, errlen) : -ENOMEM;
		if (rc == 0) {
			print_trial(t, best, tr, "you decide");
			drift(&a, &b);
			printf("   Use it with --model %s if such answers are good enough.\n", t->o.sibling);
		} else if (rc == 1) {
			printf("   stopped after %.1f s: slower\n", best->seconds * 2);
			rc = 0;
		}
	}
	bench_run_free(&a);
	bench_run_free(&b);
	t->server.model = NULL;
	if (rc != -EINTR) {
		int r = tune_server_again(t, flags, err, errlen);

		rc = rc ? rc : r;
	}
	return rc;
}

static int quantized(struct tune *t, char *err, size_t errlen)
{
	step(6, "A quantized model instead");
	if (!t->o.sibling) {
		printf("   none was given: --quantized MODEL measures one, and how far its answers differ (slipring "
		       "quantize makes one)\n");
		return 0;
	}
	if (!t->server.n) {
		printf("   a running daemon keeps its model; let tune start one of its own (flags behind --)\n");
		return 0;
	}
	return measure_sibling(t, err, errlen);
}

/* ---- 8: proof ---------------------------------------------------------------------------------- */

/* Restart tune's own daemon with a trial's flags. */
static int as_trial(struct tune *t, const struct tune_trial *tr, char *err, size_t errlen)
{
	return strcmp(t->server.flags, tr->flags) ? tune_server_again(t, tr->flags, err, errlen) : 0;
}

/* Print the effect on latencies.  They were not the goal, but users notice them. */
static void print_price(const struct tune_trial *a, const struct tune_trial *b)
{
	static const struct { const char *key, *name; } times[] = {
		{ "mean_ttft_ms", "TTFT" }, { "mean_tpot_ms", "TPOT" }, { "p99_itl_ms", "P99 ITL" } };

	for (int i = 0; i < 3; i++) {
		const json_t *x = json_object_get(a->result[a->n - 1], times[i].key),
		             *y = json_object_get(b->result[b->n - 1], times[i].key);

		printf("%s%s %.2f -> %.2f ms", i ? ", " : "   ", times[i].name, json_number_value(x),
		       json_number_value(y));
	}
	printf(" (last pair)\n");
}

static int one_pair(struct tune *t, struct tune_trial *x, struct tune_trial *y, char *err, size_t errlen)
{
	int rc = as_trial(t, x, err, errlen);

	if (!rc)
		rc = tune_send(t, x, 0, err, errlen);
	if (!rc)
		rc = as_trial(t, y, err, errlen);
	return rc ? rc : tune_send(t, y, 0, err, errlen);
}

int tune_prove(struct tune *t, int a, int b, int *verdict, char *err, size_t errlen)
{
	struct tune_trial *x = &t->trial[a], *y = &t->trial[b];
	struct change c = { NAN, NAN, NAN };
	int rc = 0, most = t->o.pairs;

	t->best = b;
	for (int n = 0; n < most;) {
		rc = one_pair(t, x, y, err, errlen);
		if (rc)
			return rc;
		printf("   %d: %.2f, then %.2f %s\n", ++n, x->score[x->n - 1], y->score[y->n - 1], unit(t));
		fflush(stdout);
		c = tune_paired(x, y, n);
		if (n == t->o.pairs && c.ratio >= 1 + t->o.threshold && !(c.low > 1)) {
			printf("   Not decided yet: the same number of runs again.\n");
			most = 2 * t->o.pairs;
		}
	}
	*verdict = c.low > 1 && c.ratio >= 1 + t->o.threshold ? VERDICT_BETTER :
	           c.high < 1 && c.ratio <= 1 / (1 + t->o.threshold) ? VERDICT_WORSE : VERDICT_SAME;
	printf("   ");
	print_change(&c);
	printf(": %s\n", *verdict == VERDICT_SAME ? "the same, as far as the runs show" : tune_verdict[*verdict]);
	print_price(x, y);
	if (y->compared)
		printf("   answers at temperature 0: %zu of %zu equal to the token\n", y->same, y->compared);
	return 0;
}

/* ---- all --------------------------------------------------------------------------------------- */

/* The steps after the baseline.  When the budget is over, the best so far goes to the proof. */
static int search(struct tune *t, char *err, size_t errlen)
{
	int rc, before;

	limits(t);
	check_memory(t);
	rc = prefix_cache(t, false, err, errlen);
	if (!rc)
		rc = batching(t, "Batching: how many sequences, how many tokens a step", err, errlen);
	if (!rc)
		rc = prefix_cache(t, true, err, errlen);
	before = t->best;
	if (!rc)
		rc = more_memory(t, err, errlen);
	if (!rc && t->best != before)
		rc = batching(t, "Batching, again: with more memory", err, errlen);
	if (!rc)
		rc = quantized(t, err, errlen);
	if (!rc)
		step(7, "Several devices");
	before = rc ? rc : tune_devices(t, err, errlen);
	return before > 0 ? batching(t, "Batching, again: with these devices", err, errlen) : before;
}

int tune_walk(struct tune *t, char *err, size_t errlen)
{
	char what[300];
	int rc = baseline(t, err, errlen), verdict = VERDICT_SAME, n = 0;

	if (!rc)
		rc = search(t, err, errlen);
	if (rc == -ETIME && t->trial[t->base].n) {
		printf("   the budget is used up: the best setting so far is proved\n");
		rc = 0;
	}
	if (rc)
		return rc;
	for (int i = 0; i < t->n_trials; i++)
		n += t->trial[i].n > 0 || t->trial[i].cut;
	tune_tell(t, &t->trial[t->best], what, sizeof(what));
	step(8, "Proof");
	printf("   %d settings measured in %.0f s\n", n, t->spent + bench_now() - t->began);
	if (t->best == t->base) {
		printf("   No setting is better by %.0f %% beyond noise: nothing is changed.\n",
		       t->o.threshold * 100);
	} else {
		t->o.budget = INFINITY;           /* its time was reserved */
		printf("   as it was, then %s; in turns\n", what);
		rc = tune_prove(t, t->base, t->best, &verdict, err, errlen);
		if (!rc && verdict != VERDICT_BETTER)
			printf("   What looked better was not confirmed: nothing is changed.\n");
	}
	if (!rc)
		rc = tune_write(t, verdict, err, errlen);
	if (verdict != VERDICT_BETTER)
		t->best = t->base;
	return rc;
}

static void print_axis(const struct batching *b, int k)
{
	const struct search_axis *a = &b->s.axis[k];
	char v[32];

	printf("     %s:", knob_info(b->knob[k])->name);
	for (int i = 0; i < a->n; i++) {
		knob_format(b->knob[k], a->value[i], v, sizeof(v));
		printf(i == b->s.at[k] ? " [%s]" : " %s", v);
	}
	printf("\n");
}

void tune_plan(const struct tune *t)
{
	struct tune all = *t;
	struct batching b = { .t = &all };

	all.trial[0] = (struct tune_trial){ .s = t->start };
	all.base = all.best = 0;
	axes(&b);
	printf("\nIt would\n   1  send the traffic %d times as it is\n   2  look at what held it back\n"
	       "   3  compare memory and length with what this traffic needs\n"
	       "   4  turn the prefix cache %s and look whether that is better\n"
	       "   5  climb, a few points of\n", BASE_RUNS, t->start.knob[KNOB_PREFIX_CACHING] ? "off" : "on");
	for (int k = 0; k < b.s.n; k++)
		print_axis(&b, k);
	printf("   6  %s\n", t->o.sibling ?
	       "measure the quantized model, and how its answers differ" : "skip quantized models: none was "
	       "given");
	tune_devices_plan(t);
	printf("   8  prove what is best by %d runs of each, in turns\n"
	       "and put every knob back.  Nothing was sent, turned or written.\n", t->o.pairs);
}
