/* cuda_runtime_api.h - of the runtime what few files ask: the driver's age, and whether a GPU shares the host's memory. */
#ifndef EMU_CUDA_RUNTIME_API_H
#define EMU_CUDA_RUNTIME_API_H

#include <cuda_runtime.h>

constexpr cudaDeviceAttr cudaDevAttrIntegrated = (cudaDeviceAttr)18;

cudaError_t cudaDriverGetVersion(int *version);  /* not counted, as the next */
cudaError_t cudaRuntimeGetVersion(int *version);

/* For tests. */
extern int emu_driver;                      /* CUDA's version that the driver is for: 13000, as the emulation's own */
extern bool emu_integrated;                 /* false: the device has memory of its own */
extern uint64_t emu_to_device;              /* bytes copied from the host to it, so far */

#endif
