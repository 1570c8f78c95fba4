/* LINK: -lhugetlbfs -Wl,--wrap=memfd_create,--wrap=ftruncate,--wrap=mmap,--wrap=madvise,--wrap=fcntl,--wrap=sigaction,--wrap=calloc,--wrap=malloc */
/* test_host.c - the daemon's side of a connection, rule by rule: its configuration, a kernel that
 * lacks something, each field of a request at its edges, and what a client may change between two reads.
 * The client is this test, which writes into the shared memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "shmring/host.c"
#include "shmring/object.c"
#include "tests/rig/cpu_time.h"
#include "tests/rig/host_conn.h"

/* ---- calls that fail ------------------------------------------------------------------------- */

static struct {                       /* the nth call from now on fails with error */
	const char *name;
	int nth, error;
} fault;

static bool fails(const char *name)
{
	if (!fault.name || strcmp(fault.name, name) != 0 || --fault.nth != 0)
		return false;
	errno = fault.error;
	fault.name = NULL;
	return true;
}

#define WRAP(value, type, name, args, pass) \
	type __real_##name args; type __wrap_##name args; \
	type __wrap_##name args { return fails(#name) ? value : __real_##name pass; }

WRAP(-1, int, memfd_create, (const char *name, unsigned flags), (name, flags))
WRAP(-1, int, ftruncate, (int fd, off_t n), (fd, n))
WRAP(MAP_FAILED, void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t o),
     (at, n, prot, flags, fd, o))
WRAP(-1, int, madvise, (void *at, size_t n, int advice), (at, n, advice))
WRAP(-1, int, fcntl, (int fd, int cmd, long arg), (fd, cmd, arg))
WRAP(-1, int, sigaction, (int sig, const struct sigaction *sa, struct sigaction *before), (sig, sa, before))
WRAP(NULL, void *, calloc, (size_t n, size_t size), (n, size))
WRAP(NULL, void *, malloc, (size_t n), (n))

static void fail_next(const char *name, int nth, int error)
{
	fault.name = name;
	fault.nth = nth;
	fault.error = error;
}

/* Every fault was used. */
static int all_used(void **state) { return teardown(state) || fault.name ? -1 : 0; }
static int parted_all_used(void **state) { return parted(state) || fault.name ? -1 : 0; }

/* ---- what it is made with -------------------------------------------------------------------- */

static void wrong_configurations(void **state)
{
	static const struct { struct sr_shape most; uint32_t vocab, context; uint64_t epoch; int is; } t[] = {
		{ SHAPE, 1, 1, 1, 0 },
		{ { 16, 64, 4096, 0, 0 }, 1, 1, 1, -EINVAL }, { { 1u << 15, 1u << 16, 4096, 0, 0 }, 1, 1, 1, -EINVAL },
		{ { 48, 128, 4096, 0, 0 }, 1, 1, 1, -EINVAL }, { { 64, 64, 4096, 0, 0 }, 1, 1, 1, -EINVAL },
		{ { 32, 1u << 21, 4096, 0, 0 }, 1, 1, 1, -EINVAL }, { { 32, 96, 4096, 0, 0 }, 1, 1, 1, -EINVAL },
		{ { 32, 64, 0, 0, 0 }, 1, 1, 1, -EINVAL }, { { 32, 64, (1u << 30) + 4096, 0, 0 }, 1, 1, 1, -EINVAL },
		{ { 32, 64, 4097, 0, 0 }, 1, 1, 1, -EINVAL },
		{ { 32, 64, 4096, 0, 48 }, 1, 1, 1, -EINVAL }, { { 32, 64, 4096, 0, 8 }, 1, 1, 1, -EINVAL }, /* no width */
		{ SHAPE, 0, 1, 1, -EINVAL }, { SHAPE, 0x80000000u, 1, 1, -EINVAL },
		{ SHAPE, 1, 0, 1, -EINVAL }, { SHAPE, 1, 0x80000000u, 1, -EINVAL }, { SHAPE, 1, 1, 0, -EINVAL },
		{ { 32, 64, 4096, 8, 0 }, 1, 1, 1, 0 }, { { 32, 64, 4096, 4096, 0 }, 1, 1, 1, 0 },
		{ { 32, 64, 4096, 4, 0 }, 1, 1, 1, -EINVAL }, { { 32, 64, 4096, 24, 0 }, 1, 1, 1, -EINVAL },
		{ { 32, 64, 4096, 8192, 0 }, 1, 1, 1, -EINVAL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct host_config cfg = { .most = t[i].most,
			.model = { .vocab = t[i].vocab, .context = t[i].context, .epoch = t[i].epoch } };
		struct host *s = NULL;
		int e = host_create(&s, &cfg);

		if (e != t[i].is)
			fail_msg("case %zu: %d instead of %d", i, e, t[i].is);
		host_destroy(s);
	}
	host_destroy(NULL);
}

static void no_memory_no_host(void **state)
{
	struct host *s;

	(void)state;
	fail_next("calloc", 1, ENOMEM);
	assert_int_equal(host_create(&s, &plain), -ENOMEM);
	for (int nth = 1; nth <= 2; nth++) {
		fail_next("malloc", nth, ENOMEM);
		assert_int_equal(host_create(&s, &plain), -ENOMEM);
	}
	guards_on = false;
	fail_next("sigaction", 1, EINVAL);
	assert_int_equal(host_create(&s, &plain), -EINVAL);
	assert_int_equal(host_create(&s, &plain), 0);
	host_destroy(s);
}

/* A connection is refused with the error, or goes on if the call was not needed. */
static void kernels_that_lack_something(void **state)
{
	static const struct { const char *name; int nth, error, is; } t[] = {
		{ "memfd_create", 1, EINVAL, 0 },     /* before 6.3: no MFD_NOEXEC_SEAL */
		{ "memfd_create", 1, EMFILE, -EMFILE }, { "memfd_create", 2, EMFILE, -EMFILE },
		{ "ftruncate", 1, ENOMEM, -ENOMEM }, { "ftruncate", 2, ENOMEM, -ENOMEM },
		{ "mmap", 1, ENOMEM, -ENOMEM }, { "mmap", 2, EAGAIN, -EAGAIN },
		{ "madvise", 1, EINVAL, 0 },          /* before 5.14: no MADV_POPULATE */
		{ "madvise", 1, EFAULT, -EFAULT }, { "madvise", 2, ENOMEM, -ENOMEM },
		{ "fcntl", 1, EBUSY, -EBUSY }, { "fcntl", 2, EBUSY, -EBUSY },
		{ "calloc", 1, ENOMEM, -ENOMEM },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct host_conn *other;
		int e;

		fail_next(t[i].name, t[i].nth, t[i].error);
		e = opens(&other, host, pair[0], &hello, false);
		if (e != t[i].is || fault.name)
			fail_msg("%s %d, errno %d: %d", t[i].name, t[i].nth, t[i].error, e);
		if (!e)
			host_close(other, false);
	}
}

/* A client that asks for guides needs one piece of memory more. */
static void no_memory_for_guides(void **state)
{
	struct sr_hello h = hello;
	struct host_conn *other;

	(void)state;
	h.want.guides = 8;
	fail_next("calloc", 2, ENOMEM);
	assert_int_equal(opens(&other, host, pair[0], &h, false), -ENOMEM);
	assert_null(fault.name);
	assert_int_equal(opens(&other, host, pair[0], &h, false), 0);
	assert_int_equal(host_shape(other)->guides, 8);
	host_close(other, false);
}

static void without_huge_pages_small_ones_do(void **state)
{
	struct host_config cfg = { .most = { 1024, 1u << 15, 1u << 21, 0 }, .model = plain.model };
	struct sr_hello big = { .magic = SR_MAGIC, .version = SR_VERSION, .want = cfg.most };
	struct host_conn *other;
	struct host *s;

	(void)state;
	assert_int_equal(host_create(&s, &cfg), 0);
	fail_next("memfd_create", 1, ENOENT);
	assert_int_equal(opens(&other, s, pair[0], &big, true), 0);
	assert_int_equal(host_shape(other)->live, 1024);
	assert_int_equal(other->up.len, SR_UP_BYTES(&cfg.most, 0));
	host_close(other, true);
	host_destroy(s);
}

/* Without F_SEAL_EXEC, which MFD_NOEXEC_SEAL adds on newer kernels. */
static int seals(int fd) { return fcntl(fd, F_GET_SEALS) & ~0x20; }

/* The last seal, once the client has mapped. */
static void what_it_writes_is_sealed(void **state)
{
	static const struct { const char *name; int nth, error, is, seals; } t[] = {
		{ NULL, 0, 0, 0, F_SEAL_FUTURE_WRITE },
		{ "fcntl", 1, EINVAL, 0, 0 },         /* before Linux 5.1: holes can be punched */
		{ "fcntl", 1, EPERM, -EPERM, -1 },
		{ "madvise", 1, EINVAL, 0, F_SEAL_FUTURE_WRITE },
		{ "madvise", 1, EFAULT, -EFAULT, -1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct host_conn *other;
		int fd, e;

		assert_int_equal(opens(&other, host, pair[0], &hello, false), 0);
		assert_int_equal(host_welcome(other), 0);
		fd = dup(other->up.fd);
		assert_int_equal(seals(fd), F_SEAL_SHRINK | F_SEAL_GROW);
		if (t[i].name)
			fail_next(t[i].name, t[i].nth, t[i].error);
		e = begins(other);
		assert_int_equal(e, t[i].is);
		assert_null(fault.name);
		if (t[i].seals >= 0)
			assert_int_equal(seals(fd), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | t[i].seals);
		close(fd);
		host_close(other, false);
	}
}

static void the_table_of_ranges_is_full(void **state)
{
	static uintptr_t was[2 * HOST_CONNS_MAX];
	struct host_conn *other;

	(void)state;
	for (int room = 0; room < 3; room++) {
		for (int i = 0; i < 2 * HOST_CONNS_MAX; i++) {
			was[i] = guards[i].at;
			guards[i].at = i < room ? 0 : 1;
		}
		assert_int_equal(opens(&other, host, pair[0], &hello, false), room < 2 ? -EUSERS : 0);
		if (room == 2)
			host_close(other, false);
		for (int i = 0; i < 2 * HOST_CONNS_MAX; i++)
			guards[i].at = was[i];
	}
}

static void a_peer_that_left_before_the_welcome(void **state)
{
	struct host_conn *other;

	(void)state;
	close(pair[1]);
	pair[1] = -1;
	assert_int_equal(opens(&other, host, pair[0], &hello, false), 0);
	assert_int_equal(host_welcome(other), -ECONNRESET);
	host_close(other, false);
	host_refuse(pair[0], -EUSERS);      /* no one reads it */
}

/* A connection whose opening fails, at any point, does not affect another. */
static void others_stay_guarded(void **state)
{
	static const struct { const char *name; int nth; } t[] = { { "memfd_create", 1 }, { "memfd_create", 2 },
		{ "ftruncate", 1 }, { "mmap", 1 }, { "mmap", 2 }, { "calloc", 1 } };
	struct host_conn *other;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		fail_next(t[i].name, t[i].nth, ENOMEM);
		assert_int_equal(opens(&other, host, pair[0], &hello, false), -ENOMEM);
		assert_int_equal(guards[0].at, (uintptr_t)c->up.at);
		assert_int_equal(guards[1].at, (uintptr_t)c->down.at);
	}
}

static void hellos(void **state)
{
	static const struct { const char *what; int is; struct sr_hello h; } t[] = {
#define HELLO(...) { .magic = SR_MAGIC, .version = SR_VERSION, __VA_ARGS__ }
		{ "plain", 0, HELLO(.name = "me") }, { "no name", 0, HELLO(.name = "") },
		{ "a tilde", 0, HELLO(.name = "~ ~") },
		{ "magic", -EPROTO, { .magic = 1, .version = SR_VERSION } },
		{ "version", -EPROTO, { .magic = SR_MAGIC, .version = SR_VERSION + 1 } },
		{ "the version before", -EPROTO, { .magic = SR_MAGIC, .version = 1 } },
		{ "reserved", -EPROTO, HELLO(.zero = 1) },
		{ "a line", -EPROTO, HELLO(.name = "a\nb") }, { "at once", -EPROTO, HELLO(.name = "\n") },
		{ "delete", -EPROTO, HELLO(.name = "a\x7f") },
		{ "beyond ASCII", -EPROTO, HELLO(.name = "\xc3\xa4") },
		{ "no end", -EPROTO, HELLO(.name = "0123456789abcdef0123456789abcdef") },
	};
	struct sr_hello h;

	(void)state;
	assert_int_equal(host_hello(pair[0], &h), -EAGAIN);
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		int e;

		assert_int_equal(send(pair[1], &t[i].h, sizeof(h), 0), sizeof(h));
		e = host_hello(pair[0], &h);
		if (e != t[i].is)
			fail_msg("%s: %d instead of %d", t[i].what, e, t[i].is);
	}
	assert_int_equal(send(pair[1], &h, sizeof(h) - 1, 0), sizeof(h) - 1);
	assert_int_equal(host_hello(pair[0], &h), -ECONNRESET);
	close(pair[1]);
	pair[1] = -1;
	assert_int_equal(host_hello(pair[0], &h), -ECONNRESET); /* end of file */
	assert_int_equal(host_hello(-1, &h), -ECONNRESET);
}

/* A hello with a descriptor, or with a byte too many, says all that a hello says, and is none. */
static void a_hello_carries_nothing(void **state)
{
	const struct sr_hello good = { .magic = SR_MAGIC, .version = SR_VERSION, .name = "me" };
	struct { struct sr_hello h; char more; } longer = { .h = good };
	union { char buf[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = { .buf = { 0 } };
	struct iovec iov = { (void *)(uintptr_t)&good, sizeof(good) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
	                      .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *cm = &control.align;
	struct sr_hello h;

	(void)state;
	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cm), &pair[0], sizeof(int));
	assert_int_equal(sendmsg(pair[1], &msg, 0), sizeof(good));
	assert_int_equal(host_hello(pair[0], &h), -ECONNRESET);
	assert_int_equal(send(pair[1], &longer, sizeof(good) + 1, 0), sizeof(good) + 1);
	assert_int_equal(host_hello(pair[0], &h), -ECONNRESET);
	assert_int_equal(send(pair[1], &good, sizeof(good), 0), sizeof(good));
	assert_int_equal(host_hello(pair[0], &h), 0);
}

static void sizes_are_granted(void **state)
{
	static const struct { struct sr_shape want, is; } t[] = {
		{ { 0, 0, 0, 0, 0 }, { 64, 1024, 57344 - 4096 * 1, 0, 0 } }, { { 1, 1, 1, 0, 0 }, { 32, 64, 4096, 0, 0 } },
		{ { 1, 1, 1, 1, 0 }, { 32, 64, 4096, 8, 0 } }, { { 1, 1, 1, 9, 0 }, { 32, 64, 4096, 16, 0 } },
		{ { 33, 129, 4097, 0, 0 }, { 64, 256, 8192, 0, 0 } },
		{ { ~0u, ~0u, ~0u, ~0u, 0 }, { 1024, 8192, 1u << 20, 256, 0 } },
	};
	struct host_config cfg = plain;

	(void)state;
	cfg.most = (struct sr_shape){ 1024, 8192, 1u << 20, 256, 0 };
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct sr_shape s = shape_of(&cfg, &t[i].want);

		assert_true(sr_shape_ok(&s));
		assert_int_equal(s.live, t[i].is.live);
		assert_int_equal(s.tokens, t[i].is.tokens);
		assert_int_equal(s.guides, t[i].is.guides);
		if (i)
			assert_int_equal(s.arena, t[i].is.arena);
		else                          /* by default two of the longest spans fit */
			assert_true(s.arena >= 2 * span_max(CONTEXT) && s.arena < 2 * span_max(CONTEXT) + SR_PAGE);
	}
	cfg.most.guides = 0;                  /* a daemon that does not guide */
	assert_int_equal(shape_of(&cfg, &(struct sr_shape){ .guides = 8 }).guides, 0);
}

/* ---- requests -------------------------------------------------------------------------------- */

#define SPANS(...) { .span = { __VA_ARGS__ }, .max_tokens = 2, .sampling.min_position = 4 }
#define SPAN(name, ...) { .kind = SR_SPAN_##name, __VA_ARGS__ }
static const struct { const char *what; bool good; struct sr_wire_request q; } edges[] = {
	{ "plain", true, Q() },
	{ "every flag", true, Q(.flags = 15) }, { "one more", false, Q(.flags = 16) },
	{ "reserved, first", false, Q(.zero0[0] = 1) }, { "reserved, last of the line", false, Q(.zero0[1] = 1) },
	{ "reserved, last line", false, Q(.zero[0] = 1) }, { "a second text without pooling", false, Q(.second = 1) },
	{ "reserved, last", false, Q(.zero[sizeof(((struct sr_wire_request *)0)->zero) - 1] = 1) },
	{ "a name", true, Q(.name = UINT64_MAX) },
	{ "to the context", true, { ASKS(255, 1) } },
	{ "one beyond", false, { ASKS(255, 2) } },
	{ "a prompt beyond", false, { ASKS(257, 0), .flags = SR_PROMPT_LOGPROBS } },
	{ "that wraps", false, { ASKS(4, ~0u) } },
	{ "min as max", true, { .span = { PROMPT(4) }, .max_tokens = 2, .sampling.min_position = 6 } },
	{ "min above max", false, { .span = { PROMPT(4) }, .max_tokens = 2, .sampling.min_position = 7 } },
	{ "min in the prompt", false, { .span = { PROMPT(4) }, .max_tokens = 2, .sampling.min_position = 3 } },
	{ "min below all", false, { .span = { PROMPT(4) }, .max_tokens = 2, .sampling.min_position = INT32_MIN } },
	{ "goes on", true, { .span = { PROMPT(4) }, .max_tokens = 2, .n_answer = 1, .sampling.min_position = 3 } },
	{ "after all but one id", true, { .span = { PROMPT(4) }, .max_tokens = 4, .n_answer = 3, .sampling.min_position = 1 } },
	{ "after all of it", false, { .span = { PROMPT(4) }, .max_tokens = 5, .n_answer = 4, .sampling.min_position = 0 } },
	{ "after more", false, { .span = { PROMPT(4) }, .max_tokens = ~0u, .n_answer = 5, .sampling.min_position = 4 } },
	{ "after as many as can be", false, { .span = { PROMPT(4) }, .max_tokens = ~0u, .n_answer = ~0u - 1, .sampling.min_position = 4 } },
	{ "when it is over", false, { .span = { PROMPT(4) }, .max_tokens = 2, .n_answer = 2, .sampling.min_position = 2 } },
	{ "min in the prompt and the answer", false, { .span = { PROMPT(4) }, .max_tokens = 2, .n_answer = 1, .sampling.min_position = 6 } },
	{ "to the context, gone on", true, { .span = { PROMPT(255) }, .max_tokens = 7, .n_answer = 6, .sampling.min_position = 249 } },
	{ "beyond it", false, { .span = { PROMPT(257) }, .max_tokens = 7, .n_answer = 6, .sampling.min_position = 251 } },
	{ "one beyond, gone on", false, { .span = { PROMPT(255) }, .max_tokens = 8, .n_answer = 6, .sampling.min_position = 249 } },
	{ "scored and gone on", false, { .span = { PROMPT(4) }, .max_tokens = 2, .n_answer = 1, .flags = SR_PROMPT_LOGPROBS,
	                                 .sampling.min_position = 3 } },
	{ "nothing to do", false, { ASKS(4, 0) } },
	{ "only scored", true, { ASKS(4, 0), .flags = SR_PROMPT_LOGPROBS } },
	{ "20 alternatives", true, Q(.n_top = 20) }, { "21", false, Q(.n_top = 21) },
	{ "20 of the prompt", true, Q(.n_prompt_top = 20, .flags = SR_PROMPT_LOGPROBS) },
	{ "21 of it", false, Q(.n_prompt_top = 21, .flags = SR_PROMPT_LOGPROBS) },
	{ "of the prompt, unasked", false, Q(.n_prompt_top = 1) },
	{ "a seed", true, Q(.sampling.seed = 5, .flags = SR_SEEDED) }, { "unannounced", false, Q(.sampling.seed = 5) },
	{ "hot", true, Q(.sampling.temperature = 1e6f) }, { "too hot", false, Q(.sampling.temperature = 1.1e6f) },
	{ "cold", false, Q(.sampling.temperature = -0.1f) }, { "no number", false, Q(.sampling.temperature = NAN) },
	{ "top_p 1", true, Q(.sampling.top_p = 1) }, { "above", false, Q(.sampling.top_p = 1.01f) },
	{ "below", false, Q(.sampling.top_p = -0.01f) },
	{ "min_p 1", true, Q(.sampling.min_p = 1) }, { "above", false, Q(.sampling.min_p = 1.01f) },
	{ "below", false, Q(.sampling.min_p = -0.01f) },
	{ "presence", true, Q(.sampling.presence = -2) }, { "below", false, Q(.sampling.presence = -2.1f) },
	{ "above", false, Q(.sampling.presence = 2.1f) },
	{ "frequency", true, Q(.sampling.frequency = 2) }, { "above", false, Q(.sampling.frequency = 2.1f) },
	{ "below", false, Q(.sampling.frequency = -2.1f) },
	{ "repetition", true, Q(.sampling.repetition = 1e6f) },
	{ "above", false, Q(.sampling.repetition = 1.1e6f) },
	{ "infinite", false, Q(.sampling.repetition = INFINITY) }, { "below", false, Q(.sampling.repetition = -1) },
	{ "any tag", true, Q(.user_data = ~0ull, .tenant = 7, .cache_salt = 8, .priority = INT32_MIN,
	                     .deadline = 1, .sampling.top_k = -1, .trace_id = { 1 }, .span_id = { 2 }) },
	/* Which spans a record may name; the arena has room for 1,024 words of zeros. */
	{ "no span", false, { .max_tokens = 2 } }, { "an empty prompt", false, SPANS(PROMPT(0)) },
	{ "a list alone", false, SPANS(SPAN(STOP, .n = 4)) },
	{ "a list before it", false, SPANS(SPAN(STOP, .n = 1), PROMPT(4)) },
	{ "every kind", true, SPANS(PROMPT(4), SPAN(STOP, .n = 1), SPAN(ALLOW, .n = 1), SPAN(BIAS, .n = 1)) },
	{ "some of them", true, SPANS(PROMPT(4), SPAN(BIAS, .n = 1)) },
	{ "the other way round", false, SPANS(PROMPT(4), SPAN(BIAS, .n = 1), SPAN(ALLOW, .n = 1)) },
	{ "one twice", false, SPANS(PROMPT(4), SPAN(STOP, .n = 1), SPAN(STOP, .n = 1)) },
	{ "two prompts", false, SPANS(PROMPT(4), PROMPT(4)) },
	{ "a gap", false, SPANS(PROMPT(4), { .kind = 0 }, SPAN(STOP, .n = 1)) },
	{ "a gap of some length", false, SPANS(PROMPT(4), { .n = 1 }) },
	{ "an empty list", false, SPANS(PROMPT(4), SPAN(STOP, .n = 0)) },
	{ "an unknown kind", false, SPANS(PROMPT(4), { .kind = SR_SPAN_KINDS, .n = 1 }) },
	{ "the last of all kinds", false, SPANS(PROMPT(4), { .kind = UINT16_MAX, .n = 1 }) },
	{ "reserved, in a span", false, SPANS(PROMPT(4), SPAN(STOP, .zero = 1, .n = 1)) },
	{ "in the last place", false, Q(.span[7].zero = 1) },
};

static void each_field_at_its_edges(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
		struct host_request *r;

		memset(arena(), 0, 4096);
		put(&requests, &edges[i].q);
		assert_int_equal(host_peek(c, &r), 1);
		if (r->error != (edges[i].good ? 0 : -EINVAL))
			fail_msg("%s: %d", edges[i].what, r->error);
		assert_memory_equal(&r->q.flags, &edges[i].q.flags, sizeof(r->q) - 4);
		if (!r->error)
			assert_int_equal(host_read(c), 0);
		host_leave(c);
	}
}

/* Each kind up to its most, and one more.  The arena is too small for some: the rules are asked as they are. */
static void each_list_has_a_most(void **state)
{
	static const struct { unsigned kind; uint32_t most; } t[] = { { SR_SPAN_STOP, 1024 }, { SR_SPAN_ALLOW, 1024 },
		{ SR_SPAN_BIAS, 1024 }, { SR_SPAN_BAD, 2048 } };

	(void)state;
	assert_int_equal(sizeof(t) / sizeof(t[0]), SR_SPAN_KINDS - 2);
	assert_int_equal(span_max(CONTEXT), 4 * (CONTEXT + 1024 + 1024 + 2 * 1024 + 2048));
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct sr_wire_request q = Q();

		q.span[1] = (struct sr_span){ (uint16_t)t[i].kind, 0, t[i].most };
		assert_true(request_true(&plain, 0, &q));
		q.span[1].n++;
		assert_false(request_true(&plain, 0, &q));
		q.span[1].n = ~0u;
		assert_false(request_true(&plain, 0, &q));
	}
}

/* What lies in the arena: prompt, stops, allowed ids, bias, bad words. */
static void each_list_at_its_edges(void **state)
{
#define LIST(...) { .span = { PROMPT(1), __VA_ARGS__ }, .max_tokens = 1, .sampling.min_position = 1 }
	static const struct { const char *what; bool good; struct sr_wire_request q; int32_t w[12]; } t[] = {
		{ "all of them", true, LIST(SPAN(STOP, .n = 1), SPAN(ALLOW, .n = 2), SPAN(BIAS, .n = 1), SPAN(BAD, .n = 5)),
			{ 1, 2, 3, 4, 999, 0x3f800000, 2, 5, 6, 1, 7 } },
		{ "an id of the prompt", false, { ASKS(2, 1) }, { 0, 1000 } },
		{ "below all", false, { ASKS(2, 1) }, { -1, 0 } },
		{ "the last stop", false, LIST(SPAN(STOP, .n = 2)), { 1, 2, 1000 } },
		{ "a stop below all", false, LIST(SPAN(STOP, .n = 2)), { 1, -1, 2 } },
		{ "the last allowed", false, LIST(SPAN(ALLOW, .n = 2)), { 1, 2, 1000 } },
		{ "a word of none", false, LIST(SPAN(BAD, .n = 1)), { 1, 0 } },
		{ "a word beyond", false, LIST(SPAN(BAD, .n = 2)), { 1, 2, 1 } },
		{ "a word below 0", false, LIST(SPAN(BAD, .n = 2)), { 1, -1, 1 } },
		{ "no id in a word", false, LIST(SPAN(BAD, .n = 2)), { 1, 1, 1000 } },
		{ "bias of no id", false, LIST(SPAN(BIAS, .n = 1)), { 1, 1000, 0 } },
		{ "bias without end", false, LIST(SPAN(BIAS, .n = 1)), { 1, 1, 0x7f800000 } },
		{ "bias too low", false, LIST(SPAN(BIAS, .n = 1)), { 1, 1, -0x800000 } },
		{ "the last bias", false, LIST(SPAN(BIAS, .n = 2)), { 1, 1, 0, 1000, 0 } },
		{ "beyond the arena", false, { ASKS(1, 1), .at = 4096 }, { 0 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct host_request *r;
		int e;

		memcpy(arena(), t[i].w, sizeof(t[i].w));
		put(&requests, &t[i].q);
		assert_int_equal(host_peek(c, &r), 1);
		assert_int_equal(r->error, t[i].q.at ? -EINVAL : 0);
		e = r->error ? r->error : host_read(c);
		if (e != (t[i].good ? 0 : -EINVAL) || r->error != e)
			fail_msg("%s: %d", t[i].what, e);
		for (uint32_t k = 0, at = 0; !e && k < SR_SPANS && t[i].q.span[k].kind; k++) {
			const struct host_list *l = &r->list[t[i].q.span[k].kind];

			assert_int_equal(4 * l->n, sr_span_bytes(&t[i].q.span[k]));
			assert_memory_equal(l->word, t[i].w + at, 4 * l->n);
			at += l->n;
		}
		host_leave(c);
	}
}

static void cancels_at_their_edges(void **state)
{
	static const struct { const char *what; int is; struct sr_wire_cancel w; } t[] = {
		{ "under way", 1, { .op = SR_OP_CANCEL, .ticket = 0 } },
		{ "held: not yet", 2, { .op = SR_OP_CANCEL, .ticket = 1 } },
		{ "yet to come", 2, { .op = SR_OP_CANCEL, .ticket = 32 } },
		{ "long ago", 1, { .op = SR_OP_CANCEL, .ticket = 33 } },
		{ "a ping", 2, { .op = SR_OP_PING, .nonce = 99 } },
		{ "a ping with a ticket", -EPROTO, { .op = SR_OP_PING, .ticket = 1 } },
		{ "a cancel with a nonce", -EPROTO, { .op = SR_OP_CANCEL, .nonce = 1 } },
		{ "neither", -EPROTO, { .op = 3 } }, { "reserved", -EPROTO, { .op = SR_OP_PING, .zero0 = 1 } },
		{ "reserved, last", -EPROTO, { .op = SR_OP_PING, .zero[39] = 1 } },
	};
	struct sr_wire_request q = Q();
	struct host_request *r;
	uint32_t ticket;

	(void)state;
	for (int i = 0; i < 2; i++)
		put(&requests, &q);
	assert_int_equal(host_peek(c, &r), 1);
	host_leave(c);                      /* 0 is under way, 1 is held, 2 is not here yet */
	assert_int_equal(host_peek(c, &r), 1);
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		int e;

		put(&cancels, &t[i].w);
		ticket = 12345;
		e = host_cancel(c, &ticket);
		if (e != t[i].is || ticket != (e == 1 ? t[i].w.ticket : 12345))
			fail_msg("%s: %d, ticket %u", t[i].what, e, ticket);
	}
	assert_int_equal(((struct sr_down *)(void *)c->down.at)->pong, 99);
	assert_int_equal(host_peek(c, &r), 1);
	assert_true(r->cancelled);            /* the one that was held */
	host_leave(c);
}

/* ---- memory that goes away ------------------------------------------------------------------- */

/* `page` of up is taken away at the first touch, as if huge pages had run out between two loads. */
static unsigned char *vanishing;

static void vanish(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	if ((uintptr_t)info->si_addr - (uintptr_t)vanishing >= SR_PAGE)
		abort();
	mprotect(vanishing, SR_PAGE, PROT_READ);
	c->poisoned = 1;
}

static void a_fault_under_a_copy_is_noticed(void **state)
{
	struct sigaction sa = { .sa_sigaction = vanish, .sa_flags = SA_SIGINFO }, before;
	struct sr_wire_cancel ping = { .op = SR_OP_PING };
	struct sr_wire_request q = Q();
	struct host_request *r;
	uint32_t ticket;

	(void)state;
	sigaction(SIGSEGV, &sa, &before);
	for (int where = 0; where < 3; where++) {
		size_t off = where == 0 ? SR_PAGE : where == 1 ? SR_OFF_CANCELS(32) : SR_OFF_ARENA(32);

		put(&requests, &q);
		put(&cancels, &ping);
		vanishing = c->up.at + off / SR_PAGE * SR_PAGE;
		if (where == 2)
			assert_int_equal(host_peek(c, &r), 1);
		assert_int_equal(mprotect(vanishing, SR_PAGE, PROT_NONE), 0);
		if (where == 0)
			assert_int_equal(host_peek(c, &r), -EFAULT);
		else if (where == 1)
			assert_int_equal(host_cancel(c, &ticket), -EFAULT);
		else
			assert_int_equal(host_read(c), -EFAULT);
		/* and from then on */
		assert_int_equal(host_peek(c, &r), -EFAULT);
		assert_int_equal(host_cancel(c, &ticket), -EFAULT);
		assert_true(host_ready(c, 0));
		c->poisoned = 0;
	}
	sigaction(SIGSEGV, &before, NULL);
	host_leave(c);
}

static void faults_elsewhere_are_not_ours(void **state)
{
	struct sigaction now, ours = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };
	siginfo_t info = { .si_signo = SIGBUS };

	(void)state;
	sigaction(SIGBUS, &ours, NULL);
	info.si_addr = &info;                 /* in no guarded range: the old handler is restored */
	on_sigbus(SIGBUS, &info, NULL);
	sigaction(SIGBUS, NULL, &now);
	assert_true(now.sa_sigaction != on_sigbus);
	assert_int_equal(c->poisoned, 0);

	sigaction(SIGBUS, &ours, NULL);       /* in a guarded range, but mmap fails */
	info.si_addr = c->up.at + 5;
	fail_next("mmap", 1, ENOMEM);
	on_sigbus(SIGBUS, &info, NULL);
	sigaction(SIGBUS, NULL, &now);
	assert_true(now.sa_sigaction != on_sigbus);

	for (int i = 0; i < 4; i++) {         /* in either of both objects, from its first byte to its last */
		const struct object *o = i < 2 ? &c->up : &c->down;

		info.si_addr = o->at + (i % 2 ? o->len - 1 : 0);
		errno = 5;
		c->poisoned = 0;
		on_sigbus(SIGBUS, &info, NULL);
		assert_int_equal(c->poisoned, 1);
		assert_int_equal(errno, 5);
		assert_int_equal(o->at[SR_PAGE], 0);
	}
}

/* ---- tokens, sleep and wake ------------------------------------------------------------------ */

static void room_is_promised_once(void **state)
{
	struct sr_up *words = (void *)up;
	struct sr_end end = { .finish = SR_STOP };
	const struct sr_record *r;

	(void)state;
	assert_int_equal(host_reserve(c, 1, 100), 64);
	assert_int_equal(host_reserve(c, 1, 1), 0);
	assert_false(host_room(c, 1));
	host_release(c, 60);
	assert_int_equal(host_reserve(c, 61, 70), 0);
	assert_int_equal(host_reserve(c, 10, 20), 20);
	host_end(c, 1, &end, 70000, 0, 0);        /* more than its field holds */
	r = (void *)(c->down.at + SR_PAGE);
	assert_int_equal(r->preempted, UINT16_MAX);
	host_end(c, 1, &end, 3, 0, 0);
	assert_int_equal((r + 1)->preempted, 3);
	assert_int_equal(host_left(c), 0);
	atomic_store(&words->tokens.head, 3); /* past what was put: a client that lies gets no room */
	assert_int_equal(host_reserve(c, 1, 60), 0);
	assert_int_equal(host_peek(c, &(struct host_request *){ NULL }), -EPROTO);
	assert_true(host_ready(c, 0));
}

/* A token and its alternatives, in as many records as they need; what is not used is 0, whatever lay there. */
static void tokens_as_they_lie(void **state)
{
	static const struct { uint32_t n_top, records; } t[] = { { 0, 1 }, { 1, 1 }, { 4, 1 }, { 5, 2 }, { 10, 2 }, { 11, 3 },
		{ 20, 4 } };
	struct sr_pair top[SR_TOP_MAX];
	struct host_token token = { .user_data = 7, .kind = SR_PROMPT, .id = 5, .index = 3, .rank = 2, .logprob = -1,
		.last = SR_LENGTH, .top = top };
	const struct sr_record *r = (void *)(c->down.at + SR_PAGE);
	uint32_t at = 0;

	(void)state;
	memset(c->down.at + SR_PAGE, 0xee, 64 * sizeof(*r));
	for (int k = 0; k < SR_TOP_MAX; k++)
		top[k] = (struct sr_pair){ 100 + k, (float)-k };
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		token.n_top = t[i].n_top;
		assert_int_equal(host_reserve(c, t[i].records, t[i].records), t[i].records);
		assert_int_equal(host_token(c, &token), t[i].records);
		assert_int_equal(c->tokens.reserved, 0);
		for (uint32_t k = 0, n = 0; k < t[i].records; k++, at++) {
			uint32_t here = k ? SR_TOP_PER : SR_TOP_HERE, left = t[i].n_top - n;
			struct sr_record want = { .seq = sr_ring_seq(at), .kind = k ? SR_TOP : SR_PROMPT, .user_data = 7,
				.n_top = (uint8_t)(k && left > here ? here : left) };

			if (!k) {
				want.last = SR_LENGTH;
				want.u.token.id = 5;
				want.u.token.index = 3;
				want.u.token.rank = 2;
				want.u.token.logprob = -1;
			}
			for (uint32_t j = 0; j < here && n < t[i].n_top; j++, n++)
				(k ? want.u.top : want.u.token.top)[j] = top[n];
			assert_memory_equal(&r[at], &want, sizeof(want));
		}
	}
}

static void what_is_worth_waking_for(void **state)
{
	struct sr_wire_cancel ping = { .op = SR_OP_PING };
	struct sr_wire_request q = Q();
	struct host_request *r;
	struct sr_up *words = (void *)up;
	uint32_t ticket;

	(void)state;
	assert_false(host_ready(c, 0));
	assert_true(host_ready(c, 64));     /* room for so many */
	assert_int_equal(host_reserve(c, 64, 64), 64);
	assert_false(host_ready(c, 1));
	host_arm(c, 1);
	assert_int_equal(words->tokens.head, 0);
	put(&cancels, &ping);
	assert_true(host_ready(c, 1));
	assert_int_equal(host_cancel(c, &ticket), 2);
	put(&requests, &q);
	assert_true(host_ready(c, 1));
	assert_int_equal(host_peek(c, &r), 1); /* held: waiting for room, not for requests */
	put(&requests, &q);
	host_arm(c, 1);
	assert_false(host_ready(c, 1));
	host_leave(c);
	assert_true(host_ready(c, 1));
	host_end(c, 1, &(struct sr_end){ 0 }, 0, 0, 0);
	atomic_store(&words->tokens.head, 70);
	assert_true(host_ready(c, 1));      /* a wild head: the client must be looked at */
}

static void signals_never_block(void **state)
{
	int n = 0;

	(void)state;
	while (send(pair[0], "", 1, MSG_DONTWAIT) == 1)
		assert_true(++n < 1000000);
	assert_int_equal(sr_signal(pair[0]), 0); /* full: a byte is unread */
	assert_int_equal(host_drain(c, 64), 0); /* those are the peer's */
	assert_int_equal(send(pair[1], "", 1, 0) + send(pair[1], "", 1, 0), 2);
	assert_int_equal(host_drain(c, 1), 1);
	assert_int_equal(host_drain(c, 64), 1);
	close(pair[1]);
	pair[1] = -1;
	assert_true(sr_signal(pair[0]) < 0);
	assert_int_equal(host_drain(c, 64), -ECONNRESET);
	atomic_store(&((struct sr_up *)(void *)up)->tokens.wake_at, c->tokens.mine);
	assert_int_equal(host_reserve(c, 1, 1), 1);
	host_end(c, 1, &(struct sr_end){ 0 }, 0, 0, 0);
	assert_int_equal(host_wake(c), -EPIPE);
	assert_int_equal(host_wake(c), 0);  /* asked once */
}

/* 64 MiB of memory leaves in pieces, none longer than a part of the whole; the descriptors are ours to close. */
static void large_memory_leaves_in_pieces(void **state)
{
	struct host_config cfg = plain;
	struct sr_hello large = hello;
	struct host_conn *big;
	struct host *h;
	uint64_t all = 0, longest = 0;
	int calls = 0, more = 1, fd[2];
	struct stat st;

	(void)state;
	cfg.most.arena = large.want.arena = 64 << 20;
	assert_int_equal(host_create(&h, &cfg), 0);
	assert_int_equal(opens(&big, h, pair[0], &large, false), 0);
	for (; more; calls++) {
		uint64_t took = own_cpu_ns();

		more = host_unmap(big);
		took = own_cpu_ns() - took;
		all += took;
		longest = took > longest ? took : longest;
	}
	assert_true(calls >= 8);
	assert_true(longest < all / 2);
	host_detach(big, false, fd);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(fstat(fd[i], &st), 0);
		assert_true(st.st_size > 0);
		close(fd[i]);
	}
	host_destroy(h);
}


int main(void)
{
#define CASE(f)  cmocka_unit_test_setup_teardown(f, setup, all_used)
#define OPENED(f) cmocka_unit_test_setup_teardown(f, connected, parted_all_used)
	const struct CMUnitTest tests[] = {
		CASE(wrong_configurations), CASE(large_memory_leaves_in_pieces),
		CASE(no_memory_no_host),
		CASE(kernels_that_lack_something),
		CASE(no_memory_for_guides),
		CASE(without_huge_pages_small_ones_do),
		CASE(what_it_writes_is_sealed),
		CASE(the_table_of_ranges_is_full),
		CASE(a_peer_that_left_before_the_welcome),
		CASE(hellos),
		CASE(a_hello_carries_nothing),
		CASE(sizes_are_granted),
		OPENED(others_stay_guarded),
		OPENED(each_field_at_its_edges),
		OPENED(each_list_at_its_edges), CASE(each_list_has_a_most),
		OPENED(cancels_at_their_edges),
		OPENED(a_fault_under_a_copy_is_noticed),
		OPENED(faults_elsewhere_are_not_ours),
		OPENED(room_is_promised_once),
		OPENED(tokens_as_they_lie),
		OPENED(what_is_worth_waking_for),
		OPENED(signals_never_block),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
