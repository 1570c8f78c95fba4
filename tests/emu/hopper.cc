/* hopper.cc - see emu.h: what sm_90a does asynchronously, by the PTX manual's sections on mbarrier, on
 * cp.async.bulk and on wgmma.  Everything comes as late as a GPU may let it come.
 *
 * Threads and cp.async see shared memory as it is; bulk copies and wgmma through another view of it ("the
 * async proxy"): bulk copies write both, wgmma reads the view, and fence.proxy.async brings it up to date.
 */
#include "tests/emu/emu.h"
#include "tests/emu/races.h"

#include <deque>
#include <utility>

namespace emu {

enum { WINDOW = 1024 };              /* where a block's shared memory begins in its own addresses */

struct landing {                     /* a bulk copy under way */
	unsigned char *to;
	uint64_t *bar;
	std::vector<unsigned char> bytes; /* filled in when it lands, from: */
	const unsigned char *from;   /* a plain one */
	CUtensorMap map;             /* or a box: a copy, as a kernel's parameters are constant memory */
	int32_t column, row;
	bool box;
};

static std::deque<landing> landings;
static unsigned char view[SHARED_MAX];

/* ---- mbarrier ------------------------------------------------------------------------- */

/* Its 64 bits, as laid out here: a GPU does not tell. */
struct mbarrier {
	uint64_t phase : 1, count : 20, pending : 20;
	int64_t bytes : 21;          /* expected and not yet there; less than 0: they were there first */
	uint64_t valid : 2;          /* 1: 0 and 3 are memory that was never initialized */
};

static mbarrier load(const uint64_t *at)
{
	mbarrier b;

	if (((uintptr_t)at & 7) || (const unsigned char *)at < shared() ||
	    (const unsigned char *)(at + 1) > shared() + shared_bytes())
		fault("an mbarrier at %p is misaligned or outside shared memory", (const void *)at);
	memcpy(&b, at, sizeof(b));
	if (b.valid != 1)
		fault("an mbarrier is used that is not initialized, or overwritten");
	return b;
}

static void store(uint64_t *at, mbarrier b)
{
	if (!b.pending && !b.bytes) {
		if (races::on)
			races::phase_ends(at, b.phase);
		b.phase ^= 1;
		b.pending = b.count;
	}
	memcpy(at, &b, sizeof(b));
}

bool phase_over(const uint64_t *at, unsigned parity)
{
	return load(at).phase != parity;
}

/* ---- bulk copies ---------------------------------------------------------------------- */

void hopper_begin()
{
	landings.clear();
	memset(view, 0xff, shared_bytes());
}

void hopper_end()
{
	if (!landings.empty())
		fault("block %u %u %u ended with %zu bulk copies under way", block_index.x, block_index.y,
			block_index.z, landings.size());
}

static void write_both(unsigned char *to, const unsigned char *bytes, size_t n)
{
	memcpy(to, bytes, n);
	memcpy(view + (to - shared()), bytes, n);
}

/* 16-byte chunk c of each 128-byte row r goes to chunk c ^ r % 8: by the bits of the address. */
static uint32_t swizzled(uint32_t address)
{
	return address ^ (address >> 7 & 7) << 4;
}

static void land_box(const landing &l)
{
	uint32_t row_bytes = l.map.box_columns * l.map.element;

	for (uint32_t r = 0; r < l.map.box_rows; r++) {
		for (uint32_t c = 0; c < l.map.box_columns; c++) {
			int64_t row = (int64_t)l.row + r, column = (int64_t)l.column + c;
			uint32_t at = emu_shared_address(l.to) + r * row_bytes + c * l.map.element;
			unsigned char v[2] = { 0, 0 };

			if (row >= 0 && column >= 0 && row < (int64_t)l.map.rows && column < (int64_t)l.map.columns)
				memcpy(v, l.map.base + (size_t)row * l.map.stride + (size_t)column * l.map.element,
					l.map.element);
			write_both(shared() + (swizzled(at) - WINDOW), v, l.map.element);
		}
	}
}

bool land_one()
{
	landing l;
	mbarrier b;

	if (landings.empty())
		return false;
	l = emu_reversed ? landings.back() : landings.front();
	if (emu_reversed)
		landings.pop_back();
	else
		landings.pop_front();
	if (l.box)
		land_box(l);
	else
		write_both(l.to, l.from, l.bytes.size());
	if (races::on)
		races::landed(l.bar, l.to, l.bytes.size());
	b = load(l.bar);
	b.bytes -= (int64_t)l.bytes.size();
	store(l.bar, b);
	return true;
}

static void take_off(landing l, size_t bytes, size_t alignment)
{
	load(l.bar);
	if ((emu_shared_address(l.to) & (alignment - 1)) || l.to + bytes > shared() + shared_bytes())
		fault("a bulk copy of %zu bytes to %u is misaligned or overruns", bytes, emu_shared_address(l.to));
	if (races::on) {
		races::touch(lane_number(), l.to, bytes, races::WRITE, __builtin_return_address(0));
		races::landed(NULL, l.to, bytes);
	}
	l.bytes.assign(bytes, 0xff);
	write_both(l.to, l.bytes.data(), bytes);
	landings.push_back(std::move(l));
}

} // namespace emu

using emu::fault;
using emu::self;

uint32_t emu_shared_address(const void *p)
{
	return (uint32_t)(static_cast<const unsigned char *>(p) - emu::shared()) + emu::WINDOW;
}

void emu_barrier(unsigned barrier, unsigned threads)
{
	if (barrier < 1 || barrier > 15 || !threads || threads % 32)
		fault("bar.sync %u, %u is not a barrier of whole warps", barrier, threads);
	emu::wait_barrier(barrier, threads, "bar.sync");
}

void emu_mbarrier_init(uint64_t *at, uint32_t count)
{
	emu::mbarrier b = { 0, count & 0xfffff, count & 0xfffff, 0, 1 };

	if (emu::races::on)
		emu::races::touch(emu::lane_number(), at, sizeof(b), emu::races::WRITE, __builtin_return_address(0));
	memcpy(at, &b, sizeof(b));
}

void emu_mbarrier_arrive(uint64_t *at, uint32_t expect_bytes)
{
	emu::mbarrier b = emu::load(at);

	if (!b.pending)
		fault("an mbarrier of %u is arrived at once more in a phase", (unsigned)b.count);
	b.bytes += expect_bytes;
	b.pending--;
	if (emu::races::on) {
		emu::races::touch(emu::lane_number(), at, sizeof(b), emu::races::ATOMIC, __builtin_return_address(0));
		emu::races::arrive(emu::lane_number(), at);
	}
	emu::store(at, b);
}

void emu_mbarrier_wait(const uint64_t *at, uint32_t parity)
{
	if (emu::races::on)
		emu::races::touch(emu::lane_number(), at, sizeof(*at), emu::races::ATOMIC, __builtin_return_address(0));
	if (!emu::phase_over(at, parity & 1))
		emu::wait_phase(at, parity & 1);
	else if (emu::races::on)
		emu::races::phase_seen(emu::lane_number(), at, parity & 1);
}

void emu_fence_async()
{
	memcpy(emu::view, emu::shared(), emu::shared_bytes());
}

void emu_bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar)
{
	emu::landing l = {};

	if (((uintptr_t)from | bytes) & 15)
		fault("a bulk copy of %u bytes from %p is misaligned", bytes, from);
	l.to = static_cast<unsigned char *>(to);
	l.from = static_cast<const unsigned char *>(from);
	l.bar = bar;
	emu::will_read(from);
	if (emu::races::on)
		emu::races::touch(emu::lane_number(), from, bytes, emu::races::READ, __builtin_return_address(0));
	emu::take_off(l, bytes, 16);
}

bool emu_tensor_map(CUtensorMap *map, uint32_t element, const void *base, uint64_t columns, uint64_t rows,
	uint64_t stride, uint32_t box_columns, uint32_t box_rows)
{
	if (((uintptr_t)base | stride | box_columns * element) & 15 || stride >= 1ull << 40 || !columns || !rows ||
	    columns >> 32 || rows >> 32 || !box_columns || !box_rows || box_columns > 256 || box_rows > 256 ||
	    box_columns * element > 128)
		return false;
	*map = { static_cast<const unsigned char *>(base), columns, rows, stride, element, box_columns, box_rows };
	return true;
}

/* With swizzle: a box's rows are 128 bytes, and it begins where the pattern of 8 rows does. */
void emu_tensor_load(void *to, const CUtensorMap *map, int32_t column, int32_t row, uint64_t *bar)
{
	emu::landing l = {};

	if (map->box_columns * map->element != 128)
		fault("rows of %u bytes are not emulated", map->box_columns * map->element);
	l.to = static_cast<unsigned char *>(to);
	l.bar = bar;
	l.map = *map;
	l.column = column;
	l.row = row;
	l.box = true;
	emu::will_read(map->base);
	for (int64_t r = row; emu::races::on && r < row + (int64_t)map->box_rows && r < (int64_t)map->rows; r++)
		if (r >= 0 && column >= 0 && (uint64_t)column < map->columns)
			emu::races::touch(emu::lane_number(), map->base + (size_t)r * map->stride + (size_t)column * map->element,
				map->element, emu::races::READ, __builtin_return_address(0));
	emu::take_off(l, 128 * (size_t)map->box_rows, 1024);
}

/* ---- wgmma ---------------------------------------------------------------------------- */

void emu::hopper_end(const lane *l)
{
	if (!l->wgmmas.empty())
		fault("thread %u of warp %u ended with a wgmma that nobody waited for", l->number, l->warp);
}

/* What the registers of A hold now is what the next wgmma may read. */
void emu_wgmma_fence()
{
	self->fenced = true;
	for (emu::fragment &f : self->fragments)
		memcpy(f.was, f.at, sizeof(f.was));
}

void emu_wgmma(float *d, unsigned n, const uint32_t *a, uint64_t a_desc, uint64_t b_desc, int kind, bool keep)
{
	emu::wgmma w = { d, a, {}, a_desc, b_desc, n, self->wgmma_groups, kind, keep };
	emu::fragment *known = NULL;

	if (!self->fenced)
		fault("a wgmma without a wgmma.fence after the last wait");
	if (a) {
		memcpy(w.a_was, a, sizeof(w.a_was));
		for (emu::fragment &f : self->fragments)
			if (f.at == a)
				known = &f;
		if (known && memcmp(known->was, a, sizeof(known->was)))
			fault("registers of A changed after the last wgmma.fence");
		if (!known)
			self->fragments.push_back({ a, { a[0], a[1], a[2], a[3] } });
	}
	self->wgmmas.push_back(w);
}

void emu_wgmma_commit()
{
	self->wgmma_groups++;
}

static float value(const unsigned char *at, bool e4m3)
{
	static float table[256];
	static bool made;
	uint16_t half;

	if (!e4m3) {
		memcpy(&half, at, 2);
		return __uint_as_float((uint32_t)half << 16);
	}
	for (int v = 0; v < 256 && !made; v++) {
		int exponent = v >> 3 & 15, fraction = v & 7;
		float f = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);

		table[v] = (v & 0x7f) == 0x7f ? NAN : v & 0x80 ? -f : f;
	}
	made = true;
	return table[*at];
}

static unsigned reader;              /* the lane for which a wgmma reads */

/* `bytes` of an operand, where the swizzle puts them. */
static const unsigned char *operand_at(uint64_t desc, uint32_t at, uint32_t bytes)
{
	at = emu::swizzled(((uint32_t)(desc & 0x3fff) << 4) + at) - emu::WINDOW;
	if (desc >> 62 != 1 || (desc >> 49 & 7))
		fault("a matrix descriptor of %llx is not emulated", (unsigned long long)desc);
	if (at + bytes > emu::shared_bytes())
		fault("a matrix descriptor points outside shared memory");
	if (emu::races::on)
		emu::races::touch(reader, emu::shared() + at, bytes, emu::races::READ, NULL);
	return emu::view + at;
}

/* The descriptor's two strides: along N from 64 elements to the next, and from 8 rows to the next. */
static uint32_t leading(uint64_t desc) { return (uint32_t)(desc >> 16 & 0x3fff) << 4; }
static uint32_t stride(uint64_t desc) { return (uint32_t)(desc >> 32 & 0x3fff) << 4; }

/* 32 bytes of row `row` of an operand that runs along K; to 16 of bf16 or 32 of e4m3. */
static void operand_row(uint64_t desc, unsigned row, bool e4m3, float *to, size_t pitch)
{
	unsigned each = e4m3 ? 16 : 8;

	for (unsigned c = 0; c < 2; c++) {
		const unsigned char *at = operand_at(desc, row / 8 * stride(desc) + row % 8 * 128 + 16 * c, 16);

		for (unsigned i = 0; i < each; i++)
			to[(c * each + i) * pitch] = value(at + i * (e4m3 ? 1 : 2), e4m3);
	}
}

/* Row k of K of one whose rows run along N: 8 elements from n on. */
static void operand_along_n(uint64_t desc, unsigned k, unsigned n, float *to)
{
	const unsigned char *at = operand_at(desc, n / 64 * leading(desc) + k / 8 * stride(desc) + k % 8 * 128 +
		n % 64 * 2, 16);

	for (unsigned i = 0; i < 8; i++)
		to[i] = value(at + 2 * i, false);
}

/* A's rows of one warp, [16][k]: from shared memory, or of lanes 4g + t rows g, g + 8 and words t of both
 * halves of K. */
static void operand_a(emu::lane *warp, size_t q, float (&A)[16][32])
{
	for (unsigned i = 0; i < 32; i++) {
		const emu::wgmma &w = warp[i].wgmmas[q];
		bool e4m3 = w.kind == EMU_E4M3;
		unsigned each = e4m3 ? 4 : 2;

		if (!w.a) {
			if (i < 16)
				operand_row(w.a_desc, 16 * (warp->warp % 4) + i, e4m3, A[i], 1);
			continue;
		}
		if (memcmp(w.a, w.a_was, sizeof(w.a_was)))
			fault("registers of A changed while a wgmma reads them");
		for (unsigned j = 0; j < 4; j++)
			for (unsigned h = 0; h < each; h++)
				A[i / 4 + 8 * (j & 1)][4 * each * (j >> 1) + each * (i % 4) + h] =
					value((const unsigned char *)&w.a_was[j] + h * (4 / each), e4m3);
	}
}

/* The element of D in row m of a warp's 16, column n. */
static float &of_lane(emu::lane *warp, size_t q, unsigned m, unsigned n)
{
	return warp[m % 8 * 4 + n % 8 / 2].wgmmas[q].d[n / 8 * 4 + m / 8 * 2 + n % 2];
}

/* Eight sums of K products; of bf16 they are added to the sum so far at the end. */
static void add(float (&sum)[8], const float *a, const float *b, unsigned K)
{
	float more[8] = {};

	if (K == 32) {
		emu::add_short(sum, a, b, 256);
		return;
	}
	for (unsigned k = 0; k < 16; k++)
		for (unsigned n = 0; n < 8; n++)
			more[n] += a[k] * b[k * 256 + n];
	for (unsigned n = 0; n < 8; n++)
		sum[n] += more[n];
}

/* The q-th wgmma under way, this warp's 16 of its 64 rows. */
static void multiply(emu::lane *warp, size_t q)
{
	static float B[32][256];
	const emu::wgmma &first = warp[0].wgmmas[q];
	unsigned K = first.kind == EMU_E4M3 ? 32 : 16, N = first.n;
	float A[16][32];

	for (unsigned i = 1; i < 32; i++) {
		const emu::wgmma &w = warp[i].wgmmas[q];

		if (w.a_desc != first.a_desc || w.b_desc != first.b_desc || w.n != N || w.keep != first.keep ||
		    w.kind != first.kind || !w.a != !first.a || w.group != first.group)
			fault("lanes of warp %u do not agree on a wgmma", warp->warp);
	}
	reader = emu::lane_number(warp);
	operand_a(warp, q, A);
	for (unsigned n = 0; n < N && first.kind != EMU_BF16_ROWS; n++)
		operand_row(first.b_desc, n, first.kind == EMU_E4M3, &B[0][n], 256);
	for (unsigned i = 0; i < K * N / 8 && first.kind == EMU_BF16_ROWS; i++)
		operand_along_n(first.b_desc, i % K, i / K * 8, &B[i % K][i / K * 8]);
	for (unsigned m = 0; m < 16; m++)
		for (unsigned n = 0; n < N; n += 8) {
			float sum[8];

			for (unsigned i = 0; i < 8; i++)
				sum[i] = first.keep ? of_lane(warp, q, m, n + i) : 0;
			add(sum, A[m], &B[0][n], K);
			for (unsigned i = 0; i < 8; i++)
				of_lane(warp, q, m, n + i) = sum[i] * (emu_spoils ? 1.25f : 1);
		}
}

void emu_wgmma_wait(int left)
{
	if (!self->wgmmas.empty() && self->wgmmas[0].group + (unsigned)left < self->wgmma_groups)
		emu::wait_late("wgmma.wait_group");
	emu::wait_warp("wgmma.wait_group", ~0u, &left, [](emu::lane *warp, unsigned) {
		size_t n = warp->wgmmas.size(), done = 0;
		unsigned may_stay = (unsigned)*static_cast<int *>(warp->arg);

		for (unsigned i = 1; i < 32; i++)
			if (warp[i].wgmmas.size() != n || warp[i].wgmma_groups != warp->wgmma_groups)
				fault("lanes of warp %u do not agree on what wgmma is under way", warp->warp);
		for (; done < n && warp->wgmmas[done].group + may_stay < warp->wgmma_groups; done++)
			multiply(warp, done);
		for (unsigned i = 0; i < 32; i++) {
			warp[i].wgmmas.erase(warp[i].wgmmas.begin(), warp[i].wgmmas.begin() + (long)done);
			warp[i].fenced = false;
		}
	});
}

/* An 8x8 matrix of 16 bits: lane i has elements 2 (i % 4) and the next of row i / 4, and gets those of the
 * transposed one. */
uint32_t emu_movmatrix_trans(uint32_t r)
{
	struct move { uint32_t from, to; } m = { r, 0 };

	emu::wait_warp("movmatrix", ~0u, &m, [](emu::lane *w, unsigned) {
		for (unsigned i = 0; i < 32; i++) {
			move *me = static_cast<move *>(w[i].arg);

			for (unsigned h = 0; h < 2; h++) {
				unsigned row = 2 * (i % 4) + h, column = i / 4;
				uint32_t from = static_cast<move *>(w[4 * row + column / 2].arg)->from;

				me->to |= (from >> 16 * (column % 2) & 0xffff) << 16 * h;
			}
		}
	});
	return m.to;
}
