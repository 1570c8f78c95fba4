/* quantize_dir.h - writes the files beside the weights of a quantized Hugging Face directory: config.json and
 * the tokenizer's files.  It copies them from such a directory, or makes them from a GGUF file.
 */
#ifndef QUANTIZE_DIR_H
#define QUANTIZE_DIR_H

#include "core/models/locate.h"
#include "core/models/model.h"

/* Can a directory have the tokenizer of this model?  0, or -ENOTSUP and one sentence. */
int quantize_dir_check(const struct located *from, char *err, size_t errlen);

/* Write all files into dir.  config.json is the last, because it makes the directory a model.  group: inputs
 * per scale of its AWQ matrices, 0 = all.  0, or -errno and one sentence. */
int quantize_dir_write(const struct located *from, const struct model *m, const char *dir, int32_t group,
                       char *err, size_t errlen);

#endif
