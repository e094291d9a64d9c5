/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Far memory: extents of donor memory that members of a pool allocate with one compare-and-swap.
 *
 * An arena is the memory of one donor slab, a multiple of a section (2 MiB).  A section is FREE,
 * one extent (WHOLE), or OPEN: divided into slots of one class, 4 KiB << class.  The table at the
 * arena's start has a word for each section and one for each page of a section; the word of a
 * slot's first page is the slot's word.  Each word holds its owner, so the one compare-and-swap
 * that takes an extent also records the owner: after a crash, the donor reads the words and needs
 * no log.
 *
 * Generations: every free, format, trim, hand-over and withdrawal raises the generation of its
 * word, so (address, class, generation) names one allocation and owner for ever, and a
 * compare-and-swap with an old word fails.  All words of a pool begin with the highest 38 bits of
 * its random identity, so that a pool which is made again has other names.  The class tells a
 * section from its first slot, which has the same address but a word of its own.  A free word at
 * its last generation is retired: it is not allocated again.  Other words may still allocate its
 * memory, as part of larger extents.
 *
 * Atomicity: only compare-and-swap changes a word, except hint words, which only WRITEs change.
 * Aligned 8-byte words are atomic in READ and WRITE, nothing larger is.  Words are little-endian.
 *
 * Trust: a pool belongs to one key, but a word may hold anything: check a word before its use.
 */
#ifndef EBB_FAR_H
#define EBB_FAR_H

#ifndef __bpf__
#include <linux/types.h>
#endif

#include "page.h"

/* A model checker overrides these. */
#ifndef EBB_FAR_SECTION_ORDER
#define EBB_FAR_SECTION_ORDER 9                       /* log2 of a section's pages */
#endif
#ifndef EBB_FAR_LINE_ORDER
#define EBB_FAR_LINE_ORDER 6                          /* log2 of a line's words */
#endif
#ifndef EBB_FAR_WINDOW
#define EBB_FAR_WINDOW 64u                            /* sections whose words one READ fetches */
#endif

#define EBB_FAR_SECTION_SHIFT (EBB_PAGE_SHIFT + EBB_FAR_SECTION_ORDER)
#define EBB_FAR_SECTION (1ul << EBB_FAR_SECTION_SHIFT) /* bytes: 2 MiB */
#define EBB_FAR_SLOTS (1u << EBB_FAR_SECTION_ORDER)   /* slot words of a section */
#define EBB_FAR_LINE (1u << EBB_FAR_LINE_ORDER)       /* slot words that one READ fetches */
#define EBB_FAR_LINES (EBB_FAR_SLOTS / EBB_FAR_LINE)  /* lines of a section, at most 8 */
#define EBB_FAR_WHOLE_CLASS EBB_FAR_SECTION_ORDER     /* class of an extent that is a section */

#define EBB_FAR_ARENA_SECTIONS 512                    /* of an arena, at most: 1 GiB */
#define EBB_FAR_EXTENT_SECTIONS EBB_FAR_WINDOW        /* of an extent, at most: 128 MiB */

/* Owners: members are 1 to EBB_FAR_MEMBERS. */
#define EBB_FAR_NONE 0
#define EBB_FAR_MEMBERS 256
#define EBB_FAR_DONOR 0xfffe
/* Of slot words without a slot: the section is not OPEN, or its class has fewer slots. */
#define EBB_FAR_CLOSED 0xffff

/*
 * A section word: state 3 | class 5 | owner 16 | generation 40, from the highest bit on.
 *
 *   FREE     all slot words are closed
 *   WHOLE    all slot words are closed; the owner has the section
 *   OPENING  the owner opens slot words of the class
 *   OPEN     slots of the class are allocated and freed by their words alone
 *   CLOSING  the owner closes free slot words; slots may still be in use
 *
 * Class 0 and owner 0 where the state has none.
 */
enum ebb_far_state {
	EBB_FAR_FREE,
	EBB_FAR_WHOLE,
	EBB_FAR_OPENING,
	EBB_FAR_OPEN,
	EBB_FAR_CLOSING,
};

#define EBB_FAR_SECTION_BITS 40
#define EBB_FAR_SECTION_LAST ((1ull << EBB_FAR_SECTION_BITS) - 1)

/* A slot word: owner 16 | class 4 | generation 44. */
#define EBB_FAR_SLOT_BITS 44
#define EBB_FAR_SLOT_LAST ((1ull << EBB_FAR_SLOT_BITS) - 1)

static inline __u64 ebb_far_section(enum ebb_far_state state, __u32 class, __u32 owner,
				    __u64 generation)
{
	return (__u64)state << 61 | (__u64)(class & 31) << 56 | (__u64)(owner & 0xffff) << 40 |
	       (generation & EBB_FAR_SECTION_LAST);
}

/* Returns a number of 3 bits, which may be no enum ebb_far_state. */
static inline __u32 ebb_far_section_state(__u64 word)
{
	return (__u32)(word >> 61);
}

static inline __u32 ebb_far_section_class(__u64 word)
{
	return (__u32)(word >> 56) & 31;
}

static inline __u32 ebb_far_section_owner(__u64 word)
{
	return (__u32)(word >> 40) & 0xffff;
}

static inline __u64 ebb_far_section_generation(__u64 word)
{
	return word & EBB_FAR_SECTION_LAST;
}

static inline __u64 ebb_far_slot(__u32 owner, __u32 class, __u64 generation)
{
	return (__u64)(owner & 0xffff) << 48 | (__u64)(class & 15) << 44 |
	       (generation & EBB_FAR_SLOT_LAST);
}

static inline __u32 ebb_far_slot_owner(__u64 word)
{
	return (__u32)(word >> 48);
}

static inline __u32 ebb_far_slot_class(__u64 word)
{
	return (__u32)(word >> 44) & 15;
}

static inline __u64 ebb_far_slot_generation(__u64 word)
{
	return word & EBB_FAR_SLOT_LAST;
}

/* Returns the smallest class that holds @bytes: above EBB_FAR_WHOLE_CLASS if a section does not. */
static inline __u32 ebb_far_class(__u64 bytes)
{
	return bytes <= EBB_PAGE ? 0 : 64 - (__u32)__builtin_clzll((bytes - 1) >> EBB_PAGE_SHIFT);
}

/* Returns the bytes of an extent of @class, at most EBB_FAR_WHOLE_CLASS. */
static inline __u64 ebb_far_bytes(__u32 class)
{
	return (__u64)EBB_PAGE << class;
}

/* Returns how many slots of @class a section has. */
static inline __u32 ebb_far_slots(__u32 class)
{
	return EBB_FAR_SLOTS >> class;
}

/* Returns how many lines have words of slots of @class. */
static inline __u32 ebb_far_lines(__u32 class)
{
	return (ebb_far_slots(class) + EBB_FAR_LINE - 1) / EBB_FAR_LINE;
}

/*
 * Pages and words of a section: word n belongs to the page whose number is n with its bits in
 * reverse order.  The word depends on the address alone, so its generation names the address in
 * all classes; and the words of the slots of a class are 0 to ebb_far_slots() - 1 without gaps.
 * The function is its own inverse.
 */
static inline __u32 ebb_far_page_of(__u32 word)
{
	word = (word & 0x5555) << 1 | (word >> 1 & 0x5555);
	word = (word & 0x3333) << 2 | (word >> 2 & 0x3333);
	word = (word & 0x0f0f) << 4 | (word >> 4 & 0x0f0f);
	word = (word & 0x00ff) << 8 | (word >> 8 & 0x00ff);
	return word >> (16 - EBB_FAR_SECTION_ORDER);
}

static inline __u32 ebb_far_word_of(__u32 page)
{
	return ebb_far_page_of(page);
}

/*
 * The name of an extent of at most a section, 16 bytes.  An extent larger than a section has an
 * array of names, of consecutive sections.
 */
struct ebb_far_name {
	__u32 section;    /* number in the arena */
	__u16 word;       /* 0 for a whole section */
	__u8 class;       /* up to EBB_FAR_WHOLE_CLASS */
	__u8 held;        /* of the operation in flight: whether the member owns it now */
	__u64 generation; /* of the section word for a whole section, else of the slot word */
};

/* Returns the offset in the arena, in bytes, of what @n names. */
static inline __u64 ebb_far_address(const struct ebb_far_name *n)
{
	return ((__u64)n->section << EBB_FAR_SECTION_SHIFT) +
	       ((__u64)ebb_far_page_of(n->word) << EBB_PAGE_SHIFT);
}

/*
 * A member's record, 64 bytes, in arena 0 alone, which the donor alone writes, but .published.  A
 * number is reused only after the fence and the recovery of the member that had it.
 */
enum ebb_far_member_state {
	EBB_FAR_VACANT,
	EBB_FAR_LIVE,
	EBB_FAR_AWAY,      /* silent, in its grace period */
	EBB_FAR_DEAD,      /* fenced, or to be fenced: its extents are being recovered */
};

struct ebb_far_member {
	__u32 state;       /* enum ebb_far_member_state */
	__u32 incarnation; /* raised each time that the number is given to a member */
	__u64 notify;      /* last word of a NOTIFY */
	__u64 published;   /* the member's: others find it here; the donor zeroes it at recovery */
	__u64 unused[5];
};

/* At offset 0 of the arena.  A client uses the number of sections of its grant, not this one. */
#define EBB_FAR_MAGIC 0x3130726166626265ull /* "ebbfar01" */
struct ebb_far_header {
	__u64 magic;
	__u64 pool;        /* the pool's random identity */
	__u32 arena;       /* number in the pool */
	__u32 sections;
	__u64 unused[5];
};

/*
 * The table, offsets in bytes from the arena's start: header (a page), members, section words, hint
 * words (one per section), and from the next page on the slot words, EBB_FAR_SLOTS a section.  It
 * takes 152 KiB of 64 MiB.  The pages that hold it are owned by EBB_FAR_DONOR.
 *
 * Byte n of a hint word estimates the free slots of line n of the section: 0 none, h = 2^(h-1) at
 * least.  Any member may WRITE it; a wrong hint costs time, never memory.
 */
#define EBB_FAR_MEMBERS_AT EBB_PAGE
#define EBB_FAR_SECTIONS_AT (EBB_FAR_MEMBERS_AT + EBB_FAR_MEMBERS * 64ul)

/* Returns the offset of the published word of member @number. */
static inline __u64 ebb_far_published_at(__u32 number)
{
	return EBB_FAR_MEMBERS_AT + (number - 1) * 64ul +
	       __builtin_offsetof(struct ebb_far_member, published);
}

static inline __u64 ebb_far_section_at(__u32 section)
{
	return EBB_FAR_SECTIONS_AT + 8ul * section;
}

static inline __u64 ebb_far_hint_at(__u32 sections, __u32 section)
{
	return ebb_far_section_at(sections) + 8ul * section;
}

static inline __u64 ebb_far_slot_at(__u32 sections, __u32 section, __u32 word)
{
	__u64 end = ebb_far_hint_at(sections, sections);

	return ((end + EBB_PAGE - 1) & ~(EBB_PAGE - 1ull)) +
	       8ul * ((__u64)section * EBB_FAR_SLOTS + word);
}

/* Returns the table's size in bytes, a multiple of a page. */
static inline __u64 ebb_far_table(__u32 sections)
{
	__u64 end = ebb_far_slot_at(sections, sections, 0);

	return (end + EBB_PAGE - 1) & ~(EBB_PAGE - 1ull);
}

#endif
