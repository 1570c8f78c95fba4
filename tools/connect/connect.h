/* connect.h - what slipring connect shares.
 *
 *	connect.c     the command: asks the server, prints, starts the program
 *	programs.c    the programs: a row each
 *	settings.c    a program's own file of settings: ours into it, and out again
 */
#ifndef CONNECT_H
#define CONNECT_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

/* The server, for the words in braces of a program's row. */
struct target {
	char base[400];    /* {base}: http://host:port; {v1} is base/v1 */
	char model[256];   /* {model} */
	char key[512];     /* {key}: an API key, or "none" */
	long long context; /* {context}: max_model_len; 0: the server does not tell; {output}: a quarter of it */
};

enum api { API_CHAT, API_RESPONSES, API_MESSAGES };

struct program {
	const char *name, *title;
	enum api api;         /* that it speaks */
	const char *command;  /* for --run; NULL: it is no command */
	const char *word[20]; /* of that command */
	const char *env[12];  /* NAME={..} */
	const char *settings; /* flag before the settings as JSON, which win over its file; NULL: it has none */
	const char *use;      /* the command that uses what --write wrote, if the program's own name does not */
	const char *file;     /* its settings, below HOME; NULL: they are no file that we know */
	const char *lines;    /* to put into it; in JSON: to merge.  NULL: {"env": {env}} */
	const char *fill;     /* what a person fills in, if there is no file */
};

#define N_PROGRAMS 8
extern const struct program programs[N_PROGRAMS];

/* The text with the words in braces replaced.  quote: characters that get a backslash, or NULL.  The caller
 * frees it; NULL: no memory. */
char *connect_fill(const struct target *t, const char *text, const char *quote);

/* The program's settings as a tree, if its file is JSON. */
json_t *connect_tree(const struct target *t, const struct program *p);
bool connect_is_json(const struct program *p);

/* Put our settings into the file at path in place of those of an earlier call.  The old file is kept as
 * path.before-slipring; if there was none, path.new-by-slipring says so.  0 or -errno. */
int settings_write(const char *path, const struct program *p, const struct target *t, char *err,
                   size_t errlen);
/* Take them out again, and put back what they replaced. */
int settings_undo(const char *path, const struct program *p, const struct target *t, char *err,
                  size_t errlen);

#endif
