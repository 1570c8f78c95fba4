/* pooled.c - see pooled.h. */
#include "pooled.h"

#include <stdlib.h>
#include <string.h>

#include "fields.h"

#define MOST_INPUTS   1024
#define MOST_ELEMENTS (4ll << 20)      /* of all vectors of an answer: 16 MiB */

/* The words that Qwen3-Reranker was trained with, around a query and a document. */
static const char before_query[] =
	"<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
	"Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
	"<Instruct>: ";
static const char after_document[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
static const char instruction[] =
	"Given a web search query, retrieve relevant passages that answer the query";

struct wanted {                        /* fields of a request that struct ask does not have */
	const char *encoding, *endianness, *dtype, *instruction, *input_type, *task;
	int64_t dimensions, top_n;
	bool    normalize, activation;
};

#define ASK(member)    offsetof(struct ask, member)
#define WANTED(member) offsetof(struct wanted, member)
enum { E = 1 << POOLED_EMBED, S = 1 << POOLED_SCORE, R = 1 << POOLED_RERANK, C = 1 << POOLED_CLASSIFY,
       P = 1 << POOLED_PLAIN, ALL = E | S | R | C | P };

static const struct field common[] = {
	{ "model", FIELD_STRING, true, ALL, ASK(model) },
	{ "user", FIELD_STRING, true, ALL, ASK(user) },
	{ "truncate_prompt_tokens", FIELD_INT, true, ALL, ASK(truncate) },
	{ "truncation_side", FIELD_STRING, true, ALL, ASK(truncation_side) },
	{ "priority", FIELD_INT, false, ALL, ASK(priority) },
	{ "request_id", FIELD_STRING, false, ALL, ASK(request_id) },
	{ "add_special_tokens", FIELD_BOOL, false, E | C | P, ASK(add_special) },
};

static const struct field others[] = {
	{ "encoding_format", FIELD_STRING, true, E | P, WANTED(encoding) },
	{ "endianness", FIELD_STRING, true, E | P, WANTED(endianness) },
	{ "embed_dtype", FIELD_STRING, true, E | P, WANTED(dtype) },
	{ "dimensions", FIELD_INT, true, E | P, WANTED(dimensions) },
	{ "task", FIELD_STRING, true, P, WANTED(task) },
	{ "normalize", FIELD_BOOL, true, E, WANTED(normalize) },
	{ "use_activation", FIELD_BOOL, true, ALL, WANTED(activation) },
	{ "input_type", FIELD_STRING, true, E, WANTED(input_type) },
	{ "instruction", FIELD_STRING, true, S | R, WANTED(instruction) },
	{ "top_n", FIELD_INT, false, R, WANTED(top_n) },
};

static bool is_one_of(const char *s, const char *a, const char *b)
{
	return !s || !strcmp(s, a) || (b && !strcmp(s, b));
}

/* A value of a field that no answer here can have is refused by name. */
static int check_wanted(struct pooled_ask *a, enum pooled_kind kind, const struct wanted *w,
                        const struct pooled_model *m, struct problem *p)
{
	const char *task = m->n_labels ? "classify" : "embed";
	char value[24];

	if (!is_one_of(w->encoding, "float", "base64"))
		return problem_bad(p, "encoding_format", "encoding_format must be float or base64 in Slipring, not "
		                   "%.40s.", w->encoding);
	if (!is_one_of(w->endianness, "native", "little"))
		return problem_bad(p, "endianness", "endianness must be native or little in Slipring.");
	if (!is_one_of(w->dtype, "float32", NULL))
		return problem_bad(p, "embed_dtype", "embed_dtype must be float32 in Slipring.");
	if (w->dimensions != ASK_NONE && (w->dimensions < 1 || (m->width && w->dimensions > m->width))) {
		snprintf(value, sizeof(value), "%lld", (long long)w->dimensions);
		return problem_value(p, "dimensions", value, w->dimensions < 1 ? "Dimensions must be greater than 0" :
		                     "Dimensions must be at most %lld, the width of this model's vectors",
		                     (long long)m->width);
	}
	if (w->top_n < 0)
		return problem_bad(p, "top_n", "top_n must not be negative.");
	if (kind == POOLED_PLAIN && w->dimensions != ASK_NONE)
		return problem_bad(p, "dimensions", "dimensions is currently not supported");
	if (!is_one_of(w->task, task, NULL))
		return problem_bad(p, "task", "task must be %s for this model, not %.40s.", task, w->task);
	if (!is_one_of(w->input_type, "query", "document"))
		return problem_bad(p, "input_type", "input_type must be query or document.");
	a->base64 = w->encoding && !strcmp(w->encoding, "base64");
	a->width = w->dimensions == ASK_NONE ? 0 : w->dimensions;
	a->unit = m->unit && w->normalize && w->activation;
	a->activation = w->activation;
	a->top_n = w->top_n;
	return 0;
}

static bool of_integers(const json_t *v)
{
	return json_is_array(v) && json_is_integer(json_array_get(v, 0));
}

/* A text, a list of ids, or a list of either.  Room for n more prompts. */
static bool room(struct pooled_ask *a, size_t n)
{
	struct prompt *q = realloc(a->ask.prompt, ((size_t)a->ask.n_prompts + n) * sizeof(*q));

	if (!q)
		return false;
	a->ask.prompt = q;
	memset(q + a->ask.n_prompts, 0, n * sizeof(*q));
	return true;
}

static int take_input(struct pooled_ask *a, json_t *v, const char *name, struct problem *p)
{
	struct prompt *q = &a->ask.prompt[a->ask.n_prompts++];

	if (json_is_string(v)) {
		q->text = json_string_value(v);
		q->n_text = json_string_length(v);
	} else if (!of_integers(v)) {
		return problem_field(p, name, "Input should be a string, a list of strings, a list of token ids, or "
		                     "a list of such lists.");
	} else if (field_ids(v, name, 0, &q->ids, p) < 0) {
		return -1;
	}
	return 0;
}

static int take_inputs(struct pooled_ask *a, json_t *v, const char *name, struct problem *p)
{
	size_t n = json_is_array(v) && !of_integers(v) ? json_array_size(v) : 1;

	if (!v || json_is_null(v) || !n)
		return problem_value(p, name, NULL, "%s must be provided and non-empty.", name);
	if (n > MOST_INPUTS)
		return problem_value(p, name, NULL, "%s list length %zu exceeds the maximum allowed count of "
		                     "%d.", name, n, MOST_INPUTS);
	if (!room(a, n))
		return problem_memory(p);
	if (!json_is_array(v) || of_integers(v))
		return take_input(a, v, name, p);
	for (size_t i = 0; i < n; i++)
		if (take_input(a, json_array_get(v, i), name, p) < 0)
			return -1;
	return 0;
}

/* Replace the text of a prompt by up to five parts. */
static int write_prompt(struct prompt *q, const char *const part[5], const size_t n[5], struct problem *p)
{
	size_t all = 0;
	char *s;

	for (int i = 0; i < 5; i++)
		all += n[i];
	s = malloc(all + 1);
	if (!s)
		return problem_memory(p);
	q->own = s;
	q->n_text = all;
	for (int i = 0; i < 5; s += n[i++])
		memcpy(s, part[i], n[i]);
	q->text = q->own;
	return 0;
}

/* "Instruct: ..\nQuery:" before a query, as Qwen3-Embedding has it. */
static int instruct(struct prompt *q, const char *task, struct problem *p)
{
	const char *const part[5] = { "Instruct: ", task, "\nQuery:", q->text, "" };
	const size_t n[5] = { 10, strlen(task), 7, q->n_text, 0 };

	return q->text ? write_prompt(q, part, n, p) : 0;
}

/* Documents become pairs with their queries: one prompt each.  Then the queries are gone. */
static int pair(struct pooled_ask *a, const char *task, struct problem *p)
{
	struct prompt *q = a->ask.prompt;
	int n_queries = a->n_queries;

	for (int i = 0; i < a->n_texts; i++) {
		const struct prompt *query = &q[i % n_queries];
		struct prompt *doc = &q[n_queries + i];
		char *head = malloc(strlen(task) + 16);
		int rc;

		if (!head)
			return problem_memory(p);
		if (!query->text || !doc->text) {
			free(head);
			return problem_bad(p, NULL, "This model scores texts, not token ids.");
		}
		sprintf(head, "%s\n<Query>: ", task);
		rc = write_prompt(doc, (const char *const[5]){ before_query, head, query->text, "\n<Document>: ",
		                                               doc->text },
		                  (const size_t[5]){ sizeof(before_query) - 1, strlen(head), query->n_text, 13,
		                                     doc->n_text }, p);
		free(head);
		if (rc < 0)
			return rc;
	}
	for (int i = 0; i < a->n_texts; i++) {
		struct prompt *doc = &q[n_queries + i];
		char *own = doc->own;
		int rc = write_prompt(doc, (const char *const[5]){ own, after_document, "", "", "" },
		                      (const size_t[5]){ doc->n_text, sizeof(after_document) - 1, 0, 0, 0 }, p);

		free(own);
		if (rc < 0) {
			doc->own = NULL;
			return rc;
		}
	}
	memmove(q, q + n_queries, (size_t)a->n_texts * sizeof(*q));
	a->ask.n_prompts = a->n_texts;
	return 0;
}

/* Documents become the second texts of pairs, in the model's own form.  Then the queries are gone. */
static int join(struct pooled_ask *a, struct problem *p)
{
	struct prompt *q = a->ask.prompt;

	for (int i = 0; i < a->n_texts; i++) {
		const struct prompt *query = &q[i % a->n_queries];
		struct prompt *doc = &q[a->n_queries + i];

		if (!query->text || !doc->text)
			return problem_bad(p, NULL, "This model scores texts, not token ids.");
		doc->with = doc->text;
		doc->n_with = doc->n_text;
		doc->text = query->text;
		doc->n_text = query->n_text;
	}
	memmove(q, q + a->n_queries, (size_t)a->n_texts * sizeof(*q));
	a->ask.n_prompts = a->n_texts;
	return 0;
}

/* What the model cannot answer. */
static int check_kind(const struct pooled_ask *a, enum pooled_kind kind, const struct pooled_model *m,
                      struct problem *p)
{
	const bool pairs = kind == POOLED_SCORE || kind == POOLED_RERANK;

	if (kind == POOLED_EMBED && (m->reranks || m->n_labels))
		return problem_bad(p, NULL, "The model does not support Embeddings API");
	if (kind == POOLED_CLASSIFY && !m->n_labels)
		return problem_bad(p, NULL, "The model does not support Classification API");
	if (kind == POOLED_PLAIN && m->reranks && !m->n_labels)
		return problem_bad(p, NULL, "The model does not support Pooling API");
	if (pairs && m->n_labels > 1 && !m->reranks)
		return problem_bad(p, NULL, "Scoring API is only enabled for num_labels == 1; this model has %d.",
		                   m->n_labels);
	if (pairs && m->n_labels && a->ask.truncation_side && strcmp(a->ask.truncation_side, "right"))
		return problem_bad(p, "truncation_side", "truncation_side must be right for pairs in Slipring.");
	return 0;
}

/* The fields of these names, the first that is given. */
static json_t *first_of(const json_t *root, const char *const *name, const char **found)
{
	for (int i = 0; name[i]; i++)
		if (json_object_get(root, *found = name[i]))
			return json_object_get(root, name[i]);
	*found = name[0];
	return NULL;
}

static int take_pairs(struct pooled_ask *a, enum pooled_kind kind, const struct wanted *w,
                      const struct pooled_model *m, struct problem *p)
{
	static const char *const queries[] = { "queries", "text_1", "data_1", NULL };
	static const char *const query[] = { "query", NULL };
	static const char *const documents[] = { "documents", "text_2", "data_2", "items", NULL };
	const char *task = w->instruction ? w->instruction : instruction, *name;
	json_t *v = first_of(a->ask.root, kind == POOLED_RERANK ? query : queries, &name);

	if (kind == POOLED_RERANK && v && !json_is_string(v))
		return problem_field(p, name, "Input should be a valid string");
	if (take_inputs(a, v, name, p) < 0)
		return -1;
	a->n_queries = a->ask.n_prompts;
	a->documents = v = first_of(a->ask.root, documents, &name);
	if (take_inputs(a, v, name, p) < 0)
		return -1;
	a->n_texts = a->ask.n_prompts - a->n_queries;
	if (a->n_queries > 1 && a->n_queries != a->n_texts)
		return problem_value(p, NULL, NULL, "Input lengths must be either 1:1, 1:N or N:N");
	if (m->reranks)
		return pair(a, task, p);
	if (m->n_labels)
		return join(a, p);
	for (int i = 0; i < a->n_queries && m->instructs; i++)
		if (instruct(&a->ask.prompt[i], task, p) < 0)
			return -1;
	return 0;
}

int pooled_parse(struct pooled_ask *a, enum pooled_kind kind, const char *body, size_t n,
                 const struct ask_limits *l, const struct pooled_model *m, struct problem *p)
{
	struct wanted w = { .dimensions = ASK_NONE, .normalize = true, .activation = true };
	struct ask_limits limits = *l;
	const uint8_t in = (uint8_t)(1 << kind);
	int rc;

	*a = (struct pooled_ask){ .ask = { .kind = ASK_COMPLETION, .n = 1, .logprobs = ASK_NONE,
		.priority = l->priority,
		.prompt_logprobs = ASK_NONE, .truncate = ASK_NONE, .add_special = true } };
	if (ask_json(&a->ask.root, body, n, p) < 0)
		return -1;
	if (json_object_get(a->ask.root, "messages"))
		return problem_bad(p, "messages", "messages are not supported by this endpoint: give input.");
	if (fields_read(common, sizeof(common) / sizeof(common[0]), in, a->ask.root, &a->ask, p) < 0 ||
	    fields_read(others, sizeof(others) / sizeof(others[0]), in, a->ask.root, &w, p) < 0)
		return -1;
	if (a->ask.model && a->ask.model[0] && ask_model_known(a->ask.model, l, p) < 0)
		return -1;
	if (ask_priority(&a->ask, l, p) < 0 || check_wanted(a, kind, &w, m, p) < 0)
		return -1;
	if (check_kind(a, kind, m, p) < 0)
		return -1;
	if (m->max_len && m->max_len < limits.context)
		limits.context = m->max_len;
	if (a->ask.truncate != ASK_NONE && (a->ask.truncate < -1 || a->ask.truncate > limits.context))
		return problem_bad(p, "truncate_prompt_tokens", "truncate_prompt_tokens value (%lld) is greater than "
		                   "max_model_len (%lld). Please, select a smaller truncation size.",
		                   (long long)a->ask.truncate, (long long)limits.context);
	rc = kind == POOLED_SCORE || kind == POOLED_RERANK ? take_pairs(a, kind, &w, m, p) :
	     take_inputs(a, json_object_get(a->ask.root, "input"), "input", p);
	if (rc < 0)
		return rc;
	if (kind == POOLED_EMBED && w.input_type && !strcmp(w.input_type, "query") && m->instructs)
		for (int i = 0; i < a->ask.n_prompts; i++)
			if (instruct(&a->ask.prompt[i], instruction, p) < 0)
				return -1;
	if (m->width && a->ask.n_prompts * (a->width ? a->width : m->width) > MOST_ELEMENTS)
		return problem_bad(p, NULL, "The answer would have %lld elements; at most %lld are given in one "
		                   "request.",
		                   a->ask.n_prompts * (long long)m->width, MOST_ELEMENTS);
	return ask_prompts(&a->ask, &limits, p);
}
