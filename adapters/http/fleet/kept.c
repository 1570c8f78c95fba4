/* kept.c - see kept.h. */
#include "kept.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/instance/io.h"

#define FIRST_IDS 64

struct kept *kept_create(const struct sr_request *q, uint32_t slot, enum waiter_kind kind, uint64_t now)
{
	struct kept *k = malloc(sizeof(*k));

	if (k)
		*k = (struct kept){ .waiter = { .cost = 1, .kind = kind }, .slot = slot, .q = *q, .asked = now };
	return k;
}

static void forget(struct kept *k, struct tenant *t, struct kept_bytes *all)
{
	all->n -= k->cap * sizeof(*k->id);
	t->kept -= k->cap * sizeof(*k->id);
	free(k->id);
	k->id = NULL;
	k->cap = k->n_ids = 0;
}

void kept_free(struct kept *k, struct tenant *t, struct kept_bytes *all)
{
	if (!k)
		return;
	forget(k, t, all);
	free(k);
}

void kept_carry(struct kept *k, struct tenant *from, struct kept_bytes *all, struct tenant *to,
                struct kept_bytes *all_to)
{
	uint64_t n = k->cap * sizeof(*k->id);

	all->n -= n;
	from->kept -= n;
	all_to->n += n;
	to->kept += n;
}

/* Room for one more id.  At the bound, for all or for its tenant, the answer is forgotten instead. */
static bool grow(struct kept *k, struct tenant *t, struct kept_bytes *all)
{
	uint32_t cap = k->cap ? 2 * k->cap : FIRST_IDS;
	uint64_t more = (cap - k->cap) * sizeof(*k->id);
	int32_t *id;

	if (all->n + more > KEPT_BYTES || tenant_over(t->id, t->kept + more, KEPT_BYTES - all->n - more))
		return false;
	id = realloc(k->id, cap * sizeof(*id));
	if (!id)
		return false;
	k->id = id;
	k->cap = cap;
	all->n += more;
	t->kept += more;
	return true;
}

bool kept_token(struct kept *k, struct tenant *t, struct kept_bytes *all, const struct sr_token *token)
{
	if (token->kind == SR_PROMPT) {
		if (k->again)
			return !k->again--;
		k->n_scored++;
		return true;
	}
	k->vain = k->waited = 0;
	if (!k->first)
		k->first = io_now();
	if (k->forgot)
		return true;
	if (k->n_ids == k->cap && !grow(k, t, all)) {
		forget(k, t, all);
		k->forgot = true;
		return true;
	}
	k->id[k->n_ids++] = token->id;
	return true;
}

int kept_move(struct kept *k, bool fault, bool ran)
{
	if (k->forgot)
		return -ECONNRESET;
	if (fault && (ran ? k->vain == KEPT_VAIN || k->faults == KEPT_FAULTS : k->waited == KEPT_WAITS))
		return -ECONNABORTED;
	k->vain += fault && ran;
	k->faults += fault && ran;
	k->waited += fault && !ran;
	k->again = k->n_scored;
	k->moved = true;
	k->counted = false;
	return 0;
}

int kept_request(struct kept *k, struct sr_request *q, int32_t **joined)
{
	*joined = NULL;
	*q = k->q;
	if (!k->n_ids)
		return 0;
	*joined = malloc(((size_t)q->n_prompt + k->n_ids) * sizeof(**joined));
	if (!*joined)
		return -ENOMEM;
	memcpy(*joined, q->prompt, (size_t)q->n_prompt * sizeof(**joined));
	memcpy(*joined + q->n_prompt, k->id, (size_t)k->n_ids * sizeof(**joined));
	q->prompt = *joined;
	q->n_prompt += k->n_ids;
	q->n_answer = k->n_ids;
	q->flags &= ~(uint32_t)(SR_PROMPT_LOGPROBS | SR_PROGRESS); /* all of it came before the first token */
	q->n_prompt_top = 0;
	return 0;
}

void kept_end(const struct kept *k, struct sr_end *e)
{
	if (k->first && k->first < e->first) {
		e->scheduled = k->asked;
		e->first = k->first;
	}
	e->queued = k->asked < e->queued ? k->asked : e->queued;
}
