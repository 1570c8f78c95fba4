/* reload.c - see reload.h.  Besides recordings, the only code that allocates after READY. */
#include "reload.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/instance/knobs.h"
#include "core/instance/log.h"

#define MOST 64                       /* most names of differing flags */

/* Flags that can change, besides the knobs. */
static const char *const others[] = { "shutdown-timeout", "disable-log-stats", "uvicorn-log-level" };

static bool can_change(const struct reload *r, const struct config *next, const char *name)
{
	/* Removed from the file: the device's default was planned only if the flag was absent at start. */
	if (knob_find(name) == KNOB_MAX_NUM_SEQS && !next->max_num_seqs)
		return !r->started->max_num_seqs;
	if (knob_find(name) == KNOB_MAX_NUM_BATCHED_TOKENS && !next->max_num_batched_tokens)
		return !r->started->max_num_batched_tokens;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (!strcmp(name, others[i]))
			return true;
	return knob_find(name) >= 0;
}

static int64_t knob_wanted(const struct reload *r, const struct config *c, enum knob k)
{
	switch (k) {
	case KNOB_MAX_NUM_SEQS:           return c->max_num_seqs ? c->max_num_seqs : r->seqs;
	case KNOB_MAX_NUM_BATCHED_TOKENS: return c->max_num_batched_tokens ? c->max_num_batched_tokens : r->tokens;
	case KNOB_LONG_PREFILL:           return c->long_prefill_token_threshold;
	case KNOB_POLICY:                 return strcmp(c->scheduling_policy, "priority") == 0;
	case KNOB_PREFIX_CACHING:         return c->enable_prefix_caching;
	case KNOB_STEP_TARGET:            return (int64_t)(c->step_target_ms * 1000);
	case N_KNOBS:                     break;
	}
	return 0;
}

/* The names that can change, or those that cannot, separated by commas. */
static const char *changed_names(const struct reload *r, const struct config *next, const char *const *name,
                                 int n, bool can, char *out, size_t size)
{
	size_t len = 0;

	*out = 0;
	for (int i = 0; i < n && len < size; i++)
		if (can_change(r, next, name[i]) == can)
			len += (size_t)snprintf(out + len, size - len, "%s%s", len ? ", " : "", name[i]);
	return out;
}

int reload_now(struct reload *r, char *err, size_t errlen)
{
	const char *name[MOST];
	int64_t value[N_KNOBS] = { 0 };
	unsigned which = 0;
	struct config next;
	char text[1024];
	int n, k;

	if (config_parse(&next, r->argc, r->argv, FOR_DAEMON, err, errlen) != 0)
		return -EINVAL;
	n = config_differ(&r->seen, &next, FOR_DAEMON, name, MOST);
	for (int i = 0; i < n; i++)
		if ((k = knob_find(name[i])) >= 0 && k < N_KNOBS && can_change(r, &next, name[i])) {
			value[k] = knob_wanted(r, &next, (enum knob)k);
			which |= 1u << k;
		}
	if (control_set(r->control, value, which, err, errlen) < 0) {
		config_free(&next);
		return -EINVAL;
	}
	if (*changed_names(r, &next, name, n, true, text, sizeof(text)))
		log_info("Settings were read again; changed: %s", text);
	else
		log_info("Settings were read again; nothing changed that can change while running");
	n = config_differ(r->started, &next, FOR_DAEMON, name, MOST);
	if (*changed_names(r, &next, name, n, false, text, sizeof(text)))
		log_warn("These settings changed, but need a restart: %s", text);
	config_free(&r->seen);
	r->seen = next;
	return 0;
}

void reload_create(struct reload *r, const struct config *started)
{
	r->started = started;
	r->seen = *started;
	r->seen.owned = NULL;         /* the texts belong to `started` */
}

void reload_destroy(struct reload *r)
{
	config_free(&r->seen);
}
