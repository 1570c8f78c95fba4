/* show_devices.c - for slipring show: the plan that serve makes, for 1 to 16 devices of one size.  The
 * device's own plan() says what a rank holds; only the memory that it finds is replaced. */
#include "show_devices.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan.h"
#include "kernels/ranks/ranks.h"
#include "tools/machine/nvml.h"

#define MOST 16

int64_t show_device_memory(const char *text)
{
	struct nvml_gpu gpu[NVML_MOST];
	int64_t least = 0;
	double x;
	char *end;

	if (text) {
		x = strtod(text, &end);
		x *= *end == 'M' ? 1048576.0 : 1073741824.0;
		end += *end == 'G' || *end == 'M';
		return end > text && !*end && x >= 1048576.0 && x < 1e15 ? (int64_t)x : -EINVAL;
	}
	for (int i = 0, n = nvml_look(gpu); i < n; i++)
		if (gpu[i].memory_total > 0 && (!least || gpu[i].memory_total < least))
			least = gpu[i].memory_total;
	return least;
}

/* plan() of `under`, on devices with `memory` bytes.  One at a time: a table has no room for more. */
static const struct sr_backend_ops *under;
static int64_t memory;

static int plan_there(const struct sr_model *m, const struct sr_limits *lim, struct sr_need *out, char *err,
                      size_t errlen)
{
	int rc = under->plan(m, lim, out, err, errlen);

	out->avail = out->total = memory;
	return rc;
}

static bool fits(struct plan *p, const struct config *cfg, const struct model *m,
                 const struct sr_backend_ops *ops, int32_t n, char *err, size_t errlen)
{
	struct sr_backend_ops there = *ops;
	struct config c = *cfg;

	c.tensor_parallel_size = n;
	c.gpu_memory_utilization_given = true;
	under = n > 1 ? ranks_over(&(struct ranks_setting){ .ops = ops, .separate = true }) : ops;
	there.plan = plan_there;
	return plan_make(p, &c, m, &there, err, errlen) == 0;
}

void show_devices_plan(struct show_devices *d, const struct config *cfg, const struct model *m,
                       const struct sr_backend_ops *ops)
{
	struct plan p;
	char err[1024] = "";

	memory = d->memory;
	for (int32_t n = 1; n <= MOST && d->n < SHOW_DEVICES; n = d->fewest ? 2 * n : n + 1) {
		if (!fits(&p, cfg, m, ops, n, err, sizeof(err))) {
			if (d->fewest)                /* it cannot be divided so far: 16 ranks of a small model */
				return;
			snprintf(d->why_not, sizeof(d->why_not), "%.*s", (int)strcspn(err, "\n"), err);
			continue;
		}
		if (!d->fewest)
			d->fewest = n;
		d->context = p.context;
		d->line[d->n].devices = n;
		d->line[d->n].weights = p.need.weights;
		d->line[d->n].kv_tokens = p.kv_tokens;
		d->line[d->n++].seqs = p.full_seqs;
	}
}

static const char *size_text(int64_t bytes, char out[32])
{
	bool small = bytes < 1 << 30;

	snprintf(out, 32, "%.1f %s", (double)bytes / (small ? 1048576 : 1073741824), small ? "MiB" : "GiB");
	return out;
}

void show_devices_text(const struct show_devices *d)
{
	char size[32];

	if (!d->memory)
		return;
	printf("devices of %s\n", size_text(d->memory, size));
	if (!d->fewest) {
		printf("  %d do not hold it: %s\n", MOST, d->why_not);
		return;
	}
	if (d->fewest > 1)
		printf("  %-3d does not fit: %s\n", d->fewest - 1, d->why_not);
	for (int i = 0; i < d->n; i++)
		printf("  %-3d %s of weights each, a KV cache of %lld tokens: %.1f sequences of %d%s\n",
		       d->line[i].devices, size_text(d->line[i].weights, size), (long long)d->line[i].kv_tokens,
		       d->line[i].seqs, d->context, i ? "" : "; the fewest that hold it");
	if (d->n > 1)
		printf("  More devices for one model (--tensor-parallel-size): a token reads less on each, and\n"
		       "  more KV cache fits.  Replicas of %d (--data-parallel-size): more tokens a second, as\n"
		       "  devices need not meet in each layer.\n",
		       d->fewest);
}

json_t *show_devices_json(const struct show_devices *d)
{
	json_t *lines;

	if (!d->memory)
		return json_null();
	lines = json_array();
	for (int i = 0; i < d->n; i++)
		json_array_append_new(lines, json_pack("{s:i, s:I, s:I, s:f}", "devices", d->line[i].devices,
		                      "weights_bytes", (json_int_t)d->line[i].weights, "kv_tokens",
		                      (json_int_t)d->line[i].kv_tokens, "sequences", d->line[i].seqs));
	return json_pack("{s:I, s:o, s:o, s:i}", "memory_bytes", (json_int_t)d->memory, "fewest",
	                 d->fewest ? json_integer(d->fewest) : json_null(), "plans", lines, "max_model_len",
	                 d->context);
}
