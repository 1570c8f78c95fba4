/* save.h - changes one key of a YAML settings file in place. */
#ifndef SAVE_H
#define SAVE_H

#include <stddef.h>

/* Replace the file's line for the key (- and _ are the same) by `key: value`, or add that line at the end.
 * All other bytes stay, comments too.  The new file gets the old one's mode and owner and is read back.
 * Then it replaces the old one by rename, so there is never half a file.  A missing file is created.
 * Returns 0, or -errno and one sentence; then nothing was changed. */
int save_key(const char *path, const char *key, const char *value, char *err, size_t errlen);

#endif
