/* prefix.c - see prefix.h. */
#include "prefix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL        /* inlined: a call costs as much as hashing 100 bytes */
#include <xxhash.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define USUAL_TOKENS 16       /* usual tokens of a block: for these, lengths are constants */
#define SPARE        4        /* places for each name */

/* ---- names ---- */

/* What a name is the hash of. */
struct hashed {
	uint64_t secret, parent[2], salt;
	int32_t  id[PREFIX_BLOCK_MAX];
};
#define HASHED_BYTES(ids) (offsetof(struct hashed, id) + (size_t)(ids) * sizeof(int32_t))

/* A constant length leaves no branch on it in the hash. */
static __attribute__((flatten)) XXH128_hash_t hash_usual(const struct hashed *in, uint64_t seed)
{
	return XXH3_128bits_withSeed(in, HASHED_BYTES(USUAL_TOKENS), seed);
}

struct prefix_name prefix_name(const uint64_t key[2], const uint64_t parent[2], uint64_t salt,
                               const int32_t *id, int32_t n_ids)
{
	struct hashed in;
	XXH128_hash_t h;

	in.secret = key[0];
	in.parent[0] = parent[0];
	in.parent[1] = parent[1];
	in.salt = salt;
	if (n_ids == USUAL_TOKENS) {
		memcpy(in.id, id, USUAL_TOKENS * sizeof(*id));
		h = hash_usual(&in, key[1]);
	} else {
		memcpy(in.id, id, (size_t)n_ids * sizeof(*id));
		h = XXH3_128bits_withSeed(&in, HASHED_BYTES(n_ids), key[1]);
	}
	return (struct prefix_name){ { h.low64, h.high64 } };
}

#define ROTL(x, n) ((x) << (n) | (x) >> (64 - (n)))

/* SipHash-2-4 (Aumasson and Bernstein, 2012). */
uint64_t prefix_hash(const uint64_t key[2], const uint64_t *word, int n)
{
	uint64_t a = key[0] ^ 0x736f6d6570736575u, b = key[1] ^ 0x646f72616e646f6du;
	uint64_t c = key[0] ^ 0x6c7967656e657261u, d = key[1] ^ 0x7465646279746573u;

	for (int i = 0; i <= n; i++) {
		uint64_t m = i < n ? word[i] : (uint64_t)n * 8 << 56;

		d ^= m;
		for (int round = 0; round < (i < n ? 2 : 6); round++) {
			if (i == n && round == 2) {
				a ^= m;
				c ^= 0xff;
			}
			a += b; b = ROTL(b, 13) ^ a; a = ROTL(a, 32);
			c += d; d = ROTL(d, 16) ^ c;
			a += d; d = ROTL(d, 21) ^ a;
			c += b; b = ROTL(b, 17) ^ c; c = ROTL(c, 32);
		}
		if (i < n)
			a ^= m;
	}
	return a ^ b ^ c ^ d;
}

uint64_t prefix_tenant(const struct prefix_secret *s, uint32_t uid, bool gateway, uint64_t named)
{
	uint64_t word[2] = { uid, named };

	return gateway && named ? prefix_hash(s->salt, word, 2) | 1ull << 63 : uid;
}

uint64_t prefix_salt(const struct prefix_secret *s, enum prefix_scope scope, uint32_t uid, uint64_t tenant,
                     uint64_t salt)
{
	uint64_t word[3] = { scope, scope == PREFIX_BY_UID ? uid : scope == PREFIX_BY_TENANT ? tenant : 0, salt };

	return prefix_hash(s->salt, word, 3);
}

/* ---- secrets ---- */

int prefix_secret_fd(void)
{
	struct prefix_secret s;
	int fd = memfd_create("slipring-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	if (getrandom(&s, sizeof(s), 0) == sizeof(s) && write(fd, &s, sizeof(s)) == sizeof(s) &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0)
		return fd;
	close(fd);
	return -EIO;
}

/* The secret that the service manager has for all replicas; -ENOENT: it has none. */
static int credential(struct prefix_secret *out)
{
	const char *dir = getenv("CREDENTIALS_DIRECTORY");
	char path[4096];
	ssize_t n;
	int fd;

	if (!dir || snprintf(path, sizeof(path), "%s/" PREFIX_CREDENTIAL, dir) >= (int)sizeof(path))
		return -ENOENT;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read(fd, out, sizeof(*out));
	close(fd);
	return n == sizeof(*out) ? 1 : -EINVAL;
}

int prefix_secret(struct prefix_secret *out)
{
	const char *given = getenv(PREFIX_SECRET_FD);
	int fd = given ? atoi(given) : -1, r;
	ssize_t n;

	if (!given && (r = credential(out)) != -ENOENT)
		return r;
	if (!given)
		return getrandom(out, sizeof(*out), 0) == sizeof(*out) ? 0 : -EIO;
	unsetenv(PREFIX_SECRET_FD);
	if (fd < 3 || !(fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE))
		return -EINVAL;
	n = pread(fd, out, sizeof(*out), 0);
	close(fd);
	return n == sizeof(*out) ? 1 : -EINVAL;
}

/* ---- the page ---- */

static size_t page_bytes(uint32_t n_buckets)
{
	return sizeof(struct prefix_page) + (size_t)n_buckets * PREFIX_PLACES * sizeof(uint64_t);
}

int prefix_create(struct prefix_page **out, int *fd, int64_t n_blocks, const struct prefix_secret *s)
{
	uint32_t n = 8;
	void *p = MAP_FAILED;

	while (n < 1u << 27 && (int64_t)n * PREFIX_PLACES < n_blocks * SPARE)
		n *= 2;
	*fd = memfd_create("slipring-prefixes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0)
		return -errno;
	if (ftruncate(*fd, (off_t)page_bytes(n)) == 0)
		p = mmap(NULL, page_bytes(n), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, *fd, 0);
	if (p == MAP_FAILED ||
	    fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0) {
		int e = errno;

		if (p != MAP_FAILED)
			munmap(p, page_bytes(n));
		close(*fd);
		return -e;
	}
	*out = p;
	**out = (struct prefix_page){ .magic = PREFIX_MAGIC, .version = PREFIX_VERSION, .bytes = page_bytes(n),
	                              .n_buckets = n, .n_groups = 1, .secret = *s };
	return 0;
}

void prefix_destroy(struct prefix_page *p)
{
	if (p)
		munmap(p, p->bytes);
}

static bool valid(const struct prefix_page *p, size_t bytes)
{
	bool ok = p->magic == PREFIX_MAGIC && p->version == PREFIX_VERSION && p->bytes == bytes && p->n_buckets &&
		!(p->n_buckets & (p->n_buckets - 1)) && p->n_buckets <= 1u << 27 &&
		page_bytes(p->n_buckets) == bytes &&
		p->block_tokens >= 1 && p->block_tokens <= PREFIX_BLOCK_MAX && p->n_groups >= 1 &&
		p->n_groups <= PREFIX_GROUPS && p->scope <= PREFIX_GLOBAL;

	for (uint32_t g = 0; ok && g < p->n_groups; g++)
		ok = p->reach[g] >= 0;
	return ok;
}

int prefix_open(const struct prefix_page **out, int fd)
{
	struct stat st;
	void *p;

	if (fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof(struct prefix_page) ||
	    !(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK))
		return -EPROTO;
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	if (!valid(p, (size_t)st.st_size)) {
		munmap(p, (size_t)st.st_size);
		return -EPROTO;
	}
	*out = p;
	return 0;
}

void prefix_close(const struct prefix_page *p)
{
	if (p)
		munmap((void *)(uintptr_t)p, p->bytes);
}

/* ---- a match ---- */

bool prefix_windows(const struct prefix_page *p) { return p->n_groups > 1 || p->reach[0]; }

int32_t prefix_match(const struct prefix_page *p, const uint64_t *low, int32_t n)
{
	int32_t run[PREFIX_GROUPS] = { 0 }, end = 0;

	/* Groups without a window have all blocks up to the end, the others those that the next token reads. */
	for (int32_t i = 0; i < n; i++) {
		bool fits = true;

		for (uint32_t g = 0; g < p->n_groups; g++) {
			run[g] = prefix_has(p, prefix_of_group(low[i], (int32_t)g)) ? run[g] + 1 : 0;
			if (!p->reach[g] && !run[g])
				return end;
			fits &= run[g] >= (p->reach[g] && p->reach[g] < i + 1 ? p->reach[g] : i + 1);
		}
		end = fits ? i + 1 : end;
	}
	return end;
}
