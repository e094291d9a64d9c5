// SPDX-License-Identifier: GPL-2.0-or-later
/* Donors that are given up by command; those that altered pages stay known for it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "slow_device.h"
#include "swapd/control/commands.h"
#include "swapd/replicas/drain_estimate.h"
#include "swapd/replicas/slab_mapping.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* A donor that gave wrong pages stays known for it, off the list or not. */
static void nobody_is_forgiven(void **state)
{
	struct donor *d = &s.donors.donor[0];

	begin(1, false);
	assert_int_equal(stream_rx_init(&d->link.rx, WIRE_AT_BORROWER), 0);
	d->leaving = DONOR_SUSPECT | DONOR_REMOVED;
	d->pinged = 1;
	donors_tick(&s.donors, now_ns());
	assert_int_equal(d->state, DONOR_QUARANTINED);
	stream_rx_free(&d->link.rx);
	device_end();
}

/* Carries out COMMAND_FORGET for donor 0; returns its result. */
static int forget(uint64_t epoch, bool force)
{
	uint64_t one = 1;

	s.commands.command = (struct device_command){ .kind = COMMAND_FORGET, .force = force,
						      .epoch = epoch };
	assert_int_equal(write(s.commands.post_fd, &one, sizeof(one)), sizeof(one));
	commands_take(&s.commands);
	run();
	return s.commands.command.result;
}

/*
 * A donor that is away is given up only if it had no only copy, and that is still so: another
 * replica may be lost, the disk fail, or the donor be back in between.
 */
static void a_donor_that_is_given_up(void **state)
{
	enum { NOTHING, LOSS, REVOKED, DISK, AWAY, FORCE, CASES };
	static struct donor_record records[MAX_DONORS];
	struct donor *d = &s.donors.donor[0], *other = &s.donors.donor[1];
	struct error e = { 0 };

	for (int what = NOTHING; what < CASES; what++) {
		bool backup = what == DISK;
		uint64_t epoch;

		begin(2, backup);
		s.donors.records = records;
		assert_int_equal(commands_open(&s.commands, &e), 0);
		other->version = WIRE_VERSION;
		request(SLOT_WRITE, 0, 1);
		grant();
		assert_int_equal(forget(loss_epoch(&s.replicas), true), -EINVAL);
		d->resume = RESUME_WANTED;
		d->state = DONOR_DOWN;
		mapping_away(&s.replicas, d);
		if (what == DISK)
			lose(other);
		epoch = loss_epoch(&s.replicas);
		assert_int_equal(loss_estimate(&s.replicas, d), 0);
		if (what == LOSS || what == FORCE) {
			lose(other);
		} else if (what == REVOKED) {
			assert_int_equal(tell_revoked(other,
				&slabs[0].copy[slab_copy_at(&slabs[0], 1)].mapping), 0);
		} else if (what == DISK) {
			disk = -EIO;
			back_up(1);
		} else if (what == AWAY) {
			other->grace = SECOND;
			donor_part(other, "broken");
		}
		if (what != NOTHING && what != AWAY)
			assert_int_equal(loss_estimate(&s.replicas, d), 1);
		assert_int_equal(forget(epoch, what == FORCE),
				 what == NOTHING || what == FORCE ? 0 : -EAGAIN);
		assert_int_equal(slab_copy_at(&slabs[0], 0) < 0,
				 what == NOTHING || what == FORCE);
		if (what == AWAY)
			assert_int_equal(forget(loss_epoch(&s.replicas), false), 0);
		commands_close(&s.commands);
		device_end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_is_forgiven),
		cmocka_unit_test(a_donor_that_is_given_up),
	};

	return cmocka_run_group_tests_name("forget", tests, NULL, NULL);
}
