/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * Layouts of a heap's objects as data: where the references of an object of a type are.  A donor
 * finds them by a layout that the borrower has sent, and runs no code of the borrower's.
 *
 * An object is what follows its header of 8 bytes in a slot.  It has a fixed part and, with a
 * length field, as many elements behind that.  Both sides are little-endian.
 *
 * Pure functions on the caller's memory.  The object may be anything, and may change meanwhile:
 * each word is read once, and nothing beyond @bytes is read.
 */
#ifndef EBB_LAYOUT_H
#define EBB_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "tablet.h"

#define LAYOUT_HEADER 8u                      /* bytes: type in the lower half */
#define LAYOUT_RUNS 8u                        /* of a type, at most */
#define LAYOUT_LENGTH UINT32_MAX              /* count of a run with one reference an element */
/* References of an object, at most. */
#define LAYOUT_REFERENCES ((TABLET_SLOT_MOST - LAYOUT_HEADER) / 8)

/* References at offset, offset + stride, ...: bytes from the object's first one. */
struct layout_run {
	uint32_t offset, stride; /* multiples of 8 */
	uint32_t count;
};

struct layout {
	uint32_t size;          /* bytes of the fixed part, not 0 */
	uint32_t element_size;  /* bytes; 0 without a length field */
	uint32_t length_offset; /* of the length field, a multiple of its width */
	uint32_t length_width;  /* 0 = none, 4 or 8 bytes */
	uint32_t runs;
	uint64_t bitmap;        /* bit i: a reference at byte 8 * i of the fixed part */
	struct layout_run run[LAYOUT_RUNS];
};

/* Returns whether each object of this layout that fits a slot has its references in itself. */
bool layout_is_valid(const struct layout *l);

/*
 * Stores the words of an object of valid layout @l that are references, null ones included.  The
 * object is at @object, a multiple of 8, and has up to @bytes bytes, at most TABLET_SLOT_MOST -
 * LAYOUT_HEADER.  Returns their number, or -1 and stores none: it is no object of the layout.
 */
int layout_references(const struct layout *l, const uint8_t *object, uint32_t bytes,
		      uint64_t to[static LAYOUT_REFERENCES]);

#endif
