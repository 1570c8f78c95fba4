/* sched/ids.c - the pool of chunks in which sequences keep their ids, and the words of their commands.
 *
 * The chunks are counted in three parts, so that no part can use up another: the queue's (bounded by
 * queue_tokens and queue_requests), that of started sequences (ids_may_start, ids_may_grow) and that of
 * words (sched_full).
 */
#include <assert.h>
#include <string.h>

#include "core/sched/impl.h"

/* ---- ids ---------------------------------------------------------------------------------------------- */

static struct kv_chunk *chunk_take(struct sched *s)
{
	struct kv_chunk *c;

	assert(s->n_free_chunk);        /* cannot run out: the three parts add up to the pool */
	c = s->free_chunk[--s->n_free_chunk];
	if (s->n_free_chunk > AHEAD)
		__builtin_prefetch(s->free_chunk[s->n_free_chunk - 1 - AHEAD], 1);
	c->next = NULL;
	return c;
}

static void chunks_free(struct sched *s, struct kv_chunk *first)
{
	for (; first; first = first->next)
		s->free_chunk[s->n_free_chunk++] = first;
}

/* Append another chunk. */
void ids_more(struct sched *s, struct seq *q)
{
	struct kv_chunk *c = chunk_take(s);

	if (q->tail)
		q->tail->next = c;
	else
		q->head = c;
	q->tail = c;
	q->n_chunks++;
}

/* Read ids from .. from+n-1.  Reads mostly go forward, so the last chunk read is remembered. */
void ids_read(struct seq *q, int32_t from, int32_t n, int32_t *out)
{
	if (!q->cur || from < q->cur_at) {
		q->cur = q->head;
		q->cur_at = 0;
	}
	while (n > 0) {
		int32_t at, m;

		while (from >= q->cur_at + KV_CHUNK) {
			q->cur = q->cur->next;
			q->cur_at += KV_CHUNK;
		}
		at = from - q->cur_at;
		m = n < KV_CHUNK - at ? n : KV_CHUNK - at;
		memcpy(out, q->cur->id + at, (size_t)m * sizeof(*out));
		out += m;
		from += m;
		n -= m;
	}
}

void ids_free(struct sched *s, struct seq *q)
{
	chunks_free(s, q->head);
	chunks_free(s, q->more);
	if (q->more) {
		s->word_used -= word_chunks_for(q->n_words);
		s->tenant[q->tenant].word_chunks -= word_chunks_for(q->n_words);
	}
	if (q->started)
		s->start_used -= q->quota;
	q->head = q->tail = q->more = q->cur = NULL;
	q->n_chunks = 0;
}

/* What the first running sequence may need is never given to others.  So it can finish, and then
 * the next one is the first. */
static int32_t kept_for_first(const struct sched *s)
{
	return quota_for(s->cfg.context);
}

bool ids_may_start(const struct sched *s, const struct seq *q)
{
	return q->started ||
	       s->start_used + quota_for(q->have) + kept_for_first(s) <= s->start_chunks;
}

/* May q have n tokens and one more?  Called once a chunk, before q decodes into a new one. */
bool ids_may_grow(struct sched *s, struct seq *q, int32_t n)
{
	int32_t quota = quota_for(n);

	if (quota <= q->quota)
		return true;
	if (q != &s->seq[s->run[0]] && s->start_used + quota - q->quota + kept_for_first(s) > s->start_chunks)
		return false;
	ids_started(s, q, quota);
	assert(s->start_used <= s->start_chunks);
	return true;
}

void ids_started(struct sched *s, struct seq *q, int32_t quota)
{
	s->start_used += quota - (q->started ? q->quota : 0);
	q->quota = quota;
	q->started = true;
}

/* ---- words of commands ---------------------------------------------------------------------------- */

/* Chunks for n_words words after the BEGIN's; a few words lie in the sequence itself. */
int32_t word_chunks_for(int32_t n_words)
{
	return n_words <= WORDS_HERE ? 0 : (n_words + KV_CHUNK - 1) / KV_CHUNK;
}

/* Keep the words after the BEGIN's. */
void words_store(struct sched *s, struct seq *q, const uint32_t *word)
{
	int32_t chunks = word_chunks_for(q->n_words);
	struct kv_chunk **end = &q->more;

	if (!chunks)
		memcpy(q->word, word, (size_t)q->n_words * sizeof(*word));
	for (int32_t j = 0; j < chunks; j++) {
		int32_t left = q->n_words - j * KV_CHUNK;

		*end = chunk_take(s);
		memcpy((*end)->id, word + j * KV_CHUNK, (size_t)(left < KV_CHUNK ? left : KV_CHUNK) * sizeof(*word));
		end = &(*end)->next;
	}
	s->word_used += chunks;
	assert(s->word_used <= s->word_chunks);
	s->tenant[q->tenant].word_chunks += chunks;
}

void words_read(const struct seq *q, uint32_t *out)
{
	int32_t left = q->n_words;

	if (!q->more)
		memcpy(out, q->word, (size_t)left * sizeof(*out));
	for (const struct kv_chunk *c = q->more; c; c = c->next, left -= KV_CHUNK, out += KV_CHUNK)
		memcpy(out, c->id, (size_t)(left < KV_CHUNK ? left : KV_CHUNK) * sizeof(*out));
}

/* Is id a stop id? */
bool words_stop(const struct seq *q, int32_t id)
{
	const struct kv_chunk *c = q->more;
	int32_t i = q->stop, end = q->stop + q->n_stop;

	if (!c) {
		for (; i < end; i++)
			if ((int32_t)q->word[i] == id)
				return true;
		return false;
	}
	for (; i >= KV_CHUNK; i -= KV_CHUNK, end -= KV_CHUNK)
		c = c->next;
	for (; i < end; i++) {
		if (i == KV_CHUNK) {
			c = c->next;
			i -= KV_CHUNK;
			end -= KV_CHUNK;
		}
		if (c->id[i] == id)
			return true;
	}
	return false;
}
