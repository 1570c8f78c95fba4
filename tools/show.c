/* show.c - slipring show: prints what a model contains and what it needs on this machine.  It reads the
 * model's tables, not its weights. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "commands.h"
#include "core/instance/config.h"
#include "core/models/defaults.h"
#include "core/models/locate.h"
#include "core/models/model.h"
#include "core/plan.h"
#include "kernels/backend.h"
#include "kernels/ranks/ranks.h"
#include "show_devices.h"
#include "show_model.h"

struct show {
	struct config cfg;
	struct located where;
	struct model *model;
	struct plan plan;
	struct defaults defaults;
	char sampling[160];            /* these in words; "": it makes vectors alone */
	char no_plan[1024];            /* why there is no plan, or "" */
	struct show_devices devices;
	bool json, tensors;
};

static int show_usage(void)
{
	printf("usage: slipring show [MODEL] [--tensors] [--json] [flags of slipring serve]\n"
	       "\n"
	       "Shows what is in a model (a GGUF file, a Hugging Face directory, an id in the download cache;\n"
	       "default: the default model) and the memory plan that serve would make for it here.\n"
	       "Of a model that is not downloaded yet its config.json is enough, in a directory of its own.\n"
	       "\n"
	       "  --tensors   each tensor with its type, shape and place\n"
	       "  --device-memory SIZE   how many devices of this size (24G) hold it, and what more would\n"
	       "              bring; without it, for the smallest GPU here\n"
	       "  --json      for programs\n");
	return 0;
}

/* ---- tensors ------------------------------------------------------------------ */

static void print_tensor(const struct sr_tensor *t, void *ctx)
{
	struct sr_stored first = sr_stored_of(t, 0);

	(void)ctx;
	printf("  %-46s %-5s [%d][%d]", t->name, model_type_name(t->type), t->n, t->k);
	if (t->count > 1)
		printf(" x %d", t->count);
	printf("  %llu bytes at %llu of file %d\n", (unsigned long long)first.data.bytes,
	       (unsigned long long)first.data.offset, first.data.file);
}

static void list_tensor(const struct sr_tensor *t, void *ctx)
{
	struct sr_stored first = sr_stored_of(t, 0);

	json_array_append_new(ctx, json_pack("{s:s, s:s, s:i, s:[i,i], s:I, s:I, s:i}", "name", t->name, "type",
	                                     model_type_name(t->type), "count", t->count > 1 ? t->count : 1,
	                                     "shape", t->n, t->k, "bytes", (json_int_t)first.data.bytes, "offset",
	                                     (json_int_t)first.data.offset, "file", first.data.file));
}

static void count_weights(const struct sr_tensor *t, void *ctx)
{
	*(double *)ctx += (double)(t->count > 1 ? t->count : 1) * t->n * t->k;
}

/* The number of layers that attend to a window, and the window's length. */
static int32_t windowed(const struct sr_model *m, int32_t *window)
{
	int32_t n = 0;

	for (int32_t l = 0; l < m->n_layers; l++)
		if (m->layer[l].mixer == SR_ATTEND && kind_of(m, l)->window) {
			*window = kind_of(m, l)->window;
			n++;
		}
	return n;
}

/* ---- the two forms ------------------------------------------------------------------------ */

/* Tokens of a request: --max-model-len, or what the model was made for. */
static int32_t longest(const struct show *s)
{
	int64_t asked = s->cfg.max_model_len, own = s->model->m.context;

	return (int32_t)(asked > 0 && asked < own ? asked : own);
}

/* What the model needs here in a few types: its weights, and what one sequence of full length keeps. */
static void print_needs(const struct show *s)
{
	const struct sr_model *m = &s->model->m;
	double one = show_sequence_bytes(m, longest(s)), here = (double)s->plan.need.avail;
	struct show_size size[SHOW_TYPES];
	char all[32], kv[32], token[32];

	show_sizes(m, size);
	printf("  would need    with one request of %d tokens, whose keys, values and states take %s",
	       longest(s), show_bytes(one, kv));
	if (here > 0)
		printf("; %s are free here", show_bytes(here, all));
	printf("\n");
	for (int i = 0; i < SHOW_TYPES; i++)
		printf("                as %-4s %11s, a token reads %s%s\n", size[i].type,
		       show_bytes(size[i].bytes + one, all),
		       show_bytes(size[i].token, token), here <= 0 ? "" : size[i].bytes + one > here ? ": does "
		        "not fit" : "");
}

static json_t *needs_json(const struct show *s)
{
	const struct sr_model *m = &s->model->m;
	double one = show_sequence_bytes(m, longest(s));
	struct show_size size[SHOW_TYPES];
	json_t *list = json_array();

	show_sizes(m, size);
	for (int i = 0; i < SHOW_TYPES; i++)
		json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I}", "type", size[i].type, "weight_bytes",
		                      (json_int_t)size[i].bytes, "token_bytes", (json_int_t)size[i].token,
		                      "sequence_bytes", (json_int_t)one));
	return list;
}

static void print_text(struct show *s)
{
	const struct model *md = s->model;
	const struct sr_model *m = &md->m;
	char bytes[32];
	double n = 0;

	show_each_tensor(m, count_weights, &n);
	printf("%s\n", s->where.path);
	if (strcmp(md->format, "dummy") == 0)
		printf("  no weights    what follows is from config.json alone, with weights in bf16\n");
	printf("  name          %s\n", m->name);
	printf("  architecture  %s, %s\n", m->arch,
	       strcmp(md->format, "dummy") == 0 ? "config.json alone" : md->format);
	printf("  weights       %.1f million in %s: %s\n", n / 1e6, show_bytes((double)md->weight_bytes, bytes),
	       md->stored);
	for (int32_t i = 0; i < md->n_files && md->n_files > 1; i++)
		printf("  file %-8d %s\n", i, md->file[i]);
	printf("  layers        %d of width %d, feed-forward %d\n", m->n_layers, m->d_model, m->d_ff);
	show_kinds(m);
	show_state(m);
	show_experts(m);
	show_shared(m);
	printf("  vocabulary    %d, embeddings %s\n", m->n_vocab, m->head.type == SR_NONE ? "tied" : "untied");
	printf("  context       %d\n", m->context);
	printf("  eos           ");
	for (int i = 0; i < md->n_eos; i++)
		printf("%s%d", i ? ", " : "", md->eos[i]);
	printf("%s\n", md->n_eos ? "" : "none");
	if (s->sampling[0])
		printf("  sampling      %s, where a request does not say (%s)\n", s->sampling, s->defaults.from);
	printf("  a token reads %s of weights\n", show_bytes((double)show_token_bytes(m), bytes));
	print_needs(s);
	if (!s->no_plan[0])
		printf("  KV cache      %lld bytes a token\n",
		       (long long)(s->plan.whole_block / s->plan.limits.block_tokens));
	if (s->tensors)
		show_each_tensor(m, print_tensor, NULL);
	printf("%s%s%s", s->no_plan[0] ? "no memory plan here: " : "", s->no_plan[0] ? s->no_plan
	       : s->plan.text, s->no_plan[0] ? "\n" : "");
	show_devices_text(&s->devices);
}

static json_t *plan_json(const struct show *s)
{
	const struct plan *p = &s->plan;

	if (s->no_plan[0])
		return json_pack("{s:s}", "error", s->no_plan);
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, "
	                 "s:{s:i, s:i, s:I}, s:f}",
	                 "weights_bytes", (json_int_t)p->need.weights, "activation_bytes",
	                 (json_int_t)p->need.scratch,
	                 "slot_bytes", (json_int_t)p->need.slots, "batch_bytes", (json_int_t)p->need.pinned,
	                 "kv_bytes", (json_int_t)p->kv_bytes,
	                 "kv_bytes_per_token", (json_int_t)(p->whole_block / p->limits.block_tokens),
	                 "kv_block_bytes", (json_int_t)p->need.per_block, "kv_groups", p->limits.n_groups,
	                 "num_gpu_blocks", p->limits.n_blocks, "block_size", p->limits.block_tokens,
	                 "max_model_len", p->context, "max_num_seqs", p->max_seqs,
	                 "max_num_batched_tokens", p->batch_tokens, "knob_ceiling",
	                 "max_num_seqs", p->limits.slots, "max_num_batched_tokens", p->limits.tokens,
	                 "bytes", (json_int_t)p->ceiling_bytes, "max_concurrency", p->full_seqs);
}

static json_t *sampling_json(const struct show *s)
{
	const struct defaults *d = &s->defaults;

	if (!s->sampling[0])
		return json_null();
	return json_pack("{s:f, s:I, s:f, s:f, s:f, s:o, s:s}", "temperature", d->temperature, "top_k",
	                 (json_int_t)d->top_k, "top_p", d->top_p, "min_p", d->min_p,
	                 "repetition_penalty", d->repetition, "max_tokens",
	                 d->max_tokens > 0 ? json_integer(d->max_tokens) : json_null(), "from", d->from);
}

static void print_model_json(struct show *s)
{
	const struct model *md = s->model;
	const struct sr_model *m = &md->m;
	const struct sr_attn *kind = &m->kind[0];
	json_t *eos = json_array(), *files = json_array(), *out;
	int32_t window = 0;
	double n = 0;

	show_each_tensor(m, count_weights, &n);
	for (int i = 0; i < md->n_eos; i++)
		json_array_append_new(eos, json_integer(md->eos[i]));
	for (int i = 0; i < md->n_files; i++)
		json_array_append_new(files, json_string(md->file[i]));
	out = json_pack("{s:s, s:s, s:s, s:s, s:o, s:f, s:I, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, "
	                "s:i, s:o}",
	                "path", s->where.path, "name", m->name, "architecture", m->arch, "format", md->format,
	                "files", files,
	                "weights", n, "weight_bytes", (json_int_t)md->weight_bytes, "stored", md->stored,
	                "layers", m->n_layers, "width", m->d_model, "feed_forward", m->d_ff,
	                "heads", kind->n_heads, "kv_heads", kind->n_kv_heads, "head_width", kind->head_dim,
	                "vocabulary", m->n_vocab, "tied_embeddings", m->head.type == SR_NONE,
	                "context", m->context, "eos", eos);
	json_object_set_new(out, "attention", show_kinds_json(m));
	json_object_set_new(out, "experts", show_experts_json(m));
	json_object_set_new(out, "state", show_state_json(m));
	json_object_set_new(out, "token_weight_bytes", json_integer((json_int_t)show_token_bytes(m)));
	json_object_set_new(out, "sampling", sampling_json(s));
	json_object_set_new(out, "would_need", needs_json(s));
	json_object_set_new(out, "window_layers", json_integer(windowed(m, &window)));
	json_object_set_new(out, "window", json_integer(window));
	json_object_set_new(out, "plan", plan_json(s));
	json_object_set_new(out, "devices", show_devices_json(&s->devices));
	if (s->tensors) {
		json_t *list = json_array();

		show_each_tensor(m, list_tensor, list);
		json_object_set_new(out, "tensors", list);
	}
	json_dumpf(out, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(out);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int open_all(struct show *s, char *err, size_t errlen)
{
	static const char *const device[] = { NULL, "cpu", "cuda", "null" };
	const struct sr_backend_ops *ops;
	bool dummy = strcmp(s->cfg.load_format, "dummy") == 0;
	struct config cfg = s->cfg;
	int rc;

	cfg.self_check = false;                      /* nothing is computed here */

	if (locate_model(&s->where, s->cfg.model, err, errlen) < 0)
		return -1;
	rc = (dummy ? model_open_dummy : model_open)(&s->model, s->where.path, err, errlen);
	if (rc == -ENOENT && !s->where.gguf)          /* only its settings are here */
		rc = model_open_dummy(&s->model, s->where.path, err, errlen);
	if (rc == 0)
		rc = defaults_read(&s->defaults, s->where.path, s->where.gguf, s->cfg.generation_config,
		                   s->cfg.override_generation_config, err, errlen);
	if (rc < 0)
		return -1;
	if (!s->model->pooling.kind)
		defaults_say(&s->defaults, s->sampling, sizeof(s->sampling));
	ops = sr_backend_find(device[s->cfg.device], s->no_plan, sizeof(s->no_plan));
	if (ops && s->devices.memory)
		show_devices_plan(&s->devices, &s->cfg, s->model, ops);
	if (ops && s->cfg.tensor_parallel_size > 1)
		ops = ranks_over(&(struct ranks_setting){ .ops = ops, .separate = strcmp(ops->name, "cuda") == 0 });
	if (ops && plan_make(&s->plan, &cfg, s->model, ops, s->no_plan, sizeof(s->no_plan)) == 0)
		s->no_plan[0] = 0;
	else if (!s->no_plan[0])
		snprintf(s->no_plan, sizeof(s->no_plan), "no device");
	return 0;
}

int cmd_show(int argc, char **argv)
{
	struct show s = { 0 };
	const char *memory = NULL;
	char err[1024] = "";
	int n = 1, rc;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
			return show_usage();
		if (strcmp(argv[i], "--json") == 0)
			s.json = true;
		else if (strcmp(argv[i], "--device-memory") == 0 && i + 1 < argc)
			memory = argv[++i];
		else if (strcmp(argv[i], "--tensors") == 0)
			s.tensors = true;
		else
			argv[n++] = argv[i];
	}
	if ((s.devices.memory = show_device_memory(memory)) < 0) {
		fprintf(stderr, "slipring show: --device-memory %s: not a size, such as 24G or 500M\n", memory);
		return 2;
	}
	rc = config_parse(&s.cfg, n, argv, FOR_SERVE, err, sizeof(err));
	if (rc == 1)
		return 0;
	if (rc < 0 || open_all(&s, err, sizeof(err)) < 0) {
		fprintf(stderr, "slipring show: %s\n", err);
		config_free(&s.cfg);
		return rc == -EINVAL ? 2 : 1;
	}
	if (s.json)
		print_model_json(&s);
	else
		print_text(&s);
	model_close(s.model);
	config_free(&s.cfg);
	return 0;
}
