/* memory.h - mappings, and how much memory is left.  A list of mappings belongs to one back end. */
#ifndef CPU_MEMORY_H
#define CPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct memory;

/* Zeroed address space, aligned to 2 MiB, backed by pages when touched.  NULL: no memory. */
void *memory_map(struct memory **list, size_t size);
void  memory_huge(void *at, size_t size);   /* ask for huge pages, from a mapping's start on */
void  memory_unmap_all(struct memory **list);

/* Bytes free and in all: of the machine, or of the control group with the tightest limit. */
void  memory_left(int64_t *avail, int64_t *total);

#endif
