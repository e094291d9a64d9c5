// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "access.h"

void access_begin(struct access *a, struct tls_context *tls)
{
	*a = (struct access){ .state = tls ? ACCESS_PEEKING : ACCESS_BARE };
}

/* Tells a data connection, which begins with a frame's magic, from one that begins with TLS. */
static int peek(struct access *a, struct tls_context *tls, int fd)
{
	uint8_t first;
	ssize_t n = recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 1 : -errno;
	if (!n)
		return -ECONNRESET;
	if (first == (uint8_t)WIRE_MAGIC) {
		a->state = ACCESS_JOINING;
		return 0;
	}
	a->state = ACCESS_SHAKING;
	return tls_start(&a->tls, tls, fd);
}

int access_go_on(struct access *a, struct tls_context *tls, int fd, struct stream_rx *rx,
		 struct stream_tx *tx)
{
	int r = a->state == ACCESS_PEEKING ? peek(a, tls, fd) : 0;

	if (r || a->state != ACCESS_SHAKING)
		return r;
	r = tls_handshake(&a->tls);
	if (r)
		return r;
	a->state = ACCESS_CONTROL;
	rx->io = tx->io = &tls_io;
	rx->channel = tx->channel = &a->tls;
	return 0;
}

enum wire_status access_serves(const struct access *a, enum wire_op op)
{
	bool pages = op == WIRE_READ || op == WIRE_WRITE;

	switch (a->state) {
	case ACCESS_BARE:
		return op == WIRE_JOIN ? WIRE_NO_SESSION : WIRE_OK;
	case ACCESS_CONTROL:
		return pages || op == WIRE_JOIN ? WIRE_NOT_HERE : WIRE_OK;
	case ACCESS_JOINING:
		return op == WIRE_JOIN ? WIRE_OK : op == WIRE_HELLO ? WIRE_NO_KEY : WIRE_NOT_HERE;
	case ACCESS_DATA:
		return pages ? WIRE_OK : WIRE_NOT_HERE;
	}
	return WIRE_NOT_HERE;
}

int access_greeted(struct access *a)
{
	if (a->state != ACCESS_CONTROL)
		return 0;
	if (tls_export(&a->tls, SESSION_LABEL, a->key, sizeof(a->key)))
		return -EIO;
	/* 0 means none. */
	while (!a->session)
		if (getrandom(&a->session, sizeof(a->session), 0) != sizeof(a->session))
			return -EIO;
	return 0;
}

enum wire_status access_join(struct access *a, struct access *control, const struct wire_join *j,
			     uint32_t version)
{
	if (!control || !control->session || control->session != j->session)
		return WIRE_NO_SESSION;
	/* The MAC first: strangers must not use up numbers. */
	if (!session_genuine(control->key, j))
		return WIRE_BAD_MAC;
	if (!session_take_number(&control->numbers, j->number) || session_guard_init(&a->in) ||
	    session_guard_init(&a->out) ||
	    session_guard_start(&a->in, SESSION_RECEIVES, control->key, j, WIRE_REQUEST,
				version) ||
	    session_guard_start(&a->out, SESSION_SENDS, control->key, j, WIRE_REPLY, version))
		return WIRE_NO_SESSION;
	a->state = ACCESS_DATA;
	return WIRE_OK;
}

void access_guard(struct access *a, struct stream_rx *rx, struct stream_tx *tx)
{
	rx->guard = &a->in.guard;
	tx->guard = &a->out.guard;
}

void access_end(struct access *a)
{
	tls_stop(&a->tls);
	session_guard_free(&a->in);
	session_guard_free(&a->out);
	OPENSSL_cleanse(a, sizeof(*a));
}
