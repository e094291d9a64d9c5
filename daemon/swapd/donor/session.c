// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "connect.h"
#include "lib/link/rdma_connect.h"
#include "session.h"
#include "swapd/swapd.h"

#define MS 1000000ull
#define SECOND (1000 * MS)
#define CONNECT_TIMEOUT (2 * SECOND)
#define PING_INTERVAL SECOND
/* So many deadlines at most may an answer take, whatever else comes. */
#define PATIENCE 8
#define RECEIVE_BUDGET (4u << 20)

/* What is lost of a donor's latency in a tick: without reads it halves in about 2 s. */
#define LATENCY_FADE 32

/* A frame of @data's queue is gone; those of legs have a cookie. */
static void sent(void *data, uint32_t cookie)
{
	struct donor *d = data;

	d->legs_queued -= cookie;
}

/* As far as it goes: a donor that does not hear it waits for a successor, in vain. */
static void say_bye(struct donor *d)
{
	struct wire_frame f = { .op = WIRE_BYE, .tag = (uint64_t)TAG_BYE << TAG_KIND };

	if (!stream_push(&d->tx, &f, NULL, 0))
		stream_flush(&d->tx, d->fd, sent, d);
}

static void hang_up(struct swapd *s, struct donor *d)
{
	if (d->fd >= 0)
		close(d->fd);
	d->fd = -1;
	if (d->transport->close)
		d->transport->close(s, d);
	stream_tx_reset(&d->tx, sent, d);
	stream_rx_reset(&d->rx);
	tls_stop(&d->tls);
}

void donor_lose(struct swapd *s, struct donor *d, const char *why)
{
	uint64_t now = now_ns();
	bool was_up = d->state == DONOR_UP;
	bool has_ours = was_up || d->resume;

	/* It is trusted with nothing: nobody comes back for what is there. */
	if (was_up && d->leaving & DONOR_SUSPECT)
		say_bye(d);
	hang_up(s, d);
	donor_set_state(d, DONOR_DOWN, now);
	if (was_up && d->place_count)
		connect_ask_name(s, d, now);
	if (d->resume == RESUME_WANTED && !was_up && now < s->resume_until) {
		d->place = 0;
		d->retry_at = now + RESUME_RETRY;
		return;
	}
	d->resume = RESUME_NOTHING;
	if (d->place < d->place_count)
		d->retry_at = now;
	else
		connect_back_off(s, d, now);
	if (why != d->why)
		strncpy(d->why, why, sizeof(d->why) - 1);
	if (d->leaving & DONOR_SUSPECT) {
		d->leaving &= (uint8_t)~DONOR_SUSPECT;
		donor_set_state(d, DONOR_QUARANTINED, now);
		donor_record_one(s, d);
	}
	if (!has_ours)
		return;
	d->losses++;
	count_add(&s->count->donor_losses, 1);
	note_event(&s->notes, EVENT_DONOR_LOST, LOG_LVL_WARN, "donor %s lost: %s; %s",
		   d->address.text, why,
		   backup_there(&s->backup) ? "reading its pages from other replicas or the backup" :
		   s->wanted > 1 ? "reading its pages from other replicas" :
				   "its pages are lost, as there is neither a backup nor another replica");
	s->donor_events->lost(s, d);
	while (d->waiting.head >= 0) {
		int number = d->waiting.head;

		donor_answered(s, d, number);
		s->donor_events->leg_gone(s, number);
	}
}

void donor_quarantine(struct swapd *s, struct donor *d, const char *why)
{
	if (d->state == DONOR_QUARANTINED || d->leaving & DONOR_SUSPECT)
		return;
	note_event(&s->notes, EVENT_DONOR_QUARANTINED, LOG_LVL_ERR,
		   "donor %s quarantined: %s; it gets no slabs until `ebbctl donor trust`",
		   d->address.text, why);
	d->leaving |= DONOR_SUSPECT;
	/* At once: a successor is not to trust it again. */
	donor_record_one(s, d);
	if (d->state != DONOR_UP || backup_there(&s->backup))
		donor_lose(s, d, why);
}

void donor_trust(struct donor *d, uint64_t now)
{
	d->leaving &= (uint8_t)~DONOR_SUSPECT;
	if (d->state == DONOR_QUARANTINED)
		donor_enter(d, now);
}

static void greet(struct swapd *s, struct donor *d)
{
	struct wire_frame f = { .op = WIRE_HELLO, .tag = (uint64_t)TAG_HELLO << TAG_KIND,
				.length = WIRE_HELLO_SIZE };
	/* One number for each: at a second address of a donor it must not end the first one. */
	struct wire_hello h = { .version = WIRE_VERSION, .borrower = s->borrower + d->index,
				.slab_size = s->options.slab, .flags = WIRE_KEEP };
	uint8_t payload[WIRE_HELLO_SIZE];

	strncpy(h.name, s->options.name, sizeof(h.name) - 1);
	h.flags |= d->resume ? WIRE_RESUME : 0;
	h.flags |= d->transport->hello_flags;
	wire_build_hello(payload, &h);
	stream_push(&d->tx, &f, payload, 0);
	d->greeted = false;
	donor_set_state(d, DONOR_GREETING, now_ns());
}

static void flush(struct swapd *s, struct donor *d)
{
	int r = stream_flush(&d->tx, d->fd, sent, d);

	if (r < 0)
		donor_lose(s, d, strerror(-r));
	else
		connect_watch(s, d, r == 1);
}

/* Whom we cannot talk to is told once, until it answers. */
void donor_explain(struct swapd *s, struct donor *d, const char *why)
{
	if (!d->explained)
		note(&s->notes, LOG_LVL_ERR, "donor %s: %s", d->address.text, why);
	d->explained = true;
}

static void secure(struct swapd *s, struct donor *d)
{
	int r = 0;

	if (d->state != DONOR_SECURING) {
		r = tls_start(&d->tls, s->tls, d->fd);
		donor_set_state(d, DONOR_SECURING, now_ns());
	}
	if (!r)
		r = tls_handshake(&d->tls);
	if (r == 1) {
		connect_watch(s, d, d->tls.wants_write);
	} else if (r == -EACCES) {
		donor_explain(s, d, d->tls.why);
		donor_lose(s, d, d->tls.why);
	} else if (r) {
		donor_lose(s, d, strerror(-r));
	} else {
		d->rx.io = d->tx.io = &tls_io;
		d->rx.channel = d->tx.channel = &d->tls;
		greet(s, d);
		flush(s, d);
	}
}

struct donor_context {
	struct swapd *s;
	struct donor *d;
};

static bool moves_pages(const struct wire_frame *f)
{
	return f->op == WIRE_READ || f->op == WIRE_WRITE;
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct donor_context *c = data;
	const struct transport *t = c->d->transport;

	if (moves_pages(f))
		return t->arrived ? t->arrived(c->s, c->d, 0, f, payload) : -EPROTO;
	*payload = c->d->small;
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
	d->leaving = (d->leaving & ~DONOR_DRAINING) |
		     (told->flags & WIRE_DRAINING ? DONOR_DRAINING : 0);
}

/*
 * Another entry for the donor with @identity, in use or not trusted; NULL = none.  One
 * that still is to have what a predecessor had there is in use, connected or not.
 */
static const struct donor *same_donor(const struct swapd *s, const struct donor *d,
				      uint64_t identity)
{
	for (int i = 0; i < s->donor_count && identity; i++) {
		const struct donor *other = &s->donors[i];

		if (other != d && other->identity == identity &&
		    (other->state == DONOR_GREETING || other->state == DONOR_UP ||
		     other->state == DONOR_QUARANTINED || other->resume))
			return other;
	}
	return NULL;
}

static int take_hello(struct swapd *s, struct donor *d, const struct wire_frame *f,
		      const uint8_t *payload)
{
	const struct donor *other;
	struct wire_donor told;
	int r;

	/* A second answer would have what the first one set off begin again, beside it. */
	if (d->state != DONOR_GREETING || d->greeted)
		return -EPROTO;
	d->greeted = true;
	if (f->status) {
		strncpy(d->why, wire_status_text(f->status), sizeof(d->why) - 1);
		/* All but what time mends. */
		if (f->status != WIRE_NO_SESSION)
			donor_explain(s, d, d->why);
		d->resume = d->resume ? RESUME_REFUSED : RESUME_NOTHING;
		return -ECONNREFUSED;
	}
	if (wire_parse_donor(payload, f->length, &told) || told.version != WIRE_VERSION)
		return -EPROTO;
	if (told.slab_size < s->options.slab)
		return -EPROTO;
	/* Two copies of a slab there would be lost together. */
	other = same_donor(s, d, told.identity);
	if (other) {
		snprintf(d->why, sizeof(d->why), "the same donor as %.100s; leave one of its addresses out",
			 other->address.text);
		donor_explain(s, d, d->why);
		return -ECONNREFUSED;
	}
	d->identity = told.identity;
	donor_record_one(s, d);
	d->slab_size = told.slab_size;
	take_figures(d, f, &told);
	r = d->transport->greeted ? d->transport->greeted(s, d, &told) : 0;
	if (!r)
		donor_ready(s, d);
	return r < 0 ? r : 0;
}

void donor_ready(struct swapd *s, struct donor *d)
{
	d->backoff = DONOR_BACKOFF_FIRST;
	d->explained = false;
	d->connects++;
	d->pinged = 0;
	donor_set_state(d, DONOR_UP, now_ns());
	d->ping_at = d->since + PING_INTERVAL;
	s->donor_events->up(s);
	if (d->connects > 1)
		note_event(&s->notes, EVENT_DONOR_BACK, LOG_LVL_INFO, "donor %s is back", d->address.text);
}

int donor_frame(struct swapd *s, struct donor *d, const struct wire_frame *f,
		const uint8_t *payload)
{
	struct wire_donor told;

	/* What it asks may overtake, on another connection, what its data connection says. */
	if (f->op != WIRE_HELLO && !donor_up(d) &&
	    !(d->state == DONOR_GREETING && f->direction == WIRE_REQUEST))
		return -EPROTO;
	switch (f->op) {
	case WIRE_HELLO:
		return take_hello(s, d, f, payload);
	case WIRE_MAP:
		return s->donor_events->answered(s, d, f);
	case WIRE_PING:
		if (f->status || wire_parse_donor(payload, f->length, &told))
			return -EPROTO;
		take_figures(d, f, &told);
		d->pinged = 0;
		return 0;
	case WIRE_REMAP:
		return s->donor_events->resumed(s, d, f);
	case WIRE_UNMAP:
	case WIRE_RELEASE:
	case WIRE_BYE:
		return 0;
	case WIRE_ACTIVITY:
	case WIRE_EVICT:
		return s->donor_events->asked(s, d, f, payload);
	}
	return -EPROTO;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct donor_context *c = data;

	return moves_pages(f) ? c->d->transport->finished(c->s, c->d, 0, f) :
				donor_frame(c->s, c->d, f, c->d->small);
}

static const struct stream_rx_ops rx_ops = { arrived, finished };

static void receive(struct swapd *s, struct donor *d)
{
	struct donor_context c = { s, d };
	int r = stream_receive(&d->rx, d->fd, RECEIVE_BUDGET, &rx_ops, &c);

	if (r < 0)
		donor_lose(s, d, r == -EPROTO ? "it broke the protocol" :
		     r == -ECONNREFUSED ? d->why :
		     r == -ECONNRESET ? "connection closed" : strerror(-r));
}

void donors_flush(struct swapd *s)
{
	for (int i = 0; i < s->donor_count; i++) {
		struct donor *d = &s->donors[i];

		if (d->state == DONOR_ABSENT)
			continue;
		if (d->blamed)
			donor_quarantine(s, d, d->why);
		d->blamed = false;
		/* A full socket says itself when it takes more. */
		if (d->tx.count && d->state >= DONOR_GREETING && !d->watched_for_write)
			flush(s, d);
		if (d->state == DONOR_UP && d->transport->flush)
			d->transport->flush(s, d);
	}
}

void donor_event(struct swapd *s, struct donor *d, uint32_t events)
{
	int error = 0;
	socklen_t len = sizeof(error);

	if (d->state == DONOR_CONNECTING) {
		getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &error, &len);
		if (error) {
			donor_lose(s, d, strerror(error));
			return;
		}
		if (!(events & EPOLLOUT))
			return;
		if (s->tls && !address_is_local(&d->address)) {
			secure(s, d);
			return;
		}
		greet(s, d);
	} else if (d->state == DONOR_SECURING) {
		secure(s, d);
		return;
	}
	if (d->fd >= 0 && events & EPOLLOUT)
		flush(s, d);
	if (d->fd >= 0 && events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		receive(s, d);
}

/* Something happened on @channel, or, with 0, perhaps on any but the control connection. */
static void completed(struct swapd *s, struct donor *d, uint32_t channel)
{
	if (d->fd >= 0 && d->transport->complete)
		d->transport->complete(s, d, channel);
}

void donors_event(struct swapd *s, const struct epoll_event *ev)
{
	uint32_t index = (uint32_t)ev->data.u64, channel = (uint32_t)(ev->data.u64 >> 32);

	if (index >= (uint32_t)s->donor_count)
		return;
	if (channel)
		completed(s, &s->donors[index], channel);
	else
		donor_event(s, &s->donors[index], ev->events);
}

/* Takes what is here, if it was us who slept. */
static void receive_all(struct swapd *s, struct donor *d)
{
	receive(s, d);
	completed(s, d, 0);
}

/* What began after @now was read has not waited at all. */
static bool waited(uint64_t since, uint64_t now, uint64_t limit)
{
	return since < now && now - since > limit;
}

/*
 * Whether what @d was asked at @since is too late.  Not as long as pages come and go: what was
 * asked last waits for all before it, and a link that is full has megabytes of that.  Nor is
 * the time in which we did not look the donor's.
 */
static bool is_late(const struct swapd *s, const struct donor *d, uint64_t since, uint64_t now)
{
	uint64_t from = since > d->moved ? since : d->moved;

	from = from > s->awake_since ? from : s->awake_since;
	return waited(from, now, s->options.deadline) ||
	       waited(since, now, PATIENCE * s->options.deadline);
}

static bool overdue(struct swapd *s, struct donor *d, uint64_t now)
{
	return (d->waiting.head >= 0 &&
		is_late(s, d, leg_at(&s->slots, d->waiting.head)->since, now)) ||
	       (d->pinged && is_late(s, d, d->pinged, now)) ||
	       (d->mapping && is_late(s, d, s->donor_events->oldest(s, d), now));
}

void donor_ping(struct donor *d, uint64_t now)
{
	struct wire_frame f = { .op = WIRE_PING, .tag = (uint64_t)TAG_PING << TAG_KIND };

	if (stream_push(&d->tx, &f, NULL, 0))
		return;
	d->pinged = now;
	d->ping_at = now + PING_INTERVAL;
}

/* It has nothing of ours any more. */
static void donor_let_go(struct swapd *s, struct donor *d, uint64_t now)
{
	hang_up(s, d);
	donor_set_state(d, DONOR_ABSENT, now);
	note(&s->notes, LOG_LVL_INFO, "donor %s is no longer used", d->address.text);
}

void donors_tick(struct swapd *s, uint64_t now)
{
	for (int i = 0; i < s->donor_count; i++) {
		struct donor *d = &s->donors[i];
		int r;

		if (d->state == DONOR_ABSENT)
			continue;
		d->latency -= d->latency / LATENCY_FADE;
		if (!d->leaving)
			d->stayed = now;
		switch (d->state) {
		case DONOR_DOWN:
			if (d->leaving & DONOR_REMOVED && !d->resume) {
				donor_set_state(d, DONOR_ABSENT, now);
				break;
			}
			if (now < d->retry_at || !connect_next_place(s, d, now))
				break;
			r = connect_open(s, d);
			if (r && (d->resume || d->place >= d->place_count)) {
				if (d->resume) {
					donor_lose(s, d, "no answer");
					break;
				}
				strncpy(d->why, strerror(-r), sizeof(d->why) - 1);
				connect_back_off(s, d, now);
			}
			break;
		case DONOR_CONNECTING:
		case DONOR_SECURING:
		case DONOR_GREETING:
			if (now - d->since > CONNECT_TIMEOUT)
				donor_lose(s, d, "no answer");
			break;
		case DONOR_UP:
			if (d->moves)
				d->moved = now;
			d->moves = false;
			if (overdue(s, d, now)) {
				receive_all(s, d);
				if (d->state == DONOR_UP && overdue(s, d, now))
					donor_lose(s, d, "no reply within the deadline");
			}
			if (d->state == DONOR_UP && d->mapping)
				s->donor_events->ask_later(s, d, now);
			if (d->state == DONOR_UP && !d->pinged && now >= d->ping_at &&
			    donor_has_room(d))
				donor_ping(d, now);
			if (d->state == DONOR_UP && d->leaving & DONOR_SUSPECT && !d->copies)
				donor_lose(s, d, d->why);
			else if (d->state == DONOR_UP && d->leaving & DONOR_REMOVED && !d->copies &&
				 !d->tx.count)
				donor_let_go(s, d, now);
			break;
		case DONOR_QUARANTINED:
			/* Also when it is removed: one that comes back is still not trusted. */
			break;
		}
	}
	donors_record(s);
}

static void take_events(struct swapd *s, struct donor *d, const struct pollfd *p)
{
	uint64_t wakes;

	if (p[0].revents)
		donor_event(s, d, (uint32_t)p[0].revents);
	for (uint32_t i = 1; i <= DATA_LINKS; i++)
		if (p[i].revents)
			completed(s, d, i);
	if (p[1 + DATA_LINKS].revents && read(p[1 + DATA_LINKS].fd, &wakes, sizeof(wakes)) > 0)
		completed(s, d, RDMA_CHANNEL);
}

/* Connects @d where its next place is; it is up, or down with the reason. */
static void try_place(struct swapd *s, struct donor *d)
{
	uint64_t give_up = now_ns() + CONNECT_TIMEOUT;
	int r;

	donor_enter(d, now_ns());
	connect_next_place(s, d, now_ns());
	r = connect_open(s, d);
	if (r)
		donor_lose(s, d, strerror(-r));
	while (d->state != DONOR_UP && d->state != DONOR_DOWN) {
		struct pollfd p[2 + DATA_LINKS] = {
			{ .fd = d->fd, .events = POLLIN | (d->watched_for_write ? POLLOUT : 0) },
			[1 + DATA_LINKS] = { .fd = d->transport->fd ? d->transport->fd(s, d) : -1, .events = POLLIN },
		};
		uint64_t now = now_ns();

		for (int i = 0; i < DATA_LINKS; i++) {
			const struct data_link *l = &d->link[i];

			p[1 + i].fd = l->state ? l->fd : -1;
			p[1 + i].events = POLLIN | (l->watched_for_write ? POLLOUT : 0);
		}
		if (d->tx.count)
			p[0].events |= POLLOUT;
		if (now >= give_up)
			donor_lose(s, d, "no answer within 2 s");
		else if (poll(p, 2 + DATA_LINKS, (int)((give_up - now) / MS) + 1) > 0)
			take_events(s, d, p);
	}
}

int donor_join(struct swapd *s, struct donor *d, struct error *e)
{
	const char *text = d->address.text;

	do
		try_place(s, d);
	while (d->state != DONOR_UP && !d->explained && d->place < d->place_count);
	if (d->state == DONOR_UP)
		return 0;
	if (d->explained)
		return fail_exit(e, EXIT_REFUSED, EACCES, "donor %s: %s", text, d->why);
	return fail(e, ECONNREFUSED, "donor %s: %s; start ebb-donord there or correct --donor", text,
		    d->why);
}

void donors_free(struct swapd *s)
{
	for (int i = 0; i < s->donor_count; i++) {
		struct donor *d = &s->donors[i];

		if (donor_up(d))
			say_bye(d);
		if (d->fd >= 0)
			close(d->fd);
		tls_stop(&d->tls);
		stream_rx_free(&d->rx);
		stream_tx_free(&d->tx);
		donor_free_links(s, d);
	}
	s->donor_count = 0;
}
