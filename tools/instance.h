/* instance.h - finds the daemon that a command is about, and its stats page. */
#ifndef INSTANCE_H
#define INSTANCE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/instance/stats.h"

struct instance {
	const char *name;             /* --instance; "default" */
	char dir[4096];               /* its run directory */
	const struct stats_page *page; /* a copy, which stats_read updates */
};

/* Open the page of the instance `name`.  Returns 0, or -errno after a message on stderr: how to start a
 * daemon, or which instances there are. */
int  instance_open(struct instance *in, const char *command, const char *name);
void instance_close(struct instance *in);

/* Follow a daemon that was restarted.  True: the page has changed to the new daemon's. */
bool instance_follow(struct instance *in);

/* Is the process that wrote the page alive?  (A page outlives a daemon that was killed.) */
bool instance_alive(const struct instance *in);

/* The settings file (--config) of the daemon, as its page names it.  The page's owner chose that path, so it
 * is returned only if the owner is root or the caller.  Else NULL and a sentence. */
const char *instance_config(const struct instance *in, char *why, size_t n);

/* sr_open() that bears a busy machine: a daemon that does not answer is asked again, for INSTANCE_WAIT_S in
 * all, after a line on stderr.  0, or -errno and a sentence with advice.  o: as for sr_open, but not NULL. */
#define INSTANCE_WAIT_S 10
struct sr_conn;
struct sr_options;
int  instance_connect(struct sr_conn **c, const char *socket, const struct sr_options *o, char *err,
                      size_t errlen);

#endif
