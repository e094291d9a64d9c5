// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tls.h"

#define SUITE "TLS_AES_256_GCM_SHA384"
static const unsigned char suite_id[] = { 0x13, 0x02 };

/* Limit of a record's payload. */
#define RECORD 16384
/*
 * Measured with OpenSSL 3.0: each end of a connection takes 47 KiB, 76 KiB during its handshake.
 * The heap also has its queue and buffer, 63 KiB at a donor, as nothing is mapped any more.
 */
#define CONNECTION_BYTES (128u << 10)
/* Contexts, providers, tables: 0.3 MiB, made once. */
#define COMMON_BYTES (1u << 20)

struct tls_context {
	SSL_CTX *ctx;
	struct key key;             /* borrower only */
	const struct keyring *ring; /* donor only, else NULL */
};

static SSL_SESSION *session_of(SSL *ssl, const uint8_t key[static KEY_BYTES])
{
	const SSL_CIPHER *suite = SSL_CIPHER_find(ssl, suite_id);
	SSL_SESSION *session = SSL_SESSION_new();

	if (session && suite && SSL_SESSION_set1_master_key(session, key, KEY_BYTES) &&
	    SSL_SESSION_set_cipher(session, suite) &&
	    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
		return session;
	SSL_SESSION_free(session);
	return NULL;
}

static void remember(struct tls *t, const struct key *k)
{
	strcpy(t->name, k->name);
	strcpy(t->fingerprint, k->fingerprint);
}

/* For the borrower: offers its key by identity. */
static int offer(SSL *ssl, const EVP_MD *md, const unsigned char **identity, size_t *len,
		 SSL_SESSION **session)
{
	const struct tls *t = SSL_get_app_data(ssl);

	*session = session_of(ssl, t->key);
	*identity = (const unsigned char *)t->identity;
	*len = strlen(t->identity);
	return *session != NULL;
}

/* Copies @identity, which comes from the network, in printable form. */
static void printable(char *to, size_t size, const unsigned char *identity, size_t len)
{
	size_t i;

	for (i = 0; i < len && i < size - 1; i++)
		to[i] = identity[i] > ' ' && identity[i] < 0x7f ? (char)identity[i] : '?';
	to[i] = '\0';
}

/* For the donor: finds the key that the borrower offers. */
static int find(SSL *ssl, const unsigned char *identity, size_t len, SSL_SESSION **session)
{
	struct tls *t = SSL_get_app_data(ssl);
	const struct keyring *ring = t->context->ring;
	const struct key *k = keyring_find(ring, (const char *)identity, len);
	char shown[KEY_IDENTITY];

	*session = NULL;
	if (k) {
		remember(t, k);
		*session = session_of(ssl, k->bytes);
		return *session != NULL;
	}
	printable(shown, sizeof(shown), identity, len);
	snprintf(t->why, sizeof(t->why), "unknown key %s; %sadd one of \"ebbctl key derive\" to --keys",
		 shown, keyring_has_name(ring, shown, strcspn(shown, ":")) ?
		 "the name is known with another key: " : "");
	/* Without a session OpenSSL looks for a certificate, finds none and fails. */
	return 1;
}

/* Detects TLS messages after the handshake: ebb sends none, and each costs work and an answer. */
static void look(int sent, int version, int type, const void *message, size_t len, SSL *ssl,
		 void *arg)
{
	struct tls *t = SSL_get_app_data(ssl);

	if (!sent && t && t->shaken && type == SSL3_RT_HANDSHAKE)
		t->meddled = true;
}

static int context_new(struct tls_context **out, const SSL_METHOD *method, struct error *e)
{
	struct tls_context *c = calloc(1, sizeof(*c));

	if (c)
		c->ctx = SSL_CTX_new(method);
	if (!c || !c->ctx || !SSL_CTX_set_min_proto_version(c->ctx, TLS1_3_VERSION) ||
	    !SSL_CTX_set_max_proto_version(c->ctx, TLS1_3_VERSION) ||
	    !SSL_CTX_set_ciphersuites(c->ctx, SUITE) || !SSL_CTX_set_num_tickets(c->ctx, 0) ||
	    !SSL_CTX_set_max_early_data(c->ctx, 0)) {
		tls_context_free(&c);
		return fail(e, ENOSYS, "TLS: OpenSSL has no TLS 1.3 with " SUITE " here; see openssl.cnf(5)");
	}
	SSL_CTX_set_options(c->ctx, SSL_OP_NO_TICKET);
	SSL_CTX_set_session_cache_mode(c->ctx, SSL_SESS_CACHE_OFF);
	/* A retry sends from the stream's ring, which may have grown. */
	SSL_CTX_set_mode(c->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
				 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	/* Return from a read after such a message, too. */
	SSL_CTX_clear_mode(c->ctx, SSL_MODE_AUTO_RETRY);
	SSL_CTX_set_msg_callback(c->ctx, look);
	*out = c;
	return 0;
}

int tls_borrower(struct tls_context **out, const struct key *key, struct error *e)
{
	int r = context_new(out, TLS_client_method(), e);

	if (r)
		return r;
	(*out)->key = *key;
	SSL_CTX_set_psk_use_session_callback((*out)->ctx, offer);
	/* Rejects a certificate instead of the key: there is no authority to verify it. */
	SSL_CTX_set_verify((*out)->ctx, SSL_VERIFY_PEER, NULL);
	return 0;
}

int tls_donor(struct tls_context **out, const struct keyring *ring, struct error *e)
{
	int r = context_new(out, TLS_server_method(), e);

	if (r)
		return r;
	(*out)->ring = ring;
	SSL_CTX_set_psk_find_session_callback((*out)->ctx, find);
	return 0;
}

void tls_context_free(struct tls_context **cp)
{
	struct tls_context *c = *cp;

	if (!c)
		return;
	SSL_CTX_free(c->ctx);
	key_forget(&c->key);
	free(c);
	*cp = NULL;
}

/* Sets errno for an incomplete call.  Returns 0 at end of stream, else -1. */
static ssize_t outcome(struct tls *t, int result)
{
	int error = errno;

	switch (SSL_get_error(t->ssl, result)) {
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE:
		errno = EAGAIN;
		return -1;
	case SSL_ERROR_ZERO_RETURN:
		return 0;
	case SSL_ERROR_SYSCALL:
		errno = error ? error : ECONNRESET;
		return -1;
	}
	/*
	 * After the handshake both sides keep to TLS, so its records were altered on the way here
	 * or, as an alert says, to the peer.  OpenSSL answers an end of the connection without a
	 * message by the alert "decode error", which no altered record causes: its tag is wrong.
	 */
	switch (ERR_GET_REASON(ERR_peek_error())) {
	case SSL_R_UNEXPECTED_EOF_WHILE_READING:
	case SSL_R_TLSV1_ALERT_DECODE_ERROR:
		errno = ECONNRESET;
		return -1;
	}
	errno = t->shaken ? EBADMSG : EPROTO;
	return -1;
}

static void forget_errors(void)
{
	ERR_clear_error();
	errno = 0;
}

/*
 * Ends a receive of @got bytes so far that a call with @result has interrupted.  OpenSSL tells the
 * cause of an error once: it is kept until the bytes before it are taken.
 */
static ssize_t interrupted(struct tls *t, int result, ssize_t got)
{
	ssize_t r = outcome(t, result);

	if (r < 0 && errno != EAGAIN)
		t->broken = errno;
	return got ? got : r;
}

static ssize_t tls_receive(void *channel, int fd, struct msghdr *m)
{
	struct tls *t = channel;
	ssize_t got = 0;

	if (t->broken) {
		errno = t->broken;
		return -1;
	}

	for (size_t i = 0; i < m->msg_iovlen; i++) {
		const struct iovec *v = &m->msg_iov[i];
		size_t some;

		for (size_t done = 0; done < v->iov_len; done += some) {
			int r;

			forget_errors();
			r = SSL_read_ex(t->ssl, (char *)v->iov_base + done, v->iov_len - done,
					&some);
			if (t->meddled) {
				errno = EPROTO;
				return -1;
			}
			if (r != 1)
				return interrupted(t, r, got);
			got += (ssize_t)some;
		}
	}
	return got;
}

/* Copies up to @size bytes of @m from byte @skip on; returns their number. */
static size_t gather(const struct msghdr *m, size_t skip, uint8_t *to, size_t size)
{
	size_t len = 0;

	for (size_t i = 0; i < m->msg_iovlen && len < size; i++) {
		size_t some = m->msg_iov[i].iov_len;

		if (skip >= some) {
			skip -= some;
			continue;
		}
		some = some - skip < size - len ? some - skip : size - len;
		memcpy(to + len, (uint8_t *)m->msg_iov[i].iov_base + skip, some);
		len += some;
		skip = 0;
	}
	return len;
}

static ssize_t tls_send(void *channel, int fd, struct msghdr *m)
{
	struct tls *t = channel;
	/* Frames sent together form one record. */
	uint8_t record[RECORD];
	size_t all = 0, len, sent;

	while ((len = gather(m, all, record, sizeof(record)))) {
		int r;

		forget_errors();
		r = SSL_write_ex(t->ssl, record, len, &sent);
		if (r != 1)
			return all ? (ssize_t)all : outcome(t, r) ?: -1;
		all += sent;
	}
	return (ssize_t)all;
}

static size_t tls_pending(void *channel)
{
	const struct tls *t = channel;

	return t->broken ? 1 : (size_t)SSL_pending(t->ssl);
}

const struct stream_io tls_io = { tls_receive, tls_send, tls_pending };

/*
 * A socket for OpenSSL: as its own, but without SIGPIPE, of which the disposition is the program's.
 */
static int socket_of(BIO *b)
{
	return (int)(intptr_t)BIO_get_data(b);
}

static int write_quietly(BIO *b, const char *from, int n)
{
	ssize_t r = send(socket_of(b), from, (size_t)n, MSG_NOSIGNAL);

	BIO_clear_retry_flags(b);
	if (r <= 0 && BIO_sock_should_retry((int)r))
		BIO_set_retry_write(b);
	return (int)r;
}

static int read_socket(BIO *b, char *to, int n)
{
	ssize_t r = recv(socket_of(b), to, (size_t)n, 0);

	BIO_clear_retry_flags(b);
	if (r == 0)
		BIO_set_flags(b, BIO_FLAGS_IN_EOF);
	else if (r < 0 && BIO_sock_should_retry((int)r))
		BIO_set_retry_read(b);
	return (int)r;
}

static long control_socket(BIO *b, int what, long number, void *argument)
{
	if (what == BIO_CTRL_EOF)
		return BIO_test_flags(b, BIO_FLAGS_IN_EOF) != 0;
	return what == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method;

static void make_method(void)
{
	method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE");
	if (method && BIO_meth_set_write(method, write_quietly) &&
	    BIO_meth_set_read(method, read_socket) && BIO_meth_set_ctrl(method, control_socket))
		return;
	BIO_meth_free(method);
	method = NULL;
}

/* Returns @fd as OpenSSL reads and writes it, or NULL without memory; @fd stays open. */
static BIO *bio_of(int fd)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	BIO *b;

	pthread_once(&once, make_method);
	b = method ? BIO_new(method) : NULL;
	if (b) {
		BIO_set_data(b, (void *)(intptr_t)fd);
		BIO_set_init(b, 1);
	}
	return b;
}

/* @k: the key that a borrower offers. */
static int start(struct tls *t, struct tls_context *c, int fd, const struct key *k)
{
	SSL *ssl = SSL_new(c->ctx);
	BIO *b = ssl ? bio_of(fd) : NULL;

	if (!b) {
		SSL_free(ssl);
		return -ENOMEM;
	}
	SSL_set_bio(ssl, b, b);
	*t = (struct tls){ .ssl = ssl, .context = c };
	SSL_set_app_data(ssl, t);
	if (c->ring) {
		SSL_set_accept_state(ssl);
	} else {
		SSL_set_connect_state(ssl);
		remember(t, k);
		memcpy(t->key, k->bytes, KEY_BYTES);
		key_identity(k, t->identity);
	}
	return 0;
}

int tls_start(struct tls *t, struct tls_context *c, int fd)
{
	return start(t, c, fd, &c->key);
}

int tls_start_derived(struct tls *t, struct tls_context *c, int fd, const char *donor)
{
	struct key k;
	int r = key_derive(&k, &c->key, donor) ? -ENOMEM : start(t, c, fd, &k);

	key_forget(&k);
	return r;
}

/* Sets t->why to the cause of the failure and its remedy. */
static void explain(struct tls *t, int result)
{
	bool donor = t->context->ring != NULL;
	unsigned long error = ERR_peek_error();
	bool malformed = outcome(t, result) < 0 && errno == EPROTO;
	const char *text;

	if (*t->why)
		return;
	if (!malformed) {
		t->closed = true;
		snprintf(t->why, sizeof(t->why), "connection closed during the TLS handshake%s",
			 donor ? "" : "; start the donor with --keys, or leave --key out");
		return;
	}
	switch (ERR_GET_REASON(error)) {
	case SSL_R_WRONG_VERSION_NUMBER:
	case SSL_R_HTTP_REQUEST:
	case SSL_R_PACKET_LENGTH_TOO_LONG:
	case SSL_R_UNSOLICITED_EXTENSION:
		snprintf(t->why, sizeof(t->why), "does not speak TLS; %s", donor ?
			 "give the borrower a --key" : "start the donor with --keys, or leave --key out");
		return;
	case SSL_R_UNSUPPORTED_PROTOCOL:
	case SSL_R_NO_PROTOCOLS_AVAILABLE:
	case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
		strcpy(t->why, "speaks another version of TLS; both sides need TLS 1.3");
		return;
	case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
	case SSL_R_TLSV1_ALERT_UNKNOWN_PSK_IDENTITY:
		if (donor)
			break;
		t->unknown = true;
		snprintf(t->why, sizeof(t->why),
			 "it does not know key %s; add one of \"ebbctl key derive\" to the donor's --keys",
			 t->identity);
		return;
	case SSL_R_NO_SHARED_CIPHER:
	case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
	case SSL_R_CERTIFICATE_VERIFY_FAILED:
		strcpy(t->why, donor ? "connected without a key; give the borrower a --key" :
		       "it does not use our key; start the donor with --keys");
		return;
	}
	text = ERR_reason_error_string(error);
	snprintf(t->why, sizeof(t->why), "TLS: %s; compare the key files of both sides",
		 text ? text : "failed");
}

int tls_handshake(struct tls *t)
{
	int r;

	forget_errors();
	r = SSL_do_handshake(t->ssl);
	if (r == 1) {
		t->wants_write = false;
		t->shaken = true;
		/* OpenSSL calls a handshake by a shared key "reused". */
		if (SSL_session_reused(t->ssl))
			return 0;
		strcpy(t->why, "it does not use our key; both sides need the same key file");
		return -EACCES;
	}
	switch (SSL_get_error(t->ssl, r)) {
	case SSL_ERROR_WANT_READ:
		t->wants_write = false;
		return 1;
	case SSL_ERROR_WANT_WRITE:
		t->wants_write = true;
		return 1;
	}
	explain(t, r);
	return -EACCES;
}

void tls_move(struct tls *to, struct tls *from)
{
	*to = *from;
	SSL_set_app_data(to->ssl, to);
	from->ssl = NULL;
	tls_stop(from);
}

void tls_stop(struct tls *t)
{
	SSL_free(t->ssl);
	t->ssl = NULL;
	OPENSSL_cleanse(t->key, sizeof(t->key));
}

int tls_export(struct tls *t, const char *label, void *out, size_t len)
{
	return SSL_export_keying_material(t->ssl, out, len, label, strlen(label), NULL, 0, 0) == 1 ?
	       0 : -EIO;
}

int tls_reserve(unsigned connections, struct error *e)
{
	size_t size = COMMON_BYTES + connections * (size_t)CONNECTION_BYTES;
	void *p;

	/*
	 * The main thread's heap grows by brk(2) only and never shrinks: freed memory of one
	 * connection serves the next.
	 */
	mallopt(M_MMAP_MAX, 0);
	mallopt(M_TRIM_THRESHOLD, INT_MAX);
	p = malloc(size);
	if (!p)
		return fail(e, ENOMEM, "TLS: no %zu MiB for its connections; leave donors out", size >> 20);
	memset(p, 1, size);
	/* Keeps the compiler from omitting the memset(). */
	__asm__ volatile("" : : "r"(p) : "memory");
	free(p);
	return 0;
}
