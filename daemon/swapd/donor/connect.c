// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "connect.h"
#include "lib/base/draw.h"
#include "swapd/swapd.h"

/* After so long without an answer of a name server, the donor's last address is tried. */
#define NAME_PATIENCE 1000000000ull

/* What its name means is asked for, and all places are tried anew. */
void connect_ask_name(struct swapd *s, struct donor *d, uint64_t now)
{
	d->place = d->place_count;
	d->asked_name = now;
	resolver_ask(&s->resolver, d->index, d->address.text);
}

/* Takes what the resolver has found; false while it may still find something. */
static bool name_answered(struct swapd *s, struct donor *d, uint64_t now)
{
	struct address found[RESOLVER_PLACES];
	int n = resolver_take(&s->resolver, d->index, d->address.text, found), good = 0;

	for (int i = 0; i < n; i++)
		if (donor_may_be_at(s, &found[i]))
			d->places[good++] = found[i];
	if (good)
		d->place_count = (uint8_t)good;
	return n || now - d->asked_name >= NAME_PATIENCE;
}

/* Sets d->at to where it is to be tried now; false while its name is being looked up. */
bool connect_next_place(struct swapd *s, struct donor *d, uint64_t now)
{
	if (!d->place_count)
		return true;
	if (d->place >= d->place_count) {
		if (!d->asked_name)
			connect_ask_name(s, d, now);
		if (s->resolver.lookups && !name_answered(s, d, now))
			return false;
		d->asked_name = 0;
		d->place = 0;
	}
	d->at = d->places[d->place++];
	return true;
}

/* Half of the back-off is random, or all devices of a donor that was lost return at once. */
void connect_back_off(struct swapd *s, struct donor *d, uint64_t now)
{
	uint64_t half = d->backoff / 2;

	d->retry_at = now + half + (half * draw32(&s->jitter) >> 32);
	d->backoff = d->backoff * 2 < DONOR_BACKOFF_MOST ? d->backoff * 2 : DONOR_BACKOFF_MOST;
}

void connect_watch(struct swapd *s, struct donor *d, bool write)
{
	struct epoll_event ev = {
		.events = EPOLLIN | (write ? EPOLLOUT : 0),
		.data.u64 = donor_key(d, 0),
	};

	if (d->watched_for_write != write)
		epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, d->fd, &ev);
	d->watched_for_write = write;
}

int connect_open(struct swapd *s, struct donor *d)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT, .data.u64 = donor_key(d, 0) };
	int fd = d->transport->open(s, d);

	if (fd < 0)
		return fd;
	if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0) {
		int r = -errno;

		close(fd);
		return r;
	}
	d->fd = fd;
	/* Until it has what a predecessor had there, it is that one. */
	if (!d->resume)
		d->identity = 0;
	d->watched_for_write = true;
	donor_set_state(d, DONOR_CONNECTING, now_ns());
	return 0;
}
