/* grouped.cu - products by expert: y[pair][N] = x[row of pair][K] w[its expert][N][K]^T + bias.
 *
 *	tile     16 or 64 pairs of one expert (route.cu) times 64 or 128 outputs; a block each
 *	stage    64 inputs of its rows, gathered, and of its outputs; cp.async into a ring
 *	sums     m16n8k16 along all inputs, in order: no warp and no block has a part of them.  So a row's bits
 *	         depend on the row and its expert alone, in any company, in tiles of 16 or of 64 rows
 *	weights  bf16; or 4 and 8 bits (packed.cuh), which are scaled and rounded to bf16 in registers.  e2m1
 *	         times a power of two (MXFP4) needs no rounding
 *
 * One token reads the weights of its experts once: 8 experts of 1,536 outputs are 192 blocks.  That is what
 * bounds a step.  Prompts read each expert's weights once for 64 pairs.
 */
#include "device.cuh"
#include "packed.cuh"
#include "product.cuh"
#include "ptx.cuh"

#define DEPTH 64                             /* inputs of a stage */
#define PIECES (DEPTH / 8)                   /* of 16 bytes, per row of a stage in bf16 */
#define SLABS (DEPTH / SLAB)

template <int ROWS_, enum held HELD_> struct by_expert {
	static const int ROWS = ROWS_, MWARPS = ROWS == 64 ? 2 : 1, NWARPS = 4, THREADS = 32 * MWARPS * NWARPS;
	static const int M = ROWS / MWARPS / 16, N = ROWS == 64 ? 4 : 2, COLS = NWARPS * N * 8;
	static const enum held HELD = HELD_;
	static const int WORDS = HELD == HELD_W8 ? 2 : 1;
	static const size_t X = (size_t)ROWS * DEPTH * sizeof(bf16);
	static const size_t STRIP_BYTES = (size_t)SLABS * WORDS * TILE_WORDS * sizeof(uint32_t);
	static const size_t W = HELD == HELD_BF16 ? COLS * DEPTH * sizeof(bf16) : COLS / STRIP * STRIP_BYTES;
	static const size_t SCALES = HELD == HELD_BF16 ? 0 : SLABS * COLS * sizeof(uint32_t);
	static const size_t STAGE = X + W + SCALES;
	static const int STAGES = ROWS == 64 ? 4 : (40 << 10) / STAGE;
	static const size_t RING = STAGES * STAGE, SHARED_BYTES = RING + ROWS * sizeof(int32_t);
};

struct grouped_args {
	void *y;
	bool f32;
	const bf16 *x, *w;
	struct packed packed;                /* all experts, each padded to whole strips */
	const float *bias;                   /* [experts][N] or NULL */
	const int32_t *pair;
	const struct expert_tile *tile;
	int32_t N, K, per;
	int32_t x_step, y_step;              /* elements from row to row */
	int32_t heads, T;                    /* matrices for heads, not experts: all T tokens by each; else 0 */
	int32_t columns;                     /* tiles of outputs */
};

/* The first output of this block's tile. */
template <class S> static __device__ int32_t first_output(const grouped_args &a)
{
	return (int32_t)blockIdx.x % a.columns * S::COLS;
}

static __device__ bf16 *place(bf16 *rows, int r, int piece)
{
	return rows + r * DEPTH + (piece ^ r % 8) * 8;
}

/* The rows of x that the pairs read; pair -1: there is none. */
template <class S> static __device__ void load_x(bf16 *to, const grouped_args &a, const int32_t *pair,
	int32_t k)
{
	for (int i = (int)threadIdx.x; i < S::ROWS * PIECES; i += S::THREADS) {
		int r = i / PIECES, piece = i % PIECES;
		bool there = pair[r] >= 0 && k + piece * 8 < a.K;

		cp_async_16(place(to, r, piece),
			there ? a.x + (size_t)(pair[r] / a.per) * (size_t)a.x_step + (size_t)(k + piece * 8) : a.x, there);
	}
}

template <class S> static __device__ void load_dense(bf16 *to, const grouped_args &a, int32_t expert,
	int32_t k)
{
	for (int i = (int)threadIdx.x; i < S::COLS * PIECES; i += S::THREADS) {
		int r = i / PIECES, piece = i % PIECES;
		int32_t n = first_output<S>(a) + r;
		bool there = n < a.N && k + piece * 8 < a.K;

		cp_async_16(place(to, r, piece), there ? a.w + ((size_t)expert * (size_t)a.N + (size_t)n) *
			(size_t)a.K + (size_t)(k + piece * 8) : a.w, there);
	}
}

/* Strips of the tile, each with its slabs of this stage; then the scales, [slab][output]. */
template <class S> static __device__ void load_packed(unsigned char *to, const grouped_args &a,
	int32_t expert, int32_t k)
{
	const int TILE = S::WORDS * TILE_WORDS / 4, ALL = S::COLS / STRIP * SLABS * TILE; /* pieces of 16 bytes */
	int32_t strips = (a.N + STRIP - 1) / STRIP, first = first_output<S>(a) / STRIP;
	int32_t slabs = a.K / SLAB;

	for (int i = (int)threadIdx.x; i < ALL; i += S::THREADS) {
		int32_t strip = first + i / (SLABS * TILE), slab = k / SLAB + i / TILE % SLABS;
		bool there = strip < strips && slab < slabs;
		size_t tile = ((size_t)expert * (size_t)strips + (size_t)strip) * (size_t)slabs + (size_t)slab;

		cp_async_16(to + i * 16, there ? a.packed.words + (tile * TILE + (size_t)(i % TILE)) * 4 :
			a.packed.words, there);
	}
	for (int i = (int)threadIdx.x; i < SLABS * S::COLS / 4; i += S::THREADS) {
		int32_t slab = k / SLAB + i / (S::COLS / 4), n = first * STRIP + i % (S::COLS / 4) * 4;
		bool there = n < strips * STRIP && slab < slabs;

		cp_async_16(to + S::W + i * 16, there ? a.packed.scale +
			(size_t)(slab / a.packed.group) * (size_t)a.packed.width +
			(size_t)expert * (size_t)strips * STRIP + (size_t)n : a.packed.scale, there);
	}
}

template <class S> static __device__ void load(unsigned char *stage, const grouped_args &a, int32_t expert,
	const int32_t *pair, int32_t k)
{
	load_x<S>((bf16 *)stage, a, pair, k);
	if (S::HELD == HELD_BF16)
		load_dense<S>((bf16 *)(stage + S::X), a, expert, k);
	else
		load_packed<S>(stage + S::X, a, expert, k);
}

/* x * s + b for a pair of bf16, rounded */
static __device__ uint32_t scaled(uint32_t pair, float s, float b)
{
	return bf16_pair(__uint_as_float(pair << 16) * s + b, __uint_as_float(pair & 0xffff0000) * s + b);
}

/* The weights of one fragment as bf16: b[0], b[1] for the first 16 inputs, b[2], b[3] for the others. */
template <class S> static __device__ void expand(const uint32_t *word, uint32_t scale, uint32_t (&b)[4])
{
	float2 f = S::HELD == HELD_W4 ? f32_of_f16_pair(scale) : make_float2(__uint_as_float(scale), 0);

	if (S::HELD == HELD_W4) {
		f.y -= 136 * f.x;                /* 0x4300 | q is 128 + q */
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i] = (word[0] >> 4 * i & 0x000f000f) | 0x43004300;
	} else if (S::HELD == HELD_F4) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i] = bf16_of_e2m1(word[0] >> 4 * i);
	} else {
		bf16_of_e4m3(word[0], b[0], b[1]);
		bf16_of_e4m3(word[S::WORDS - 1], b[2], b[3]);
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		b[i] = scaled(b[i], f.x, f.y);
}

/* The fragments of 16 inputs of this warp's outputs. */
template <class S> static __device__ void dense_fragments(bf16 *w, int col, int k, uint32_t (&b)[S::N][2])
{
	int lane = (int)threadIdx.x % 32;

#pragma unroll
	for (int n = 0; n < S::N; n += 2) {
		uint32_t r[4];

		ldmatrix_x4(r, place(w, col + 8 * n + lane / 16 * 8 + lane % 8, k / 8 + lane / 8 % 2));
		b[n][0] = r[0];
		b[n][1] = r[1];
		b[n + 1][0] = r[2];
		b[n + 1][1] = r[3];
	}
}

/* The same of one slab of packed weights: [half][n][2]. */
template <class S> static __device__ void packed_fragments(const unsigned char *w, int col, int slab,
	uint32_t (&b)[2][S::N][2])
{
	int lane = (int)threadIdx.x % 32;
	const uint32_t *tile = (const uint32_t *)(w + (size_t)(col / STRIP) * S::STRIP_BYTES) +
		slab * S::WORDS * TILE_WORDS;
	const uint32_t *scale = (const uint32_t *)(w + S::W) + slab * S::COLS + col;

#pragma unroll
	for (int n = 0; n < S::N; n++) {
		uint32_t word[2], four[4];

#pragma unroll
		for (int i = 0; i < S::WORDS; i++)
			word[i] = tile[in_tile<S::WORDS>(col % STRIP / 8 + n, i, lane)];
		expand<S>(word, scale[8 * n + lane / 4], four);
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i / 2][n][i % 2] = four[i];
	}
}

/* One stage: the fragments of this warp += x w^T. */
template <class S> static __device__ void multiply(float (&sum)[S::M][S::N][4], unsigned char *stage)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	int row = warp % S::MWARPS * S::M * 16, col = warp / S::MWARPS * S::N * 8;

#pragma unroll
	for (int slab = 0; slab < SLABS; slab++) {
		uint32_t b[2][S::N][2];

		if (S::HELD != HELD_BF16)
			packed_fragments<S>(stage + S::X, col, slab, b);
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int k = slab * SLAB + half * 16;

			if (S::HELD == HELD_BF16)
				dense_fragments<S>((bf16 *)(stage + S::X), col, k, b[half]);
#pragma unroll
			for (int m = 0; m < S::M; m++) {
				uint32_t a[4];

				ldmatrix_x4(a, place((bf16 *)stage, row + 16 * m + lane % 16, k / 8 + lane / 16));
#pragma unroll
				for (int n = 0; n < S::N; n++)
					mma_bf16(sum[m][n], a, b[half][n][0], b[half][n][1]);
			}
		}
	}
}

template <class S> static __device__ void put(const float (&sum)[S::M][S::N][4], const grouped_args &a,
	int32_t expert, const int32_t *pair)
{
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	int row = warp % S::MWARPS * S::M * 16 + lane / 4;
	int32_t col = first_output<S>(a) + warp / S::MWARPS * S::N * 8 + lane % 4 * 2;

#pragma unroll
	for (int m = 0; m < S::M; m++)
#pragma unroll
		for (int n = 0; n < S::N; n++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				int32_t p = pair[row + 16 * m + j / 2 * 8], c = col + 8 * n + j % 2;

				if (p >= 0 && c < a.N)
					put_one(a.y, a.f32, (size_t)p * (size_t)a.y_step + (size_t)c, sum[m][n][j] +
						(a.bias ? a.bias[(size_t)expert * (size_t)a.N + (size_t)c] : 0));
			}
}

/* Of heads: tile i has tokens of head i % heads, whose pairs are t * heads + head. */
template <class S> static __device__ struct expert_tile tile_of(const grouped_args &a)
{
	int32_t tile = (int32_t)blockIdx.x / a.columns;
	int32_t first = tile / (a.heads ? a.heads : 1) * S::ROWS, left = a.T - first;

	if (!a.heads)
		return a.tile[tile];
	return (struct expert_tile){ tile % a.heads, first, left < S::ROWS ? left : S::ROWS };
}

/* grid: tiles of outputs of the first tile of pairs, then of the next: there may be more than 65,535 tiles of pairs */
template <class S> static __global__ void __launch_bounds__(S::THREADS) grouped_kernel(struct grouped_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	struct expert_tile k = tile_of<S>(a);
	int32_t *pair = (int32_t *)(shared + S::RING), stages = (a.K + DEPTH - 1) / DEPTH;
	float sum[S::M][S::N][4] = {};

	if (!k.n)
		return;
	for (int r = (int)threadIdx.x; r < S::ROWS; r += S::THREADS)
		pair[r] = r >= k.n ? -1 : a.heads ? (k.first + r) * a.heads + k.expert : a.pair[k.first + r];
	__syncthreads(); /* all threads gather by it */
	for (int32_t s = 0; s < S::STAGES - 1; s++) {
		if (s < stages)
			load<S>(shared + s * S::STAGE, a, k.expert, pair, s * DEPTH);
		cp_async_commit();
	}
	for (int32_t s = 0; s < stages; s++) {
		int32_t ahead = s + S::STAGES - 1;

		cp_async_wait<S::STAGES - 2>();
		__syncthreads(); /* stage s is visible to all warps, and stage s - 1 is free */
		if (ahead < stages)
			load<S>(shared + ahead % S::STAGES * S::STAGE, a, k.expert, pair, ahead * DEPTH);
		cp_async_commit();
		multiply<S>(sum, shared + s % S::STAGES * S::STAGE);
	}
	put<S>(sum, a, k.expert, pair);
}

/* ---- choice of kernel ----------------------------------------------------------------- */

template <class S> static bool allow(struct dev *d)
{
	return cuda_ok(d, allow_shared(grouped_kernel<S>, S::SHARED_BYTES), "matmul by expert");
}

template <enum held H> static bool allow_both(struct dev *d)
{
	return allow<by_expert<16, H>>(d) && allow<by_expert<64, H>>(d);
}

bool experts_prepare(struct dev *d)
{
	return allow_both<HELD_BF16>(d) && allow_both<HELD_W4>(d) && allow_both<HELD_W8>(d) &&
	       allow_both<HELD_F4>(d);
}

template <class S> static void product(struct dev *d, struct grouped_args a, int32_t tiles)
{
	a.columns = (a.N + S::COLS - 1) / S::COLS;
	cuda_ok(d, start(grouped_kernel<S>, (unsigned)a.columns * (unsigned)tiles, S::THREADS, S::SHARED_BYTES, d->stream, a),
		"matmul by expert");
}

template <int ROWS> static void pick(struct dev *d, const struct grouped_args &a, enum held held, int32_t tiles)
{
	if (held == HELD_BF16)
		product<by_expert<ROWS, HELD_BF16>>(d, a, tiles);
	else if (held == HELD_W4)
		product<by_expert<ROWS, HELD_W4>>(d, a, tiles);
	else if (held == HELD_F4)
		product<by_expert<ROWS, HELD_F4>>(d, a, tiles);
	else
		product<by_expert<ROWS, HELD_W8>>(d, a, tiles);
}

void experts_multiply(struct dev *d, enum place y, enum place x, const struct weight *w, int T)
{
	const struct sr_experts *c = &d->m->experts;
	bool by_token = x == P_Y && !c->before;
	struct grouped_args a = { d->act.place[y], is_f32(y),
		(const bf16 *)d->act.place[x == P_Y && c->before ? P_OUT : x], w->mat, w->packed, w->bias,
		d->routing.pair, d->routing.tile, w->n, w->k, by_token ? c->top : 1, w->k, w->n, 0, 0, 0 };
	int32_t tiles = expert_tiles(T, c->n, c->top);

	if (d->fault.lost)
		return;
	if (expert_rows(T, c->n, c->top) == 64)
		pick<64>(d, a, w->held, tiles);
	else
		pick<16>(d, a, w->held, tiles);
}

/* Rows of x and y are laid end to end, so that pair t * H + h begins at its step. */
void heads(struct dev *d, enum place y, int y_step, enum place x, int x_step, const struct weight *w, int T)
{
	struct grouped_args a = { d->act.place[y], is_f32(y), (const bf16 *)d->act.place[x], w->mat, w->packed, w->bias,
		NULL, NULL, w->n, w->k, 1, x_step, y_step, w->count, T, 0 };

	if (d->fault.lost)
		return;
	if (T > 16)
		pick<64>(d, a, w->held, (T + 63) / 64 * w->count);
	else
		pick<16>(d, a, w->held, w->count);
}
