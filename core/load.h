/* load.h - read weights for a back end: struct sr_source over io.h.
 *
 * O_DIRECT reads where the file system can, several in flight; buffered otherwise, and for
 * files that are in the page cache already (they are faster from there).
 */
#ifndef LOAD_H
#define LOAD_H

#include "core/io.h"
#include "kernels/model.h"

struct load;

/* files: paths by the numbers that extents use.  progress (may be NULL) is called now and
 * then with bytes read so far. */
int  load_create(struct load **out, struct io *io, char *const *file, int32_t n_files,
                 void (*progress)(void *ctx, uint64_t bytes), void *ctx,
                 char *err, size_t errlen);
const struct sr_source *load_source(struct load *l);
void load_stop(struct load *l);               /* from a callback of io: whoever waits gets -EIO */
void load_destroy(struct load *l);            /* waits for what is under way */

/* After -EIO: which file, where, and why; else "". */
const char *load_error(const struct load *l);

/* Extents in these files are made up, two bytes a weight (core/model.h, model_open_dummy): small
 * random bf16 numbers, always the same at the same offset; and bf16 ones. */
enum { LOAD_RANDOM = -1, LOAD_ONES = -2 };

#endif
