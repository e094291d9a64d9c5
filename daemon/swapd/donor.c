// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bits.h"
#include "page_io.h"
#include "place.h"
#include "swapd.h"

#define MS 1000000ull
#define SECOND (1000 * MS)
#define CONNECT_TIMEOUT (2 * SECOND)
#define PING_INTERVAL SECOND
#define BACKOFF_FIRST (200 * MS)
#define BACKOFF_MOST (5 * SECOND)
#define RECEIVE_BUDGET (4u << 20)
/* Legs of every slot and replies to the donor always have room; MAPs and a PING beside them. */
#define SEND_RESERVED (SLOT_COUNT + WIRE_ASKED)
#define SEND_QUEUE (SEND_RESERVED + 64)

/* A tag: what is asked for in the top byte, then sequence and slot, or the slab. */
enum { TAG_SLOT = 1, TAG_SLAB, TAG_PING, TAG_HELLO };

static uint64_t make_tag(uint64_t kind, uint32_t sequence, uint16_t index)
{
	return kind << 56 | (uint64_t)sequence << 16 | index;
}

const char *donor_state_text(uint8_t state)
{
	static const char *const texts[] = {
		[DONOR_DOWN] = "down",
		[DONOR_CONNECTING] = "connecting",
		[DONOR_GREETING] = "greeting",
		[DONOR_UP] = "up",
	};

	return texts[state];
}

static void set_state(struct donor *d, enum donor_state state, uint64_t now)
{
	d->state = state;
	d->since = now;
}

static void unreach(struct swapd *s, struct donor *d, struct slab *slab)
{
	if (slab->state == SLAB_MAPPED && d->transport->unmap_slab)
		d->transport->unmap_slab(s, slab);
}

/* Gives @d's slabs up and finds other ways for what waited for it. */
static void lose_slabs(struct swapd *s, struct donor *d)
{
	for (uint32_t i = 0; i < s->table.count; i++) {
		struct slab *slab = &s->table.slabs[i];
		uint32_t first = i * s->table.pages, left = s->pages - first;

		if (slab->donor != d->index ||
		    (slab->state != SLAB_MAPPED && slab->state != SLAB_MAPPING))
			continue;
		unreach(s, d, slab);
		slab_lose(slab);
		bits_clear(s->valid, first, left < s->table.pages ? left : s->table.pages);
	}
	/* Only now, with every bit cleared, may requests look for another way. */
	for (uint32_t i = 0; i < s->table.count; i++)
		page_io_slab_settled(s, i);
	while (d->waiting.head >= 0) {
		struct slot *slot = &s->slots.slot[d->waiting.head];

		slot_remove(&s->slots, &d->waiting, slot);
		page_io_donor_gone(s, slot);
	}
}

static void lose(struct swapd *s, struct donor *d, const char *why)
{
	uint64_t now = now_ns();
	bool was_up = d->state == DONOR_UP;

	close(d->fd);
	d->fd = -1;
	if (d->transport->close)
		d->transport->close(s, d);
	set_state(d, DONOR_DOWN, now);
	d->retry_at = now + d->backoff;
	d->backoff = d->backoff * 2 < BACKOFF_MOST ? d->backoff * 2 : BACKOFF_MOST;
	stream_tx_reset(&d->tx, NULL, NULL);
	stream_rx_reset(&d->rx);
	if (why != d->why)
		strncpy(d->why, why, sizeof(d->why) - 1);
	if (!was_up)
		return;
	d->losses++;
	count_add(&s->count->donor_losses, 1);
	note(&s->notes, LOG_LVL_WARN, "donor %s lost: %s; its pages come from the backup now",
	     d->address.text, why);
	lose_slabs(s, d);
}

static void watch(struct swapd *s, struct donor *d, bool write)
{
	struct epoll_event ev = {
		.events = EPOLLIN | (write ? EPOLLOUT : 0),
		.data.u64 = d->index,
	};

	if (d->watched_for_write != write)
		epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, d->fd, &ev);
	d->watched_for_write = write;
}

static int open_connection(struct swapd *s, struct donor *d)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT, .data.u64 = d->index };
	int fd = d->transport->open(s, d);

	if (fd < 0)
		return fd;
	if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0) {
		int r = -errno;

		close(fd);
		return r;
	}
	d->fd = fd;
	d->watched_for_write = true;
	set_state(d, DONOR_CONNECTING, now_ns());
	return 0;
}

static void greet(struct swapd *s, struct donor *d)
{
	struct wire_frame f = { .op = WIRE_HELLO, .tag = make_tag(TAG_HELLO, 0, 0),
				.length = WIRE_HELLO_SIZE };
	struct wire_hello h = { .version = WIRE_VERSION, .borrower = s->borrower,
				.slab_size = s->options.slab };
	uint8_t payload[WIRE_HELLO_SIZE];

	strncpy(h.name, s->options.name, sizeof(h.name) - 1);
	wire_build_hello(payload, &h);
	stream_push(&d->tx, &f, payload, 0);
	set_state(d, DONOR_GREETING, now_ns());
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
		return t->arrived ? t->arrived(c->s, c->d, f, payload) : -EPROTO;
	*payload = c->d->small;
	return 0;
}

static int take_hello(struct swapd *s, struct donor *d, const struct wire_frame *f)
{
	struct wire_donor told;

	if (d->state != DONOR_GREETING)
		return -EPROTO;
	if (f->status) {
		strncpy(d->why, wire_status_text(f->status), sizeof(d->why) - 1);
		return -ECONNREFUSED;
	}
	if (wire_parse_donor(d->small, f->length, &told) || told.version != WIRE_VERSION)
		return -EPROTO;
	if (told.slab_size < s->options.slab)
		return -EPROTO;
	d->slab_size = told.slab_size;
	d->total = told.total;
	d->free = told.free;
	d->backoff = BACKOFF_FIRST;
	d->connects++;
	d->pinged = 0;
	set_state(d, DONOR_UP, now_ns());
	d->ping_at = d->since + PING_INTERVAL;
	if (d->connects > 1)
		note(&s->notes, LOG_LVL_INFO, "donor %s is back", d->address.text);
	return 0;
}

/* We cannot reach the slab that @f grants: it is of no use here. */
static void give_back(struct swapd *s, struct donor *d, uint32_t index,
		      const struct wire_frame *f, int error)
{
	struct wire_frame back = { .op = WIRE_UNMAP, .tag = (uint64_t)TAG_SLAB << 56 | index,
				   .slab = f->slab, .generation = f->generation };

	stream_push(&d->tx, &back, NULL, 0);
	slab_refuse(&s->table.slabs[index], now_ns() + SECOND);
	if (!count_get(&s->count->map_failures))
		note(&s->notes, LOG_LVL_ERR,
		     "donor %s: a slab cannot be mapped and locked: %s; run as root or raise LimitMEMLOCK=",
		     d->address.text, strerror(-error));
	count_add(&s->count->map_failures, 1);
}

static int take_slab(struct swapd *s, struct donor *d, const struct wire_frame *f)
{
	uint32_t index = (uint32_t)(f->tag & 0xffffffffffffffull);
	struct slab *slab = index < s->table.count ? &s->table.slabs[index] : NULL;

	if (!slab || slab->state != SLAB_MAPPING || slab->donor != d->index)
		return -EPROTO;
	if (f->status) {
		count_add(&s->count->map_refusals, 1);
		/* What it told last was wrong; the next PING corrects it. */
		d->free = 0;
		slab_refuse(slab, 0);
	} else {
		int r = d->transport->map_slab ? d->transport->map_slab(s, d, slab) : 0;

		if (r == -EPROTO)
			return r;
		if (r)
			give_back(s, d, index, f, r);
		else
			slab_grant(slab, f->slab, f->generation);
		count_add(r ? &s->count->map_refusals : &s->count->maps, 1);
	}
	page_io_slab_settled(s, index);
	return 0;
}

/* Nothing is known of activity, and nothing can be moved, yet. */
static int answer_donor(struct donor *d, const struct wire_frame *f)
{
	static const uint8_t zeroes[WIRE_SMALL];
	struct wire_frame reply = *f;

	if (!donor_up(d))
		return -EPROTO;
	reply.direction = WIRE_REPLY;
	if (f->op == WIRE_EVICT)
		reply.status = WIRE_NO_ROOM;
	/* -ENOSPC: it asked more than it may before it had answers. */
	return stream_push(&d->tx, &reply, zeroes, 0) ? -EPROTO : 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct donor_context *c = data;
	struct donor *d = c->d;
	struct wire_donor told;

	switch (f->op) {
	case WIRE_HELLO:
		return take_hello(c->s, d, f);
	case WIRE_MAP:
		return take_slab(c->s, d, f);
	case WIRE_PING:
		if (wire_parse_donor(d->small, f->length, &told))
			return -EPROTO;
		d->total = told.total;
		d->free = told.free;
		d->pinged = 0;
		return 0;
	case WIRE_UNMAP:
		return 0;
	case WIRE_READ:
	case WIRE_WRITE:
		return d->transport->finished(c->s, d, f);
	case WIRE_ACTIVITY:
	case WIRE_EVICT:
		return answer_donor(d, f);
	}
	return -EPROTO;
}

static const struct stream_rx_ops rx_ops = { arrived, finished };

static void receive(struct swapd *s, struct donor *d)
{
	struct donor_context c = { s, d };
	int r = stream_receive(&d->rx, d->fd, RECEIVE_BUDGET, &rx_ops, &c);

	if (r < 0)
		lose(s, d, r == -EPROTO ? "it broke the protocol" :
		     r == -ECONNREFUSED ? d->why :
		     r == -ECONNRESET ? "connection closed" : strerror(-r));
}

static void flush(struct swapd *s, struct donor *d)
{
	int r = stream_flush(&d->tx, d->fd, NULL, NULL);

	if (r < 0)
		lose(s, d, strerror(-r));
	else
		watch(s, d, r == 1);
}

void donors_flush(struct swapd *s)
{
	for (int i = 0; i < s->donor_count; i++) {
		struct donor *d = &s->donors[i];

		/* A full socket says itself when it takes more. */
		if (d->tx.count && d->state >= DONOR_GREETING && !d->watched_for_write)
			flush(s, d);
	}
}

void donor_event(struct swapd *s, struct donor *d, uint32_t events)
{
	int error = 0;
	socklen_t len = sizeof(error);

	if (d->state == DONOR_CONNECTING) {
		getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &error, &len);
		if (error) {
			lose(s, d, strerror(error));
			return;
		}
		if (!(events & EPOLLOUT))
			return;
		greet(s, d);
	}
	if (d->state != DONOR_DOWN && events & EPOLLOUT)
		flush(s, d);
	if (d->state != DONOR_DOWN && d->transport->complete)
		d->transport->complete(s, d);
	if (d->state != DONOR_DOWN && events & (EPOLLIN | EPOLLERR | EPOLLHUP))
		receive(s, d);
}

uint64_t donor_slot_tag(const struct swapd *s, const struct slot *slot)
{
	return make_tag(TAG_SLOT, slot->sequence, (uint16_t)slot_index(&s->slots, slot));
}

void donor_wait(struct swapd *s, struct donor *d, struct slot *slot)
{
	slot->leg = LEG_DONOR;
	slot->donor = d->index;
	slot->since = now_ns();
	slot->sequence++;
	slot_append(&s->slots, &d->waiting, slot);
}

bool donor_ask_slab(struct swapd *s, uint32_t index)
{
	struct slab *slab = &s->table.slabs[index];
	struct place_donor candidates[MAX_DONORS];
	struct wire_frame f = { .op = WIRE_MAP, .tag = (uint64_t)TAG_SLAB << 56 | index,
				.length = WIRE_MAP_SIZE };
	uint8_t payload[WIRE_MAP_SIZE];
	uint64_t now = now_ns();
	struct donor *d;
	int chosen;

	if (!slab_may_map(slab, now))
		return false;
	for (int i = 0; i < s->donor_count; i++) {
		d = &s->donors[i];
		candidates[i] = (struct place_donor){
			.usable = donor_up(d) && stream_tx_room(&d->tx) > SEND_RESERVED,
			.total = d->total,
			.free = d->free,
			.slabs = slab_count(&s->table, SLAB_MAPPED, i) +
				 slab_count(&s->table, SLAB_MAPPING, i),
		};
	}
	chosen = place_choose(candidates, s->donor_count, s->options.slab, &s->seed);
	if (chosen < 0) {
		slab->since = now + SECOND;
		return false;
	}
	d = &s->donors[chosen];
	d->free -= s->options.slab;
	slab_ask(slab, d->index, now);
	wire_build_map(payload, WIRE_CLASS_SWAP);
	stream_push(&d->tx, &f, payload, 0);
	return true;
}

static bool overdue(struct swapd *s, struct donor *d, uint64_t now)
{
	uint64_t limit = s->options.deadline;

	if (d->waiting.head >= 0 && now - s->slots.slot[d->waiting.head].since > limit)
		return true;
	if (d->pinged && now - d->pinged > limit)
		return true;
	for (uint32_t i = 0; i < s->table.count; i++) {
		const struct slab *slab = &s->table.slabs[i];

		if (slab->state == SLAB_MAPPING && slab->donor == d->index &&
		    now - slab->since > limit)
			return true;
	}
	return false;
}

static void ping(struct donor *d, uint64_t now)
{
	struct wire_frame f = { .op = WIRE_PING, .tag = make_tag(TAG_PING, 0, 0) };

	if (stream_tx_room(&d->tx) <= SEND_RESERVED || stream_push(&d->tx, &f, NULL, 0))
		return;
	d->pinged = now;
	d->ping_at = now + PING_INTERVAL;
}

void donors_tick(struct swapd *s, uint64_t now)
{
	for (int i = 0; i < s->donor_count; i++) {
		struct donor *d = &s->donors[i];

		switch (d->state) {
		case DONOR_DOWN:
			if (now < d->retry_at)
				break;
			if (open_connection(s, d)) {
				d->retry_at = now + d->backoff;
				d->backoff = BACKOFF_MOST;
			}
			break;
		case DONOR_CONNECTING:
		case DONOR_GREETING:
			if (now - d->since > CONNECT_TIMEOUT)
				lose(s, d, "no answer");
			break;
		case DONOR_UP:
			if (overdue(s, d, now)) {
				/* If it was us who slept, the answers are already here. */
				receive(s, d);
				if (d->state == DONOR_UP && overdue(s, d, now))
					lose(s, d, "no answer within the deadline");
			}
			if (d->state == DONOR_UP && !d->pinged && now >= d->ping_at)
				ping(d, now);
			break;
		}
	}
}

int donor_add(struct swapd *s, const char *text, struct error *e)
{
	struct donor *d = &s->donors[s->donor_count];
	uint64_t give_up = now_ns() + CONNECT_TIMEOUT;
	int r;

	*d = (struct donor){ .index = (uint16_t)s->donor_count, .fd = -1,
			     .waiting = SLOT_LIST_EMPTY, .backoff = BACKOFF_FIRST };
	r = address_parse(text, "donor", &d->address, e);
	if (r)
		return r;
	d->transport = address_is_local(&d->address) ? &transport_shm : &transport_tcp;
	r = stream_rx_init(&d->rx, WIRE_AT_BORROWER);
	if (!r)
		r = stream_tx_init(&d->tx, SEND_QUEUE);
	if (r) {
		stream_rx_free(&d->rx);
		return fail(e, r, "donor %s: %s", text, strerror(-r));
	}
	s->donor_count++;
	r = open_connection(s, d);
	if (r)
		return fail(e, r, "donor %s: %s; start ebb-donord there or correct --donor", text,
			    strerror(-r));
	while (d->state != DONOR_UP) {
		struct pollfd p = { .fd = d->fd, .events = POLLIN };
		uint64_t now = now_ns();

		if (d->state == DONOR_CONNECTING || d->tx.count)
			p.events |= POLLOUT;
		if (now >= give_up)
			lose(s, d, "no answer within 2 s");
		else if (poll(&p, 1, (int)((give_up - now) / MS) + 1) > 0)
			donor_event(s, d, (uint32_t)p.revents);
		if (d->state == DONOR_DOWN)
			return fail(e, ECONNREFUSED,
				    "donor %s: %s; start ebb-donord there or correct --donor", text,
				    d->why);
	}
	return 0;
}

void donors_free(struct swapd *s)
{
	for (uint32_t i = 0; i < s->table.count; i++)
		unreach(s, &s->donors[s->table.slabs[i].donor], &s->table.slabs[i]);
	for (int i = 0; i < s->donor_count; i++) {
		struct donor *d = &s->donors[i];

		if (d->fd >= 0)
			close(d->fd);
		stream_rx_free(&d->rx);
		stream_tx_free(&d->tx);
	}
	s->donor_count = 0;
}
