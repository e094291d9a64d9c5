/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A donor that receives altered data on its control connection sends a TLS alert and closes its
 * data connections, of which the borrower may learn in any order.  A control connection that is
 * closed for the end of a data connection therefore stays readable for a while.
 */
#ifndef EBB_DONOR_ALERT_H
#define EBB_DONOR_ALERT_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/link/link.h"

/* Starts as zeroes. */
struct alert {
	struct tls tls;  /* not in use: nothing is awaited */
	int fd;
	uint64_t until;  /* ns */
};

/*
 * Takes the control connection of @l, which uses TLS, and tells the donor that it is closed.  Ends
 * an older wait.
 */
void alert_await(struct alert *a, struct link *l, uint64_t now);
/* Ends the wait when something has come or the time is over; returns whether an alert has come. */
bool alert_came(struct alert *a, uint64_t now);
void alert_end(struct alert *a);

#endif
