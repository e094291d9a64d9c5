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
 * Asks for the first copies of the slab at @index, which has none: as many as are
 * wanted and have a donor.  False when it is to stay without for now.
 */
bool mapping_open(struct replicas *rs, uint32_t index, uint64_t now);

/*
 * Requests one more replica, at @donor or, if that is -1, at the donor that placement.c chooses.
 * False when no donor has free capacity; nothing is requested for the slab for a second then.
 */
bool mapping_add(struct replicas *rs, uint32_t index, int donor, uint64_t now);

/* Ten times a second: MAPs that @d, which is up, refused and may grant by now. */
void mapping_ask_later(struct replicas *rs, struct donor *d, uint64_t now);

/* There may be room again, at a donor that is up: no slab is left alone. */
void mapping_retry(struct replicas *rs);

/* Whether mapping_add() would find a donor. */
bool mapping_possible(struct replicas *rs, uint32_t index);

/* @d answered MAP.  0 or -errno. */
int mapping_answered(struct replicas *rs, struct donor *d, const struct wire_frame *f);

/*
 * For a successor.  mapping_resume() asks @d, which is up, for the copies that are AWAY
 * there, as far as its queue has room; in the end for no others.  It has answered:
 * 0 or -errno.  What it confirms and we cannot reach is asked for again, and when that
 * has been tried for long enough given up; unless it is nowhere else: donor.unreachable.
 */
void mapping_resume(struct replicas *rs, struct donor *d);
int mapping_confirmed(struct replicas *rs, struct donor *d, const struct wire_frame *f);

/*
 * Releases replica @copy of the slab at @index.  No transfer uses it.
 * False when its donor's queue is full: try again.
 */
bool mapping_unmap(struct replicas *rs, uint32_t index, int copy);

/* Whether copy @copy of the slab at @index is to go, by itself or with its donor. */
bool mapping_leaving(const struct replicas *rs, uint32_t index, int copy);

/* @d is lost, and with it all copies there. */
void mapping_lost(struct replicas *rs, struct donor *d);

/* ns: since when @d, which has a MAP to answer, has had it. */
uint64_t mapping_oldest(const struct replicas *rs, const struct donor *d);

#endif
