// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "donord/donord.h"
#include "donord/pool/resume.h"
#include "lib/base/size.h"

/* Who says nothing, or takes no reply, for so long has no business here. */
#define GREETING_NS (5 * SECOND)
#define STALL_NS (10 * SECOND)

static void reply_sent(void *data, uint32_t slab)
{
	struct connection *c = data;

	c->sent_at = c->lender->now;
	if (slab != NO_SLAB)
		lend_unpin(c->lender->pool, slab);
}

static void watch(struct connection *c, bool reading, bool writing)
{
	struct epoll_event ev = {
		.events = (reading ? EPOLLIN : 0) | (writing ? EPOLLOUT : 0),
		.data.u64 = c->number,
	};

	if (c->reading == reading && c->writing == writing)
		return;
	epoll_ctl(c->lender->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
	c->reading = reading;
	c->writing = writing;
}

static bool has_room(const struct connection *c)
{
	return stream_tx_room(&c->tx) > c->delayed_count + c->queue.binding + WIRE_ASKED &&
	       rdma_queue_has_room(&c->queue);
}

static void set_held(struct connection *c, bool held)
{
	c->lender->held += held - c->held;
	c->held = held;
}

/* A MAP looks at all slabs and, where none is clean, zeroes one: few of them are done in a turn. */
static bool may_map(const struct lender *l)
{
	return l->maps < CONNECTION_MAPS && (!l->zeroed || l->pool->in[LEND_CLEAN]);
}

/* Whether request @f is to be put off: until replies have left, or until the next turn. */
static bool must_wait(const struct connection *c, const struct wire_frame *f)
{
	return !has_room(c) || (f->op == WIRE_MAP && !may_map(c->lender));
}

static void end_arrival(struct connection *c)
{
	if (c->arriving != NO_SLAB)
		lend_unpin(c->lender->pool, c->arriving);
	c->arriving = NO_SLAB;
}

static void drop_data(struct connection *c)
{
	struct lender *l = c->lender;

	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *data = &l->connections[i];

		if (data != c && data->fd >= 0 && data->home == c->number)
			connection_drop(data, "its control connection ended");
	}
}

void connection_hang_up(struct connection *c)
{
	struct lender *l = c->lender;

	/* Before its slabs are anybody else's. */
	drop_data(c);
	rdma_queue_end(c);
	stream_tx_reset(&c->tx, reply_sent, c);
	for (; c->delayed_count; c->delayed_count--) {
		lend_unpin(l->pool, c->delayed[c->delayed_head].reply.slab);
		c->delayed_head = (c->delayed_head + 1) % CONNECTION_REPLIES;
	}
	end_arrival(c);
	set_held(c, false);
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	eviction_forget(l, c);
}

void connection_drop(struct connection *c, const char *why)
{
	struct lender *l = c->lender;
	char peer[64];
	uint32_t slabs;

	connection_hang_up(c);
	c->kept_until = 0;
	slabs = lend_release_owner(l->pool, c->number);
	if (connection_is_data(c))
		lender_say(l, LOG_LVL_INFO, "borrower %s: data connection: %s", c->name, why);
	else if (c->greeted)
		lender_say(l, LOG_LVL_INFO, "borrower %s: %s; %u slabs taken back", c->name, why,
			   slabs);
	else
		lender_say(l, LOG_LVL_INFO, "borrower (unknown, %s): %s",
			   connection_peer_text(c, peer, sizeof(peer)), why);
	/* Last: it may have @why. */
	access_end(&c->access);
}

static void push(struct connection *c, const struct wire_frame *f, const void *payload,
		 uint32_t cookie)
{
	/* What waits for an empty queue waits since now. */
	if (!c->tx.count)
		c->sent_at = c->lender->now;
	/* There is room: arrived() and the bounds of eviction.c see to it. */
	stream_push(&c->tx, f, payload, cookie);
}

void connection_ask(struct connection *c, const struct wire_frame *f, const void *payload)
{
	push(c, f, payload, NO_SLAB);
}

static void put_reply(struct connection *c, const struct wire_frame *f, enum wire_status st,
		      const void *payload, uint32_t length, uint32_t cookie)
{
	struct wire_frame r = *f;

	r.direction = WIRE_REPLY;
	r.status = st;
	r.length = length;
	push(c, &r, payload, cookie);
}

/* Slabs of the borrower's: with a key, of all who have one of its name. */
static uint32_t owned(const struct connection *c)
{
	const struct lend_pool *p = c->lender->pool;
	const char *name = c->key;
	uint32_t n = 0;

	if (!*name)
		return lend_owned(p, c->number);
	for (uint32_t i = 0; i < p->count; i++)
		n += lend_holds(&p->slabs[i]) &&
		     !strcmp(c->lender->connections[p->slabs[i].owner].key, name);
	return n;
}

/* Bytes in whole slabs that @c's quota allows it besides those. */
static uint64_t quota_left(const struct connection *c)
{
	uint64_t slab = c->lender->pool->slab_size, most = c->quota - c->quota % slab;
	uint64_t has = c->quota ? owned(c) * slab : 0;

	return !c->quota ? UINT64_MAX : has < most ? most - has : 0;
}

static void put_donor(struct connection *c, const struct wire_frame *f)
{
	struct lend_pool *p = c->lender->pool;
	uint64_t left = quota_left(c), lent = p->in[LEND_LENT] * p->slab_size, room;
	struct wire_frame reply = *f;
	struct wire_donor d;
	uint8_t buf[WIRE_DONOR_SIZE];

	lender_told(c->lender, &d);
	room = d.total > lent ? d.total - lent : 0;
	room = room < left ? room : left;
	d.free = d.free < left ? d.free : left;
	d.session = c->access.session;
	d.rdma = c->by_rdma ? rdma_place_port(c->lender->rdma) : 0;
	wire_build_donor(buf, &d);
	reply.slab = (uint32_t)((d.total - room) / p->slab_size);
	put_reply(c, &reply, WIRE_OK, buf, sizeof(buf), NO_SLAB);
}

static enum wire_status map(struct connection *c, struct wire_frame *r)
{
	struct lend_pool *p = c->lender->pool;
	bool clean = p->in[LEND_CLEAN];
	enum wire_status st;

	c->lender->maps++;
	c->lender->mapped = c->number;
	if (c->lender->draining)
		return WIRE_NO_SPACE;
	if (!quota_left(c))
		return WIRE_OVER_QUOTA;
	st = lend_map(p, c->number, &r->slab, &r->generation);
	c->lender->zeroed |= st == WIRE_OK && !clean;
	return st;
}

/* A borrower on this machine gets the memory with the reply. */
static void hand_over(struct connection *c, struct wire_frame *r)
{
	struct lend_pool *p = c->lender->pool;

	r->direction = WIRE_REPLY;
	r->length = 0;
	lend_pin(p, r->slab);
	if (!c->tx.count)
		c->sent_at = c->lender->now;
	stream_push_fd(&c->tx, r, lend_hand_over(p, r->slab), r->slab);
}

/* One that reads and writes by RDMA gets where the memory is, and the key to it. */
static void put_grant(struct connection *c, const struct wire_frame *r)
{
	enum wire_status st = rdma_queue_grant(c, r);

	if (st == WIRE_OK)
		return;
	lend_unmap(c->lender->pool, c->number, r->slab, r->generation);
	put_reply(c, r, st, NULL, 0, NO_SLAB);
}

void connection_granted(struct connection *c, const struct wire_frame *reply,
			const uint8_t *payload)
{
	if (!payload)
		lend_unmap(c->lender->pool, c->number, reply->slab, reply->generation);
	put_reply(c, reply, payload ? WIRE_OK : WIRE_NO_SPACE, payload,
		  payload ? WIRE_RDMA_GRANT_SIZE : 0, NO_SLAB);
	connection_flush(c);
}

/* @r names the slab that @c was lent: the reply says how to get at it. */
static void put_loan(struct connection *c, struct wire_frame *r)
{
	if (c->by_rdma)
		put_grant(c, r);
	else if (c->local)
		hand_over(c, r);
	else
		put_reply(c, r, WIRE_OK, NULL, 0, NO_SLAB);
}

static void put_slab(struct connection *c, const struct wire_frame *f)
{
	struct wire_frame r = *f;
	enum wire_status st = map(c, &r);

	if (st == WIRE_OK)
		put_loan(c, &r);
	else
		put_reply(c, &r, st, NULL, 0, NO_SLAB);
}

/* A slab of a session that was resumed: as the reply to MAP was. */
static void put_again(struct connection *c, const struct wire_frame *f)
{
	struct lend_pool *p = c->lender->pool;
	struct wire_frame r = *f;
	enum wire_status st = lend_again(p, c->number, f->slab, f->generation);

	if (st == WIRE_OK)
		put_loan(c, &r);
	else
		put_reply(c, f, st, NULL, 0, NO_SLAB);
}

enum wire_status connection_unmap(struct connection *c, uint32_t slab, uint32_t generation)
{
	struct lender *l = c->lender;
	enum wire_status st = lend_unmap(l->pool, c->number, slab, generation);

	if (st == WIRE_OK) {
		rdma_queue_forget(l, slab);
		eviction_returned(l, slab);
	}
	return st;
}

/* Whether who says @h can be served; the log says what is to be done. */
static enum wire_status judge(struct connection *c, const struct wire_hello *h)
{
	struct lender *l = c->lender;
	char peer[64], theirs[16], ours[16];

	if (c->greeted)
		return WIRE_NOT_GREETED;
	if (h->version != WIRE_VERSION) {
		lender_say(l, LOG_LVL_WARN,
			   "borrower (unknown, %s): refused: it speaks version %u of the protocol, and this is %u; have the same version of ebb on both machines",
			   connection_peer_text(c, peer, sizeof(peer)), h->version, WIRE_VERSION);
		return WIRE_BAD_VERSION;
	}
	if (h->slab_size > l->pool->slab_size) {
		lender_say(l, LOG_LVL_WARN,
			   "borrower %s: refused: its slabs of %s are larger than those of %s here; start with a larger --slab, or make its device with a smaller one",
			   h->name, size_format(h->slab_size, theirs, sizeof(theirs)),
			   size_format(l->pool->slab_size, ours, sizeof(ours)));
		return WIRE_BAD_SLAB_SIZE;
	}
	return h->flags & WIRE_RDMA && (!l->rdma || c->access.state != ACCESS_CONTROL) ?
	       WIRE_NO_RDMA : WIRE_OK;
}

static int greet(struct connection *c, const struct wire_frame *f)
{
	struct lender *l = c->lender;
	bool resumed = false;
	enum wire_status st;
	struct wire_hello h;

	if (wire_parse_hello(c->small, f->length, &h))
		return -EPROTO;
	st = judge(c, &h);
	if (st != WIRE_OK) {
		put_reply(c, f, st, NULL, 0, NO_SLAB);
		return 0;
	}
	/*
	 * An older connection of the same borrower may still have writes on the
	 * way.  They must not land after this one's, so it goes first.  The number
	 * alone does not make it the same: with keys that has to be of the same name,
	 * and what came by a socket of root's is nobody's who comes by another way.
	 */
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *old = &l->connections[i];

		if (old == c || connection_is_free(old) || !old->greeted ||
		    old->borrower != h.borrower || old->local != c->local || connection_is_data(old) ||
		    strcmp(old->key, c->access.tls.name))
			continue;
		resumed |= h.flags & WIRE_RESUME && resume_take(c, old);
		connection_drop(old, "replaced by a newer connection");
	}
	if (h.flags & WIRE_RESUME && !resumed) {
		put_reply(c, f, WIRE_NO_SESSION, NULL, 0, NO_SLAB);
		return 0;
	}
	if (access_greeted(&c->access))
		return -EIO;
	c->keeps = h.flags & WIRE_KEEP;
	c->by_rdma = h.flags & WIRE_RDMA;
	strcpy(c->key, c->access.tls.name);
	strcpy(c->fingerprint, c->access.tls.fingerprint);
	c->greeted = true;
	c->answers = c->access.state == ACCESS_BARE;
	c->borrower = h.borrower;
	memcpy(c->name, h.name, sizeof(c->name));
	if (*c->access.tls.name)
		lender_say(l, LOG_LVL_INFO, "borrower %s: connected, key %s (%s)", c->name,
			   c->access.tls.name, c->access.tls.fingerprint);
	else
		lender_say(l, LOG_LVL_INFO, "borrower %s: connected", c->name);
	put_donor(c, f);
	return 0;
}

/* Whether those of @c's key would be more than there may be, with @more to come. */
static bool too_many(const struct connection *c, uint64_t more)
{
	struct lender *l = c->lender;
	const char *name = c->access.tls.name;

	if (!l->options.key_connections ||
	    connections_with_key(l, name) + more <= l->options.key_connections)
		return false;
	lender_say(l, LOG_LVL_WARN, "key %s: more than %llu connections; see --key-connections", name,
		   (unsigned long long)l->options.key_connections);
	return true;
}

/* A data connection says whose it is. */
static int join(struct connection *c, const struct wire_frame *f)
{
	struct connection *control = NULL;
	enum wire_status st;
	struct wire_join j;

	if (wire_parse_join(c->small, f->length, &j))
		return -EPROTO;
	for (int i = 0; i < CONNECTIONS && !control; i++)
		if (c->lender->connections[i].fd >= 0 && j.session &&
		    c->lender->connections[i].access.session == j.session)
			control = &c->lender->connections[i];
	st = control && too_many(control, 1) ? WIRE_NO_SESSION :
	     access_join(&c->access, control ? &control->access : NULL, &j);
	put_reply(c, f, st, NULL, 0, NO_SLAB);
	if (st != WIRE_OK) {
		lender_say(c->lender, LOG_LVL_WARN, "data connection refused: %s",
			   wire_status_text(st));
		return 0;
	}
	c->home = control->number;
	c->greeted = control->answers = true;
	memcpy(c->name, control->name, sizeof(c->name));
	access_guard(&c->access, &c->rx, &c->tx);
	return 0;
}

static void put_read(struct connection *c, const struct wire_frame *f)
{
	struct lender *l = c->lender;
	void *memory = NULL;
	enum wire_status st = lend_access(l->pool, c->home, f, &memory);
	struct delayed *d;

	if (st != WIRE_OK) {
		put_reply(c, f, st, NULL, f->length, NO_SLAB);
		return;
	}
	l->connections[c->home].reads += f->length / WIRE_PAGE;
	lend_pin(l->pool, f->slab);
	if (!l->options.delay) {
		put_reply(c, f, WIRE_OK, memory, f->length, f->slab);
		return;
	}
	d = &c->delayed[(c->delayed_head + c->delayed_count++) % CONNECTION_REPLIES];
	*d = (struct delayed){ now_ns() + l->options.delay, *f, memory };
}

/* Where a WRITE's payload goes, if anywhere. */
static void begin_write(struct connection *c, const struct wire_frame *f, void **payload)
{
	struct lend_pool *p = c->lender->pool;

	c->verdict = lend_access(p, c->home, f, payload);
	if (c->verdict != WIRE_OK) {
		*payload = NULL;
		return;
	}
	c->lender->connections[c->home].writes += f->length / WIRE_PAGE;
	/* The loan may end before the last byte is here. */
	lend_pin(p, f->slab);
	c->arriving = f->slab;
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct connection *c = data;

	if (!c->greeted && f->op != WIRE_HELLO && f->op != WIRE_JOIN)
		return -EPROTO;
	if (f->direction == WIRE_REQUEST && must_wait(c, f)) {
		set_held(c, true);
		return 1;
	}
	c->verdict = access_serves(&c->access, f->op);
	if (c->verdict != WIRE_OK && f->direction == WIRE_REPLY)
		return -EPROTO;
	if (c->verdict != WIRE_OK)
		*payload = f->op == WIRE_WRITE ? NULL : c->small;
	else if (f->op == WIRE_WRITE)
		begin_write(c, f, payload);
	else
		*payload = c->small;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct connection *c = data;
	uint32_t class;

	if (c->verdict != WIRE_OK && f->op != WIRE_WRITE) {
		put_reply(c, f, c->verdict, NULL, f->op == WIRE_READ ? f->length : 0, NO_SLAB);
		return 0;
	}
	switch (f->op) {
	case WIRE_HELLO:
		return greet(c, f);
	case WIRE_PING:
		put_donor(c, f);
		return 0;
	case WIRE_READ:
		put_read(c, f);
		return 0;
	case WIRE_WRITE:
		end_arrival(c);
		put_reply(c, f, c->verdict, NULL, f->length, NO_SLAB);
		return 0;
	case WIRE_UNMAP:
		put_reply(c, f, connection_unmap(c, f->slab, f->generation), NULL, 0, NO_SLAB);
		return 0;
	case WIRE_REMAP:
		put_again(c, f);
		return 0;
	case WIRE_RELEASE:
		resume_settle(c);
		put_reply(c, f, WIRE_OK, NULL, 0, NO_SLAB);
		return 0;
	case WIRE_BYE:
		c->keeps = false;
		put_reply(c, f, WIRE_OK, NULL, 0, NO_SLAB);
		return 0;
	case WIRE_MAP:
		if (wire_parse_map(c->small, f->length, &class))
			return -EPROTO;
		if (class == WIRE_CLASS_SWAP)
			put_slab(c, f);
		else
			put_reply(c, f, WIRE_BAD_CLASS, NULL, 0, NO_SLAB);
		return 0;
	case WIRE_JOIN:
		return join(c, f);
	case WIRE_ACTIVITY:
		return eviction_rates(c->lender, c, f, c->small);
	case WIRE_EVICT:
		return eviction_answer(c->lender, c, f);
	}
	return -EPROTO;
}

static const struct stream_rx_ops rx_ops = { arrived, finished };

void connection_flush(struct connection *c)
{
	int r = stream_flush(&c->tx, c->fd, reply_sent, c);

	if (r < 0)
		resume_wait(c, r == -EPIPE ? "disconnected" : strerror(-r));
	else
		watch(c, has_room(c), r == 1);
}

static void receive(struct connection *c)
{
	int r;

	set_held(c, false);
	r = stream_receive(&c->rx, c->fd, CONNECTION_TURN, &rx_ops, c);
	if (r == -EPROTO)
		connection_drop(c, "malformed frame");
	else if (r == -EBADMSG)
		connection_drop(c, "a frame that is not its own");
	else if (r == -ECONNRESET)
		resume_wait(c, "disconnected");
	else if (r < 0)
		resume_wait(c, strerror(-r));
	else
		connection_flush(c);
}

/* Goes on with finding out who it is; true when it has frames to say. */
static bool let_in(struct connection *c)
{
	int r = access_go_on(&c->access, c->lender->tls, c->fd, &c->rx, &c->tx);

	if (r < 0)
		connection_drop(c, r == -EACCES ? c->access.tls.why : r == -ECONNRESET ?
				"disconnected" : strerror(-r));
	else if (!r && access_known(&c->access) && too_many(c, 0))
		connection_drop(c, "too many connections with its key");
	else
		watch(c, true, r == 1 && c->access.tls.wants_write);
	return !r && c->fd >= 0;
}

void connection_event(struct connection *c, uint32_t events)
{
	if (c->fd >= 0 && access_waits(&c->access) && !let_in(c))
		return;
	if (c->fd >= 0 && events & EPOLLOUT)
		connection_flush(c);
	if (c->fd >= 0 && events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		receive(c);
}

bool connections_resume(struct lender *l)
{
	/* Whoever had the last slab is the last to get the next. */
	uint32_t first = l->mapped + 1;
	bool more = false;

	l->maps = 0;
	l->zeroed = false;
	for (uint32_t i = 0; l->held && i < CONNECTIONS; i++) {
		struct connection *c = &l->connections[(first + i) % CONNECTIONS];

		if (c->fd < 0 || !c->held || !has_room(c))
			continue;
		receive(c);
		more = more || (c->fd >= 0 && c->held && has_room(c));
	}
	return more;
}

uint64_t connections_delayed(struct lender *l)
{
	uint64_t now = now_ns(), next = UINT64_MAX;

	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &l->connections[i];
		bool any = false;

		if (c->fd < 0 || !c->delayed_count)
			continue;
		while (c->delayed_count && c->delayed[c->delayed_head].due <= now) {
			struct delayed *d = &c->delayed[c->delayed_head];

			put_reply(c, &d->reply, WIRE_OK, d->memory, d->reply.length, d->reply.slab);
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

void connections_tick(struct lender *l, uint64_t now)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &l->connections[i];

		if (resume_given_up(c, now))
			connection_drop(c, "no successor came");
		if (c->fd < 0)
			continue;
		if (!c->greeted && now - c->since > GREETING_NS)
			connection_drop(c, "no greeting");
		else if (c->tx.count && now > c->sent_at && now - c->sent_at > STALL_NS)
			connection_drop(c, "does not read what it asked for");
	}
}

void connections_free(struct lender *l)
{
	for (int i = 0; l->connections && i < CONNECTIONS; i++) {
		struct connection *c = &l->connections[i];

		if (!connection_is_free(c))
			connection_drop(c, "the donor stops");
		stream_rx_free(&c->rx);
		stream_tx_free(&c->tx);
		free(c->delayed);
	}
	free(l->connections);
}
