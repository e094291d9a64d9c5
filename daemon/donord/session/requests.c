// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "lib/base/clock.h"
#include "far_requests.h"
#include "job_requests.h"
#include "lib/base/size.h"
#include "requests.h"

static bool moves_pages(const struct wire_frame *f)
{
	return f->op == WIRE_READ || f->op == WIRE_WRITE;
}

/* Returns whether the rate limits @f. */
static bool is_traffic(const struct wire_frame *f)
{
	return moves_pages(f) || wire_far_moves(f);
}

/* Returns whether request @f must wait for its share. */
static bool is_ahead(const struct connection *c, const struct wire_frame *f)
{
	return (is_traffic(f) || wire_is_job(f)) && connection_wait(c);
}

/* With a quota the reply may take a look at all slabs: a connection gets one in a turn. */
static bool asks_for_room(const struct wire_frame *f)
{
	return f->op == WIRE_PING || f->op == WIRE_RESERVE;
}

/* Returns whether request @f must wait: until replies have left, for a turn, or for its share. */
static bool must_wait(const struct connection *c, const struct wire_frame *f)
{
	return !connection_has_room(c) ||
	       (f->op == WIRE_MAP && !pool_may_lend(c->sessions->pool, &c->borrower)) ||
	       (f->op == WIRE_FAR_POOL && !far_may_change(c->sessions->far)) ||
	       (f->op == WIRE_FAR_ARENA && c->member && !far_may_grow(c->member->pool)) ||
	       (asks_for_room(f) && c->told == c->sessions->pool->turn) ||
	       job_must_wait(c, f) ||
	       is_ahead(c, f);
}

static void put_donor(struct connection *c, const struct wire_frame *f)
{
	/* A pool has the slabs of its members, and where there are no keys a quota of its own. */
	const struct borrower *b = c->member ? &c->member->pool->borrower : &c->borrower;
	struct sessions *s = c->sessions;
	struct wire_frame reply = *f;
	struct wire_donor d;
	uint8_t buf[WIRE_DONOR_SIZE];

	reply.slab = headroom_follow_tell(s->follow, b, &d);
	d.version = c->version;
	d.session = c->access.session;
	d.rdma = c->by_rdma ? rdma_place_port(s->rdma) : 0;
	if (c->far_results)
		far_tell(s->far, &d);
	d.grace = c->keeps ? (uint32_t)(s->options.keep / 1000000) : 0;
	connection_reply(c, &reply, WIRE_OK, buf, wire_build_donor(buf, &d), NO_SLAB);
}

static void granted(struct borrower *b, const struct wire_frame *request,
		    const struct lend_grant *g)
{
	struct connection *c = connection_of(b);
	struct wire_frame r = *request;

	/* The grant may come outside of a request of the connection. */
	connection_unsent(c);
	if (!g || g->fd < 0) {
		connection_reply(c, request, g ? WIRE_OK : WIRE_NO_SPACE, g ? g->bytes : NULL,
				 g ? g->length : 0, NO_SLAB);
		return;
	}
	r.direction = WIRE_REPLY;
	r.length = 0;
	pool_pin(c->sessions->pool, r.slab);
	connection_waits(c);
	stream_push_fd(&c->tx, &r, g->fd, r.slab);
}

/*
 * The queue reserves WIRE_ASKED places for EVICT and ACTIVITY, whose replies limit them.  REVOKED
 * has no reply: it takes the place of one.
 */
static bool ask(struct borrower *b, const struct wire_frame *f, const void *payload)
{
	struct connection *c = connection_of(b);

	/* A resuming borrower is asked after it can use its slabs. */
	if (c->fd < 0 || !c->answers || (f->op == WIRE_REVOKED && !connection_has_room(c)))
		return false;
	connection_push(c, f, payload, NO_SLAB);
	connection_unsent(c);
	return true;
}

static void give_up(struct borrower *b, const char *why)
{
	connection_drop(connection_of(b), why);
}

/* A borrower that has stopped in the midst of a WRITE must not keep the memory. */
static void loan_ended(struct borrower *b, uint32_t slab)
{
	struct connection *control = connection_of(b);
	struct sessions *s = control->sessions;

	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &s->connections[i];

		if (c->fd < 0 || c->home != control->number || c->arriving != slab)
			continue;
		stream_rx_discard(&c->rx);
		connection_end_arrival(c);
		c->verdict = pool_check(s->pool, b, (struct wire_loan){ slab,
									c->rx.frame.generation });
	}
}

const struct borrower_ops requests_borrower = { granted, ask, give_up, loan_ended };

/* Serves MAP or REMAP @f.  Sets *@st, or returns -EPROTO. */
static int lend(struct connection *c, const struct wire_frame *f, enum wire_status *st)
{
	struct wire_loan_request r = { .class = WIRE_CLASS_SWAP };
	struct pool *p = c->sessions->pool;
	struct wire_frame request = *f;

	if (f->length && (wire_parse_loan_request(c->small, f->length, &r) ||
			  (c->version < 4 && (r.flags || f->op == WIRE_REMAP))))
		return -EPROTO;
	if (r.class != WIRE_CLASS_SWAP) {
		*st = WIRE_BAD_CLASS;
	} else if (f->op == WIRE_MAP) {
		c->sessions->last = c->number;
		*st = pool_lend(p, &c->borrower, &request);
	} else {
		*st = pool_lend_again(p, &c->borrower, f);
	}
	if (*st == WIRE_OK && f->length)
		pool_back(p, request.slab, r.flags & WIRE_BACKED);
	return 0;
}

/* The slab may not be revoked at need any more.  Sets *@st, or returns -EPROTO. */
static int unback(struct connection *c, const struct wire_frame *f, enum wire_status *st)
{
	struct pool *p = c->sessions->pool;

	if (c->version < 4)
		return -EPROTO;
	*st = pool_check(p, &c->borrower, (struct wire_loan){ f->slab, f->generation });
	if (*st == WIRE_OK)
		pool_back(p, f->slab, false);
	return 0;
}

/* Ends the loans that a resumed session did not name. */
static void settle(struct connection *c)
{
	/* That looks at all slabs: once. */
	uint32_t slabs = c->claims ? pool_return_rest(c->sessions->pool, &c->borrower) : 0;

	c->claims = false;
	if (slabs)
		donor_say(c->sessions->log, LOG_LVL_INFO, "borrower %s: %u slabs reclaimed",
			  c->borrower.name, slabs);
}

/*
 * Passes the loans of @old, an earlier connection of the borrower, to @c; the caller drops @old.
 * Returns whether there are loans, or a reservation, to resume.
 */
static bool take_over(struct connection *c, struct connection *old)
{
	struct sessions *s = c->sessions;
	uint32_t slabs;

	/* Writes of the dead process must not arrive after those of its successor. */
	connection_hang_up(old);
	slabs = pool_take_over(s->pool, &old->borrower, &c->borrower);
	if (slabs)
		donor_say(s->log, LOG_LVL_INFO, "borrower %s: a reconnecting borrower has its %u slabs",
			  old->borrower.name, slabs);
	/* All loans may have been revoked meanwhile. */
	return slabs || old->borrower.reserved;
}

/* Returns WIRE_OK if the peer with @h can be served; else logs the remedy. */
static enum wire_status judge(struct connection *c, const struct wire_hello *h)
{
	struct sessions *s = c->sessions;
	char peer[64], theirs[16], ours[16];

	if (c->greeted)
		return WIRE_NOT_GREETED;
	if (!wire_speaks(h->version)) {
		donor_say(s->log, LOG_LVL_WARN,
			  "borrower (unknown, %s): refused: it speaks version %u of the protocol, and this donor %u to %u; update the older of the two",
			  connection_peer_text(c, peer, sizeof(peer)), h->version,
			  WIRE_VERSION_OLDEST, WIRE_VERSION);
		return WIRE_BAD_VERSION;
	}
	if (h->slab_size > s->pool->slab_size) {
		donor_say(s->log, LOG_LVL_WARN,
			  "borrower %s: refused: its slabs of %s are larger than those of %s here; start with a larger --slab, or make its device with a smaller one",
			  h->name, size_format(h->slab_size, theirs, sizeof(theirs)),
			  size_format(s->pool->slab_size, ours, sizeof(ours)));
		return WIRE_BAD_SLAB_SIZE;
	}
	return h->flags & WIRE_RDMA && (!s->rdma || c->access.state != ACCESS_CONTROL) ?
	       WIRE_NO_RDMA : WIRE_OK;
}

/* Passes what @old has to @c, by the kind of both. */
static bool succeed(struct connection *c, struct connection *old)
{
	return old->is_far ? far_succeed(c, old) : take_over(c, old);
}

static int greet(struct connection *c, const struct wire_frame *f)
{
	struct sessions *s = c->sessions;
	uint32_t reserved = 0, data_places = 0;
	bool resumed = false, is_far;
	struct wire_hello h;
	uint16_t st;

	if (wire_parse_hello(c->small, f->length, &h))
		return -EPROTO;
	st = judge(c, &h);
	is_far = h.flags & WIRE_FAR;
	if (st == WIRE_OK && is_far)
		st = far_greet(c);
	if (st == WIRE_OK && h.flags & WIRE_JOBS && !s->jobs)
		st = WIRE_NO_JOBS;
	if (st != WIRE_OK) {
		connection_reply(c, f, st, NULL, 0, NO_SLAB);
		return 0;
	}
	c->owns = true;
	c->borrower.export = h.flags & WIRE_RDMA ? rdma_place_export(s->rdma) :
			     c->local ? &s->shared : &s->stream;
	/*
	 * An older connection of the borrower may have writes in flight, which must not land after
	 * this one's: end it first.  A borrower is identified by its number, key name and kind of
	 * socket.
	 */
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *old = &s->connections[i];

		if (old == c || connection_is_free(old) || !old->greeted ||
		    old->id != h.borrower || old->local != c->local || connection_is_data(old) ||
		    old->is_far != is_far || strcmp(old->borrower.key, c->access.tls.name))
			continue;
		resumed |= h.flags & WIRE_RESUME && succeed(c, old);
		reserved = old->borrower.reserved;
		data_places = old->data_places;
		connection_drop(old, "replaced by a newer connection");
	}
	if (h.flags & WIRE_RESUME && !resumed) {
		connection_reply(c, f, WIRE_NO_SESSION, NULL, 0, NO_SLAB);
		return 0;
	}
	/* One that resumes has the places of the session. */
	if (!resumed && connection_is_too_many(c))
		return -EUSERS;
	c->data_places = resumed ? data_places : 0;
	c->claims = resumed;
	if (access_greeted(&c->access))
		return -EIO;
	c->version = h.version;
	c->borrower.hears_revoked = h.version >= 4;
	c->keeps = h.flags & WIRE_KEEP;
	c->by_rdma = h.flags & WIRE_RDMA;
	c->is_far = is_far;
	c->does_jobs = h.flags & WIRE_JOBS;
	if (is_far)
		c->rx.side = WIRE_AT_FAR_DONOR;
	strcpy(c->borrower.key, c->access.tls.name);
	strcpy(c->fingerprint, c->access.tls.fingerprint);
	connection_pays(c, c->borrower.key);
	pool_add(s->pool, &c->borrower);
	/* The promise of an older connection, in place of it. */
	c->borrower.reserved = c->version >= 4 ? reserved : 0;
	c->greeted = true;
	c->answers = c->access.state == ACCESS_BARE;
	c->id = h.borrower;
	memcpy(c->borrower.name, h.name, sizeof(c->borrower.name));
	if (*c->access.tls.name)
		donor_say(s->log, LOG_LVL_INFO, "borrower %s: connected, key %s (%s)", c->borrower.name,
			  c->access.tls.name, c->access.tls.fingerprint);
	else
		donor_say(s->log, LOG_LVL_INFO, "borrower %s: connected", c->borrower.name);
	put_donor(c, f);
	return 0;
}

/* Joins a data connection to the session that it names. */
static int join(struct connection *c, const struct wire_frame *f)
{
	struct connection *control = NULL;
	enum wire_status st;
	struct wire_join j;

	if (wire_parse_join(c->small, f->length, &j))
		return -EPROTO;
	for (int i = 0; i < CONNECTIONS && !control; i++)
		if (c->sessions->connections[i].fd >= 0 && j.session &&
		    c->sessions->connections[i].access.session == j.session)
			control = &c->sessions->connections[i];
	st = control && connection_data_is_too_many(control) ? WIRE_NO_SESSION :
	     access_join(&c->access, control ? &control->access : NULL, &j,
			 control ? control->version : 0);
	connection_reply(c, f, st, NULL, 0, NO_SLAB);
	if (st != WIRE_OK) {
		donor_say(c->sessions->log, LOG_LVL_WARN, "data connection refused: %s",
			  wire_status_text(st));
		return 0;
	}
	c->home = control->number;
	connection_data_joined(control);
	c->version = control->version;
	c->greeted = control->answers = true;
	connection_pays(c, control->borrower.key);
	memcpy(c->borrower.name, control->borrower.name, sizeof(c->borrower.name));
	access_guard(&c->access, &c->rx, &c->tx);
	return 0;
}

/* The reply says how many slabs are promised. */
static int reserve(struct connection *c, const struct wire_frame *f)
{
	uint32_t slabs;

	if (c->version < 4 || wire_parse_reserve(c->small, f->length, &slabs))
		return -EPROTO;
	pool_reserve(c->sessions->pool, &c->borrower, slabs);
	put_donor(c, f);
	return 0;
}

static void put_read(struct connection *c, const struct wire_frame *f)
{
	struct sessions *s = c->sessions;
	void *memory = NULL;
	enum wire_status st = pool_access(s->pool, &s->connections[c->home].borrower, f, &memory);
	struct delayed *d;

	if (st != WIRE_OK) {
		connection_reply(c, f, st, NULL, f->length, NO_SLAB);
		return;
	}
	s->connections[c->home].reads += f->length / WIRE_PAGE;
	pool_pin(s->pool, f->slab);
	if (!s->options.delay) {
		connection_reply(c, f, WIRE_OK, memory, f->length, f->slab);
		return;
	}
	d = &c->delayed[(c->delayed_head + c->delayed_count++) % CONNECTION_REPLIES];
	*d = (struct delayed){ now_ns() + s->options.delay, *f, memory };
}

/* Sets *@payload to the place of a WRITE's data, or to NULL to discard it. */
static void begin_write(struct connection *c, const struct wire_frame *f, void **payload)
{
	struct pool *p = c->sessions->pool;

	c->verdict = pool_access(p, &c->sessions->connections[c->home].borrower, f, payload);
	if (c->verdict != WIRE_OK) {
		*payload = NULL;
		return;
	}
	c->sessions->connections[c->home].writes += f->length / WIRE_PAGE;
	/* The loan may end before the last byte is here. */
	pool_pin(p, f->slab);
	c->arriving = f->slab;
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct connection *c = data;

	if (!c->greeted && f->op != WIRE_HELLO && f->op != WIRE_JOIN)
		return -EPROTO;
	if (f->direction == WIRE_REQUEST && must_wait(c, f)) {
		connection_hold(c, true, is_ahead(c, f));
		return 1;
	}
	c->verdict = access_serves(&c->access, f->op);
	if (c->verdict != WIRE_OK && f->direction == WIRE_REPLY)
		return -EPROTO;
	if (is_traffic(f))
		payer_charge(c->payer, c->sessions->options.rate, f->length, c->sessions->now);
	*payload = f->op == WIRE_WRITE || f->op == WIRE_FAR_WRITE || wire_is_job(f) ? NULL :
										      c->small;
	if (c->verdict != WIRE_OK)
		return 0;
	if (f->op == WIRE_WRITE)
		begin_write(c, f, payload);
	else if (f->op >= WIRE_FAR_POOL && !far_begin(c, f, payload))
		c->verdict = WIRE_NO_SPACE;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct connection *c = data;
	struct sessions *s = c->sessions;
	enum wire_status st = WIRE_OK;

	if (asks_for_room(f))
		c->told = s->pool->turn;
	if (c->verdict != WIRE_OK && f->op != WIRE_WRITE) {
		connection_reply(c, f, c->verdict, NULL, f->op == WIRE_READ ? f->length : 0,
				 NO_SLAB);
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
		connection_end_arrival(c);
		connection_reply(c, f, c->verdict, NULL, f->length, NO_SLAB);
		return 0;
	case WIRE_UNMAP:
		st = eviction_return(s->eviction, &c->borrower,
				     (struct wire_loan){ f->slab, f->generation });
		break;
	case WIRE_UNBACKED:
		if (unback(c, f, &st))
			return -EPROTO;
		break;
	case WIRE_RELEASE:
		settle(c);
		break;
	case WIRE_BYE:
		c->keeps = false;
		if (c->member)
			far_unmapped(c->member);
		pool_reserve(s->pool, &c->borrower, 0);
		break;
	case WIRE_MAP:
	case WIRE_REMAP:
		if (lend(c, f, &st))
			return -EPROTO;
		break;
	case WIRE_JOIN:
		return join(c, f);
	case WIRE_RESERVE:
		return reserve(c, f);
	case WIRE_ACTIVITY:
		return eviction_rates(s->eviction, &c->borrower, f, c->small);
	case WIRE_EVICT:
		return eviction_answer(s->eviction, &c->borrower, f);
	default:
		if (!c->is_far)
			return -EPROTO;
		return wire_is_job(f) ? job_request(c, f) : far_request(c, f);
	}
	/* granted() replies to a MAP or REMAP that succeeds. */
	if (st != WIRE_OK || (f->op != WIRE_MAP && f->op != WIRE_REMAP))
		connection_reply(c, f, st, NULL, 0, NO_SLAB);
	return 0;
}

const struct stream_rx_ops requests = { .arrived = arrived, .finished = finished };

struct borrower *requests_prove(void *sessions, const struct wire_join *j)
{
	struct sessions *s = sessions;

	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &s->connections[i];

		if (c->fd < 0 || !c->by_rdma || !j->session || c->access.session != j->session)
			continue;
		/* The MAC first: strangers must not use up numbers. */
		return !session_genuine(c->access.key, j) || c->queue.id ||
		       !session_take_number(&c->access.numbers, j->number) ? NULL : &c->borrower;
	}
	return NULL;
}

void requests_joined(void *sessions, struct borrower *b)
{
	connection_of(b)->answers = true;
}
