/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Copies of slabs at donors: asked for, granted, given back, lost.  Who gets one is
 * placement.c's choice.  All is called by the loop thread.
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
bool placing_open(struct replicas *rs, uint32_t index, uint64_t now);

/*
 * Asks for one more copy, at @donor or, if that is -1, at whom placement.c chooses.
 * False when nobody has room; the slab is then left alone for a second.
 */
bool placing_add(struct replicas *rs, uint32_t index, int donor, uint64_t now);

/* Ten times a second: MAPs that @d, which is up, refused and may grant by now. */
void placing_ask_later(struct replicas *rs, struct donor *d, uint64_t now);

/* There may be room again, at a donor that is up: no slab is left alone. */
void placing_retry(struct replicas *rs);

/* Whether placing_add() would find a donor. */
bool placing_possible(struct replicas *rs, uint32_t index);

/* @d answered MAP.  0 or -errno. */
int placing_answered(struct replicas *rs, struct donor *d, const struct wire_frame *f);

/*
 * For a successor.  placing_resume() asks @d, which is up, for the copies that are AWAY
 * there, as far as its queue has room; in the end for no others.  It has answered:
 * 0 or -errno.  What it confirms and we cannot reach is asked for again, and when that
 * has been tried for long enough given up; unless it is nowhere else: donor.unreachable.
 */
void placing_resume(struct replicas *rs, struct donor *d);
int placing_confirmed(struct replicas *rs, struct donor *d, const struct wire_frame *f);

/*
 * Gives copy @copy of the slab at @index back.  Nothing that uses it is under way.
 * False when its donor's queue is full: try again.
 */
bool placing_unmap(struct replicas *rs, uint32_t index, int copy);

/* Whether copy @copy of the slab at @index is to go, by itself or with its donor. */
bool placing_leaving(const struct replicas *rs, uint32_t index, int copy);

/* @d is lost, and with it all copies there. */
void placing_lost(struct replicas *rs, struct donor *d);

/* ns: since when @d, which has a MAP to answer, has had it. */
uint64_t placing_oldest(const struct replicas *rs, const struct donor *d);

#endif
