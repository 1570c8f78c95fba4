/* judge.c - see judge.h. */
#include "judge.h"

#include <math.h>
#include <stdio.h>

#include "core/instance/knobs.h"

#define LITTLE     0.05                   /* a share of the time that does not matter */
#define LACK       0.2                    /* of the time under way without a core: then that is the limit */
#define FIT_LEAST  64                     /* fewest steps for fitting a line */
#define FIT_SPREAD 0.1                    /* least deviation of their rows over the mean */

#define MEMORY "give the KV cache more memory: restart with a larger --kv-cache-memory-bytes or " \
	"--gpu-memory-utilization"

static const struct advice advice[N_WHY] = {
	[WHY_SEQS] = { KNOB_MAX_NUM_SEQS,
		"max-num-seqs sequences were running and others waited",
		"raise max-num-seqs",
		"beyond its ceiling: restart with --knob-ceiling max-num-seqs=N" },
	[WHY_TOKENS] = { KNOB_MAX_NUM_BATCHED_TOKENS,
		"a step was full of max-num-batched-tokens tokens",
		"raise max-num-batched-tokens (beyond its ceiling: restart with --knob-ceiling)",
		"prompts finish sooner, but each step takes longer for sequences that decode" },
	[WHY_KV] = { -1,
		"no KV block was free",
		MEMORY,
		"or a smaller --max-model-len; or lower max-num-seqs, if sequences are preempted" },
	[WHY_RING_OUT] = { -1,
		"a client did not read its tokens, and its ring was full",
		"nothing here: make that client read (slipring top names it)", "" },
	[WHY_ORDER] = { -1,
		"the first request in the queue did not fit the free KV blocks, and none may overtake it",
		MEMORY,
		"shorter prompts, or fewer at a time, help too" },
	[WHY_STEP_TIME] = { KNOB_STEP_TARGET,
		"prompts were cut to keep steps within step-target-ms, to keep sequences that decode going",
		"raise step-target-ms",
		"prompts finish sooner (TTFT), but tokens come less evenly (ITL)" },
	[WHY_PCIE] = { -1,
		"KV blocks were being copied back from host memory",
		"nothing yet: each step copies as much as its budget allows", "" },
	[WHY_GUIDE] = { -1,
		"answers that keep to a grammar waited for the next guide from their client",
		"more processes to compute guides: restart with a larger --api-server-count, on cores of their own",
		"clients that guide answers themselves: do it in more threads" },
};

/* The same for the parts of `empty`. */
static const struct advice empty_advice[N_EMPTY] = {
	[EMPTY_TOKENIZING] = { -1,
		"nothing waited but requests that were still being prepared (JSON, templates, tokenizing)",
		"more processes to prepare them: restart with a larger --api-server-count, on cores of their own",
		"clients that prepare requests themselves: prepare them earlier, or in more threads" },
	[EMPTY_NETWORK] = { -1,
		"nothing waited but requests of which a part had not arrived",
		"nothing to gain here: look at the senders, and at the network between", "" },
	[EMPTY_SILENT] = { -1,
		"clients were connected, but had no request",
		"nothing to gain here: send more requests at a time", "" },
	[EMPTY_SERVED] = { -1,
		"the batch held everything that was asked for",
		"nothing to gain here: send more requests at a time", "" },
	[EMPTY_NOBODY] = { -1,
		"nobody was connected",
		"nothing to gain here: nothing was asked for", "" },
};

static const char *const bound_advice[N_BOUND] = {
	[BOUND_IDLE] = "it had nothing to compute: more clients, or clients that send more at a time",
	[BOUND_HOST] = "the device waited for slipringd: give it a core of its own (slipring doctor)",
	[BOUND_COMPUTE] = "the device's arithmetic: a smaller or more quantized model, or more devices",
	[BOUND_MEMORY] = "the device's memory bandwidth: more rows per step cost little more time",
	[BOUND_PCIE] = "copies between host and device memory",
	[BOUND_RANKS] = "ranks waited for each other: a core of its own for each of their threads, or fewer ranks "
	                "(--tensor-parallel-size)",
	[BOUND_CORES] = "slipringd was ready to compute, but had no core: end or move what else runs on this "
	                "machine, or give slipringd cores of its own",
};

#define OWN "give slipringd cores of its own (CPUAffinity=, a cpuset), or more weight (CPUWeight=, nice)"

static const char *const cores_advice[N_CORES] = {
	[CORES_OTHERS] = "other programs held the cores while slipringd was ready to compute (clients on this "
	                 "machine are others, too): end or move them, or " OWN "; a faster device would not help",
	[CORES_QUOTA] = "its cgroup's CPU quota was used up: raise it (CPUQuota=, cpu.max, a container's CPU limit)",
	[CORES_MACHINE] = "the hypervisor ran other machines on these cores: nothing in this machine changes that, "
	                  "only one whose cores are its own",
};

/* ---- what it would be worth -------------------------------------------------------------- */

/* Fit a line through the last steps since from_ns that only decoded.  The daemon may write while the steps
 * are copied; a step that changes meanwhile is one wrong point in thousands. */
static struct step_fit fit_steps(const struct stats_page *p, uint64_t from_ns)
{
	uint64_t n = p->n_step, oldest = n > STATS_STEPS ? n - STATS_STEPS : 0;
	double sx = 0, sy = 0, sxx = 0, sxy = 0, d, mean;
	struct step_fit f = { .least = INFINITY };
	int count = 0;

	for (uint64_t i = oldest; i < n; i++) {
		const struct stats_step *s = &p->step[i % STATS_STEPS];
		double x = s->rows, y = (double)s->device_ns / 1e9;

		if (s->begin_ns < from_ns || s->tokens != s->rows || !s->rows)
			continue;
		count++;
		sx += x;
		sy += y;
		sxx += x * x;
		sxy += x * y;
		f.least = x < f.least ? x : f.least;
		f.most = x > f.most ? x : f.most;
	}
	if (count < FIT_LEAST)
		return f;
	mean = sx / count;
	d = sxx / count - mean * mean;
	if (d <= 0 || sqrt(d) < FIT_SPREAD * mean)
		return f;
	f.b = (sxy / count - mean * sy / count) / d;
	f.a = sy / count - f.b * mean;
	f.mean = mean;
	f.n = f.a > 0 && f.b >= 0 ? count : 0;
	return f;
}

/* Solve least squares of three unknowns.  m has the sums of the products of (1, x, y) with each other and
 * with z. */
static bool solve(double m[3][4])
{
	for (int k = 0; k < 3; k++) {
		if (fabs(m[k][k]) < 1e-12)
			return false;
		for (int r = 0; r < 3; r++) {
			double by = r == k ? 0 : m[r][k] / m[k][k];

			for (int c = k; c < 4; c++)
				m[r][c] -= by * m[k][c];
		}
	}
	return true;
}

/* Fit how the time of a step grows with rows and with prompt tokens, from the last steps that had any.  Both
 * are in units of their means, so that the sums are of similar size. */
static struct chunks fit_chunks(const struct stats_page *p, uint64_t from_ns)
{
	uint64_t n = p->n_step, oldest = n > STATS_STEPS ? n - STATS_STEPS : 0;
	double m[3][4] = { { 0 } }, rows = 0, more = 0;
	struct chunks f = { 0 };
	int count = 0;

	for (int pass = 0; pass < 2; pass++) {
		for (uint64_t i = oldest; i < n; i++) {
			const struct stats_step *s = &p->step[i % STATS_STEPS];
			double x[4];

			if (s->begin_ns < from_ns || s->tokens <= s->rows)
				continue;
			x[0] = 1, x[1] = s->rows, x[2] = s->tokens - s->rows, x[3] = (double)s->device_ns / 1e9;
			count += pass == 0;
			rows += pass == 0 ? x[1] : 0;
			more += pass == 0 ? x[2] : 0;
			for (int r = 0; pass && r < 3; r++)
				for (int c = 0; c < 4; c++)
					m[r][c] += (r == 1 ? x[1] / f.rows : r == 2 ? x[2] / f.more : 1) *
					           (c == 1 ? x[1] / f.rows : c == 2 ? x[2] / f.more : x[c]);
		}
		if (count < FIT_LEAST)
			return f;
		f.rows = rows / count;
		f.more = more / count;
	}
	for (int k = 0; k < 3; k++)               /* where rows and tokens correlate, share the effect */
		m[k][k] *= 1 + 1e-9;
	if (!solve(m))
		return f;
	f.a = m[0][3] / m[0][0];
	f.b = m[1][3] / m[1][1] / f.rows;
	f.c = m[2][3] / m[2][2] / f.more;
	f.n = f.c > 0 && f.a + f.b * f.rows > 0 ? count : 0;
	return f;
}

/* The gain of twice the prompt tokens in a step: more prompt tokens a second, but longer steps. */
static void worth_of_tokens(struct verdict *v, const struct stats_page *p, uint64_t from_ns)
{
	const struct chunks *f = &v->chunks;
	double now, then;

	v->chunks = fit_chunks(p, from_ns);
	if (!f->n) {
		snprintf(v->no_worth, sizeof(v->no_worth), "the last steps do not show how the time of a step grows "
		         "with its prompt tokens");
		return;
	}
	now = f->a + f->b * f->rows + f->c * f->more;
	then = now + f->c * f->more;
	v->step_now = now * 1e3;
	v->step_then = then * 1e3;
	v->worth = 2 * now / then - 1;
}

/* The gain of `more` rows in a step, at most doubling them. */
static void worth_of_rows(struct verdict *v, double more, const char *none)
{
	if (v->fit.n == 0) {
		snprintf(v->no_worth, sizeof(v->no_worth), "the last steps had about the same number of rows, so "
		         "they do not show how the time of a step grows with rows");
		return;
	}
	if (more < 0.5) {
		snprintf(v->no_worth, sizeof(v->no_worth), "%s", none);
		return;
	}
	v->rows_now = v->fit.mean;
	v->rows_then = v->rows_now + (more < v->rows_now ? more : v->rows_now);
	v->worth = v->rows_then / (v->fit.a + v->fit.b * v->rows_then) /
	           (v->rows_now / (v->fit.a + v->fit.b * v->rows_now)) - 1;
}

/* Running sequences without a row, on average, during the time `held` with a limit. */
static double without_row(const struct figures *f, double held)
{
	double busy = f->bound_all - f->bound_s[BOUND_IDLE];
	double running = busy > 0 ? f->running * f->seconds / busy : 0;

	return held > 0 && f->rows == f->rows && running > f->rows ? running - f->rows : 0;
}

bool judge_before_the_ring(const struct verdict *v)
{
	return v->largest == WHY_EMPTY && (v->empty == EMPTY_TOKENIZING || v->empty == EMPTY_NETWORK);
}

static void worth_of(struct verdict *v, const struct stats_page *p, const struct figures *f, uint64_t from_ns)
{
	double held = f->why_all - f->why_s[WHY_EMPTY]; /* s; no request waits in the rest */

	switch (v->largest) {
	case WHY_SEQS: case WHY_KV: case WHY_ORDER:
		worth_of_rows(v, held > 0 ? f->waiting * f->seconds / held : 0, "hardly any request waited");
		break;
	case WHY_TOKENS: case WHY_STEP_TIME:
		worth_of_tokens(v, p, from_ns);
		break;
	case WHY_RING_OUT: case WHY_PCIE: case WHY_GUIDE:
		worth_of_rows(v, without_row(f, held), "hardly any sequence lacked a row because of it");
		break;
	case WHY_EMPTY:
		if (judge_before_the_ring(v))           /* if it took half the time and the rest did not change */
			v->worth = 1 / (1 - v->share / 2) - 1;
		else if (f->empty_s[EMPTY_SERVED] > LITTLE * f->why_all)
			worth_of_rows(v, v->fit.mean, ""); /* if clients sent twice as many at a time */
		break;
	default:
		break;
	}
}

void judge_interval(struct verdict *v, const struct stats_page *p, const struct figures *f, uint64_t from_ns)
{
	*v = (struct verdict){ .largest = WHY_EMPTY, .empty = EMPTY_NOBODY, .rows_now = NAN, .rows_then = NAN,
	                       .worth = NAN, .step_now = NAN, .step_then = NAN };
	for (int i = 0; i < N_BOUND; i++)
		v->bound_share[i] = f->bound_all > 0 ? f->bound_s[i] / f->bound_all : 0;
	if (f->bound_all > f->bound_s[BOUND_IDLE])
		v->cores_share = f->bound_s[BOUND_CORES] / (f->bound_all - f->bound_s[BOUND_IDLE]);
	for (int i = 0; i < N_CORES; i++)
		v->cores_by = f->cores_s[i] > f->cores_s[v->cores_by] ? i : v->cores_by;
	for (int i = 0; i < N_WHY; i++)
		if (i != WHY_EMPTY && f->why_all > 0 && f->why_s[i] / f->why_all > v->share) {
			v->largest = i;
			v->share = f->why_s[i] / f->why_all;
		}
	for (int i = 0; i < N_EMPTY; i++)
		if (f->empty_s[i] > f->empty_s[v->empty])
			v->empty = i;
	if (f->why_all > 0 && f->empty_s[v->empty] / f->why_all > v->share && v->empty < EMPTY_SEEN) {
		v->largest = WHY_EMPTY;           /* a request waited, but not for the daemon */
		v->share = f->empty_s[v->empty] / f->why_all;
	} else if (v->share < LITTLE) {
		v->largest = WHY_EMPTY;
		v->share = f->why_all > 0 ? f->why_s[WHY_EMPTY] / f->why_all : 0;
	}
	v->fit = fit_steps(p, from_ns);
	worth_of(v, p, f, from_ns);
}

/* ---- what was found ------------------------------------------------------------------------ */

const struct advice *judge_advice(const struct verdict *v)
{
	return v->largest == WHY_EMPTY ? &empty_advice[v->empty] : &advice[v->largest];
}

const char *judge_limit(const struct verdict *v)
{
	return judge_before_the_ring(v) ? stats_empty_name(v->empty) : sched_why_name(v->largest);
}

bool judge_lacks_cores(const struct verdict *v)
{
	return v->cores_share >= LACK && v->bound_share[BOUND_CORES] >= LITTLE;
}

const char *judge_cores_advice(const struct verdict *v) { return cores_advice[v->cores_by]; }

/* The device's largest part, or its lack of cores, unless it was idle for longer. */
int judge_bound(const struct verdict *v)
{
	int most = BOUND_HOST;

	for (int i = BOUND_HOST; i < N_BOUND; i++)
		most = v->bound_share[i] > v->bound_share[most] ? i : most;
	if (v->bound_share[BOUND_IDLE] > v->bound_share[most])
		return BOUND_IDLE;
	return judge_lacks_cores(v) ? BOUND_CORES : most;
}

int judge_late_rank(const struct stats_page *p)
{
	int late = 0;

	for (int i = 1; i < (int)p->n_ranks && i < STATS_RANKS; i++)
		late = p->rank[i].late_ns > p->rank[late].late_ns ? i : late;
	return late;
}

const char *judge_bound_advice(const struct verdict *v)
{
	const int bound = judge_bound(v);

	return bound == BOUND_CORES ? judge_cores_advice(v) : bound_advice[bound];
}

void judge_since(const struct stats_page *p, const struct stats_mark *now, double seconds,
                 struct stats_mark *from)
{
	if (((double)now->at_ns - (double)p->ready_ns <= seconds * 1e9 && p->n_minute <= STATS_MINUTES) ||
	    !stats_since(p, isinf(seconds) ? 0 : now->at_ns - (uint64_t)(seconds * 1e9), from))
		*from = (struct stats_mark){ .at_ns = p->ready_ns };
}

static json_t *number(double x) { return isnan(x) ? json_null() : json_real(x); }

json_t *judge_json(const struct verdict *v)
{
	const struct advice *a = judge_advice(v);
	int k = a->knob;

	return json_pack("{s:s, s:f, s:s, s:s, s:s, s:o, s:o, s:s, s:o, s:o, s:s, s:s, s:{s:f, s:s, s:b, s:s}}",
	                 "limit", sched_why_name(v->largest), "share", v->share, "what", a->what, "turn", a->turn,
	                 "more", a->more,
	                 "knob", k < 0 ? json_null() : json_string(knob_info((enum knob)k)->name),
	                 "worth", number(v->worth), "no_worth", v->no_worth, "step_ms_then", number(v->step_then),
	                 "empty", v->largest == WHY_EMPTY ? json_string(stats_empty_name(v->empty)) : json_null(),
	                 "bound", sched_bound_name(judge_bound(v)), "bound_what", judge_bound_advice(v),
	                 "lack_of_cores", "share", v->cores_share, "by", stats_cores_name(v->cores_by),
	                 "limits", judge_lacks_cores(v), "what", judge_lacks_cores(v) ? judge_cores_advice(v) : "");
}

static json_t *advice_json(const struct advice *a, int n, const char *(*name)(int))
{
	json_t *j = json_object();

	for (int i = 0; i < n; i++)
		json_object_set_new(j, name(i), json_pack("{s:s, s:s, s:s, s:o}", "what", a[i].what ? a[i].what : "",
			"turn", a[i].turn ? a[i].turn : "", "more", a[i].more ? a[i].more : "", "knob",
			a[i].what && a[i].knob >= 0 ? json_string(knob_info((enum knob)a[i].knob)->name) : json_null()));
	return j;
}

json_t *judge_advice_json(void)
{
	json_t *bound = json_object();

	for (int i = 0; i < N_BOUND; i++)
		json_object_set_new(bound, sched_bound_name(i), json_pack("{s:s}", "what", bound_advice[i]));
	return json_pack("{s:o, s:o, s:o}", "why", advice_json(advice, N_WHY, sched_why_name),
	                 "empty", advice_json(empty_advice, N_EMPTY, stats_empty_name), "bound", bound);
}
