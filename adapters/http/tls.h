/* tls.h - TLS for conn.c: bytes in, bytes out, no sockets.  OpenSSL over two memory BIOs.
 *
 * One struct tls_context per server, one struct tls per connection; the thread of the loop.
 * TLS 1.2 and 1.3, ALPN "http/1.1", no session tickets and no renegotiation.
 */
#ifndef TLS_H
#define TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct tls_context;
struct tls;

/* cert_reqs: 0 none, 1 ask for a client's certificate, 2 require one (Python's numbers, vLLM's
 * flag); cafile: whom to believe.  0, or -errno and one sentence. */
int  tls_context_create(struct tls_context **out, const char *certfile, const char *keyfile,
                        const char *cafile, int cert_reqs, char *err, size_t errlen);
void tls_context_destroy(struct tls_context *c);  /* connections made from it live on */

struct tls *tls_create(struct tls_context *c);    /* NULL: no memory */
void tls_destroy(struct tls *t);

/* What came from the socket.  0, -ENOMEM. */
int  tls_put(struct tls *t, const void *bytes, size_t n);
/* Plain text: > 0 bytes; -EAGAIN: more must come from the socket; 0: the peer said goodbye;
 * -EPROTO: it does not speak TLS, or broke it.  Runs the handshake too. */
ssize_t tls_read(struct tls *t, void *buf, size_t cap);
/* All of it, in records of its own.  0, -EPROTO (before the end of the handshake, too). */
int  tls_write(struct tls *t, const void *data, size_t n);
void tls_bye(struct tls *t);                      /* close_notify */
/* What must go to the socket: up to cap bytes are taken. */
size_t tls_take(struct tls *t, void *buf, size_t cap);
size_t tls_waiting(const struct tls *t);          /* bytes that tls_take would give */
bool tls_unread(const struct tls *t);             /* tls_read may have something without tls_put */
bool tls_established(const struct tls *t);        /* the handshake is over */

#endif
