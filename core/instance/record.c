/* record.c - the daemon's side of a recording: see record.h. */
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <xxhash.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define MOST (RECORD_ROOM / 4)       /* largest entry: a larger one would overwrite too many others */

/* The memory is written by the daemon alone; the seal does not affect the mapping made before it. */
int record_start(struct recorder *r, bool ids, uint64_t now, int *fd)
{
	int f, e;

	if (r->page)
		return -EBUSY;
	f = memfd_create("slipring-record", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (f < 0)
		return -errno;
	if (ftruncate(f, sizeof(*r->page)) < 0 ||
	    (r->page = mmap(NULL, sizeof(*r->page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, f,
	                    0)) == MAP_FAILED ||
	    fcntl(f, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0 ||
	    getrandom(&r->key, sizeof(r->key), 0) != sizeof(r->key)) {
		e = errno;
		if (r->page && r->page != MAP_FAILED)
			munmap(r->page, sizeof(*r->page));
		r->page = NULL;
		close(f);
		return e ? -e : -EIO;
	}
	r->ids = ids;
	r->n = 0;
	r->page->start_ns = now;
	r->page->room = RECORD_ROOM;
	r->page->chunk = RECORD_CHUNK;
	r->page->version = RECORD_VERSION;
	r->page->magic = RECORD_MAGIC;
	*fd = f;
	return 0;
}

void record_stop(struct recorder *r)
{
	if (r->page)
		munmap(r->page, sizeof(*r->page));
	r->page = NULL;
}

static void page_put(struct record_page *p, uint64_t at, const void *from, size_t n)
{
	size_t i = at % RECORD_ROOM, first = n < RECORD_ROOM - i ? n : RECORD_ROOM - i;

	memcpy(p->entry + i, from, first);
	memcpy(p->entry, (const char *)from + first, n - first);
}

/* Writer side of a sequence lock whose number is `claimed`.  It is stored before the first byte is
 * written (release fence); the reader checks it after its last byte (acquire fence). */
static uint64_t claim(struct record_page *p, struct record_entry *e)
{
	uint64_t at = p->put;

	__atomic_store_n(&p->claimed, at + e->bytes, __ATOMIC_RELAXED);
	atomic_thread_fence(memory_order_release);
	page_put(p, at, e, sizeof(*e));
	return at + sizeof(*e);
}

static void page_publish(struct record_page *p, uint64_t n)
{
	__atomic_store_n(&p->n, n, __ATOMIC_RELAXED);
	__atomic_store_n(&p->put, p->claimed, __ATOMIC_RELEASE);
}

uint64_t record_request(struct recorder *r, uint64_t now, uint64_t salt, const int32_t *prompt,
                        uint32_t n_prompt, uint32_t max_tokens)
{
	struct record_entry e = { .kind = RECORD_REQUEST, .at_ns = now, .n_prompt = n_prompt,
	                          .n_tokens = max_tokens };
	uint64_t n_hashes = ((uint64_t)n_prompt + RECORD_CHUNK - 1) / RECORD_CHUNK, at, hash = salt;

	if (!r->page)
		return 0;
	e.id = ++r->last_id;
	e.n = r->n++;
	if (sizeof(e) + n_hashes * 8 <= MOST)
		e.n_hashes = (uint32_t)n_hashes;
	if (r->ids && sizeof(e) + n_hashes * 8 + (uint64_t)n_prompt * 4 + 4 <= MOST)
		e.n_ids = n_prompt;
	e.bytes = (uint32_t)(sizeof(e) + e.n_hashes * 8 + (e.n_ids * 4 + 7) / 8 * 8);
	at = claim(r->page, &e);
	for (uint32_t i = 0; i < e.n_hashes; i++, at += sizeof(hash)) {
		uint32_t from = i * RECORD_CHUNK, n = n_prompt - from < RECORD_CHUNK ? n_prompt - from : RECORD_CHUNK;

		/* The seed is secret, and each hash covers all before it. */
		hash = XXH3_64bits_withSeed(prompt + from, n * sizeof(*prompt), r->key ^ hash);
		page_put(r->page, at, &hash, sizeof(hash));
	}
	page_put(r->page, at, prompt, e.n_ids * sizeof(*prompt));
	page_publish(r->page, r->n);
	return e.id;
}

void record_end(struct recorder *r, uint64_t id, uint64_t now, uint32_t n_tokens, int finish)
{
	struct record_entry e = { .bytes = sizeof(e), .kind = RECORD_ANSWER, .id = id, .at_ns = now,
	                          .n_tokens = n_tokens, .finish = finish };

	if (!r->page || !id)
		return;
	e.n = r->n++;
	claim(r->page, &e);
	page_publish(r->page, r->n);
}
