/* backend.c - which back ends there are, and which one to use.
 *
 * The CPU and the null device are linked in.  The CUDA back end is a shared object of its
 * own, so that one package runs on machines with and without a GPU.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend.h"
#include "cpu/cpu.h"
#include "null/null.h"
#include "refuse.h"

#define CUDA_SO "slipring-cuda.so"

/* Beside the executable, as in a build directory; else where `make install` puts it:
 * PREFIX/lib/slipring for an executable in PREFIX/bin. */
static void cuda_path(char *path, size_t size)
{
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;

	exe[n > 0 ? n : 0] = 0;
	slash = strrchr(exe, '/');
	if (slash)
		*slash = 0;
	if (slash && snprintf(path, size, "%s/%s", exe, CUDA_SO) < (int)size && !access(path, F_OK))
		return;
	slash = strrchr(exe, '/');
	if (slash)
		*slash = 0;
	snprintf(path, size, "%s/lib/slipring/%s", exe, CUDA_SO);
}

static const struct sr_backend_ops *cuda(char *err, size_t errlen)
{
	const struct sr_backend_ops *(*get)(uint32_t);
	const struct sr_backend_ops *ops;
	char path[PATH_MAX + 64];
	void *so;

	cuda_path(path, sizeof(path));
	if (access(path, F_OK)) {
		refuse(-ENOENT, err, errlen, "the CUDA back end is not installed: no %s; "
		       "install it, or choose --device cpu", path);
		return NULL;
	}
	so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!so) {
		refuse(-ENOENT, err, errlen, "the CUDA back end cannot be loaded: %s", dlerror());
		return NULL;
	}
	*(void **)&get = dlsym(so, "sr_backend_get");
	ops = get ? get(SR_BACKEND_VERSION) : NULL;
	if (ops)
		return ops; /* never closed: its code runs until the process ends */
	dlclose(so);
	refuse(-ENOENT, err, errlen, "%s is of another version than this program (which speaks %d): "
	       "install both from one package", path, SR_BACKEND_VERSION);
	return NULL;
}

static bool nvidia_present(void)
{
	return !access("/dev/nvidiactl", F_OK) || !access("/proc/driver/nvidia", F_OK);
}

const struct sr_backend_ops *sr_backend_find(const char *name, char *err, size_t errlen)
{
	const struct sr_backend_ops *ops;
	char why[512];

	if (!name || !strcmp(name, "auto")) {
		if (!nvidia_present())
			return sr_cpu_ops();
		ops = cuda(why, sizeof(why));
		if (!ops)
			refuse(-ENOENT, err, errlen, "this machine has an NVIDIA GPU that cannot be used: %s", why);
		return ops;
	}
	if (!strcmp(name, "cpu"))
		return sr_cpu_ops();
	if (!strcmp(name, "null"))
		return sr_null_ops();
	if (!strcmp(name, "cuda"))
		return cuda(err, errlen);
	refuse(-ENOENT, err, errlen, "--device %s: there is no such device; auto, cpu, cuda or null", name);
	return NULL;
}
