/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The system bus, by which systemd is asked; nothing here waits longer than five seconds. */
#ifndef EBB_BUS_H
#define EBB_BUS_H

#include <systemd/sd-bus.h>

/*
 * Opens a connection whose calls time out, and completes the handshake.  Returns 0 or
 * -errno: -EOPNOTSUPP if systemd does not run, -ETIMEDOUT if the bus accepts connections and
 * never answers.  The caller owns *@bus even after an error, for bus_close().
 */
int bus_open(sd_bus **bus);

/* For _cleanup_: *@bus may be NULL. */
void bus_close(sd_bus **bus);
void bus_message_free(sd_bus_message **m);

#endif
