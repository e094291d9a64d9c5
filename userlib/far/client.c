// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"
#include "lib/base/bytes.h"
#include "lib/wire/address.h"
#include "lib/wire/local.h"
#include "lib/wire/tcp.h"

int client_errno(uint16_t status)
{
	switch (status) {
	case WIRE_OK:
		return 0;
	case WIRE_NO_SPACE:
	case WIRE_OVER_QUOTA:
		return -ENOSPC;
	case WIRE_NO_KEY:
	case WIRE_NOT_OWNER:
		return -EACCES;
	case WIRE_BAD_VERSION:
		return -EPROTONOSUPPORT;
	case WIRE_NO_FAR:
		return -EOPNOTSUPP;
	case WIRE_NO_POOL:
		return -ENOENT;
	case WIRE_POOL_EXISTS:
		return -EEXIST;
	case WIRE_POOL_IN_USE:
		return -EBUSY;
	case WIRE_OTHER_DOMAIN:
		return -EXDEV;
	case WIRE_NO_MEMBER:
		return -ESRCH;
	case WIRE_NO_SLAB:
	case WIRE_BAD_RANGE:
	case WIRE_MISALIGNED:
		return -EINVAL;
	default:
		return -EPROTO;
	}
}

/* --- replies ---------------------------------------------------------------------- */

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct client *c = data;
	const struct client_reply *r = &c->replies[c->first];

	if (f->op == WIRE_FAR_NOTIFIED) {
		*payload = c->small;
		return 0;
	}
	if (!c->count || f->op != r->op || f->tag != r->tag ||
	    !stream_tx_has_left(&c->tx, r->entry))
		return -EPROTO;
	if (!f->status && (r->any ? f->length > r->length : f->length != r->length))
		return -EPROTO;
	*payload = r->to ?: c->small;
	return 0;
}

static void keep_word(struct client *c)
{
	struct wire_far_word *at = &c->words[(c->first_word + c->word_count) % CLIENT_WORDS];

	if (c->word_count == CLIENT_WORDS) {
		c->first_word = (c->first_word + 1) % CLIENT_WORDS;
		c->word_count--;
	}
	if (!wire_parse_far_word(c->small, WIRE_FAR_MEMBER_SIZE, at))
		c->word_count++;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct client *c = data;
	const struct client_reply *r = &c->replies[c->first];

	if (f->op == WIRE_FAR_NOTIFIED) {
		keep_word(c);
		return 0;
	}
	c->first = (c->first + 1) % CLIENT_REQUESTS;
	c->count--;
	if (f->status) {
		c->refusal = c->refusal ?: f->status;
		return 0;
	}
	if (r->got)
		*r->got = f->length;
	if (r->fd)
		*r->fd = stream_take_fd(&c->rx);
	for (uint32_t i = 0; r->words && i < r->length / 8; i++)
		((uint64_t *)r->to)[i] = le64toh(((uint64_t *)r->to)[i]);
	return 0;
}

static const struct stream_rx_ops rx_ops = { .arrived = arrived, .finished = finished };

/* Ends the connection; returns @error. */
static int lose(struct client *c, int error)
{
	c->lost = error == -ECONNRESET || error == -EPIPE ? -ESHUTDOWN : error;
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	c->count = 0;
	return c->lost;
}

/* Returns 1 when there may be more, 0 or -errno. */
static int receive_some(struct client *c)
{
	int r = stream_receive(&c->rx, c->fd, 1 << 20, &rx_ops, c);

	return r < 0 ? lose(c, r) : r;
}

int client_receive(struct client *c)
{
	int r = c->lost ?: 1;

	while (r == 1)
		r = receive_some(c);
	return r;
}

/* Waits for @events; a frame that is late ends the connection. */
static int wait_for(struct client *c, short events)
{
	struct pollfd p = { .fd = c->fd, .events = events };
	int n;

	do
		n = poll(&p, 1, (int)c->timeout);
	while (n < 0 && errno == EINTR);
	return n == 1 ? 0 : lose(c, n ? -errno : -ETIMEDOUT);
}

int client_settle(struct client *c)
{
	int r = 0;

	while (c->count && !c->lost) {
		int unsent = stream_flush(&c->tx, c->fd, NULL, NULL);

		if (unsent < 0)
			lose(c, unsent);
		else
			r = receive_some(c);
		if (c->count && !c->lost && r == 0)
			wait_for(c, (short)(POLLIN | (unsent ? POLLOUT : 0)));
	}
	c->status = c->lost ? 0 : c->refusal;
	c->refusal = 0;
	return c->lost ?: client_errno(c->status);
}

int client_push(struct client *c, struct wire_frame f, const void *payload,
		struct client_reply reply)
{
	struct client_reply *r;

	if (c->count == CLIENT_REQUESTS) {
		int settled = client_settle(c);

		if (settled)
			return settled;
	}
	if (c->lost)
		return c->lost;
	f.tag = ++c->tag;
	r = &c->replies[(c->first + c->count++) % CLIENT_REQUESTS];
	*r = reply;
	r->op = f.op;
	r->tag = f.tag;
	r->entry = stream_tx_next(&c->tx);
	/* The queue has a place for each reply. */
	stream_push(&c->tx, &f, payload, 0);
	return 0;
}

/* --- verbs ------------------------------------------------------------------------ */

static int push_swaps(struct client *c, uint32_t arena, const struct far_verb *verb)
{
	int r = 0;

	for (uint32_t i = 0; i < verb->swaps && !r; i += WIRE_FAR_SWAPS) {
		uint32_t n = verb->swaps - i < WIRE_FAR_SWAPS ? verb->swaps - i : WIRE_FAR_SWAPS;
		uint8_t *payload = c->swaps[i / WIRE_FAR_SWAPS];

		for (uint32_t k = 0; k < n; k++) {
			const struct far_swap *s = &verb->swap[i + k];

			wire_put_far_swap(payload, k, &(struct wire_far_swap){
				s->at, s->expect, s->desired });
		}
		r = client_push(c, (struct wire_frame){ .op = WIRE_FAR_CAS, .slab = arena,
							.length = n * WIRE_FAR_SWAP_SIZE },
				payload, (struct client_reply){ .length = n * WIRE_FAR_WORD_SIZE,
								.to = verb->old + i,
								.words = true });
	}
	return r;
}

/* Of the reply, nothing is needed: a hint that is wrong costs time. */
static int post(struct client *c, uint32_t arena, const struct far_verb *verb)
{
	uint8_t payload[8];

	put64(payload, verb->word);
	return client_push(c, (struct wire_frame){ .op = WIRE_FAR_WRITE, .slab = arena,
						   .offset = (uint32_t)verb->at,
						   .length = verb->bytes },
			   payload, (struct client_reply){ 0 });
}

int client_execute(struct client *c, uint32_t arena, const struct far_verb *verb)
{
	int r;

	if (verb->kind == FAR_POST)
		return post(c, arena, verb);
	r = push_swaps(c, arena, verb);
	for (uint32_t i = 0; i < verb->reads && !r; i++)
		r = client_push(c, (struct wire_frame){
					.op = WIRE_FAR_READ, .slab = arena,
					.offset = (uint32_t)verb->read[i].at,
					.length = 8 * verb->read[i].words },
				NULL, (struct client_reply){ .length = 8 * verb->read[i].words,
							     .to = verb->read[i].to,
							     .words = true });
	return r ?: client_settle(c);
}

/* --- connecting ------------------------------------------------------------------- */

static int connected(struct client *c)
{
	socklen_t len = sizeof(int);
	int error = 0, r = wait_for(c, POLLOUT);

	if (!r && getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
		error = errno;
	return r ?: -error;
}

static int connect_to(struct client *c, const struct address *a)
{
	c->fd = address_connect(a);
	if (c->fd < 0)
		return c->fd;
	if (c->local)
		return 0;
	tcp_tune(c->fd);
	return connected(c);
}

/* Offers the key derived for the donor if @name is given, else the shared one. */
static int secure_as(struct client *c, const char *name)
{
	int r = name ? tls_start_derived(&c->tls, c->context, c->fd, name) :
		       tls_start(&c->tls, c->context, c->fd);

	while (!r) {
		r = tls_handshake(&c->tls);
		if (r <= 0)
			return r;
		r = wait_for(c, c->tls.wants_write ? POLLOUT : POLLIN);
	}
	return r;
}

static int secure(struct client *c, const struct address *a, const char *key, struct error *e)
{
	char name[KEY_DONOR];
	struct key k;
	bool derives;
	int r = key_load_own(&k, key, e);

	if (!r) {
		r = tls_borrower(&c->context, &k, e);
		key_forget(&k);
	}
	if (r)
		return r;
	derives = !key_donor_name(a->text, "donor", name, NULL);
	r = secure_as(c, derives ? name : NULL);
	if (r == -EACCES && c->tls.unknown && derives) {
		/* As ebb-swapd does: it has the key that donors share. */
		tls_stop(&c->tls);
		close(c->fd);
		r = connect_to(c, a) ?: secure_as(c, NULL);
	}
	if (r)
		return fail(e, r, "donor %s: %s", a->text,
			    r == -EACCES ? c->tls.why : strerror(-r));
	c->rx.io = c->tx.io = &tls_io;
	c->rx.channel = c->tx.channel = &c->tls;
	return 0;
}

static int greet(struct client *c, const struct address *a, struct error *e)
{
	struct wire_hello h = { .version = WIRE_VERSION, .flags = WIRE_FAR };
	uint8_t payload[WIRE_HELLO_SIZE];
	int r;

	if (getrandom(&h.borrower, sizeof(h.borrower), 0) != sizeof(h.borrower))
		return fail(e, errno, "getrandom: %m");
	for (int i = 0; i < WIRE_NAME - 1 && program_invocation_short_name[i]; i++) {
		char ch = program_invocation_short_name[i];

		h.name[i] = ch >= ' ' && ch <= '~' ? ch : '?';
	}
	wire_build_hello(payload, &h);
	r = client_push(c, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) },
			payload, (struct client_reply){ .length = WIRE_DONOR_SIZE });
	if (!r)
		r = client_settle(c);
	if (!r)
		r = wire_parse_donor(c->small, WIRE_DONOR_SIZE, &c->donor);
	/* A donor that does not know the flag takes it for a violation of the protocol. */
	if (r == -ESHUTDOWN)
		return fail(e, EPROTONOSUPPORT,
			    "donor %s: it closed the connection: it has no far memory if it is of release 0.2 or older; update it",
			    a->text);
	if (r == -ETIMEDOUT)
		return fail(e, r, "donor %s: no reply in %u ms; raise timeout_ms", a->text,
			    c->timeout);
	return r ? fail(e, r, "donor %s: refused: %s", a->text,
			c->status ? wire_status_text(c->status) : strerror(-r)) : 0;
}

int client_open(struct client *c, const char *donor, const char *key, uint32_t timeout,
		struct error *e)
{
	struct address a;
	int r = address_parse(donor, "donor", &a, e);

	*c = (struct client){ .fd = -1, .timeout = timeout };
	if (r)
		return r;
	if (address_is_rdma(&a))
		return fail(e, EOPNOTSUPP, "donor %s: far memory is not reached by RDMA; use HOST:PORT",
			    donor);
	c->local = address_is_local(&a);
	r = stream_rx_init(&c->rx, WIRE_AT_FAR_MEMBER);
	if (!r)
		r = stream_tx_init(&c->tx, CLIENT_REQUESTS);
	c->rx.takes_fds = c->local;
	if (!r)
		r = connect_to(c, &a);
	if (r)
		fail(e, r, "donor %s: cannot connect: %s; is ebb-donord running there?", a.text,
		     strerror(-r));
	/* Its processes can read and change all memory of the pool. */
	if (!r && c->local && !local_peer_trusted(c->fd))
		r = fail(e, EPERM,
			 "donor %s: its process is neither root's nor this user's; run ebb-donord as one of them",
			 a.text);
	if (!r && key && !c->local)
		r = secure(c, &a, key, e);
	if (!r)
		r = greet(c, &a, e);
	if (r)
		client_close(c);
	return r;
}

void client_close(struct client *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	tls_stop(&c->tls);
	tls_context_free(&c->context);
	stream_rx_free(&c->rx);
	stream_tx_free(&c->tx);
}
