// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "lender.h"
#include "wire/stream.h"
#include "wire/local.h"
#include "wire/tcp.h"

#define CONNECTIONS 64
/* Most replies a connection has under way; a borrower that pipelines more waits. */
#define REPLIES 1024
#define RECEIVE_BUDGET (4u << 20)
#define NO_SLAB UINT32_MAX
/*
 * A delay is slept but for its last part: what a timer and a core that wakes
 * up add to a sleep, in a virtual machine, is more than the shortest delays.
 */
#define AWAKE_NS 50000

struct delayed {
	uint64_t due; /* ns, CLOCK_MONOTONIC */
	struct wire_frame reply;
	void *memory;
};

struct connection {
	struct lender *lender;
	int fd; /* -1 = free */
	uint32_t number;
	bool greeted, reading, writing; /* the last two: epoll interest */
	bool local;          /* by a unix socket: may map slabs */
	uint64_t borrower;
	char name[WIRE_NAME];
	struct stream_rx rx;
	struct stream_tx tx;
	uint8_t small[WIRE_SMALL];    /* payloads that are not pages */
	enum wire_status verdict;     /* on the WRITE whose payload is arriving */
	struct delayed *delayed;      /* ring of REPLIES; only with a delay */
	uint32_t delayed_head, delayed_count;
};

struct lender {
	struct lend_pool *pool;
	uint64_t delay_ns;
	int epoll_fd, signal_fd;
	struct address places[LENDER_PLACES];
	int listen_fds[LENDER_PLACES];
	int place_count;
	struct connection connections[CONNECTIONS];
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void reply_sent(void *data, uint32_t slab)
{
	struct connection *c = data;

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

static void drop(struct connection *c, const char *why)
{
	struct lender *l = c->lender;
	uint32_t slabs;

	stream_tx_reset(&c->tx, reply_sent, c);
	for (; c->delayed_count; c->delayed_count--) {
		lend_unpin(l->pool, c->delayed[c->delayed_head].reply.slab);
		c->delayed_head = (c->delayed_head + 1) % REPLIES;
	}
	close(c->fd);
	c->fd = -1;
	slabs = lend_release_owner(l->pool, c->number);
	log_info("borrower %s: %s; %u slabs taken back", c->greeted ? c->name : "(unknown)", why,
		 slabs);
}

static void put_reply(struct connection *c, const struct wire_frame *f, enum wire_status st,
		      const void *payload, uint32_t length, uint32_t cookie)
{
	struct wire_frame r = *f;

	r.direction = WIRE_REPLY;
	r.status = st;
	r.length = length;
	/* arrived() made sure that there is room. */
	stream_push(&c->tx, &r, payload, cookie);
}

static void put_donor(struct connection *c, const struct wire_frame *f)
{
	struct lend_pool *p = c->lender->pool;
	struct wire_donor d = {
		.version = WIRE_VERSION,
		.slab_size = p->slab_size,
		.total = lend_total_bytes(p),
		.free = lend_free_bytes(p),
	};
	uint8_t buf[WIRE_DONOR_SIZE];

	wire_build_donor(buf, &d);
	put_reply(c, f, WIRE_OK, buf, sizeof(buf), NO_SLAB);
}

/* A borrower on this machine gets the memory with the reply. */
static void put_slab(struct connection *c, const struct wire_frame *f)
{
	struct lend_pool *p = c->lender->pool;
	struct wire_frame r = *f;
	enum wire_status st = lend_map(p, c->number, &r.slab, &r.generation);

	if (st != WIRE_OK || !c->local) {
		put_reply(c, &r, st, NULL, 0, NO_SLAB);
		return;
	}
	r.direction = WIRE_REPLY;
	r.length = 0;
	lend_pin(p, r.slab);
	stream_push_fd(&c->tx, &r, lend_hand_over(p, r.slab), r.slab);
}

static int greet(struct connection *c, const struct wire_frame *f)
{
	struct lender *l = c->lender;
	struct wire_hello h;

	if (wire_parse_hello(c->small, f->length, &h))
		return -EPROTO;
	if (c->greeted || h.version != WIRE_VERSION || h.slab_size > l->pool->slab_size) {
		put_reply(c, f, c->greeted ? WIRE_NOT_GREETED :
			  h.version != WIRE_VERSION ? WIRE_BAD_VERSION : WIRE_BAD_SLAB_SIZE,
			  NULL, 0, NO_SLAB);
		return 0;
	}
	/*
	 * An older connection of the same borrower may still have writes on the
	 * way.  They must not land after this one's, so it goes first.
	 */
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *old = &l->connections[i];

		if (old != c && old->fd >= 0 && old->greeted && old->borrower == h.borrower)
			drop(old, "replaced by a newer connection");
	}
	c->greeted = true;
	c->borrower = h.borrower;
	memcpy(c->name, h.name, sizeof(c->name));
	log_info("borrower %s: connected", c->name);
	put_donor(c, f);
	return 0;
}

static void put_read(struct connection *c, const struct wire_frame *f)
{
	struct lender *l = c->lender;
	void *memory = NULL;
	enum wire_status st = lend_access(l->pool, c->number, f, &memory);
	struct delayed *d;

	if (st != WIRE_OK) {
		put_reply(c, f, st, NULL, f->length, NO_SLAB);
		return;
	}
	lend_pin(l->pool, f->slab);
	if (!l->delay_ns) {
		put_reply(c, f, WIRE_OK, memory, f->length, f->slab);
		return;
	}
	d = &c->delayed[(c->delayed_head + c->delayed_count++) % REPLIES];
	*d = (struct delayed){ now_ns() + l->delay_ns, *f, memory };
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct connection *c = data;

	if (stream_tx_room(&c->tx) <= c->delayed_count)
		return 1;
	if (!c->greeted && f->op != WIRE_HELLO && f->op != WIRE_JOIN)
		return -EPROTO;
	if (f->op == WIRE_WRITE) {
		c->verdict = lend_access(c->lender->pool, c->number, f, payload);
		if (c->verdict != WIRE_OK)
			*payload = NULL;
	} else {
		*payload = c->small;
	}
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct connection *c = data;
	struct lend_pool *p = c->lender->pool;
	uint32_t class;

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
		put_reply(c, f, c->verdict, NULL, f->length, NO_SLAB);
		return 0;
	case WIRE_UNMAP:
		put_reply(c, f, lend_unmap(p, c->number, f->slab, f->generation), NULL, 0, NO_SLAB);
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
		put_reply(c, f, WIRE_NO_SESSION, NULL, 0, NO_SLAB);
		return 0;
	}
	/* Answers to what nobody asked. */
	return -EPROTO;
}

static const struct stream_rx_ops rx_ops = { arrived, finished };

static void flush(struct connection *c)
{
	int r = stream_flush(&c->tx, c->fd, reply_sent, c);

	if (r < 0)
		drop(c, strerror(-r));
	else
		watch(c, stream_tx_room(&c->tx) > c->delayed_count, r == 1);
}

static void receive(struct connection *c)
{
	int r = stream_receive(&c->rx, c->fd, RECEIVE_BUDGET, &rx_ops, c);

	if (r == -EPROTO)
		drop(c, "malformed frame");
	else if (r == -ECONNRESET)
		drop(c, "disconnected");
	else if (r < 0)
		drop(c, strerror(-r));
	else
		flush(c);
}

/* Sends what is due; returns ns until the next is, or UINT64_MAX. */
static uint64_t send_delayed(struct lender *l)
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
			c->delayed_head = (c->delayed_head + 1) % REPLIES;
			c->delayed_count--;
			any = true;
		}
		if (any)
			flush(c);
		if (c->fd >= 0 && c->delayed_count && c->delayed[c->delayed_head].due - now < next)
			next = c->delayed[c->delayed_head].due - now;
	}
	return next;
}

/* Buffers are made at the first use of a place, not in the request path. */
static int connection_buffers(struct connection *c)
{
	int r = 0;

	if (!c->rx.buf)
		r = stream_rx_init(&c->rx, WIRE_AT_DONOR);
	if (!r && !c->tx.entries)
		r = stream_tx_init(&c->tx, REPLIES);
	if (!r && c->lender->delay_ns && !c->delayed) {
		c->delayed = calloc(REPLIES, sizeof(*c->delayed));
		r = c->delayed ? 0 : -ENOMEM;
	}
	return r;
}

static void accept_one(struct lender *l, int place)
{
	_cleanup_close_ int fd = accept4(l->listen_fds[place], NULL, NULL,
					 SOCK_NONBLOCK | SOCK_CLOEXEC);
	bool local = address_is_local(&l->places[place]);
	struct connection *c = NULL;
	struct epoll_event ev = { .events = EPOLLIN };

	if (fd < 0)
		return;
	if (local && !local_peer_trusted(fd)) {
		log_warn("connection refused: %s is for root and its own user only",
			 l->places[place].text);
		return;
	}
	for (int i = 0; i < CONNECTIONS && !c; i++)
		if (l->connections[i].fd < 0)
			c = &l->connections[i];
	if (!c || connection_buffers(c)) {
		log_warn("connection refused: %s", c ? "out of memory" : "too many borrowers");
		return;
	}
	if (!local)
		tcp_tune(fd);
	stream_rx_reset(&c->rx);
	c->greeted = c->writing = false;
	c->local = local;
	c->reading = true;
	c->delayed_head = c->delayed_count = 0;
	ev.data.u64 = c->number;
	if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0)
		c->fd = TAKE_FD(fd);
}

enum { KEY_SIGNAL = CONNECTIONS, KEY_LISTEN };

static int watch_fd(struct lender *l, int fd, uint64_t key)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = key };

	return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

int lender_new(struct lender **out, struct lend_pool *pool, uint64_t delay_ns, struct error *e)
{
	struct lender *l = calloc(1, sizeof(*l));
	sigset_t set;
	int r;

	if (!l)
		return fail(e, ENOMEM, "out of memory");
	/* A reader of the log or a terminal that ends must not end the donor. */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	l->pool = pool;
	l->delay_ns = delay_ns;
	l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	for (uint32_t i = 0; i < CONNECTIONS; i++) {
		l->connections[i].lender = l;
		l->connections[i].number = i;
		l->connections[i].fd = -1;
	}
	/* The first borrower's buffers; further ones at their accept. */
	r = connection_buffers(&l->connections[0]);
	if (!r)
		r = watch_fd(l, l->signal_fd, KEY_SIGNAL);
	if (r) {
		lender_free(&l);
		return fail(e, r, "event loop: %s", strerror(-r));
	}
	*out = l;
	return 0;
}

int lender_listen(struct lender *l, struct address *a, struct error *e)
{
	int fd, r;

	if (l->place_count == LENDER_PLACES)
		return fail_exit(e, EXIT_USAGE, E2BIG, "listen %s: at most %d addresses; leave one out",
				 a->text, LENDER_PLACES);
	if (address_is_local(a) && l->delay_ns)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "listen %s: borrowers read there by themselves, which --delay cannot hold back; listen on HOST:PORT",
				 a->text);
	fd = address_listen(a, e);
	if (fd < 0)
		return fd;
	r = watch_fd(l, fd, KEY_LISTEN + (uint64_t)l->place_count);
	if (r) {
		close(fd);
		return fail(e, r, "event loop: %s", strerror(-r));
	}
	l->places[l->place_count] = *a;
	l->listen_fds[l->place_count++] = fd;
	return 0;
}

void lender_free(struct lender **lp)
{
	struct lender *l = *lp;

	if (!l)
		return;
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &l->connections[i];

		if (c->fd >= 0)
			drop(c, "the donor stops");
		stream_rx_free(&c->rx);
		stream_tx_free(&c->tx);
		free(c->delayed);
	}
	close(l->signal_fd);
	close(l->epoll_fd);
	for (int i = 0; i < l->place_count; i++) {
		close(l->listen_fds[i]);
		if (address_is_local(&l->places[i]))
			unlink(local_path(&l->places[i]));
	}
	free(l);
	*lp = NULL;
}

int lender_run(struct lender *l)
{
	for (;;) {
		struct epoll_event ev[16];
		uint64_t wait = l->delay_ns ? send_delayed(l) : UINT64_MAX;
		uint64_t sleep = wait > AWAKE_NS ? wait - AWAKE_NS : 0;
		struct timespec ts = { sleep / 1000000000ull, sleep % 1000000000ull };
		bool zeroing = lend_zero_some(l->pool);
		int n;

		if (zeroing)
			ts = (struct timespec){ 0 };
		n = epoll_pwait2(l->epoll_fd, ev, 16,
				 zeroing || wait != UINT64_MAX ? &ts : NULL, NULL);
		if (n < 0 && errno != EINTR)
			return -errno;
		for (int i = 0; i < n; i++) {
			uint64_t key = ev[i].data.u64;
			struct connection *c = key < CONNECTIONS ? &l->connections[key] : NULL;

			if (key == KEY_SIGNAL)
				return 0;
			if (key >= KEY_LISTEN)
				accept_one(l, (int)(key - KEY_LISTEN));
			/* An earlier event of this round may have dropped it. */
			if (!c || c->fd < 0)
				continue;
			if (ev[i].events & EPOLLOUT)
				flush(c);
			if (c->fd >= 0 && ev[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
				receive(c);
		}
	}
}
