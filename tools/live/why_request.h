/* why_request.h - slipring why REQUEST-ID: what became of one request, and what it waited for. */
#ifndef WHY_REQUEST_H
#define WHY_REQUEST_H

#include <stdbool.h>

struct instance;

/* id: of an answer, of a header, or a trace; NULL: the request that ended last.  Returns the exit status. */
int why_request(const struct instance *in, const char *id, bool json);

#endif
