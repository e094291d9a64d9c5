// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <sched.h>

#include "realtime.h"

int realtime_enter(void)
{
	struct sched_param lowest = { .sched_priority = 1 };

	return sched_setscheduler(0, SCHED_FIFO, &lowest) < 0 ? -errno : 0;
}
