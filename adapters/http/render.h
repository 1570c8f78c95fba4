/* render.h - the answers of the render routes. */
#ifndef RENDER_H
#define RENDER_H

#include "adapters/http/json/openai.h"
#include "adapters/http/json/out.h"

struct dialect;

/* Write a request of this dialect, whose prompts are ids, as token ids and sampling_params.  made: its id if
 * it names none.  0, or -1 and *p: that form cannot say it. */
int render_write(struct out *o, const struct ask *a, const struct ask_limits *l, const struct dialect *d,
                 const char *made, struct problem *p);

#endif
