/* races.h - accesses of threads to shared and device memory that nothing puts in order.
 *
 * Kernels that are compiled with the compiler's thread sanitizer call __tsan_read4(), __tsan_write4() .. for each access.
 * races.cc has these functions in place of the sanitizer's library.  For each word it keeps the last write, the last
 * atomic operation and some reads since, and a clock for what each thread knows of the others.  Two accesses of which
 * one writes are a fault, unless the later thread knows of the earlier access: by a barrier, __syncwarp, an mbarrier, or
 * a count that both blocks added to after a fence.  Shuffles, votes, ldmatrix and mma order nothing.
 * A write that changes nothing is no fault: threads may write the same to one place.
 * An access to device memory before the thread has waited for the previous kernel is a fault, too, unless it reads what
 * nothing has written since the stream was last idle.
 *
 * Nothing of this is on in programs whose kernels are compiled as usual.  EMU_RACES=all prints each pair of lines once
 * and goes on.
 */
#ifndef EMU_RACES_H
#define EMU_RACES_H

#include "tests/emu/emu.h"

namespace emu {
namespace races {

enum kind { WRITE, ATOMIC, READ };

extern bool on;
extern const bool *waited;           /* of each lane, or NULL: the kernel need not wait */

void launch(unsigned lanes, unsigned per_block);
void blocks(uint64_t cluster);       /* those of a cluster begin */
void blocks_end();
void touch(unsigned lane, const void *p, size_t n, enum kind kind, const void *pc);
void barrier_block(unsigned block);
void barrier_all();
void barrier_some(const std::vector<unsigned> &lanes); /* whole warps */
void barrier_warp(unsigned first_lane, unsigned mask);

void arrive(unsigned lane, const void *mbarrier);
void landed(const void *mbarrier, const void *to, size_t n); /* a bulk copy, and counts as an arrival */
void phase_ends(const void *mbarrier, unsigned parity);
void phase_seen(unsigned lane, const void *mbarrier, unsigned parity);

void fence(unsigned lane);
void atomic(unsigned lane, const void *p, size_t n, const void *pc);
void idle();                         /* what was written so far is visible to whatever comes */

void *take(size_t n);                /* device memory; NULL: not on */
bool give(void *p, size_t n);        /* false: not from take() */

} // namespace races
} // namespace emu

#endif
