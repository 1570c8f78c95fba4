/* LINK: @net core/instance/io.c core/instance/log.c -luring -lssl -lcrypto -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=open,--wrap=fstat,--wrap=mmap,--wrap=pread */
/* test_tls.c - TLS over real sockets, with OpenSSL as the client. */
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>
#include <time.h>

#include "adapters/http/net/tls.h"
#include "tests/rig/conn_rig.h"
#include "tests/rig/nth_call.h"

/* ---- TLS ---------------------------------------------------------------------------------- */

static char pem_dir[64], cert_file[96], key_file[96], other_cert[96], other_key[96];

/* A self-signed certificate for `name`, written as the operator would. */
static void write_pair(const char *name, const char *cert_to, const char *key_to)
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *x = X509_new();
	X509_NAME *who = X509_get_subject_name(x);
	FILE *f;

	assert_non_null(key);
	ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
	X509_gmtime_adj(X509_getm_notBefore(x), -60);
	X509_gmtime_adj(X509_getm_notAfter(x), 3600);
	X509_set_pubkey(x, key);
	X509_NAME_add_entry_by_txt(who, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
	X509_set_issuer_name(x, who);
	assert_true(X509_sign(x, key, EVP_sha256()) > 0);
	f = fopen(cert_to, "w");
	assert_true(f && PEM_write_X509(f, x) && !fclose(f));
	f = fopen(key_to, "w");
	assert_true(f && PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) && !fclose(f));
	X509_free(x);
	EVP_PKEY_free(key);
}

static void write_certificate(const char *name)
{
	write_pair(name, cert_file, key_file);
}

static void files_create(void)
{
	strcpy(pem_dir, "/tmp/test_conn.XXXXXX");
	assert_non_null(mkdtemp(pem_dir));
	sprintf(cert_file, "%s/cert.pem", pem_dir);
	sprintf(key_file, "%s/key.pem", pem_dir);
	sprintf(other_cert, "%s/other.pem", pem_dir);
	sprintf(other_key, "%s/other-key.pem", pem_dir);
	write_certificate("first");
}

static void files_remove(void)
{
	unlink(cert_file);
	unlink(key_file);
	unlink(other_cert);
	unlink(other_key);
	rmdir(pem_dir);
}

static void rig_open_tls(uint64_t head_ns, int cert_reqs)
{
	const struct server_config cfg = { .certfile = cert_file, .keyfile = key_file, .head_ns = head_ns,
	                                   .linger_ns = 50 * MS, .cert_reqs = cert_reqs,
	                                   .cafile = cert_reqs ? cert_file : NULL };

	files_create();
	rig_open(&cfg);
}

static void rig_close_tls(void)
{
	files_remove();
	rig_close();
}

/* Repeat a call of the client's until it is done, running the server in between. */
enum call { CONNECT, READ, WRITE };

static int tls(SSL *ssl, enum call call, void *buf, int n)
{
	uint64_t end = io_now() + 2000 * MS;
	int r, e;

	do {
		turn();
		r = call == CONNECT ? SSL_connect(ssl) : call == READ ? SSL_read(ssl, buf, n) :
		    SSL_write(ssl, buf, n);
		e = SSL_get_error(ssl, r);
	} while (r <= 0 && (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE) && io_now() < end);
	return r;
}

static void tls_say(SSL *ssl, const char *text)
{
	assert_int_equal(tls(ssl, WRITE, (void *)(uintptr_t)text, (int)strlen(text)), strlen(text));
}

static SSL *tls_client(SSL_CTX *ctx, int *fd)
{
	SSL *ssl = SSL_new(ctx);

	*fd = client();
	SSL_set_fd(ssl, *fd);
	return ssl;
}

static void common_name(SSL *ssl, char *out, int n)
{
	X509 *x = SSL_get1_peer_certificate(ssl);

	X509_NAME_get_text_by_NID(X509_get_subject_name(x), NID_commonName, out, n);
	X509_free(x);
}

static void test_tls(void **state)
{
	static const unsigned char http11[] = "\x02h2\x08http/1.1";
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	char buf[16384], name[64], err[256];
	const unsigned char *proto;
	unsigned len;
	SSL *ssl;
	int fd, n;

	(void)state;
	rig_open_tls(0, 0);
	SSL_CTX_set_alpn_protos(ctx, http11, sizeof(http11) - 1);
	ssl = tls_client(ctx, &fd);
	assert_int_equal(tls(ssl, CONNECT, NULL, 0), 1);
	SSL_get0_alpn_selected(ssl, &proto, &len);
	assert_int_equal(len, 8);
	common_name(ssl, name, sizeof(name));
	assert_string_equal(name, "first");

	/* two pipelined requests in one record, then a stream: an event is one record */
	tls_say(ssl, G "\r\n" NEXT);
	UNTIL(app.n_handled == 2);
	for (int i = 0; i < 2; i++) {
		n = tls(ssl, READ, buf, sizeof(buf) - 1);
		assert_true(n > 0);
		buf[n] = 0;
		assert_non_null(strstr(buf, i ? "GET /next" : "GET /json"));
	}
	tls_say(ssl, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 1);
	for (int i = 0; i < 3; i++) {
		exchange_event(app.held[0], "data: x\n\n", 9);
		n = tls(ssl, READ, buf, sizeof(buf) - 1);
		buf[n > 0 ? n : 0] = 0;
		assert_non_null(strstr(buf, "9\r\ndata: x\n\n\r\n"));
		assert_true(i == 0 || n == 14);
	}

	/* the certificate is replaced while the stream runs; a wrong one is refused */
	write_certificate("second");
	assert_int_equal(server_reload_tls(server, err, sizeof(err)), 0);
	assert_int_equal(truncate(cert_file, 10), 0);
	assert_true(server_reload_tls(server, err, sizeof(err)) < 0);
	assert_non_null(strstr(err, cert_file));
	exchange_event(app.held[0], "data: y\n\n", 9);
	exchange_end(take(0));
	n = tls(ssl, READ, buf, sizeof(buf) - 1);
	assert_int_equal(n, 14);
	SSL_free(ssl);
	close(fd);

	ssl = tls_client(ctx, &fd);
	assert_int_equal(tls(ssl, CONNECT, NULL, 0), 1);
	common_name(ssl, name, sizeof(name));
	assert_string_equal(name, "second");

	/* gone() is called under TLS, too */
	tls_say(ssl, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
	UNTIL(app.n_held == 2);
	SSL_free(ssl);
	close(fd);
	UNTIL(app.n_gone == 1);
	SSL_CTX_free(ctx);
	rig_close_tls();
}

/* TLS 1.2: the server's order of ciphers counts; it gives no tickets and does not renegotiate.  A client's
 * close_notify ends the connection at once, though its socket stays open. */
static void test_tls_12(void **state)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	SSL *ssl;
	int fd;

	(void)state;
	rig_open_tls(0, 0);
	SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
	SSL_CTX_set_cipher_list(ctx, "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384");
	ssl = tls_client(ctx, &fd);
	assert_int_equal(tls(ssl, CONNECT, NULL, 0), 1);
	assert_string_equal(SSL_get_cipher_name(ssl), "ECDHE-ECDSA-AES256-GCM-SHA384");
	assert_false(SSL_SESSION_has_ticket(SSL_get0_session(ssl)));
	SSL_shutdown(ssl);
	UNTIL(server_connections(server) == 0);
	SSL_free(ssl);
	close(fd);

	ssl = tls_client(ctx, &fd);
	assert_int_equal(tls(ssl, CONNECT, NULL, 0), 1);
	assert_int_equal(SSL_renegotiate(ssl), 1);
	assert_int_not_equal(tls(ssl, CONNECT, NULL, 0), 1);
	SSL_free(ssl);
	close(fd);
	UNTIL(server_connections(server) == 0);
	SSL_CTX_free(ctx);
	rig_close_tls();
}

/* A key of another type than the certificate's: OpenSSL reads it without comparing the two. */
static void test_key_of_another(void **state)
{
	EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
	struct tls_context *c;
	char err[256] = "";
	FILE *f;

	(void)state;
	files_create();
	f = fopen(other_key, "w");
	assert_true(f && PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) && !fclose(f));
	EVP_PKEY_free(key);
	assert_int_equal(tls_context_create(&c, cert_file, other_key, NULL, 0, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "does not match the certificate"));
	assert_non_null(strstr(err, other_key));
	files_remove();
}

/* Without a socket: input that is not TLS is told apart from input not yet there. */
static void test_tls_bytes(void **state)
{
	struct tls_context *c;
	static const char hello[] = "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00";  /* a ClientHello of one byte */
	char err[256] = "", buf[64];
	struct tls *t, *http;

	(void)state;
	files_create();
	assert_int_equal(tls_context_create(&c, cert_file, key_file, NULL, 0, err, sizeof(err)), 0);
	http = tls_create(c);
	t = tls_create(c);
	tls_context_destroy(c);                /* its connections stay usable */
	assert_int_equal(tls_put(http, "GET / HTTP/1.1\r\n", 16), 0);
	assert_int_equal(tls_read(http, buf, sizeof(buf)), -EPROTO);
	tls_destroy(http);
	assert_int_equal(tls_read(t, buf, sizeof(buf)), -EAGAIN);
	assert_int_equal(tls_write(t, "early", 5), -EPROTO);
	assert_int_equal(tls_waiting(t), 0);
	assert_int_equal(tls_put(t, hello, sizeof(hello) - 1), 0);
	assert_true(tls_unread(t));
	assert_int_equal(tls_read(t, buf, sizeof(buf)), -EPROTO);
	assert_false(tls_established(t));
	assert_int_equal(tls_waiting(t), 7);   /* the alert */
	assert_int_equal(tls_take(t, buf, sizeof(buf)), 7);
	tls_destroy(t);
	tls_destroy(NULL);
	tls_context_destroy(NULL);
	files_remove();
}

/* Neither a connection nor a server nor a certificate that was replaced leaves memory behind. */
static void test_tls_memory(void **state)
{
	enum { FIRST = 5, ROUNDS = 20, SLACK = 4096 };  /* glibc counts memory that it keeps for the next malloc */
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	size_t before = 0;
	char err[256];
	SSL *ssl;
	int fd;

	(void)state;
	for (int i = 0; i < FIRST + ROUNDS; i++) {
		if (i == FIRST)                 /* OpenSSL's shared memory exists after the first ones */
			before = heap();
		rig_open_tls(0, 0);
		ssl = tls_client(ctx, &fd);
		assert_int_equal(tls(ssl, CONNECT, NULL, 0), 1);
		assert_int_equal(server_reload_tls(server, err, sizeof(err)), 0);
		SSL_free(ssl);
		close(fd);
		UNTIL(server_connections(server) == 0);
		rig_close_tls();
	}
	assert_in_range(heap(), 0, before + ROUNDS * SLACK);
	SSL_CTX_free(ctx);
}

/* If any allocation of a start fails, the server reports it and closes its socket. */
static void test_no_memory(void **state)
{
	const struct server_config cfg = { .certfile = cert_file, .keyfile = key_file };
	int fd, n = 1, r;
	char err[256];

	(void)state;
	files_create();
	assert_int_equal(io_create(&io, io_flags), 0);
	for (;; n++) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		assert_int_equal(listen(fd, 1), 0);
		err[0] = 0;
		nth.at = n;
		nth.seen = 0;
		r = server_create(&server, io, fd, &cfg, &toy, err, sizeof(err));
		nth.at = 0;
		if (r == 0)
			break;
		assert_int_equal(r, -ENOMEM);
		assert_non_null(strstr(err, "memory"));
		assert_true(fcntl(fd, F_GETFD) < 0 && errno == EBADF);
	}
	assert_true(n > 5);                    /* the server, its connections, scratch, addresses, TLS */
	server_destroy(server);
	io_destroy(io);
	files_remove();
}

static void test_tls_big(void **state)
{
	static char body[200000], buf[1 << 16];
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	int fd, n = sprintf(body, P "Content-Length: 190000\r\nConnection: close\r\n\r\n"), sum = 0, r;
	SSL *ssl;

	(void)state;
	rig_open_tls(0, 0);
	ssl = tls_client(ctx, &fd);
	assert_int_equal(tls(ssl, CONNECT, NULL, 0), 1);
	memset(body + n, 'z', 190000);
	SSL_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	for (int at = 0; at < n + 190000; at += r) {
		r = tls(ssl, WRITE, body + at, n + 190000 - at);
		assert_true(r > 0);
	}
	while ((r = tls(ssl, READ, buf, sizeof(buf))) > 0)
		sum += r;
	assert_true(sum > 190000);
	assert_int_equal(SSL_get_error(ssl, r), SSL_ERROR_ZERO_RETURN);  /* close_notify, not a cut */
	SSL_free(ssl);
	close(fd);
	SSL_CTX_free(ctx);
	rig_close_tls();
}

/* Input that is not TLS ends the connection cleanly.  Half a handshake waits without work, and not for ever. */
static void test_tls_hostile(void **state)
{
	struct heard h = { 0 };
	struct timespec a, b;
	int fd, wakes = 0;
	uint64_t end;

	(void)state;
	rig_open_tls(100 * MS, 0);
	fd = client();
	SAY(fd, G "\r\n");
	hear_end(&h, fd);
	assert_int_equal(app.n_handled, 0);
	forget(&h);
	close(fd);

	fd = client();
	SAY(fd, "\x16");
	UNTIL(server_connections(server) == 1);
	turns(5);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
	for (end = io_now() + 60 * MS; io_now() < end; wakes++)
		io_sleep(io, end);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	assert_true(wakes < 5);
	assert_true((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 < 30);
	UNTIL(server_connections(server) == 0);
	hear_end(&h, fd);
	forget(&h);
	close(fd);
	rig_close_tls();
}

/* --ssl-cert-reqs: which clients each value accepts.  The CA is the server's own certificate. */
static void test_client_certificates(void **state)
{
	enum who { NOBODY, KNOWN, STRANGER };
	static const struct { int reqs; enum who who; bool in; } cases[] = {
		{ 0, NOBODY, true }, { 0, STRANGER, true },
		{ 1, NOBODY, true }, { 1, KNOWN, true }, { 1, STRANGER, false },
		{ 2, NOBODY, false }, { 2, KNOWN, true }, { 2, STRANGER, false },
	};
	struct tls_context *none;
	char err[256] = "";

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
		char buf[1024];
		SSL *ssl;
		int fd, n;

		rig_open_tls(0, cases[i].reqs);
		write_pair("stranger", other_cert, other_key);
		if (cases[i].who != NOBODY) {
			bool own = cases[i].who == KNOWN;

			SSL_CTX_use_certificate_file(ctx, own ? cert_file : other_cert, SSL_FILETYPE_PEM);
			SSL_CTX_use_PrivateKey_file(ctx, own ? key_file : other_key, SSL_FILETYPE_PEM);
		}
		ssl = tls_client(ctx, &fd);
		n = tls(ssl, CONNECT, NULL, 0);        /* with TLS 1.3 a refusal comes after it */
		if (n == 1)
			tls(ssl, WRITE, (void *)(uintptr_t)(G "\r\n"), sizeof(G "\r\n") - 1);
		n = tls(ssl, READ, buf, sizeof(buf) - 1);
		buf[n > 0 ? n : 0] = 0;
		if ((strstr(buf, "200 OK") != NULL) != cases[i].in || app.n_handled != cases[i].in)
			fail_msg("--ssl-cert-reqs %d, case %zu: %s", cases[i].reqs, i, buf);
		SSL_free(ssl);
		SSL_CTX_free(ctx);
		close(fd);
		UNTIL(server_connections(server) == 0);
		rig_close_tls();
	}
	assert_true(tls_context_create(&none, "c", "k", NULL, 2, err, sizeof(err)) < 0);
	assert_non_null(strstr(err, "--ssl-ca-certs"));
	assert_true(tls_context_create(&none, "c", "k", "a", 3, err, sizeof(err)) < 0);
	assert_non_null(strstr(err, "0, 1 or 2"));
}

/* ---- all of it, on both loops --------------------------------------------------------------- */

/* A client that keeps asking for new keys, sends a byte of its body now and then, and reads no answer is ended,
 * because we must hold the answers. */
static void test_key_updates(void **state)
{
	enum { AT_ONCE = 16, MOST = 100000 };  /* 100,000 answers are 2.7 MB */
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	int fd, small = 4096, n = 0;
	SSL *ssl;

	(void)state;
	signal(SIGPIPE, SIG_IGN);
	rig_open_tls(0, 0);
	SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)); /* before connecting: it bounds the window */
	assert_int_equal(connect(fd, (struct sockaddr *)&where, sizeof(where)), 0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	ssl = SSL_new(ctx);
	SSL_set_fd(ssl, fd);
	assert_int_equal(tls(ssl, CONNECT, NULL, 0), 1);
	tls_say(ssl, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
	for (; n < MOST && server_connections(server); n += AT_ONCE) {
		for (int i = 0; i < AT_ONCE; i++) {
			SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED);
			while (SSL_do_handshake(ssl) != 1 && server_connections(server))
				io_poll(io);
			io_poll(io);          /* requests that arrive together get one answer */
		}
		while (SSL_write(ssl, "x", 1) != 1 && server_connections(server))
			io_poll(io);
	}
	assert_true(n < MOST);
	assert_true(n > 1000);                /* a few are allowed */
	SSL_free(ssl);
	SSL_CTX_free(ctx);
	close(fd);
	rig_close_tls();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tls), cmocka_unit_test(test_tls_12), cmocka_unit_test(test_no_memory), cmocka_unit_test(test_tls_bytes),
		cmocka_unit_test(test_tls_big), cmocka_unit_test(test_tls_memory), cmocka_unit_test(test_key_of_another),
		cmocka_unit_test(test_tls_hostile), cmocka_unit_test(test_key_updates),
		cmocka_unit_test(test_client_certificates),
	};

	return rig_run(tests, sizeof(tests) / sizeof(*tests));
}
