// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Connections of a client: the first one, and those that resume its member. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"
#include "lib/base/clock.h"
#include "lib/wire/local.h"

/* Pauses between attempts to resume. */
#define BACKOFF_MS 10u
#define BACKOFF_MOST_MS 1000u
/* Whatever a donor says of its grace period. */
#define PATIENCE_MOST_MS 300000u
/*
 * No call has gone on with the client for so long after it asked for one: that time was not one of
 * trying.
 */
#define UNDRIVEN_MS 2000

/*
 * Ends the connection without a word to the donor: after an end of stream, a donor that cannot keep
 * members would free this one's extents.
 */
static void drop_link(struct client *c)
{
	const struct linger none = { .l_onoff = 1 };

	if (c->fd >= 0 && c->keeps && !c->local)
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	tls_stop(&c->tls);
	c->state = CLIENT_CUT;
}

/* --- an attempt ------------------------------------------------------------------- */

/* Its steps return 0 = the next step can begin, 1 = it waits, or -errno. */

static int begin(struct client *c)
{
	int fd;

	stream_rx_reset(&c->rx);
	stream_tx_reset(&c->tx, NULL, NULL);
	c->asks = c->replied = false;
	fd = address_connect(&c->address);
	if (fd < 0)
		return fd;
	c->fd = fd;
	c->state = CLIENT_CONNECTING;
	return 0;
}

static int say_hello(struct client *c)
{
	struct wire_hello h = { .version = WIRE_VERSION, .flags = WIRE_FAR,
				.borrower = c->number };
	uint8_t payload[WIRE_HELLO_SIZE];

	if (c->jobs)
		h.flags |= WIRE_JOBS;
	if (c->keeps && !c->asks)
		h.flags |= WIRE_KEEP;
	if (c->resumes && !c->asks)
		h.flags |= WIRE_RESUME;
	for (int i = 0; i < WIRE_NAME - 1 && program_invocation_short_name[i]; i++) {
		char ch = program_invocation_short_name[i];

		h.name[i] = ch >= ' ' && ch <= '~' ? ch : '?';
	}
	wire_build_hello(payload, &h);
	c->state = CLIENT_GREETING;
	c->replied = false;
	c->hello_tag = ++c->tag;
	c->hello_entry = stream_tx_next(&c->tx);
	return stream_push(&c->tx, &(struct wire_frame){ .op = WIRE_HELLO, .tag = c->hello_tag,
							 .length = sizeof(payload) }, payload, 0);
}

static int secure(struct client *c)
{
	int r = *c->key_name ? tls_start_derived(&c->tls, c->context, c->fd, c->key_name) :
			       tls_start(&c->tls, c->context, c->fd);

	c->state = CLIENT_SECURING;
	return r;
}

static int connecting(struct client *c)
{
	struct pollfd p = { .fd = c->fd, .events = POLLOUT };
	socklen_t len = sizeof(int);
	int error = 0;

	if (!c->local && poll(&p, 1, 0) <= 0)
		return 1;
	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
		error = errno;
	if (error)
		return -error;
	/* Its processes can read and change all memory of the pool. */
	if (c->local && !local_peer_trusted(c->fd))
		return -EPERM;
	return c->context ? secure(c) : say_hello(c);
}

static int securing(struct client *c)
{
	int r = tls_handshake(&c->tls);

	/* The donor has accepted the key before: the link was cut. */
	if (r == -EACCES && c->tls.closed && c->resumes)
		return -ECONNRESET;
	if (r == -EACCES && c->tls.unknown && *c->key_name) {
		/* As ebb-swapd does: it has the key that donors share. */
		*c->key_name = '\0';
		drop_link(c);
		return begin(c);
	}
	if (r)
		return r;
	c->rx.io = c->tx.io = &tls_io;
	c->rx.channel = c->tx.channel = &c->tls;
	return say_hello(c);
}

/* There is no member to resume any more: says why. */
static void end_fenced(struct client *c)
{
	if (c->status == WIRE_OK && c->told.identity != c->identity)
		client_end(c, -ESHUTDOWN,
			   "donor %s: it has restarted, and the contents of its pools are lost; close the handle and open the pool again",
			   c->address.text);
	else
		client_end(c, -ESHUTDOWN,
			   "donor %s: this member is fenced: it was away for longer than the grace period of %u ms, or another member declared it dead; close the handle and open the pool again",
			   c->address.text, c->grace);
}

static int resumed(struct client *c)
{
	if (c->asks) {
		end_fenced(c);
	} else if (c->status == WIRE_NO_SESSION) {
		c->asks = true;
		return say_hello(c);
	} else if (c->status == WIRE_NO_SPACE) {
		return -ENOMEM;
	} else if (c->status) {
		client_end(c, -ESHUTDOWN,
			   "donor %s: cannot resume: %s; close the handle and open the pool again",
			   c->address.text, wire_status_text(c->status));
	} else if (c->told.identity != c->identity) {
		return -EPROTO;
	}
	return c->lost;
}

static int greeting(struct client *c)
{
	int r = stream_flush(&c->tx, c->fd, NULL, NULL);

	if (r >= 0)
		r = stream_receive(&c->rx, c->fd, STREAM_RX_BUFFER, &client_rx_ops, c);
	if (r < 0)
		return r;
	if (!c->replied)
		return 1;
	r = c->resumes ? resumed(c) : client_errno(c->status);
	/* A HELLO after a refusal waits for its reply. */
	if (r || !c->replied)
		return r;
	c->state = CLIENT_UP;
	return 0;
}

static int go_on(struct client *c)
{
	static int (*const steps[CLIENT_STATES])(struct client *) = {
		[CLIENT_CUT] = begin, [CLIENT_CONNECTING] = connecting,
		[CLIENT_SECURING] = securing, [CLIENT_GREETING] = greeting,
	};
	int r = 0;

	while (!r && c->state != CLIENT_UP)
		r = steps[c->state](c);
	return r;
}

/* --- resuming --------------------------------------------------------------------- */

void client_resumes(struct client *c, uint32_t patience)
{
	c->resumes = c->keeps;
	if (!patience)
		patience = c->grace > c->timeout ? c->grace : c->timeout;
	c->patience = patience < PATIENCE_MOST_MS ? patience : PATIENCE_MOST_MS;
}

/* An attempt to resume has failed by @error: the next one begins later, unless time is over. */
static void try_later(struct client *c, int error, int64_t now)
{
	if (now >= c->give_up_at)
		client_end(c, -ETIMEDOUT,
			   c->stalled ? "donor %s: no reply by several connections for %u ms: %s; check network and donor, and open the pool again" :
					"donor %s: cannot connect again for %u ms: %s; check network and donor, and open the pool again",
			   c->address.text, c->patience, strerror(-error));
	c->retry_at = now + c->backoff;
	c->backoff = 2 * c->backoff < BACKOFF_MOST_MS ? 2 * c->backoff : BACKOFF_MOST_MS;
}

static void cut(struct client *c, int error)
{
	int64_t now = now_ms();

	drop_link(c);
	c->driven_at = now;
	if (!c->stalled) {
		c->backoff = BACKOFF_MS;
		c->retry_at = now;
		c->give_up_at = now + c->patience;
	} else if (error != -EPROTO) {
		/* Connections that end before a reply are attempts that have failed. */
		try_later(c, error, now);
	}
	if (error == -EPROTO)
		client_end(c, error,
			   "donor %s: it broke the protocol; update the older of donor and libebbfar, then open the pool again",
			   c->address.text);
	else if (!c->resumes)
		client_end(c, error == -ECONNRESET || error == -EPIPE ? -ESHUTDOWN : error,
			   "donor %s: the connection has ended: %s; open the pool again",
			   c->address.text, strerror(-error));
}

/* The connection is up: sends what had no reply. */
static void repeat(struct client *c)
{
	for (uint32_t i = 0; i < c->count; i++) {
		struct client_request *q = &c->requests[(c->first + i) % CLIENT_REQUESTS];
		struct wire_frame f = q->f;

		if (wire_far_once(&f))
			f.generation = WIRE_FAR_REPEATED;
		q->entry = stream_tx_next(&c->tx);
		stream_push(&c->tx, &f, q->payload ?: q->bytes, 0);
	}
	c->heard_at = c->reply_at = now_ms();
	c->moved = c->rx.moved + c->tx.moved;
	c->stalled = c->count > 0;
}

/* At a unix socket that nothing listens to there is no donor, and the memory is lost. */
static bool has_exited(const struct client *c, int error)
{
	return c->local && (error == -ECONNREFUSED || error == -ENOENT);
}

static void failed(struct client *c, int error, int64_t now)
{
	bool refused = error == -EACCES && tls_used(&c->tls);

	if (refused)
		client_end(c, -ESHUTDOWN, "donor %s: cannot resume: %.100s", c->address.text,
			   c->tls.why);
	else if (error == -EPERM)
		client_end(c, -ESHUTDOWN,
			   "donor %s: another user's process has replaced it; open the pool of a donor that root or this user runs",
			   c->address.text);
	else if (has_exited(c, error))
		client_end(c, -ESHUTDOWN,
			   "donor %s: it has exited, and the contents of its pools are lost; start ebb-donord and open the pool again",
			   c->address.text);
	drop_link(c);
	if (error == -EPROTO)
		cut(c, error);
	if (c->lost)
		return;
	try_later(c, error, now);
}

static void resume(struct client *c)
{
	int64_t now = now_ms(), waits = c->state == CLIENT_CUT ? c->retry_at : c->attempt_end;
	int64_t idle = now - (waits > c->driven_at ? waits : c->driven_at);
	int r;

	if (idle > UNDRIVEN_MS)
		c->give_up_at += idle;
	c->driven_at = now;
	if (c->state == CLIENT_CUT) {
		if (now < c->retry_at)
			return;
		c->attempt_end = now + c->timeout;
	}
	r = go_on(c);
	if (r == 1 && now > c->attempt_end)
		r = -ETIMEDOUT;
	if (c->lost)
		drop_link(c);
	else if (!r)
		repeat(c);
	else if (r < 0)
		failed(c, r, now);
}

static const struct client_connector connector = { resume, cut };

void client_bye(struct client *c)
{
	if (c->lost)
		return;
	c->patience = c->patience < c->timeout ? c->patience : c->timeout;
	if (c->state != CLIENT_UP)
		c->give_up_at = now_ms() + c->patience;
	if (!client_push(c, (struct wire_frame){ .op = WIRE_BYE }, NULL,
			 (struct client_reply){ 0 }))
		client_settle(c);
}

/* --- the first connection --------------------------------------------------------- */

static int load_key(struct client *c, const char *key, struct error *e)
{
	struct key k;
	int r = key_load_own(&k, key, e);

	if (!r) {
		r = tls_borrower(&c->context, &k, e);
		key_forget(&k);
	}
	if (!r && key_donor_name(c->address.text, "donor", c->key_name, NULL))
		*c->key_name = '\0';
	return r;
}

/* Returns 0 or -errno with a text. */
static int explain(const struct client *c, int r, struct error *e)
{
	const char *text = c->address.text, *status;

	if (c->state == CLIENT_SECURING && r == -EACCES && c->tls.closed)
		return fail(e, r,
			    "donor %s: it closed the connection: it has no keys, or too many connections; start it with --keys, leave the key out, or see its log",
			    text);
	if (c->state == CLIENT_SECURING && r == -EACCES)
		return fail(e, r, "donor %s: %s", text, c->tls.why);
	if (c->state == CLIENT_SECURING)
		return fail(e, r, "donor %s: no handshake: %s; try again", text, strerror(-r));
	if (c->state != CLIENT_GREETING && r == -EPERM)
		return fail(e, r,
			    "donor %s: its process is neither root's nor this user's; run ebb-donord as one of them",
			    text);
	if (c->state != CLIENT_GREETING)
		return fail(e, r, "donor %s: cannot connect: %s; is ebb-donord running there?",
			    text, strerror(-r));
	/* A donor that does not know the flag takes it for a violation of the protocol. */
	if (r == -ECONNRESET || r == -EPIPE)
		return fail(e, EPROTONOSUPPORT,
			    "donor %s: it closed the connection: it has too many (see its log), or no far memory because it is of release 0.2 or older; close some, or update it",
			    text);
	if (r == -ETIMEDOUT)
		return fail(e, r, "donor %s: no reply in %u ms; raise timeout_ms", text, c->timeout);
	if (!c->replied || !c->status)
		return fail(e, r,
			    "donor %s: no handshake: %s; check that an ebb-donord listens there",
			    text, strerror(-r));
	status = wire_status_text(c->status);
	return fail(e, r, "donor %s: refused: %s%s", text, status,
		    strchr(status, ';') ? "" : "; see its log");
}

static int connect_first(struct client *c, struct error *e)
{
	int r;

	c->attempt_end = now_ms() + c->timeout;
	while ((r = go_on(c)) == 1) {
		if (now_ms() > c->attempt_end)
			return explain(c, -ETIMEDOUT, e);
		client_pause(c, INT_MAX);
	}
	if (r)
		return explain(c, r, e);
	c->identity = c->told.identity;
	c->grace = c->told.grace;
	c->status = 0;
	c->heard_at = c->driven_at = now_ms();
	return 0;
}

static int open_with(struct client *c, const char *donor, const char *key, uint32_t timeout,
		     bool keeps, bool jobs, struct error *e)
{
	int r;

	memset(c, 0, sizeof(*c));
	c->connector = &connector;
	c->jobs = jobs;
	c->fd = -1;
	c->timeout = timeout;
	c->keeps = keeps;
	r = address_parse(donor, "donor", &c->address, e);
	if (r)
		return r;
	if (address_is_rdma(&c->address))
		return fail(e, EOPNOTSUPP, "donor %s: far memory is not reached by RDMA; use HOST:PORT",
			    donor);
	c->local = address_is_local(&c->address);
	r = stream_rx_init(&c->rx, WIRE_AT_FAR_MEMBER);
	if (!r)
		r = stream_tx_init(&c->tx, CLIENT_REQUESTS);
	c->rx.takes_fds = c->local;
	/* Where memory is mapped, READs are not sent. */
	if (!r && !c->local) {
		c->rx.spill = malloc(STREAM_SPILL);
		r = c->rx.spill ? 0 : -ENOMEM;
	}
	if (!r && getrandom(&c->number, sizeof(c->number), 0) != sizeof(c->number))
		r = -errno;
	if (r)
		fail(e, r, "memory: %s; try again", strerror(-r));
	else if (key && !c->local)
		r = load_key(c, key, e);
	if (!r)
		r = connect_first(c, e);
	if (r)
		client_close(c);
	return r;
}

int client_open(struct client *c, const char *donor, const char *key, uint32_t timeout, bool keeps,
		struct error *e)
{
	return open_with(c, donor, key, timeout, keeps, false, e);
}

int client_open_for_jobs(struct client *c, const char *donor, const char *key, uint32_t timeout,
			 bool keeps, struct error *e)
{
	return open_with(c, donor, key, timeout, keeps, true, e);
}

void client_close(struct client *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	tls_stop(&c->tls);
	tls_context_free(&c->context);
	free(c->rx.spill);
	stream_rx_free(&c->rx);
	stream_tx_free(&c->tx);
}
