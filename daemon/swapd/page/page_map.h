/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where each page of the device is: one flat piece of memory without pointers, which the
 * processes of a device share, so that it outlives a server.  Only the loop thread changes
 * it, and it is consistent after every store; the control thread counts.
 *
 * A page's newest content is where its bits say:
 *	not written             zeroes, without I/O
 *	same-filled             its word, repeated
 *	stored, at a replica    there; at several: at each
 *	none, with a backup     in the backup file or queued for it, unless it is stale there
 *	none of these           nowhere: an I/O error, never an older content
 *
 * A page that is written and not same-filled is live: replicas are for live pages.  The map
 * knows no donor.  Callers name the replicas that can be read; the engine chooses one.
 */
#ifndef EBB_PAGE_MAP_H
#define EBB_PAGE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	PAGE_MAP_REPLICAS = 7, /* of a slab, at most: masks of them have a bit to spare */
	PAGE_MAP_BACKUP = PAGE_MAP_REPLICAS, /* as a replica: the backup */
};

enum page_home {
	PAGE_ZERO,
	PAGE_SAME_FILLED,
	PAGE_REPLICA,
	PAGE_BACKUP,
	PAGE_BACKUP_STALE, /* the backup failed to store it; a newer write may be queued there */
	PAGE_AWAY,         /* only at a replica that its donor has not confirmed yet */
	PAGE_NOWHERE,
};

/* @count consecutive pages of one slab, with one home. */
struct page_run {
	enum page_home home;
	uint8_t replicas; /* PAGE_REPLICA, PAGE_AWAY: mask of the replicas that have them */
	uint32_t count;
};

struct page_map {
	uint32_t pages, slab_pages, slabs;
	bool backup;      /* there is a backup */
	uint64_t live;    /* pages */
	uint64_t stale;   /* of these, the ones that the backup failed to store */
	uint64_t gone;    /* times that pages lost a replica or the backup */
	uint64_t words;   /* words of a table with a bit per page */
	uint64_t table[];
};

/* Returns the size of a map. */
size_t page_map_size(uint32_t pages, uint32_t slab_pages);
/* Makes the map in zeroed memory of that size: no page is written. */
void page_map_init(struct page_map *m, uint32_t pages, uint32_t slab_pages, bool backup);
/* As page_map_init(), in new memory that children share; NULL without memory. */
struct page_map *page_map_new(uint32_t pages, uint32_t slab_pages, bool backup);
void page_map_free(struct page_map **m);

/* Returns the pages of @slab; the last one may be shorter. */
static inline uint32_t page_map_slab_pages(const struct page_map *m, uint32_t slab)
{
	uint32_t left = m->pages - slab * m->slab_pages;

	return left < m->slab_pages ? left : m->slab_pages;
}

/*
 * Finds the home of @page and of the pages behind it, @most in total.  @up masks the replicas of
 * its slab that can be read, @away those that their donors have yet to confirm.
 */
struct page_run page_map_find(const struct page_map *m, uint32_t page, uint32_t most, uint8_t up,
			      uint8_t away);

/* Returns how many of @most pages from @page on are, in a row, live and not stored at @replica. */
uint32_t page_map_lacking(const struct page_map *m, uint32_t page, uint32_t most, int replica);
/*
 * Returns the first page of @slab, from its @from-th on, that @replica lacks; its length if none.
 */
uint32_t page_map_next_lacking(const struct page_map *m, uint32_t slab, uint32_t from,
			       int replica);
/* Returns whether the backup failed to store one of the @n pages from @first on. */
bool page_map_is_stale(const struct page_map *m, uint32_t first, uint32_t n);
/*
 * Return whether a page of @slab is stored at @replica and neither at @others nor in the backup,
 * and the number of such pages.
 */
bool page_map_is_only(const struct page_map *m, uint32_t slab, int replica, uint8_t others);
uint32_t page_map_count_only(const struct page_map *m, uint32_t slab, int replica, uint8_t others);
/* Returns whether @page is stored at one of @replicas. */
bool page_map_is_stored(const struct page_map *m, uint32_t page, uint8_t replicas);
/* Return the pages of @slab that are live; that are stored at @replica. */
uint32_t page_map_live(const struct page_map *m, uint32_t slab);
uint32_t page_map_count_stored(const struct page_map *m, uint32_t slab, int replica);

/* Returns a mask of those of the @count (<= 64) pages at @payload that repeat one word. */
uint64_t page_map_same_filled(const uint8_t *payload, uint32_t count);
/* Writes the words of @count same-filled pages from @page on to @to. */
void page_map_fill(const struct page_map *m, uint32_t page, uint32_t count, uint8_t *to);

struct page_write {
	uint32_t first, count;
	uint64_t same_filled;   /* as returned by page_map_same_filled() */
	const uint8_t *payload;
};

/*
 * The only ways in which a bit changes.
 *
 * page_map_write: a write that nothing overlaps begins; its pages lose their older content.
 * page_map_stored: @replica has the newest content.
 * page_map_bad: what @replica returned is not the newest content.
 * page_map_backed: the backup has taken the pages, or has failed to with @result < 0.
 * page_map_replica_gone: @replica has no page of @slab.
 * page_map_discard: the pages read as zeroes.
 * page_map_lose: the newest content is nowhere: reading is an error until the next write.
 */
void page_map_write(struct page_map *m, const struct page_write *w);
void page_map_stored(struct page_map *m, int replica, uint32_t first, uint32_t n);
void page_map_bad(struct page_map *m, int replica, uint32_t first, uint32_t n);
void page_map_backed(struct page_map *m, uint32_t first, uint32_t n, int result);
void page_map_replica_gone(struct page_map *m, uint32_t slab, int replica);
void page_map_discard(struct page_map *m, uint32_t first, uint32_t n);
void page_map_lose(struct page_map *m, uint32_t first, uint32_t n);

/* For a successor: recounts pages, as its predecessor may have died in between. */
void page_map_recount(struct page_map *m);

/*
 * Slabs whose last live page was discarded: finds the first from @from on, else the number of
 * slabs; notes one again that still has replicas; forgets one.
 */
uint32_t page_map_next_emptied(const struct page_map *m, uint32_t from);
void page_map_note_emptied(struct page_map *m, uint32_t slab);
void page_map_forget_emptied(struct page_map *m, uint32_t slab);

#endif
