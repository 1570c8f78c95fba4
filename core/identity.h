/* identity.h - what the bits of answers depend on besides their ids, as a number.
 *
 * Two daemons with the same number compute the same, so one goes on with an answer that the other began; and K,V that
 * one has written are read by the other (keep.h).  It is made of SR_BITS (kernels/backend.h), of the content of the
 * model's files and of the settings that change bits.  Releases, the files' places and times have no part in it.
 *
 * Of a small file all bytes count.  Of a large one the head, with the names and sizes of tensors, and samples of the
 * data: an edit in place between two samples is not seen.
 */
#ifndef IDENTITY_H
#define IDENTITY_H

#include <stdint.h>

#include "core/instance/config.h"
#include "core/models/model.h"
#include "kernels/backend.h"
#include "plan.h"

struct identity {
	const struct config *cfg;
	const char *path;             /* of the model's file or directory */
	const struct model *model;
	const struct plan *plan;
	const struct sr_backend_ops *ops;
	struct sr_backend *b;         /* open */
};

/* Of K,V.  The kind of a back end's KV blocks is not in it yet: keep.h adds it. */
void identity_make(uint64_t out[2], const struct identity *of);

/* sr_model_info.answers: of all that answers depend on. */
uint32_t identity_answers(const struct identity *of);

#endif
