/* tokenize.c - /tokenize, /detokenize, /apply-template, the routes that count tokens and those that render:
 * text to ids and back, without the daemon. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "adapters/text/slipring-text.h"
#include "dialect.h"
#include "render.h"
#include "shmring/clock.h"
#include "state.h"

struct call {
	struct work work;
	struct api *api;
	struct exchange *x;                  /* NULL: the client is gone */
	enum ask_kind kind;
	const struct dialect *dialect;       /* NULL, or count a completion's tokens */
	enum { COUNTED, TEMPLATED, RENDERED } as; /* what is answered: their number, the prompt's text, all */
	char id[24];                         /* RENDERED: the request's, if it names none */
	struct ask_limits limits;
	struct problem problem;
	char *body;
	size_t body_n;
	struct out out;
};

static void write_tokens(struct call *c, const struct ask *a)
{
	const struct ask_ids *ids = &a->prompt[0].ids;
	struct out *o = &c->out;
	const char *s;
	int n;

	out_fmt(o, "{\"count\":%u,\"max_model_len\":", ids->n);
	if (c->limits.context)
		out_int(o, c->limits.context);
	else
		out_str(o, "null");
	out_str(o, ",\"tokens\":");
	out_ids(o, ids->id, ids->n);
	out_str(o, ",\"token_strs\":");
	if (!a->return_token_strs) {
		out_str(o, "null}");
		return;
	}
	out_str(o, "[");
	for (uint32_t i = 0; i < ids->n; i++) {
		n = sr_text_spelling(c->limits.text, ids->id[i], &s);
		if (i)
			out_str(o, ",");
		out_json(o, n > 0 ? s : "", n > 0 ? (size_t)n : 0);
	}
	out_str(o, "]}");
}

static int write_text(struct call *c, const struct ask *a)
{
	const struct ask_ids *t = &a->tokens;
	struct out text = { 0 };
	int64_t n;

	for (uint32_t i = 0; i < t->n; i++)
		if (t->id[i] < 0 || t->id[i] >= sr_text_info(c->limits.text)->vocab)
			return problem_bad(&c->problem, NULL, "Token id %lld is out of vocabulary",
			                   (long long)json_integer_value(json_array_get(
			                   json_object_get(a->root, "tokens"), i)));
	n = sr_text_decode(c->limits.text, t->id, t->n, false, NULL, 0);
	if (n < 0 || !out_room(&text, (size_t)n + 1))
		return problem_memory(&c->problem);
	sr_text_decode(c->limits.text, t->id, t->n, false, text.p, (size_t)n);
	out_str(&c->out, "{\"prompt\":");
	out_json(&c->out, text.p, (size_t)n);
	out_str(&c->out, "}");
	out_free(&text);
	return 0;
}

static void write_prompt(struct call *c, const struct ask *a)
{
	out_str(&c->out, "{\"prompt\":");
	out_json(&c->out, a->prompt[0].text, a->prompt[0].n_text);
	out_str(&c->out, "}");
}

static void run(struct work *w)
{
	struct call *c = (struct call *)w;
	struct ask a;

	if (c->dialect) {
		if (c->dialect->parse(&a, c->body, c->body_n, &c->limits, &c->problem))
			;
		else if (c->as == TEMPLATED)
			write_prompt(c, &a);
		else if (c->as == RENDERED)
			render_write(&c->out, &a, &c->limits, c->dialect, c->id, &c->problem);
		else
			out_fmt(&c->out, "{%s\"input_tokens\":%u}", c->dialect->count_object, a.prompt[0].ids.n);
	} else if (!ask_parse(&a, c->kind, c->body, c->body_n, &c->limits, &c->problem)) {
		if (c->kind == ASK_DETOKENIZE)
			write_text(c, &a);
		else if (!ask_prompts(&a, &c->limits, &c->problem))
			write_tokens(c, &a);
	}
	if (c->out.failed && !c->problem.status)
		problem_memory(&c->problem);
	ask_free(&a);
}

static void done(struct work *w)
{
	struct call *c = (struct call *)w;

	if (c->x && c->problem.status) {
		api_problem(c->x, &c->problem);
	} else if (c->x) {
		exchange_give(c->x, 200, JSON_TYPE, asked_lines(c->x), c->out.p, c->out.n);
		c->out.p = NULL;
	}
	out_free(&c->out);
	free(c->body);
	free(c);
}

static void gone(void *owner) { ((struct call *)owner)->x = NULL; }

static void start(struct api *a, struct exchange *x, enum ask_kind kind, const struct dialect *d, int as)
{
	const struct http_request *h = exchange_request(x);
	const struct asked *q = exchange_ctx(x);
	struct call *c = calloc(1, sizeof(*c));
	struct problem p;
	uint64_t made;

	if (!c) {
		problem_memory(&p);
		api_problem(x, &p);
		return;
	}
	c->work = (struct work){ .run = run, .done = done, .bytes = h->body.n, .tenant = q->right.tenant,
	                          .text = true };
	c->api = a;
	c->x = x;
	c->kind = kind;
	c->dialect = d;
	c->as = as;
	if (getrandom(&made, sizeof(made), 0) < 0)
		made = sr_now();
	snprintf(c->id, sizeof(c->id), "%016llx", (unsigned long long)made);
	api_limits(a, &c->limits);
	if (d && as != RENDERED)
		c->limits.context = INT32_MAX;
	c->body = malloc(h->body.n + 1);
	c->body_n = h->body.n;
	if (!c->body) {
		problem_memory(&c->problem);
		done(&c->work);
		return;
	}
	memcpy(c->body, h->body.s, h->body.n);
	exchange_drop_body(x);
	if (c->body_n <= PREPARE_HERE) {
		run(&c->work);
		done(&c->work);
		return;
	}
	asked_by(x, gone, c);
	if (workers_give(a->workers, &c->work) < 0) {
		problem_set(&c->problem, 503, "ServiceUnavailableError", NULL,
		            "Too many long requests are waiting. Try again later.");
		done(&c->work);
	}
}

void tokenize(struct api *a, struct exchange *x) { start(a, x, ASK_TOKENIZE, NULL, COUNTED); }
void detokenize(struct api *a, struct exchange *x) { start(a, x, ASK_DETOKENIZE, NULL, COUNTED); }
void count_tokens(struct api *a, struct exchange *x) { start(a, x, ASK_CHAT, api_dialect(x), COUNTED); }
void apply_template(struct api *a, struct exchange *x) { start(a, x, ASK_CHAT, api_dialect(x), TEMPLATED); }
void render(struct api *a, struct exchange *x) { start(a, x, ASK_CHAT, api_dialect(x), RENDERED); }
