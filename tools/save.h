/* save.h - one key of a YAML settings file, changed in place. */
#ifndef SAVE_H
#define SAVE_H

#include <stddef.h>

/* Make `key: value` of the file's line for that key (- and _ are the same), or add the line at its
 * end; all else, comments too, stays byte for byte.  The new file is read back, then takes the
 * place of the old one, whose mode and owner it has: at no moment is there half a file.  A file
 * that is not there is made.  0, or -errno and one sentence; then nothing was changed. */
int save_key(const char *path, const char *key, const char *value, char *err, size_t errlen);

#endif
