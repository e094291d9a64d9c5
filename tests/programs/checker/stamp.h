/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a page says about itself.  Every byte of a stamped page follows from its
 * stamp, so that a page of another place, another time, another device, or one
 * that is a mixture, is told from the right one by itself.
 */
#ifndef EBB_TESTS_STAMP_H
#define EBB_TESTS_STAMP_H

#include <stdint.h>

enum stamp_kind {
	STAMP_ZERO,   /* 4096 zeroes: never written, or discarded */
	STAMP_FULL,   /* incompressible, with a checksum over all of it */
	STAMP_SAME,   /* one word, 512 times: same-filled, and still stamped */
	STAMP_BROKEN, /* none of these: torn, altered or not ours */
};

struct stamp {
	enum stamp_kind kind;
	uint32_t device;     /* random, one per run; 7 bits of it in a STAMP_SAME */
	uint32_t page;       /* below 2^24 */
	uint32_t generation; /* of the page, from 1 */
	uint32_t writer;     /* the thread; 0 in a STAMP_SAME */
};

#define STAMP_PAGES (1u << 24)

/* Fills the 4096 bytes at @memory as @s says. */
void stamp_write(void *memory, const struct stamp *s);

/* What the page at @memory says; @s->kind is STAMP_BROKEN where it says nothing. */
void stamp_read(const void *memory, struct stamp *s);

/* 0 when @a and @b cannot be of one device. */
int stamp_same_device(const struct stamp *s, uint32_t device);

const char *stamp_kind_text(enum stamp_kind kind);

#endif
