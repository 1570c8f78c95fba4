/* sim_port.h - the simulator's port: a ring per client, and what each event must be.  Included once by
 * test_sim.c.
 */
#ifndef SIM_PORT_H
#define SIM_PORT_H

/* ---- the port: a ring per client --------------------------------------------------------------- */

static int32_t cost(int32_t n_top)
{
	int32_t more = n_top > TOPS_HERE ? n_top - TOPS_HERE : 0;

	return 1 + (more + TOPS_PER - 1) / TOPS_PER;
}

static bool port_room(void *ctx, void *client, uint32_t n)
{
	struct client *c = client;

	(void)ctx;
	return (uint32_t)(c->cap - c->used - c->reserved) >= n;
}

static uint32_t port_reserve(void *ctx, void *client, uint32_t least, uint32_t most)
{
	struct client *c = client;
	uint32_t room = (uint32_t)(c->cap - c->used - c->reserved), n = room < most ? room : most;

	(void)ctx;
	assert(least >= 1 && least <= most);
	if (n < least)
		return 0;
	c->reserved += (int32_t)n;
	return n;
}

static void port_release(void *ctx, void *client, uint32_t n)
{
	struct client *c = client;

	(void)ctx;
	c->reserved -= (int32_t)n;
	assert(n > 0 && c->reserved >= 0);
}

static struct request *request_of(struct client *c, uint64_t user_data)
{
	for (int i = 0; i < LIVE; i++)
		if (c->r[i].live && c->r[i].user_data == user_data)
			return &c->r[i];
	return NULL;
}

/* The state of the ids before e's. */
static const struct sr_null_text *read_to(struct request *r, int32_t n)
{
	sr_null_read(&r->text, r->as.n_prompt, r->ids, n);
	return &r->text;
}

/* Nothing else was possible. */
static void check_forced(const struct request *r, const struct sched_event *e)
{
	assert(e->logprob == 0 && e->rank == (r->n_top > 0) && e->n_top == r->n_top);
	for (int32_t k = 0, other = 0; k < r->n_top; k++) {
		other += k > 0 && other == e->id;
		assert(e->top[k].id == (k ? other : e->id) && (k ? e->top[k].logprob < -9000 : e->top[k].logprob == 0));
		other += k > 0;
	}
	guided.forced++;
}

static void check_numbers(struct request *r, const struct sched_event *e, int32_t n_top)
{
	const struct sr_null_text *before = read_to(r, e->position);

	assert(e->logprob == sr_null_logprob(before, e->id));
	assert(e->rank == 1 && e->n_top == n_top);
	for (int32_t k = 0; k < n_top; k++) {
		struct sr_top t = sr_null_top(before, e->id, k, VOCAB);

		assert(e->top[k].id == t.id && e->top[k].logprob == t.logprob);
	}
}

static void check_token(struct request *r, const struct sched_event *e)
{
	bool stops = false;

	assert(e->position == r->n && e->position < r->n_prompt + r->max_tokens && !r->finish);
	assert(!r->score || r->scored == r->n_prompt - 1);
	if (r->guides->on) {
		int32_t index = r->n - r->n_prompt;
		bool forced = index < r->guides->told && r->guides->at[index].kind == SR_GUIDE_IS;

		assert(e->id == guided_id(r->guides, index, &r->as, r->ids, read_to(r, r->n)));
		if (forced)
			check_forced(r, e);
		else
			check_numbers(r, e, r->n_top);
		guided_heard(r->guides, index, e->id);
	} else {
		assert(e->id == sr_null_draw(&r->as, r->ids, read_to(r, r->n)));
		check_numbers(r, e, r->n_top);
	}
	for (int32_t i = 0; i < r->as.n_list[SR_LIST_STOP]; i++)
		stops |= (int32_t)r->stop[i] == e->id;
	if (stops && (e->position >= r->as.sampling.min_position || r->guides->on))
		r->finish = SCHED_STOP;
	else if (e->position + 1 == r->n_prompt + r->max_tokens)
		r->finish = SCHED_LENGTH;
	assert(e->last == r->finish);
	r->ids[r->n++] = e->id;
	sim.n_tokens++;
}

static void check_end(struct request *r, const struct sched_event *e)
{
	int32_t needed = r->max_tokens ? r->n_prompt : r->n_prompt - 1;

	assert(e->position == r->n);
	if (r->finish)
		assert(e->finish == r->finish);
	else if (e->finish == SCHED_LENGTH)
		assert(r->max_tokens == 0 && r->scored == r->n_prompt - 1);
	else
		assert(e->finish < 0);
	assert(e->preempted >= 0 && e->cached >= 0 && e->cached < r->n_prompt + (r->guides->on || sim.goes_on));
	if (e->finish > 0) {
		assert(e->preempted || e->cached + e->computed == needed || (r->guides->on && e->last == 0));
		assert(e->scheduled || needed == 0);
	}
	if (e->finish == -ETIME)
		assert(r->deadline && r->deadline <= sim.now);
	if (e->finish == -EDOM || e->finish == -ETIMEDOUT)
		assert(r->guides->on && guided_id(r->guides, r->n - r->n_prompt, &r->as, r->ids, read_to(r, r->n)) ==
		       (e->finish == -EDOM ? SR_NO_ID : SR_MISS));
	guided.edom += e->finish == -EDOM;
	guided.silent += e->finish == -ETIMEDOUT;
	total_ends[e->finish == SCHED_STOP ? 0 : e->finish == SCHED_LENGTH ? 1 :
		   e->finish == -ECANCELED ? 2 : e->finish == -ETIME ? 3 :
		   e->finish == -EDOM || e->finish == -ETIMEDOUT ? 5 : 4]++;
	r->live = false;
}

static void port_emit(void *ctx, void *client, const struct sched_event *e)
{
	struct client *c = client;
	struct request *r = request_of(c, e->user_data);
	int32_t n = e->kind == SCHED_END ? 1 : cost(e->n_top);

	(void)ctx;
	assert(r);
	c->reserved -= n;
	c->used += n;
	assert(c->reserved >= 0 && c->used + c->reserved <= c->cap);
	if (e->kind == SCHED_SCORED) {
		assert(r->score && !e->last && e->position == r->scored + 1 && e->id == r->ids[e->position]);
		check_numbers(r, e, r->n_prompt_top);
		r->scored++;
		sim.n_scored++;
	} else if (e->kind == SCHED_TOKEN) {
		check_token(r, e);
	} else {
		check_end(r, e);
		c->n_live--;
	}
}

#endif
