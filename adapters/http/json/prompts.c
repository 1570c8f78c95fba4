/* prompts.c - ask_prompts: turns the prompts and bad words of a checked request into token ids and checks
 * that they fit the context.  This is the expensive half of a request: long ones run on a worker thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/slipring-text.h"
#include "openai.h"

static int too_long(const struct ask_limits *l, uint32_t n, struct problem *p)
{
	char value[24];

	snprintf(value, sizeof(value), "%u", n);
	return problem_value(p, "input_tokens", value, "This model's maximum context length is %lld tokens. "
	                     "However, your prompt contains %s%u input tokens, which exceeds this limit even "
	                     "without any output tokens. Please reduce the length of the input prompt.",
	                     (long long)l->context, n == l->context + 1 ? "at least " : "", n);
}

/* Tokenize a prompt.  Unless ids are cut from the left, it stops one token past the context: that is
 * enough to refuse the prompt. */
static int encode_prompt(const struct ask *a, const struct ask_limits *l, struct prompt *q, struct problem *p)
{
	int flags = SR_TEXT_SPECIAL_PARSE | (a->add_special ? SR_TEXT_SPECIAL_ADD : 0);
	bool all = a->kind == ASK_TOKENIZE || (a->truncate != ASK_NONE && a->truncation_side &&
	                                       !strcmp(a->truncation_side, "left"));
	size_t limit = all ? 0 : (size_t)l->context;
	size_t cap = q->n_text / 3 + 64;
	int64_t n;

	/* Refuse at once what cannot fit, even if normalizing makes it four times shorter. */
	if (!all && a->truncate == ASK_NONE && q->n_text / 4 / sr_text_longest(l->text) > (size_t)l->context)
		return too_long(l, (uint32_t)l->context + 1, p);
	if (all && q->n_text > ASK_TEXT_BYTES)
		return problem_bad(p, "prompt", "The text has %zu bytes; /tokenize and truncation from the left take "
		                   "at most %u.", q->n_text, ASK_TEXT_BYTES);
	if (limit && cap > limit + 1)
		cap = limit + 1;
	for (;;) {
		int32_t *ids = realloc(q->ids.id, cap * sizeof(*ids));

		if (!ids)
			return problem_memory(p);
		q->ids.id = ids;
		n = sr_text_encode(l->text, q->text, q->n_text, flags, ids, cap, limit);
		if (n < 0)
			return n == -ENOMEM ? problem_memory(p) :
				problem_bad(p, "prompt", "The prompt cannot be tokenized: %s.",
				            strerror((int)-n));
		if ((size_t)n <= cap)
			break;
		cap = (size_t)n;              /* the second run is the last, because the ids now fit */
	}
	q->ids.n = (uint32_t)n;
	return 0;
}

/* A pair of texts becomes one prompt.  What is too long is cut as transformers cuts pairs. */
static int encode_pair(const struct ask *a, const struct ask_limits *l, struct prompt *q, struct problem *p)
{
	const size_t most = (size_t)(a->truncate == ASK_NONE ? 0 : a->truncate == -1 ? l->context : a->truncate);
	const size_t bytes = q->n_text + q->n_with;
	size_t cap = most ? most : bytes / 3 + 64;
	int64_t n;

	if (!most && bytes / 4 / sr_text_longest(l->text) > (size_t)l->context)
		return too_long(l, (uint32_t)l->context + 1, p);
	if (bytes > ASK_TEXT_BYTES)
		return problem_bad(p, NULL, "The two texts have %zu bytes; a pair takes at most %u.", bytes,
		                   ASK_TEXT_BYTES);
	for (;;) {
		int32_t *ids = realloc(q->ids.id, (cap + 1) * sizeof(*ids));

		if (!ids)
			return problem_memory(p);
		q->ids.id = ids;
		n = sr_text_encode_pair(l->text, q->text, q->n_text, q->with, q->n_with, SR_TEXT_SPECIAL_PARSE, most,
		                        ids, cap, &q->second);
		if (n == -ENOTSUP)
			return problem_bad(p, NULL, "The model's tokenizer does not say how two texts become "
			                   "one prompt.");
		if (n == -EINVAL && most)
			return problem_bad(p, "truncate_prompt_tokens", "truncate_prompt_tokens leaves no room for "
			                   "the special tokens of a pair.");
		if (n < 0)
			return n == -ENOMEM ? problem_memory(p) :
				problem_bad(p, NULL, "The texts cannot be tokenized: %s.", strerror((int)-n));
		if ((size_t)n <= cap)
			break;
		cap = (size_t)n;
	}
	q->ids.n = (uint32_t)n;
	if (q->second >= q->ids.n)
		q->second = 0;
	return 0;
}

static void truncate_ids(const struct ask *a, const struct ask_limits *l, struct ask_ids *t)
{
	int64_t keep = a->truncate == -1 ? l->context - (a->max_tokens != 0) : a->truncate;

	if (a->truncate == ASK_NONE || (int64_t)t->n <= keep)
		return;
	if (a->truncation_side && !strcmp(a->truncation_side, "left"))
		memmove(t->id, t->id + (t->n - keep), (size_t)keep * sizeof(*t->id));
	t->n = (uint32_t)keep;
}

static int check_ids(const struct ask *a, const struct ask_limits *l, const struct prompt *q, size_t i,
                     struct problem *p)
{
	json_t *given;

	for (uint32_t k = 0; k < q->ids.n; k++) {
		if (q->ids.id[k] >= 0 && q->ids.id[k] < l->vocab)
			continue;
		given = json_object_get(a->root, "prompt");
		if (json_is_array(json_array_get(given, 0)))
			given = json_array_get(given, i);
		given = json_array_get(given, k);
		if (json_is_integer(given) && json_integer_value(given) < 0) {
			char at[48];

			snprintf(at, sizeof(at), "prompt.%u", k);
			return problem_field(p, at, "Token ids must not be negative, got %lld.",
			                     (long long)json_integer_value(given));
		}
		return problem_bad(p, NULL, "Token id %lld is out of vocabulary",
		                   json_is_integer(given) ? (long long)json_integer_value(given) :
		                   (long long)q->ids.id[k]);
	}
	return 0;
}

/* Adds one spelling of a word.  The one with a space in front is added only if it has as many tokens and
 * another first one, as in vLLM. */
static int add_word(struct ask *a, const struct ask_limits *l, const char *word, size_t n, bool spaced,
                    int *count, struct problem *p)
{
	size_t from = a->bad.n;
	char *s = malloc(n + 2);
	int32_t ids[SR_LIST_MAX + 1];
	uint32_t last;
	int64_t k;

	if (!s)
		return problem_memory(p);
	memcpy(s, " ", 1);
	memcpy(s + spaced, word, n);
	k = sr_text_encode(l->text, s, n + spaced, SR_TEXT_SPECIAL_PARSE, ids, SR_LIST_MAX, SR_LIST_MAX);
	free(s);
	if (k == -ENOMEM)
		return problem_memory(p);
	if (k <= 0 && spaced)
		return 0;
	if (k <= 0)
		return problem_value(p, "bad_words", NULL, "bad_words entries must tokenize to at least "
		                     "one token.");
	if (spaced) {                         /* the spelling without the space is the last entry */
		for (last = 0; last + 1 + (uint32_t)a->bad.id[last] < from;)
			last += 1 + (uint32_t)a->bad.id[last];
		if (a->bad.id[last] != k || a->bad.id[last + 1] == ids[0])
			return 0;
	}
	if (from + 1 + (size_t)k > SR_LIST_MAX || ++*count > ASK_BAD_WORDS)
		return problem_bad(p, "bad_words", "Too many bad words after tokenization: at most %d, of %d "
		                   "tokens together.", ASK_BAD_WORDS, SR_LIST_MAX);
	a->bad.id[from] = (int32_t)k;
	memcpy(a->bad.id + from + 1, ids, (size_t)k * sizeof(*ids));
	a->bad.n = (uint32_t)(from + 1 + (size_t)k);
	return 0;
}

static int encode_bad_words(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	json_t *v, *again;
	const char *s;
	size_t i, k;
	int count = 0;

	if (!a->bad_words)
		return 0;
	a->bad.id = malloc(SR_LIST_MAX * sizeof(*a->bad.id));
	if (!a->bad.id)
		return problem_memory(p);
	json_array_foreach(a->bad_words, i, v) {
		for (k = 0; k < i; k++) {
			again = json_array_get(a->bad_words, k);
			if (json_equal(again, v))
				break;
		}
		if (k < i)
			continue;
		s = json_string_value(v);
		k = strspn(s, " \t\r\n\v\f");
		s += k;
		k = json_string_length(v) - k;
		if (add_word(a, l, s, k, false, &count, p) < 0 || add_word(a, l, s, k, true, &count, p) < 0)
			return -1;
	}
	return 0;
}

/* A request of a few KB may ask for gigabytes by this. */
static int check_scores(const struct ask *a, struct problem *p)
{
	int64_t tokens = 0, each = 1 + a->prompt_logprobs, all;

	if (a->prompt_logprobs == ASK_NONE)
		return 0;
	for (int i = 0; i < a->n_prompts; i++)
		tokens += a->prompt[i].ids.n;
	all = tokens * each * a->n;
	if (all <= ASK_SCORES)
		return 0;
	return problem_bad(p, "prompt_logprobs", "The answer would have %lld log-probabilities of prompt tokens: "
	                   "%lld tokens, times 1 + %lld alternatives (prompt_logprobs, or logprobs with echo), "
	                   "times %lld answers (n). At most %lld are given in one request.", (long long)all,
	                   (long long)tokens, (long long)each - 1, (long long)a->n, (long long)ASK_SCORES);
}

int ask_prompts(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	if (a->chat.messages && ask_render(a, l, p) < 0)
		return -1;
	for (int i = 0; i < a->n_prompts; i++) {
		struct prompt *q = &a->prompt[i];

		if (q->text && (q->with ? encode_pair(a, l, q, p) : encode_prompt(a, l, q, p)) < 0)
			return -1;
		if (a->kind == ASK_TOKENIZE)
			continue;
		truncate_ids(a, l, &q->ids);
		if (!q->text && check_ids(a, l, q, (size_t)i, p) < 0)
			return -1;
		if (q->ids.n > l->context)
			return too_long(l, q->ids.n, p);
		if (!q->ids.n)
			return problem_bad(p, NULL, "The decoder prompt cannot be empty");
		if (q->ids.n == l->context && a->max_tokens != 0)
			return problem_bad(p, NULL, "The decoder prompt (length %u) plus the number of "
			                   "requested "
			                   "output tokens (at least 1) is longer than the maximum model length of "
			                   "%lld. Make sure that `max_model_len` is no smaller than the number of "
			                   "text tokens (prompt + requested output tokens).", q->ids.n,
			                   (long long)l->context);
		if (a->max_tokens != 0 && a->min_tokens > ask_room(a, l, q->ids.n))
			return problem_bad(p, NULL, "min_tokens must be less than or equal to "
			                   "max_tokens=%lld, got %lld.", (long long)ask_room(a, l,
			                                                q->ids.n), (long long)a->min_tokens);
	}
	return check_scores(a, p) < 0 ? -1 : encode_bad_words(a, l, p);
}

int64_t ask_room(const struct ask *a, const struct ask_limits *l, uint32_t n_prompt)
{
	int64_t room = l->context - n_prompt;
	int64_t wanted = a->max_tokens != ASK_NONE ? a->max_tokens :
		l->defaults.max_tokens >= 0 ? l->defaults.max_tokens : room;

	if (l->defaults.max_tokens_cap >= 0 && wanted > l->defaults.max_tokens_cap)
		wanted = l->defaults.max_tokens_cap;
	return wanted < room ? wanted : room;
}
