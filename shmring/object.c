/* object.c - memory shared with one client: see object.h. */
#include "object.h"

#include <fcntl.h>
#include <hugetlbfs.h>
#include <sys/mman.h>
#include <unistd.h>

#include "wire.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U               /* Linux 6.3 */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define PIECE (4 * SR_PAGE)           /* a new page takes 0.5 us, or 14 us if the hypervisor must find it */
#define UNMAP_PIECE ((size_t)256 << 10)   /* bytes unmapped at a time: 0.02 ms */

/* ---- SIGBUS ----------------------------------------------------------------------------
 *
 * A client can punch a hole into huge pages and use up the pool.  Then the daemon faults on its own
 * mapping, in spite of all seals.  The handler finds the range, maps zero pages over the whole
 * object, and marks the connection; the copy that faulted goes on with zeros.
 * The table has a fixed size because a handler can take no lock.  The loop's thread writes it,
 * and the same thread touches the ranges. */
static struct guard {
	_Atomic uintptr_t at;                 /* 0: free */
	size_t len;
	int prot;
	volatile sig_atomic_t *poisoned;
} guards[OBJECTS_MAX];
static struct sigaction sigbus_before;

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	uintptr_t fault = (uintptr_t)info->si_addr;

	(void)context;
	for (int i = 0; i < OBJECTS_MAX; i++) {
		struct guard *g = &guards[i];
		uintptr_t at = atomic_load_explicit(&g->at, memory_order_acquire);
		int e = errno;

		if (!at || fault - at >= g->len)
			continue;
		if (mmap((void *)at, g->len, g->prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
		    MAP_FAILED)
			break;
		*g->poisoned = 1;
		errno = e;
		return;
	}
	sigaction(sig, &sigbus_before, NULL); /* not our memory: the old handler gets the fault when it repeats */
}

int object_guard(struct object *o, volatile sig_atomic_t *poisoned)
{
	for (int i = 0; i < OBJECTS_MAX; i++)
		if (!atomic_load_explicit(&guards[i].at, memory_order_relaxed)) {
			guards[i].len = o->len;
			guards[i].prot = o->prot;
			guards[i].poisoned = poisoned;
			atomic_store_explicit(&guards[i].at, (uintptr_t)o->at, memory_order_release);
			o->guard = i;
			return 0;
		}
	return -EUSERS;
}

static bool guards_on;

int object_guards_on(void)
{
	struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };

	if (guards_on)
		return 0;
	sigemptyset(&sa.sa_mask);
	if (sigaction(SIGBUS, &sa, &sigbus_before) < 0)
		return -errno;
	guards_on = true;
	return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Make a memfd with one page size, seal it and map it with prot.  No page is allocated yet. */
static int make(struct object *o, size_t bytes, int prot, size_t huge)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0);
	int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	size_t page = huge ? huge : SR_PAGE, len = round_up(bytes, page);
	void *at = MAP_FAILED;
	int fd = memfd_create("slipring", flags | MFD_NOEXEC_SEAL), e;

	if (prot & PROT_WRITE)        /* written by the daemon alone; the mapping above stays writable */
		seals |= F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("slipring", flags);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)len) == 0)
		at = mmap(NULL, len, prot, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED || fcntl(fd, F_ADD_SEALS, seals) < 0) {
		e = -errno;
		if (at != MAP_FAILED)
			munmap(at, len);
		close(fd);
		return e;
	}
	*o = (struct object){ .at = at, .bytes = bytes, .len = len, .page = page, .prot = prot, .fd = fd,
	                      .guard = -1 };
	return 0;
}

int object_open(struct object *o, size_t bytes, int prot, bool huge)
{
	long page = huge ? gethugepagesize() : 0;

	if (page > 0 && bytes >= (size_t)page / 2 && make(o, bytes, prot, (size_t)page) == 0)
		return 0;
	return make(o, bytes, prot, 0);
}

static int populate(struct object *o, uint64_t until)
{
	int touch = o->prot & PROT_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;

	while (o->there < o->len) {
		size_t left = o->len - o->there, n = o->page > PIECE ? o->page : PIECE;

		n = n < left ? n : left;
		if (madvise(o->at + o->there, n, touch) < 0) {
			if (errno != EINVAL)
				return -errno;
			n = left;             /* Linux before 5.14: pages come when they are touched */
		}
		o->there += n;
		if (sr_now() >= until)
			break;
	}
	return o->there < o->len;
}

/* An empty pool of huge pages shows only here, because memfd_create() and ftruncate() succeed on it. */
int object_fill(struct object *o, uint64_t until)
{
	int e = populate(o, until);

	if (e >= 0 || o->page == SR_PAGE || o->guard >= 0)
		return e;
	object_close(o);
	e = make(o, o->bytes, o->prot, 0);
	return e < 0 ? e : 1;
}

int object_seal(struct object *o)
{
	int fd = o->fd, e = 0;

	/* From now on nobody can map it writable again, write to the file, or punch a hole.  A hole
	 * would make the daemon wait for memory in the middle of a turn. */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
		e = errno == EINVAL && fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) == 0 ? 0 : -errno; /* Linux before 5.1 */
	o->there = 0;                         /* holes punched earlier must be filled again */
	return e;
}

static void unguard(struct object *o)
{
	if (o->guard >= 0)
		atomic_store_explicit(&guards[o->guard].at, 0, memory_order_release);
	o->guard = -1;
}

/* From the end, so that the rest begins where it did. */
int object_unmap(struct object *o, uint64_t until)
{
	size_t piece = o->page > UNMAP_PIECE ? o->page : UNMAP_PIECE;

	unguard(o);
	while (o->at && o->len) {
		size_t n = o->len < piece ? o->len : piece;

		o->len -= n;
		munmap(o->at + o->len, n);
		if (o->len && sr_now() >= until)
			return 1;
	}
	return 0;
}

int object_detach(struct object *o)
{
	int fd = o->at ? o->fd : -1;

	object_unmap(o, UINT64_MAX);
	o->at = NULL;
	return fd;
}

void object_close(struct object *o)
{
	int fd = object_detach(o);

	if (fd >= 0)
		close(fd);
}
