/* nccl.h - for tests: the NCCL of the emulation (nccl.cc). */
#ifndef EMU_NCCL_H
#define EMU_NCCL_H

#include <cstdint>

extern const char *emu_nccl_library;        /* the one that dlopen() finds; NULL, or EMU_NCCL */
extern const char *emu_nccl_lacks;          /* a function that it does not have, or NULL */
extern int emu_nccl_version;                /* 23007 */
extern uint64_t emu_nccl_calls;             /* of this process, so far */
extern bool emu_nccl_absent;                /* this rank never comes to a collective */
void emu_nccl_fail(uint64_t nth, int result); /* the nth call from now; 0: none */
void *emu_nccl_function(const char *name);

#endif
