// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lib/wire/tls.h"

#include <cmocka.h>

enum { BORROWER, DONOR };

struct world {
	struct key key;
	struct keyring ring;
	struct tls_context *context[2];
	struct tls tls[2];
	int fd[2];
};

static void sockets(struct world *w)
{
	for (int i = 0; i < 2; i++)
		if (w->fd[i] >= 0)
			close(w->fd[i]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, w->fd), 0);
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	*state = w;
	w->fd[0] = w->fd[1] = -1;
	sockets(w);
	w->ring.keys = calloc(KEYRING_MAX, sizeof(*w->ring.keys));
	w->ring.count = 2;
	return key_make(&w->ring.keys[0], "flink", NULL) ?: key_make(&w->key, "spark", NULL) ?:
	       (w->ring.keys[1] = w->key, tls_donor(&w->context[DONOR], &w->ring, NULL)) ?:
	       tls_borrower(&w->context[BORROWER], &w->key, NULL);
}

static int teardown(void **state)
{
	struct world *w = *state;

	for (int i = 0; i < 2; i++) {
		tls_stop(&w->tls[i]);
		tls_context_free(&w->context[i]);
		if (w->fd[i] >= 0)
			close(w->fd[i]);
	}
	keyring_free(&w->ring);
	free(w);
	return 0;
}

/* The borrower's key becomes @k. */
static void use_key(struct world *w, const struct key *k)
{
	tls_context_free(&w->context[BORROWER]);
	assert_int_equal(tls_borrower(&w->context[BORROWER], k, NULL), 0);
}

static void start(struct world *w)
{
	for (int i = 0; i < 2; i++)
		assert_int_equal(tls_start(&w->tls[i], w->context[i], w->fd[i]), 0);
}

/* Both go on as far as they get; @r is what each came to. */
static void shake(struct world *w, int r[2])
{
	r[BORROWER] = r[DONOR] = 1;
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 2; i++) {
			if (r[i] != 1)
				continue;
			r[i] = tls_handshake(&w->tls[i]);
			/* As its owner would. */
			if (r[i] < 0)
				shutdown(w->fd[i], SHUT_WR);
		}
	}
}

static void connect_both(struct world *w)
{
	int r[2];

	start(w);
	shake(w, r);
	assert_string_equal(w->tls[DONOR].why, "");
	assert_int_equal(r[BORROWER], 0);
	assert_int_equal(r[DONOR], 0);
}

static void refused(struct world *w, const char *borrower_says, const char *donor_says)
{
	int r[2];

	start(w);
	shake(w, r);
	assert_int_equal(r[BORROWER], -EACCES);
	assert_int_equal(r[DONOR], -EACCES);
	if (!strstr(w->tls[BORROWER].why, borrower_says))
		fail_msg("the borrower says: %s", w->tls[BORROWER].why);
	if (!strstr(w->tls[DONOR].why, donor_says))
		fail_msg("the donor says: %s", w->tls[DONOR].why);
}

static void same_key(void **state)
{
	struct world *w = *state;
	uint8_t a[32], b[32], other[32];
	EVP_PKEY *ephemeral = NULL;
	char byte;

	connect_both(w);
	assert_string_equal(w->tls[DONOR].name, "spark");
	assert_string_equal(w->tls[DONOR].fingerprint, w->key.fingerprint);
	assert_int_equal(SSL_version(w->tls[DONOR].ssl), TLS1_3_VERSION);
	assert_string_equal(SSL_get_cipher(w->tls[DONOR].ssl), "TLS_AES_256_GCM_SHA384");
	/* ECDHE: the key alone opens no earlier connection. */
	assert_int_equal(SSL_get_peer_tmp_key(w->tls[DONOR].ssl, &ephemeral), 1);
	EVP_PKEY_free(ephemeral);
	/* No ticket, or anything else, follows the handshake. */
	assert_int_equal(recv(w->fd[BORROWER], &byte, 1, MSG_PEEK), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(tls_export(&w->tls[BORROWER], "EXPORTER-ebb-data", a, sizeof(a)), 0);
	assert_int_equal(tls_export(&w->tls[DONOR], "EXPORTER-ebb-data", b, sizeof(b)), 0);
	assert_memory_equal(a, b, sizeof(a));
	assert_int_equal(tls_export(&w->tls[DONOR], "EXPORTER-ebb-other", other, sizeof(other)), 0);
	assert_memory_not_equal(a, other, sizeof(a));
	/* The next connection has another key. */
	for (int i = 0; i < 2; i++)
		tls_stop(&w->tls[i]);
	sockets(w);
	connect_both(w);
	assert_int_equal(tls_export(&w->tls[DONOR], "EXPORTER-ebb-data", b, sizeof(b)), 0);
	assert_memory_not_equal(a, b, sizeof(a));
}

static void unknown_name(void **state)
{
	struct world *w = *state;
	struct key k;

	assert_int_equal(key_make(&k, "stranger", NULL), 0);
	use_key(w, &k);
	refused(w, "does not know key stranger:", "unknown key stranger:");
	assert_non_null(strstr(w->tls[DONOR].why, "--keys"));
	assert_non_null(strstr(w->tls[BORROWER].why, "--keys"));
}

static void another_key_of_the_name(void **state)
{
	struct world *w = *state;
	struct key k;

	assert_int_equal(key_make(&k, "spark", NULL), 0);
	use_key(w, &k);
	refused(w, "does not know key spark:", "the name is known with another key");
}

static void a_liar(void **state)
{
	struct world *w = *state;
	struct key k = w->key;

	/* Says what it should know, and does not know it. */
	k.bytes[7] ^= 1;
	use_key(w, &k);
	refused(w, "TLS: ", "TLS: ");
}

static void a_key_taken_away(void **state)
{
	struct world *w = *state;

	w->ring.count = 1;
	refused(w, "does not know key spark:", "unknown key spark:");
}

static void both_keys_during_a_change(void **state)
{
	struct world *w = *state;
	struct key k;

	assert_int_equal(key_make(&k, "spark", NULL), 0);
	w->ring.keys[w->ring.count++] = k;
	connect_both(w);
	for (int i = 0; i < 2; i++)
		tls_stop(&w->tls[i]);
	sockets(w);
	use_key(w, &k);
	connect_both(w);
	assert_string_equal(w->tls[DONOR].name, "spark");
	assert_string_equal(w->tls[DONOR].fingerprint, k.fingerprint);
}

/* The donor's only keys become @a and @b. */
static void give_keys(struct world *w, const struct key *a, const struct key *b)
{
	w->ring.keys[0] = *a;
	w->ring.keys[1] = *b;
	w->ring.count = 2;
}

static struct key derived(const struct world *w, const char *donor)
{
	struct key k;

	assert_int_equal(key_derive(&k, &w->key, donor), 0);
	return k;
}

static void again(struct world *w)
{
	for (int i = 0; i < 2; i++)
		tls_stop(&w->tls[i]);
	sockets(w);
}

#define HERE "10.0.0.7:7070"
#define ELSEWHERE "10.0.0.8:7070"

/* Returns the borrower's result, 0 or -EACCES, with the key derived for HERE. */
static int offer_derived(struct world *w)
{
	int r[2];

	assert_int_equal(tls_start(&w->tls[DONOR], w->context[DONOR], w->fd[DONOR]), 0);
	assert_int_equal(tls_start_derived(&w->tls[BORROWER], w->context[BORROWER],
					   w->fd[BORROWER], HERE), 0);
	shake(w, r);
	assert_int_equal(r[BORROWER], r[DONOR]);
	return r[BORROWER];
}

static void a_derived_key(void **state)
{
	struct world *w = *state;
	struct key here = derived(w, HERE);

	give_keys(w, &here, &w->ring.keys[0]);
	assert_int_equal(offer_derived(w), 0);
	/* Sessions and quotas go by the name. */
	assert_string_equal(w->tls[DONOR].name, "spark");
	assert_string_equal(w->tls[DONOR].fingerprint, here.fingerprint);
	assert_string_equal(w->tls[BORROWER].fingerprint, here.fingerprint);
	/* The shared key is unknown there. */
	again(w);
	refused(w, "it does not know key spark:", "the name is known with another key");
	assert_true(w->tls[BORROWER].unknown);
}

/* A donor with a shared key only refuses the derived one; then the borrower offers the other. */
static void a_shared_key_after_a_derived_one(void **state)
{
	struct world *w = *state;

	assert_int_equal(offer_derived(w), -EACCES);
	assert_true(w->tls[BORROWER].unknown);
	assert_non_null(strstr(w->tls[DONOR].why, "\"ebbctl key derive\""));
	again(w);
	connect_both(w);
	assert_false(w->tls[BORROWER].unknown);
	assert_string_equal(w->tls[DONOR].fingerprint, w->key.fingerprint);
}

/* The donor ELSEWHERE, at the address of the one HERE. */
static void a_donor_cannot_act_as_another(void **state)
{
	struct world *w = *state;
	struct key here = derived(w, HERE), elsewhere = derived(w, ELSEWHERE), liar = elsewhere;

	give_keys(w, &elsewhere, &elsewhere);
	assert_int_equal(offer_derived(w), -EACCES);
	again(w);
	refused(w, "it does not know key spark:", "unknown key spark:");
	/* It claims the names of the keys that it lacks. */
	for (int i = 0; i < 2; i++) {
		strcpy(liar.fingerprint, i ? w->key.fingerprint : here.fingerprint);
		give_keys(w, &liar, &liar);
		again(w);
		if (i)
			refused(w, "TLS: ", "TLS: ");
		else
			assert_int_equal(offer_derived(w), -EACCES);
		assert_false(w->tls[BORROWER].unknown);
	}
}

/* The donor ELSEWHERE connects to the one HERE, during a change of keys and after. */
static void a_donor_cannot_act_as_the_borrower(void **state)
{
	struct world *w = *state;
	struct key here = derived(w, HERE), elsewhere = derived(w, ELSEWHERE), liar = elsewhere;

	for (int i = 0; i < 2; i++) {
		give_keys(w, &here, i ? &here : &w->key);
		use_key(w, &elsewhere);
		again(w);
		refused(w, "does not know key spark:", "unknown key spark:");
		strcpy(liar.fingerprint, here.fingerprint);
		use_key(w, &liar);
		again(w);
		refused(w, "TLS: ", "TLS: ");
		/* A derivation of its key is none of the borrower's. */
		use_key(w, &elsewhere);
		again(w);
		assert_int_equal(offer_derived(w), -EACCES);
	}
}

/* Another program at the end @at, with @ctx; what our end says to it. */
static const char *stranger(struct world *w, int at, SSL_CTX *ctx)
{
	struct tls *ours = &w->tls[!at];
	SSL *ssl = SSL_new(ctx);
	int r = 1, theirs = -1;

	assert_int_equal(tls_start(ours, w->context[!at], w->fd[!at]), 0);
	SSL_set_fd(ssl, w->fd[at]);
	for (int round = 0; round < 10 && r == 1; round++) {
		theirs = at == DONOR ? SSL_accept(ssl) : SSL_connect(ssl);
		r = tls_handshake(ours);
	}
	/* A client may have said all it has to say. */
	assert_true(at == BORROWER || theirs != 1);
	SSL_free(ssl);
	assert_int_equal(r, -EACCES);
	return ours->why;
}

static void tls_1_2(void **state)
{
	struct world *w = *state;
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());

	SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
	assert_non_null(strstr(stranger(w, BORROWER, ctx), "TLS 1.3"));
	SSL_CTX_free(ctx);
}

static void no_key(void **state)
{
	struct world *w = *state;
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());

	assert_non_null(strstr(stranger(w, BORROWER, ctx), "without a key"));
	SSL_CTX_free(ctx);
}

static SSL_CTX *with_certificate(void)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *cert = X509_new();

	X509_gmtime_adj(X509_getm_notBefore(cert), 0);
	X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
	X509_set_pubkey(cert, key);
	X509_sign(cert, key, EVP_sha256());
	assert_int_equal(SSL_CTX_use_certificate(ctx, cert), 1);
	assert_int_equal(SSL_CTX_use_PrivateKey(ctx, key), 1);
	X509_free(cert);
	EVP_PKEY_free(key);
	return ctx;
}

static void a_certificate_is_no_key(void **state)
{
	struct world *w = *state;
	SSL_CTX *ctx = with_certificate();

	assert_non_null(strstr(stranger(w, DONOR, ctx), "does not use our key"));
	SSL_CTX_free(ctx);
}

static void no_tls_at_all(void **state)
{
	static const char hello[] = "EBB1\1\0\0\0 and so on, more than the header of a record";
	static const int sides[] = { BORROWER, DONOR };
	struct world *w = *state;

	for (int i = 0; i < 2; i++) {
		int ours = sides[i];
		struct tls *t = &w->tls[ours];

		sockets(w);
		assert_int_equal(tls_start(t, w->context[ours], w->fd[ours]), 0);
		assert_int_equal(send(w->fd[!ours], hello, sizeof(hello), 0), sizeof(hello));
		assert_int_equal(tls_handshake(t), -EACCES);
		assert_non_null(strstr(t->why, "does not speak TLS; "));
		assert_non_null(strstr(t->why, "--key"));
		tls_stop(t);
	}
}

/* What the borrower says first; its length. */
static ssize_t first_flight(struct world *w, uint8_t *buf, size_t size)
{
	struct tls *t = &w->tls[BORROWER];
	ssize_t n;

	sockets(w);
	assert_int_equal(tls_start(t, w->context[BORROWER], w->fd[BORROWER]), 0);
	assert_int_equal(tls_handshake(t), 1);
	assert_false(t->wants_write);
	n = recv(w->fd[DONOR], buf, size, 0);
	tls_stop(t);
	return n;
}

static void cut_off_anywhere(void **state)
{
	struct world *w = *state;
	uint8_t hello[2048];
	ssize_t n = first_flight(w, hello, sizeof(hello));

	assert_true(n > 100 && n < (ssize_t)sizeof(hello));
	for (ssize_t len = 0; len < n; len++) {
		struct tls *t = &w->tls[DONOR];

		sockets(w);
		assert_int_equal(tls_start(t, w->context[DONOR], w->fd[DONOR]), 0);
		assert_int_equal(send(w->fd[BORROWER], hello, len, 0), len);
		/* A silent one is waited for: how long is its owner's affair. */
		assert_int_equal(tls_handshake(t), 1);
		assert_false(t->wants_write);
		shutdown(w->fd[BORROWER], SHUT_WR);
		assert_int_equal(tls_handshake(t), -EACCES);
		assert_non_null(strstr(t->why, "closed"));
		tls_stop(t);
	}
}

static void changed_or_replayed(void **state)
{
	struct world *w = *state;
	uint8_t hello[2048];
	ssize_t n = first_flight(w, hello, sizeof(hello));
	struct tls *t = &w->tls[DONOR];

	for (ssize_t i = 0; i <= n; i++) {
		sockets(w);
		assert_int_equal(tls_start(t, w->context[DONOR], w->fd[DONOR]), 0);
		if (i < n)
			hello[i] ^= 0x40;
		send(w->fd[BORROWER], hello, n, 0);
		if (i < n)
			hello[i] ^= 0x40;
		/* A replayed hello is answered, but the handshake cannot complete. */
		assert_int_not_equal(tls_handshake(t), 0);
		shutdown(w->fd[BORROWER], SHUT_WR);
		assert_int_equal(tls_handshake(t), -EACCES);
		assert_true(*t->why);
		tls_stop(t);
	}
}

struct sink {
	struct world *w;
	int frames;
	uint8_t page[WIRE_MAX_PAYLOAD];
	uint8_t small[WIRE_SMALL];
	const uint8_t *expected;
};

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct sink *s = data;

	*payload = f->op == WIRE_WRITE ? s->page : s->small;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct sink *s = data;

	assert_int_equal(f->tag, s->frames++);
	if (f->op == WIRE_WRITE)
		assert_memory_equal(s->page, s->expected, f->length);
	return 0;
}

static const struct stream_rx_ops ops = { .arrived = arrived, .finished = finished };

static void frames_pass(void **state)
{
	static uint8_t pages[WIRE_MAX_PAYLOAD];
	static struct sink sink;
	struct world *w = *state;
	struct stream_rx rx;
	struct stream_tx tx;
	int r, frames = 0;

	for (size_t i = 0; i < sizeof(pages); i++)
		pages[i] = (uint8_t)(i * 2654435761u >> 24);
	sink = (struct sink){ .w = w, .expected = pages };
	connect_both(w);
	assert_int_equal(stream_rx_init(&rx, WIRE_AT_DONOR), 0);
	assert_int_equal(stream_tx_init(&tx, 64), 0);
	rx.io = tx.io = &tls_io;
	rx.channel = &w->tls[DONOR];
	tx.channel = &w->tls[BORROWER];
	for (int i = 0; i < 60; i++) {
		struct wire_frame f = { .op = i % 4 ? WIRE_PING : WIRE_WRITE, .tag = frames++ };

		if (f.op == WIRE_WRITE)
			f.length = i % 8 ? WIRE_PAGE : WIRE_MAX_PAYLOAD;
		assert_int_equal(stream_push(&tx, &f, pages, 0), 0);
	}
	/* More than the socket takes at once; more joins what is on its way. */
	do {
		r = stream_flush(&tx, w->fd[BORROWER], NULL, NULL);
		assert_true(r >= 0);
		if (frames < 200) {
			struct wire_frame f = { .op = WIRE_PING, .tag = frames };

			frames += !stream_push(&tx, &f, NULL, 0);
		}
		/* A budget must not leave bytes where no event tells of them. */
		assert_true(stream_receive(&rx, w->fd[DONOR], 1 + frames * 997 % 20000, &ops,
					   &sink) >= 0);
		if (rx.io->pending(rx.channel))
			fail_msg("bytes are left behind");
	} while (r || tx.count);
	while (sink.frames < frames)
		assert_true(stream_receive(&rx, w->fd[DONOR], 1 << 20, &ops, &sink) >= 0);
	assert_int_equal(stream_receive(&rx, w->fd[DONOR], 1 << 20, &ops, &sink), 0);
	close(w->fd[BORROWER]);
	w->fd[BORROWER] = -1;
	assert_int_equal(stream_receive(&rx, w->fd[DONOR], 1 << 20, &ops, &sink), -ECONNRESET);
	stream_rx_free(&rx);
	stream_tx_free(&tx);
}

static void changed_on_the_way(void **state)
{
	static struct sink sink;
	struct wire_frame f = { .op = WIRE_PING };
	struct world *w = *state;
	struct stream_rx rx;
	struct stream_tx tx;
	uint8_t record[256];
	ssize_t n;

	connect_both(w);
	assert_int_equal(stream_rx_init(&rx, WIRE_AT_DONOR), 0);
	assert_int_equal(stream_tx_init(&tx, 4), 0);
	rx.io = tx.io = &tls_io;
	rx.channel = &w->tls[DONOR];
	tx.channel = &w->tls[BORROWER];
	stream_push(&tx, &f, NULL, 0);
	assert_int_equal(stream_flush(&tx, w->fd[BORROWER], NULL, NULL), 0);
	n = recv(w->fd[DONOR], record, sizeof(record), 0);
	assert_true(n > (ssize_t)WIRE_HEADER);
	record[n - 20] ^= 1;
	/* By the other end of another socket pair. */
	sockets(w);
	SSL_set_fd(w->tls[DONOR].ssl, w->fd[DONOR]);
	assert_int_equal(send(w->fd[BORROWER], record, n, 0), n);
	assert_int_equal(stream_receive(&rx, w->fd[DONOR], 4096, &ops, &sink), -EBADMSG);
	assert_int_equal(sink.frames, 0);
	/* The sender learns it by an alert. */
	SSL_set_fd(w->tls[BORROWER].ssl, w->fd[BORROWER]);
	stream_rx_reset(&rx);
	rx.side = WIRE_AT_BORROWER;
	rx.io = &tls_io;
	rx.channel = &w->tls[BORROWER];
	assert_int_equal(stream_receive(&rx, w->fd[BORROWER], 4096, &ops, &sink), -EBADMSG);
	stream_rx_free(&rx);
	stream_tx_free(&tx);
}

/* Sends two frames from @from, the second one altered, as one segment. */
static void send_two(struct world *w, int from)
{
	struct wire_frame f = { .op = from == DONOR ? WIRE_UNBACKED : WIRE_PING,
				.direction = from == DONOR ? WIRE_REPLY : WIRE_REQUEST };
	uint8_t records[512];
	struct stream_tx tx;
	ssize_t n;

	assert_int_equal(stream_tx_init(&tx, 4), 0);
	tx.io = &tls_io;
	tx.channel = &w->tls[from];
	for (f.tag = 0; f.tag < 2; f.tag++) {
		assert_int_equal(stream_push(&tx, &f, NULL, 0), 0);
		assert_int_equal(stream_flush(&tx, w->fd[from], NULL, NULL), 0);
	}
	n = recv(w->fd[!from], records, sizeof(records), 0);
	assert_true(n > 2 * (ssize_t)WIRE_HEADER && n < (ssize_t)sizeof(records));
	records[n - 1] ^= 1;
	/* By the other end of another socket pair. */
	sockets(w);
	for (int i = 0; i < 2; i++)
		SSL_set_fd(w->tls[i].ssl, w->fd[i]);
	assert_int_equal(send(w->fd[from], records, n, 0), n);
	stream_tx_free(&tx);
}

static void receive_at(struct world *w, int side, struct stream_rx *rx)
{
	assert_int_equal(stream_rx_init(rx, side == DONOR ? WIRE_AT_DONOR : WIRE_AT_BORROWER), 0);
	rx->io = &tls_io;
	rx->channel = &w->tls[side];
}

/* No event of the socket would tell of it later. */
static void the_second_record_changed(void **state)
{
	struct world *w = *state;

	for (int from = 0; from < 2; from++) {
		struct sink sink = { .w = w };
		struct stream_rx rx, alert;

		connect_both(w);
		send_two(w, from);
		receive_at(w, !from, &rx);
		assert_int_equal(stream_receive(&rx, w->fd[!from], 4096, &ops, &sink), -EBADMSG);
		assert_int_equal(sink.frames, 1);
		/* It stays the reason. */
		assert_int_equal(stream_receive(&rx, w->fd[!from], 4096, &ops, &sink), -EBADMSG);
		/* The sender learns it by an alert, even after it could not send. */
		receive_at(w, from, &alert);
		close(w->fd[!from]);
		w->fd[!from] = -1;
		assert_int_equal(tls_io.send(&w->tls[from], w->fd[from], &(struct msghdr){
			.msg_iov = &(struct iovec){ "frame", 5 }, .msg_iovlen = 1 }), -1);
		assert_int_equal(stream_receive(&alert, w->fd[from], 4096, &ops, &sink), -EBADMSG);
		stream_rx_free(&rx);
		stream_rx_free(&alert);
		for (int i = 0; i < 2; i++)
			tls_stop(&w->tls[i]);
		sockets(w);
	}
}

/* Nothing was altered when one side closes for writing, and the other one answers. */
static void an_end_without_a_message(void **state)
{
	struct world *w = *state;

	for (int from = 0; from < 2; from++) {
		struct sink sink = { .w = w };
		struct stream_rx rx[2];

		connect_both(w);
		assert_int_equal(shutdown(w->fd[from], SHUT_WR), 0);
		for (int i = 0; i < 2; i++) {
			int side = i ? from : !from;

			receive_at(w, side, &rx[i]);
			assert_int_equal(stream_receive(&rx[i], w->fd[side], 4096, &ops, &sink),
					 -ECONNRESET);
			stream_rx_free(&rx[i]);
		}
		for (int i = 0; i < 2; i++)
			tls_stop(&w->tls[i]);
		sockets(w);
	}
}

/*
 * TLS lets either side say more than frames after the handshake: KeyUpdate, each of which
 * has an answer.  One that says nothing else would keep us busy, and with answers that it
 * does not read, for ever.
 */
static void only_frames(void **state)
{
	static struct sink sink;
	struct world *w = *state;

	for (int side = 0; side < 2; side++) {
		SSL *peer;
		struct stream_rx rx;
		int sent = 0;

		if (side) {
			tls_stop(&w->tls[0]);
			tls_stop(&w->tls[1]);
			sockets(w);
		}
		connect_both(w);
		peer = w->tls[!side].ssl;
		assert_int_equal(stream_rx_init(&rx, side ? WIRE_AT_DONOR : WIRE_AT_BORROWER), 0);
		rx.io = &tls_io;
		rx.channel = &w->tls[side];
		assert_int_equal(stream_receive(&rx, w->fd[side], 4096, &ops, &sink), 0);
		while (sent < 100 && SSL_key_update(peer, SSL_KEY_UPDATE_REQUESTED) == 1 &&
		       SSL_do_handshake(peer) == 1)
			sent++;
		assert_true(sent > 10);
		assert_int_equal(stream_receive(&rx, w->fd[side], 4096, &ops, &sink), -EPROTO);
		/* After the first of them, not after all. */
		assert_true(recv(w->fd[side], &(char){ 0 }, 1, MSG_PEEK) == 1);
		stream_rx_free(&rx);
	}
}

#define CONNECTIONS 8

static void reserved_memory_is_enough(void **state)
{
	struct world w[CONNECTIONS], *first = *state;
	struct mallinfo2 before, after;
	void *end;

	if (malloc_usable_size(first) == 0 || tls_reserve(2 * CONNECTIONS, NULL))
		fail_msg("nothing reserved");
	before = mallinfo2();
	end = sbrk(0);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < CONNECTIONS; i++) {
			w[i] = (struct world){ .context = { first->context[0], first->context[1] },
					       .fd = { -1, -1 } };
			sockets(&w[i]);
			connect_both(&w[i]);
		}
		for (int i = 0; i < CONNECTIONS; i++) {
			for (int side = 0; side < 2; side++) {
				tls_stop(&w[i].tls[side]);
				close(w[i].fd[side]);
			}
		}
	}
	after = mallinfo2();
	assert_ptr_equal(sbrk(0), end);
	assert_int_equal(after.hblks, before.hblks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* First: what others allocated would help it. */
		cmocka_unit_test_setup_teardown(reserved_memory_is_enough, setup, teardown),
		cmocka_unit_test_setup_teardown(same_key, setup, teardown),
		cmocka_unit_test_setup_teardown(unknown_name, setup, teardown),
		cmocka_unit_test_setup_teardown(another_key_of_the_name, setup, teardown),
		cmocka_unit_test_setup_teardown(a_liar, setup, teardown),
		cmocka_unit_test_setup_teardown(a_key_taken_away, setup, teardown),
		cmocka_unit_test_setup_teardown(both_keys_during_a_change, setup, teardown),
		cmocka_unit_test_setup_teardown(a_derived_key, setup, teardown),
		cmocka_unit_test_setup_teardown(a_shared_key_after_a_derived_one, setup, teardown),
		cmocka_unit_test_setup_teardown(a_donor_cannot_act_as_another, setup, teardown),
		cmocka_unit_test_setup_teardown(a_donor_cannot_act_as_the_borrower, setup,
						teardown),
		cmocka_unit_test_setup_teardown(tls_1_2, setup, teardown),
		cmocka_unit_test_setup_teardown(no_key, setup, teardown),
		cmocka_unit_test_setup_teardown(a_certificate_is_no_key, setup, teardown),
		cmocka_unit_test_setup_teardown(no_tls_at_all, setup, teardown),
		cmocka_unit_test_setup_teardown(cut_off_anywhere, setup, teardown),
		cmocka_unit_test_setup_teardown(changed_or_replayed, setup, teardown),
		cmocka_unit_test_setup_teardown(frames_pass, setup, teardown),
		cmocka_unit_test_setup_teardown(changed_on_the_way, setup, teardown),
		cmocka_unit_test_setup_teardown(the_second_record_changed, setup, teardown),
		cmocka_unit_test_setup_teardown(an_end_without_a_message, setup, teardown),
		cmocka_unit_test_setup_teardown(only_frames, setup, teardown),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests_name("tls", tests, NULL, NULL);
}
