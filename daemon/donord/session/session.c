// SPDX-License-Identifier: GPL-2.0-or-later
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "session.h"

#define SECOND 1000000000ull
/* Timeouts of peers that send no HELLO, and of peers that read no replies. */
#define GREETING_NS (5 * SECOND)
#define STALL_NS (10 * SECOND)

int sessions_init(struct sessions *s)
{
	s->stream.pool = s->shared.pool = s->pool;
	s->connections = calloc(CONNECTIONS, sizeof(*s->connections));
	s->payers = calloc(CONNECTIONS, sizeof(*s->payers));
	for (uint32_t i = 0; s->connections && i < CONNECTIONS; i++) {
		s->connections[i].sessions = s;
		s->connections[i].number = i;
		s->connections[i].fd = -1;
	}
	return s->connections && s->payers ? 0 : -ENOMEM;
}

void sessions_free(struct sessions *s)
{
	for (int i = 0; s->connections && i < CONNECTIONS; i++) {
		struct connection *c = &s->connections[i];

		if (!connection_is_free(c))
			connection_drop(c, "the donor stops");
		stream_rx_free(&c->rx);
		stream_tx_free(&c->tx);
		free(c->delayed);
	}
	while (s->far_unused) {
		struct far_buffer *b = s->far_unused;

		s->far_unused = b->next;
		free(b);
	}
	while (s->far_results_unused) {
		struct far_results *r = s->far_results_unused;

		s->far_results_unused = r->next;
		free(r);
	}
	free(s->connections);
	free(s->payers);
	s->connections = NULL;
	s->payers = NULL;
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

/* Returns whether @c is, or is to be, the control connection of a session with a key of @name. */
static bool has_key(const struct connection *c, const char *name)
{
	if (c->kept_until)
		return *name && !strcmp(c->borrower.key, name);
	return c->fd >= 0 && !connection_is_data(c) && access_known(&c->access) &&
	       !strcmp(c->access.tls.name, name);
}

/* Counts places of sessions with keys of @name, with their data connections. */
static uint64_t places_with_key(const struct sessions *s, const char *name)
{
	uint64_t n = 0;

	for (int i = 0; i < CONNECTIONS; i++)
		if (has_key(&s->connections[i], name))
			n += 1 + s->connections[i].data_places;
	return n;
}

/* Counts places of all sessions. */
static uint64_t places_taken(const struct sessions *s)
{
	uint64_t n = 0;

	for (int i = 0; i < CONNECTIONS; i++) {
		const struct connection *c = &s->connections[i];

		if (!connection_is_free(c) && c->greeted && !connection_is_data(c))
			n += 1 + c->data_places;
	}
	return n;
}

static uint32_t data_connections(const struct connection *c)
{
	uint32_t n = 0;

	for (int i = 0; i < CONNECTIONS; i++) {
		const struct connection *data = &c->sessions->connections[i];

		n += data != c && data->fd >= 0 && data->home == c->number;
	}
	return n;
}

static void reply_sent(void *data, uint32_t slab)
{
	struct connection *c = data;

	c->sent_at = c->sessions->now;
	if (c->member && c->member->notified)
		c->sessions->far->words_due = true;
	if (slab == FAR_REPLY) {
		if (!--c->far_waiting)
			c->far_used = 0;
	} else if (slab == FAR_WORD) {
		c->far_words--;
	} else if (slab != NO_SLAB) {
		pool_unpin(c->sessions->pool, slab);
	}
}

static void watch(struct connection *c, bool reading, bool writing)
{
	struct epoll_event ev = {
		.events = (reading ? EPOLLIN : 0) | (writing ? EPOLLOUT : 0),
		.data.u64 = connection_key(c),
	};

	if (c->reading == reading && c->writing == writing)
		return;
	epoll_ctl(c->sessions->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
	c->reading = reading;
	c->writing = writing;
}

bool connection_has_room(const struct connection *c)
{
	return stream_tx_room(&c->tx) > c->delayed_count + c->queue.binding + WIRE_ASKED &&
	       rdma_queue_has_room(&c->queue) && c->far_used + WIRE_FAR_MOST <= FAR_REPLIES;
}

void connection_hold(struct connection *c, bool held, bool throttled)
{
	c->sessions->held += held - c->held;
	c->held = held;
	c->throttled = throttled;
	if (c->throttled && !wire_is_job(&c->rx.frame))
		payer_hold(c->payer, c->sessions->now);
}

void connection_pays(struct connection *c, const char *key)
{
	struct sessions *s = c->sessions;

	c->payer = payer_find(s->payers, CONNECTIONS, key, &c->peer, s->now);
	c->payer->users++;
}

uint64_t connection_wait(const struct connection *c)
{
	const struct sessions *s = c->sessions;

	/* Nothing waits of one that has closed its socket. */
	if (c->hung_up)
		return 0;
	if (wire_is_job(&c->rx.frame))
		return c->job_heap ? job_heap_wait(c->job_heap, c->rx.frame.op, s->now) : 0;
	return payer_wait(c->payer, s->options.rate, s->now);
}

/* Returns whether its held request still waits for its share. */
static bool is_throttled(const struct connection *c)
{
	return c->held && c->throttled && connection_wait(c);
}

void connection_end_arrival(struct connection *c)
{
	if (c->arriving != NO_SLAB)
		pool_unpin(c->sessions->pool, c->arriving);
	c->arriving = NO_SLAB;
}

static void drop_data(struct connection *c)
{
	struct sessions *s = c->sessions;

	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *data = &s->connections[i];

		if (data != c && data->fd >= 0 && data->home == c->number)
			connection_drop(data, "its control connection ended");
	}
}

static void sent(struct connection *c)
{
	c->sessions->unsent -= c->unsent;
	c->unsent = false;
}

static void release_buffer(struct connection *c)
{
	if (!c->far_buffer)
		return;
	c->far_buffer->next = c->sessions->far_unused;
	c->sessions->far_unused = c->far_buffer;
	c->far_buffer = NULL;
}

void connection_hang_up(struct connection *c)
{
	struct sessions *s = c->sessions;

	/* No write of the connection may arrive after its slabs are lent to others. */
	drop_data(c);
	rdma_queue_end(s->rdma, &c->queue);
	stream_tx_reset(&c->tx, reply_sent, c);
	for (; c->delayed_count; c->delayed_count--) {
		pool_unpin(s->pool, c->delayed[c->delayed_head].reply.slab);
		c->delayed_head = (c->delayed_head + 1) % CONNECTION_REPLIES;
	}
	connection_end_arrival(c);
	connection_hold(c, false, false);
	if (c->payer)
		payer_leave(c->payer, s->now);
	c->payer = NULL;
	sent(c);
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	release_buffer(c);
	if (c->owns)
		eviction_forget(s->eviction, &c->borrower);
}

void connection_drop(struct connection *c, const char *why)
{
	const struct far_member *m = c->member;
	struct sessions *s = c->sessions;
	char peer[64];
	uint32_t slabs;

	connection_hang_up(c);
	c->kept_until = 0;
	job_heap_end(&c->job_heap);
	if (c->member)
		far_left(c->member);
	c->member = NULL;
	if (c->far_results) {
		c->far_results->next = s->far_results_unused;
		s->far_results_unused = c->far_results;
	}
	c->far_results = NULL;
	slabs = c->owns ? pool_remove(s->pool, &c->borrower) : 0;
	c->owns = false;
	if (connection_is_data(c))
		donor_say(s->log, LOG_LVL_INFO, "borrower %s: data connection: %s",
			  c->borrower.name, why);
	else if (m)
		donor_say(s->log, LOG_LVL_INFO, "far pool %s: member %u, %s: %s", m->pool->name,
			  m->number, c->borrower.name, why);
	else if (c->is_far)
		donor_say(s->log, LOG_LVL_INFO, "borrower %s: far memory: %s", c->borrower.name,
			  why);
	else if (c->greeted)
		donor_say(s->log, LOG_LVL_INFO, "borrower %s: %s; %u slabs reclaimed",
			  c->borrower.name, why, slabs);
	else
		donor_say(s->log, LOG_LVL_INFO, "borrower (unknown, %s): %s",
			  connection_peer_text(c, peer, sizeof(peer)), why);
	/* Keep this last: @why may point into it. */
	access_end(&c->access);
}

void connection_lost(struct connection *c, const char *why)
{
	struct sessions *s = c->sessions;
	bool keeps = c->keeps && !connection_is_data(c);
	uint32_t slabs = keeps ? pool_owned(s->pool, &c->borrower) : 0;

	if (!keeps || (!slabs && !c->borrower.reserved && !c->member)) {
		connection_drop(c, why);
		return;
	}
	connection_hang_up(c);
	access_end(&c->access);
	c->kept_until = s->now + s->options.keep;
	if (!c->member) {
		donor_say(s->log, LOG_LVL_INFO, "borrower %s: %s; retaining its %u slabs for %llu s",
			  c->borrower.name, why, slabs,
			  (unsigned long long)(s->options.keep / SECOND));
		return;
	}
	far_lost(c->member);
	donor_say(s->log, LOG_LVL_INFO, "far pool %s: member %u, %s: %s; it can resume for %llu s",
		  c->member->pool->name, c->member->number, c->borrower.name, why,
		  (unsigned long long)(s->options.keep / SECOND));
}

/* Words for a member that works without the donor may wait for ever; replies may not. */
static bool awaits_replies(const struct connection *c)
{
	return c->tx.count > c->far_words;
}

void connection_waits(struct connection *c)
{
	if (!awaits_replies(c))
		c->sent_at = c->sessions->now;
}

void connection_push(struct connection *c, const struct wire_frame *f, const void *payload,
		     uint32_t cookie)
{
	connection_waits(c);
	stream_push(&c->tx, f, payload, cookie);
}

void connection_reply(struct connection *c, const struct wire_frame *f, uint16_t st,
		      const void *payload, uint32_t length, uint32_t cookie)
{
	struct wire_frame r = *f;

	r.direction = WIRE_REPLY;
	r.status = st;
	r.length = length;
	connection_push(c, &r, payload, cookie);
}

void connection_unsent(struct connection *c)
{
	c->sessions->unsent += !c->unsent;
	c->unsent = true;
}

/* Returns whether @more places would exceed the limit of @c's key by more than @spare. */
static bool key_exceeds(const struct connection *c, uint64_t more, uint64_t spare)
{
	const struct sessions *s = c->sessions;
	const char *name = c->access.tls.name;

	if (!s->options.key_connections ||
	    places_with_key(s, name) + more <= s->options.key_connections + spare)
		return false;
	donor_say(s->log, LOG_LVL_WARN, "key %s: more than %llu connections; see --key-connections",
		  name, (unsigned long long)s->options.key_connections);
	return true;
}

static bool is_full(const struct sessions *s)
{
	if (places_taken(s) < CONNECTIONS - CONNECTIONS_SPARE)
		return false;
	donor_say(s->log, LOG_LVL_WARN, "%d connections are in use; a borrower gets none",
		  CONNECTIONS - CONNECTIONS_SPARE);
	return true;
}

bool connection_is_too_many(const struct connection *c)
{
	return key_exceeds(c, 0, 0) || is_full(c->sessions);
}

bool connection_data_is_too_many(const struct connection *c)
{
	return data_connections(c) >= c->data_places &&
	       (key_exceeds(c, 1, 0) || is_full(c->sessions));
}

void connection_data_joined(struct connection *c)
{
	uint32_t n = data_connections(c);

	c->data_places = n > c->data_places ? n : c->data_places;
}

void connection_flush(struct connection *c)
{
	int r = stream_flush(&c->tx, c->fd, reply_sent, c);

	sent(c);
	if (!c->far_waiting && !c->rx.busy)
		release_buffer(c);
	if (r < 0)
		connection_lost(c, r == -EPIPE ? "disconnected" : strerror(-r));
	else if (c->ends && !r)
		connection_drop(c, c->ends);
	else
		watch(c, !c->ends && connection_has_room(c) && !is_throttled(c), r == 1);
}

/*
 * Ends a connection on which a MAC is wrong.  TLS has told the borrower of a control connection
 * that it was altered, and a final frame, behind the replies that wait, tells that of a data
 * connection.
 */
static void drop_altered(struct connection *c)
{
	const struct wire_frame last = { .op = WIRE_JOIN, .direction = WIRE_REPLY,
					 .status = WIRE_ALTERED };

	if (!connection_is_data(c)) {
		connection_lost(c, "data of its control connection was altered in transit");
		return;
	}
	c->ends = c->rx.busy ? "a payload with a wrong message authentication code" :
			       "a frame with a wrong message authentication code";
	if (c->version < 4) {
		connection_drop(c, c->ends);
		return;
	}
	connection_push(c, &last, NULL, NO_SLAB);
	connection_flush(c);
}

static void receive(struct connection *c)
{
	int r;

	connection_hold(c, false, false);
	r = stream_receive(&c->rx, c->fd, CONNECTION_TURN, c->sessions->requests, c);
	if (r == -EPROTO)
		connection_drop(c, "malformed frame");
	else if (r == -EUSERS)
		connection_drop(c, "no place for its session");
	else if (r == -EBADMSG)
		drop_altered(c);
	else if (r == -ECONNRESET)
		connection_lost(c, "disconnected");
	else if (r < 0)
		connection_lost(c, strerror(-r));
	else
		connection_flush(c);
}

/* Continues the authentication; returns true when frames can be received. */
static bool let_in(struct connection *c)
{
	int r = access_go_on(&c->access, c->sessions->tls, c->fd, &c->rx, &c->tx);

	if (r < 0)
		connection_drop(c, r == -EACCES ? c->access.tls.why : r == -ECONNRESET ?
				"disconnected" : strerror(-r));
	else if (!r && access_known(&c->access) && key_exceeds(c, 0, CONNECTIONS_SPARE))
		connection_drop(c, "too many connections with its key");
	else
		watch(c, true, r == 1 && c->access.tls.wants_write);
	return !r && c->fd >= 0;
}

enum kind { KIND_CONTROL, KIND_DATA, KIND_FAR };

static enum kind kind_of(const struct connection *c)
{
	return connection_is_data(c) ? KIND_DATA : c->is_far ? KIND_FAR : KIND_CONTROL;
}

/*
 * Returns whether it shares the bytes of a turn with others of its key: data connections do, and
 * those of far memory, which move data by themselves.
 */
static bool shares(const struct connection *c)
{
	return kind_of(c) != KIND_CONTROL;
}

/* Returns whether it and those that it shares with have had the bytes of this turn. */
static bool is_sated(const struct connection *c)
{
	return shares(c) && c->payer->turn == c->sessions->pool->turn &&
	       c->payer->moved >= CONNECTION_TURN;
}

static void count_moved(struct connection *c, uint64_t bytes)
{
	struct payer *p = c->payer;

	if (p->turn != c->sessions->pool->turn)
		p->moved = 0;
	p->turn = c->sessions->pool->turn;
	p->moved += bytes;
}

void connection_event(struct connection *c, uint32_t events)
{
	uint64_t before = c->rx.moved + c->tx.moved;

	if (c->fd >= 0 && access_waits(&c->access) && !let_in(c))
		return;
	/* epoll reports what is left in the next turn. */
	if (c->fd >= 0 && is_sated(c))
		return;
	c->hung_up = c->hung_up || events & (EPOLLERR | EPOLLHUP);
	if (c->fd >= 0 && c->ends) {
		connection_flush(c);
		return;
	}
	/* receive() flushes as well; flushing here, too, would send twice the bytes of a turn. */
	if (c->fd >= 0 && events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		receive(c);
	else if (c->fd >= 0 && events & EPOLLOUT)
		connection_flush(c);
	if (c->fd >= 0 && c->payer)
		count_moved(c, c->rx.moved + c->tx.moved - before);
}

void connections_event(struct sessions *s, uint64_t key, uint32_t events)
{
	struct connection *c = &s->connections[(uint32_t)key];

	if (connection_key(c) == key)
		connection_event(c, events);
}

/* Returns whether it has a held request that can be served when it is its turn. */
static bool may_go_on(const struct connection *c)
{
	return c->fd >= 0 && c->held && connection_has_room(c) && !is_throttled(c);
}

/*
 * Returns whether others with its payer are to be served first: held requests take all of the share
 * in every other turn at most, because events come behind them.
 */
static bool has_had_its_share(const struct connection *c)
{
	return shares(c) && (is_sated(c) || c->payer->resumed + 1 == c->sessions->pool->turn);
}

static uint32_t *last_of(struct sessions *s, enum kind kind)
{
	return kind == KIND_DATA ? &s->last_data : kind == KIND_FAR ? &s->last_far : &s->last;
}

static void go_on(struct connection *c)
{
	struct sessions *s = c->sessions;
	uint64_t before = c->rx.moved + c->tx.moved;

	if (shares(c) || c->throttled)
		*last_of(s, kind_of(c)) = c->number;
	receive(c);
	if (c->fd < 0 || !shares(c))
		return;
	count_moved(c, c->rx.moved + c->tx.moved - before);
	c->payer->resumed = s->pool->turn;
}

/* Continues those of @kind.  Returns whether there are more. */
static bool resume_kind(struct sessions *s, enum kind kind)
{
	/* Round robin: start after the connection that went on last. */
	uint32_t first = *last_of(s, kind) + 1;
	bool more = false;

	for (uint32_t i = 0; s->held && i < CONNECTIONS; i++) {
		struct connection *c = &s->connections[(first + i) % CONNECTIONS];

		if (kind_of(c) != kind || !may_go_on(c))
			continue;
		if (!has_had_its_share(c))
			go_on(c);
		more = more || may_go_on(c);
	}
	return more;
}

bool connections_resume(struct sessions *s)
{
	/* By two turns with loans each: kernel modules have the first loans of every other one. */
	bool control_last = s->pool->lent_turns & 2;
	/* The first one may have all bytes of a key, which then has none in the next turn. */
	bool data_first = s->pool->turn & 2;
	bool more = !control_last && resume_kind(s, KIND_CONTROL);

	more = resume_kind(s, data_first ? KIND_DATA : KIND_FAR) || more;
	more = resume_kind(s, data_first ? KIND_FAR : KIND_DATA) || more;
	return (control_last && resume_kind(s, KIND_CONTROL)) || more;
}

uint64_t connections_throttled(const struct sessions *s)
{
	uint64_t next = UINT64_MAX;

	for (uint32_t i = 0; s->held && i < CONNECTIONS; i++) {
		const struct connection *c = &s->connections[i];
		uint64_t wait = c->fd >= 0 && is_throttled(c) ? connection_wait(c) : UINT64_MAX;

		next = wait < next ? wait : next;
	}
	return next;
}

void connections_flush(struct sessions *s)
{
	for (int i = 0; s->unsent && i < CONNECTIONS; i++)
		if (s->connections[i].unsent)
			connection_flush(&s->connections[i]);
}

uint64_t connections_delayed(struct sessions *s)
{
	uint64_t now = now_ns(), next = UINT64_MAX;

	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &s->connections[i];
		bool any = false;

		if (c->fd < 0 || !c->delayed_count)
			continue;
		while (c->delayed_count && c->delayed[c->delayed_head].due <= now) {
			struct delayed *d = &c->delayed[c->delayed_head];

			connection_reply(c, &d->reply, WIRE_OK, d->memory, d->reply.length,
					 d->reply.slab);
			c->delayed_head = (c->delayed_head + 1) % CONNECTION_REPLIES;
			c->delayed_count--;
			any = true;
		}
		if (any)
			connection_flush(c);
		if (c->fd >= 0 && c->delayed_count && c->delayed[c->delayed_head].due - now < next)
			next = c->delayed[c->delayed_head].due - now;
	}
	return next;
}

static bool grace_is_over(const struct connection *c, uint64_t now)
{
	uint64_t keep = c->sessions->options.keep;
	uint64_t most = c->sessions->ending && keep > KEEP_ENDING_NS ? KEEP_ENDING_NS : keep;

	return c->kept_until && now >= c->kept_until - keep + most;
}

/* Returns the connection of @b, or NULL: it is no borrower of @s. */
static struct connection *connection_among(struct sessions *s, struct borrower *b)
{
	struct connection *c = b ? connection_of(b) : NULL;

	return c >= s->connections && c < s->connections + CONNECTIONS ? c : NULL;
}

/*
 * Ends sessions with unread replies that keep the memory of a slab which was revoked long ago: a
 * peer that reads a reply now and then is never silent for STALL_NS.
 */
static void end_hoarders(struct sessions *s, uint64_t now)
{
	for (uint32_t i = 0; s->pool->in[LEND_DIRTY] && i < s->pool->count; i++) {
		const struct lend_slab *slab = &s->pool->slabs[i];
		struct connection *c = connection_among(s, slab->owner);

		if (c && slab->state == LEND_DIRTY && slab->revoked && slab->pins &&
		    now > slab->revoked_at && now - slab->revoked_at > STALL_NS)
			connection_lost(c, "does not read replies");
	}
}

void connections_tick(struct sessions *s, uint64_t now)
{
	end_hoarders(s, now);
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &s->connections[i];

		if (grace_is_over(c, now))
			connection_drop(c, "its grace period is over");
		if (c->fd < 0)
			continue;
		if (!c->greeted && now - c->since > GREETING_NS)
			connection_drop(c, "no handshake");
		else if (awaits_replies(c) && now > c->sent_at && now - c->sent_at > STALL_NS)
			connection_lost(c, "does not read replies");
	}
}

/*
 * A removed key ends all its connections, also when it was the last key.  Loans are kept for the
 * borrower to resume with another key of its name, if there is one.
 */
void connections_keys(struct sessions *s)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &s->connections[i];
		const char *name = c->kept_until ? c->borrower.key : c->access.tls.name;
		const char *fingerprint = c->kept_until ? c->fingerprint :
							  c->access.tls.fingerprint;
		bool resumes = keyring_has_name(&s->keys, name, strlen(name));
		char identity[KEY_IDENTITY];

		if (connection_is_free(c) || !*name || (c->kept_until && resumes))
			continue;
		snprintf(identity, sizeof(identity), "%s:%s", name, fingerprint);
		if (keyring_find(&s->keys, identity, strlen(identity)))
			continue;
		donor_say(s->log, LOG_LVL_WARN, "key %s (%s): removed; disconnecting its borrower",
			  name, fingerprint);
		(resumes ? connection_lost : connection_drop)(c, "its key was removed");
	}
}
