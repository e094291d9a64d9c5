// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <systemd/sd-daemon.h>

#include "bus.h"
#include "lib/base/clock.h"

#define WAIT_USEC 5000000

/* Flushing would wait for a bus that is not there yet, and calls have had their answers. */
void bus_close(sd_bus **bus) { sd_bus_close_unref(*bus); }
void bus_message_free(sd_bus_message **m) { sd_bus_message_unref(*m); }

/* Bounds the handshake: sd-bus would wait 90 s in any call for a bus that never answers. */
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

int bus_open(sd_bus **bus)
{
	int r;

	if (sd_booted() <= 0)
		return -EOPNOTSUPP;
	r = sd_bus_open_system(bus);
	if (r >= 0)
		r = greeted(*bus);
	if (r >= 0)
		r = sd_bus_set_method_call_timeout(*bus, WAIT_USEC);
	return r < 0 ? r : 0;
}
