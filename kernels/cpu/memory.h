/* memory.h - see memory.c.  A list of mappings belongs to one back end. */
#ifndef CPU_MEMORY_H
#define CPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct memory;

/* Zeroed address space, aligned to 2 MiB; pages come when they are touched.  NULL: none. */
void *memory_map(struct memory **list, size_t size);
void  memory_huge(void *at, size_t size);   /* of a mapping's start: please in huge pages */
void  memory_unmap_all(struct memory **list);

/* Bytes that can be had now, and in all: of the machine or the tightest control group. */
void  memory_left(int64_t *avail, int64_t *total);

#endif
