/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Accesses of members that do not map an arena: the donor executes them, by the processor's
 * atomics, as members that map it do.  It checks the owner of each extent unless the pool is
 * shared.
 *
 * In the table, a member reads anything, writes hints, and swaps words of its own, free and closed
 * ones.  A word of another member it can only take, under a new generation, as the receiver of an
 * offer does.  That prevents accidents: members of a pool have one key, and one that takes what it
 * was not offered breaks only its own pool.
 */
#ifndef EBB_FAR_ACCESS_H
#define EBB_FAR_ACCESS_H

#include "far_pools.h"

/* Return statuses of the reply; without WIRE_OK nothing was accessed. */
uint16_t far_read(const struct far_member *m, uint32_t arena, uint64_t at, void *to, uint32_t n);
uint16_t far_write(const struct far_member *m, uint32_t arena, uint64_t at, const void *from,
		   uint32_t n);
/* Swaps all @n of @swaps, in their order; @old[i] is the word as swap i found it. */
uint16_t far_cas(struct far_member *m, uint32_t arena, const struct wire_far_swap *swaps,
		 uint32_t n, uint64_t *old);
uint16_t far_add_word(const struct far_member *m, uint32_t arena, uint64_t at, uint64_t addend,
		      uint64_t *old);

#endif
