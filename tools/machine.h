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

/* How fast a file can be read, past the page cache.  Takes a second or so. */
void machine_disk(struct finding *out, const char *file);

#endif
