/* layout.cu - where the back end's memory lies, on the device and pinned: plan() counts it, open() cuts it. */
#include "backend.cuh"

#define ALIGN 256                    /* bytes, of each piece of memory, on the device and pinned */

size_t logit_rows(const struct sr_backend *b)
{
	return b->lim.logit_rows > 1 ? (size_t)b->lim.logit_rows : 1;
}

bool any_weight(const struct sr_model *m, bool (*is)(const struct sr_tensor *))
{
	bool yes = is(&m->embed) || is(&m->head);

	for (int32_t l = 0; l < m->n_layers; l++) {
		const struct sr_layer *y = &m->layer[l];

		for (const struct sr_tensor *t : { &y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down,
				&y->shared_gate, &y->shared_up, &y->shared_down })
			yes |= is(t);
	}
	return yes;
}

static bool is_f8(const struct sr_tensor *t)
{
	return t->type == SR_F8;
}

static bool has_order(const struct sr_tensor *t)
{
	return t->index.bytes;
}

/* Work space for products of up to `rows` rows of x. */
static void lay_products(struct sr_backend *b, struct cutter *c, size_t rows)
{
	const struct sr_model *m = &b->m;
	struct dev *d = &b->d;
	size_t inputs = (size_t)d->shape.inputs;

	d->product.divided = !d->deterministic && !hopper_work_bytes(d) && any_weight(m, weight_packed);
	d->product.part = (float *)cut(c, product_part_bytes(d), 1);
	d->product.n_arrived = product_tiles(d, d->shape.outputs);
	d->product.arrived = (uint32_t *)cut(c, d->product.n_arrived, sizeof(uint32_t));
	d->product.ordered = any_weight(m, has_order) ? (bf16 *)cut(c, rows * inputs, sizeof(bf16)) : NULL;
	if (d->gpu.capability >= 89 && !d->deterministic && (d->product.w4a8 || any_weight(m, is_f8))) {
		d->product.x8 = (uint32_t *)cut(c, rows * inputs, 1);
		d->product.x8_scale = (float *)cut(c, rows, sizeof(float));
	}
}

static void lay_lists(struct sr_backend *b, struct cutter *c)
{
	const struct sr_limits *l = &b->lim;
	const struct sr_attn *kind = &b->m.kind[0];
	struct dev *d = &b->d;
	struct lists *list = &d->batch.list;
	size_t rows = (size_t)l->rows, pieces = (size_t)most_pieces(d, l->rows);

	list->token = (struct batch_token *)cut(c, (size_t)l->tokens, sizeof(*list->token));
	list->pick = (struct batch_pick *)cut(c, rows + (size_t)l->scores + 2 * (size_t)l->drafts, sizeof(*list->pick));
	d->draw.drawn = l->drafts ? (int32_t *)cut(c, rows + (size_t)l->scores + 2 * (size_t)l->drafts, sizeof(int32_t)) :
		NULL;
	list->piece = (struct attend_piece *)cut(c, pieces, sizeof(*list->piece));
	list->run = (struct run_piece *)cut(c, (size_t)most_runs(d, l), sizeof(*list->run));
	list->row = (struct sr_row *)cut(c, rows, sizeof(*list->row));
	list->token_of = (int32_t *)cut(c, rows, sizeof(int32_t));
	list->pick_of = (int32_t *)cut(c, rows, sizeof(int32_t));
	d->attend.part = (float *)cut(c, pieces * (size_t)kind->n_heads,
		(size_t)(kind->head_dim + 2) * sizeof(float));
	d->attend.joined = (uint32_t *)cut(c, pieces * (size_t)kind->n_kv_heads, sizeof(uint32_t));
	d->attend.run_part = (float *)cut(c, (size_t)most_divided(d) * (size_t)kind->n_kv_heads *
		(size_t)attend_run_rows(d), RUN_PITCH((size_t)kind->head_dim) * sizeof(float));
	d->batch.current = (struct current_batch *)cut(c, 1, sizeof(*d->batch.current));
}

static void lay_routing(struct sr_backend *b, struct cutter *c)
{
	const struct sr_experts *x = &b->m.experts;
	struct routing *r = &b->d.routing;
	size_t pairs = (size_t)b->lim.tokens * (size_t)x->top;

	r->id = (int32_t *)cut(c, pairs, sizeof(*r->id));
	r->weight = (float *)cut(c, pairs, sizeof(*r->weight));
	r->pair = (int32_t *)cut(c, pairs, sizeof(*r->pair));
	r->tile = (struct expert_tile *)cut(c, (size_t)most_expert_tiles(b->lim.tokens, x->n, x->top),
		sizeof(*r->tile));
}

size_t lay_scratch(struct sr_backend *b, unsigned char *base)
{
	const struct sr_model *m = &b->m;
	struct dev *d = &b->d;
	struct cutter c = { base, 0, ALIGN };
	size_t T = (size_t)b->lim.tokens, R = logit_rows(b), V = (size_t)m->n_vocab, rows = T > R ? T : R;

	for (int p = P_X; p <= P_LOGITS; p++)
		d->act.place[p] = cut(&c, (p == P_LOGITS ? R : rows) * (size_t)d->shape.width[p],
			is_f32((enum place)p) ? sizeof(float) : sizeof(bf16));
	for (int32_t i = 0; i < m->n_kinds; i++) {
		size_t pairs = (size_t)m->kind[i].rope.dims / 2;
		int32_t like = sr_rope_like(m, i);

		d->act.freq[i] = like < i ? d->act.freq[like] : (float *)cut(&c, pairs, sizeof(float));
		d->act.angle[i] = like < i ? d->act.angle[like] : (float2 *)cut(&c, T * pairs, sizeof(float2));
	}
	d->draw.candidates = (float *)cut(&c, R * V, sizeof(float));
	d->draw.count = (uint32_t *)cut(&c, R * V, sizeof(uint32_t));
	d->draw.sampler = sampler_bytes(d) ? (struct sampler *)cut(&c, sampler_bytes(d), 1) : NULL;
	lay_products(b, &c, rows);
	lay_routing(b, &c);
	d->product.hopper_work = hopper_work_bytes(d) ? (unsigned char *)cut(&c, hopper_work_bytes(d), 1) : NULL;
	d->product.lt_work = d->product.use_lt ? cut(&c, LT_WORK, 1) : NULL;
	lay_lists(b, &c);
	ranks_lay(d, &c, R);
	b->staging = (unsigned char *)cut(&c, loader_staging(), 1);
	return c.at;
}

size_t lay_slots(struct sr_backend *b, unsigned char *base)
{
	struct slots *s = &b->d.slots;
	struct cutter c = { base, 0, ALIGN };
	size_t n = (size_t)b->lim.slots + 1;

	s->group_cap = b->lim.seq_blocks;
	s->table_cap = b->lim.n_groups * s->group_cap;
	s->history_cap = slot_history(&b->lim);
	s->word_cap = slot_words(&b->lim);
	s->slot = (struct slot *)cut(&c, n, sizeof(struct slot));
	s->table = (int32_t *)cut(&c, n * (size_t)s->table_cap, sizeof(int32_t));
	s->history = (int32_t *)cut(&c, n * (size_t)s->history_cap, sizeof(int32_t));
	s->word = (uint32_t *)cut(&c, n * (size_t)s->word_cap, sizeof(uint32_t));
	s->sum = b->lim.vectors ? (float *)cut(&c, n * (size_t)b->m.d_model, sizeof(float)) : NULL;
	return c.at;
}

static void lay_flight(struct sr_backend *b, struct flight *f, struct cutter *c)
{
	const struct sr_limits *l = &b->lim;

	if (!l->batches)
		batch_cut(&f->batch, l, c);
	f->first_cmd = (int32_t *)cut(c, (size_t)l->cmds, sizeof(*f->first_cmd));
	f->next_cmd = (int32_t *)cut(c, (size_t)l->cmds, sizeof(*f->next_cmd));
	f->signal = (struct signal *)cut(c, 1, sizeof(*f->signal));
}

/* The batches and masks that all ranks and core map.  Rank 0 alone writes results there; the others write theirs, which
 * are the same, to memory of their own. */
static void lay_given(struct sr_backend *b, struct cutter *c)
{
	size_t results = (size_t)b->lim.rows + (size_t)b->lim.scores;
	struct sr_batch batch[FLIGHTS] = {};

	b->given = batches_cut(batch, FLIGHTS, &b->d.draw.masks, &b->lim, b->m.n_vocab, b->lim.batches);
	for (int i = 0; i < FLIGHTS; i++) {
		struct sr_result *result = (struct sr_result *)cut(c, results, sizeof(*result));
		struct sr_top *top = (struct sr_top *)cut(c, results * SR_TOP_MAX, sizeof(*top));

		if (b->lim.rank) {
			batch[i].result = result;
			batch[i].top = top;
		}
		b->flight[i].batch = batch[i];
	}
}

size_t lay_pinned(struct sr_backend *b, unsigned char *base)
{
	struct cutter c = { base, 0, ALIGN };

	for (int i = 0; i < FLIGHTS; i++)
		lay_flight(b, &b->flight[i], &c);
	b->d.batch.submitted = (struct submission *)cut(&c, FLIGHTS, sizeof(*b->d.batch.submitted));
	if (b->lim.batches)
		lay_given(b, &c);
	else
		masks_cut(&b->d.draw.masks, &b->lim, b->m.n_vocab, &c);
	return c.at;
}
