/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What is known of each page, and what changes with a write or a discard.
 *
 * A page's newest content is where its bits say:
 *	not written            zeroes, without I/O
 *	same                   its word, over and over
 *	valid, of a copy       at that copy's donor; of several: at each
 *	none, with a backup    in the backup file, or queued for it, unless spoilt
 *	none of these          nowhere: an I/O error, never an old content
 *
 * slab.live counts the pages that are written and not same: those copies are for.
 */
#ifndef EBB_PAGES_H
#define EBB_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"

struct slot;
struct swapd;

enum page_source { PAGE_ZERO, PAGE_SAME, PAGE_COPY, PAGE_BACKUP, PAGE_NOWHERE };

/* Bit tables for s->pages pages, with bits for @copies copies of a slab. */
int pages_init(struct swapd *s, int copies, struct error *e);
void pages_free(struct swapd *s);

/* Finds the pages of the WRITE @slot that are one word over and over: slot->same. */
void pages_look(struct slot *slot);

/*
 * The WRITE @slot, which nothing overlaps, begins: from here on its pages' older
 * contents are gone.  Those that are the same word are done with this.
 */
void pages_write(struct swapd *s, const struct slot *slot);

/* The pages read as zeroes from here on, and copies hold none of them. */
void pages_discard(struct swapd *s, uint32_t first, uint32_t count);

/* The pages' newest content is nowhere: reading them is an error until they are written. */
void pages_lose(struct swapd *s, uint32_t first, uint32_t count);

/*
 * Where @page is read from; PAGE_COPY sets *@copy, to the one that answers
 * fastest.  PAGE_BACKUP of a spoilt page: a newer write may be queued for it.
 */
enum page_source pages_source(const struct swapd *s, uint32_t page, int *copy);

/* How many of the @count pages (of one slab if it is a copy) come from there, too. */
uint32_t pages_run(const struct swapd *s, uint32_t page, uint32_t count,
		   enum page_source source, int copy);

/* Fills @count pages at @to with the words of the same-filled pages from @page on. */
void pages_fill(const struct swapd *s, uint32_t page, uint32_t count, uint8_t *to);

/* Whether copy @copy, or the backup for FILL_BACKUP, is to have @page and has not. */
bool pages_lacks(const struct swapd *s, uint32_t page, int copy);

#endif
