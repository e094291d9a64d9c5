// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "accept.h"
#include "lib/base/cleanup.h"
#include "lib/wire/local.h"
#include "lib/wire/tcp.h"
#include "requests.h"

/* Allocates the buffers of a place at its first use, not in the request path. */
static int make_buffers(struct connection *c)
{
	int r = 0;

	if (!c->rx.buf)
		r = stream_rx_init(&c->rx, WIRE_AT_DONOR);
	if (!r && !c->tx.entries)
		r = stream_tx_init(&c->tx, CONNECTION_REPLIES + WIRE_ASKED);
	if (!r && c->sessions->options.delay && !c->delayed) {
		c->delayed = calloc(CONNECTION_REPLIES, sizeof(*c->delayed));
		r = c->delayed ? 0 : -ENOMEM;
	}
	return r;
}

/* Returns the older of two connections without a handshake. */
static struct connection *older(struct connection *a, struct connection *b)
{
	if (b->greeted)
		return a;
	return !a || b->since < a->since ? b : a;
}

/*
 * Returns a place for a connection from @peer, or NULL and the reason.  A connection without a
 * handshake gives way to others: as sessions leave CONNECTIONS_SPARE places, there is always one
 * such place or a free one.  Keys limit authenticated connections, since one address may have many
 * borrowers behind it.  Without keys a kept session counts, and gives way only to a connection from
 * its own address.
 */
static struct connection *find_place(struct sessions *s, const struct sockaddr_storage *peer,
				     const char **why)
{
	struct connection *found = NULL, *stranger = NULL, *neighbour = NULL, *kept = NULL;
	uint64_t same = 0;

	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &s->connections[i];

		if (connection_is_free(c)) {
			found = found ? found : c;
			continue;
		}
		if (c->fd < 0) {
			if (!rate_same_host(&c->peer, peer))
				continue;
			same += !*c->borrower.key;
			kept = !kept || c->kept_until < kept->kept_until ? c : kept;
			continue;
		}
		stranger = older(stranger, c);
		if (!access_known(&c->access) && rate_same_host(&c->peer, peer)) {
			same++;
			neighbour = older(neighbour, c);
		}
	}
	*why = !found ? "all connections are in use" :
			"too many from its address; see --peer-connections";
	if (s->options.peer_connections && same >= s->options.peer_connections)
		found = neighbour ? neighbour : kept;
	else if (!found)
		found = stranger;
	if (found && !connection_is_free(found))
		connection_drop(found, found == kept ?
				"away, and another one from its address wants its place" :
				"no handshake, and others want its place");
	return found;
}

struct connection *connection_adopt(struct sessions *s, int fd,
				    const struct sockaddr_storage *peer)
{
	_cleanup_close_ int owned = fd;
	struct epoll_event ev = { .events = EPOLLIN };
	const char *why;
	struct connection *c = find_place(s, peer, &why);

	if (c && make_buffers(c)) {
		c = NULL;
		why = "out of memory";
	}
	if (!c) {
		donor_say(s->log, LOG_LVL_WARN, "connection refused: %s", why);
		return NULL;
	}
	stream_rx_reset(&c->rx);
	c->rx.side = WIRE_AT_DONOR;
	stream_tx_reset(&c->tx, NULL, NULL);
	c->tx.budget = CONNECTION_TURN;
	c->greeted = c->writing = c->answers = c->keeps = c->by_rdma = c->hung_up = false;
	c->is_far = c->owns = false;
	c->far_used = c->far_waiting = c->far_words = 0;
	c->payer = NULL;
	c->ends = NULL;
	*c->fingerprint = '\0';
	c->local = peer->ss_family == AF_UNIX;
	access_begin(&c->access, c->local ? NULL : s->tls);
	c->home = c->number;
	c->data_places = 0;
	c->id = 0;
	c->borrower = (struct borrower){
		.quota = s->options.quota, .reports_activity = true, .recallable = true,
		.in_order = true, .revocable = true,
		.export = &s->stream, .priv = &c->queue, .ops = &requests_borrower,
	};
	c->reading = true;
	c->peer = *peer;
	c->since = c->sent_at = s->now;
	c->arriving = NO_SLAB;
	c->delayed_head = c->delayed_count = 0;
	c->reads = c->writes = 0;
	c->adoption++;
	ev.data.u64 = connection_key(c);
	if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
		return NULL;
	c->fd = TAKE_FD(owned);
	return c;
}

static void listen_to(struct places *p, uint32_t events)
{
	for (int i = 0; i < p->count; i++) {
		struct epoll_event ev = { .events = events,
					  .data.u64 = p->first_key + (uint64_t)i };

		epoll_ctl(p->sessions->epoll_fd, EPOLL_CTL_MOD, p->fds[i], &ev);
	}
	p->paused = !events;
}

void places_resume(struct places *p)
{
	if (p->paused)
		listen_to(p, EPOLLIN);
}

/* Returns false when no connection is waiting, or none can be accepted. */
static bool accept_one(struct places *p, int i)
{
	struct donor_log *log = p->sessions->log;
	struct sockaddr_storage peer = { 0 };
	socklen_t len = sizeof(peer);
	int fd = accept4(p->fds[i], (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0) {
		if (errno == ECONNABORTED || errno == EINTR)
			return true;
		/* Waiting connections would wake the loop in each turn. */
		if (errno != EAGAIN) {
			donor_say(log, LOG_LVL_WARN, "connection refused: %s", strerror(errno));
			listen_to(p, 0);
		}
		return false;
	}
	if (!address_is_local(&p->a[i])) {
		tcp_tune(fd);
	} else if (!local_peer_trusted(fd)) {
		donor_say(log, LOG_LVL_WARN, "connection refused: %s is for root and its own user only",
			  p->a[i].text);
		close(fd);
		return true;
	} else {
		peer.ss_family = AF_UNIX;
	}
	connection_adopt(p->sessions, fd, &peer);
	return true;
}

void places_accept(struct places *p, int i)
{
	for (int n = 0; n < CONNECTION_ACCEPTS && accept_one(p, i); n++)
		;
}

int places_listen(struct places *p, struct address *a, struct error *e)
{
	struct epoll_event ev = { .events = EPOLLIN,
				  .data.u64 = p->first_key + (uint64_t)p->count };
	struct sessions *s = p->sessions;
	int fd;

	if (p->count == PLACES)
		return fail_exit(e, EXIT_USAGE, E2BIG, "listen %s: at most %d addresses; leave one out",
				 a->text, PLACES);
	if (address_is_local(a) && s->options.delay)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "listen %s: borrowers read there by themselves, which --delay cannot hold back; listen on HOST:PORT",
				 a->text);
	fd = address_listen(a, s->tls ? ADDRESS_EVERYWHERE : ADDRESS_LOOPBACK, e);
	if (fd < 0)
		return fd;
	if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0) {
		close(fd);
		return fail(e, errno, "event loop: %m");
	}
	p->a[p->count] = *a;
	p->fds[p->count++] = fd;
	return 0;
}

void places_free(struct places *p)
{
	for (int i = 0; i < p->count; i++) {
		close(p->fds[i]);
		if (address_is_local(&p->a[i]))
			unlink(local_path(&p->a[i]));
	}
	p->count = 0;
}
