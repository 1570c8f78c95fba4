/* record_trace.c - writes entries as lines of a trace that `slipring bench serve --dataset-name timed_trace`
 * replays.  A line has the arrival time, the lengths, and a number for each prompt chunk.  Prompts with the
 * same beginning have the same first numbers.
 *
 * A trace is in the order of arrival, but a request's length is known only at its end.  So requests wait in a
 * queue until all earlier ones have ended.  Hashes are numbered in the order of their first appearance, so
 * the file has nothing of a text, not even its hash.
 */
#include "record_trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

struct traced_request {
	uint64_t id, at_ns;
	uint32_t n_prompt, n_tokens;
	bool ended;
	uint64_t *hash;              /* [n_hashes] */
	uint32_t n_hashes, n_ids;
	int32_t *ids;                /* [n_ids] the prompt, if texts are wanted */
};

struct trace {
	FILE *to;
	const struct sr_text *text;
	uint64_t start_ns;
	struct trace_limits limits;
	struct traced_request *queue; /* [cap] circular: n requests from `first` on, by id and time */
	size_t first, n, cap;
	struct { uint64_t hash, number; } *seen; /* [seen_cap] open addressing; number 0: free */
	size_t n_seen, seen_cap;
	uint64_t bytes, first_ns;
	bool full;
	struct trace_count count;
};

int trace_create(struct trace **out, FILE *to, const struct sr_text *text, uint64_t start_ns,
                 const struct trace_limits *limits)
{
	struct trace *t = calloc(1, sizeof(*t));

	*out = t;
	if (!t)
		return -ENOMEM;
	t->to = to;
	t->text = text;
	t->start_ns = start_ns;
	t->limits = *limits;
	t->seen_cap = 1 << 12;
	t->seen = calloc(t->seen_cap, sizeof(*t->seen));
	return t->seen ? 0 : -ENOMEM;
}

static struct traced_request *request(struct trace *t, size_t i)
{
	return &t->queue[(t->first + i) % t->cap];
}

static void forget(struct traced_request *q)
{
	free(q->hash);
	free(q->ids);
}

void trace_free(struct trace *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->n; i++)
		forget(request(t, i));
	free(t->queue);
	free(t->seen);
	free(t);
}

/* ---- numbers for hashes ------------------------------------------------------------------------ */

static bool grow_seen(struct trace *t)
{
	size_t cap = t->seen_cap * 2;
	__typeof__(t->seen) old = t->seen, grown = calloc(cap, sizeof(*grown));

	if (!grown)
		return false;
	for (size_t i = 0; i < t->seen_cap; i++) {
		size_t k = old[i].hash & (cap - 1);

		if (!old[i].number)
			continue;
		while (grown[k].number)
			k = (k + 1) & (cap - 1);
		grown[k] = old[i];
	}
	free(old);
	t->seen = grown;
	t->seen_cap = cap;
	return true;
}

/* The number of a hash, from 0 on; -1: no memory. */
static int64_t number_of(struct trace *t, uint64_t hash)
{
	size_t k = hash & (t->seen_cap - 1);

	for (; t->seen[k].number; k = (k + 1) & (t->seen_cap - 1))
		if (t->seen[k].hash == hash) {
			t->count.repeated++;
			return (int64_t)t->seen[k].number - 1;
		}
	t->seen[k].hash = hash;
	t->seen[k].number = ++t->n_seen;
	if (t->n_seen * 2 > t->seen_cap && !grow_seen(t))
		return -1;
	return (int64_t)t->n_seen - 1;
}

/* ---- lines ------------------------------------------------------------------------------------- */

static int put_text(struct trace *t, const struct traced_request *q)
{
	int64_t n = sr_text_decode(t->text, q->ids, q->n_ids, false, NULL, 0);
	char *s = n >= 0 ? malloc((size_t)n + 1) : NULL, *dumped;
	json_t *j = NULL;

	if (s && sr_text_decode(t->text, q->ids, q->n_ids, false, s, (size_t)n) >= 0)
		j = json_stringn(s, (size_t)n);
	free(s);
	dumped = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;
	json_decref(j);
	/* the line is also valid in the dataset `custom` */
	if (dumped)
		fprintf(t->to, ", \"prompt\": %s, \"output_tokens\": %u", dumped, q->n_tokens);
	free(dumped);
	return dumped ? 0 : -ENOMEM;
}

static int write_line(struct trace *t, const struct traced_request *q)
{
	long before = ftell(t->to);
	int rc = 0;

	if (!t->count.requests)
		t->first_ns = q->at_ns;
	fprintf(t->to, "{\"timestamp\": %.6f, \"input_length\": %u, \"output_length\": %u, \"hash_ids\": [",
	        (double)(q->at_ns - t->first_ns) / 1e9, q->n_prompt, q->n_tokens);
	for (uint32_t i = 0; i < q->n_hashes; i++) {
		int64_t number = number_of(t, q->hash[i]);

		if (number < 0)
			return -ENOMEM;
		fprintf(t->to, i ? ", %lld" : "%lld", (long long)number);
	}
	fputs("]", t->to);
	if (t->text)
		rc = put_text(t, q);
	fputs("}\n", t->to);
	if (rc || ferror(t->to))
		return rc ? rc : -EIO;
	t->bytes += (uint64_t)(ftell(t->to) - before);
	t->count.requests++;
	t->count.chunks += q->n_hashes;
	t->count.prompt += q->n_prompt;
	t->count.generated += q->n_tokens;
	t->count.seconds = (double)(q->at_ns - t->first_ns) / 1e9;
	t->full = t->count.requests >= t->limits.requests || t->bytes >= t->limits.bytes;
	return 0;
}

/* Write the line of a request that has ended, or leave it out. */
static int request_settle(struct trace *t, const struct traced_request *q)
{
	if (!q->n_tokens)
		t->count.empty++;
	else if (!q->n_hashes || (t->text && !q->n_ids))
		t->count.no_prompt++;
	else if (!t->full)
		return write_line(t, q);
	return 0;
}

/* ---- entries ----------------------------------------------------------------------------------- */

static int request_begin(struct trace *t, const struct record_entry *e)
{
	const unsigned char *after = (const unsigned char *)(e + 1);
	struct traced_request *q, *grown;
	size_t cap;

	if (t->n == t->cap) {
		cap = t->cap ? t->cap * 2 : 256;
		grown = malloc(cap * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		for (size_t i = 0; i < t->n; i++)
			grown[i] = *request(t, i);
		free(t->queue);
		t->queue = grown;
		t->cap = cap;
		t->first = 0;
	}
	q = request(t, t->n);
	*q = (struct traced_request){ .id = e->id, .at_ns = e->at_ns, .n_prompt = e->n_prompt,
	                       .n_hashes = e->n_hashes };
	q->hash = malloc(e->n_hashes * sizeof(*q->hash) + 1);
	if (!q->hash)
		return -ENOMEM;
	memcpy(q->hash, after, e->n_hashes * sizeof(*q->hash));
	if (t->text && e->n_ids) {
		q->n_ids = e->n_ids;
		q->ids = malloc(e->n_ids * sizeof(*q->ids));
		if (!q->ids) {
			free(q->hash);
			return -ENOMEM;
		}
		memcpy(q->ids, after + e->n_hashes * sizeof(*q->hash), e->n_ids * sizeof(*q->ids));
	}
	t->n++;
	return 0;
}

/* Find a request by id.  Ids grow along the queue; those of lost entries are missing. */
static struct traced_request *request_find(struct trace *t, uint64_t id)
{
	size_t low = 0, high = t->n;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (request(t, mid)->id < id)
			low = mid + 1;
		else
			high = mid;
	}
	return low < t->n && request(t, low)->id == id ? request(t, low) : NULL;
}

int trace_take(struct trace *t, const struct record_entry *e)
{
	struct traced_request *q;
	int rc = 0;

	if (e->kind == RECORD_REQUEST && t->count.requests + t->n < t->limits.requests)
		rc = request_begin(t, e);
	q = e->kind == RECORD_ANSWER ? request_find(t, e->id) : NULL;
	if (q) {
		q->ended = true;
		q->n_tokens = e->n_tokens;
	}
	while (!rc && t->n && request(t, 0)->ended) {
		rc = request_settle(t, request(t, 0));
		forget(request(t, 0));
		t->first = (t->first + 1) % t->cap;
		t->n--;
	}
	return rc ? rc : t->full;
}

int trace_finish(struct trace *t, struct trace_count *c)
{
	int rc = 0;

	for (; !rc && t->n; t->n--, t->first = (t->first + 1) % t->cap) {
		struct traced_request *q = request(t, 0);

		if (q->ended)
			rc = request_settle(t, q);
		else
			t->count.open++;
		forget(q);
	}
	*c = t->count;
	return rc;
}
