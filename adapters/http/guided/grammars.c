/* grammars.c - see grammars.h.  One table of entries, found by all that a grammar is made of. */
#include "grammars.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/http/gate/auth.h"
#include "adapters/http/shared.h"
#include "adapters/http/tenants.h"
#include "shmring/clock.h"

#define BUCKETS 1024

struct grammar_use {
	struct sr_grammar *grammar;
	char note[GRAMMARS_NOTE];
	char *key;                             /* all that it is made of */
	size_t n_key, bytes;                   /* bytes: when it was last measured */
	uint64_t hash;
	unsigned uses;                         /* requests that have it */
	struct tenant *tenant;                 /* while it is in use: whose share it counts for */
	struct grammar_use *chained;           /* the next in its bucket */
	struct grammar_use *newer, *older;     /* while it is not in use */
};

struct grammars {
	const struct sr_text *text;
	struct api_shared *shared;
	size_t kept, used;                     /* limits */
	pthread_mutex_t lock;                  /* guards all below */
	struct grammar_use *bucket[BUCKETS];
	struct grammar_use *newest, *oldest;   /* of those not in use */
	size_t idle;                           /* bytes of those not in use */
	struct tenants held;                   /* of those in use */
};

/* ---- keys ---- */

/* Everything that the grammar depends on, without a gap between two parts that could be read otherwise. */
static char *key_of(const struct ask *a, size_t *n)
{
	const struct ask_guide *g = &a->guide;
	const size_t white = g->whitespace ? strlen(g->whitespace) : 0;
	const uint32_t head[] = { (uint32_t)g->kind, g->rules.disable_any_whitespace,
		g->rules.additional_properties, g->rules.lenient, g->whitespace != NULL, (uint32_t)white,
		a->stop_ids.n };
	struct out key = { 0 };

	out_bytes(&key, (const char *)head, sizeof(head));
	out_bytes(&key, (const char *)a->stop_ids.id, a->stop_ids.n * sizeof(*a->stop_ids.id));
	out_bytes(&key, g->whitespace, white);
	out_bytes(&key, g->src, g->n);
	*n = key.n;
	if (key.failed)
		out_free(&key);
	return key.p;
}

static struct grammar_use **place_of(struct grammars *gs, uint64_t hash, const char *key, size_t n)
{
	struct grammar_use **at = &gs->bucket[hash % BUCKETS];

	while (*at && !((*at)->hash == hash && (*at)->n_key == n && !memcmp((*at)->key, key, n)))
		at = &(*at)->chained;
	return at;
}

/* ---- entries ---- */

static void free_entry(struct grammar_use *u)
{
	sr_grammar_close(u->grammar);
	free(u->key);
	free(u);
}

static void idle_remove(struct grammars *gs, struct grammar_use *u)
{
	*(u->newer ? &u->newer->older : &gs->newest) = u->older;
	*(u->older ? &u->older->newer : &gs->oldest) = u->newer;
	gs->idle -= u->bytes;
}

static void idle_add(struct grammars *gs, struct grammar_use *u)
{
	u->newer = NULL;
	u->older = gs->newest;
	*(gs->newest ? &gs->newest->newer : &gs->oldest) = u;
	gs->newest = u;
	gs->idle += u->bytes;
}

/* Drop what was not used for longest until all that is kept fits; returns the dropped ones, chained. */
static struct grammar_use *evict(struct grammars *gs)
{
	struct grammar_use *dropped = NULL, *u;

	while ((u = gs->oldest) && gs->idle + gs->held.size > gs->kept) {
		idle_remove(gs, u);
		*place_of(gs, u->hash, u->key, u->n_key) = u->chained;
		u->chained = dropped;
		dropped = u;
	}
	return dropped;
}

/* Closing may take a while: outside the lock. */
static void free_all(struct grammar_use *u)
{
	for (struct grammar_use *next; u; u = next) {
		next = u->chained;
		free_entry(u);
	}
}

/* One more request has it.  False: no memory, or its tenant has its share (then it stays as it was). */
static bool use(struct grammars *gs, struct grammar_use *u, uint64_t tenant, bool idle)
{
	const struct tenant *t = tenants_find(&gs->held, tenant);
	const uint64_t all = gs->held.size + u->bytes, mine = (t ? t->size : 0) + u->bytes;

	if (!u->uses) {
		if (gs->held.n && (all > gs->used || (t && tenant_over(tenant, mine, gs->used - all))))
			return false;
		u->tenant = tenants_hold(&gs->held, tenant, u->bytes);
		if (!u->tenant)
			return false;
		if (idle)
			idle_remove(gs, u);
	}
	u->uses++;
	return true;
}

static struct grammar_use *find(struct grammars *gs, const char *key, size_t n, uint64_t tenant)
{
	const uint64_t hash = auth_hash(key, n);
	struct grammar_use *u;

	pthread_mutex_lock(&gs->lock);
	u = *place_of(gs, hash, key, n);
	if (u && !use(gs, u, tenant, true))
		u = NULL;
	pthread_mutex_unlock(&gs->lock);
	if (u)
		shared_add(gs->shared->grammar_hits, 1);
	return u;
}

struct grammar_use *grammars_find(struct grammars *gs, const struct ask *a, uint64_t tenant)
{
	size_t n;
	char *key = key_of(a, &n);
	struct grammar_use *u = key ? find(gs, key, n, tenant) : NULL;

	free(key);
	return u;
}

static int compile(const struct grammars *gs, const struct ask *a, struct grammar_use *u, struct problem *p)
{
	const struct ask_guide *g = &a->guide;
	const struct sr_grammar_options o = {
		.size = sizeof(o), .disable_any_whitespace = g->rules.disable_any_whitespace,
		.additional_properties = g->rules.additional_properties, .lenient = g->rules.lenient,
		.whitespace_pattern = g->whitespace, .stop = a->stop_ids.id, .n_stop = a->stop_ids.n,
	};
	const uint64_t begin = sr_now();
	char err[640] = "";
	int r = sr_grammar_open(&u->grammar, gs->text, g->kind, g->src, g->n, &o, err, sizeof(err));

	shared_add(gs->shared->grammar_ns, sr_now() - begin);
	shared_add(gs->shared->grammars, 1);
	if (!r) {
		for (size_t i = 0; err[i] && i < sizeof(u->note) - 1; i++)
			u->note[i] = err[i] >= ' ' && err[i] < 127 ? err[i] : '?';
		return 0;
	}
	if (r == -ENOMEM)
		return problem_memory(p);
	if (g->param)
		return problem_value(p, g->param, NULL, "Invalid %s structural_tag specification. %s", g->param, err);
	return problem_bad(p, NULL, "%s", err);
}

/* Put a compiled grammar into the table, or take the one that another thread has put there meanwhile. */
static struct grammar_use *insert(struct grammars *gs, struct grammar_use *made, uint64_t tenant)
{
	struct grammar_use **at, *u = NULL, *dropped;

	pthread_mutex_lock(&gs->lock);
	at = place_of(gs, made->hash, made->key, made->n_key);
	if (*at && use(gs, *at, tenant, true)) {
		u = *at;
		made->chained = NULL;
		dropped = made;
	} else if (!*at && use(gs, made, tenant, false)) {
		made->chained = NULL;
		*at = u = made;
		dropped = evict(gs);
	} else {
		made->chained = NULL;
		dropped = made;
	}
	pthread_mutex_unlock(&gs->lock);
	free_all(dropped);
	return u;
}

struct grammar_use *grammars_get(struct grammars *gs, const struct ask *a, uint64_t tenant, struct problem *p)
{
	struct grammar_use *u = NULL, *made;
	size_t n;
	char *key = key_of(a, &n);

	if (key)
		u = find(gs, key, n, tenant);
	made = u || !key ? NULL : calloc(1, sizeof(*made));
	if (!made) {
		free(key);
		if (!u)
			problem_memory(p);
		return u;
	}
	*made = (struct grammar_use){ .key = key, .n_key = n, .hash = auth_hash(key, n) };
	if (compile(gs, a, made, p) < 0) {
		free(key);
		free(made);
		return NULL;
	}
	made->bytes = sizeof(*made) + n + sr_grammar_bytes(made->grammar);
	u = insert(gs, made, tenant);
	if (!u)
		problem_set(p, 503, "ServiceUnavailableError", NULL, "Too many different grammars are in use. "
		            "Try again later.");
	return u;
}

void grammars_put(struct grammars *gs, struct grammar_use *u)
{
	struct grammar_use *dropped = NULL;
	size_t bytes;

	if (!u)
		return;
	bytes = sizeof(*u) + u->n_key + sr_grammar_bytes(u->grammar); /* its caches have grown */
	pthread_mutex_lock(&gs->lock);
	if (!--u->uses) {
		tenants_release(&gs->held, u->tenant, u->bytes);
		u->tenant = NULL;
		u->bytes = bytes;
		idle_add(gs, u);
		dropped = evict(gs);
	}
	pthread_mutex_unlock(&gs->lock);
	free_all(dropped);
}

struct sr_grammar *grammars_grammar(const struct grammar_use *u) { return u->grammar; }
const char *grammars_note(const struct grammar_use *u) { return u->note; }

int grammars_create(struct grammars **out, const struct sr_text *t, struct api_shared *shared, size_t kept,
                    size_t used)
{
	struct grammars *gs = calloc(1, sizeof(*gs));

	*out = gs;
	if (!gs)
		return -ENOMEM;
	gs->text = t;
	gs->shared = shared;
	gs->kept = kept;
	gs->used = used;
	pthread_mutex_init(&gs->lock, NULL);
	return 0;
}

void grammars_destroy(struct grammars *gs)
{
	if (!gs)
		return;
	gs->kept = 0;
	free_all(evict(gs));
	pthread_mutex_destroy(&gs->lock);
	free(gs);
}
