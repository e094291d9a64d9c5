// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "connect.h"
#include "lib/base/clock.h"
#include "session.h"
#include "swapd/page/counters.h"

#define MS 1000000ull
#define SECOND (1000 * MS)
#define CONNECT_TIMEOUT (2 * SECOND)
#define PING_INTERVAL SECOND
/* Limit of the session grace period that a donor may state. */
#define GRACE_MOST (600 * SECOND)
/* Deadlines after which an answer is late, even while transfers end. */
#define PATIENCE 8
/* Pieces that are received from a donor before it is judged, after this process has slept. */
#define PIECES 256

/* Part of a donor's latency that decays per tick: without reads it halves in about 2 s. */
#define LATENCY_FADE 32
/* Part of the fastest read's latency that is added per tick: it doubles in about 18 s. */
#define FASTEST_GROWTH 256
#define FASTEST_MOST (10 * SECOND)

/* Best effort: a donor without BYE retains the slabs for a successor. */
static void say_bye(struct donor *d)
{
	struct wire_frame f = { .op = WIRE_BYE, .tag = (uint64_t)TAG_BYE << TAG_KIND };

	if (!stream_push(&d->link.tx, &f, NULL, 0))
		link_flush(&d->link);
}

/* Logs once, until @d is usable, why it needs an operator's action. */
static void explain(struct donor *d, const char *why)
{
	if (!d->explained && donor_may_log(d))
		note(d->table->notes, LOG_LVL_ERR, "donor %s: %s", d->address.text, why);
	d->explained = true;
}

static void disconnect(struct donor *d, const char *why, uint64_t now)
{
	bool was_up = d->state == DONOR_UP;

	link_close(&d->link);
	donor_set_state(d, DONOR_DOWN, now);
	if (was_up && d->place_count)
		connect_ask_name(d, now);
	if (why != d->why)
		strncpy(d->why, why, sizeof(d->why) - 1);
}

void donor_lose(struct donor *d, const char *why)
{
	struct donors *ds = d->table;
	uint64_t now = now_ns();
	bool has_ours = d->state == DONOR_UP || d->resume;

	/* A successor must not resume the session of an untrusted donor. */
	if (d->state == DONOR_UP && d->leaving & DONOR_SUSPECT)
		say_bye(d);
	disconnect(d, why, now);
	d->resume = RESUME_NOTHING;
	if (d->place < d->place_count)
		d->retry_at = now;
	else
		connect_back_off(d, now, DONOR_BACKOFF_MOST);
	if (d->leaving & DONOR_SUSPECT) {
		d->leaving &= (uint8_t)~DONOR_SUSPECT;
		donor_set_state(d, DONOR_QUARANTINED, now);
		donor_record_one(d);
	}
	if (!has_ours)
		return;
	d->losses++;
	count_add(&ds->counters->donor_losses, 1);
	if (donor_may_log(d))
		note_event(ds->notes, EVENT_DONOR_LOST, LOG_LVL_WARN, "donor %s lost: %s; %s",
			   d->address.text, why,
			   ds->backup ? "reading its pages from other replicas or the backup" :
			   ds->replicas > 1 ? "reading its pages from other replicas" :
			   "its pages are lost, as there is neither a backup nor another replica");
	ds->events->lost(ds->owner, d);
	link_cancel(&d->link);
}

static void tell_back(struct donor *d)
{
	if (d->connects > 1 && donor_may_log(d))
		note_event(d->table->notes, EVENT_DONOR_BACK, LOG_LVL_INFO, "donor %s is back",
			   d->address.text);
}

/* Begins an absence of @d, which is up. */
static void go_away(struct donor *d, const char *why, uint64_t now)
{
	struct donors *ds = d->table;

	d->resume = RESUME_WANTED;
	d->away_since = now;
	d->away_until = now + d->grace;
	d->backoff = RESUME_RETRY;
	d->absences++;
	count_add(&ds->counters->donor_absences, 1);
	if (donor_may_log(d))
		note_event(ds->notes, EVENT_DONOR_AWAY, LOG_LVL_WARN,
			   "donor %s away: %s; it retains its slabs for %llu ms", d->address.text,
			   why, (unsigned long long)(d->grace / MS));
}

void donor_part(struct donor *d, const char *why)
{
	struct donors *ds = d->table;
	uint64_t now = now_ns();
	bool was_up = d->state == DONOR_UP;
	/* Its absence goes on until it has confirmed its replicas. */
	bool away = donor_is_away(d) && !(was_up && d->release == RELEASE_ANSWERED);

	/*
	 * It has resumed the session, so that its grace period begins again.  One that only puts
	 * slabs off is not waited for longer.
	 */
	if (away && was_up && d->confirmed && !d->put_off && d->away_until < now + d->grace)
		d->away_until = now + d->grace;
	if ((d->leaving & DONOR_SUSPECT && ds->events->backed(ds->owner)) ||
	    d->resume == RESUME_REFUSED ||
	    (away ? now >= d->away_until : !was_up || !d->grace || !d->copies)) {
		donor_lose(d, why);
		return;
	}
	if (!away)
		go_away(d, why, now);
	disconnect(d, why, now);
	if (!was_up && d->place >= d->place_count)
		d->place = 0;
	connect_back_off(d, now, RESUME_RETRY_MOST);
	ds->events->away(ds->owner, d);
	/* Requests in flight go elsewhere, or wait. */
	link_cancel(&d->link);
	if (!d->copies)
		d->resume = RESUME_NOTHING;
}

/*
 * A donor has refused a READ or WRITE, and not as the end of that loan alone.  Resuming the session
 * shows which loans it has; if it confirms all, it does not tell the truth (donor_confirmed()).
 */
static void refused(struct donor *d, const char *why)
{
	bool was_up = d->state == DONOR_UP;

	donor_part(d, why);
	d->accused = was_up && donor_is_away(d) ? d->copies : 0;
}

int donor_confirmed(struct donor *d)
{
	bool lied = d->accused && d->copies >= d->accused;

	d->resume = RESUME_NOTHING;
	d->accused = 0;
	if (lied)
		return -EPROTO;
	tell_back(d);
	return 0;
}

static const char control_altered[] =
	"its control connection was altered between borrower and donor";

/* Returns why a connection that was altered ended: @text, or that the donor is quarantined. */
static const char *count_altered(struct donor *d, const char *text)
{
	count_add(&d->altered, 1);
	if (alterations_add(&d->alterations, now_ns())) {
		text = "data was altered between borrower and donor on 3 connections within 10 minutes; check network cards, switches and middleboxes";
		donor_quarantine(d, text);
	}
	return text;
}

/* A single alteration costs the connection, repeated ones quarantine the donor. */
static void altered(struct donor *d, const char *text)
{
	text = count_altered(d, text);
	/* Without a backup its slabs migrate first. */
	if (d->state != DONOR_QUARANTINED)
		donor_part(d, text);
	donor_record_one(d);
}

static void receive(struct donor *d);

/*
 * Takes what @d has sent before its connection ended, such as an alert that data was altered, which
 * another loss must not hide.  Returns whether it has the connection still.
 */
static bool heard_out(struct donor *d)
{
	if (!tls_used(&d->link.tls) || d->state < DONOR_GREETING || d->link.fd < 0)
		return true;
	for (int i = 0; i < PIECES && d->link.fd >= 0 && (!i || d->link.more); i++)
		receive(d);
	return d->link.fd >= 0;
}

/* An alert that comes later still counts: its connection has ended. */
static void await_alert(struct donor *d)
{
	if (tls_used(&d->link.tls) && d->state == DONOR_UP && !(d->leaving & DONOR_SUSPECT))
		alert_await(&d->alert, &d->link, now_ns());
}

static void look_for_alert(struct donor *d, uint64_t now)
{
	if (!alert_came(&d->alert, now))
		return;
	if (donor_may_log(d))
		note(d->table->notes, LOG_LVL_WARN, "donor %s: %s", d->address.text,
		     control_altered);
	count_altered(d, control_altered);
	donor_record_one(d);
}

void donor_link_lost(void *owner, enum loss loss, const char *text)
{
	struct donor *d = owner;

	if (loss == LOSS_PASSING && !d->link.refusal && !heard_out(d))
		return;
	if (loss == LOSS_PASSING && !d->link.refusal)
		await_alert(d);
	if (loss == LOSS_LASTING)
		explain(d, text);
	if (loss == LOSS_ALTERED)
		altered(d, text);
	else if (d->link.refusal)
		refused(d, text);
	else if (loss == LOSS_LASTING && !donor_is_away(d))
		donor_lose(d, text);
	else
		donor_part(d, text);
}

void donor_quarantine(struct donor *d, const char *why)
{
	const struct donors *ds = d->table;

	if (d->state == DONOR_QUARANTINED || d->leaving & DONOR_SUSPECT)
		return;
	note_event(ds->notes, EVENT_DONOR_QUARANTINED, LOG_LVL_ERR,
		   "donor %s quarantined: %s; it gets no slabs until `ebbctl donor trust`",
		   d->address.text, why);
	d->leaving |= DONOR_SUSPECT;
	/* Immediately: a successor must not trust it again. */
	donor_record_one(d);
	/* Pages that the backup failed to store migrate first. */
	if (ds->events->backed(ds->owner) || (d->state != DONOR_UP && !donor_is_away(d)))
		donor_lose(d, why);
}

void donor_trust(struct donor *d, uint64_t now)
{
	d->leaving &= (uint8_t)~DONOR_SUSPECT;
	d->alterations = (struct alterations){ 0 };
	if (d->state == DONOR_QUARANTINED)
		donor_enter(d, now);
}

static void send_hello(struct donor *d)
{
	const struct donors *ds = d->table;
	struct wire_frame f = { .op = WIRE_HELLO, .tag = (uint64_t)TAG_HELLO << TAG_KIND,
				.length = WIRE_HELLO_SIZE };
	struct wire_hello h = { .version = d->version, .borrower = d->number,
				.slab_size = ds->env.slab, .flags = WIRE_KEEP };
	uint8_t payload[WIRE_HELLO_SIZE];

	strncpy(h.name, ds->device, sizeof(h.name) - 1);
	h.flags |= d->resume ? WIRE_RESUME : 0;
	h.flags |= d->link.transport->hello_flags;
	wire_build_hello(payload, &h);
	stream_push(&d->link.tx, &f, payload, 0);
	d->greeted = false;
}

static void greet(struct donor *d)
{
	d->version = WIRE_VERSION;
	send_hello(d);
	donor_set_state(d, DONOR_GREETING, now_ns());
}

static void flush(struct donor *d)
{
	int r = link_flush(&d->link);

	if (r < 0 && heard_out(d))
		donor_part(d, strerror(-r));
}

/* Offers the key that is derived for the donor, or the shared one after offer_shared(). */
static int start_tls(struct donor *d)
{
	struct tls_context *tls = d->table->env.tls;
	char name[KEY_DONOR];

	/* Names that are no host names, such as some of /etc/hosts, have no derived key. */
	if (!d->shared_key)
		d->shared_key = key_donor_name(d->address.text, "donor", name, NULL) != 0;
	return d->shared_key ? tls_start(&d->link.tls, tls, d->link.fd) :
			       tls_start_derived(&d->link.tls, tls, d->link.fd, name);
}

/*
 * Connects again to a donor that does not know its derived key, with the key that some donors
 * still share.  Anybody may cause this by a forged refusal, to no avail: a peer without the
 * shared key cannot complete that handshake either, and of the shared key every other follows.
 */
static void offer_shared(struct donor *d)
{
	int r;

	link_close(&d->link);
	r = connect_open(d);
	d->shared_key = true;
	if (r)
		donor_part(d, strerror(-r));
}

static void secure(struct donor *d)
{
	int r = 0;

	if (d->state != DONOR_SECURING) {
		r = start_tls(d);
		donor_set_state(d, DONOR_SECURING, now_ns());
	}
	if (!r)
		r = tls_handshake(&d->link.tls);
	if (r == 1) {
		link_watch(&d->link, d->link.tls.wants_write);
	} else if (r == -EACCES && d->link.tls.unknown && !d->shared_key) {
		offer_shared(d);
	} else if (r == -EACCES) {
		explain(d, d->link.tls.why);
		donor_part(d, d->link.tls.why);
	} else if (r) {
		donor_part(d, strerror(-r));
	} else {
		d->link.rx.io = d->link.tx.io = &tls_io;
		d->link.rx.channel = d->link.tx.channel = &d->link.tls;
		greet(d);
		flush(d);
	}
}

static bool moves_pages(const struct wire_frame *f)
{
	return f->op == WIRE_READ || f->op == WIRE_WRITE;
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct donor *d = data;
	const struct transport *t = d->link.transport;

	if (moves_pages(f))
		return t->arrived ? t->arrived(&d->link, 0, f, payload) : -EPROTO;
	*payload = d->link.small;
	return 0;
}

static void take_figures(struct donor *d, const struct wire_frame *f, const struct wire_donor *told)
{
	uint64_t taken = f->slab * told->slab_size;

	d->total = told->total;
	d->free = told->free;
	d->room = taken < told->total - told->free ? told->total - taken : told->free;
	d->memory = told->memory;
	d->used = told->used;
	if (told->version >= 4)
		d->reserved = told->reserved;
	d->leaving = (d->leaving & ~DONOR_DRAINING) |
		     (told->flags & WIRE_DRAINING ? DONOR_DRAINING : 0);
}

/*
 * Returns another entry for the donor with @identity, in use or not trusted, or NULL.  An entry
 * with slabs of a predecessor is in use, connected or not.
 */
static const struct donor *same_donor(const struct donor *d, uint64_t identity)
{
	const struct donors *ds = d->table;

	for (int i = 0; i < ds->count && identity; i++) {
		const struct donor *other = &ds->donor[i];

		if (other != d && other->identity == identity &&
		    (other->state == DONOR_GREETING || other->state == DONOR_UP ||
		     other->state == DONOR_QUARANTINED || other->resume))
			return other;
	}
	return NULL;
}

void donor_ready(void *owner)
{
	struct donor *d = owner;
	struct donors *ds = d->table;

	d->backoff = DONOR_BACKOFF_FIRST;
	d->explained = false;
	d->connects++;
	d->pinged = d->reserving = 0;
	donor_set_state(d, DONOR_UP, now_ns());
	d->ping_at = d->since + PING_INTERVAL;
	ds->events->up(ds->owner);
	d->release = RELEASE_UNSENT;
	d->confirmed = d->put_off = false;
	link_greeted(&d->link);
	if (donor_is_away(d))
		ds->events->resume(ds->owner, d);
	else
		tell_back(d);
}

static int take_hello(struct donor *d, const struct wire_frame *f, const uint8_t *payload)
{
	const struct donor *other;
	struct wire_donor told;
	int r;

	/* A second answer would restart what the first one started. */
	if (d->state != DONOR_GREETING || d->greeted)
		return -EPROTO;
	d->greeted = true;
	if (f->status == WIRE_BAD_VERSION && d->version > WIRE_VERSION_OLDEST) {
		d->version--;
		send_hello(d);
		return 0;
	}
	if (f->status) {
		strncpy(d->why, wire_status_text(f->status), sizeof(d->why) - 1);
		/* Other causes need an operator. */
		if (f->status != WIRE_NO_SESSION)
			explain(d, d->why);
		d->resume = d->resume ? RESUME_REFUSED : RESUME_NOTHING;
		return -ECONNREFUSED;
	}
	if (wire_parse_donor(payload, f->length, &told) || told.version != d->version)
		return -EPROTO;
	if (told.slab_size < d->table->env.slab)
		return -EPROTO;
	/* Two replicas of a slab there would be lost together. */
	other = same_donor(d, told.identity);
	if (other) {
		snprintf(d->why, sizeof(d->why), "the same donor as %.100s; leave one of its addresses out",
			 other->address.text);
		explain(d, d->why);
		return -ECONNREFUSED;
	}
	d->identity = told.identity;
	d->grace = told.grace * MS < GRACE_MOST ? told.grace * MS : GRACE_MOST;
	donor_record_one(d);
	d->link.slab_size = told.slab_size;
	d->link.refuses_one = told.version >= 4;
	take_figures(d, f, &told);
	r = d->link.transport->hello ? d->link.transport->hello(&d->link, &told) : 0;
	if (!r)
		donor_ready(d);
	return r < 0 ? r : 0;
}

int donor_frame(struct donor *d, const struct wire_frame *f, const uint8_t *payload)
{
	const struct donors *ds = d->table;
	struct wire_donor told;

	/* A request of the donor may overtake the JOIN reply on its data connection. */
	if (f->op != WIRE_HELLO && !donor_up(d) &&
	    !(d->state == DONOR_GREETING && f->direction == WIRE_REQUEST))
		return -EPROTO;
	switch (f->op) {
	case WIRE_HELLO:
		return take_hello(d, f, payload);
	case WIRE_MAP:
		return ds->events->answered(ds->owner, d, f);
	case WIRE_PING:
	case WIRE_RESERVE:
		if (f->op == WIRE_RESERVE && !d->reserving)
			return -EPROTO;
		if (f->status || wire_parse_donor(payload, f->length, &told) ||
		    told.version != d->version)
			return -EPROTO;
		take_figures(d, f, &told);
		*(f->op == WIRE_PING ? &d->pinged : &d->reserving) = 0;
		return 0;
	case WIRE_REMAP:
		return ds->events->resumed(ds->owner, d, f);
	case WIRE_RELEASE:
		if (d->release != RELEASE_SENT)
			return -EPROTO;
		d->release = RELEASE_ANSWERED;
		return ds->events->released(ds->owner, d);
	case WIRE_UNMAP:
	case WIRE_UNBACKED:
	case WIRE_BYE:
		return 0;
	case WIRE_REVOKED:
		if (d->version < 4)
			return -EPROTO;
		/* fall through */
	case WIRE_ACTIVITY:
	case WIRE_EVICT:
		return ds->events->asked(ds->owner, d, f, payload);
	}
	return -EPROTO;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct donor *d = data;
	int r;

	if (!moves_pages(f))
		return donor_frame(d, f, d->link.small);
	r = d->link.transport->finished(&d->link, 0, f);
	if (r == -ECONNREFUSED)
		strncpy(d->why, d->link.refusal, sizeof(d->why) - 1);
	return r;
}

static uint32_t expected(void *data, struct stream_expected *frames, uint32_t most)
{
	const struct link *l = &((const struct donor *)data)->link;

	return l->transport->expected ? l->transport->expected(l, 0, frames, most) : 0;
}

static const struct stream_rx_ops rx_ops = { arrived, finished, expected };

static void receive(struct donor *d)
{
	int r = stream_receive(&d->link.rx, d->link.fd, LINK_PIECE, &rx_ops, d);

	d->link.more = r == 1;
	if (r == -EPROTO)
		donor_lose(d, "it broke the protocol");
	else if (r == -EBADMSG)
		altered(d, control_altered);
	else if (r == -ECONNREFUSED && d->link.refusal)
		refused(d, d->why);
	else if (r == -ECONNREFUSED)
		donor_part(d, d->why);
	else if (r < 0)
		donor_part(d, r == -ECONNRESET ? "connection closed" : strerror(-r));
}

/* Sends queued frames, and those of a resumption that only waited for room in the queue. */
static void flush_all(struct donor *d)
{
	do {
		flush(d);
		if (d->state == DONOR_UP && donor_is_away(d) && d->release == RELEASE_UNSENT &&
		    !d->link.tx.count && now_ns() >= d->retry_at)
			d->table->events->resume(d->table->owner, d);
	} while (d->link.tx.count && d->state == DONOR_UP && !d->link.watched_for_write);
}

void donors_flush(struct donors *ds)
{
	for (int i = 0; i < ds->count; i++) {
		struct donor *d = &ds->donor[i];

		if (d->state == DONOR_ABSENT)
			continue;
		if (d->blamed)
			donor_quarantine(d, d->why);
		d->blamed = false;
		/* epoll reports when a full socket is writable again. */
		if (d->link.tx.count && d->state >= DONOR_GREETING && !d->link.watched_for_write)
			flush_all(d);
		if (d->state == DONOR_UP && d->link.transport->flush)
			d->link.transport->flush(&d->link);
	}
}

void donor_event(struct donor *d, uint32_t events)
{
	int error = 0;
	socklen_t len = sizeof(error);

	if (d->state == DONOR_CONNECTING) {
		getsockopt(d->link.fd, SOL_SOCKET, SO_ERROR, &error, &len);
		if (error) {
			donor_part(d, strerror(error));
			return;
		}
		if (!(events & EPOLLOUT))
			return;
		if (d->table->env.tls && !address_is_local(&d->address)) {
			secure(d);
			return;
		}
		greet(d);
	} else if (d->state == DONOR_SECURING) {
		secure(d);
		return;
	}
	if (d->link.fd >= 0 && events & EPOLLOUT)
		flush(d);
	if (d->link.fd >= 0 && events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		receive(d);
}

/* Handles an event of @channel; 0 means any except the control connection. */
static void channel_event(struct donor *d, uint32_t channel)
{
	if (d->link.fd >= 0 && d->link.transport->event)
		d->link.transport->event(&d->link, channel);
}

void donors_event(struct donors *ds, const struct epoll_event *ev)
{
	uint32_t index = (uint32_t)ev->data.u64, channel = (uint32_t)(ev->data.u64 >> 32);

	if (index >= (uint32_t)ds->count)
		return;
	if (channel)
		channel_event(&ds->donor[index], channel);
	else
		donor_event(&ds->donor[index], ev->events);
}

/* Receives the next piece of each connection that has more; returns whether there was one. */
static bool receive_more(struct donor *d)
{
	bool more = d->link.fd >= 0 && d->link.more;

	if (more)
		receive(d);
	if (d->link.fd >= 0 && d->link.transport->more)
		more |= d->link.transport->more(&d->link);
	return more;
}

bool donors_more(struct donors *ds)
{
	bool more = false;

	for (int i = 0; i < ds->count; i++)
		more |= receive_more(&ds->donor[i]);
	return more;
}

/* Receives pending data, in case this process slept. */
static void receive_all(struct donor *d)
{
	receive(d);
	channel_event(d, 0);
	for (int i = 0; i < PIECES && receive_more(d); i++)
		;
}

/* Returns whether the wait exceeds @limit; a start after @now was read counts as none. */
static bool waited(uint64_t since, uint64_t now, uint64_t limit)
{
	return since < now && now - since > limit;
}

/*
 * Returns whether the answer to a request of @since is late.  Transfers that end extend the
 * deadline: a request waits for all data before it, which is megabytes on a full link.  Time in
 * which this process did not run is not counted.
 */
static bool is_late(const struct donor *d, uint64_t since, uint64_t now)
{
	const struct donors *ds = d->table;
	uint64_t from;

	since = since > ds->awake_since ? since : ds->awake_since;
	from = since > d->moved ? since : d->moved;
	return waited(from, now, ds->deadline) ||
	       waited(since, now, PATIENCE * ds->deadline);
}

/* Looks for the oldest one only when it may be late: that takes long where there are many slabs. */
static bool mapping_is_late(struct donor *d, uint64_t now)
{
	if (!is_late(d, d->mapping_since, now))
		return false;
	d->mapping_since = d->table->events->oldest(d->table->owner, d);
	return is_late(d, d->mapping_since, now);
}

static bool overdue(struct donor *d, uint64_t now)
{
	const struct transfer *oldest = d->link.waiting.head;

	return (oldest && is_late(d, oldest->since, now)) ||
	       (d->pinged && is_late(d, d->pinged, now)) ||
	       (d->reserving && is_late(d, d->reserving, now)) ||
	       (d->release == RELEASE_SENT && is_late(d, d->released_at, now)) ||
	       (d->mapping && mapping_is_late(d, now));
}

void donor_ping(struct donor *d, uint64_t now)
{
	struct wire_frame f = { .op = WIRE_PING, .tag = (uint64_t)TAG_PING << TAG_KIND };

	if (stream_push(&d->link.tx, &f, NULL, 0))
		return;
	d->pinged = now;
	d->ping_at = now + PING_INTERVAL;
}

void donor_reserve(struct donor *d, uint32_t slabs, uint64_t now)
{
	struct wire_frame f = { .op = WIRE_RESERVE, .length = WIRE_RESERVE_SIZE,
				.tag = (uint64_t)TAG_RESERVE << TAG_KIND };
	uint8_t payload[WIRE_RESERVE_SIZE];

	if (d->version < 4) {
		d->reserved = slabs;
		return;
	}
	wire_build_reserve(payload, slabs);
	if (!stream_push(&d->link.tx, &f, payload, 0))
		d->reserving = now;
}

/* Returns whether the entry of @d is to be freed once it has no slab. */
static bool ends_empty(const struct donor *d)
{
	return d->unlisted || d->leaving & DONOR_REMOVED;
}

/* Removes @d, which lends nothing any more, from the table. */
static void let_go(struct donor *d, uint64_t now)
{
	link_close(&d->link);
	donor_set_state(d, DONOR_ABSENT, now);
	note(d->table->notes, LOG_LVL_INFO, "donor %s is no longer used", d->address.text);
}

void donors_tick(struct donors *ds, uint64_t now)
{
	for (int i = 0; i < ds->count; i++) {
		struct donor *d = &ds->donor[i];
		int r;

		if (d->state == DONOR_ABSENT)
			continue;
		look_for_alert(d, now);
		d->latency -= d->latency / LATENCY_FADE;
		d->fastest += d->fastest < FASTEST_MOST ? d->fastest / FASTEST_GROWTH : 0;
		if (!d->leaving)
			d->stayed = now;
		if (donor_is_away(d) && d->state != DONOR_UP && now >= d->away_until)
			donor_lose(d, "not back within its session grace period");
		switch (d->state) {
		case DONOR_DOWN:
			if (ends_empty(d) && !d->resume) {
				donor_set_state(d, DONOR_ABSENT, now);
				break;
			}
			if (now < d->retry_at || !connect_next_place(d, now))
				break;
			r = connect_open(d);
			if (r && (d->resume || d->place >= d->place_count)) {
				if (d->resume) {
					donor_part(d, strerror(-r));
					break;
				}
				strncpy(d->why, strerror(-r), sizeof(d->why) - 1);
				connect_back_off(d, now, DONOR_BACKOFF_MOST);
			}
			break;
		case DONOR_CONNECTING:
		case DONOR_SECURING:
		case DONOR_GREETING:
			if (now - d->since > CONNECT_TIMEOUT)
				donor_part(d, "no answer");
			break;
		case DONOR_UP:
			if (d->moves)
				d->moved = now;
			d->moves = false;
			if (overdue(d, now)) {
				receive_all(d);
				if (d->state == DONOR_UP && overdue(d, now))
					donor_part(d, "no reply within the deadline");
			}
			if (d->state == DONOR_UP && d->later)
				ds->events->ask_later(ds->owner, d, now);
			if (d->state == DONOR_UP && donor_is_away(d) && now >= d->retry_at)
				ds->events->resume(ds->owner, d);
			/* Its last copy that was AWAY may have been given up meanwhile. */
			if (d->state == DONOR_UP && donor_is_away(d) &&
			    d->release == RELEASE_ANSWERED &&
			    ds->events->released(ds->owner, d))
				donor_lose(d, "it broke the protocol");
			if (d->state == DONOR_UP && !d->pinged && now >= d->ping_at &&
			    (!donor_is_away(d) || d->release == RELEASE_ANSWERED) &&
			    donor_has_room(d))
				donor_ping(d, now);
			if (d->state == DONOR_UP && d->leaving & DONOR_SUSPECT && !d->copies)
				donor_lose(d, d->why);
			else if (d->state == DONOR_UP && ends_empty(d) && !d->copies &&
				 !d->link.tx.count && !d->link.waiting.head)
				let_go(d, now);
			break;
		case DONOR_QUARANTINED:
			/* A removed donor that reconnects is still not trusted. */
			break;
		}
	}
	donors_record(ds);
}

/* Handles the next events of @d, or loses it at @give_up.  Before a device serves. */
static void attend(struct donor *d, uint64_t give_up)
{
	const struct transport *t = d->link.transport;
	struct pollfd p[1 + DATA_LINKS] = { { .fd = d->link.fd, .events = POLLIN } };
	int n = 1 + (t->fds ? t->fds(&d->link, p + 1, DATA_LINKS) : 0);
	uint64_t now = now_ns();

	if (d->link.watched_for_write || d->link.tx.count)
		p[0].events |= POLLOUT;
	if (now >= give_up) {
		donor_lose(d, "no answer within 2 s");
		return;
	}
	poll(p, (nfds_t)n, (int)((give_up - now) / MS) + 1);
	if (p[0].revents)
		donor_event(d, (uint32_t)p[0].revents);
	channel_event(d, 0);
}

/* Connects @d at its next address; then it is up, or down with the reason. */
static void try_place(struct donor *d)
{
	uint64_t give_up = now_ns() + CONNECT_TIMEOUT;
	int r;

	donor_enter(d, now_ns());
	connect_next_place(d, now_ns());
	r = connect_open(d);
	if (r)
		donor_lose(d, strerror(-r));
	while (d->state != DONOR_UP && d->state != DONOR_DOWN)
		attend(d, give_up);
}

bool donor_reserved(struct donor *d, uint64_t since)
{
	while (d->state == DONOR_UP && d->reserving)
		attend(d, since + CONNECT_TIMEOUT);
	return d->state == DONOR_UP;
}

bool donor_reserve_now(struct donor *d, uint32_t slabs)
{
	uint64_t now = now_ns();

	donor_reserve(d, slabs, now);
	return donor_reserved(d, now);
}

int donor_join(struct donor *d, struct error *e)
{
	const char *text = d->address.text;

	do
		try_place(d);
	while (d->state != DONOR_UP && !d->explained && d->place < d->place_count);
	if (d->state == DONOR_UP)
		return 0;
	if (d->explained)
		return fail_exit(e, EXIT_REFUSED, EACCES, "donor %s: %s", text, d->why);
	return fail(e, ECONNREFUSED, "donor %s: %s; start ebb-donord there or correct --donor", text,
		    d->why);
}

void donors_free(struct donors *ds)
{
	for (int i = 0; i < ds->count; i++) {
		struct donor *d = &ds->donor[i];

		if (donor_up(d))
			say_bye(d);
		alert_end(&d->alert);
		link_free(&d->link);
	}
	ds->count = 0;
}
