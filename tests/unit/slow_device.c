// SPDX-License-Identifier: GPL-2.0-or-later
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "slow_device.h"
#include "swapd/replicas/repair.h"
#include "swapd/request/engine.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

bool slow;
int disk;

void submit(struct link *l, const struct mapping *m, struct transfer *t)
{
	if (slow)
		link_wait(l, m, t, 0);
	else
		transfer_at_once(l, m, t);
}

static const struct transport transport_slow = { .name = "slow", .submit = submit };

void begin(int replicas, bool backup)
{
	disk = 0;
	slow = false;
	device_begin(&(struct device_setup){ .slabs = SLABS, .slab_pages = SLAB_PAGES,
					     .donors = DONORS, .replicas = replicas, .queue = QUEUE,
					     .version = WIRE_VERSION_OLDEST, .backup = backup,
					     .transport = &transport_slow });
}

void lose(struct donor *d)
{
	donor_lose(d, "killed");
	run();
}

void tick(uint64_t now)
{
	repair_tick(&s.replicas, now);
	run();
}

void grant(void)
{
	static uint32_t generation;
	void *none;

	for (int i = 0; i < DONORS; i++) {
		struct donor *d = &s.donors.donor[i];

		while (d->link.tx.count) {
			struct wire_frame f;

			take_frame(d, &f);
			f.generation = ++generation;
			if (f.op == WIRE_WRITE) {
				f.generation = slabs[0].copy[0].mapping.generation;
				assert_int_equal(transport_tcp.arrived(&d->link, 0, &f, &none), 0);
				assert_int_equal(transport_tcp.finished(&d->link, 0, &f), 0);
				run();
				continue;
			}
			if (f.op == WIRE_MAP)
				f.length = 0;
			assert_int_equal(donor_frame(d, &f, NULL), 0);
			run();
		}
	}
}

void reply(struct donor *d)
{
	assert_non_null(d->link.waiting.head);
	link_done(&d->link, d->link.waiting.head, 0);
	run();
}

void back_up(uint32_t n)
{
	struct slot *slot;

	while (n-- && backup_queued(&s.engine.backup)) {
		struct backup_lane *l = backup_lane_queued(&s.engine.backup.reads) ?
						&s.engine.backup.reads :
						&s.engine.backup.queue;

		s.engine.slots.slot[l->jobs[l->completed++ % SLOT_COUNT]].backup_result = disk;
		while ((slot = backup_reap(&s.engine.backup)))
			engine_backed(&s.engine, slot);
		run();
	}
}

int tell_revoked(struct donor *d, const struct mapping *m)
{
	struct wire_frame f = { .op = WIRE_REVOKED, .slab = m->remote,
				.generation = m->generation };

	return donor_frame(d, &f, NULL);
}
