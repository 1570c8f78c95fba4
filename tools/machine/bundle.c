/* bundle.c - POSIX.1-1988 ustar, as pax(1) describes it: a header of 512 bytes, the data, zeros up to the
 * next multiple of 512; two blocks of zeros at the end. */
#include "bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct header {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], check[8], type, link[100];
	char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], zero[12];
};
_Static_assert(sizeof(struct header) == 512, "one block");

static void bundle_put(struct bundle *b, const void *p, size_t n)
{
	if (!b->error && n && fwrite(p, 1, n, b->to) != n)
		b->error = errno ? -errno : -EIO;
}

int bundle_open(struct bundle *b, const char *path, const char *dir)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), e;

	*b = (struct bundle){ .dir = dir, .path = path };
	if (fd >= 0 && (b->to = fdopen(fd, "w")))
		return 0;
	e = -errno;
	if (fd >= 0)
		close(fd);
	return e;
}

void bundle_add(struct bundle *b, const char *name, const void *data, size_t n)
{
	static const char zeros[512];
	struct header h = { .type = '0', .magic = "ustar", .version = { '0', '0' } };
	const unsigned char *byte = (const unsigned char *)&h;
	unsigned sum = 0;

	snprintf(h.name, sizeof(h.name), "%s/%s", b->dir, name);
	strcpy(h.mode, "0000600");
	strcpy(h.uid, "0000000");
	strcpy(h.gid, "0000000");
	snprintf(h.size, sizeof(h.size), "%011lo", (unsigned long)n & 077777777777ul);
	snprintf(h.mtime, sizeof(h.mtime), "%011lo", (unsigned long)time(NULL) & 077777777777ul);
	memset(h.check, ' ', sizeof(h.check));
	for (size_t i = 0; i < sizeof(h); i++)
		sum += byte[i];
	snprintf(h.check, sizeof(h.check), "%06o", sum);
	bundle_put(b, &h, sizeof(h));
	bundle_put(b, data, n);
	bundle_put(b, zeros, (512 - n % 512) % 512);
}

int bundle_close(struct bundle *b)
{
	static const char zeros[1024];

	bundle_put(b, zeros, sizeof(zeros));
	if (fclose(b->to) && !b->error)
		b->error = -errno;
	if (b->error)
		unlink(b->path);              /* half a file is of no use */
	return b->error;
}
