/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * Where the objects of a far region are.  A region of a heap is divided into slots of one size.  To
 * a donor only the slots in use are written, one behind the other, so the place of a slot's bytes
 * is a pure function of the region's tablet:
 *
 *	place(slot) = base + rank(slot) * bytes of a slot
 *
 * where rank() counts the slots in use before it.  A tablet is a bit for each slot, in words of 64
 * slots, lowest bit first.  Beside it the caller keeps an index: of each word, how many slots in
 * use come before it.  The borrower and each donor build the index from the bits, so only bits are
 * sent.  That costs 10 bytes for 64 slots: 1.25 MiB per GiB of 128-byte slots.
 *
 * Pure functions on the caller's memory, which they do not keep.  They read no bit beyond @slots.
 * Threads may read a tablet together while none changes it.
 */
#ifndef EBB_TABLET_H
#define EBB_TABLET_H

#include <stdbool.h>
#include <stdint.h>

#define TABLET_REGION (1u << 16)              /* bytes of a region */
#define TABLET_GRANULE 16u                    /* bytes: every size of a slot is a multiple */
#define TABLET_SLOTS (TABLET_REGION / TABLET_GRANULE) /* of a region, at most */
#define TABLET_WORDS (TABLET_SLOTS / 64)      /* of a region's tablet, at most */
#define TABLET_SLOT_MOST 8192u                /* bytes of a slot, at most */

/* Returns how many slots of @slot_bytes a region has; 0: no slot has that size. */
static inline uint32_t tablet_slots(uint32_t slot_bytes)
{
	return slot_bytes && slot_bytes % TABLET_GRANULE == 0 && slot_bytes <= TABLET_SLOT_MOST ?
	       TABLET_REGION / slot_bytes : 0;
}

/* Returns the number of words, and of elements of the index, for @slots. */
static inline uint32_t tablet_words(uint32_t slots)
{
	return (slots + 63) / 64;
}

/* Returns whether word @i has no bit at or beyond @slots: check words that others have sent. */
static inline bool tablet_word_fits(uint64_t word, uint32_t i, uint32_t slots)
{
	uint32_t first = 64 * i;

	return first >= slots ? !word : slots - first >= 64 || !(word >> (slots - first));
}

/* Returns whether no bit is set at or beyond @slots in the tablet_words() words. */
static inline bool tablet_fits(const uint64_t *live, uint32_t slots)
{
	uint32_t words = tablet_words(slots);

	return !words || tablet_word_fits(live[words - 1], words - 1, slots);
}

/* Fills in the index, and returns how many slots are in use.  tablet_fits() holds. */
static inline uint32_t tablet_index(const uint64_t *live, uint32_t slots, uint16_t *before)
{
	uint32_t words = tablet_words(slots), n = 0;

	for (uint32_t i = 0; i < words; i++) {
		before[i] = (uint16_t)n;
		n += (uint32_t)__builtin_popcountll(live[i]);
	}
	return n;
}

/* Returns how many slots are in use, without an index. */
static inline uint32_t tablet_live(const uint64_t *live, uint32_t slots)
{
	uint32_t words = tablet_words(slots), n = 0;

	for (uint32_t i = 0; i < words; i++)
		n += (uint32_t)__builtin_popcountll(live[i]);
	return n;
}

/* Returns the bytes that the region's objects take at a donor: at most TABLET_REGION. */
static inline uint32_t tablet_bytes(const uint64_t *live, uint32_t slots, uint32_t slot_bytes)
{
	return tablet_live(live, slots) * slot_bytes;
}

/* Returns whether the slot is in use.  @slot is less than the tablet's slots. */
static inline bool tablet_has(const uint64_t *live, uint32_t slot)
{
	return live[slot / 64] >> (slot % 64) & 1;
}

/* Returns how many slots in use come before @slot, which is less than the tablet's slots. */
static inline uint32_t tablet_rank(const uint64_t *live, const uint16_t *before, uint32_t slot)
{
	uint64_t below = live[slot / 64] & ((UINT64_C(1) << slot % 64) - 1);

	return before[slot / 64] + (uint32_t)__builtin_popcountll(below);
}

/* Returns where the slot's bytes are if the region's are at @base; only for a slot in use. */
static inline uint64_t tablet_place(const uint64_t *live, const uint16_t *before, uint32_t slot,
				    uint32_t slot_bytes, uint64_t base)
{
	return base + (uint64_t)tablet_rank(live, before, slot) * slot_bytes;
}

/* Returns the first slot in use from @from on, or @slots.  To iterate needs no rank. */
static inline uint32_t tablet_next(const uint64_t *live, uint32_t slots, uint32_t from)
{
	uint64_t word;

	if (from >= slots)
		return slots;
	word = live[from / 64] & ~UINT64_C(0) << from % 64;
	for (uint32_t i = from / 64;; word = live[i]) {
		if (word)
			return 64 * i + (uint32_t)__builtin_ctzll(word);
		if (++i == tablet_words(slots))
			return slots;
	}
}

/*
 * Returns the slot whose first byte is @offset bytes into the region, or the region's number of
 * slots: no slot begins there.  tablet_slots(@slot_bytes) is not 0.
 */
static inline uint32_t tablet_slot_at(uint32_t offset, uint32_t slot_bytes)
{
	uint32_t slots = TABLET_REGION / slot_bytes, slot = offset / slot_bytes;

	return slot < slots && slot * slot_bytes == offset ? slot : slots;
}

#endif
