/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The capacity that donors promise to a device without a backup (docs/placement.md,
 * "Reservations").  lib/rules/reservation.h decides how much each donor is to promise.
 */
#ifndef EBB_SWAPD_RESERVATION_H
#define EBB_SWAPD_RESERVATION_H

#include <stdbool.h>
#include <stdint.h>

struct replicas;

/*
 * Reserves all replicas of all slabs at the donors, which are up, and waits for their replies.
 * Returns false when they do not suffice; then nothing is reserved.  Before the device serves.
 */
bool reservation_open(struct replicas *rs);

/* Ten times a second, in the loop thread: follows donors that come and go. */
void reservation_tick(struct replicas *rs, uint64_t now);

/* Returns the number of slabs to reserve; 0 = this device does not reserve. */
uint64_t reservation_wanted(const struct replicas *rs);

#endif
