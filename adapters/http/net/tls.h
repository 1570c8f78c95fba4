/* tls.h - TLS for conn.c: bytes in, bytes out, no sockets.  OpenSSL over two memory BIOs.
 *
 * One struct tls_context per server, one struct tls per connection; used on the loop's thread only.
 * TLS 1.2 and 1.3, ALPN "http/1.1", no session tickets and no renegotiation.
 */
#ifndef TLS_H
#define TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct tls_context;
struct tls;

/* cert_reqs: 0 no client certificate, 1 ask for one, 2 require one (Python's numbers, vLLM's
 * flag); cafile: the trusted CAs.  0, or -errno and one sentence. */
int  tls_context_create(struct tls_context **out, const char *certfile, const char *keyfile,
                        const char *cafile, int cert_reqs, char *err, size_t errlen);
void tls_context_destroy(struct tls_context *c);  /* its connections stay usable */

struct tls *tls_create(struct tls_context *c);    /* NULL: no memory */
void tls_destroy(struct tls *t);

/* Give it bytes from the socket.  0, -ENOMEM. */
int  tls_put(struct tls *t, const void *bytes, size_t n);
/* Plain text: > 0 bytes; -EAGAIN: needs more from the socket; 0: the client sent close_notify;
 * -EPROTO: not TLS, or a TLS error.  Runs the handshake too. */
ssize_t tls_read(struct tls *t, void *buf, size_t cap);
/* Encrypt all of data, in new records.  0, -EPROTO (also before the handshake ends). */
int  tls_write(struct tls *t, const void *data, size_t n);
void tls_bye(struct tls *t);                      /* sends close_notify */
/* Take up to cap bytes of what must go to the socket. */
size_t tls_take(struct tls *t, void *buf, size_t cap);
size_t tls_waiting(const struct tls *t);          /* bytes ready for tls_take */
bool tls_unread(const struct tls *t);             /* tls_read may return text without another tls_put */
bool tls_established(const struct tls *t);        /* the handshake is complete */

#endif
