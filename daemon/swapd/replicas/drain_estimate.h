/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What is to become of the slabs at a donor that is to be left: by the rules of
 * repair.h, with the room that the other donors told of last.
 */
#ifndef EBB_OUTLOOK_H
#define EBB_OUTLOOK_H

#include <stdint.h>

struct donor;
struct swapd;

struct outlook {
	uint32_t slabs;  /* that have a copy there: the sum of those below */
	uint32_t move;   /* have room elsewhere, or need none */
	uint32_t disk;   /* will be on the backup disk alone */
	uint32_t stuck;  /* stay until there is room */
	const char *why; /* those do: "CAUSE; REMEDY"; NULL = none does */
};

/* Any thread: what it reads may change meanwhile, and it then is as good as a moment ago. */
void outlook(const struct swapd *s, const struct donor *d, struct outlook *o);

#endif
