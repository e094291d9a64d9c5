/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The list of a process's twins at one donor, by which others find them: hash tables in extents of
 * the process there.  The place of the last one is in the process's desk at the home donor, and in
 * the word that the process publishes elsewhere; each has the place of the one before.  Words are
 * little-endian.
 *
 * An entry that is read while it changes, or in memory that is another's by now, leads to a place
 * that has not the header that is looked for; or to a twin that was given up and not freed yet,
 * whose headers have the names of its values, as in every twin.
 */
#ifndef EBBDSM_TWIN_H
#define EBBDSM_TWIN_H

#include "desk.h"
#include "link.h"

#define TWIN_VERSION 2u
#define TWIN_MAGIC 0x316e697774626265ull /* "ebbtwin1" */
/* Entries from the one that a key's hash says; it is in one of them. */
#define TWIN_WINDOW 16u
/* Tables of a list. */
#define TWIN_TABLES 16u

struct twin_head {
	uint64_t magic, check;
	uint64_t entries;
	uint32_t member[DESK_DONORS]; /* the process's numbers */
	uint64_t next;                /* place of a table that was full before; 0 = none */
};

struct twin_entry {
	uint64_t key;   /* twin_key(); 0 = unused */
	uint64_t place; /* of the twin */
};

struct twin_table {
	struct ebbfar_extent x; /* .size 0 = none */
	struct twin_entry *entry;
	uint32_t entries;
};

/* This process's at a donor. */
struct twin_list {
	struct twin_table table[TWIN_TABLES]; /* all but the last are full */
	uint32_t tables;
	bool is_growing; /* a call waits for its donor; others only remove */
};

/* Returns the key of the extent of place @at. */
static inline uint64_t twin_key(uint64_t at)
{
	struct name n;

	/* Units are at least one, so no key is 0. */
	if (!name_parse(at, 0, NAME_DONORS, &n))
		return 0;
	return name_make(n.donor, n.member, &n.x, 0, n.kind, 2 * name_unit(n.kind));
}

/* Returns the first entry of a table of @entries that a key may have. */
static inline uint32_t twin_first(uint64_t key, uint32_t entries)
{
	uint64_t x = (key >> 15) * 0x9e3779b97f4a7c15ull;

	x = (x ^ key ^ x >> 32) * 0xd6e8feb86659fd93ull;
	return (uint32_t)((x >> 32) * (entries - TWIN_WINDOW + 1) >> 32);
}

/* Returns whether what was read at @place is a list's head. */
static inline bool twin_is_head(const struct twin_head *h, uint64_t place)
{
	uint64_t bytes = sizeof(*h) + h->entries * sizeof(struct twin_entry);

	return h->magic == TWIN_MAGIC && h->check == desk_check(place, TWIN_MAGIC) &&
	       h->entries >= TWIN_WINDOW && bytes <= EBBFAR_EXTENT_MOST &&
	       !(bytes & (bytes - 1)) && bytes >= EBBFAR_EXTENT_LEAST;
}

/* Where a list's place is told, and the lock of lists. */
struct twin_told {
	struct link *links, *home; /* of donor 0, others follow */
	uint32_t donors;
	struct ebbfar_extent desk; /* .size 0 = none */
	pthread_mutex_t *lock;
	pthread_cond_t *changed;   /* a list has grown, or what heap.h says */
	uint32_t later;            /* donors that link_later() has something for, a bit each */
};

/* Gives the lock up, then sends what was posted with it held. */
void twin_unlock(struct twin_told *t);
/* Posts as link_later(), for twin_unlock(). */
int twin_later(struct twin_told *t, struct link *l, uint32_t op, const struct ebbfar_extent *x,
	       uint32_t offset, const void *from, size_t bytes);

/*
 * Says that the twin of @key is at @place, before what follows at that donor.  Gives the lock up
 * while a list grows.  -ENOSPC, -ENOMEM, -EIO; -EOPNOTSUPP: the donor is too old.
 */
int twin_list_add(struct twin_list *list, struct link *l, struct twin_told *t, uint64_t key,
		  uint64_t place);
/* ... that there is none, without waiting. */
void twin_list_remove(struct twin_list *list, struct link *l, struct twin_told *t, uint64_t key);
void twin_list_end(struct twin_list *list);

#endif
