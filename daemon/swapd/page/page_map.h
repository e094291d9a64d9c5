/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where each page of the device is: one flat piece of memory without pointers, which the
 * processes of a device share, so that it outlives a server.  The loop thread alone changes
 * it, and it is right after every store; the control thread counts.
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
	PAGE_MAP_REPLICAS = 4, /* of a slab, at most */
	PAGE_MAP_BACKUP = PAGE_MAP_REPLICAS, /* as a replica: the backup */
};

enum page_home {
	PAGE_ZERO,
	PAGE_SAME_FILLED,
	PAGE_REPLICA,
	PAGE_BACKUP,
	PAGE_BACKUP_STALE, /* the backup failed to take it; a newer write may be queued there */
	PAGE_AWAY,         /* only at a replica that its donor has yet to confirm */
	PAGE_NOWHERE,
};

/* @count pages in a row, all of one slab, with one home. */
struct page_run {
	enum page_home home;
	uint8_t replicas; /* PAGE_REPLICA, PAGE_AWAY: those that have them, a bit each */
	uint32_t count;
};

struct page_map {
	uint32_t pages, slab_pages, slabs;
	uint8_t replicas;
	bool backup;      /* there is one */
	uint64_t live;    /* pages */
	uint64_t words;   /* of a table with a bit a page */
	uint64_t table[];
};

/* Bytes of a map; @replicas is PAGE_MAP_REPLICAS at most. */
size_t page_map_size(uint32_t pages, uint32_t slab_pages, int replicas);
/* Makes the map in zeroed memory of that size: no page is written. */
void page_map_init(struct page_map *m, uint32_t pages, uint32_t slab_pages, int replicas,
		   bool backup);
/* Likewise, in new memory that children share; NULL when there is none. */
struct page_map *page_map_new(uint32_t pages, uint32_t slab_pages, int replicas, bool backup);
void page_map_free(struct page_map **m);

/* Pages of @slab; the last one may be shorter. */
static inline uint32_t page_map_slab_pages(const struct page_map *m, uint32_t slab)
{
	uint32_t left = m->pages - slab * m->slab_pages;

	return left < m->slab_pages ? left : m->slab_pages;
}

/*
 * Finds @page and up to @most pages that follow it.  @up has a bit for each replica of its
 * slab that can be read, @away for each that its donor has yet to confirm.
 */
struct page_run page_map_find(const struct page_map *m, uint32_t page, uint32_t most, uint8_t up,
			      uint8_t away);

/* Of @most pages from @page on, how many in a row are live and not stored at @replica. */
uint32_t page_map_lacking(const struct page_map *m, uint32_t page, uint32_t most, int replica);
/* The first page of @slab, from its @from-th on, that @replica lacks; its length if none. */
uint32_t page_map_next_lacking(const struct page_map *m, uint32_t slab, uint32_t from,
			       int replica);
/* Whether the backup failed to take one of the @n pages from @first on. */
bool page_map_is_stale(const struct page_map *m, uint32_t first, uint32_t n);
/* Whether a page of @slab is stored at @replica and neither at @others nor in the backup. */
bool page_map_is_only(const struct page_map *m, uint32_t slab, int replica, uint8_t others);
/* Pages of @slab that are live, and that are stored at @replica. */
uint32_t page_map_live(const struct page_map *m, uint32_t slab);
uint32_t page_map_count_stored(const struct page_map *m, uint32_t slab, int replica);

/* A bit for each of the @count (<= 64) pages at @payload that repeats one word. */
uint64_t page_map_same_filled(const uint8_t *payload, uint32_t count);
/* Writes the words of @count same-filled pages from @page on to @to. */
void page_map_fill(const struct page_map *m, uint32_t page, uint32_t count, uint8_t *to);

struct page_write {
	uint32_t first, count;
	uint64_t same_filled;   /* as page_map_same_filled() says */
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

/* For a successor: counts live pages again, as its predecessor may have died in between. */
void page_map_recount(struct page_map *m);

/*
 * Slabs whose last live page has gone: the first from @from on, or the number of slabs;
 * noted again, for a slab that still has replicas; seen to.
 */
uint32_t page_map_next_emptied(const struct page_map *m, uint32_t from);
void page_map_note_emptied(struct page_map *m, uint32_t slab);
void page_map_forget_emptied(struct page_map *m, uint32_t slab);

#endif
