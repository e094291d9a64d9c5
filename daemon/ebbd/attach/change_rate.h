/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Limits how often the configuration of one user's cgroups changes attachments: a change waits for
 * all BPF programs, and a user may write an xattr in a loop.  Pure: no clock.
 */
#ifndef EBB_CHANGE_RATE_H
#define EBB_CHANGE_RATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CHANGE_USERS 64             /* users remembered, those of the latest changes */
#define CHANGE_BURST 32             /* changes at once, after a pause */
#define CHANGE_NS 125000000ULL      /* between changes: 8 a second */
#define CHANGE_ROOT 32              /* root's cgroups may change so many times as often */

/* Starts as zeroes. */
struct change_rate {
	struct {
		uid_t user;
		uint64_t until_ns;  /* time by which the changes so far were due; 0 = unused */
	} slot[CHANGE_USERS];
};

/* Returns whether a cgroup of @user may change now, and counts the change if so. */
static inline bool change_allowed(struct change_rate *r, uid_t user, uint64_t now)
{
	uint64_t each = user ? CHANGE_NS : CHANGE_NS / CHANGE_ROOT;
	uint64_t burst = (CHANGE_BURST - 1) * CHANGE_NS;
	uint32_t at = 0;

	for (uint32_t i = 0; i < CHANGE_USERS; i++) {
		if (r->slot[i].until_ns && r->slot[i].user == user) {
			at = i;
			break;
		}
		if (r->slot[i].until_ns < r->slot[at].until_ns)
			at = i;
	}
	if (r->slot[at].user != user || r->slot[at].until_ns < now) {
		r->slot[at].user = user;
		r->slot[at].until_ns = now;
	}
	if (r->slot[at].until_ns - now > burst)
		return false;
	r->slot[at].until_ns += each;
	return true;
}

#endif
