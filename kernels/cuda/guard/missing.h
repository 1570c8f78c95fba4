/* missing.h - why CUDA finds no GPU: the driver, its device files, or its age. */
#ifndef CUDA_MISSING_H
#define CUDA_MISSING_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is wrong and what mends it, in one sentence without a full stop.  root: "" but in tests; versions as CUDA tells
 * them (12040 is 12.4), of the driver 0: unknown. */
void gpu_missing(char *to, size_t n, const char *root, int driver, int runtime);

#ifdef __cplusplus
}
#endif
#endif
