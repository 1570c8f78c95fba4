/* emu.cc - see emu.h: fibers, the scheduler, and the wide instructions by the layouts of the PTX
 * manual (sections on ldmatrix and on mma.m16n8k16 and .m16n8k32). */
#include "tests/emu/emu.h"
#include "tests/emu/races.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

bool emu_reversed;
uint64_t emu_launches;
bool emu_spoils, emu_spoils_parts, emu_early;

namespace emu {

lane *self;
dim3 block_index, block_size, grid_size;

static lane lanes[LANES_MAX];
static unsigned n_lanes, per_block;  /* of the cluster, of each of its blocks */
static dim3 index_of[CLUSTER_MAX];   /* of its blocks */
static void *scheduler;              /* its stack pointer while a lane runs */
static const std::function<void()> *body;
static unsigned char *pools;         /* shared memory of each block, then a canary */
static size_t pool_bytes;
static char message[512];

enum { CANARY = 256, POOL = SHARED_MAX + 1024 };

/* ---- fibers ---------------------------------------------------------------------------------------- */

extern "C" void emu_first();
asm(".text\n"
    "emu_first:\n"
    "	call emu_main\n	hlt\n");

/* Keeps this stack in *save and goes on where `load` stopped.  It is no function, and jumps: lanes of a warp come
 * from and return to the same places, so a processor predicts all of it.  A ret would be predicted wrongly each
 * time. */
static inline __attribute__((always_inline)) void switch_to(void **save, void *load)
{
	asm volatile("lea -128(%%rsp), %%rsp\n" /* the red zone */
		"	push %%rbp\n"
		"	lea 1f(%%rip), %%rax\n"
		"	push %%rax\n"
		"	mov %%rsp, (%0)\n"
		"	mov %1, %%rsp\n"
		"	pop %%rax\n"
		"	jmp *%%rax\n"
		"1:	pop %%rbp\n"
		"	lea 128(%%rsp), %%rsp\n"
		: "+D"(save), "+S"(load) :
		: "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1",
		"xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
		"xmm14", "xmm15", "memory", "cc");
}

#if defined(__SANITIZE_ADDRESS__)
static const void *home_stack;
static size_t home_size;
static void *home_fake;
static void leaving(void **fake, const void *to, size_t n) { __sanitizer_start_switch_fiber(fake, to, n); }
static void arrived(void *fake, const void **from, size_t *n) { __sanitizer_finish_switch_fiber(fake, from,
	n); }
#endif

static inline void enter(lane *l)
{
	self = l;
	block_index = index_of[l->block];
#if defined(__SANITIZE_ADDRESS__)
	leaving(&home_fake, l->stack, STACK);
#endif
	switch_to(&scheduler, l->sp);
#if defined(__SANITIZE_ADDRESS__)
	arrived(home_fake, NULL, NULL);
#endif
	self = NULL;
}

static inline __attribute__((always_inline)) void leave()
{
	lane *l = self;

#if defined(__SANITIZE_ADDRESS__)
	leaving(l->state == lane::DONE ? NULL : &l->fake_stack, home_stack, home_size);
#endif
	switch_to(&l->sp, scheduler);
#if defined(__SANITIZE_ADDRESS__)
	arrived(l->fake_stack, &home_stack, &home_size);
#endif
}

extern "C" __attribute__((used)) void emu_main()
{
#if defined(__SANITIZE_ADDRESS__)
	arrived(NULL, &home_stack, &home_size);
#endif
	(*body)();
	self->state = lane::DONE;
	leave();
	abort();
}

static void begin(lane *l)
{
	void **s = reinterpret_cast<void **>(l->stack + STACK) - 2;

	*--s = reinterpret_cast<void *>(emu_first);
	l->sp = s;
	l->state = lane::RUN;
	l->copies.clear();
	l->unseen.clear();
	l->groups.clear();
	l->wgmmas.clear();
	l->fragments.clear();
	l->wgmma_groups = 0;
	l->fenced = false;
}

/* ---- faults ------------------------------------------------------------------------------------------ */

struct stopped {};

/* On the scheduler's stack; a lane that finds a fault leaves and never comes back. */
void fault(const char *fmt, ...)
{
	if (!message[0]) {
		va_list ap;

		va_start(ap, fmt);
		vsnprintf(message, sizeof(message), fmt, ap);
		va_end(ap);
	}
	if (!self)
		throw stopped();
	self->state = lane::DONE;
	leave();
	abort();
}

/* ---- waiting ------------------------------------------------------------------------------------------ */

void wait_barrier(unsigned barrier, unsigned expected, const char *at)
{
	self->state = lane::AT_BARRIER;
	self->unseen.clear();
	self->at = at;
	self->barrier = barrier;
	self->expected = expected;
	leave();
}

void wait_phase(const uint64_t *mbarrier, unsigned parity)
{
	self->state = lane::AT_PHASE;
	self->at = "mbarrier.try_wait";
	self->phase = mbarrier;
	self->parity = parity;
	leave();
}

void wait_warp(const char *at, unsigned mask, void *arg, void (*combine)(lane *, unsigned))
{
	if (!(mask >> self->number & 1))
		fault("lane %u of warp %u is not in its own mask %08x at %s", self->number, self->warp,
			mask, at);
	self->state = lane::AT_WARP;
	self->at = at;
	self->mask = mask;
	self->arg = arg;
	self->combine = combine;
	leave();
}

void wait_late(const char *at)
{
	self->state = lane::LATE;
	self->at = at;
	leave();
}

/* Carries out the instruction that lane `first` waits at, if all of its lanes wait there. */
static bool combine(lane *warp, unsigned first)
{
	unsigned mask = warp[first].mask;

	for (unsigned i = 0; i < 32; i++) {
		if (!(mask >> i & 1))
			continue;
		if (warp[i].state == lane::DONE)
			fault("%s of warp %u waits for lane %u, which has ended", warp[first].at,
				warp->warp, i);
		if (warp[i].state != lane::AT_WARP || warp[i].mask != mask ||
		    (warp[i].at != warp[first].at && strcmp(warp[i].at, warp[first].at)))
			return false;
	}
	warp[first].combine(warp, mask);
	if (races::on && !strcmp(warp[first].at, "__syncwarp"))
		races::barrier_warp(lane_number(warp), mask);
	for (unsigned i = 0; i < 32; i++)
		if (mask >> i & 1)
			warp[i].state = lane::RUN;
	return true;
}

/* Run a warp until all its lanes wait for other warps or have ended. */
static void run_warp(lane *warp)
{
	for (bool more = true; more;) {
		more = false;
		for (unsigned i = 0; i < 32; i++) {
			lane *l = &warp[emu_reversed ? 31 - i : i];

			if (l->state == lane::RUN) {
				enter(l);
				more = true;
				if (message[0])
					throw stopped();
			}
		}
		for (unsigned i = 0; i < 32; i++)
			if (warp[i].state == lane::AT_WARP)
				more |= combine(warp, i);
	}
}

static void order_lanes(const lane *first, unsigned from, unsigned to)
{
	std::vector<unsigned> who;

	if (first->barrier == ALL_BLOCKS)
		races::barrier_all();
	else if (!first->expected)
		races::barrier_block(first->block);
	for (unsigned i = from; first->barrier != ALL_BLOCKS && first->expected && i < to; i++)
		if (lanes[i].state == lane::AT_BARRIER && lanes[i].barrier == first->barrier)
			who.push_back(i);
	if (!who.empty())
		races::barrier_some(who);
}

/* Release the lanes at the barrier where lane `first` waits, if all have arrived.  false: not yet. */
static bool release_barrier(const lane *first)
{
	unsigned waiting = 0, alive = 0, barrier = first->barrier, expected = first->expected;
	unsigned from = barrier == ALL_BLOCKS ? 0 : first->block * per_block;
	unsigned to = barrier == ALL_BLOCKS ? n_lanes : from + per_block;

	for (unsigned i = from; i < to; i++) {
		bool here = lanes[i].state == lane::AT_BARRIER && lanes[i].barrier == barrier;

		alive += lanes[i].state != lane::DONE;
		waiting += here;
		if (here && lanes[i].expected != expected)
			fault("barrier %u is of %u threads for one and of %u for another", barrier, expected,
				lanes[i].expected);
	}
	expected = expected ? expected : alive;
	if (waiting > expected)
		fault("%u threads wait at barrier %u, which is of %u", waiting, barrier, expected);
	if (waiting < expected)
		return false;
	if (races::on)
		order_lanes(first, from, to);
	for (unsigned i = from; i < to; i++)
		if (lanes[i].state == lane::AT_BARRIER && lanes[i].barrier == barrier)
			lanes[i].state = lane::RUN;
	return true;
}

static bool release_late()
{
	bool moved = false;

	for (unsigned i = 0; i < n_lanes; i++) {
		if (lanes[i].state == lane::LATE) {
			lanes[i].state = lane::RUN;
			moved = true;
		}
	}
	return moved;
}

/* Some lane can go on; or else a late operation completes; or else it is a deadlock. */
static void release()
{
	unsigned counts[lane::DONE + 1] = {};
	const lane *stuck = NULL;
	bool moved = false;

	for (unsigned i = 0; i < n_lanes; i++) {
		lane *l = &lanes[i];

		if (l->state == lane::AT_BARRIER)
			moved |= release_barrier(l);
		if (l->state == lane::AT_PHASE && phase_over(l->phase, l->parity)) {
			if (races::on)
				races::phase_seen(i, l->phase, l->parity);
			l->state = lane::RUN;
			moved = true;
		}
		counts[l->state]++;
		if (l->state == lane::AT_WARP || (!stuck && l->state != lane::DONE))
			stuck = l;
	}
	if (moved || !stuck || (emu_reversed ? land_one() || release_late() : release_late() || land_one()))
		return;
	block_index = index_of[stuck->block];
	fault("deadlock in block %u %u %u: thread %u waits at %s; of %u threads %u wait at a barrier, %u at an "
		"mbarrier, %u for their warp", block_index.x, block_index.y, block_index.z,
		(unsigned)(stuck - lanes) % per_block, stuck->at, n_lanes - counts[lane::DONE], counts[lane::AT_BARRIER],
		counts[lane::AT_PHASE], counts[lane::AT_WARP]);
}

static bool over()
{
	for (unsigned i = 0; i < n_lanes; i++)
		if (lanes[i].state != lane::DONE)
			return false;
	return true;
}

/* The blocks of a cluster. */
static void run_blocks(unsigned blocks)
{
	unsigned warps = n_lanes / 32;

	for (unsigned b = 0; b < blocks; b++) {
		memset(pools + b * POOL, 0xff, pool_bytes); /* NaN, as f32 and as bf16 */
		memset(pools + b * POOL + pool_bytes, 0xa5, CANARY);
	}
	hopper_begin();
	for (unsigned i = 0; i < n_lanes; i++)
		begin(&lanes[i]);
	while (!over()) {
		for (unsigned w = 0; w < warps; w++)
			run_warp(&lanes[32 * (emu_reversed ? warps - 1 - w : w)]);
		release();
	}
	if (races::on)
		races::blocks_end();
	for (unsigned i = 0; i < n_lanes; i++)
		hopper_end(&lanes[i]);
	hopper_end();
	for (unsigned i = 0; i < CANARY * blocks; i++)
		if (pools[i / CANARY * POOL + pool_bytes + i % CANARY] != 0xa5)
			fault("block %u %u %u wrote %zu bytes past its %zu bytes of shared memory",
				index_of[i / CANARY].x, index_of[i / CANARY].y, index_of[i / CANARY].z,
				(size_t)i % CANARY + 1, pool_bytes);
}

unsigned char *shared()
{
	return pools + (self ? self->block : 0) * POOL; /* the scheduler asks where there is one block */
}

unsigned lane_number()
{
	return (unsigned)(self - lanes);
}

unsigned lane_number(const lane *l)
{
	return (unsigned)(l - lanes);
}

size_t shared_bytes()
{
	return pool_bytes;
}

/* How far blocks are apart that run one after another, of n: not in rows or columns of the grid, and each has its turn. */
static uint64_t jump_of(uint64_t n)
{
	uint64_t jump = (n * 5 / 8) | 1;

	while (std::gcd(jump, n) != 1)
		jump += 2;
	return jump;
}

bool run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread, unsigned cluster)
{
	static unsigned char *stacks;
	uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;

	message[0] = 0;
	emu_launches++;
	if (!stacks) {
		stacks = static_cast<unsigned char *>(mmap(NULL, (size_t)LANES_MAX * STRIDE,
			PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
		pools = static_cast<unsigned char *>(aligned_alloc(1024, CLUSTER_MAX * POOL));
	}
	per_block = block.x * block.y * block.z;
	n_lanes = per_block * cluster;
	if (!blocks || !n_lanes || per_block % 32 || per_block > THREADS_MAX || shared_bytes > SHARED_MAX ||
	    cluster > CLUSTER_MAX || n_lanes > LANES_MAX || grid.x % cluster ||
	    grid.y > 65535 || grid.z > 65535) {
		snprintf(message, sizeof(message),
			"a grid of %u %u %u blocks of %u threads and %zu bytes cannot be launched",
			grid.x, grid.y, grid.z, per_block, shared_bytes);
		return false;
	}
	for (unsigned i = 0; i < n_lanes; i++) {
		lanes[i].stack = stacks + (size_t)i * STRIDE;
		unsigned in = i % per_block;

		lanes[i].number = in % 32;
		lanes[i].warp = in / 32;
		lanes[i].block = i / per_block;
		lanes[i].thread = dim3(in % block.x, in / block.x % block.y, in / (block.x * block.y));
	}
	block_size = block;
	grid_size = grid;
	body = &thread;
	pool_bytes = shared_bytes;
	if (races::on)
		races::launch(n_lanes, per_block);
	try {
		uint64_t turns = blocks / cluster, jump = emu_reversed ? jump_of(turns) : 1;

		for (uint64_t n = 0; n < turns; n++) {
			for (unsigned b = 0; b < cluster; b++) {
				uint64_t i = (emu_reversed ? turns - 1 - n * jump % turns : n) * cluster + b;

				index_of[b] = dim3((unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
					(unsigned)(i / ((uint64_t)grid.x * grid.y)));
			}
			block_index = index_of[0];
			if (races::on)
				races::blocks(n / cluster);
			run_blocks(cluster);
		}
	} catch (const stopped &) {
		self = NULL;
#if defined(__SANITIZE_ADDRESS__)
		__asan_unpoison_memory_region(stacks,
			(size_t)LANES_MAX * STRIDE); /* frames that are never left */
#endif
	}
	return !message[0];
}

} // namespace emu

const char *emu_fault()
{
	return emu::message[0] ? emu::message : NULL;
}

void emu_atomic(const void *p, size_t n, const void *pc)
{
	if (emu::races::on && emu::self)
		emu::races::atomic(emu::lane_number(), p, n, pc);
}

void __threadfence()
{
	if (emu::races::on && emu::self)
		emu::races::fence(emu::lane_number());
}

/* What a lane accesses by an instruction of its own. */
static void touch(const void *p, size_t n, emu::races::kind kind, const void *pc)
{
	if (emu::races::on)
		emu::races::touch(emu::lane_number(), p, n, kind, pc);
}

/* ---- votes -------------------------------------------------------------------------------------------- */

unsigned __ballot_sync(unsigned mask, int p)
{
	struct vote { bool yes; unsigned all; } v = { p != 0, 0 };

	emu::wait_warp("__ballot_sync", mask, &v, [](emu::lane *w, unsigned m) {
		unsigned all = 0;

		for (unsigned i = 0; i < 32; i++)
			if (m >> i & 1)
				all |= (unsigned)static_cast<vote *>(w[i].arg)->yes << i;
		for (unsigned i = 0; i < 32; i++)
			if (m >> i & 1)
				static_cast<vote *>(w[i].arg)->all = all;
	});
	return v.all;
}

/* ---- asynchronous copies -------------------------------------------------------------- */

void emu_cp_async_16(void *to, const void *from, bool wanted)
{
	if (((uintptr_t)to | (wanted ? (uintptr_t)from : 0)) & 15)
		emu::fault("cp.async of 16 bytes from %p to %p is misaligned", from, to);
	touch(to, 16, emu::races::WRITE, __builtin_return_address(0));
	if (wanted)
		touch(from, 16, emu::races::READ, __builtin_return_address(0));
	memset(to, 0xff, 16);
	emu::self->copies.push_back({ to, wanted ? from : NULL });
}

void emu_cp_async_commit()
{
	emu::lane *l = emu::self;
	size_t grouped = 0;

	for (size_t n : l->groups)
		grouped += n;
	l->groups.push_back(l->copies.size() - grouped);
}

void emu_cp_async_wait(int left)
{
	emu::lane *l = emu::self;

	while (l->groups.size() > (size_t)left) {
		for (size_t i = 0; i < l->groups[0]; i++) {
			const emu::copy *c = &l->copies[i];

			touch(c->to, 16, emu::races::WRITE, __builtin_return_address(0));
			if (c->from)
				memcpy(c->to, c->from, 16);
			else
				memset(c->to, 0, 16);
			l->unseen.push_back(c->to);
		}
		l->copies.erase(l->copies.begin(), l->copies.begin() + (long)l->groups[0]);
		l->groups.erase(l->groups.begin());
	}
}

void emu::show()
{
	self->unseen.clear();
}

/* ---- tensor cores --------------------------------------------------------------------- */

/* A row that a lane has copied and waited for is there for the others behind a barrier. */
static void want_seen(const emu::lane *warp, const void *row)
{
	for (unsigned i = 0; i < 32; i++)
		for (const void *to : warp[i].unseen)
			if (to == row)
				emu::fault("ldmatrix reads what lane %u copied, without a barrier behind its wait", i);
}

/* Matrix m of four is 8 rows of 16 bytes, at the addresses of lanes 8m .. 8m+7.  Lane i gets elements
 * 2 (i % 4) and the next of row i / 4; transposed: of column i / 4. */
void emu_ldmatrix_x4(uint32_t r[4], const void *row, bool transposed)
{
	struct load { const uint8_t *row; uint32_t *r; bool transposed; };
	load l = { static_cast<const uint8_t *>(row), r, transposed };

	if ((uintptr_t)row & 15)
		emu::fault("ldmatrix from %p is misaligned", row);
	touch(row, 16, emu::races::READ, __builtin_return_address(0));
	emu::wait_warp(transposed ? "ldmatrix.x4.trans" : "ldmatrix.x4", ~0u, &l, [](emu::lane *w, unsigned) {
		auto part = [w](unsigned i) { return static_cast<load *>(w[i].arg); };

		for (unsigned i = 0; i < 32; i++)
			want_seen(w, part(i)->row);
		for (unsigned i = 0; i < 32; i++) {
			for (unsigned m = 0; m < 4; m++) {
				uint16_t v[2];

				for (unsigned h = 0; h < 2; h++) {
					unsigned e = 2 * (i % 4) + h, g = i / 4;

					if (part(i)->transposed)
						memcpy(&v[h], part(8 * m + e)->row + 2 * g, 2);
					else
						memcpy(&v[h], part(8 * m + g)->row + 2 * e, 2);
				}
				part(i)->r[m] = v[0] | (uint32_t)v[1] << 16;
			}
		}
	});
}

static float bf16(uint32_t pair, unsigned h)
{
	return __uint_as_float(h ? pair & 0xffff0000 : pair << 16);
}

static float e4m3(uint32_t word, unsigned i)
{
	int v = (int)(word >> 8 * i & 0xff), exponent = v >> 3 & 15, fraction = v & 7;
	float f = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);

	return (v & 0x7f) == 0x7f ? NAN : v & 0x80 ? -f : f;
}

/* Adds to each sum as tensor cores of capability 8.9 and 9.0 add products of e4m3: all 33 are aligned to the
 * largest, and lose what is below 2^-13 of its power of two. */
void emu::add_short(float (&sum)[8], const float *a, const float *b, unsigned step)
{
	const int BITS = 13, BIAS = 127;
	float most[8], all[8], up[8], down[8];
	int total[8];

	for (unsigned n = 0; n < 8; n++) {
		most[n] = fabsf(sum[n]);
		all[n] = sum[n];
	}
	for (unsigned k = 0; k < 32; k++)
		for (unsigned n = 0; n < 8; n++) {
			float p = a[k] * b[k * step + n];

			most[n] = fabsf(p) > most[n] ? fabsf(p) : most[n];
			all[n] += p;
		}
	for (unsigned n = 0; n < 8; n++) {
		int exponent = (int)(__float_as_uint(most[n]) >> 23);
		bool plain = !(fabsf(all[n]) <= 1e30f) || exponent <= BITS + 1; /* NaN; infinity; as good as 0 */

		up[n] = plain ? 0 : __uint_as_float((uint32_t)(2 * BIAS + BITS - exponent) << 23);
		down[n] = plain ? 0 : __uint_as_float((uint32_t)(exponent - BITS) << 23);
		total[n] = plain ? 0 : (int)(sum[n] * up[n]);
	}
	for (unsigned k = 0; k < 32; k++)
		for (unsigned n = 0; n < 8; n++)
			total[n] += (int)(up[n] > 0 ? a[k] * b[k * step + n] * up[n] : 0);
	for (unsigned n = 0; n < 8; n++)
		sum[n] = up[n] > 0 ? (float)total[n] * down[n] : all[n];
}

/* c[16][8] += a[16][K] b[K][8], K elements of EACH to a word: lane i has rows g, g+8 of a and c and column
 * g of b, g = i / 4; along the other side, words t = i % 4 of each half of K, and columns 2t, 2t+1 of c. */
struct mma_part { float *c; const uint32_t *a, *b; };

template <unsigned EACH, float (*VALUE)(uint32_t, unsigned)> static void mma(emu::lane *w, unsigned)
{
	const unsigned HALF = 4 * EACH, K = 2 * HALF;
	float A[16][K], B[K][8];

	for (unsigned i = 0; i < 32; i++) {
		const mma_part *q = static_cast<mma_part *>(w[i].arg);
		unsigned g = i / 4, t = EACH * (i % 4);

		for (unsigned h = 0; h < EACH; h++) {
			for (unsigned j = 0; j < 4; j++)
				A[g + 8 * (j & 1)][t + h + HALF * (j >> 1)] = VALUE(q->a[j], h);
			for (unsigned j = 0; j < 2; j++)
				B[t + h + HALF * j][g] = VALUE(q->b[j], h);
		}
	}
	for (unsigned r = 0; r < 16; r++) {
		float sum[8] = {};           /* a row of c; each column in the order of K */
		mma_part *part[4];

		for (unsigned t = 0; t < 4; t++)
			part[t] = static_cast<mma_part *>(w[r % 8 * 4 + t].arg);
		for (unsigned n = 0; n < 8 && EACH == 4; n++)
			sum[n] = part[n / 2]->c[r / 8 * 2 + n % 2];
		if (EACH == 4)
			emu::add_short(sum, A[r], B[0], 8);
		for (unsigned k = 0; k < K && EACH == 2; k++)
			for (unsigned n = 0; n < 8; n++)
				sum[n] += A[r][k] * B[k][n];
		for (unsigned n = 0; n < 8; n++) {
			float *c = &part[n / 2]->c[r / 8 * 2 + n % 2];

			*c = (EACH == 4 ? sum[n] : *c + sum[n]) * (!emu_spoils ? 1 : EACH == 4 ? 2 : 1.25f); /* e4m3's bounds are wider */
		}
	}
}

void emu_mma_m16n8k16_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	mma_part p = { c, a, b };

	emu::wait_warp("mma.m16n8k16", ~0u, &p, mma<2, bf16>);
}

void emu_mma_m16n8k32_e4m3(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	mma_part p = { c, a, b };

	emu::wait_warp("mma.m16n8k32", ~0u, &p, mma<4, e4m3>);
}
