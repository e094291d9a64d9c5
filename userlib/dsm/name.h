/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * How places are numbered.  The .at of a name:
 *
 *	donor 3 | member - 1 8 | arena 12 | offset / 16 26 | kind 6 | units - 1 9
 *
 * The offset is the header's, in the arena.  The kind is the size of the place: an extent of its
 * own (4 KiB << kind), or a slot of a block, which is an extent of 64 KiB.  Units are what has to
 * be read, header included, of 16 bytes or a larger power of two.
 *
 * A claim is a record of a member at the donor of a place: member - 1 8 | arena 12 | offset / 16
 * 26, shifted left by the 4 bits of a hold word's state.
 */
#ifndef EBBDSM_NAME_H
#define EBBDSM_NAME_H

#include <ebbfar.h>
#include <stdbool.h>
#include <stdint.h>

#define NAME_DONORS 8u
#define NAME_BLOCK 65536u
#define NAME_OWN 10u    /* kinds that are extents of their own */
/* Of slots: 64 bytes to 16 KiB, four sizes from a power of two to the next. */
#define NAME_CLASSES 33u
#define NAME_KINDS (NAME_OWN + NAME_CLASSES)
#define NAME_CLAIMS 4096u /* bytes of an extent for claims */

struct name {
	uint32_t donor, member, kind;
	uint32_t offset, bytes;  /* in the extent; to be read */
	struct ebbfar_extent x;
};

/* Returns the bytes of a place of @kind. */
static inline uint32_t name_place(uint32_t kind)
{
	uint32_t class = kind - NAME_OWN;

	return kind < NAME_OWN ? 4096u << kind : (4 + class % 4) << (4 + class / 4);
}

/* Returns the bytes of the extent that has a place of @kind. */
static inline uint32_t name_extent(uint32_t kind)
{
	return kind < NAME_OWN ? 4096u << kind : NAME_BLOCK;
}

/* Returns the kind of places for @bytes, at most 2 MiB. */
static inline uint32_t name_kind(size_t bytes)
{
	uint32_t kind = bytes <= name_place(NAME_KINDS - 1) ? NAME_OWN : 3;

	while (name_place(kind) < bytes)
		kind++;
	return kind;
}

static inline uint32_t name_unit(uint32_t kind)
{
	uint32_t unit = 16;

	while (name_place(kind) / unit > 512)
		unit *= 2;
	return unit;
}

static inline uint64_t name_make(uint32_t donor, uint32_t member, const struct ebbfar_extent *x,
				 uint32_t offset, uint32_t kind, size_t bytes)
{
	uint32_t unit = name_unit(kind);
	uint64_t place = x->place + offset;

	return (uint64_t)donor << 61 | (uint64_t)(member - 1) << 53 | (place >> 32) << 41 |
	       (place & 0xffffffff) >> 4 << 15 | kind << 9 | ((bytes + unit - 1) / unit - 1);
}

/* Returns parts of any name, also of one that cannot be. */
static inline uint32_t name_at_kind(uint64_t at)
{
	return at >> 9 & 63;
}

static inline uint64_t name_at_place(uint64_t at)
{
	return (at >> 41 & 0xfff) << 32 | (at >> 15 & 0x3ffffff) << 4;
}

/* False: there is no such name.  The extent's generation is that of @generation. */
static inline bool name_parse(uint64_t at, uint64_t generation, uint32_t donors, struct name *n)
{
	uint32_t kind = at >> 9 & 63, offset = (uint32_t)(at >> 15 & 0x3ffffff) << 4;

	if (kind >= NAME_KINDS || at >> 61 >= donors)
		return false;
	*n = (struct name){
		.donor = (uint32_t)(at >> 61),
		.member = (uint32_t)(at >> 53 & 0xff) + 1,
		.kind = kind,
		.offset = offset & (name_extent(kind) - 1),
		.bytes = ((uint32_t)(at & 511) + 1) * name_unit(kind),
	};
	n->x = (struct ebbfar_extent){ .place = (at >> 41 & 0xfff) << 32 | (offset - n->offset),
				       .size = name_extent(kind), .generation = generation };
	return n->offset % name_place(kind) == 0 &&
	       n->offset + name_place(kind) <= name_extent(kind) && n->bytes <= name_place(kind);
}

static inline uint64_t name_claim(uint32_t member, const struct ebbfar_extent *x, uint32_t offset)
{
	uint64_t place = x->place + offset;

	return (uint64_t)(member - 1) << 42 | (place >> 32) << 30 | (place & 0xffffffff) >> 4 << 4;
}

static inline uint32_t name_of_claim(uint64_t claim, uint64_t generation, struct ebbfar_extent *x,
				     uint32_t *offset)
{
	uint32_t place = (uint32_t)(claim >> 4 & 0x3ffffff) << 4;

	*offset = place & (NAME_CLAIMS - 1);
	*x = (struct ebbfar_extent){ .place = (claim >> 30 & 0xfff) << 32 | (place - *offset),
				     .size = NAME_CLAIMS, .generation = generation };
	return (uint32_t)(claim >> 42 & 0xff) + 1;
}

#endif
