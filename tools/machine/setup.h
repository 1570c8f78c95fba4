/* setup.h - what `slipring setup` brings about, a step each: look whether it is so, make it so, take it
 * back.  All paths are below a root folder, which is "" but in tests. */
#ifndef SETUP_H
#define SETUP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include <jansson.h>

enum step_kind {
	STEP_VALUE,                   /* a word that the kernel keeps in a file of /proc or /sys */
	STEP_FILE,                    /* a file of ours with this text */
	STEP_DIR,
	STEP_USER,                    /* path is its name, text the group that it joins besides, or "" */
};

struct step {
	const char *what;             /* for the table, a word or two */
	const char *why;
	enum step_kind kind;
	char path[300];
	char *text;                   /* wanted */
	char have[80];                /* found, for the table */
	bool good, absent;            /* nothing to do; this kernel does not have it, likewise */
};

#define STEPS_MOST 32

struct setup {
	const char *root;             /* "" or a folder */
	long huge_pages;              /* wanted; 0 = by the memory */
	struct step step[STEPS_MOST];
	int n;
};

/* All steps, each looked at.  0, or -ENOMEM. */
int  setup_look(struct setup *s);
void setup_free(struct setup *s);

/* Make it so.  0 and what was before in *undo (a new object), or -errno and one sentence. */
int  step_apply(const struct setup *s, struct step *t, json_t **undo, char *err, size_t errlen);

/* Can step_apply have made this entry?  Kinds, paths and names are those of setup_look, and no others. */
bool step_known(const json_t *undo);

/* Take one back that is known, as step_apply described it: 1 it is as before, 0 left alone, because it is
 * not as we had left it (say tells), or -errno and one sentence. */
int  step_undo(const struct setup *s, const json_t *undo, char *say, size_t n);

/* setup_place.c: files below a root folder; paths from there.  0 or -errno. */
#define PLACE_TEXT 16384              /* the longest text and its end */
bool  place_ours(const struct stat *st); /* only root and we can write it */
/* The folder that holds path, as a descriptor; *leaf: the last name of path.  make: what is missing. */
int   place_dir(const char *root, const char *path, bool make, const char **leaf);
char *place_read(const char *root, const char *path);
/* value: a file of /proc or /sys, as it stands; else a new file in its place. */
int   place_write(const char *root, const char *path, const char *text, bool value);
int   place_mkdir(const char *root, const char *path, mode_t mode);
int   place_remove(const char *root, const char *path, bool folder);

#endif
