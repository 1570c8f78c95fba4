/* lt.h - for tests: the cuBLASLt of the emulation (lt.cc). */
#ifndef EMU_LT_H
#define EMU_LT_H

#include <cstdint>

extern const char *emu_lt_library;          /* the one that dlopen() finds; NULL: none */
extern const char *emu_lt_lacks;            /* a function that it does not have, or NULL */
extern bool emu_lt_refuses;                 /* heuristics find nothing */
extern bool emu_lt_spoiled;                 /* products are wrong */
extern bool emu_lt_in_step;                 /* from here on only Matmul, of kernels executed before */
extern uint64_t emu_lt_calls, emu_lt_products; /* so far */
void emu_lt_fail(uint64_t nth, int status); /* the nth call from now; 0: none */
const char *emu_lt_misuse();                /* the first, or NULL */

#endif
