/* events.c - see events.h. */
#include "events.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define TRIES 8               /* reads of a name that changes */

static uint64_t page_bytes(uint64_t names, uint32_t block_tokens)
{
	return sizeof(struct events_page) + names * events_name_bytes(block_tokens);
}

int events_create(struct events_page **out, int *fd, int32_t n_blocks, int32_t n_host, int32_t block_tokens)
{
	uint64_t bytes = page_bytes((uint64_t)n_blocks + (uint64_t)n_host, (uint32_t)block_tokens);
	void *p = MAP_FAILED;

	*fd = memfd_create("slipring-events", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0)
		return -errno;
	if (ftruncate(*fd, (off_t)bytes) == 0)
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, *fd, 0);
	if (p == MAP_FAILED ||
	    fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0) {
		int e = errno;

		if (p != MAP_FAILED)
			munmap(p, bytes);
		close(*fd);
		return -e;
	}
	*out = p;
	(*out)->magic = EVENTS_MAGIC;
	(*out)->version = EVENTS_VERSION;
	(*out)->bytes = bytes;
	(*out)->n_blocks = (uint32_t)n_blocks;
	(*out)->n_host = (uint32_t)n_host;
	(*out)->block_tokens = (uint32_t)block_tokens;
	(*out)->name_bytes = events_name_bytes((uint32_t)block_tokens);
	(*out)->n_groups = 1;
	return 0;
}

void events_destroy(struct events_page *p)
{
	if (p)
		munmap(p, p->bytes);
}

static bool valid(const struct events_page *p, uint64_t bytes)
{
	return p->magic == EVENTS_MAGIC && p->version == EVENTS_VERSION && p->bytes == bytes && p->n_blocks &&
	       p->block_tokens >= 1 && p->block_tokens <= 64 && p->name_bytes == events_name_bytes(p->block_tokens) &&
	       p->n_groups >= 1 && p->n_groups <= EVENTS_GROUPS &&
	       page_bytes((uint64_t)p->n_blocks + p->n_host, p->block_tokens) == bytes;
}

int events_open(const struct events_page **out, int fd)
{
	struct stat st;
	void *p;

	if (fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof(struct events_page) ||
	    !(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK))
		return -EPROTO;
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	if (!valid(p, (uint64_t)st.st_size)) {
		munmap(p, (size_t)st.st_size);
		return -EPROTO;
	}
	*out = p;
	return 0;
}

void events_close(const struct events_page *p)
{
	if (p)
		munmap((void *)(uintptr_t)p, p->bytes);
}

/* Reader side of a sequence lock. */
int events_read(const struct events_page *p, uint32_t i, struct events_name *out, int32_t *ids)
{
	const struct events_name *n = (const struct events_name *)(p->name + (size_t)i * p->name_bytes);

	for (int k = 0; k < TRIES; k++) {
		uint32_t stamp = __atomic_load_n(&n->stamp, __ATOMIC_ACQUIRE);

		if ((stamp & 3) == EVENTS_NONE)
			return 0;
		memcpy(out, n, sizeof(*out));
		memcpy(ids, (const char *)n + EVENTS_HEAD, p->block_tokens * sizeof(*ids));
		atomic_thread_fence(memory_order_acquire);
		if ((stamp & 3) == EVENTS_LIVE && __atomic_load_n(&n->stamp, __ATOMIC_RELAXED) == stamp)
			return 1;
	}
	return -EAGAIN;
}
