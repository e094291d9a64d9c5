// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>

#include "destroy.h"
#include "ebbctl/process.h"
#include "kmoddev.h"
#include "lib/base/cleanup.h"
#include "lib/base/privilege.h"
#include "lib/base/size.h"
#include "lib/host/scope.h"
#include "swaps.h"
#include "teardown.h"
#include "ublkdev.h"

#define FORCE "use --force"

static int check(const char *name, const struct device_record *d, const struct swap_area *area,
		 struct error *e)
{
	char lost[16], ublk[64];

	/* A kernel-module device has no server. */
	if (kmoddev_is(d))
		return swaps_can_leave(name, area, 1, FORCE, e);
	if (!d->server_pid && area->used && !ublk_find(name, ublk, sizeof(ublk)))
		return fail_exit(e, EXIT_REFUSED, EIO,
				 "device %s: ebb-swapd is dead and programs that access the %s swapped out there hang; run \"ebbctl device abort %s\", then reboot",
				 name, size_format(area->used, lost, sizeof(lost)), name);
	/* The kernel closes the FUSE connection of a dead server: reads fail instead of waiting. */
	if (!d->server_pid && area->used)
		return fail_exit(e, EXIT_REFUSED, EIO,
				 "device %s: ebb-swapd is dead and %s swapped out there is unreadable (SIGBUS); end those programs or use --force",
				 name, size_format(area->used, lost, sizeof(lost)));
	return swaps_can_leave(name, area, 1, FORCE, e);
}

int device_destroy(const char *name, enum destroy_mode mode, int timeout_ms,
		   enum swapoff_show show, struct error *e)
{
	const struct swapoff_options o = {
		timeout_ms,
		mode == DESTROY_PATIENT ? PATIENCE_TO_THE_END : PATIENCE_UNTIL_INTERRUPTED,
		show, NULL,
	};
	_cleanup_close_ int lock = -1;
	struct device_record d;
	struct swap_area area;
	int r;

	r = device_name_check(name, e);
	if (!r)
		r = need_root("device destroy", e);
	if (r)
		return r;
	process_defer_signals();
	lock = device_lock(o.patience, e);
	if (lock < 0)
		return lock;
	r = device_find(name, &d, e);
	/* Limits that the last attempt could not restore. */
	if (r == -ENOENT && scope_has_limits(name))
		return scope_undo(name, e);
	if (r)
		return r;
	if (mode != DESTROY_FORCED && *d.block && !swaps_find(d.block, &area))
		r = check(name, &d, &area, e);
	return r ? r : device_teardown(&d, &o, e);
}
