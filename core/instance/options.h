/* options.h - one row of the table of options.  Parsing, YAML and --help read the table (options.c).
 *
 * An entry is a flag (without its dashes), its value, what we do with it, and a sentence.  A flag marked
 * SET is ours, or means here what it means in vLLM.  vLLM's other flags are marked
 *
 *	ACCEPT  no value changes anything here: taken in silence
 *	WARN    it changes nothing here, but a user might think that it does: taken with a warning
 *	ONLY    taken with the values listed (its default or an equivalent), else refused
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stddef.h>

#include "config.h"

enum kind {
	YESNO,                 /* bool: --x, --no-x, --x=true */
	INT,                   /* int */
	SIZE,                  /* int64_t: 4096, 4k = 4000, 4K = 4096 */
	SIZE_AUTO,             /* the same; auto or -1 = -1 */
	U64,                   /* uint64_t */
	NUMBER,                /* double */
	TEXT,                  /* const char *; with choices, one of them */
	WORD,                  /* an enum: the index of the word in choices */
	LIST,                  /* const char *[CONFIG_LIST], and an int count directly after it */
	PARTS,                 /* a JSON object, whole or member by member (--x.a.b V): as a LIST whose
	                          entries are objects {..} and members a.b=V, in the order given */
};
enum action { SET, ACCEPT, WARN, ONLY };
enum topic { MODEL, MEMORY, SCHED, DEVICE, SERVER, HTTP, TLS, LOGGING, PARALLEL, OTHER, N_TOPICS };

struct option {
	const char *name;
	const char *also;      /* other spellings with their dashes, separated by spaces; NULL = none */
	uint8_t kind, action, topic, who;
	bool    common;        /* it is in the short help */
	size_t  at;            /* SET: offset of its field in struct config */
	double  min, max;      /* inclusive limits of a number */
	const char *value;     /* SET: the default as a user types it, NULL = none;
	                          ONLY: accepted values, separated by spaces ("" = no value) */
	const char *choices;   /* separated by spaces; NULL = anything */
	const char *help;
};

/* No program has more options; the table asserts it. */
enum { OPTIONS_MAX = 320 };

extern const struct option options[];
extern const int n_options;

/* The index of an option; - and _ are the same.  -EINVAL: err asks "did you mean". */
int config_option(const char *name, char *err, size_t errlen);

#endif
