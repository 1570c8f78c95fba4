/* quantize_dir.h - what lies beside the weights in a Hugging Face directory that quantize writes:
 * config.json and the tokenizer's files; copied from such a directory, or made from what a GGUF file says.
 */
#ifndef QUANTIZE_DIR_H
#define QUANTIZE_DIR_H

#include "core/models/locate.h"
#include "core/models/model.h"

/* Can what m has be said in a directory?  0, or -ENOTSUP and one sentence. */
int quantize_dir_check(const struct located *from, const struct model *m, char *err, size_t errlen);

/* All of it into dir, config.json last: with it the directory is a model.  group: inputs to a scale of the
 * AWQ matrices in it, 0 = all.  0, or -errno and one sentence. */
int quantize_dir_write(const struct located *from, const struct model *m, const char *dir, int32_t group,
                       char *err, size_t errlen);

#endif
