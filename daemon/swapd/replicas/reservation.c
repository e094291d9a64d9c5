// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/draw.h"
#include "lib/rules/reservation.h"
#include "replicas.h"
#include "reservation.h"

#define SECOND 1000000000ull
/*
 * Devices that are created at the same moment may each hold what the other one needs.  Each
 * releases it, and tries again after a random time.
 */
#define ATTEMPTS 4
#define ATTEMPT_US 100000u

uint64_t reservation_wanted(const struct replicas *rs)
{
	return rs->reserves ? rs->engine->table.count * (uint64_t)rs->wanted : 0;
}

/* Returns whether what @d has promised still counts while it is away. */
static bool is_awaited(const struct replicas *rs, const struct donor *d, uint64_t now)
{
	return donor_is_away(d) && !donor_takes(d) && !d->leaving && !d->unlisted &&
	       donor_away_for(d, now) < rs->repair_delay;
}

/* Returns how many slabs @d, which is up, has lent us and could lend us. */
static uint32_t backed(const struct donor *d)
{
	uint64_t n = d->copies + d->room / d->link.slab_size;

	return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/*
 * Returns whether to rely on what @d has promised: not when its machine has used the memory for so
 * long that repair would replace a donor.
 */
static bool is_relied_on(const struct replicas *rs, const struct donor *d, uint64_t now)
{
	return !d->unbacked_since || now - d->unbacked_since < rs->repair_delay;
}

/*
 * Sets @plan.want of all donors; returns how many slabs find no place.  Donors in @asked, if that
 * is set, promise no more than they have.
 */
static uint64_t make_plan(const struct replicas *rs, uint64_t now, const bool *asked,
			  struct reservation_donor plan[static MAX_DONORS])
{
	uint64_t missing, left;

	for (int i = 0; i < rs->donors->count; i++) {
		const struct donor *d = &rs->donors->donor[i];
		struct reservation_donor *p = &plan[i];

		*p = (struct reservation_donor){
			.machine = wire_machine(d->identity), .has = d->copies,
			.held = d->reserved > d->copies ? d->reserved : d->copies,
		};
		if (donor_takes(d))
			p->most = backed(d);
		else if (is_awaited(rs, d, now))
			p->most = p->held;
		if (donor_takes(d) && p->most < p->held && is_relied_on(rs, d, now))
			p->most = p->held;
		if (asked && asked[i] && p->most > p->held)
			p->most = p->held;
	}
	missing = reservation_spread(plan, rs->donors->count, rs->engine->table.count, rs->wanted);
	left = missing;
	/* A promise that no other donor replaces stays: the memory may return. */
	for (int i = 0; i < rs->donors->count && left; i++) {
		const struct donor *d = &rs->donors->donor[i];
		uint32_t more = d->reserved > plan[i].want ? d->reserved - plan[i].want : 0;

		if (!donor_takes(d))
			continue;
		more = more < left ? more : (uint32_t)left;
		plan[i].want += more;
		left -= more;
	}
	return missing;
}

static void say_once(struct donor *d)
{
	if (d->version >= 4 || d->promises_nothing)
		return;
	d->promises_nothing = true;
	note(d->table->notes, LOG_LVL_WARN,
	     "donor %s: speaks version %u of the protocol, so it reserves nothing for this device; update it",
	     d->address.text, d->version);
}

/* --- at the start ----------------------------------------------------------------- */

static int by_identity(const void *a, const void *b)
{
	const struct donor *const *x = a, *const *y = b;

	return (*x)->identity < (*y)->identity ? -1 : (*x)->identity > (*y)->identity;
}

/*
 * One donor after the other, once, all devices in one order: of those that want the same capacity,
 * the first one at a donor gets what it asks for.  Another one that stops there has asked no later
 * donor, so the device that comes furthest succeeds.
 */
static bool reserve_all(struct replicas *rs, struct donor *const *order)
{
	struct reservation_donor plan[MAX_DONORS];
	bool asked[MAX_DONORS] = { false };

	for (int i = 0; i < rs->donors->count; i++) {
		struct donor *d = order[i];

		if (make_plan(rs, now_ns(), asked, plan))
			return false;
		/* One that was lost meanwhile promises nothing, whatever it did before. */
		if (!donor_up(d))
			continue;
		if (plan[d->index].want != d->reserved &&
		    !donor_reserve_now(d, plan[d->index].want))
			return false;
		asked[d->index] = true;
	}
	return !make_plan(rs, now_ns(), asked, plan);
}

/* Releases all, at all donors at once, and learns what each could lend. */
static void release_all(struct replicas *rs)
{
	uint64_t now = now_ns();

	for (int i = 0; i < rs->donors->count; i++)
		if (donor_up(&rs->donors->donor[i]))
			donor_reserve(&rs->donors->donor[i], 0, now);
	donors_flush(rs->donors);
	for (int i = 0; i < rs->donors->count; i++)
		donor_reserved(&rs->donors->donor[i], now);
}

bool reservation_open(struct replicas *rs)
{
	struct donor *order[MAX_DONORS];

	for (int i = 0; i < rs->donors->count; i++) {
		order[i] = &rs->donors->donor[i];
		say_once(order[i]);
	}
	qsort(order, (size_t)rs->donors->count, sizeof(*order), by_identity);
	for (int i = 0; i < ATTEMPTS; i++) {
		if (i) {
			usleep(draw_below(&rs->seed, ATTEMPT_US));
			/* Others may have released what they held. */
			release_all(rs);
		}
		if (reserve_all(rs, order))
			return true;
		release_all(rs);
	}
	return false;
}

/* --- later ------------------------------------------------------------------------- */

/* Logs what is not reserved when repair has had its time to replace lost donors. */
static void tell(struct replicas *rs, uint64_t missing, uint64_t now)
{
	if (missing && !rs->unreserved)
		rs->unreserved_since = now;
	else if (!missing)
		rs->unreserved_since = 0;
	rs->unreserved = missing;
	if (!rs->unreserved_since || now - rs->unreserved_since < rs->repair_delay)
		return;
	rs->unreserved_since = 0;
	note(rs->engine->notes, LOG_LVL_WARN,
	     "device %s: %llu of %llu slabs are not reserved: the donors can promise no more; lend more or add donors, or writes fail when the donors are full",
	     rs->donors->device, (unsigned long long)missing,
	     (unsigned long long)reservation_wanted(rs));
}

void reservation_tick(struct replicas *rs, uint64_t now)
{
	struct reservation_donor plan[MAX_DONORS];
	uint64_t missing;

	if (!rs->reserves)
		return;
	for (int i = 0; i < rs->donors->count; i++) {
		struct donor *d = &rs->donors->donor[i];

		if (!donor_takes(d) || backed(d) >= d->reserved)
			d->unbacked_since = 0;
		else if (!d->unbacked_since)
			d->unbacked_since = now;
	}
	missing = make_plan(rs, now, NULL, plan);
	for (int i = 0; i < rs->donors->count; i++) {
		struct donor *d = &rs->donors->donor[i];
		uint32_t want = plan[i].want;

		/* RELEASE determines what a donor that was away can lend. */
		if (!donor_up(d) || (donor_is_away(d) && d->release != RELEASE_ANSWERED))
			continue;
		say_once(d);
		if (want > d->reserved && want > d->copies)
			missing += want - (d->reserved > d->copies ? d->reserved : d->copies);
		if (want == d->reserved || d->reserving || now < d->reserve_at ||
		    !donor_has_room(d))
			continue;
		donor_reserve(d, want, now);
		d->reserve_at = now + SECOND;
	}
	tell(rs, missing, now);
}
