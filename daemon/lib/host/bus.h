/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The system bus, by which systemd is asked; nothing here waits longer than five seconds. */
#ifndef EBB_BUS_H
#define EBB_BUS_H

#include <systemd/sd-bus.h>

/*
 * A connection that has been greeted, whose calls time out; 0, or -errno: -EOPNOTSUPP where
 * systemd does not run, -ETIMEDOUT where a bus takes connections and says nothing.  *@bus is
 * the caller's also after an error, for bus_close().
 */
int bus_open(sd_bus **bus);

/* For _cleanup_: *@bus may be NULL. */
void bus_close(sd_bus **bus);
void bus_message_free(sd_bus_message **m);

#endif
