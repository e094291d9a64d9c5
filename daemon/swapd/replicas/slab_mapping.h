/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Replicas of slabs at donors: requested, granted, released, lost.  placement.c chooses the donor.
 * All functions are the loop thread's.
 */
#ifndef EBB_SLAB_MAPPING_H
#define EBB_SLAB_MAPPING_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/wire/wire.h"

struct donor;
struct replicas;

/*
 * Requests the first copies of the slab at @index, which has none: as many as are wanted and find a
 * donor, another one if a donor does not grant its copy.  Returns false when it stays without for
 * now.
 */
bool mapping_open(struct replicas *rs, uint32_t index, uint64_t now);

/*
 * Requests one more replica, at @donor or, if that is -1, at the donor that placement.c chooses.
 * False when no donor has free capacity; nothing is requested for the slab for a second then.
 */
bool mapping_add(struct replicas *rs, uint32_t index, int donor, uint64_t now);

/*
 * Ten times a second: requests copies from @d, which is up, that it has refused for now or had no
 * room for in its queue.
 */
void mapping_ask_later(struct replicas *rs, struct donor *d, uint64_t now);

/*
 * Ten times a second: once the backup has failed to store a page, tells the donors of all copies
 * that were told otherwise that they have the only copies.  MAP and REMAP tell the present state.
 */
void mapping_tell_unbacked(struct replicas *rs);

/* Retries all slabs at once: a donor that is up may have free capacity again. */
void mapping_retry(struct replicas *rs);

/* Returns whether a donor may have a slab for another copy of @index now. */
bool mapping_possible(struct replicas *rs, uint32_t index);

/* Handles the reply of @d to MAP.  Returns 0 or -errno. */
int mapping_answered(struct replicas *rs, struct donor *d, const struct wire_frame *f);

/*
 * mapping_resume() asks @d, which is up, for the copies that are AWAY there, as many at a time as
 * may be in flight, first those that requests wait for, and finally releases all others.  The
 * second function handles a reply: 0 or -errno, with -ECONNREFUSED to resume again, and donor.why.
 * A confirmed copy that this process cannot reach is requested again for a while, then given up,
 * unless it is the only one: donor.unreachable.
 */
void mapping_resume(struct replicas *rs, struct donor *d);
int mapping_confirmed(struct replicas *rs, struct donor *d, const struct wire_frame *f);
/*
 * RELEASE is answered, or a REMAP or MAP behind it, or a copy was dropped: ends the absence of @d
 * if no copy is AWAY there and nothing is in flight.  Returns 0 or -errno.
 */
int mapping_released(struct replicas *rs, struct donor *d);

/*
 * Releases replica @copy of the slab at @index, which no transfer uses.  Returns false when its
 * donor's queue is full: try again.
 */
bool mapping_unmap(struct replicas *rs, uint32_t index, int copy);

/* Returns whether copy @copy of the slab at @index migrates, by itself or with its donor. */
bool mapping_leaving(const struct replicas *rs, uint32_t index, int copy);

/* Makes all copies at @d AWAY, which is away; those not granted yet are given up. */
void mapping_away(struct replicas *rs, struct donor *d);
/* Removes all copies at @d, which is lost. */
void mapping_lost(struct replicas *rs, struct donor *d);

/*
 * @d has ended @loan: removes that copy, if it is MAPPED, as if its donor were lost.  Transfers in
 * flight end by their own replies.  While AWAY, the reply to REMAP decides.
 */
void mapping_revoked(struct replicas *rs, struct donor *d, struct wire_loan loan);

/* Returns whether a copy of the slab at @index is AWAY at a donor that repair waits for. */
bool mapping_awaited(const struct replicas *rs, uint32_t index, uint64_t now);
/*
 * Returns whether slabs may become free soon: a donor is away, is back for less than 2 s, or has a
 * full queue.  One that is back first frees the places that slabs have lost meanwhile.
 */
bool mapping_room_awaited(const struct replicas *rs, uint64_t now);

/* Returns the time in ns since which @d has had its oldest unanswered MAP or REMAP. */
uint64_t mapping_oldest(const struct replicas *rs, const struct donor *d);

#endif
