/* engines.c - see engines.h. */
#include "engines.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/instance/config.h"
#include "core/instance/stats.h"

#define ENGINES_MOST 64

/* The page of daemon i beside `name`, which ends with - and a number; NULL: there is none. */
static const struct stats_page *page_of(const char *name, int i)
{
	const char *dash = strrchr(name, '-');
	const struct stats_page *p;
	char other[80], dir[4096];

	if (!dash || !isdigit((unsigned char)dash[1]) || dash[1 + strspn(dash + 1, "0123456789")])
		return NULL;
	snprintf(other, sizeof(other), "%.*s-%d", (int)(dash - name < 60 ? dash - name : 60), name, i);
	return config_find_run_dir(other, dir, sizeof(dir)) == 0 && stats_open(&p, dir) == 0 ? p : NULL;
}

static double kv_used(const struct stats_page *p)
{
	return p->n_blocks ? (double)p->blocks_used / (double)p->n_blocks : 0;
}

void engines_say(struct sheet *s, const char *name)
{
	for (int i = 0; i < ENGINES_MOST; i++) {
		const struct stats_page *p = page_of(name, i);

		if (!p)
			continue;
		sheet_add(s, false, "engine %-2d %-9s running %llu   waiting %llu   KV %.1f %%   "
		          "generated %llu tokens", i, p->epoch ? p->state : "ended",
		          (unsigned long long)p->running, (unsigned long long)p->waiting, 100 * kv_used(p),
		          (unsigned long long)p->count.generation_tokens);
		stats_close(p);
	}
}

json_t *engines_json(const char *name)
{
	json_t *list = json_array();

	for (int i = 0; i < ENGINES_MOST; i++) {
		const struct stats_page *p = page_of(name, i);

		if (!p)
			continue;
		json_array_append_new(list, json_pack("{s:i, s:s, s:I, s:I, s:f, s:I}", "engine", i, "state",
			p->epoch ? p->state : "ended", "running", (json_int_t)p->running, "waiting",
			(json_int_t)p->waiting, "kv_used", kv_used(p), "generated_tokens",
			(json_int_t)p->count.generation_tokens));
		stats_close(p);
	}
	return list;
}
