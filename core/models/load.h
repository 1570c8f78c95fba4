/* load.h - read weights for a back end: struct sr_source over io.h.
 *
 * It uses O_DIRECT where the file system supports it, with several reads in flight.  Otherwise, and for
 * files already in the page cache, it uses buffered reads, which are then faster.
 */
#ifndef LOAD_H
#define LOAD_H

#include "core/instance/io.h"
#include "kernels/model.h"

struct load;

/* file: paths by the numbers that extents use.  progress (may be NULL) is called at intervals with
 * the bytes read so far. */
int  load_create(struct load **out, struct io *io, char *const *file, int32_t n_files,
                 void (*progress)(void *ctx, uint64_t bytes), void *ctx,
                 char *err, size_t errlen);
const struct sr_source *load_source(struct load *l);
void load_stop(struct load *l);               /* from a callback of io: source_wait() returns -EIO */
void load_destroy(struct load *l);            /* waits for reads under way */

/* After -EIO: which file, where, and why; else "". */
const char *load_error(const struct load *l);

/* Extents of these files are made up, two bytes a weight (core/models/model.h, model_open_dummy): small
 * random bf16 numbers, always the same at the same offset; or bf16 ones. */
enum { LOAD_RANDOM = -1, LOAD_ONES = -2 };

#endif
