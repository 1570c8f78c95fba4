/* sim_guides.h - the part of test_sim.c that guides answers.  Clients give guides at once, late, wrongly, or
 * from some token on not at all. */
#ifndef SIM_GUIDES_H
#define SIM_GUIDES_H

#define GUIDE_INDEX 192          /* answers have up to 40 tokens, and 64 ids may be forced beyond */
#define MASK_WORDS  ((VOCAB + 31) / 32)
#define SILENT_NS   1000000

enum guiding { AT_ONCE, LATE, LIAR, GIVES_UP, N_GUIDING };

/* What a client said of each token of an answer. */
struct guides {
	bool     on;
	enum guiding habit;
	int32_t  told;           /* indexes below have a guide */
	int32_t  drawn;          /* index of the guide whose token is drawn and not heard; -1: none */
	int32_t  quits;          /* GIVES_UP: from this index on there are no guides */
	int32_t  n_until, until[SR_GUIDE_IDS]; /* not 0: none is needed until one of these */
	struct { uint8_t kind; int32_t id; uint32_t mask[MASK_WORDS]; } at[GUIDE_INDEX]; /* kind: BITS, IS or FREE */
};

static struct { uint64_t misses, forced, lies, edom, silent, aside; uint64_t held; } guided;

static bool among(const int32_t *id, int32_t n, int32_t is)
{
	for (int32_t k = 0; k < n; k++)
		if (id[k] == is)
			return true;
	return false;
}

static void start_guiding(struct guides *g)
{
	memset(g, 0, sizeof(*g));
	g->on = true;
	g->drawn = -1;
	g->habit = (enum guiding)below(N_GUIDING);
	if (g->habit == GIVES_UP && below(2))
		g->habit = AT_ONCE;
	g->quits = g->habit == GIVES_UP ? between(0, 20) : INT32_MAX;
}

static void random_mask(uint32_t *mask)
{
	uint32_t every = below(40) ? 1 + below(30) : UINT32_MAX;

	memset(mask, 0, MASK_WORDS * sizeof(*mask));
	for (uint32_t i = 0; i < VOCAB; i++)
		mask[i / 32] |= (uint32_t)(below(every) == 0) << i % 32;
}

/* The next guide, noted in g. */
static struct sched_guide next_guide(struct guides *g, int32_t *id, uint32_t *bits)
{
	static const int32_t kinds[] = { SR_GUIDE_BITS, SR_GUIDE_BITS, SR_GUIDE_BITS, SR_GUIDE_ONLY, SR_GUIDE_ONLY,
					 SR_GUIDE_FREE, SR_GUIDE_FREE, SR_GUIDE_IS };
	struct sched_guide out = { .index = g->told, .kind = kinds[below(8)], .id = id, .bits = bits };

	if (g->drawn >= 0)
		out.kind = SR_GUIDE_IS;
	out.n = out.kind == SR_GUIDE_BITS ? 0 : out.kind == SR_GUIDE_FREE && below(2) ? 0 :
		between(1, out.kind == SR_GUIDE_IS && below(8) == 0 ? 40 : SR_GUIDE_IDS);
	for (int32_t k = 0; k < out.n; k++)
		id[k] = (int32_t)below(VOCAB);
	random_mask(bits);
	if (out.kind == SR_GUIDE_ONLY)
		memset(g->at[g->told].mask, 0, sizeof(g->at[0].mask));
	for (int32_t k = 0; k < out.n && out.kind == SR_GUIDE_ONLY; k++)
		g->at[g->told].mask[id[k] / 32] |= 1u << id[k] % 32;
	if (out.kind == SR_GUIDE_BITS)
		memcpy(g->at[g->told].mask, bits, sizeof(g->at[0].mask));
	if (out.kind == SR_GUIDE_IS) {
		for (int32_t k = 0; k < out.n; k++, g->told++) {
			g->at[g->told].kind = SR_GUIDE_IS;
			g->at[g->told].id = id[k];
		}
		return out;
	}
	g->drawn = g->told;
	g->at[g->told++].kind = out.kind == SR_GUIDE_FREE ? SR_GUIDE_FREE : SR_GUIDE_BITS;
	if (out.kind == SR_GUIDE_FREE && out.n) {
		g->n_until = out.n;
		memcpy(g->until, id, (size_t)out.n * sizeof(*id));
	}
	return out;
}

/* Guides that break a rule are refused, and nothing changes. */
static void lie(const struct guides *g, void *client, uint64_t user_data, int32_t heard)
{
	int32_t id[SCHED_FORCED] = { 0 };
	uint32_t bits[MASK_WORDS] = { 0 };
	struct sched_guide bad = { .index = g->told, .kind = SR_GUIDE_IS, .n = 1, .id = id, .bits = bits };

	switch (below(6)) {
	case 0: bad.index += between(1, 3); break;
	case 1: bad.index -= between(1, 3); break;
	case 2: id[0] = below(2) ? VOCAB : -1; break;
	case 3: bad.kind = SR_GUIDE_ONLY; bad.n = 0; break;
	case 4:
		bad.n = SCHED_FORCED + 1 - (g->told - heard - (g->drawn >= 0));
		break;
	default:
		if (g->drawn < 0)
			bad.kind = 4;
		else
			bad.kind = SR_GUIDE_BITS;
	}
	if (g->n_until) /* any guide is wrong */
		bad = (struct sched_guide){ .index = g->told, .kind = SR_GUIDE_FREE, .id = id };
	assert(sched_guide(sim.s, client, user_data, &bad) == -EPROTO);
	assert(sched_guide(sim.s, client, UINT64_MAX, &bad) == -ENOENT);
	guided.lies++;
}

/* Give what can be known after `heard` tokens. */
static void give_guides(struct guides *g, void *client, uint64_t user_data, int32_t heard)
{
	int32_t id[SCHED_FORCED];
	uint32_t bits[MASK_WORDS];

	if (g->habit == LATE && below(8) == 0)
		return;
	for (;;) {
		if (g->habit == LIAR && below(4) == 0)
			lie(g, client, user_data, heard);
		if (g->n_until || g->told >= g->quits || g->told > heard + 20 ||
		    (g->told > heard && (g->drawn < 0 || below(60))))
			return;
		struct sched_guide next = next_guide(g, id, bits);

		assert(sched_guide(sim.s, client, user_data, &next) == 0);
	}
}

/* Its answer goes on behind index `at` with another request, which has no guide yet. */
static void guided_again(struct guides *g, int32_t at)
{
	g->told = at;
	g->drawn = -1;
	g->n_until = 0;
}

/* What the token at `index` must be, from as: *id; or SR_NO_ID, or SR_MISS if it has no guide. */
static int32_t guided_id(const struct guides *g, int32_t index, struct sr_null_request *as, const int32_t *ids,
                         const struct sr_null_text *text)
{
	int32_t id;

	if (index >= g->told && !g->n_until)
		return SR_MISS;
	if (index < g->told && g->at[index].kind == SR_GUIDE_IS)
		return g->at[index].id;
	as->mask = index < g->told && g->at[index].kind == SR_GUIDE_BITS ? g->at[index].mask : NULL;
	id = sr_null_draw(as, ids, text);
	as->mask = NULL;
	return id;
}

/* The token at `index` is heard. */
static void guided_heard(struct guides *g, int32_t index, int32_t id)
{
	if (g->drawn < 0 || index < g->drawn)
		return;
	if (!g->n_until) {
		g->drawn = -1;
	} else if (among(g->until, g->n_until, id)) {
		g->n_until = 0;
		g->drawn = -1;
		g->told = index + 1;
	}
}

/* A sequence without its guide may hold slots or blocks that others want only briefly. */
static void check_waits(void)
{
	const struct sched *s = sim.s;
	bool wanted = s->why == WHY_SEQS || s->why == WHY_KV || s->why == WHY_ORDER;

	guided.aside += (uint64_t)s->aside.n;
	for (int32_t i = 0; i < s->n_seq; i++) {
		const struct seq *q = &s->seq[i];
		uint64_t *since = &sim.watch[i].guide_since;

		if (q->state != SEQ_RUNNING || !q->guided || !wanted || !s->guide[q->guide].since || q->known > q->have) {
			*since = 0;
			continue;
		}
		*since = *since ? *since : sim.now;
		if (sim.now - *since > guided.held)
			guided.held = sim.now - *since;
		assert(guided.held <= GUIDE_PATIENCE * BLOCKED_NS + HELD_NS);
	}
}

#endif
