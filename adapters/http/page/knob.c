/* knob.c - POST /ui/knob turns a knob of the daemon, as slipring set does: one message to its control socket,
 * one answer.  The daemon decides whether this process may; the page's rights are checked before. */
#include "page.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "adapters/http/state.h"
#include "core/instance/knobs.h"
#include "core/instance/log.h"

#define ANSWER_NS 5000000000ull               /* the daemon reads between layers, every few ms */
#define CALLS_MAX 8                           /* at one time */

struct knob_call {
	struct api *api;
	struct exchange *x;                   /* NULL: the client is gone */
	struct io_watch socket;
	struct io_timer timer;
	enum knob knob;
};

static int calls;                             /* under way in this process; belongs to the loop's thread */

static void refuse_all(struct exchange *x, int status, const char *type, const char *why)
{
	struct problem p;

	problem_set(&p, status, type, NULL, "%s", why);
	api_problem(x, &p);
}

/* End the call.  why NULL: it succeeded. */
static void call_end(struct knob_call *c, const struct control_answer *a, int status, const char *why)
{
	char was[32], now[32];
	struct out o = { 0 };

	if (c->x && why) {
		refuse_all(c->x, status, status == 403 ? "PermissionDeniedError" : "BadRequestError", why);
	} else if (c->x) {
		knob_format(c->knob, a->was, was, sizeof(was));
		knob_format(c->knob, a->now, now, sizeof(now));
		log_info("%s: %s -> %s, by the page on %s", knob_info(c->knob)->name, was, now, exchange_peer(c->x));
		out_fmt(&o, "{\"knob\":\"%s\",\"was\":\"%s\",\"now\":\"%s\"}", knob_info(c->knob)->name, was, now);
		exchange_reply(c->x, 200, JSON_TYPE, asked_lines(c->x), o.p, o.n);
		out_free(&o);
	}
	io_timer_del(c->api->io, &c->timer);
	io_watch_del(c->api->io, &c->socket);
	close(c->socket.fd);
	free(c);
	calls--;
}

static void on_answer(struct io_watch *w, uint32_t events)
{
	struct knob_call *c = w->ctx;
	struct control_answer a;
	ssize_t n = recv(w->fd, &a, sizeof(a), MSG_DONTWAIT);

	(void)events;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n != (ssize_t)sizeof(a) || a.magic != CONTROL_MAGIC || a.version != CONTROL_VERSION) {
		call_end(c, NULL, 502, "The daemon's answer is not understood. It is of another version, or ended.");
		return;
	}
	a.say[sizeof(a.say) - 1] = 0;
	call_end(c, &a, a.result == -EPERM ? 403 : 400, a.result < 0 ? a.say : NULL);
}

static void on_late(struct io_timer *t)
{
	call_end(t->ctx, NULL, 504, "The daemon does not answer within 5 s; its log may say why.");
}

static void on_gone(void *owner) { ((struct knob_call *)owner)->x = NULL; }

/* A descriptor on which the daemon will answer, or -errno. */
static int send_ask(const char *run_dir, enum knob k, int64_t value)
{
	struct control_ask q = { .magic = CONTROL_MAGIC, .version = CONTROL_VERSION, .knob = (uint32_t)k,
	                         .value = value };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd, e;

	if ((size_t)snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s/%s", run_dir, CONTROL_FILE) >=
	    sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* EPIPE: it refused us, and its answer says why. */
	if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0 &&
	    (send(fd, &q, sizeof(q), MSG_NOSIGNAL) == (ssize_t)sizeof(q) || errno == EPIPE))
		return fd;
	e = -errno;
	if (fd >= 0)
		close(fd);
	return e;
}

/* The knob and value of {"knob": "max-num-seqs", "value": "64"}.  0, or refused: *p says why. */
static int read_ask(const struct http_request *r, enum knob *k, int64_t *value, int *replica,
                    struct problem *p)
{
	const char *name, *text;
	char err[256];
	json_t *j = NULL;
	int found = -1;

	if (ask_json(&j, r->body.s, r->body.n, p) < 0)
		return -1;
	name = json_string_value(json_object_get(j, "knob"));
	text = json_string_value(json_object_get(j, "value"));
	*replica = (int)json_integer_value(json_object_get(j, "replica"));
	if (name)
		found = knob_find(name);
	if (!name || !text || found < 0)
		problem_bad(p, "knob", "\"knob\" must name a knob and \"value\" be a string; GET /ui/live has them.");
	else if (knob_parse((enum knob)found, text, value, err, sizeof(err)) < 0)
		problem_bad(p, "value", "%s", err);
	json_decref(j);
	if (p->status)
		return -1;
	*k = (enum knob)found;
	return 0;
}

void knob_post(struct api *a, struct exchange *x)
{
	struct problem p = { 0 };
	struct knob_call *c;
	int64_t value = 0;
	enum knob k = 0;
	int fd, replica = 0;

	if (!(page_rights(a, x) & PAGE_TURNS_KNOBS)) {
		refuse_all(x, 403, "PermissionDeniedError", auth_needed(a->auth) ?
		           "Only a key that --api-key-file marks operator may turn knobs." :
		           "This adapter turns no knobs: --ui-knobs allows it to browsers on this machine.");
		return;
	}
	if (read_ask(exchange_request(x), &k, &value, &replica, &p) < 0) {
		api_problem(x, &p);
		return;
	}
	if (!live_replica(a->live, replica) || calls >= CALLS_MAX) {
		refuse_all(x, calls >= CALLS_MAX ? 503 : 400, "BadRequestError", calls >= CALLS_MAX ?
		           "Too many knobs are being turned." : "\"replica\" names no daemon.");
		return;
	}
	fd = send_ask(live_replica(a->live, replica)->run_dir, k, value);
	c = fd < 0 ? NULL : calloc(1, sizeof(*c));
	if (!c) {
		if (fd >= 0)
			close(fd);
		refuse_all(x, 503, "ServiceUnavailableError", "The daemon cannot be asked: it is away.");
		return;
	}
	*c = (struct knob_call){ .api = a, .x = x, .knob = k,
		.socket = { .fd = fd, .events = IO_IN | IO_HUP, .fn = on_answer, .ctx = c },
		.timer = { .fn = on_late, .ctx = c } };
	calls++;
	asked_by(x, on_gone, c);
	io_timer_set(a->io, &c->timer, io_now() + ANSWER_NS);
	if (io_watch_add(a->io, &c->socket) < 0)
		call_end(c, NULL, 503, "The daemon cannot be asked: there is no memory.");
}
