/* SPDX-License-Identifier: GPL-2.0-or-later */
/* FNV-1a, 64 bits (Fowler, Noll and Vo): equal on every machine. */
#ifndef EBB_FNV_H
#define EBB_FNV_H

#include <stdint.h>

#define FNV1A_START UINT64_C(0xcbf29ce484222325)

/* Extends @hash (FNV1A_START at the beginning) by @text. */
static inline uint64_t fnv1a(uint64_t hash, const char *text)
{
	for (; *text; text++)
		hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
	return hash;
}

#endif
