/* page.h - the page that a browser gets at /, and the data that it shows.
 *
 * The page is one file without a request to anybody else.  Its bytes are for everyone who may see it (--ui).
 * Its data needs an API key if one is set, and goes to no page of another origin.
 */
#ifndef PAGE_H
#define PAGE_H

#include <stdbool.h>

struct api;
struct exchange;
struct live;
struct replica;

/* Is the page served on this connection?  With --ui local: on one from this machine. */
bool page_shown(const struct api *a, const struct exchange *x);

/* May this request see the names of keys and what each has used?  From this machine, or with a key that the
 * key file marks operator, or with that of --metrics-key. */
bool page_names_keys(const struct api *a, struct exchange *x);

/* What the page may show and do.  With keys: all, by one that its file marks operator.  Without: names of
 * clients to this machine; and it turns knobs with --ui-knobs. */
enum page_right { PAGE_SEES_CLIENTS = 1, PAGE_TURNS_KNOBS = 2 };
unsigned page_rights(const struct api *a, struct exchange *x);

void page_get(struct api *a, struct exchange *x);    /* the page itself */

/* live.c */
int  live_create(struct live **out, struct api *a);  /* a: the first of all models.  0, or -1: no memory */
/* The daemon that the page calls number i, of all models; NULL: there is none. */
const struct replica *live_replica(const struct live *l, int i);
void live_drain(struct live *l);                     /* ends all streams */
void live_destroy(struct live *l);
void live_get(struct api *a, struct exchange *x);    /* what the daemon does, an event a second */
void live_past(struct api *a, struct exchange *x);   /* what it did */

void knob_post(struct api *a, struct exchange *x);   /* knob.c: turns a knob */

#endif
