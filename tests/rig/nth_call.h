/* nth_call.h - makes the n-th allocation, open, mapping or read of the code under test fail, in this
 * process.  A test that includes this is linked with NTH_LINK, which its first line repeats:
 *	-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=open,--wrap=fstat,--wrap=mmap,--wrap=pread
 */
#ifndef TESTS_NTH_CALL_H
#define TESTS_NTH_CALL_H

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>

enum nth {
	NTH_FAILS,                     /* with ENOMEM, EMFILE, EIO */
	NTH_INTERRUPTED,               /* a read: EINTR; the caller must repeat it */
	NTH_PART,                      /* a read: returns half of the bytes */
	NTH_ENDS,                      /* a read: the file ends; it was longer when it was opened */
};

static struct { int at, seen; enum nth how; } nth;     /* at 0: none */

static inline bool nth_hit(bool is_read)
{
	return nth.at && (is_read || nth.how == NTH_FAILS) && ++nth.seen == nth.at;
}

#define NTH(error, value, type, name, args, pass) \
	type __real_##name args; type __wrap_##name args; \
	type __wrap_##name args \
	{ \
		if (nth_hit(false)) { \
			errno = error; \
			return value; \
		} \
		return __real_##name pass; \
	}

NTH(ENOMEM, NULL, void *, malloc, (size_t n), (n))
NTH(ENOMEM, NULL, void *, calloc, (size_t n, size_t size), (n, size))
NTH(ENOMEM, NULL, void *, realloc, (void *p, size_t n), (p, n))
NTH(ENOMEM, NULL, char *, strdup, (const char *s), (s))
NTH(EMFILE, -1, int, open, (const char *path, int flags, mode_t mode), (path, flags, mode))
NTH(EIO, -1, int, fstat, (int fd, struct stat *st), (fd, st))
NTH(ENOMEM, MAP_FAILED, void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t o),
    (at, n, prot, flags, fd, o))

ssize_t __real_pread(int fd, void *to, size_t n, off_t o);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t o);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t o)
{
	if (!nth_hit(true))
		return __real_pread(fd, to, n, o);
	if (nth.how == NTH_PART)
		return __real_pread(fd, to, (n + 1) / 2, o);
	errno = nth.how == NTH_INTERRUPTED ? EINTR : EIO;
	return nth.how == NTH_ENDS ? 0 : -1;
}

static inline int nth_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Run act() with its first call failing, then its second, until it makes no more calls.  A repeated read
 * must change nothing.  Any other failure must give a sentence that names `about`, and leave nothing open. */
static inline void nth_each(enum nth how, int (*act)(char *why, size_t n), const char *about)
{
	int fds = nth_fds(), n = 0;

	for (;; n++) {
		char why[5000] = "";
		int rc;

		nth = (typeof(nth)){ .at = n + 1, .how = how };
		rc = act(why, sizeof(why));
		nth.at = 0;
		assert_int_equal(nth_fds(), fds);
		if (nth.seen <= n)
			break;
		if (how == NTH_INTERRUPTED || how == NTH_PART ? rc != 0 : rc >= 0)
			fail_msg("call %d going wrong (%d): %d \"%s\"", n + 1, how, rc, why);
		if (rc && (!strstr(why, about) || strstr(why, "Success") || strstr(why, "(null)")))
			fail_msg("call %d going wrong (%d) says \"%s\"", n + 1, how, why);
		if (how == NTH_ENDS)
			assert_int_equal(rc, -EIO);
	}
	assert_true(n > 0);
}

#endif
