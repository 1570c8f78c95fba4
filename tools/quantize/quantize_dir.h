/* quantize_dir.h - writes the files beside the weights of a quantized Hugging Face directory: config.json and
 * the tokenizer's files.  It copies them from such a directory, or makes them from a GGUF file.
 */
#ifndef QUANTIZE_DIR_H
#define QUANTIZE_DIR_H

#include "core/models/locate.h"
#include "core/models/model.h"

/* Can a directory have the tokenizer of this model?  0, or -ENOTSUP and one sentence. */
int quantize_dir_check(const struct located *from, char *err, size_t errlen);

/* What config.json says of the AWQ matrices: inputs per scale, 0 = all; an array of modules that are
 * none, which is released. */
struct quantize_said { int32_t group; struct json_t *left; };

/* Write all files into dir. config.json is the last, because it makes the directory a model. 0, or -errno
 * and one sentence. */
int quantize_dir_write(const struct located *from, const struct model *m, const char *dir,
                       struct quantize_said said,
                       char *err, size_t errlen);

#endif
