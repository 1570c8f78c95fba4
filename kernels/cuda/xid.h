/* xid.h - the driver's number for what befell a GPU, by which NVIDIA's list says whether it was the program,
 * the driver or the hardware.  From NVML, which is opened at run time; without it there is none. */
#ifndef CUDA_XID_H
#define CUDA_XID_H

#ifdef __cplusplus
extern "C" {
#endif

struct xid;

/* From now on, of the GPU with this PCI address.  NULL: it cannot be watched. */
struct xid *xid_watch(const char *bus);

/* The last that came, after a wait of a moment if none has yet; 0: none, or w is NULL. */
int xid_last(struct xid *w);

void xid_close(struct xid *w);       /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
