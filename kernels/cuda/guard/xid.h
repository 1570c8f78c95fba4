/* xid.h - the driver's number (Xid) for a GPU error.  NVIDIA's list says for each whether the program, the
 * driver or the hardware failed.  It comes from NVML, opened at run
 * time; without NVML it is 0. */
#ifndef CUDA_XID_H
#define CUDA_XID_H

#ifdef __cplusplus
extern "C" {
#endif

struct xid;

/* Watches the GPU with this PCI address from now on.  NULL: it cannot be watched. */
struct xid *xid_watch(const char *bus);

/* Returns the last Xid.  If there is none yet it waits up to 200 ms.  0: none, or w is NULL. */
int xid_last(struct xid *w);

void xid_close(struct xid *w);       /* w may be NULL */

#ifdef __cplusplus
}
#endif
#endif
