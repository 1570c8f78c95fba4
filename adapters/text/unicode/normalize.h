/* normalize.h - Unicode normal form C, for models whose tokenizer requires it (Qwen). */
#ifndef NORMALIZE_H
#define NORMALIZE_H

#include <stddef.h>

/* s is valid UTF-8.  *out is malloc'ed, or NULL: s is in that form already.  Takes linear time, except to
 * sort long runs of combining marks.  0, -ENOMEM, -EINVAL. */
int normalize_nfc(const char *s, size_t n, char **out, size_t *out_n);

#endif
