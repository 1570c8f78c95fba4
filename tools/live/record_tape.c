/* record_tape.c - reads the memory that the daemon records into (core/instance/record.h). */
#include "record_trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

int tape_open(struct tape *t, int fd)
{
	struct stat st;
	void *p;

	*t = (struct tape){ .page = NULL };
	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size != (off_t)sizeof(*t->page))
		return -EPROTO;
	p = mmap(NULL, sizeof(*t->page), PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	t->page = p;
	t->copy = malloc(RECORD_ROOM);
	if (t->copy && t->page->magic == RECORD_MAGIC && t->page->version == RECORD_VERSION &&
	    t->page->room == RECORD_ROOM && t->page->chunk == RECORD_CHUNK)
		return 0;
	p = t->copy;
	tape_close(t);
	return p ? -EPROTO : -ENOMEM;
}

void tape_close(struct tape *t)
{
	if (t->page)
		munmap((void *)(uintptr_t)t->page, sizeof(*t->page));
	free(t->copy);
	*t = (struct tape){ .page = NULL };
}

static void copy_out(const struct tape *t, uint64_t at, void *to, size_t n)
{
	size_t i = at % RECORD_ROOM, first = n < RECORD_ROOM - i ? n : RECORD_ROOM - i;

	memcpy(to, t->page->entry + i, first);
	memcpy((char *)to + first, t->page->entry, n - first);
}

/* The reader's side of a sequence lock: the copy is valid if the daemon had not begun to overwrite it
 * afterwards.  Acquire orders this check after the copy. */
static bool still_there(const struct tape *t)
{
	atomic_thread_fence(memory_order_acquire);
	return __atomic_load_n(&t->page->claimed, __ATOMIC_RELAXED) - t->at <= RECORD_ROOM;
}

const struct record_entry *tape_next(struct tape *t)
{
	const struct record_entry *e = (const void *)t->copy;

	for (;;) {
		uint64_t n = __atomic_load_n(&t->page->n, __ATOMIC_ACQUIRE);
		uint64_t put = __atomic_load_n(&t->page->put, __ATOMIC_ACQUIRE);

		if (t->at == put)
			return NULL;
		copy_out(t, t->at, t->copy, sizeof(*e));
		if (still_there(t) && e->bytes >= sizeof(*e) && e->bytes <= RECORD_ROOM) {
			copy_out(t, t->at + sizeof(*e), t->copy + sizeof(*e), e->bytes - sizeof(*e));
			if (still_there(t)) {
				t->at += e->bytes;
				t->lost += e->n - t->next;
				t->next = e->n + 1;
				return e;
			}
		}
		t->at = put;                      /* overwritten: skip to the entries that come from now on */
		if (n > t->next) {                /* the next entry counts those lost after n was read */
			t->lost += n - t->next;
			t->next = n;
		}
	}
}
