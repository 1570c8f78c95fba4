/* LINK: SLIPRING_HTTP -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=strndup,--wrap=mmap,--wrap=open,--wrap=fopen,--wrap=opendir,--wrap=read,--wrap=fread,--wrap=fstat,--wrap=stat,--wrap=lstat,--wrap=socket,--wrap=bind,--wrap=listen,--wrap=accept4,--wrap=connect,--wrap=send,--wrap=sendmsg,--wrap=recv,--wrap=recvmsg,--wrap=getsockname,--wrap=getsockopt,--wrap=eventfd,--wrap=signalfd,--wrap=getrandom,--wrap=epoll_create1,--wrap=epoll_ctl,--wrap=io_uring_queue_init_params,--wrap=io_uring_submit,--wrap=io_uring_submit_and_wait_timeout,--wrap=pthread_create,--wrap=SSL_CTX_new,--wrap=SSL_CTX_use_certificate_chain_file,--wrap=SSL_CTX_use_PrivateKey_file,--wrap=SSL_new,--wrap=BIO_new,--wrap=pcre2_compile_8,--wrap=pcre2_match_data_create_8,--wrap=pcre2_match_context_create_8,--wrap=notify_sendf */
/* test_http_faults.c - test_faults.c for the adapter: every allocation, mapping, open,
 * read, socket call, call of epoll and io_uring, thread and TLS object of ours fails once, in turn: while
 * it starts, while it serves, while it serves by TLS.  The whole of slipring-http in a child; beside it
 * build/slipringd on the null device.
 *
 * A start that is hit ends with exit code 1 or 2 and one sentence why, or goes on where it can do without.
 * While it serves, a request that is hit gets an answer of 5xx or a closed connection, whoever goes away
 * harms nobody, the next request is served, and in the end no descriptor and (in a build with
 * AddressSanitizer) no memory is left.  Nobody crashes or hangs.  Calls inside libraries are not ours: jansson
 * asserts that it has memory.
 *
 *	SLIPRING_FAULTS=1    each of them; otherwise of the many that are alike only some
 */
#include <dirent.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/un.h>

int slipring_http_main(int argc, char **argv);
#define main slipring_http_main
#include "adapters/http/main.c"
#undef main

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "shmring/slipring.h"
#include "tests/one_fault.h"

WRAP(MEMORY, ENOMEM, NULL, char *, strdup, (const char *s), (s))
WRAP(MEMORY, ENOMEM, NULL, char *, strndup, (const char *s, size_t n), (s, n))
WRAP(MEMORY, ENOMEM, NULL, pcre2_match_data *, pcre2_match_data_create_8, (uint32_t n,
     pcre2_general_context *c), (n, c))
WRAP(MEMORY, ENOMEM, NULL, pcre2_match_context *, pcre2_match_context_create_8, (pcre2_general_context *c), (c))
WRAP(OPEN, EMFILE, NULL, DIR *, opendir, (const char *path), (path))
WRAP(OPEN, EMFILE, -1, int, signalfd, (int fd, const sigset_t *m, int flags), (fd, m, flags))
WRAP(READ, EIO, 0, size_t, fread, (void *to, size_t size, size_t n, FILE *f), (to, size, n, f))
WRAP(READ, EIO, -1, int, stat, (const char *path, struct stat *st), (path, st))
WRAP(READ, EIO, -1, int, lstat, (const char *path, struct stat *st), (path, st))
WRAP(SOCKET, EACCES, -1, int, bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
WRAP(SOCKET, EACCES, -1, int, listen, (int fd, int n), (fd, n))
WRAP(SOCKET, ENOBUFS, -1, int, getsockname, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
WRAP(EVENTS, EMFILE, -1, int, epoll_create1, (int flags), (flags))
WRAP(EVENTS, ENOMEM, -1, int, epoll_ctl, (int e, int op, int fd, struct epoll_event *v), (e, op, fd, v))
WRAP(THREAD, EAGAIN, EAGAIN, int, pthread_create, (pthread_t *t, const pthread_attr_t *a,
     void *(*fn)(void *), void *arg), (t, a, fn, arg))
WRAP(TLS, 0, NULL, SSL_CTX *, SSL_CTX_new, (const SSL_METHOD *m), (m))
WRAP(TLS, 0, 0, int, SSL_CTX_use_certificate_chain_file, (SSL_CTX *c, const char *path), (c, path))
WRAP(TLS, 0, 0, int, SSL_CTX_use_PrivateKey_file, (SSL_CTX *c, const char *path, int type), (c, path, type))
WRAP(TLS, 0, NULL, SSL *, SSL_new, (SSL_CTX *c), (c))
WRAP(TLS, 0, NULL, BIO *, BIO_new, (const BIO_METHOD *m), (m))

pcre2_code *__real_pcre2_compile_8(PCRE2_SPTR s, size_t n, uint32_t o, int *e, size_t *at, pcre2_compile_context *c);
pcre2_code *__wrap_pcre2_compile_8(PCRE2_SPTR s, size_t n, uint32_t o, int *e, size_t *at, pcre2_compile_context *c);
pcre2_code *__wrap_pcre2_compile_8(PCRE2_SPTR s, size_t n, uint32_t o, int *e, size_t *at, pcre2_compile_context *c)
{
	*e = PCRE2_ERROR_NOMEMORY;
	*at = 0;
	return fails(MEMORY) ? NULL : __real_pcre2_compile_8(s, n, o, e, at, c);
}

/* ---- the two programs ------------------------------------------------------------------------ */

static char uds[80], http_log[80], cert[80], key[80];
static int tried, harmless;

static pid_t adapter_start(bool tls)
{
	char *argv[] = { "slipring-http", "--uds", uds, "--disable-access-log", "--shutdown-timeout", "1", home.model,
		tls ? "--ssl-certfile" : NULL, cert, "--ssl-keyfile", key, NULL };
	pid_t pid;

	fault->ready = false;
	fflush(NULL);
	pid = fork();
	if (pid)
		return pid;
	alarm(fault->stop_at_ready ? 10 : 300);
	for (int i = 0; i < 5; i++)           /* cmocka would go on with the tests in here */
		signal((int[]){ SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE }[i], SIG_DFL);
	if (!freopen(http_log, "w", stderr))
		_exit(99);
	in_child();
	exit(slipring_http_main(tls ? 11 : 7, argv));
}

/* Each of the first, then, unless all are asked for, ever fewer: the later ones are alike. */
static int next(int at, int all)
{
	return getenv("SLIPRING_FAULTS") || at < all ? at + 1 : at + 1 + at / 3;
}

static bool explained(void)
{
	char line[1024];
	FILE *f = fopen(http_log, "r");
	bool yes = false;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		const char *e = strstr(line, " ERROR ");

		yes |= e && strlen(e) > 25 && !strstr(e, "(null)") && !strstr(e, "Success");
	}
	fclose(f);
	return yes;
}

static void show_log(void)
{
	char line[1024];
	FILE *f = fopen(http_log, "r");

	for (int n = 0; f && n < 60 && fgets(line, sizeof(line), f);)
		if (!strstr(line, " INFO "))
			print_message("    %s", line), n++;
	if (f)
		fclose(f);
}

/* ---- a client -------------------------------------------------------------------------------- */

enum { CLOSED = 0, WAITED = -1 };     /* instead of a status */

struct peer { int fd; SSL_CTX *ctx; SSL *ssl; };

static bool peer_open(struct peer *p, bool tls)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct timeval patience = { .tv_sec = 5 };

	*p = (struct peer){ .fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) };
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", uds);
	setsockopt(p->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (connect(p->fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return false;
	if (!tls)
		return true;
	p->ctx = SSL_CTX_new(TLS_client_method());
	p->ssl = SSL_new(p->ctx);
	SSL_set_fd(p->ssl, p->fd);
	return SSL_connect(p->ssl) == 1;
}

static void peer_close(struct peer *p)
{
	SSL_free(p->ssl);
	SSL_CTX_free(p->ctx);
	close(p->fd);
}

/* Bytes; 0 closed; WAITED. */
static int peer_read(struct peer *p, void *to, int n)
{
	int r = p->ssl ? SSL_read(p->ssl, to, n) : (int)recv(p->fd, to, (size_t)n, 0);

	return r > 0 ? r : errno == EAGAIN && !(p->ssl && SSL_get_error(p->ssl, r) == SSL_ERROR_ZERO_RETURN) ?
		WAITED : CLOSED;
}

static char answer[1 << 18];

/* One request on a connection of its own: its status.  leave_after: of that many bytes of the answer no more are
 * waited for (0 = of all). */
static int ask(bool tls, const char *method, const char *path, const char *body, int leave_after)
{
	char *text = answer;
	int status = CLOSED, have = 0, n;
	struct peer p;

	n = snprintf(text, sizeof(answer), "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	             "Connection: close\r\nContent-Length: %zu\r\n\r\n%s", method, path, strlen(body), body);
	errno = 0;
	if (peer_open(&p, tls) && (p.ssl ? SSL_write(p.ssl, text, n) : (int)send(p.fd, text, (size_t)n,
	    MSG_NOSIGNAL)) == n) {
		while ((n = peer_read(&p, text + have, (int)sizeof(answer) - 1 - have)) > 0) {
			have += n;
			if (have == (int)sizeof(answer) - 1 || (leave_after && have >= leave_after))
				break;
		}
		text[have] = 0;
		if (have > 12 && !strncmp(text, "HTTP/1.1 ", 9))
			status = atoi(text + 9);
		if (n == WAITED)
			status = WAITED;
		if (status == 200 && strstr(text, "text/event-stream") && strstr(text, "\"error\""))
			status = 500;         /* told in the stream */
	} else if (errno == EAGAIN) {
		status = WAITED;
	}
	peer_close(&p);
	return status;
}

#define PLAIN "\"max_tokens\":3,\"ignore_eos\":true"
#define CHAT  "\"messages\":[{\"role\":\"system\",\"content\":\"ab\"},{\"role\":\"user\",\"content\":\"ba\"}],"

static char long_prompt[9000], long_text[9000];

static const struct { const char *what, *method, *path, *body; int leave_after, status; } day[] = {
	{ "a completion", "POST", "/v1/completions", "{\"prompt\":\"ab\"," PLAIN "}", 0, 200 },
	{ "a stream", "POST", "/v1/completions", "{\"prompt\":[\"ab\",\"ba\"],\"n\":2,\"logprobs\":2,\"stop\":[\"zz\"],"
	  "\"stream\":true,\"stream_options\":{\"include_usage\":true}," PLAIN "}", 0, 200 },
	{ "a chat", "POST", "/v1/chat/completions", "{" CHAT "\"logprobs\":true,\"top_logprobs\":2,\"seed\":3,"
	  "\"logit_bias\":{\"1\":2},\"bad_words\":[\"aa\"]," PLAIN "}", 0, 200 },
	{ "a chat's stream", "POST", "/v1/chat/completions", "{" CHAT "\"stream\":true," PLAIN "}", 0, 200 },
	{ "a long prompt", "POST", "/v1/completions", long_prompt, 0, 200 },
	{ "tokenize", "POST", "/tokenize", "{\"prompt\":\"abba\",\"return_token_strs\":true}", 0, 200 },
	{ "tokenize, long", "POST", "/tokenize", long_text, 0, 200 },
	{ "detokenize", "POST", "/detokenize", "{\"tokens\":[0,1,1,0]}", 0, 200 },
	{ "metrics", "GET", "/metrics", "", 0, 200 },
	{ "models", "GET", "/v1/models", "", 0, 200 },
	{ "health", "GET", "/health", "", 0, 200 },
	{ "a wrong request", "POST", "/v1/completions", "{\"prompt\":\"ab\",\"temperature\":-1}", 0, 400 },
	{ "one who goes away", "POST", "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":2000,\"ignore_eos\":true,"
	  "\"stream\":true}", 300, 200 },
};
#define N_DAY ((int)(sizeof(day) / sizeof(day[0])))

static int ask_day(int i, bool tls)
{
	return ask(tls, day[i].method, day[i].path, day[i].body, day[i].leave_after);
}

/* Within two seconds: it may have lost the daemon and find it again. */
static bool well(bool tls)
{
	for (int i = 0; i < 200; i++) {
		if (ask_day(0, tls) == 200)
			return true;
		usleep(10000);
	}
	return false;
}

static int open_fds_of(pid_t pid)
{
	char path[64];
	int n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void each_call_of_the_start_fails_once(void **state)
{
	int failed = 0;

	(void)state;
	tried = harmless = 0;
	for (int tls = 0; tls < 2; tls++)
		for (int k = tls && !getenv("SLIPRING_FAULTS") ? TLS : 0; k < N_KINDS; k++)
			for (int at = 1;; at = next(at, 8)) {
				int code;

				arm((enum kind)k, at, true);
				code = end_of(adapter_start(tls));
				if (!fault->hit) {
					if (code != 0)
						show_log();
					assert_int_equal(code, 0);
					break;
				}
				tried++;
				harmless += code == 0;
				if (code == 0 || ((code == 1 || code == 2) && explained())) /* 2: it looks wrong */
					continue;
				print_message("%s %d of the start%s: exit %d\n", kind_name[k], at, tls ? " with TLS" : "",
				              code);
				show_log();
				failed++;
			}
	print_message("start: %d faults, %d of them did not matter\n", tried, harmless);
	assert_int_equal(failed, 0);
	assert_true(tried - harmless > 30);
}

/* One request after the other, one call of it fails: whatever becomes of it, the next one is served. */
static void serve(bool tls, int all)
{
	int failed = 0, fds;
	pid_t pid;

	tried = harmless = 0;
	arm(MEMORY, 0, false);
	pid = adapter_start(tls);
	for (int i = 0; i < 10000 && !fault->ready; i++)
		usleep(1000);
	assert_true(well(tls));
	for (int i = 0; i < N_DAY; i++)
		if (ask_day(i, tls) != day[i].status)
			fail_msg("%s: not %d", day[i].what, day[i].status);
	fds = open_fds_of(pid);
	for (int i = 0; i < N_DAY; i++)
		for (int k = 0; k < N_KINDS; k++)
			for (int at = 1;; at = next(at, all)) {
				int status;

				arm((enum kind)k, at, false);
				fault->on = 1;
				status = ask_day(i, tls);
				fault->on = 0;
				if (!fault->hit)
					break;
				tried++;
				harmless += status == day[i].status;
				if ((status == CLOSED || status >= 500 || status == day[i].status)) {
					if (well(tls))
						continue;
					strcpy(answer, "and then no request was served");
				}
				print_message("%s %d of %s: %d\n%.600s\n", kind_name[k], at, day[i].what, status, answer);
				failed++;
				if (waitpid(pid, NULL, WNOHANG) == pid) {
					show_log();
					fail_msg("the adapter is dead");
				}
			}
	for (int i = 0; i < 200 && open_fds_of(pid) > fds; i++)
		usleep(10000);
	if (open_fds_of(pid) > fds)
		failed++, print_message("%d descriptors are left\n", open_fds_of(pid) - fds);
	kill(pid, SIGTERM);
	if (end_of(pid) != 0) {
		show_log();
		fail_msg("the adapter did not end well");
	}
	print_message("service: %d faults, %d of them did not matter\n", tried, harmless);
	assert_int_equal(failed, 0);
	assert_true(tried > 50);
}

static void each_call_of_the_service_fails_once(void **state)
{
	(void)state;
	serve(false, 6);
}

static void each_call_of_the_service_by_tls_fails_once(void **state)
{
	(void)state;
	serve(true, 2);
}

static pid_t daemon_pid;
static char daemon_path[4096];

static void write_certificate(void)
{
	EVP_PKEY *k = EVP_EC_gen("P-256");
	X509 *x = X509_new();
	FILE *f;

	ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
	X509_gmtime_adj(X509_getm_notBefore(x), -60);
	X509_gmtime_adj(X509_getm_notAfter(x), 3600);
	X509_set_pubkey(x, k);
	X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, (const unsigned char *)"x", -1, -1, 0);
	X509_set_issuer_name(x, X509_get_subject_name(x));
	assert_true(X509_sign(x, k, EVP_sha256()) > 0);
	f = fopen(cert, "w");
	assert_true(f && PEM_write_X509(f, x) && !fclose(f));
	f = fopen(key, "w");
	assert_true(f && PEM_write_PrivateKey(f, k, NULL, NULL, 0, NULL, NULL) && !fclose(f));
	X509_free(x);
	EVP_PKEY_free(k);
}

static int setup(void **state)
{
	struct sr_conn *c = NULL;
	int n;

	(void)state;
	fault = home_share(sizeof(*fault));
	home_make(&home);
	home_write(home.model, "tokenizer.json", "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 3, "
	           "\"content\": \"<e>\", \"special\": true}], \"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": "
	           "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"decoder\": {\"type\": \"ByteLevel\"}, "
	           "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}}");
	home_write(home.model, "tokenizer_config.json", "{\"chat_template\": \"{% for m in messages %}"
	           "{{ m.content }}{% endfor %}\"}");
	snprintf(uds, sizeof(uds), "%s/http", home.dir);
	snprintf(http_log, sizeof(http_log), "%s/http.log", home.dir);
	snprintf(cert, sizeof(cert), "%s/cert.pem", home.dir);
	snprintf(key, sizeof(key), "%s/key.pem", home.dir);
	write_certificate();
	n = sprintf(long_prompt, "{" PLAIN ",\"stop\":[\"zz\"],\"prompt\":\"");
	memset(long_prompt + n, 'a', 2000);
	n += 2000 + sprintf(long_prompt + n + 2000, "\",\"user\":\"");
	memset(long_prompt + n, 'u', 4000);
	strcpy(long_prompt + n + 4000, "\"}");
	n = sprintf(long_text, "{\"prompt\":\"");
	memset(long_text + n, 'b', 5000);
	strcpy(long_text + n + 5000, "\"}");
	daemon_pid = fork();
	if (!daemon_pid) {
		alarm(1200);
		if (freopen(home.log, "w", stderr))
			execl(daemon_path, "slipringd", "--device", "null", "--load-format", "dummy", home.model, NULL);
		_exit(99);
	}
	for (int i = 0; i < 10000 && sr_open(&c, home.socket, NULL) < 0; i++)
		usleep(1000);
	sr_close(c);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kill(daemon_pid, SIGTERM);
	assert_int_equal(end_of(daemon_pid), 0);
	home_remove(&home);
	return 0;
}

int main(int argc, char **argv)
{
	const char *slash = strrchr(argv[0], '/');
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_call_of_the_start_fails_once),
		cmocka_unit_test(each_call_of_the_service_fails_once),
		cmocka_unit_test(each_call_of_the_service_by_tls_fails_once),
	};

	(void)argc;
	snprintf(daemon_path, sizeof(daemon_path), "%.*s/../slipringd", slash ? (int)(slash - argv[0]) : 1,
	         slash ? argv[0] : ".");
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, setup, teardown);
}
