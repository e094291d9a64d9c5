/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * Evacuation of a region: copies the slots that live, one behind the other, and sums the copy.  The
 * result is a function of the source and the two bitmaps alone, so donors with equal copies make
 * equal ones.
 *
 * Pure functions on the caller's memory.
 */
#ifndef EBB_PACK_H
#define EBB_PACK_H

#include <stdint.h>

#include "tablet.h"

/*
 * Returns @crc continued over @n bytes: CRC-32C (Castagnoli; reflected polynomial 0x82F63B78, start
 * and final value inverted).  The first @crc is 0.
 */
uint32_t pack_crc(uint32_t crc, const void *bytes, uint32_t n);

/*
 * Copies the slots of @keep, which are all slots of the tablet @live, from the region's bytes at
 * @from to @to, and continues *@crc over what was copied.  Returns the number of bytes: those of
 * tablet_bytes(@keep).  @from may change meanwhile: the copy and the sum agree all the same.
 * Memory of @from and @to does not overlap.
 */
uint32_t pack_region(uint8_t *to, const uint8_t *from, const uint64_t *live, const uint64_t *keep,
		     uint32_t slots, uint32_t slot_bytes, uint32_t *crc);

#endif
