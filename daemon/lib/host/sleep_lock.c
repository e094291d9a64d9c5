// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "bus.h"
#include "sleep_lock.h"

#define ABOVE_STDERR 3

int sleep_lock_take(const char *device)
{
	__attribute__((cleanup(bus_close))) sd_bus *bus = NULL;
	__attribute__((cleanup(bus_message_free))) sd_bus_message *answer = NULL;
	char why[128];
	int fd, r;

	snprintf(why, sizeof(why), "swap is on at device %.64s, and what serves it would sleep too", device);
	r = bus_open(&bus);
	/* logind.conf(5): a lid that is closed overrides "sleep" alone. */
	if (r >= 0)
		r = sd_bus_call_method(bus, "org.freedesktop.login1", "/org/freedesktop/login1",
				       "org.freedesktop.login1.Manager", "Inhibit", NULL, &answer,
				       "ssss", "sleep:handle-lid-switch", "ebb", why, "block");
	if (r >= 0)
		r = sd_bus_message_read(answer, "h", &fd);
	if (r < 0)
		return r;
	/* The message's own ends with it. */
	fd = fcntl(fd, F_DUPFD, ABOVE_STDERR);
	return fd < 0 ? -errno : fd;
}
