/* instance.h - which daemon a command is about, and its stats page. */
#ifndef INSTANCE_H
#define INSTANCE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/instance/stats.h"

struct instance {
	const char *name;             /* --instance; "default" */
	char dir[4096];               /* its run directory */
	const struct stats_page *page; /* a copy: stats_read brings it up to date */
};

/* Open the page of the instance `name`.  0; else -errno, and a message on stderr that says what to do:
 * how one is started, which ones there are. */
int  instance_open(struct instance *in, const char *command, const char *name);
void instance_close(struct instance *in);

/* Follow a daemon that was started anew.  True: the page is another one now. */
bool instance_follow(struct instance *in);

/* Is the process that wrote the page alive?  (A page outlives a daemon that was killed.) */
bool instance_alive(const struct instance *in);

/* The settings file that the page names, as the daemon was started with it (--config).  Whoever wrote the
 * page chose that path, so it is given only if that is root or the caller.  NULL and a sentence. */
const char *instance_config(const struct instance *in, char *why, size_t n);

/* The sentence for sr_open(socket) == rc < 0, with what to do; and rc again. */
int  instance_refused(const char *socket, int rc, char *err, size_t errlen);

#endif
