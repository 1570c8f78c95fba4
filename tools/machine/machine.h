/* machine.h - is this machine fit to serve?  Reports what it has, what is needed, and how to get that. */
#ifndef MACHINE_H
#define MACHINE_H

enum finding_level { FINDING_FINE, FINDING_HINT, FINDING_WRONG };

struct finding {
	const char *what;
	enum finding_level level;     /* HINT: it works, but could be better */
	char have[160], need[120], how[300]; /* how: "" if there is nothing to do */
};

#define FINDINGS_MOST 48

/* Check the machine itself.  Returns the number of rows. */
int machine_look(struct finding out[FINDINGS_MOST]);

/* Check the GPUs: driver, persistence, clocks, errors.  Without GPUs there is one row that says so. */
int machine_gpus(struct finding *out);

void machine_say(struct finding *f, enum finding_level level, const char *need, const char *how,
                 const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Measure how fast a file can be read past the page cache.  Takes about 1 s. */
void machine_disk(struct finding *out, const char *file);

#endif
