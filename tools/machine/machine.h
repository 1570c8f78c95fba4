/* machine.h - is this machine fit to serve?  What there is, what is needed, how to get it. */
#ifndef MACHINE_H
#define MACHINE_H

enum finding_level { FINDING_FINE, FINDING_HINT, FINDING_WRONG };

struct finding {
	const char *what;
	enum finding_level level;     /* HINT: it serves, but could do better */
	char have[160], need[120], how[300]; /* how: "" if nothing is to be done */
};

#define FINDINGS_MOST 32

/* The machine itself; a row each.  How many. */
int machine_look(struct finding out[FINDINGS_MOST]);

/* The GPUs, likewise: driver, persistence, clocks, errors; one row that says so if there are none. */
int machine_gpus(struct finding *out);

void machine_say(struct finding *f, enum finding_level level, const char *need, const char *how,
                 const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* How fast a file can be read, past the page cache.  Takes a second or so. */
void machine_disk(struct finding *out, const char *file);

#endif
