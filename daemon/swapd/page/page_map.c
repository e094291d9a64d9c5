// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include <ebb/page.h>
#include "bits.h"
#include "page_map.h"
#include "shared.h"

#define WORDS (EBB_PAGE / sizeof(uint64_t))

/* --- the tables, one behind the other --------------------------------------------- */

enum { WRITTEN, SAME_FILLED, STALE, STORED /* of the first replica */ };

static uint64_t *bits(const struct page_map *m, int table)
{
	return (uint64_t *)m->table + table * m->words;
}

static uint64_t *stored(const struct page_map *m, int replica)
{
	return bits(m, STORED + replica);
}

/* One bit per slab. */
static uint64_t *emptied(const struct page_map *m)
{
	return bits(m, STORED + PAGE_MAP_REPLICAS);
}

/* One per page: the word that a same-filled page repeats. */
static uint64_t *word(const struct page_map *m)
{
	return emptied(m) + bits_words(m->slabs);
}

static uint32_t *live(const struct page_map *m)
{
	return (uint32_t *)(word(m) + m->pages);
}

static uint32_t slabs_of(uint32_t pages, uint32_t slab_pages)
{
	return (uint32_t)(((uint64_t)pages + slab_pages - 1) / slab_pages);
}

size_t page_map_size(uint32_t pages, uint32_t slab_pages)
{
	uint32_t slabs = slabs_of(pages, slab_pages);
	size_t words = bits_words(pages) * (size_t)(STORED + PAGE_MAP_REPLICAS) +
		       bits_words(slabs) + pages;

	return sizeof(struct page_map) + words * sizeof(uint64_t) + slabs * sizeof(uint32_t);
}

void page_map_init(struct page_map *m, uint32_t pages, uint32_t slab_pages, bool backup)
{
	*m = (struct page_map){ .pages = pages, .slab_pages = slab_pages,
				.slabs = slabs_of(pages, slab_pages),
				.backup = backup,
				.words = bits_words(pages) };
}

struct page_map *page_map_new(uint32_t pages, uint32_t slab_pages, bool backup)
{
	struct page_map *m = shared_new(page_map_size(pages, slab_pages));

	if (m)
		page_map_init(m, pages, slab_pages, backup);
	return m;
}

void page_map_free(struct page_map **m)
{
	if (*m)
		shared_free(*m, page_map_size((*m)->pages, (*m)->slab_pages));
	*m = NULL;
}

/* --- questions -------------------------------------------------------------------- */

static bool is(const struct page_map *m, int table, uint32_t page)
{
	return bits_test(bits(m, table), page);
}

static bool is_live(const struct page_map *m, uint32_t page)
{
	return is(m, WRITTEN, page) && !is(m, SAME_FILLED, page);
}

static uint8_t stored_at(const struct page_map *m, uint32_t page, uint8_t among)
{
	uint8_t at = 0;

	for (int c = 0; c < PAGE_MAP_REPLICAS; c++)
		at |= (uint8_t)((among >> c & 1 && bits_test(stored(m, c), page)) << c);
	return at;
}

static struct page_run home_of(const struct page_map *m, uint32_t page, uint8_t up, uint8_t away)
{
	uint8_t at = stored_at(m, page, up);
	bool stale = is(m, STALE, page);

	if (at)
		return (struct page_run){ PAGE_REPLICA, at, 0 };
	if (!is(m, WRITTEN, page))
		return (struct page_run){ PAGE_ZERO, 0, 0 };
	if (is(m, SAME_FILLED, page))
		return (struct page_run){ PAGE_SAME_FILLED, 0, 0 };
	if (m->backup && !stale)
		return (struct page_run){ PAGE_BACKUP, 0, 0 };
	at = stored_at(m, page, away);
	if (at)
		return (struct page_run){ PAGE_AWAY, at, 0 };
	return (struct page_run){ m->backup ? PAGE_BACKUP_STALE : PAGE_NOWHERE, 0, 0 };
}

struct page_run page_map_find(const struct page_map *m, uint32_t page, uint32_t most, uint8_t up,
			      uint8_t away)
{
	/* The last table that each home depends on, except the tables of replicas. */
	static const int last[] = {
		[PAGE_ZERO] = WRITTEN, [PAGE_SAME_FILLED] = SAME_FILLED, [PAGE_REPLICA] = -1,
		[PAGE_BACKUP] = STALE, [PAGE_BACKUP_STALE] = STALE, [PAGE_AWAY] = STALE,
		[PAGE_NOWHERE] = SAME_FILLED,
	};
	struct page_run run = home_of(m, page, up, away);
	uint32_t left = m->slab_pages - page % m->slab_pages;
	uint8_t asked = up | (run.home > PAGE_BACKUP ? away : 0);

	run.count = most < left ? most : left;
	for (int table = WRITTEN; table <= last[run.home]; table++)
		run.count = bits_run(bits(m, table), page, run.count);
	for (int c = 0; c < PAGE_MAP_REPLICAS; c++)
		if (asked >> c & 1)
			run.count = bits_run(stored(m, c), page, run.count);
	return run;
}

/* Returns the mask of the 64 pages from @at * 64 on that @replica lacks. */
static uint64_t lacking(const struct page_map *m, uint32_t at, int replica)
{
	uint64_t lack = replica == PAGE_MAP_BACKUP ? bits(m, STALE)[at] : ~stored(m, replica)[at];

	return bits(m, WRITTEN)[at] & ~bits(m, SAME_FILLED)[at] & lack;
}

/* Counts live pages among @n from @first on that the backup failed to store. */
static uint64_t count_stale(const struct page_map *m, uint32_t first, uint32_t n)
{
	uint32_t end = first + n, run;
	uint64_t stale = 0;

	for (uint32_t page = first; page < end; page += run) {
		uint64_t lack = lacking(m, page / 64, PAGE_MAP_BACKUP) >> page % 64;

		run = 64 - page % 64;
		if (run > end - page) {
			run = end - page;
			lack &= (1ull << run) - 1;
		}
		stale += (uint64_t)__builtin_popcountll(lack);
	}
	return stale;
}

uint32_t page_map_lacking(const struct page_map *m, uint32_t page, uint32_t most, int replica)
{
	uint32_t n = 0;

	while (n < most && lacking(m, (page + n) / 64, replica) >> (page + n) % 64 & 1)
		n++;
	return n;
}

uint32_t page_map_next_lacking(const struct page_map *m, uint32_t slab, uint32_t from, int replica)
{
	uint32_t first = slab * m->slab_pages, end = first + page_map_slab_pages(m, slab), page;

	for (page = first + from; page < end;) {
		uint64_t lack = lacking(m, page / 64, replica) >> page % 64;

		if (lack & 1)
			return page - first;
		page += lack ? (uint32_t)__builtin_ctzll(lack) : 64 - page % 64;
	}
	return end - first;
}

bool page_map_is_stale(const struct page_map *m, uint32_t first, uint32_t n)
{
	return bits_count(bits(m, STALE), first, n);
}

static bool is_only(const struct page_map *m, uint32_t page, int replica, uint8_t others)
{
	return bits_test(stored(m, replica), page) && (!m->backup || is(m, STALE, page)) &&
	       !stored_at(m, page, others & (uint8_t)~(1u << replica));
}

bool page_map_is_only(const struct page_map *m, uint32_t slab, int replica, uint8_t others)
{
	uint32_t first = slab * m->slab_pages, end = first + page_map_slab_pages(m, slab);

	for (uint32_t page = first; page < end; page++)
		if (is_only(m, page, replica, others))
			return true;
	return false;
}

uint32_t page_map_count_only(const struct page_map *m, uint32_t slab, int replica, uint8_t others)
{
	uint32_t first = slab * m->slab_pages, end = first + page_map_slab_pages(m, slab), n = 0;

	for (uint32_t page = first; page < end; page++)
		n += is_only(m, page, replica, others);
	return n;
}

bool page_map_is_stored(const struct page_map *m, uint32_t page, uint8_t replicas)
{
	return stored_at(m, page, replicas);
}

uint32_t page_map_live(const struct page_map *m, uint32_t slab)
{
	return __atomic_load_n(&live(m)[slab], __ATOMIC_RELAXED);
}

uint32_t page_map_count_stored(const struct page_map *m, uint32_t slab, int replica)
{
	return replica < PAGE_MAP_REPLICAS ? bits_count(stored(m, replica), slab * m->slab_pages,
						  page_map_slab_pages(m, slab)) : 0;
}

uint32_t page_map_next_emptied(const struct page_map *m, uint32_t from)
{
	if (from >= m->slabs || bits_test(emptied(m), from))
		return from;
	return from + bits_run(emptied(m), from, m->slabs - from);
}

/* --- same-filled pages ------------------------------------------------------------ */

static bool repeats(const uint64_t *page)
{
	for (size_t i = 1; i < WORDS; i++)
		if (page[i] != page[0])
			return false;
	return true;
}

uint64_t page_map_same_filled(const uint8_t *payload, uint32_t count)
{
	uint64_t same = 0;

	for (uint32_t i = 0; i < count; i++)
		if (repeats((const void *)(payload + i * (size_t)EBB_PAGE)))
			same |= 1ull << i;
	return same;
}

void page_map_fill(const struct page_map *m, uint32_t page, uint32_t count, uint8_t *to)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t *words = (void *)(to + i * (size_t)EBB_PAGE);

		for (size_t w = 0; w < WORDS; w++)
			words[w] = word(m)[page + i];
	}
}

/* --- changes ---------------------------------------------------------------------- */

static void set_live(struct page_map *m, uint32_t page, bool was, bool is)
{
	uint32_t slab = page / m->slab_pages;

	live(m)[slab] += (uint32_t)is - (uint32_t)was;
	m->live += (uint64_t)is - (uint64_t)was;
	if (bits_test(bits(m, STALE), page))
		m->stale += (uint64_t)is - (uint64_t)was;
	if (was && !live(m)[slab])
		bits_set(emptied(m), slab, 1);
}

static void forget_stored(struct page_map *m, uint32_t first, uint32_t n)
{
	for (int c = 0; c < PAGE_MAP_REPLICAS; c++)
		bits_clear(stored(m, c), first, n);
}

void page_map_write(struct page_map *m, const struct page_write *w)
{
	for (uint32_t i = 0; i < w->count; i++) {
		uint32_t page = w->first + i;
		bool same = w->same_filled >> i & 1;

		set_live(m, page, is_live(m, page), !same);
		bits_set(bits(m, WRITTEN), page, 1);
		if (same) {
			memcpy(&word(m)[page], w->payload + i * (size_t)EBB_PAGE, sizeof(uint64_t));
			bits_set(bits(m, SAME_FILLED), page, 1);
			forget_stored(m, page, 1);
		} else {
			bits_clear(bits(m, SAME_FILLED), page, 1);
		}
	}
}

void page_map_stored(struct page_map *m, int replica, uint32_t first, uint32_t n)
{
	bits_set(stored(m, replica), first, n);
}

void page_map_bad(struct page_map *m, int replica, uint32_t first, uint32_t n)
{
	bits_clear(stored(m, replica), first, n);
}

/* For other threads, too. */
static void count_gone(struct page_map *m)
{
	__atomic_store_n(&m->gone, m->gone + 1, __ATOMIC_RELEASE);
}

void page_map_backed(struct page_map *m, uint32_t first, uint32_t n, int result)
{
	m->stale -= count_stale(m, first, n);
	if (result < 0) {
		bits_set(bits(m, STALE), first, n);
		count_gone(m);
	} else {
		bits_clear(bits(m, STALE), first, n);
	}
	m->stale += count_stale(m, first, n);
}

void page_map_replica_gone(struct page_map *m, uint32_t slab, int replica)
{
	if (replica < PAGE_MAP_REPLICAS)
		bits_clear(stored(m, replica), slab * m->slab_pages, page_map_slab_pages(m, slab));
	count_gone(m);
}

void page_map_discard(struct page_map *m, uint32_t first, uint32_t n)
{
	for (uint32_t run, page = first; page < first + n; page += run) {
		run = bits_run(bits(m, WRITTEN), page, first + n - page);
		if (!is(m, WRITTEN, page))
			continue;
		for (uint32_t i = page; i < page + run; i++)
			set_live(m, i, is_live(m, i), false);
		forget_stored(m, page, run);
		bits_clear(bits(m, SAME_FILLED), page, run);
		/* Last: until then a successor discards the pages again. */
		shared_order();
		bits_clear(bits(m, WRITTEN), page, run);
	}
}

void page_map_lose(struct page_map *m, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++)
		set_live(m, i, is_live(m, i), true);
	forget_stored(m, first, n);
	bits_set(bits(m, WRITTEN), first, n);
	bits_clear(bits(m, SAME_FILLED), first, n);
	page_map_backed(m, first, n, -EIO);
}

void page_map_recount(struct page_map *m)
{
	m->live = 0;
	m->stale = count_stale(m, 0, m->pages);
	for (uint32_t slab = 0; slab < m->slabs; slab++) {
		live(m)[slab] = bits_count_without(bits(m, WRITTEN), bits(m, SAME_FILLED),
						   slab * m->slab_pages,
						   page_map_slab_pages(m, slab));
		m->live += live(m)[slab];
	}
}

void page_map_note_emptied(struct page_map *m, uint32_t slab)
{
	bits_set(emptied(m), slab, 1);
}

void page_map_forget_emptied(struct page_map *m, uint32_t slab)
{
	bits_clear(emptied(m), slab, 1);
}
