/* LINK: @http -Wl,--wrap=notify_sendf */
/* test_http_faults.c - test_faults.c for the adapter: every allocation and every system call of it, its
 * libraries' included, fails once, in turn: while it starts, alone and as several processes, while it serves,
 * while it serves by TLS.  The whole of slipring-http in a child; beside it build/slipringd on the null device.
 *
 * A start that is hit ends with exit code 1 or 2 and one sentence why, or goes on where it can do without.
 * While it serves, a request that is hit gets an answer of 5xx or a closed connection, whoever goes away
 * harms nobody, the next request is served, and in the end no descriptor and (in a build with
 * AddressSanitizer) no memory is left.  Nobody crashes or hangs.
 *
 *	SLIPRING_FAULTS=1    each of them; otherwise of the many that are alike only some
 */
#include <dirent.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/un.h>

int slipring_http_main(int argc, char **argv);
#define main slipring_http_main
#include "adapters/http/main.c"
#undef main

#include "adapters/http/json/openai.h"
#include "shmring/slipring.h"
#include "tests/rig/one_fault.h"

/* ---- the two programs ------------------------------------------------------------------------ */

static char uds[80], http_log[80], cert[80], key[80], config[80];
static int tried, harmless;

enum mode { ALONE, BY_TLS, SEVERAL };
static const char *const mode_name[] = { "", ", with TLS", ", two processes" };

static pid_t adapter_start(enum mode m)
{
	char *argv[14] = { "slipring-http", "--config", config, "--uds", uds, "--disable-access-log",
		"--shutdown-timeout", "1", home.model };
	char *more[][4] = { { NULL }, { "--ssl-certfile", cert, "--ssl-keyfile", key },
		{ "--api-server-count", "2" } };
	pid_t pid;
	int n = 9;

	fault->ready = false;
	warden_start();
	pid = fork();
	if (pid)
		return pid;
	alarm(fault->stop_at_ready ? 20 : 300);
	for (int i = 0; i < 4 && more[m][i]; i++)
		argv[n++] = more[m][i];
	if (!freopen(http_log, "w", stderr))
		_exit(99);
	in_child();
	exit(slipring_http_main(n, argv));
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

	n = snprintf(text, sizeof(answer), "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
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
			status = 500;         /* the error came in the stream */
	} else if (errno == EAGAIN) {
		status = WAITED;
	}
	peer_close(&p);
	return status;
}

#define PLAIN "\"max_tokens\":3,\"ignore_eos\":true,\"return_token_ids\":true"
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

static int ids_of[N_DAY];             /* in the whole answer to each */

/* The number of token ids in the answer. */
static int ids_told(void)
{
	int n = 0;

	for (const char *s = answer; (s = strstr(s, "\"token_ids\":[")); )
		for (s += 13; *s && *s != ']'; s++)
			n += *s >= '0' && *s <= '9' && !(s[1] >= '0' && s[1] <= '9');
	return n;
}

/* Its status; CLOSED: a stream was cut off; WAITED: an answer looks complete but lacks something. */
static int ask_day(int i, bool tls)
{
	int status = ask(tls, day[i].method, day[i].path, day[i].body, day[i].leave_after);

	if (status != 200 || day[i].leave_after || !ids_of[i] || ids_told() == ids_of[i])
		return status;
	return strstr(answer, "text/event-stream") && !strstr(answer, "\r\n0\r\n\r\n") ? CLOSED : WAITED;
}

/* Within two seconds, because it may have to reconnect to the daemon. */
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

static int try_start(enum mode m, int k, int at)
{
	arm(k, at, true);
	return end_of(adapter_start(m));
}

/* What this kind of start adds. */
static bool differs(enum mode m, int k)
{
	return m == ALONE || getenv("SLIPRING_FAULTS") ||
	       (m == SEVERAL ? k >= N_OWNERS : k == LIBSSL || k == LIBCRYPTO);
}

static void fail_start(enum mode m)
{
	int failed = 0;

	tried = harmless = 0;
	assert_int_equal(try_start(m, -1, 0), 0);
	note();
	for (int k = 0; k < N_KINDS; k++)
		for (int at = 1; had[k] && differs(m, k); at = next(at, m == SEVERAL ? 0 : 2)) {
			int code = try_start(m, k, at);

			if (!fault->hit) {
				if (code != 0)
					show_log();
				assert_int_equal(code, 0);
				break;
			}
			tried++;
			harmless += code == 0;
			if (code == 0 || ((code == 1 || code == 2) && explained())) /* 2: wrong usage */
				continue;
			print_message("%s %d of the start%s: exit %d\n", kind_name(k), at, mode_name[m], code);
			show_log();
			failed++;
		}
	print_message("start%s: %d faults, %d of them did not matter\n", mode_name[m], tried, harmless);
	assert_int_equal(failed, 0);
	assert_true(tried - harmless > 2);
}

static void each_call_of_the_start_fails_once(void **state)
{
	(void)state;
	fail_start(ALONE);
}

static void each_call_of_the_start_with_tls_fails_once(void **state)
{
	(void)state;
	fail_start(BY_TLS);
}

static void each_call_of_the_start_of_several_fails_once(void **state)
{
	(void)state;
	fail_start(SEVERAL);
}

/* How long the next client waits at most: a second for descriptors, and for the daemon. */
static bool slow(int k)
{
	return !getenv("SLIPRING_FAULTS") && k >= N_OWNERS && (call[k - N_OWNERS].nr == SYS_accept4 ||
	       call[k - N_OWNERS].nr == SYS_sendto || call[k - N_OWNERS].nr == SYS_recvfrom);
}

static int try_day(int k, int at, int i, enum mode m)
{
	int status;

	arm(k, at, false);
	fault->on = 1;
	status = ask_day(i, m == BY_TLS);
	fault->on = 0;
	return status;
}

/* One request after the other; in each, one call fails.  Whatever happens to it, the next one is served. */
static void fail_service(enum mode m, int all)
{
	const bool tls = m == BY_TLS;
	int failed = 0, fds;
	pid_t pid;

	tried = harmless = 0;
	arm(-1, 0, false);
	pid = adapter_start(m);
	for (int i = 0; i < 10000 && !fault->ready; i++)
		usleep(1000);
	assert_true(well(tls));
	for (int i = 0; i < N_DAY; i++) {
		if (ask(tls, day[i].method, day[i].path, day[i].body, day[i].leave_after) != day[i].status)
			fail_msg("%s: not %d", day[i].what, day[i].status);
		ids_of[i] = ids_told();
	}
	assert_true(ids_of[0] == 3 && ids_of[1] == 12 && ids_of[3] == 3);
	fds = open_fds_of(pid);
	for (int i = 0; i < N_DAY; i++) {
		bool well_again = false;

		/* Of several processes, another may still be connecting to the daemon. */
		for (int n = 0; n < 200 && !(well_again = try_day(-1, 0, i, m) == day[i].status); n++)
			usleep(10000);
		assert_true(well_again);
		note();
		for (int k = 0; k < N_KINDS; k++)
			for (int at = 1; had[k] && !(i && slow(k)); at = next(at, all)) {
				int status = try_day(k, at, i, m);

				if (!fault->hit)
					break;
				tried++;
				harmless += status == day[i].status;
				if ((status == CLOSED || status >= 500 || status == day[i].status)) {
					if (well(tls))
						continue;
					strcpy(answer, "and then no request was served");
				}
				print_message("%s %d of %s: %d\n%.600s\n", kind_name(k), at, day[i].what, status, answer);
				failed++;
				if (waitpid(pid, NULL, WNOHANG) == pid) {
					show_log();
					fail_msg("the adapter is dead");
				}
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
	print_message("service%s: %d faults, %d of them did not matter\n", mode_name[m], tried, harmless);
	assert_int_equal(failed, 0);
	assert_true(tried > 50);
}

static void each_call_of_the_service_fails_once(void **state)
{
	(void)state;
	fail_service(ALONE, 3);
}

static void each_call_of_the_service_by_tls_fails_once(void **state)
{
	(void)state;
	fail_service(BY_TLS, 0);
}

static void each_call_of_the_service_by_several_fails_once(void **state)
{
	(void)state;
	fail_service(SEVERAL, 0);
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
	snprintf(config, sizeof(config), "%s/config.yaml", home.dir);
	home_write(home.dir, "config.yaml", "allowed-origins: [\"https://one\", \"https://two\"]\n"
	           "served-model-name: [one, two]\n");
	n = sprintf(long_prompt, "{" PLAIN ",\"stop\":[\"zz\"],\"prompt\":\"");
	memset(long_prompt + n, 'a', 2000);
	n += 2000 + sprintf(long_prompt + n + 2000, "\",\"user\":\"");
	memset(long_prompt + n, 'u', 4000);
	strcpy(long_prompt + n + 4000, "\"}");
	n = sprintf(long_text, "{\"prompt\":\"");
	memset(long_text + n, 'b', 5000);
	strcpy(long_text + n + 5000, "\"}");
	fflush(NULL);
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
	assert_int_equal(waitpid(daemon_pid, NULL, 0), daemon_pid);
	home_remove(&home);
	return 0;
}

int main(int argc, char **argv)
{
	const char *slash = strrchr(argv[0], '/');
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_call_of_the_start_fails_once),
		cmocka_unit_test(each_call_of_the_start_with_tls_fails_once),
		cmocka_unit_test(each_call_of_the_start_of_several_fails_once),
		cmocka_unit_test(each_call_of_the_service_fails_once),
		cmocka_unit_test(each_call_of_the_service_by_tls_fails_once),
		cmocka_unit_test(each_call_of_the_service_by_several_fails_once),
	};

	(void)argc;
	snprintf(daemon_path, sizeof(daemon_path), "%.*s/../slipringd", slash ? (int)(slash - argv[0]) : 1,
	         slash ? argv[0] : ".");
	signal(SIGPIPE, SIG_IGN);
	/* jansson's allocations, by the functions that it was given. */
	range[n_ranges++] = (struct range){ (uintptr_t)text_json_take, (uintptr_t)text_json_take + 200, JANSSON };
	ahead_of_jansson = 16;
	if (!can_fault()) {
		print_message("SKIP: no seccomp that lets a process judge another's system calls\n");
		return 0;
	}
	return cmocka_run_group_tests(tests, setup, teardown);
}
