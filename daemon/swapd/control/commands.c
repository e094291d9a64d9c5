// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "commands.h"
#include "lib/base/clock.h"
#include "swapd/replicas/drain_estimate.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/replicas.h"
#include "swapd/replicas/slab_mapping.h"

#define PATIENCE_MS 5000

int commands_open(struct commands *c, struct error *e)
{
	c->post_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return c->post_fd < 0 || c->done_fd < 0 ? fail(e, errno, "eventfd: %m") : 0;
}

void commands_close(struct commands *c)
{
	if (c->post_fd >= 0)
		close(c->post_fd);
	if (c->done_fd >= 0)
		close(c->done_fd);
	c->post_fd = c->done_fd = -1;
}

int commands_give(struct commands *c, const struct device_command *command, const char *what,
		  struct error *e)
{
	struct pollfd p = { .fd = c->done_fd, .events = POLLIN };
	uint64_t n = 1;

	/* The loop may have completed a command that timed out here. */
	if (c->in_flight && read(c->done_fd, &n, sizeof(n)) < 0)
		return fail(e, EBUSY, "%s: the server does not answer; see its log", what);
	c->in_flight = 1;
	c->command = *command;
	n = 1;
	if (write(c->post_fd, &n, sizeof(n)) < 0 || poll(&p, 1, PATIENCE_MS) <= 0 ||
	    read(c->done_fd, &n, sizeof(n)) < 0)
		return fail(e, ETIMEDOUT, "%s: the server does not answer; see its log", what);
	c->in_flight = 0;
	return c->command.result ? fail_exit(e, EXIT_REFUSED, c->command.result, "%s: %s", what,
					     c->command.why) : 0;
}

static int refuse(struct device_command *o, int error, const char *why)
{
	o->why = why;
	return error;
}

static int migrate(struct replicas *rs, struct device_command *o)
{
	struct slab *slab = &rs->engine->table.slabs[o->slab];
	int chosen = -1;

	for (int c = SLAB_COPIES - 1; c >= 0; c--)
		if (slab->copy[c].state == COPY_MAPPED && !mapping_leaving(rs, o->slab, c))
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

static int carry_out(struct replicas *rs, struct device_command *o)
{
	struct donor *d = o->donor >= 0 ? &rs->donors->donor[o->donor] : NULL;

	switch (o->kind) {
	case COMMAND_USE:
		d->leaving &= (uint8_t)~DONOR_REMOVED;
		d->unlisted = false;
		if (d->state == DONOR_ABSENT)
			donor_enter(d, now_ns());
		return 0;
	case COMMAND_REMOVE:
		d->leaving |= DONOR_REMOVED;
		return 0;
	case COMMAND_UNLIST:
		d->unlisted = true;
		return 0;
	case COMMAND_DRAIN:
		d->leaving |= DONOR_DRAINED;
		return 0;
	case COMMAND_UNDRAIN:
		d->leaving &= (uint8_t)~DONOR_DRAINED;
		return 0;
	case COMMAND_TRUST:
		if (d->state != DONOR_QUARANTINED && !(d->leaving & DONOR_SUSPECT))
			return refuse(o, -EINVAL, "not quarantined; nothing to do");
		donor_trust(d, now_ns());
		return 0;
	case COMMAND_FORGET:
		if (!donor_is_away(d) || donor_up(d))
			return refuse(o, -EINVAL, "not away; nothing to do");
		if (!o->force && o->epoch != loss_epoch(rs))
			return refuse(o, -EAGAIN, "replicas have changed meanwhile; try again");
		donor_lose(d, "requested with \"ebbctl donor forget\"");
		return 0;
	case COMMAND_MIGRATE:
		return migrate(rs, o);
	}
	return refuse(o, -EINVAL, "unknown command");
}

void commands_take(struct commands *c)
{
	uint64_t n;

	if (read(c->post_fd, &n, sizeof(n)) < 0)
		return;
	c->command.result = carry_out(c->replicas, &c->command);
	donors_record(c->replicas->donors);
	n = 1;
	if (write(c->done_fd, &n, sizeof(n)) < 0)
		return; /* full: the control thread has not taken the last answer */
}
