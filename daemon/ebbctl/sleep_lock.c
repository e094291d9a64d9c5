// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-daemon.h>

#include "common/clock.h"
#include "sleep_lock.h"

#define ABOVE_STDERR 3
#define WAIT_USEC 5000000

/* Flushing would wait for a bus that is not there yet. */
static void put_bus(sd_bus **bus) { sd_bus_close_unref(*bus); }
static void put_message(sd_bus_message **m) { sd_bus_message_unref(*m); }

/* A daemon that does not even greet would be waited for by itself, for 90 s, in any call. */
static int greeted(sd_bus *bus)
{
	uint64_t now = now_ns() / 1000, end = now + WAIT_USEC;
	int r = sd_bus_is_ready(bus);

	for (; !r && now < end; now = now_ns() / 1000) {
		r = sd_bus_process(bus, NULL);
		if (!r)
			r = sd_bus_wait(bus, end - now);
		if (r >= 0)
			r = sd_bus_is_ready(bus);
	}
	return r < 0 ? r : r ? 0 : -ETIMEDOUT;
}

int sleep_lock_take(const char *device)
{
	__attribute__((cleanup(put_bus))) sd_bus *bus = NULL;
	__attribute__((cleanup(put_message))) sd_bus_message *answer = NULL;
	char why[128];
	int fd, r;

	if (sd_booted() <= 0)
		return -EOPNOTSUPP;
	snprintf(why, sizeof(why), "swap is on at device %.64s, and what serves it would sleep too", device);
	r = sd_bus_open_system(&bus);
	if (r >= 0)
		r = greeted(bus);
	if (r >= 0)
		r = sd_bus_set_method_call_timeout(bus, WAIT_USEC);
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
