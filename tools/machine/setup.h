/* setup.h - the steps of `slipring setup`.  Each can be checked, applied and undone.  All paths are below a
 * root folder, which is "" except in tests. */
#ifndef SETUP_H
#define SETUP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include <jansson.h>

enum step_kind {
	STEP_VALUE,                   /* a word that the kernel keeps in a file of /proc or /sys */
	STEP_FILE,                    /* a file that setup writes, with this text */
	STEP_DIR,
	STEP_USER,                    /* path is its name, text an additional group, or "" */
};

struct setup_step {
	const char *what;             /* one or two words for the table */
	const char *why;
	enum step_kind kind;
	char path[300];
	char *text;                   /* the wanted text */
	char have[80];                /* what was found, for the table */
	bool good, absent;            /* nothing to do; nothing to do because this kernel lacks it */
};

#define STEPS_MOST 48

struct setup {
	const char *root;             /* "" or a folder */
	long huge_pages;              /* wanted number; 0 = chosen by the memory */
	struct setup_step step[STEPS_MOST];
	int n;
};

/* List all steps and check each.  0, or -ENOMEM. */
int  setup_look(struct setup *s);
void setup_free(struct setup *s);

/* Apply a step.  Returns 0 and the previous state in *undo (a new object), or -errno and one sentence. */
int  step_apply(const struct setup *s, struct setup_step *t, json_t **undo, char *err, size_t errlen);

/* Can step_apply have made this entry?  Only kinds, paths and names of setup_look are known. */
bool step_known(const json_t *undo);

/* Undo a known entry that step_apply made.  1: the previous state is back; 0: left alone, because it was
 * changed since (`say` reports it); or -errno and one sentence. */
int  step_undo(const struct setup *s, const json_t *undo, char *say, size_t n);

/* setup_place.c: files below a root folder; paths are relative to it.  0 or -errno. */
#define PLACE_TEXT 16384              /* bytes of the longest text, with its NUL */
bool  place_ours(const struct stat *st); /* only root and the caller can write it */
/* A descriptor of the folder that holds path; *leaf: the last name of path.  make: create missing folders. */
int   place_dir(const char *root, const char *path, bool make, const char **leaf);
char *place_read(const char *root, const char *path);
/* value: write into an existing file of /proc or /sys; else replace the file by a new one. */
int   place_write(const char *root, const char *path, const char *text, bool value);
int   place_mkdir(const char *root, const char *path, mode_t mode);
int   place_remove(const char *root, const char *path, bool folder);

#endif
