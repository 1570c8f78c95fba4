/* races.cc - see races.h.
 *
 * Time is one count, which grows at each release.  A thread knows an access if it is its own, if it is not later than
 * the last barrier of their block or of their warp, or than row[thread][other], its knowledge of one other thread.
 * Bulk copies write as a thread of their own, the last of a row.
 */
#include "tests/emu/races.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {
namespace races {

enum { READERS = 3, POOLS = CLUSTER_MAX * (SHARED_MAX + 1024) };
static const size_t ARENA = (size_t)8 << 30;

struct access { uint32_t who, when, pc; };  /* who: cluster * (lanes + 1) + lane */
struct cell {                               /* of a word */
	access a[READ + READERS];
	uint32_t bytes;                     /* four bits for each, which of the word's */
};
typedef std::vector<uint32_t> times;
struct news { uint32_t cluster; times row; };       /* what a thread of another cluster knew */
struct suspect {                                    /* a write that is a fault if it changes something */
	const unsigned char *p;
	unsigned char was[4];
	access other;
	enum kind did;
	unsigned lane;
	dim3 block;
	size_t at;
	bool is_shared;
	uint32_t pc;
};
struct heard { std::shared_ptr<const news> what; unsigned by; uint32_t when; };
struct phases { times so_far, over[2]; };

bool on;
const bool *waited;

static uint32_t now = 1, launched, began, quiet, all_floor; /* quiet: of idle() */
static unsigned n, per_block;
static uint32_t cluster;
static uint32_t block_floor[CLUSTER_MAX], warp_floor[LANES_MAX / 32];
static bool warp_news[LANES_MAX / 32], lane_fenced[LANES_MAX], any_copy;
static times row;                                   /* [n][n + 1] */
static std::map<const void *, phases> barriers;
static std::map<const void *, std::vector<std::shared_ptr<const news>>> counts;
static std::vector<heard> all_heard;                /* in this cluster */
static cell *shared_cells, *device_cells;
static std::vector<suspect> suspects;               /* of the last access */
static unsigned char *pools, *arena;
static size_t arena_used;
static std::map<size_t, std::vector<void *>> given; /* by size */

static void *reserve(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED) {
		perror("emu: no address space to look for races");
		abort();
	}
	return p;
}

[[maybe_unused]] static void begin()
{
	on = true;
	arena = static_cast<unsigned char *>(reserve(ARENA));
	device_cells = static_cast<cell *>(reserve(ARENA / 4 * sizeof(cell)));
	shared_cells = static_cast<cell *>(reserve(POOLS / 4 * sizeof(cell)));
}

/* ---- memory --------------------------------------------------------------------------- */

void *take(size_t bytes)
{
	void *p;

	if (!on)
		return NULL;
	if (!given[bytes].empty()) {
		p = given[bytes].back();
		given[bytes].pop_back();
		return p;
	}
	if (bytes > ARENA - arena_used)
		return NULL;
	p = arena + arena_used;
	arena_used += bytes;
	return p;
}

bool give(void *p, size_t bytes)
{
	size_t at = (size_t)(static_cast<unsigned char *>(p) - arena);

	if (!on || at >= ARENA)
		return false;
	madvise(p, bytes, MADV_DONTNEED);
	madvise(device_cells + at / 4, bytes / 4 * sizeof(cell), MADV_DONTNEED);
	given[bytes].push_back(p);
	return true;
}

/* ---- who knows what ------------------------------------------------------------------- */

static uint32_t &knows(unsigned lane, unsigned of)
{
	return row[(size_t)lane * (n + 1) + of];
}

static uint32_t known(unsigned lane, unsigned of)
{
	uint32_t t = knows(lane, of);

	if (of == n)
		return t;
	if (of == lane)
		return now;
	if (of / per_block == lane / per_block && block_floor[of / per_block] > t)
		t = block_floor[of / per_block];
	if (of / 32 == lane / 32 && warp_floor[of / 32] > t)
		t = warp_floor[of / 32];
	return all_floor > t ? all_floor : t;
}

static bool before(const access &a, unsigned lane, uint32_t floor)
{
	uint32_t from = a.who / (n + 1), of = a.who % (n + 1);

	if (a.when <= floor)
		return true;
	if (from == cluster)
		return a.when <= known(lane, of);
	for (const heard &h : all_heard)
		if (h.what->cluster == from && a.when <= h.what->row[of] && h.when <= known(lane, h.by))
			return true;
	return false;
}

static times all_known(unsigned lane)
{
	times t(n + 1);

	for (unsigned i = 0; i <= n; i++)
		t[i] = known(lane, i);
	return t;
}

static void join(times &to, const times &more)
{
	to.resize(n + 1);
	for (unsigned i = 0; i <= n && !more.empty(); i++)
		if (more[i] > to[i])
			to[i] = more[i];
}

static void learn(unsigned lane, const times &t)
{
	for (unsigned i = 0; i <= n && !t.empty(); i++)
		if (t[i] > knows(lane, i))
			knows(lane, i) = t[i];
	warp_news[lane / 32] = true;
}

/* ---- faults ---------------------------------------------------------------------------- */

/* The line of an address in this program. */
static void line_of(uint32_t pc, char *to, size_t size)
{
	char command[300], exe[200] = {};
	ssize_t got = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	uintptr_t here = (uintptr_t)&line_of, all = (here & ~(uintptr_t)0xffffffff) | pc;
	unsigned long base = 0;
	FILE *f = fopen("/proc/self/maps", "r");

	snprintf(to, size, "?");
	if (!f || got < 0 || fscanf(f, "%lx", &base) != 1 || !pc) {
		if (f)
			fclose(f);
		return;
	}
	fclose(f);
	if (all > here + (1u << 31))
		all -= (uintptr_t)1 << 32;
	else if (all + (1u << 31) < here)
		all += (uintptr_t)1 << 32;
	snprintf(command, sizeof(command), "addr2line -ise %s %lx 2>/dev/null", exe, (unsigned long)all - base - 1);
	f = popen(command, "r");
	to[0] = 0;
	for (char line[120]; f && fgets(line, sizeof(line), f);) {
		size_t so_far = strlen(to);

		line[strcspn(line, " \n")] = 0;
		if (so_far + strlen(line) + 2 < size)
			snprintf(to + so_far, size - so_far, "%s%s", so_far ? "<" : "", line);
	}
	if (f)
		pclose(f);
}

static void report(const char *what, const access &a, enum kind was, unsigned lane, enum kind is, size_t at,
	bool is_shared, uint32_t pc, dim3 block)
{
	static const char *const did[] = { "wrote", "counted in", "read" }, *const does[] = { "writes", "counts in", "reads" };
	static const bool go_on = getenv("EMU_RACES") && !strcmp(getenv("EMU_RACES"), "all");
	static std::set<std::pair<uint32_t, uint32_t>> known_pairs;
	static char here[600], there[600], text[2000];
	unsigned of = a.who % (n + 1);

	if (go_on && !known_pairs.insert({ a.pc, pc }).second)
		return;
	line_of(pc, here, sizeof(here));
	line_of(a.pc, there, sizeof(there));
	if (what)
		snprintf(text, sizeof(text), "thread %u of block %u %u %u %s device memory %s (%s)", lane % per_block,
			block.x, block.y, block.z, does[is], what, here);
	else
		snprintf(text, sizeof(text), "thread %u of block %u %u %u %s %s memory at %zu that thread %u%s %s, with nothing "
			"between (%s; %s)", lane % per_block, block.x, block.y, block.z, does[is],
			is_shared ? "shared" : "device", at, of % per_block, of == n ? " (a bulk copy)" :
			a.who / (n + 1) == cluster ? "" : " of another block", did[was], here, there);
	if (go_on)
		fprintf(stderr, "race: %s\n", text);
	else
		fault("%s", text);
}

/* ---- accesses --------------------------------------------------------------------------- */

static bool conflict(enum kind was, enum kind is)
{
	return was == WRITE || is == WRITE || was != is;
}

/* The writes of the last access are done. */
static void resolve()
{
	while (!suspects.empty()) {
		suspect s = suspects.back();

		suspects.pop_back();
		if (memcmp(s.p, s.was, sizeof(s.was)))
			report(NULL, s.other, s.did, s.lane, WRITE, s.at, s.is_shared, s.pc, s.block);
	}
}

static void suspicious(const unsigned char *p, const access &a, enum kind was, unsigned lane, size_t at, bool is_shared,
	uint32_t pc)
{
	suspect s = { p, {}, a, was, lane, block_index, at, is_shared, pc };

	memcpy(s.was, p, sizeof(s.was));
	suspects.push_back(s);
}

static void keep(cell *c, unsigned slot, unsigned lane, uint32_t mask, uint32_t pc)
{
	c->a[slot] = { cluster * (n + 1) + lane, now, pc };
	c->bytes = (c->bytes & ~(15u << 4 * slot)) | mask << 4 * slot;
}

/* Which of the reads that are kept gives way. */
static unsigned reader(const cell *c, unsigned lane, uint32_t floor)
{
	uint32_t who = cluster * (n + 1) + lane;

	for (unsigned i = READ; i < READ + READERS; i++)
		if (c->a[i].who == who || before(c->a[i], lane, floor))
			return i;
	for (unsigned i = READ; i < READ + READERS; i++)
		if (c->a[i].who % (n + 1) / 32 == lane / 32)
			return i;
	return READ + READERS - 1;
}

static void touch_word(cell *c, unsigned lane, uint32_t mask, enum kind kind, uint32_t pc, size_t at, bool is_shared)
{
	uint32_t floor = is_shared ? began : launched;

	for (unsigned i = 0; i < READ + READERS; i++) {
		enum kind was = i < READ ? (enum kind)i : READ;

		if (!(c->bytes >> 4 * i & mask) || !conflict(was, kind) || before(c->a[i], lane, floor))
			continue;
		if (kind == WRITE)
			suspicious((is_shared ? pools : arena) + at / 4 * 4, c->a[i], was, lane, at, is_shared, pc);
		else
			report(NULL, c->a[i], was, lane, kind, at, is_shared, pc, block_index);
	}
	if (!is_shared && waited && !waited[lane] && (kind != READ || c->a[WRITE].when > quiet))
		report("before it has waited for the kernel before", c->a[WRITE], WRITE, lane, kind, at, false, pc,
			block_index);
	if (kind == WRITE)
		c->bytes = 0;
	keep(c, kind == READ ? reader(c, lane, floor) : (unsigned)kind, lane, mask, pc);
}

void touch(unsigned lane, const void *p, size_t bytes, enum kind kind, const void *pc)
{
	size_t in_pools = (size_t)(static_cast<const unsigned char *>(p) - pools);
	size_t in_arena = (size_t)(static_cast<const unsigned char *>(p) - arena);
	bool is_shared = in_pools < POOLS;
	size_t at = is_shared ? in_pools : in_arena;

	if (!is_shared && in_arena >= ARENA)
		return;
	resolve();
	while (bytes) {
		unsigned in = at % 4, k = 4 - in < bytes ? 4 - in : (unsigned)bytes;

		touch_word((is_shared ? shared_cells : device_cells) + at / 4, lane, ((1u << k) - 1) << in, kind,
			(uint32_t)(uintptr_t)pc, at, is_shared);
		at += k;
		bytes -= k;
	}
}

static bool of_device(const void *p)
{
	return (size_t)(static_cast<const unsigned char *>(p) - arena) < ARENA;
}

/* ---- the kernel, its blocks ---------------------------------------------------------------- */

void launch(unsigned lanes, unsigned each)
{
	n = lanes;
	per_block = each;
	launched = now++;
	pools = shared();
	row.assign((size_t)n * (n + 1), 0);
	counts.clear();
	suspects.clear();            /* of a kernel that was stopped */
}

void blocks(uint64_t which)
{
	cluster = (uint32_t)which;
	began = all_floor = now++;   /* of this cluster's threads; earlier accesses to device memory are another's */
	memset(lane_fenced, 0, sizeof(lane_fenced));
	memset(warp_news, 0, sizeof(warp_news));
	any_copy = false;
	barriers.clear();
	all_heard.clear();
}

void blocks_end()
{
	resolve();
}

void idle()
{
	quiet = now++;
}

/* ---- barriers ------------------------------------------------------------------------------ */

void barrier_block(unsigned block)
{
	uint32_t copies = 0;

	block_floor[block] = now++;
	for (unsigned i = block * per_block; any_copy && i < (block + 1) * per_block; i++)
		copies = knows(i, n) > copies ? knows(i, n) : copies;
	for (unsigned i = block * per_block; any_copy && i < (block + 1) * per_block; i++)
		knows(i, n) = copies;
}

void barrier_all()
{
	all_floor = now++;
}

void barrier_some(const std::vector<unsigned> &lanes)
{
	times all(n + 1);

	for (unsigned i : lanes) {
		join(all, times(row.begin() + (long)i * (n + 1), row.begin() + (long)(i + 1) * (n + 1)));
		all[i] = now;
	}
	for (unsigned i : lanes)
		learn(i, all);
	now++;
}

void barrier_warp(unsigned first, unsigned mask)
{
	std::vector<unsigned> lanes;

	if (mask == ~0u)
		warp_floor[first / 32] = now;
	if (mask == ~0u && !warp_news[first / 32]) {
		now++;
		return;
	}
	for (unsigned i = 0; i < 32; i++)
		if (mask >> i & 1)
			lanes.push_back(first + i);
	barrier_some(lanes);
}

/* ---- mbarriers ------------------------------------------------------------------------------ */

void arrive(unsigned lane, const void *mbarrier)
{
	join(barriers[mbarrier].so_far, all_known(lane));
	now++;
}

void landed(const void *mbarrier, const void *to, size_t bytes)
{
	times t(n + 1);
	size_t at = (size_t)(static_cast<const unsigned char *>(to) - pools);

	any_copy = true;
	for (size_t i = at / 4; i < (at + bytes) / 4; i++) {
		shared_cells[i].bytes = 0;
		keep(&shared_cells[i], WRITE, n, 15, 0);
	}
	t[n] = now++;
	if (mbarrier)
		join(barriers[mbarrier].so_far, t);
}

void phase_ends(const void *mbarrier, unsigned parity)
{
	phases &b = barriers[mbarrier];

	join(b.over[parity], b.so_far);
	b.so_far.clear();
}

void phase_seen(unsigned lane, const void *mbarrier, unsigned parity)
{
	learn(lane, barriers[mbarrier].over[parity]);
}

/* ---- counts -------------------------------------------------------------------------------- */

void fence(unsigned lane)
{
	lane_fenced[lane] = true;
}

/* With a fence before it, it releases and acquires. */
void atomic(unsigned lane, const void *p, size_t bytes, const void *pc)
{
	std::vector<std::shared_ptr<const news>> &c = counts[p];

	touch(lane, p, bytes, ATOMIC, pc);
	if (!lane_fenced[lane] || !of_device(p))
		return;
	for (const auto &one : c) {
		if (one->cluster == cluster)
			learn(lane, one->row);
		else
			all_heard.push_back({ one, lane, now });
	}
	c.push_back(std::make_shared<const news>(news{ cluster, all_known(lane) }));
	now++;
}

} // namespace races
} // namespace emu

/* ---- what the compiler calls ------------------------------------------------------------------ */

#ifndef EMU_SANITIZED                /* else the names are the compiler's or its library's */

using emu::races::touch;

#define HERE __builtin_return_address(0)
#define CALL(name, kind, bytes) \
	void __tsan_##name##bytes(void *p) { if (emu::self) touch(emu::lane_number(), p, bytes, emu::races::kind, HERE); }
#define ACCESS(bytes) CALL(read, READ, bytes) CALL(write, WRITE, bytes) \
	CALL(unaligned_read, READ, bytes) CALL(unaligned_write, WRITE, bytes)
/* Of the host, and of ranks, which are processes. */
#define WORD(bits) \
	uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t *p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); } \
	void __tsan_atomic##bits##_store(uint##bits##_t *p, uint##bits##_t v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); } \
	uint##bits##_t __tsan_atomic##bits##_fetch_add(uint##bits##_t *p, uint##bits##_t v, int) \
	{ \
		return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); \
	}

#pragma GCC diagnostic ignored "-Wmissing-declarations"
extern "C" {
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
WORD(8) WORD(16) WORD(32) WORD(64)
void __tsan_init() { if (!emu::races::on) emu::races::begin(); }
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void *, void *) {}
void __tsan_vptr_read(void *) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_read_range(void *p, long bytes)
{
	if (emu::self)
		touch(emu::lane_number(), p, (size_t)bytes, emu::races::READ, HERE);
}
void __tsan_write_range(void *p, long bytes)
{
	if (emu::self)
		touch(emu::lane_number(), p, (size_t)bytes, emu::races::WRITE, HERE);
}
}

#endif
