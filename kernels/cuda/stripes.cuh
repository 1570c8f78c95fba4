/* stripes.cuh - how products divide a matrix among the blocks of a grid: all of it those of few rows
 * (dense_few_rows.cu, packed_few_rows.cu), what is left of the last wave those of many (packed_many_rows.cu).
 *
 *	Tiles of outputs have all inputs.  They are cut into units and laid end to end, and each block has an
 *	equal stripe of units, so all multiprocessors read weights until the end:
 *
 *	   tile 0            tile 1            tile 2
 *	  |--+--+--+--+--+--|--+--+--+--+--+--|--+--+--+--+--+--|   units
 *	   block 0       block 1       block 2       block 3
 *
 *	A block has a part of the tile in which its stripe starts, whole tiles, and a part of the tile in which
 *	it ends.  Parts are in device memory.  The last block to store its part adds all parts of the tile in
 *	their order, so sums do not depend on which block was last.
 */
#ifndef CUDA_STRIPES_CUH
#define CUDA_STRIPES_CUH

#include "kernel.cuh"

/* The first of a block's units, of `all` units and `blocks` blocks. */
static inline __device__ uint32_t first_unit(uint32_t all, uint32_t blocks, uint32_t block)
{
	return (uint32_t)((uint64_t)all * block / blocks);
}

/* The block that has a unit. */
static inline __device__ uint32_t block_of(uint32_t all, uint32_t blocks, uint32_t unit)
{
	return (uint32_t)(((uint64_t)(unit + 1) * blocks - 1) / all);
}

/* The number of blocks with a part of a tile of `units` units; `first` is the first of them. */
static inline __device__ uint32_t parts_of(uint32_t all, uint32_t blocks, uint32_t units, uint32_t tile,
	uint32_t &first)
{
	first = block_of(all, blocks, tile * units);
	return block_of(all, blocks, (tile + 1) * units - 1) - first + 1;
}

/* The address of a block's part of a tile, `each` floats long.  A block has two places; the second is for a
 * tile of which it is the first block. */
static inline __device__ float *part_at(float *parts, size_t each, uint32_t block, bool first)
{
	return parts + (size_t)(2 * block + first) * each;
}

#endif
