/* stripes.cuh - how products of few rows divide a matrix among the blocks of a grid (few.cu, packed_few.cu).
 *
 *	tiles of outputs, each as long as the inputs, cut into units, are laid end to end; each block has an
 *	equal stripe of that, so that all processors read weights to the end
 *
 *	   tile 0            tile 1            tile 2
 *	  |--+--+--+--+--+--|--+--+--+--+--+--|--+--+--+--+--+--|   units
 *	   block 0       block 1       block 2       block 3
 *
 *	a block has a part of the tile that its stripe begins in, whole tiles, and a part of the tile that it
 *	ends in.  Parts lie in memory; the last block to leave its own adds them all, in their order: sums do
 *	not depend on who that was.
 */
#ifndef CUDA_STRIPES_CUH
#define CUDA_STRIPES_CUH

#include "kernel.cuh"

/* The first of `all` units that a block has. */
static inline __device__ uint32_t first_unit(uint32_t all, uint32_t block)
{
	return all * block / gridDim.x;
}

/* Who has a unit. */
static inline __device__ uint32_t block_of(uint32_t all, uint32_t unit)
{
	return ((unit + 1) * gridDim.x - 1) / all;
}

/* How many blocks have a part of a tile of so many units, the first of them. */
static inline __device__ uint32_t parts_of(uint32_t all, uint32_t units, uint32_t tile, uint32_t &first)
{
	first = block_of(all, tile * units);
	return block_of(all, (tile + 1) * units - 1) - first + 1;
}

/* Where a block's part of a tile lies, `each` floats long: the second of its places if it is the tile's
 * first. */
static inline __device__ float *part_at(float *parts, size_t each, uint32_t block, bool first)
{
	return parts + (size_t)(2 * block + first) * each;
}

/* This block's part of a tile is there; true in all threads of the last to say so. */
static inline __device__ bool arrive(uint32_t *arrived, uint32_t parts, uint32_t *word)
{
	__threadfence();
	__syncthreads(); /* all of the part is there */
	if (threadIdx.x == 0) {
		*word = atomicAdd(arrived, 1u) + 1 == parts;
		if (*word)
			*arrived = 0;
	}
	__syncthreads();
	__threadfence();
	return *word;
}

#endif
