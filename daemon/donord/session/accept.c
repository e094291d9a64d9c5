// SPDX-License-Identifier: GPL-2.0-or-later
/* Who gets one of the places for connections; the rest of session.h is session.c's. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "donord/donord.h"
#include "lib/base/cleanup.h"
#include "lib/wire/local.h"
#include "lib/wire/tcp.h"

/* Buffers are made at the first use of a place, not in the request path. */
static int make_buffers(struct connection *c)
{
	int r = 0;

	if (!c->rx.buf)
		r = stream_rx_init(&c->rx, WIRE_AT_DONOR);
	if (!r && !c->tx.entries)
		r = stream_tx_init(&c->tx, CONNECTION_REPLIES + WIRE_ASKED);
	if (!r && c->lender->options.delay && !c->delayed) {
		c->delayed = calloc(CONNECTION_REPLIES, sizeof(*c->delayed));
		r = c->delayed ? 0 : -ENOMEM;
	}
	return r;
}

/* Whether both come from the same machine. */
static bool same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	if (a->ss_family != b->ss_family)
		return false;
	if (a->ss_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
		       ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return a->ss_family == AF_INET6 &&
	       IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr,
				  &((const struct sockaddr_in6 *)b)->sin6_addr);
}

const char *connection_peer_text(const struct connection *c, char *buf, size_t size)
{
	const struct sockaddr_in *v4 = (const void *)&c->peer;
	const struct sockaddr_in6 *v6 = (const void *)&c->peer;
	char host[INET6_ADDRSTRLEN] = "?";

	if (c->peer.ss_family == AF_INET)
		snprintf(buf, size, "%s:%u", inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host)),
			 ntohs(v4->sin_port));
	else if (c->peer.ss_family == AF_INET6)
		snprintf(buf, size, "[%s]:%u",
			 inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host)),
			 ntohs(v6->sin6_port));
	else
		snprintf(buf, size, "unix");
	return buf;
}

/* The one that has been there longer without a greeting. */
static struct connection *older(struct connection *a, struct connection *b)
{
	if (b->greeted)
		return a;
	return !a || b->since < a->since ? b : a;
}

uint64_t connections_with_key(const struct lender *l, const char *name)
{
	uint64_t n = 0;

	for (int i = 0; i < CONNECTIONS; i++) {
		const struct connection *c = &l->connections[i];

		if (c->kept_until)
			n += *name && !strcmp(c->key, name);
		else
			n += c->fd >= 0 && access_known(&c->access) &&
			     !strcmp(l->connections[c->home].access.tls.name, name);
	}
	return n;
}

/*
 * A place for a connection from @peer, or NULL with the reason.  Who has not greeted
 * keeps nobody out.  Those that a key tells apart are limited by that: one address may
 * have many borrowers behind it.  What is kept for a successor counts, and gives way to
 * nobody but another from its own address.
 */
static struct connection *find_place(struct lender *l, const struct sockaddr_storage *peer,
				     const char **why)
{
	struct connection *found = NULL, *stranger = NULL, *neighbour = NULL, *kept = NULL;
	uint64_t same = 0;

	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &l->connections[i];

		if (connection_is_free(c)) {
			found = found ? found : c;
			continue;
		}
		if (c->fd < 0) {
			if (!same_host(&c->peer, peer))
				continue;
			same += !*c->key;
			kept = !kept || c->kept_until < kept->kept_until ? c : kept;
			continue;
		}
		stranger = older(stranger, c);
		if (!access_known(&c->access) && same_host(&c->peer, peer)) {
			same++;
			neighbour = older(neighbour, c);
		}
	}
	*why = !found ? "too many borrowers" : "too many from its address";
	if (l->options.peer_connections && same >= l->options.peer_connections)
		found = neighbour ? neighbour : kept;
	else if (!found)
		found = stranger ? stranger : kept;
	if (found && !connection_is_free(found))
		connection_drop(found, "no greeting, and others want its place");
	return found;
}

struct connection *connection_adopt(struct lender *l, int fd, const struct sockaddr_storage *peer)
{
	_cleanup_close_ int owned = fd;
	struct epoll_event ev = { .events = EPOLLIN };
	const char *why;
	struct connection *c = find_place(l, peer, &why);

	if (c && make_buffers(c)) {
		c = NULL;
		why = "out of memory";
	}
	if (!c) {
		lender_say(l, LOG_LVL_WARN, "connection refused: %s", why);
		return NULL;
	}
	stream_rx_reset(&c->rx);
	stream_tx_reset(&c->tx, NULL, NULL);
	c->tx.budget = CONNECTION_TURN;
	c->greeted = c->writing = c->answers = c->keeps = c->by_rdma = false;
	*c->key = *c->fingerprint = '\0';
	c->local = peer->ss_family == AF_UNIX;
	access_begin(&c->access, c->local ? NULL : l->tls);
	c->home = c->number;
	c->borrower = 0;
	c->reading = true;
	c->peer = *peer;
	c->quota = l->options.quota;
	c->since = c->sent_at = l->now;
	c->arriving = NO_SLAB;
	c->delayed_head = c->delayed_count = 0;
	c->reads = c->writes = 0;
	c->evicts = c->asked = 0;
	ev.data.u64 = c->number;
	if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
		return NULL;
	c->fd = TAKE_FD(owned);
	return c;
}

/* False when none is waiting, or none can be accepted. */
static bool accept_one(struct lender *l, int place)
{
	struct sockaddr_storage peer = { 0 };
	socklen_t len = sizeof(peer);
	int fd = accept4(l->listen_fds[place], (struct sockaddr *)&peer, &len,
			 SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0) {
		if (errno == ECONNABORTED || errno == EINTR)
			return true;
		/* The waiting connections would wake the loop again and again. */
		if (errno != EAGAIN) {
			lender_say(l, LOG_LVL_WARN, "connection refused: %s", strerror(errno));
			lender_deafen(l);
		}
		return false;
	}
	if (!address_is_local(&l->places[place])) {
		tcp_tune(fd);
	} else if (!local_peer_trusted(fd)) {
		lender_say(l, LOG_LVL_WARN, "connection refused: %s is for root and its own user only",
			   l->places[place].text);
		close(fd);
		return true;
	} else {
		peer.ss_family = AF_UNIX;
	}
	connection_adopt(l, fd, &peer);
	return true;
}

void connection_accept(struct lender *l, int place)
{
	for (int i = 0; i < CONNECTION_ACCEPTS && accept_one(l, place); i++)
		;
}
