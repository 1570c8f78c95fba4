/* tls.c - TLS for conn.c.  See tls.h. */
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tls.h"

struct tls_context { SSL_CTX *ctx; };
struct tls { SSL *ssl; BIO *from, *to; };  /* both BIOs belong to ssl */

static int complain(char *err, size_t errlen, const char *what, const char *file)
{
	const char *why = ERR_reason_error_string(ERR_peek_last_error());

	snprintf(err, errlen, "%s %s: %s", what, file, why ? why : "cannot be used");
	ERR_clear_error();
	return -EINVAL;
}

/* A client that does not offer HTTP/1.1, only h2 for example, gets an alert at once. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *outlen,
                           const unsigned char *in, unsigned int inlen, void *arg)
{
	static const unsigned char ours[] = "\x08http/1.1";
	unsigned char *chosen;
	int r = SSL_select_next_proto(&chosen, outlen, ours, sizeof(ours) - 1, in, inlen);

	(void)ssl;
	(void)arg;
	*out = chosen;
	return r == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

/* OpenSSL would ask for a key's passphrase on the terminal; a server has none. */
static int no_passphrase(char *buf, int size, int rwflag, void *arg)
{
	(void)buf;
	(void)size;
	(void)rwflag;
	(void)arg;
	return -1;
}

static int load(SSL_CTX *ctx, const char *certfile, const char *keyfile, const char *cafile,
                char *err, size_t errlen)
{
	if (!keyfile)  /* both in one file, as Python's load_cert_chain allows */
		keyfile = certfile;
	ERR_clear_error();
	SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
	if (SSL_CTX_use_certificate_chain_file(ctx, certfile) != 1)
		return complain(err, errlen, "--ssl-certfile", certfile);
	if (SSL_CTX_use_PrivateKey_file(ctx, keyfile, SSL_FILETYPE_PEM) != 1)
		return complain(err, errlen, "--ssl-keyfile", keyfile);
	if (SSL_CTX_check_private_key(ctx) != 1)
		return complain(err, errlen, "The private key does not match the certificate:", keyfile);
	if (cafile) {
		STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(cafile);

		if (!names || SSL_CTX_load_verify_locations(ctx, cafile, NULL) != 1) {
			sk_X509_NAME_pop_free(names, X509_NAME_free);
			return complain(err, errlen, "--ssl-ca-certs", cafile);
		}
		SSL_CTX_set_client_CA_list(ctx, names);
	}
	return 0;
}

int tls_context_create(struct tls_context **out, const char *certfile, const char *keyfile,
                       const char *cafile, int cert_reqs, char *err, size_t errlen)
{
	static const int verify[] = { SSL_VERIFY_NONE, SSL_VERIFY_PEER,
	                              SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT };
	struct tls_context *c;
	int r;

	if (cert_reqs < 0 || cert_reqs > 2) {
		snprintf(err, errlen, "--ssl-cert-reqs is %d; it must be 0, 1 or 2.", cert_reqs);
		return -EINVAL;
	}
	if (cert_reqs && !cafile) {
		snprintf(err, errlen, "--ssl-cert-reqs %d needs --ssl-ca-certs.", cert_reqs);
		return -EINVAL;
	}
	c = calloc(1, sizeof(*c));
	if (c)
		c->ctx = SSL_CTX_new(TLS_server_method());
	if (!c || !c->ctx) {
		free(c);
		snprintf(err, errlen, "TLS: out of memory.");
		return -ENOMEM;
	}
	SSL_CTX_set_min_proto_version(c->ctx, TLS1_2_VERSION);
	SSL_CTX_set_options(c->ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
	                            SSL_OP_CIPHER_SERVER_PREFERENCE);
	/* No resumption.  It saves one signature per connection, which is negligible beside a prompt.
	 * Without it there is no state to keep or to share with other adapter processes. */
	SSL_CTX_set_num_tickets(c->ctx, 0);
	SSL_CTX_set_session_cache_mode(c->ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_mode(c->ctx, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_alpn_select_cb(c->ctx, choose_protocol, NULL);
	SSL_CTX_set_verify(c->ctx, verify[cert_reqs], NULL);
	r = load(c->ctx, certfile, keyfile, cafile, err, errlen);
	if (r < 0) {
		tls_context_destroy(c);
		return r;
	}
	*out = c;
	return 0;
}

void tls_context_destroy(struct tls_context *c)
{
	if (!c)
		return;
	SSL_CTX_free(c->ctx);  /* reference counted: each SSL holds one */
	free(c);
}

struct tls *tls_create(struct tls_context *c)
{
	struct tls *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->ssl = SSL_new(c->ctx);
	t->from = BIO_new(BIO_s_mem());
	t->to = BIO_new(BIO_s_mem());
	if (!t->ssl || !t->from || !t->to) {
		BIO_free(t->from);
		BIO_free(t->to);
		SSL_free(t->ssl);
		free(t);
		ERR_clear_error();
		return NULL;
	}
	BIO_set_mem_eof_return(t->from, -1);  /* empty means "later", not "closed" */
	SSL_set_bio(t->ssl, t->from, t->to);
	SSL_set_accept_state(t->ssl);
	return t;
}

void tls_destroy(struct tls *t)
{
	if (!t)
		return;
	SSL_free(t->ssl);
	free(t);
}

int tls_put(struct tls *t, const void *bytes, size_t n)
{
	size_t written;

	return BIO_write_ex(t->from, bytes, n, &written) && written == n ? 0 : -ENOMEM;
}

ssize_t tls_read(struct tls *t, void *buf, size_t cap)
{
	size_t n;
	int r;

	ERR_clear_error();
	r = SSL_read_ex(t->ssl, buf, cap, &n);
	if (r == 1)
		return (ssize_t)n;
	r = SSL_get_error(t->ssl, r);
	ERR_clear_error();
	return r == SSL_ERROR_WANT_READ || r == SSL_ERROR_WANT_WRITE ? -EAGAIN :
	       r == SSL_ERROR_ZERO_RETURN ? 0 : -EPROTO;
}

int tls_write(struct tls *t, const void *data, size_t n)
{
	size_t written;
	int r;

	ERR_clear_error();
	r = SSL_write_ex(t->ssl, data, n, &written);  /* a memory BIO accepts all bytes */
	ERR_clear_error();
	return r == 1 && written == n ? 0 : -EPROTO;
}

void tls_bye(struct tls *t)
{
	if (SSL_is_init_finished(t->ssl))
		SSL_shutdown(t->ssl);
	ERR_clear_error();
}

size_t tls_take(struct tls *t, void *buf, size_t cap)
{
	size_t n = 0;

	return BIO_read_ex(t->to, buf, cap, &n) ? n : 0;
}

size_t tls_waiting(const struct tls *t)
{
	return BIO_ctrl_pending(t->to);
}

bool tls_unread(const struct tls *t)
{
	return BIO_ctrl_pending(t->from) || SSL_has_pending(t->ssl);
}

bool tls_established(const struct tls *t)
{
	return SSL_is_init_finished(t->ssl);
}
