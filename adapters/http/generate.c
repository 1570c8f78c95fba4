/* generate.c - /inference/v1/generate: token ids in, token ids out, in vLLM's form. */
#include <string.h>

#include "dialect.h"
#include "events.h"
#include "request.h"

static int parse(struct ask *a, const char *body, size_t n, const struct ask_limits *l, struct problem *p)
{
	return ask_tokens(a, ask_generate_api, body, n, l, p) < 0 ? -1 : ask_prompts(a, l, p);
}

static void name_and_model(struct request *r)
{
	struct out *o = &r->event;

	PUT(o, "{\"request_id\":");
	out_json_str(o, r->id);
	if (r->ask.stream)
		return;
	PUT(o, ",\"model\":");
	out_json_str(o, r->model);
	PUT(o, ",\"created\":");
	out_int(o, r->created);
}

/* ---- a choice ---- */

static bool choice_opens(struct request *r)
{
	event_choice_opens(r);
	return true;
}

static bool no_experts(struct request *r)
{
	PUT(&r->event, ",\"routed_experts\":null,\"sampling_mask\":null");
	return true;
}

/* The weights never change while a daemon runs. */
static bool weights(struct request *r)
{
	if (r->pen.ended)
		out_fmt(&r->event, ",\"weight_versions\":[{\"version\":\"default\",\"start\":0,\"end\":%u}]",
		        r->pen.c->n_tokens);
	return true;
}

static void scored(struct request *r, struct sr_pair e, uint32_t rank)
{
	struct out *o = &r->event;

	PUT(o, "{\"token_id\":");
	out_int(o, e.id);
	PUT(o, ",\"logprob\":");
	out_double(o, event_logprob(e.value));
	PUT(o, ",\"rank\":");
	out_int(o, rank);
}

/* ,"logprobs":{"content":[{..,"top_logprobs":[..]},..]}: of each token itself first, then the others. */
static bool logprobs(struct request *r)
{
	struct out *o = &r->event;
	struct pen *k = &r->pen;
	struct score p;

	if (r->ask.logprobs == ASK_NONE) {
		PUT(o, ",\"logprobs\":null");
		return true;
	}
	if (!k->some)
		PUT(o, ",\"logprobs\":{\"content\":[");
	if (!scores_next(&k->c->scores, k->n_scores, &k->at, &p)) {
		PUT(o, "]}");
		return true;
	}
	if (k->some)
		PUT(o, ",");
	k->some = true;
	scored(r, (struct sr_pair){ p.id, p.logprob }, p.rank);
	PUT(o, ",\"top_logprobs\":[");
	scored(r, (struct sr_pair){ p.id, p.logprob }, p.rank);
	for (uint32_t i = 0; i < p.n_top; i++)
		if (p.top[i].id != p.id) {
			PUT(o, "},");
			scored(r, p.top[i], i + 1);
		}
	PUT(o, "}]}");
	return false;
}

/* ---- events ---- */

static bool event_opens(struct request *r)
{
	PUT(&r->event, "data: ");
	name_and_model(r);
	return true;
}

static bool asked_prompt_ids(struct request *r)
{
	return r->pen.first && r->ask.prompt_ids ? event_prompt_ids(r) : true;
}

static bool choices_open(struct request *r)
{
	PUT(&r->event, ",\"output_mode\":\"tokens\",\"choices\":[");
	return true;
}

static bool part_closes(struct request *r)
{
	struct pen *k = &r->pen;

	PUT(&r->event, "}]");
	if (event_usage_so_far(r, event_prompt(r)->ids.n, k->n_counted))
		PUT(&r->event, "}");
	PUT(&r->event, "}\n\n");
	choice_written(k->c, &k->part, k->n_scores, k->n_ids);
	return true;
}

static bool usage_alone(struct request *r)
{
	PUT(&r->event, ",");
	event_usage_object(r);
	PUT(&r->event, ",\"output_mode\":\"tokens\",\"choices\":[]}\n\n");
	return true;
}

/* ---- the whole answer ---- */

static bool answer_opens(struct request *r)
{
	name_and_model(r);
	PUT(&r->event, ",");
	event_usage_object(r);
	return true;
}

static bool no_ids_of_prompt(struct request *r)
{
	PUT(&r->event, ",\"prompt_token_id_logprobs\":null");
	if (!r->ask.prompt_ids)
		PUT(&r->event, ",\"prompt_token_ids\":null");
	return true;
}

static bool nothing_else(struct request *r)
{
	PUT(&r->event, ",\"mm_placeholders\":null,\"metrics\":null,\"kv_transfer_params\":null,"
	    "\"ec_transfer_params\":null");
	return true;
}

static bool answer_closes(struct request *r)
{
	PUT(&r->event, "]}");
	return true;
}

static event_field *const chunk[] = { event_opens, asked_prompt_ids, choices_open, choice_opens,
	event_finish_reason, event_stop_reason, event_token_ids, weights, logprobs, part_closes, NULL };
static event_field *const all_usage[] = { event_opens, usage_alone, NULL };
#define CHOICE 6                             /* where a choice begins in `answer` */
static event_field *const answer[] = { answer_opens, event_prompt_logprobs, no_ids_of_prompt,
	asked_prompt_ids, nothing_else, choices_open, choice_opens, event_finish_reason, event_stop_reason,
	event_token_ids, no_experts, weights, logprobs, event_next_choice, answer_closes, NULL };

static void part(struct request *r, struct choice *c) { event_of_part(r, c, chunk, false); }
static void usage(struct request *r) { r->pen = (struct pen){ .field = all_usage }; }

static void whole(struct request *r)
{
	event_of_answer(r, answer, false);
	r->pen.next_choice = answer + CHOICE;
}

const struct dialect dialect_generate = {
	.path = "/inference/v1/generate", .id_prefix = "generate-tokens", .object = "generate",
	.chunk = "generate",
	.parse = parse, .part = part, .usage = usage, .end = "data: [DONE]\n\n", .whole = whole,
	.problem = event_problem,
};
