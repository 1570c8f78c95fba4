/* canary.h - what may trap or hang is done in a child process first, before this one touches the GPU: a kernel that
 * traps makes a process's context unusable, and one that hangs never gives it back.
 *
 *	parent   canary_run: fork, then read messages, each with a deadline.  A child that ends or is silent has
 *	         failed at what it said last: that is switched off, and another child starts without it
 *	child    check(): says what it begins (canary_say), and at its end which bits are set
 *
 * What was found is kept in a file, a line for each key (canary_key): a GPU, a driver, an object and what of it a
 * model uses are checked once. */
#ifndef CUDA_CANARY_H
#define CUDA_CANARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CANARY_PLAIN (-1)            /* canary_say: something that nothing can take the place of */

struct canary {
	/* In the child.  Sets bits of *without for what is wrong.  0; -EAGAIN: this process cannot tell, because it has
	 * no memory or no GPU; or -EIO: what it said last has failed */
	int (*check)(void *ctx, uint32_t *without, int to);
	void *ctx;
	const char *(*name)(int special);
	int n;                       /* of what can be switched off */
	int first_ms, each_ms;       /* from word to word, after something plain and else */
};

void canary_say(int to, int special);

/* Returns 0 with bits added to *without; -EAGAIN if nothing is known, with why; -EIO if something plain failed,
 * with what. */
int canary_run(const struct canary *c, uint32_t *without, char *why, size_t whylen);

/* Of the driver and GPUs of this machine (proc: /proc/driver/nvidia), the object that `code` lies in, and n bytes of
 * the caller's.  0: there is no such driver, and nothing is to be kept. */
uint64_t canary_key(const char *proc, const void *code, const void *more, size_t n);

/* The file with what was found; -ENOENT: there is no place for it. */
int canary_file(char *path, size_t size);

/* 0 with *without, or -ENOENT. */
int canary_known(const char *path, uint64_t key, uint32_t *without);
int canary_keep(const char *path, uint64_t key, uint32_t without); /* 0 or -errno */

#ifdef __cplusplus
}
#endif
#endif
