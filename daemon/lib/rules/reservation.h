/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How a device spreads its reservation over its donors.  A slab has its replicas at different
 * donors, so no donor needs to hold more slabs than the device has; and at different machines,
 * while the machines suffice.  What is reserved stays where it is; the rest is spread in proportion
 * to the room of each machine, then of each donor.
 *
 * Pure functions over plain structs.  All numbers are slabs.
 */
#ifndef EBB_RESERVATION_H
#define EBB_RESERVATION_H

#include <stdint.h>

#define RESERVATION_DONORS 64

struct reservation_donor {
	uint32_t machine; /* equal for donors of one machine; 0 = unknown, a machine of its own */
	uint32_t has;     /* slabs of the device there; no reservation is smaller */
	uint32_t held;    /* reserved there now, those included */
	uint32_t most;    /* limit of a reservation there; 0 = the donor is not to be used */
	uint32_t want;    /* result: what is to be reserved there, @has included */
};

/*
 * Sets .want of @n donors, up to RESERVATION_DONORS, for @slabs slabs with @replicas replicas.
 * Returns how many of slabs * replicas find no place.
 */
uint64_t reservation_spread(struct reservation_donor *d, int n, uint32_t slabs, int replicas);

#endif
