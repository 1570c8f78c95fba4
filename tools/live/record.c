/* record.c - slipring record: writes the daemon's requests as a trace that can be replayed.
 *
 * The daemon puts entries into shared memory (core/instance/record.h) and does not wait.  This process reads
 * them every 0.1 s.  It writes a temporary file beside the wanted one and renames it at the end, however the
 * recording ends.  So there is never half a trace.
 */
#include "record_trace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tools/commands.h"
#include "core/instance/fresh.h"
#include "core/instance/knobs.h"
#include "core/instance/refuse.h"
#include "core/figures/figures.h"
#include "tools/instance.h"
#include "tools/session.h"
#include "shmring/clock.h"

#define LOOK_MS   100
#define TIMEOUT_S 5

static volatile sig_atomic_t interrupted;

static void record_interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
}

struct record_options {
	const char *instance, *socket, *model, *file;
	double seconds;
	struct trace_limits limits;
	bool texts, force;
};

static int record_usage(FILE *to)
{
	fprintf(to, "slipring record [--instance NAME] [--for TIME] [--texts] FILE\n"
	        "\n"
	        "Writes the daemon's requests as a trace, a line for each: when it came, how long\n"
	        "prompt and answer were, and a number for each %d tokens of the prompt, equal\n"
	        "for equal beginnings.  It holds no text and no token.  Replay it, or tune by it:\n"
	        "\n"
	        "  slipring bench serve --dataset-name timed_trace --dataset-path FILE\n"
	        "  slipring tune --dataset-name timed_trace --dataset-path FILE\n"
	        "\n"
	        "  --for TIME         90s, 10m, 2h (default: 10m); Ctrl-C ends it earlier\n"
	        "  --max-requests N   end after N requests (default: 100000)\n"
	        "  --max-size SIZE    end at this size of the file: 64M, 1G (default: 256M)\n"
	        "  --texts            record prompts, too; only the daemon's own user and root may; keep the\n"
	        "                     file as secret as the prompts\n"
	        "  --model MODEL      for --texts: the model, if its tokenizer is not found automatically\n"
	        "  --force            replace FILE\n"
	        "  --instance NAME    which daemon (default: \"default\")\n"
	        "\n"
	        "The daemon's own user, root and members of its --operator-group may record, one at a time.\n",
	        RECORD_CHUNK);
	return to == stdout ? 0 : 2;
}

/* ---- asking for it ----------------------------------------------------------------------------- */

static int answered(int sock, int *memory, char *err, size_t errlen)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct control_answer a;
	struct iovec iov = { &a, sizeof(a) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
	                    .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;

	if (h && h->cmsg_type == SCM_RIGHTS && h->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(memory, CMSG_DATA(h), sizeof(int));
	if (n != (ssize_t)sizeof(a) || a.magic != CONTROL_MAGIC || a.version != CONTROL_VERSION)
		return refuse(-EPROTO, err, errlen,
		              n < 0 ? "the daemon does not answer within %d s" :
		              "this version does not understand the daemon's answer; use the slipring of its version",
		              TIMEOUT_S);
	a.say[sizeof(a.say) - 1] = 0;
	snprintf(err, errlen, "%s", a.say);
	if (a.result == -EINVAL)
		snprintf(err, errlen, "this daemon cannot record: it is of another version");
	if (a.result == 0 && *memory < 0)
		snprintf(err, errlen, "the daemon gave no memory to read from; try again");
	return a.result ? a.result : *memory < 0 ? -EPROTO : 0;
}

/* Returns the connection that keeps the recording alive, or -errno and a sentence.  *memory: the descriptor
 * of the entries. */
static int record_begin(const struct instance *in, bool texts, int *memory, char *err, size_t errlen)
{
	struct control_ask q = { CONTROL_MAGIC, CONTROL_VERSION, CONTROL_RECORD, 0, texts ? RECORD_IDS : 0 };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = TIMEOUT_S };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), e;

	*memory = -1;
	if (strlen(in->dir) > 90) {
		snprintf(err, errlen, "%s: the path is too long for a socket", in->dir);
		e = -ENAMETOOLONG;
	} else {
		snprintf(addr.sun_path, sizeof(addr.sun_path), "%.90s/%s", in->dir, CONTROL_FILE);
		e = fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
		if (e)
			snprintf(err, errlen, "%s: %s", addr.sun_path, strerror(-e));
	}
	if (!e) {
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
		send(fd, &q, sizeof(q), MSG_NOSIGNAL); /* if it refused us, its answer says why */
		e = answered(fd, memory, err, errlen);
	}
	if (!e)
		return fd;
	if (*memory >= 0)
		close(*memory);
	if (fd >= 0)
		close(fd);
	return e;
}

/* ---- recording --------------------------------------------------------------------------------- */

/* Record until the time is over, a limit is reached, a signal comes or the daemon ends.  0 or -errno. */
static int record(struct tape *tape, struct trace *trace, int conn, const struct record_options *o,
                  const char **why)
{
	double end = (double)sr_now() / 1e9 + o->seconds;
	struct pollfd gone = { .fd = conn, .events = POLLIN };
	const struct record_entry *e;
	bool last = false;
	int rc = 0;

	*why = NULL;
	while (rc == 0 && !last) {
		last = true;
		if (interrupted)
			*why = "interrupted";
		else if ((double)sr_now() / 1e9 >= end)
			*why = "the time is over";
		else if (poll(&gone, 1, LOOK_MS) > 0)
			*why = "the daemon is gone";
		else
			last = false;
		while (rc == 0 && (e = tape_next(tape)))
			rc = trace_take(trace, e);
	}
	if (rc > 0)
		*why = "it reached --max-requests or --max-size";
	return rc < 0 ? rc : 0;
}

static void tell(const struct record_options *o, const struct trace_count *c, uint64_t lost, const char *why)
{
	printf("%s: %llu requests in %.1f s, %llu prompt and %llu generated tokens; %.1f %% of the prompts' "
	       "chunks had been seen before (%s)\n", o->file, (unsigned long long)c->requests, c->seconds,
	       (unsigned long long)c->prompt, (unsigned long long)c->generated,
	       c->chunks ? 100.0 * (double)c->repeated / (double)c->chunks : 0, why);
	if (c->open)
		printf("left out: %llu requests still running, whose lengths are not known\n",
		       (unsigned long long)c->open);
	if (c->empty)
		printf("left out: %llu requests that ended without a token\n", (unsigned long long)c->empty);
	if (c->no_prompt)
		printf("left out: %llu requests with prompts too long to record\n", (unsigned long long)c->no_prompt);
	if (lost)
		printf("lost: %llu entries, because this program was too late to read them\n",
		       (unsigned long long)lost);
	printf("replay: slipring bench serve --dataset-name timed_trace --dataset-path %s --num-prompts %llu\n",
	       o->file, (unsigned long long)c->requests);
}

/* Record into a temporary file, and rename it to the wanted name. */
static int to_file(const struct record_options *o, const struct instance *in, const struct sr_text *text,
                   char *err, size_t errlen)
{
	struct trace_count count = { 0 };
	struct trace *trace = NULL;
	struct fresh w;
	const char *why = "";
	struct tape tape;
	int memory, conn, rc = fresh_open(&w, AT_FDCWD, o->file, 0600);
	uint64_t lost;

	if (rc < 0)
		return refuse(rc, err, errlen, "%s cannot be written: %s", o->file, strerror(-rc));
	conn = record_begin(in, o->texts, &memory, err, errlen);
	if (conn < 0) {
		fresh_drop(&w);
		return conn;
	}
	rc = tape_open(&tape, memory);
	close(memory);
	if (!rc)
		rc = trace_create(&trace, w.f, text, tape.page->start_ns, &o->limits);
	if (!rc) {
		fprintf(stderr, "slipring record: recording %s (%s) for %.0f s; Ctrl-C ends it\n", in->name,
		        in->page->model, o->seconds);
		rc = record(&tape, trace, conn, o, &why);
	}
	close(conn);
	if (!rc)
		rc = trace_finish(trace, &count);
	lost = tape.lost;
	trace_free(trace);
	tape_close(&tape);
	if (!rc && !count.requests) {
		snprintf(err, errlen, "nothing was recorded: no request came and ended (%s)", why);
		fresh_drop(&w);
		return -ENODATA;
	}
	if (!rc)
		rc = fresh_done(&w);
	fresh_drop(&w);
	if (rc)
		return refuse(rc, err, errlen, "%s: %s", o->file,
		              rc == -EPROTO ? "the daemon's memory is of another version" : strerror(-rc));
	tell(o, &count, lost, why);
	return 0;
}

/* ---- the command ------------------------------------------------------------------------------- */

/* The number that "64M", "100k" or "100" stands for; NAN for anything else. */
static double size_of(const char *text)
{
	static const struct { const char *unit; double bytes; } units[] = { { "", 1 }, { "k", 1e3 },
		{ "M", 1048576 }, { "G", 1073741824 } };
	char *end;
	double v = strtod(text, &end);

	for (size_t i = 0; end != text && v > 0 && i < sizeof(units) / sizeof(units[0]); i++)
		if (!strcmp(end, units[i].unit))
			return v * units[i].bytes;
	return NAN;
}

/* A whole number; NAN for anything else. */
static double count_of(const char *text)
{
	size_t digits = strspn(text, "0123456789");

	return digits && !text[digits] ? strtod(text, NULL) : NAN;
}

static int take_options(struct record_options *o, int argc, char **argv, char *err, size_t errlen)
{
	const char *a = argv[1];
	struct stat st;

	for (int i = 1; i < argc; i++) {
		const char *v = i + 1 < argc ? argv[i + 1] : NULL;
		const char **text = !strcmp(argv[i], "--instance") ? &o->instance : !strcmp(argv[i], "--model") ?
		                    &o->model : !strcmp(argv[i], "--socket") ? &o->socket : NULL;
		uint64_t *limit = NULL;
		double n = 1;

		a = argv[i];
		if (!strcmp(a, "--texts"))
			o->texts = true;
		else if (!strcmp(a, "--force"))
			o->force = true;
		else if (text && v)
			*text = argv[++i];
		else if (!strcmp(a, "--for") && v)
			n = o->seconds = figures_time(argv[++i]);
		else if (!strcmp(a, "--max-size") && v)
			n = size_of(argv[++i]), limit = &o->limits.bytes;
		else if (!strcmp(a, "--max-requests") && v)
			n = count_of(argv[++i]), limit = &o->limits.requests;
		else if (a[0] != '-' && !o->file)
			o->file = a;
		else
			return refuse(-EINVAL, err, errlen, "unknown flag %s, or its value is missing; see slipring "
			              "record --help", a);
		if (!(n >= 1 && n < 1e15))
			return refuse(-EINVAL, err, errlen, "%s %s: not a number for this flag; times are 90s, 10m or "
			              "2h, sizes 64M or 1G, requests a whole number", a, v);
		if (limit)
			*limit = (uint64_t)n;
	}
	if (!o->file)
		return refuse(-EINVAL, err, errlen, "FILE is missing; see slipring record --help");
	if (stat(o->file, &st) == 0 && S_ISDIR(st.st_mode))
		return refuse(-EISDIR, err, errlen, "%s is a directory: name a file in it", o->file);
	if (!o->force && access(o->file, F_OK) == 0)
		return refuse(-EEXIST, err, errlen, "%s exists; --force replaces it", o->file);
	return 0;
}

int cmd_record(int argc, char **argv)
{
	struct record_options o = { .seconds = 600, .limits = { 100000, 256u << 20 } };
	struct sigaction on = { .sa_handler = record_interrupt };
	struct session session = { .conn = NULL };
	struct instance in;
	char err[700] = "";
	int rc;

	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return record_usage(stdout);
	if (argc < 2)
		return record_usage(stderr);
	rc = take_options(&o, argc, argv, err, sizeof(err));
	if (rc) {
		fprintf(stderr, "slipring record: %s\n", err);
		return 2;
	}
	if (instance_open(&in, "record", o.instance) < 0)
		return 1;
	sigaction(SIGINT, &on, NULL);
	sigaction(SIGTERM, &on, NULL);
	sigaction(SIGHUP, &on, NULL);
	if (o.texts)
		rc = session_open(&session, &(struct session_options){ .instance = o.instance, .model = o.model,
		                  .socket = o.socket }, err, sizeof(err));
	if (!rc)
		rc = to_file(&o, &in, session.text, err, sizeof(err));
	if (rc)
		fprintf(stderr, "slipring record: %s\n", err);
	session_close(&session);
	instance_close(&in);
	return rc ? 1 : 0;
}
