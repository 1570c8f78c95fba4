/* plan.c - decides once, at start, how much memory goes where.
 *
 *	sizes fixed by configuration and model      -> sr_limits without blocks
 *	room above them, so that knobs can be raised -> sr_limits' slots, rows and tokens
 *	the back end's needs at these limits        -> weights, activations, slots, ..
 *	memory available, less those needs          -> bytes of KV cache -> blocks
 *	blocks against --max-model-len              -> fits, or a sentence with what would
 *
 * Sentences are vLLM's where vLLM has one, because scripts and people look for them.
 */
#include "plan.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/groups.h"
#include "core/instance/knobs.h"
#include "core/instance/refuse.h"

#define MIB (1024.0 * 1024.0)
#define GIB (1024.0 * MIB)
#define KV_DEFAULT   ((int64_t)512 << 20)     /* bytes, on the CPU */
#define LOGITS_BYTES ((int64_t)16 << 20)      /* most held at once */
#define LOGITS_ROWS  64
#define GPU_LOGITS_BYTES ((int64_t)128 << 20) /* more on a GPU: each slice of rows reads the whole head */
#define GPU_LOGITS_ROWS  256
#define COPY_BYTES   ((int64_t)32 << 20)      /* between the tiers in one batch: about 1 ms of PCIe */
#define LIST_WORDS   8192                     /* in a batch: words of all lists of one request */
#define VECTORS      64                       /* most vectors of a batch */
#define DRAFT_ROWS   16                       /* rows of a batch that can have all their guesses */
#define ROW_WORDS    16                       /* in a batch: words for each sequence that begins */
#define STATES_MORE  16                       /* snapshots that need not be of running sequences */
#define RAISE        4                        /* without --knob-ceiling, knobs can be raised to 4 times */
#define SEQS_ROOM    256                      /* or to this, if that is more; likewise TOKENS_ROOM */
#define TOKENS_ROOM  8192
#define MOST_SEQS    65536                    /* limits of the flags */
#define MOST_TOKENS  (1 << 20)
#define ROOM_SHARE   200                      /* unasked room for a knob costs at most 1/200 of all memory */

struct planning {
	struct plan *out;
	const struct config *cfg;
	const struct model *m;
	const struct sr_backend_ops *ops;
	bool cpu;                      /* use the CPU's default KV size and meaning of the share */
	bool pools;                    /* it answers pooled requests */
	bool roomy;                    /* make room for raising knobs even without --knob-ceiling */
	int64_t seqs_most, tokens_most; /* --knob-ceiling; 0 = not given */
	char *err;
	size_t errlen;
};

#define fail(p, rc, ...) refuse(rc, (p)->err, (p)->errlen, __VA_ARGS__)

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- what the model must be for these flags ------------------------------------------------- */

/* awq_marlin and the like are vLLM's names for other ways to compute with the same files. */
static bool is_method(const char *asked, const char *is)
{
	size_t n = strlen(is);

	return n && strncmp(asked, is, n) == 0 && (!asked[n] || strcmp(asked + n, "_marlin") == 0);
}

static int check_flags(struct planning *p)
{
	const struct config *c = p->cfg;
	const char *want = c->load_format;

	if (c->quantization && !is_method(c->quantization, p->m->quantization))
		return fail(p, -EINVAL, "--quantization %s, but this model's weights are %s (%s): leave the flag "
		            "out, because the files name their format", c->quantization, p->m->stored,
		            *p->m->quantization ? p->m->quantization : p->m->format);
	if (strcmp(want, "hf") == 0)
		want = "safetensors";
	if (strcmp(want, "auto") != 0 && strcmp(want, "dummy") != 0 &&
	    (strcmp(want, "gguf") == 0) != (strcmp(p->m->format, "GGUF") == 0))
		return fail(p, -EINVAL, "--load-format %s, but this model is %s", c->load_format,
		            p->m->format);
	return 0;
}

static int kv_type(struct planning *p, int32_t *out)
{
	static const struct { const char *name; int32_t type; } known[] = {
		{ "auto", SR_KV_BF16 }, { "bfloat16", SR_KV_BF16 },
		{ "float16", SR_KV_F16 }, { "half", SR_KV_F16 },
		{ "fp8", SR_KV_F8 }, { "fp8_e4m3", SR_KV_F8 }, { "int8_per_token_head", SR_KV_I8 },
		{ "int8", SR_KV_I8 },
	};

	if (p->m->kv_f8 && !p->cpu && strcmp(p->cfg->kv_cache_dtype, "auto") == 0) {
		*out = SR_KV_F8;
		return 0;
	}
	for (unsigned i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (strcmp(known[i].name, p->cfg->kv_cache_dtype) == 0) {
			*out = known[i].type;
			return 0;
		}
	return fail(p, -EINVAL, "--kv-cache-dtype %s is not supported by Slipring; auto, bfloat16, float16, fp8 "
	            "and int8 (a scale per token and head) are known; the device may support fewer",
	            p->cfg->kv_cache_dtype);
}

/* ---- limits --------------------------------------------------------------------------------- */

/* Defaults by device, as in vLLM's server. */
static void batch_defaults(const struct planning *p, int64_t total, int64_t *tokens, int64_t *seqs)
{
	*tokens = 2048;
	*seqs = p->cpu ? 128 : 256;
	if (strcmp(p->ops->name, "cuda") == 0 && total >= 70 * (int64_t)GIB) {
		*tokens = total >= 160 * (int64_t)GIB ? 16384 : 8192;
		*seqs = 1024;
	}
}

/* Its layers look both ways, so a prompt is computed in one piece. */
static bool is_encoder(const struct planning *p)
{
	return p->m->m.kind[0].bidirectional;
}

/* It makes no tokens. */
static bool only_pools(const struct planning *p)
{
	return is_encoder(p) || p->m->m.classifier.n_labels;
}

/* Does a layer keep a state for each sequence? */
static bool has_states(const struct planning *p)
{
	return p->m->m.delta.v_heads > 0;
}

static int batching(struct planning *p, int64_t total, int32_t context)
{
	const struct config *c = p->cfg;
	const bool whole = !c->enable_chunked_prefill || is_encoder(p);
	int64_t tokens, seqs;

	batch_defaults(p, total, &tokens, &seqs);
	if (c->max_num_seqs)
		seqs = c->max_num_seqs;
	if (c->max_num_batched_tokens) {
		tokens = c->max_num_batched_tokens;
		if (!c->max_num_seqs)
			seqs = min64(seqs, tokens);
	} else {
		if (whole && tokens < context)
			tokens = context;
		if (tokens < seqs)
			tokens = seqs;
	}
	tokens = min64(tokens, seqs * context);
	if (is_encoder(p) && tokens < context)
		return fail(p, -EINVAL, "--max-num-batched-tokens %" PRId64 " is below --max-model-len %d: an encoder "
		            "computes each prompt in one piece", tokens, context);
	if (tokens < seqs)
		return fail(p, -EINVAL, "max_num_batched_tokens (%" PRId64 ") must be greater than or equal "
		            "to max_num_seqs (%"
		            PRId64 ").", tokens, seqs);
	if (!c->enable_chunked_prefill && tokens < context)
		return fail(p, -EINVAL, "max_num_batched_tokens (%" PRId64 ") is smaller than max_model_len "
		            "(%d). This effectively limits the maximum sequence length to "
		            "max_num_batched_tokens: with --no-enable-chunked-prefill it must be at least "
		            "max_model_len.", tokens, context);
	p->out->max_seqs = (int32_t)seqs;
	p->out->batch_tokens = (int32_t)tokens;
	return 0;
}

/* Set all limits that grow with sequences and tokens. */
static void size_batch(struct planning *p, int32_t seqs, int32_t tokens)
{
	struct sr_limits *l = &p->out->limits;

	l->slots = l->rows = seqs;
	l->tokens = l->scores = tokens;
	l->cmds = (7 + l->n_groups + (has_states(p) ? 2 : 0)) * l->rows + l->slots + 18 + l->n_groups;
	/* A sequence that begins brings its settings, up to four lists, its ids and its table. */
	l->words = LIST_WORDS + p->out->context + l->n_groups * l->seq_blocks + ROW_WORDS * l->rows + 16;
}

static int32_t our_cores(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* One tenant has 8/9 of them at most (sched_guides_full): alone it shall fill a batch. */
static int32_t guided_seqs(const struct planning *p)
{
	int32_t n = (int32_t)p->cfg->max_guided_seqs;

	return n ? n : p->out->max_seqs + p->out->max_seqs / 8 + 1;
}

/* Set all limits but n_blocks, with one group of all layers. */
static int set_limits(struct planning *p, int64_t total, int32_t context)
{
	struct sr_limits *l = &p->out->limits;
	int64_t logits;
	int rc;

	*l = (struct sr_limits){ .block_tokens = p->cfg->block_size, .n_blocks = 1, .world = p->cfg->tensor_parallel_size,
	                         .n_groups = 1 };
	if ((rc = kv_type(p, &l->kv_type)) != 0 || (rc = batching(p, total, context)) != 0)
		return rc;
	l->whole = is_encoder(p);
	if (l->whole)                        /* keys and values live for one batch: as exact as they are computed */
		l->kv_type = p->cpu ? SR_KV_F32 : SR_KV_BF16;
	l->deterministic = p->cfg->enforce_deterministic;
	l->w4a8 = p->cfg->w4_activations == W4_FP8;
	if (l->w4a8 && p->cpu)
		return fail(p, -ENOTSUP, "--w4-activations fp8: the CPU does not have it; a GPU with FP8 instructions does");
	l->self_check = p->cfg->self_check ? 2 : 0;
	l->eager = p->cfg->enforce_eager;
	p->out->context = context;
	l->seq_blocks = (int32_t)(((int64_t)context + l->block_tokens - 1) / l->block_tokens);
	size_batch(p, p->out->max_seqs, p->out->batch_tokens);
	logits = (p->cpu ? LOGITS_BYTES : GPU_LOGITS_BYTES) / (4 * (int64_t)p->m->m.n_vocab);
	logits = min64(logits, p->cpu ? LOGITS_ROWS : GPU_LOGITS_ROWS);
	l->logit_rows = (int32_t)(logits < 4 ? 4 : logits);
	l->drafts = p->cfg->draft_most * (int32_t)min64(p->out->max_seqs, DRAFT_ROWS);
	l->masks = p->ops->masks ? 2 * guided_seqs(p) : 0;
	if (l->drafts && (p->pools || has_states(p)))
		return fail(p, -ENOTSUP, "--speculative-config: %s %s; leave the flag out", p->m->m.arch, p->pools ?
		            "answers vectors, and nothing is guessed of them" :
		            "has layers with a state for each sequence, which a wrong guess would change");
	if (p->pools) {
		l->vectors = (int32_t)min64(p->out->max_seqs, VECTORS);
		l->width = p->m->m.classifier.n_labels ? p->m->m.classifier.n_labels : p->m->m.d_model;
	}
	l->threads = p->cpu ? (p->cfg->threads ? p->cfg->threads : our_cores()) : 0;
	return 0;
}

static int ask(struct planning *p)
{
	return p->ops->plan(&p->m->m, &p->out->limits, &p->out->need, p->err, p->errlen);
}

static int64_t sum_needs(const struct sr_need *n)
{
	return n->weights + n->scratch + n->graphs + n->slots + n->pinned;
}

/* ---- ceilings of knobs ---------------------------------------------------------------------- */

/* --knob-ceiling NAME=N,NAME=N */
static int parse_ceilings(struct planning *p)
{
	char text[256], say[200], *save = NULL;
	int64_t value, most;

	if (!p->cfg->knob_ceiling)
		return 0;
	if ((size_t)snprintf(text, sizeof(text), "%s", p->cfg->knob_ceiling) >= sizeof(text))
		return fail(p, -EINVAL, "--knob-ceiling: longer than %zu bytes", sizeof(text) - 1);
	for (char *s = strtok_r(text, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
		char *is = strchr(s, '=');
		int k;

		if (is)
			*is++ = 0;
		k = is ? knob_find(s) : -1;
		if (k != KNOB_MAX_NUM_SEQS && k != KNOB_MAX_NUM_BATCHED_TOKENS)
			return fail(p, -EINVAL, "--knob-ceiling %s: give max-num-seqs=N and max-num-batched-tokens=N, "
			            "separated by a comma; other knobs have no ceiling", p->cfg->knob_ceiling);
		if (knob_parse((enum knob)k, is, &value, say, sizeof(say)) < 0)
			return fail(p, -EINVAL, "--knob-ceiling %s: %s", p->cfg->knob_ceiling, say);
		most = k == KNOB_MAX_NUM_SEQS ? MOST_SEQS : MOST_TOKENS;
		if (value > most)
			return fail(p, -EINVAL, "--knob-ceiling %s: %s goes up to %" PRId64 " at most",
			            p->cfg->knob_ceiling, knob_info((enum knob)k)->name, most);
		*(k == KNOB_MAX_NUM_SEQS ? &p->seqs_most : &p->tokens_most) = value;
	}
	return 0;
}

/* Make room for a knob above its initial value: as much as asked, else some if it is cheap. */
static int make_room(struct planning *p, enum knob k, int64_t begin, int64_t asked, int64_t most)
{
	const struct sr_limits was = p->out->limits;
	const int64_t before = sum_needs(&p->out->need), cheap = p->out->need.total / ROOM_SHARE;
	const bool seqs = k == KNOB_MAX_NUM_SEQS;
	int64_t n = min64(max64(RAISE * begin, seqs ? SEQS_ROOM : TOKENS_ROOM), most);
	int rc;

	if (asked && asked < begin)
		return fail(p, -EINVAL, "--knob-ceiling %s=%" PRId64 " is below --%s, which is %" PRId64,
		            knob_info(k)->name, asked, knob_info(k)->name, begin);
	if (!asked && !p->roomy)
		return 0;
	for (n = asked ? asked : n; n > begin; n /= 2) {
		size_batch(p, seqs ? (int32_t)n : was.slots, (int32_t)(seqs ? max64(was.tokens, n) : n));
		if ((rc = ask(p)) != 0)
			return rc;
		if (asked || sum_needs(&p->out->need) - before <= cheap)
			return 0;
	}
	p->out->limits = was;
	return ask(p);
}

static int set_ceilings(struct planning *p)
{
	const int64_t begin = sum_needs(&p->out->need);
	struct plan *o = p->out;
	int rc;

	if (p->tokens_most && p->seqs_most > p->tokens_most)
		return fail(p, -EINVAL, "--knob-ceiling %s: max-num-batched-tokens must be at least max-num-seqs: "
		            "each sequence computes a token per step", p->cfg->knob_ceiling);
	rc = make_room(p, KNOB_MAX_NUM_SEQS, o->max_seqs, p->seqs_most,
	               p->tokens_most ? p->tokens_most : MOST_SEQS);
	if (rc == 0)    /* not more tokens than all sequences together have */
		rc = make_room(p, KNOB_MAX_NUM_BATCHED_TOKENS, o->batch_tokens, p->tokens_most,
		               min64((int64_t)o->limits.slots * o->context, MOST_TOKENS));
	o->ceiling_bytes = sum_needs(&o->need) - begin;
	return rc;
}

/* ---- KV cache ------------------------------------------------------------------------------- */

/* Bytes for the KV cache, or -ENOMEM. */
static int64_t kv_budget(struct planning *p)
{
	const struct config *c = p->cfg;
	const struct sr_need *n = &p->out->need;
	const int sharing = p->cpu ? c->data_parallel_size : 1; /* replicas share the memory of the CPUs */
	double share = c->gpu_memory_utilization, want = (double)n->total * share / sharing;
	int64_t left;

	if (c->num_gpu_blocks_override)
		return (c->num_gpu_blocks_override + 1) * n->per_block;
	if (c->kv_cache_memory_bytes)
		return c->kv_cache_memory_bytes;
	if (p->cpu && !c->gpu_memory_utilization_given)
		return min64(KV_DEFAULT, n->avail / 4 / sharing);
	if ((double)n->avail < want)
		return fail(p, -ENOMEM, "Free memory on device %s (%.2f/%.2f GiB) on startup is less than "
		            "desired GPU memory utilization (%g, %.2f GiB). Decrease GPU memory utilization "
		            "or reduce GPU memory used by other processes.", p->ops->name,
		            (double)n->avail / GIB, (double)n->total / GIB, share,
		            want / GIB);
	left = (int64_t)want - p->out->host_bytes;
	if (left > 0)
		return left;
	return fail(p, -ENOMEM, "No available memory for the cache blocks: weights and activations need %.2f "
	            "GiB, and --gpu-memory-utilization %g gives %.2f of %.2f GiB. Try increasing "
	            "`gpu_memory_utilization` when initializing the engine.",
	            (double)p->out->host_bytes / GIB, share, want / GIB,
	            (double)n->total / GIB);
}

/* States are taken out of the bytes for the KV cache, unless that is a number of blocks.  */
static int set_states(struct planning *p, int64_t *bytes)
{
	struct plan *o = p->out;
	int64_t each = o->need.per_state, n = p->cfg->max_states;

	if (!has_states(p))
		return 0;
	if (each < 1)
		return fail(p, -ENOTSUP, "%s has layers with a state for each sequence, which the %s device does not keep",
		            p->m->m.arch, p->ops->name);
	if (!n)
		n = min64(max64(*bytes / 2 / each, 2), 2 * (int64_t)o->max_seqs + STATES_MORE);
	o->limits.n_states = (int32_t)n;
	o->state_bytes = n * each;
	if (!p->cfg->num_gpu_blocks_override)
		*bytes -= o->state_bytes;
	return 0;
}

/* Turn bytes into blocks; the back end keeps one more for itself. */
static int set_blocks(struct planning *p, int64_t bytes)
{
	int64_t n = bytes / p->out->need.per_block - 1;

	if (n < 1)
		return fail(p, -ENOMEM, "No available memory for the cache blocks: a KV cache of %.1f MiB "
		            "holds less than two blocks of %.1f MiB; --kv-cache-memory-bytes sets its size.",
		            (double)bytes / MIB,
		            (double)p->out->need.per_block / MIB);
	p->out->limits.n_blocks = (int32_t)min64(n, 1 << 30);
	for (int32_t g = 0; g < p->out->limits.n_groups; g++)
		p->out->limits.group[g].per_block = p->out->need.per_block;
	p->out->kv_bytes = ((int64_t)p->out->limits.n_blocks + 1) * p->out->need.per_block;
	return 0;
}

/* Put layers into groups if that saves memory, and the device and these flags allow it. */
static int set_groups(struct planning *p)
{
	struct sr_limits *l = &p->out->limits;

	p->out->whole_block = p->out->need.per_block;
	if (!p->out->need.kinds_in_groups || p->cfg->disable_hybrid_kv_cache_manager)
		return 0;
	groups_choose(l, &p->m->m, p->out->context);
	if (l->n_groups == 1 && l->group[0].window == 0)
		return 0;
	size_batch(p, l->slots, l->tokens);
	return ask(p);
}

/* The most blocks of a sequence. */
static int32_t most_blocks(const struct planning *p, int32_t context)
{
	return groups_most(&p->out->limits, context, p->out->limits.tokens);
}

/* Size the host tier and the number of blocks one batch may move. */
static int set_tier(struct planning *p)
{
	struct sr_limits *l = &p->out->limits;
	/* of several GPUs per_block is that of one, and the host has a tier for each */
	int64_t block = p->out->need.per_block * (p->cpu ? 1 : p->out->limits.world);
	int64_t n = (int64_t)(p->cfg->kv_offloading_size * GIB) / block;

	if (p->cfg->kv_offloading_size <= 0)
		return 0;
	if (has_states(p))
		return fail(p, -ENOTSUP, "--kv-offloading-size: %s has layers with a state for each sequence, and states do not "
		            "leave the device; leave the flag out", p->m->m.arch);
	if (n < 1)
		return fail(p, -EINVAL, "--kv-offloading-size %g GiB holds no block of %.1f MiB",
		            p->cfg->kv_offloading_size, (double)block / MIB);
	l->n_host_blocks = (int32_t)min64(n, 1 << 28);
	l->copies = (int32_t)min64(l->n_host_blocks, max64(COPY_BYTES / block, 2 + 2 * groups_unit(l)));
	p->out->tier_bytes = l->n_host_blocks * block;
	return ask(p);
}

/* Compute needs, budget and blocks for this context. */
static int try_context(struct planning *p, int32_t context)
{
	int64_t total = p->out->need.total, bytes;
	int rc;

	if ((rc = set_limits(p, total, context)) != 0 || (rc = ask(p)) != 0 || (rc = set_groups(p)) != 0 ||
	    (rc = set_ceilings(p)) != 0 || (rc = set_tier(p)) != 0)
		return rc;
	p->out->host_bytes = sum_needs(&p->out->need);
	bytes = kv_budget(p);
	if (bytes < 0)
		return (int)bytes;
	rc = set_states(p, &bytes);
	return rc ? rc : set_blocks(p, bytes);
}

/* The longest context whose blocks fit. */
static int32_t longest(const struct planning *p)
{
	const struct sr_limits *l = &p->out->limits;
	int32_t fits = 0, most = (int32_t)min64(p->m->m.context, (int64_t)l->n_blocks * l->block_tokens);

	for (int32_t step = 1 << 30; step > 0; step /= 2)
		if (step <= most - fits && most_blocks(p, fits + step) <= l->n_blocks)
			fits += step;
	return fits;
}

static int too_long(struct planning *p)
{
	double block = (double)p->out->need.per_block;
	int64_t fits = longest(p), blocks = (int64_t)most_blocks(p, p->out->context) + 1;

	return fail(p, -ENOMEM, "To serve at least one request with the model's max seq len (%d), %.2f GiB "
	            "KV cache is needed, which is larger than the available KV cache memory (%.2f GiB). "
	            "Based on the available memory, the estimated maximum model length is %" PRId64 ". Give "
	            "--max-model-len %" PRId64 " (or auto), or more memory by --kv-cache-memory-bytes "
	            "%" PRId64 " or --gpu-memory-utilization.", p->out->context,
	            (double)blocks * block / GIB, (double)p->out->kv_bytes / GIB, fits, fits,
	            blocks * p->out->need.per_block);
}

/* All memory we take on the device; the host tier counts if the device computes in host memory. */
static int64_t ours(const struct plan *o)
{
	return o->host_bytes + o->kv_bytes + o->state_bytes + (o->on_host ? o->tier_bytes : 0);
}

static int fit_once(struct planning *p)
{
	int32_t of_model = p->m->m.context, context = of_model;
	const int32_t trained = p->m->pooling.max_len;  /* as sentence-transformers says */
	bool largest = p->cfg->max_model_len == -1;
	int rc;

	if (p->cfg->max_model_len > of_model)
		return fail(p, -EINVAL, "User-specified max_model_len (%" PRId64 ") is greater than the derived "
		            "max_model_len (%d): the model has no later positions.",
		            p->cfg->max_model_len, of_model);
	if (p->pools && trained && trained < context)
		context = trained;
	if (is_encoder(p) && context > SR_WHOLE_MAX)
		context = SR_WHOLE_MAX;
	if (p->cfg->max_model_len > 0)
		context = (int32_t)p->cfg->max_model_len;
	if ((rc = set_limits(p, 0, context)) != 0 || (rc = ask(p)) != 0 ||
	    (rc = try_context(p, context)) != 0)
		return rc;
	if (largest && most_blocks(p, context) > p->out->limits.n_blocks) { /* a shorter context needs less of the rest */
		rc = try_context(p, longest(p) > 0 ? longest(p) : 1);
		if (rc)
			return rc;
	}
	if (most_blocks(p, p->out->context) > p->out->limits.n_blocks)
		return too_long(p);
	if (ours(p->out) > p->out->need.avail && p->cpu)
		return fail(p, -ENOMEM, "The plan needs %.2f GiB (%.2f GiB of it KV cache), but only %.2f of "
		            "%.2f GiB are free. Decrease --kv-cache-memory-bytes, --max-num-seqs or "
		            "--max-num-batched-tokens.",
		            (double)ours(p->out) / GIB,
		            (double)(p->out->kv_bytes + p->out->tier_bytes) / GIB,
		            (double)p->out->need.avail / GIB, (double)p->out->need.total / GIB);
	return 0;
}

/* If room for knobs does not fit, plan again without it. */
static int fit(struct planning *p)
{
	int rc;

	p->roomy = true;
	rc = fit_once(p);
	if (rc != -ENOMEM)
		return rc;
	p->roomy = false;
	return fit_once(p);
}

/* ---- the printed sum ------------------------------------------------------------------------ */

__attribute__((format(printf, 2, 3)))
static void say(struct plan *o, const char *fmt, ...)
{
	size_t n = strlen(o->text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(o->text + n, sizeof(o->text) - n, fmt, ap);
	va_end(ap);
}

static void say_bytes(struct plan *o, const char *what, int64_t bytes)
{
	if (bytes >= (int64_t)(10 * GIB))
		say(o, "  %-12s %8.2f GiB  ", what, (double)bytes / GIB);
	else
		say(o, "  %-12s %8.1f MiB  ", what, (double)bytes / MIB);
}

static bool quantized(const struct model *m)
{
	return m->m.layer[0].q.type > SR_F8;
}

static const char *why_kv(const struct planning *p)
{
	if (p->cfg->num_gpu_blocks_override)
		return "--num-gpu-blocks-override";
	if (p->cfg->kv_cache_memory_bytes)
		return "--kv-cache-memory-bytes";
	if (!p->cpu || p->cfg->gpu_memory_utilization_given)
		return "--gpu-memory-utilization";
	return p->out->kv_bytes > KV_DEFAULT - 2 * p->out->need.per_block
		? "default on the CPU" : "a quarter of what is free";
}

/* Only if there are several, or one with a window. */
static void describe_groups(struct planning *p)
{
	struct plan *o = p->out;
	const struct sr_limits *l = &o->limits;
	int32_t full = 0, padding = groups_padding(l, &p->m->m), blocks = groups_most(l, o->context, 1);
	int64_t whole = (int64_t)l->seq_blocks * o->whole_block;

	for (int32_t g = 0; g < l->n_groups; g++)
		full += l->group[g].window == 0;
	if (l->n_groups == 1 && full)
		return;
	say(o, "  %-12s %8d      of up to %d layers, %d with all tokens, %d with a window's; %d places are padding\n",
	    "KV groups", l->n_groups, l->group[0].layers, full, l->n_groups - full, padding);
	say(o, "  %-12s %8d      blocks for a request of %d tokens: %.1f %% of the bytes that all tokens of all layers "
	    "take\n", "", blocks, o->context, 100.0 * (double)blocks * (double)o->need.per_block / (double)whole);
}

static void describe(struct planning *p)
{
	static const char *const kv_name[] = { "bfloat16", "float16", "fp8", "int8", "float32" };
	struct plan *o = p->out;
	const struct sr_limits *l = &o->limits;
	const struct sr_need *n = &o->need;

	say(o, "memory plan on %s: %.2f of %.2f GiB are free\n", p->ops->name, (double)n->avail / GIB,
	    (double)n->total / GIB);
	say_bytes(o, "weights", n->weights);
	say(o, "stored as %s\n", p->m->stored);
	if (p->m->left_out[0])
		say(o, "  not read: %s\n", p->m->left_out);
	if (l->world > 1)
		say(o, p->cpu ? "  of %d ranks together, each a process with its columns of every matrix and its heads%s\n" :
		    "  on each of %d GPUs, which all hold some columns of every matrix and some heads%s\n", l->world,
		    l->world > p->m->m.kind[0].n_kv_heads ? "; more ranks than KV heads, so some keep a copy" : "");
	say_bytes(o, "activations", n->scratch);
	say(o, "steps of up to %d tokens, logits of %d rows of %d\n", l->tokens, l->logit_rows, p->m->m.n_vocab);
	if (n->graphs) {
		say_bytes(o, "graphs", n->graphs);
		say(o, l->eager ? "none; what libraries take: an estimate\n"
		    : "captured, and what libraries take: an estimate (--enforce-eager: none)\n");
	}
	say_bytes(o, "slots", n->slots);
	say(o, "up to %d sequences at a time\n", l->slots);
	say_bytes(o, "batches", n->pinned);
	say(o, "rows, commands and results; masks of %d guided answers (--max-guided-seqs)\n", l->masks / 2);
	if (l->drafts)
		say(o, "  %-12s %8d      a row, %d a step, by %d to %d words that stand there once more (--speculative-config)\n",
		    "guesses", p->cfg->draft_most, l->drafts, p->cfg->draft_least, p->cfg->draft_longest);
	say_bytes(o, "KV cache", o->kv_bytes);
	say(o, "%d blocks of %d tokens, %.1f KiB a token%s in %s (%s)\n", l->n_blocks, l->block_tokens,
	    (double)n->per_block / l->block_tokens / 1024, l->n_groups > 1 ? " and group" : "",
	    kv_name[l->kv_type], why_kv(p));
	describe_groups(p);
	if (l->n_states) {
		say_bytes(o, "states", o->state_bytes);
		say(o, "%d of %.1f MiB: one for each running sequence, others under the prefix cache (--max-states)\n",
		    l->n_states, (double)n->per_state / MIB);
	}
	if (l->n_host_blocks) {
		say_bytes(o, "host tier", o->tier_bytes);
		say(o, "%d blocks of host memory, at most %d moved in a step (--kv-offloading-size)\n",
		    l->n_host_blocks, l->copies);
	}
	say_bytes(o, "sum", ours(o));
	say(o, "%.1f %% of the memory%s\n", n->total > 0 ? 100.0 * (double)ours(o) / (double)n->total : 0,
	    l->n_host_blocks && !o->on_host ? ", the host tier not counted" : "");
	say(o, "steps begin with %d sequences (--max-num-seqs) and %d tokens (--max-num-batched-tokens)\n",
	    o->max_seqs, o->batch_tokens);
	say(o, "\"slipring set\" can raise them to %d and %d, at %.1f MiB of the sum (--knob-ceiling)\n",
	    l->slots, l->tokens, (double)o->ceiling_bytes / MIB);
	say(o, "dtype %s: stored as %s, computed in %s with float32 sums\n", p->cfg->dtype, p->m->stored,
	    !p->cpu ? "bfloat16" : quantized(p->m) ? "8-bit integers" : p->m->m.layer[0].q.type == SR_F32
	    ? "float32" : "bfloat16 or wider");
	say(o, "GPU KV cache size: %" PRId64 " tokens\n", o->kv_tokens);
	say(o, "Maximum concurrency for %d tokens per request: %.2fx\n", o->context, o->full_seqs);
}

/* How much fits: of one group every block counts alike; of several, sequences of full length are counted. */
static void set_capacity(struct plan *o)
{
	const struct sr_limits *l = &o->limits;

	o->kv_tokens = (int64_t)l->n_blocks * l->block_tokens;
	if (l->n_groups > 1 || l->group[0].window > 0)
		o->kv_tokens = (int64_t)((double)l->n_blocks / groups_most(l, o->context, 1) * o->context);
	o->full_seqs = (double)o->kv_tokens / o->context;
}

int plan_make(struct plan *out, const struct config *cfg, const struct model *m,
              const struct sr_backend_ops *ops,
              char *err, size_t errlen)
{
	struct planning p = { .out = out, .cfg = cfg, .m = m, .ops = ops, .cpu = strcmp(ops->name,
	                                                                                "cuda") != 0,
	                      .err = err, .errlen = errlen };
	int rc;

	p.pools = cfg->runner == RUNNER_POOLING || (cfg->runner == RUNNER_AUTO && m->pooling.kind);
	if (only_pools(&p) && cfg->runner == RUNNER_GENERATE)
		return fail(&p, -EINVAL, "--runner generate: %s %s", m->m.arch, is_encoder(&p) ?
		            "is an encoder, which makes vectors alone (--runner pooling)" :
		            "has a classifier instead of a head that makes tokens (--runner pooling)");
	p.pools |= only_pools(&p);
	if (cfg->pooler_config && !p.pools)
		return fail(&p, -EINVAL, "--pooler-config: %s generates; --runner pooling makes vectors of its prompts", m->m.name);
	memset(out, 0, sizeof(*out));
	out->on_host = p.cpu;
	if ((rc = check_flags(&p)) != 0 || (rc = parse_ceilings(&p)) != 0 || (rc = fit(&p)) != 0)
		return rc;
	set_capacity(out);
	describe(&p);
	return 0;
}
