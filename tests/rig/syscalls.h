/* syscalls.h - count the system calls of a thread.  Code that makes none pays nothing.
 *
 * A seccomp filter, which is per thread, turns each system call into a SIGSYS.  The handler counts it and
 * repeats it from the one address that the filter lets through.  The filter cannot be removed, so the
 * thread must end with the test.  Threads that it makes inherit the filter; their calls are not counted.
 */
#ifndef TESTS_SYSCALLS_H
#define TESTS_SYSCALLS_H

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define SYSCALLS_COUNTABLE 1

static _Thread_local _Atomic uint64_t *syscalls_seen;   /* of this thread; [0 .. 511] */

long syscalls_again(long nr, const greg_t *r);
extern const char syscalls_after[];

/* rdi = number, rsi = registers of the caller, in the order of ucontext's gregs. */
__asm__(".text\n.globl syscalls_again, syscalls_after\n.type syscalls_again, @function\n"
        "syscalls_again:\n"
        "	mov %rdi, %rax\n"
        "	mov %rsi, %r11\n"
        "	mov (8*0)(%r11), %r8\n"
        "	mov (8*1)(%r11), %r9\n"
        "	mov (8*2)(%r11), %r10\n"
        "	mov (8*12)(%r11), %rdx\n"
        "	mov (8*9)(%r11), %rsi\n"
        "	mov (8*8)(%r11), %rdi\n"
        "	syscall\n"
        "syscalls_after:\n"
        "	ret\n"
        ".size syscalls_again, .-syscalls_again\n");
_Static_assert(REG_R8 == 0 && REG_R9 == 1 && REG_R10 == 2 && REG_RDI == 8 && REG_RSI == 9 &&
               REG_RDX == 12, "the registers above");

/* Returning from a handler restores the signal mask, so this call changes the mask to be restored.
 * SIGSYS stays unblocked, because the kernel kills a thread that blocks it. */
static inline long syscalls_mask(ucontext_t *u, const greg_t *r)
{
	const uint64_t *set = (const void *)(uintptr_t)r[REG_RSI];
	uint64_t *old = (void *)(uintptr_t)r[REG_RDX], mask;

	memcpy(&mask, &u->uc_sigmask, sizeof(mask));
	if (old)
		*old = mask;
	if (set)
		mask = r[REG_RDI] == SIG_BLOCK ? mask | *set : r[REG_RDI] == SIG_UNBLOCK ? mask & ~*set : *set;
	mask &= ~(1ull << (SIGSYS - 1));
	memcpy(&u->uc_sigmask, &mask, sizeof(mask));
	return 0;
}

static inline void syscalls_trap(int sig, siginfo_t *info, void *context)
{
	ucontext_t *u = context;
	int e = errno;

	(void)sig;
	if (syscalls_seen && (unsigned)info->si_syscall < 512)
		atomic_fetch_add_explicit(&syscalls_seen[info->si_syscall], 1, memory_order_relaxed);
	u->uc_mcontext.gregs[REG_RAX] = info->si_syscall == SYS_rt_sigprocmask ?
		syscalls_mask(u, u->uc_mcontext.gregs) :
		syscalls_again(info->si_syscall, u->uc_mcontext.gregs);
	errno = e;
}

/* From here on, count the calling thread's system calls in seen[number], except number `but` (-1: no
 * exception).  0 or -errno. */
static inline int syscalls_count(_Atomic uint64_t *seen, int but)
{
	uint64_t after = (uint64_t)(uintptr_t)syscalls_after;
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 10),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 8, 0), /* the handler returns */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)but, 7, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 6, 0), /* a new thread begins behind its own */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 5, 0),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)after, 0, 2),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(after >> 32), 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };
	struct sigaction sa = { .sa_sigaction = syscalls_trap, .sa_flags = SA_SIGINFO | SA_NODEFER };

	sigemptyset(&sa.sa_mask);
	if (sigaction(SIGSYS, &sa, NULL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	syscalls_seen = seen;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? -errno : 0;
}
#else
#define SYSCALLS_COUNTABLE 0
static inline int syscalls_count(_Atomic uint64_t *seen, int but)
{
	(void)seen;
	(void)but;
	return -ENOSYS;
}
#endif

static inline uint64_t syscalls_sum(const _Atomic uint64_t *seen)
{
	uint64_t n = 0;

	for (int i = 0; i < 512; i++)
		n += atomic_load_explicit(&seen[i], memory_order_relaxed);
	return n;
}

#endif
