// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "commands.h"
#include "lib/base/clock.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/replicas.h"
#include "swapd/replicas/slab_mapping.h"

#define PATIENCE_MS 5000

int orders_open(struct orders *o, struct error *e)
{
	o->post_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	o->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return o->post_fd < 0 || o->done_fd < 0 ? fail(e, errno, "eventfd: %m") : 0;
}

void orders_close(struct orders *o)
{
	if (o->post_fd >= 0)
		close(o->post_fd);
	if (o->done_fd >= 0)
		close(o->done_fd);
	o->post_fd = o->done_fd = -1;
}

int orders_give(struct orders *o, const struct order *order, const char *what, struct error *e)
{
	struct pollfd p = { .fd = o->done_fd, .events = POLLIN };
	uint64_t n = 1;

	/* One that was given up may have been done meanwhile. */
	if (o->under_way && read(o->done_fd, &n, sizeof(n)) < 0)
		return fail(e, EBUSY, "%s: the server does not answer; see its log", what);
	o->under_way = 1;
	o->order = *order;
	n = 1;
	if (write(o->post_fd, &n, sizeof(n)) < 0 || poll(&p, 1, PATIENCE_MS) <= 0 ||
	    read(o->done_fd, &n, sizeof(n)) < 0)
		return fail(e, ETIMEDOUT, "%s: the server does not answer; see its log", what);
	o->under_way = 0;
	return o->order.result ? fail_exit(e, EXIT_REFUSED, o->order.result, "%s: %s", what,
					   o->order.why) : 0;
}

static int refuse(struct order *o, int error, const char *why)
{
	o->why = why;
	return error;
}

static int migrate(struct replicas *rs, struct order *o)
{
	struct slab *slab = &rs->engine->table.slabs[o->slab];
	int chosen = -1;

	for (int c = SLAB_COPIES - 1; c >= 0; c--)
		if (slab->copy[c].state == COPY_MAPPED && !placing_leaving(rs, o->slab, c))
			chosen = c;
	if (chosen < 0)
		return refuse(o, -ENOENT, "no donor holds this slab, or it already migrates; see \"ebbctl slab list\"");
	if (o->donor >= 0) {
		const struct donor *d = &rs->donors->donor[o->donor];

		if (slab_copy_at(slab, d->index) >= 0)
			return refuse(o, -EEXIST, "that donor already holds this slab; name another");
		if (!donor_takes(d))
			return refuse(o, -EHOSTDOWN, "that donor accepts no slabs now; see \"ebbctl donor list\"");
		if (d->free < rs->donors->env.slab)
			return refuse(o, -ENOSPC, "that donor has no free capacity; name another");
	}
	if (!repair_can_leave(rs, o->slab, chosen))
		return refuse(o, -ENOSPC, "no other donor has free capacity; lend more there or add a donor");
	slab->copy[chosen].leaving = true;
	slab->copy[chosen].since = now_ns();
	slab->target = (uint16_t)(o->donor + 1);
	slab->not_before = 0;
	return 0;
}

static int carry_out(struct replicas *rs, struct order *o)
{
	struct donor *d = o->donor >= 0 ? &rs->donors->donor[o->donor] : NULL;

	switch (o->kind) {
	case ORDER_USE:
		d->leaving &= (uint8_t)~DONOR_REMOVED;
		if (d->state == DONOR_ABSENT)
			donor_enter(d, now_ns());
		return 0;
	case ORDER_REMOVE:
		d->leaving |= DONOR_REMOVED;
		return 0;
	case ORDER_DRAIN:
		d->leaving |= DONOR_DRAINED;
		return 0;
	case ORDER_UNDRAIN:
		d->leaving &= (uint8_t)~DONOR_DRAINED;
		return 0;
	case ORDER_TRUST:
		if (d->state != DONOR_QUARANTINED && !(d->leaving & DONOR_SUSPECT))
			return refuse(o, -EINVAL, "not quarantined; nothing to do");
		donor_trust(d, now_ns());
		return 0;
	case ORDER_MIGRATE:
		return migrate(rs, o);
	}
	return refuse(o, -EINVAL, "unknown order");
}

void orders_take(struct orders *o)
{
	uint64_t n;

	if (read(o->post_fd, &n, sizeof(n)) < 0)
		return;
	o->order.result = carry_out(o->replicas, &o->order);
	donors_record(o->replicas->donors);
	n = 1;
	if (write(o->done_fd, &n, sizeof(n)) < 0)
		return; /* full: the control thread has not taken the last one */
}
