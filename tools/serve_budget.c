/* serve_budget.c - see serve.h.  Reads the tables of models, not their weights. */
#include "serve.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/models/locate.h"
#include "core/models/model.h"
#include "core/plan.h"
#include "kernels/backend.h"

#define GIB 1073741824.0

int serve_plan(const struct config *cfg, struct serve_budget *b, char *err, size_t errlen)
{
	static const char *const device[] = { NULL, "cpu", "cuda", "null" };
	const bool dummy = !strcmp(cfg->load_format, "dummy");
	const struct sr_backend_ops *ops = sr_backend_find(device[cfg->device], err, errlen);
	struct config only_plan = *cfg;
	struct located where;
	struct model *model;
	struct plan plan;
	int r;

	if (!ops)
		return -ENODEV;
	r = locate_model(&where, cfg->model, err, errlen);
	if (r == 0)
		r = (dummy ? model_open_dummy : model_open)(&model, where.path, err, errlen);
	if (r < 0)
		return r;
	only_plan.self_check = false;                /* the daemon does it */
	r = plan_make(&plan, &only_plan, model, ops, err, errlen);
	model_close(model);
	if (r < 0 || !plan.on_host)
		return r;
	b->bytes += config_replicas(cfg) * (plan.kv_bytes + plan.host_bytes + plan.tier_bytes);
	b->avail = plan.need.avail;
	return 0;
}

int serve_fits(const struct serve_budget *b, char *err, size_t errlen)
{
	if (b->bytes <= b->avail)
		return 0;
	snprintf(err, errlen, "the models need %.2f GiB together, and %.2f GiB are free: give each less KV cache "
	         "(--kv-cache-memory-bytes), or serve fewer", (double)b->bytes / GIB, (double)b->avail / GIB);
	return -ENOMEM;
}
