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

/* Is the page served on this connection?  With --ui local: on one from this machine. */
bool page_shown(const struct api *a, const struct exchange *x);

void page_get(struct api *a, struct exchange *x);    /* the page itself */

#endif
