// SPDX-License-Identifier: GPL-2.0-or-later
/* Where pages are, against a plain table of each page; and what a map says of itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/draw.h"
#include <ebb/page.h>
#include "swapd/page/page_map.h"

#include <cmocka.h>

/* The last slab is shorter; slabs end within words of the tables. */
enum { SLABS = 4, SLAB_PAGES = 100, PAGES = 3 * SLAB_PAGES + 37, REPLICAS = 3, MOST = 64 };

/* What is true of a page. */
struct page {
	bool written, same, stale;
	uint8_t stored;
	uint64_t word;
};

static struct page plain[PAGES];
static uint8_t payload[MOST][EBB_PAGE];
static struct page_map *map;
static uint64_t seed;

static uint32_t draw(uint32_t below)
{
	return draw_below(&seed, below);
}

static enum page_home home_of(const struct page *p, uint8_t up, uint8_t away, bool backup)
{
	if (p->stored & up)
		return PAGE_REPLICA;
	if (!p->written)
		return PAGE_ZERO;
	if (p->same)
		return PAGE_SAME_FILLED;
	if (backup && !p->stale)
		return PAGE_BACKUP;
	if (p->stored & away)
		return PAGE_AWAY;
	return backup ? PAGE_BACKUP_STALE : PAGE_NOWHERE;
}

static void check_find(bool backup)
{
	uint32_t page = draw(PAGES), most = 1 + draw(MOST);
	uint32_t end = (page / SLAB_PAGES + 1) * SLAB_PAGES, last = page + most, n = 0;
	uint8_t up = (uint8_t)draw(1 << REPLICAS), away = (uint8_t)(draw(1 << REPLICAS) & ~up);
	enum page_home home = home_of(&plain[page], up, away, backup);
	struct page_run run;

	end = end < PAGES ? end : PAGES;
	if (last > PAGES)
		most -= last - PAGES;
	run = page_map_find(map, page, most, up, away);
	assert_int_equal(run.home, home);
	if (home == PAGE_REPLICA)
		assert_int_equal(run.replicas, plain[page].stored & up);
	if (home == PAGE_AWAY)
		assert_int_equal(run.replicas, plain[page].stored & away);
	/* All of the run is there, and a run that can be read ends for a reason. */
	assert_in_range(run.count, 1, most);
	for (; n < run.count; n++) {
		assert_true(page + n < end);
		assert_int_equal(home_of(&plain[page + n], up, away, backup), home);
		if (home == PAGE_REPLICA)
			assert_int_equal(plain[page + n].stored & up, run.replicas);
	}
	if (home == PAGE_REPLICA && n < most && page + n < end)
		assert_true((plain[page + n].stored & up) != run.replicas);
}

static bool lacks(const struct page *p, int replica)
{
	return p->written && !p->same &&
	       (replica == PAGE_MAP_BACKUP ? p->stale : !(p->stored >> replica & 1));
}

static void check_slab(uint32_t slab, bool backup)
{
	uint32_t first = slab * SLAB_PAGES, pages = page_map_slab_pages(map, slab), live = 0, from;
	uint8_t others = (uint8_t)draw(1 << REPLICAS);
	int replica = (int)draw(REPLICAS);
	uint32_t stored = 0, only = 0, next;

	for (uint32_t i = 0; i < pages; i++) {
		const struct page *p = &plain[first + i];
		bool has = p->stored >> replica & 1;

		live += p->written && !p->same;
		stored += has;
		only += has && !(p->stored & others & ~(1u << replica)) && (!backup || p->stale);
	}
	assert_int_equal(page_map_live(map, slab), live);
	assert_int_equal(page_map_count_stored(map, slab, replica), stored);
	assert_int_equal(page_map_is_only(map, slab, replica, others), only > 0);
	assert_int_equal(page_map_count_only(map, slab, replica, others), only);
	from = draw(pages);
	replica = draw(2) ? replica : PAGE_MAP_BACKUP;
	for (next = from; next < pages && !lacks(&plain[first + next], replica); next++)
		;
	assert_int_equal(page_map_next_lacking(map, slab, from, replica), next);
	if (next < pages) {
		uint32_t n = 0;

		while (next + n < pages && lacks(&plain[first + next + n], replica))
			n++;
		assert_int_equal(page_map_lacking(map, first + next, pages - next, replica), n);
	}
}

static void change_one(void)
{
	uint32_t first = draw(PAGES), n = 1 + draw(MOST), slab = first / SLAB_PAGES;
	struct page_write w = { .first = first };
	int replica = (int)draw(REPLICAS), what = (int)draw(12), result = draw(2) ? -5 : 0;

	n = n < PAGES - first ? n : PAGES - first;
	w.count = n;
	for (uint32_t i = 0; what < 5 && i < n; i++) {
		uint64_t word = draw(1000);

		for (size_t k = 0; k < EBB_PAGE / 8; k++)
			memcpy(payload[i] + 8 * k, &word, 8);
		if (draw(2))
			payload[i][draw(EBB_PAGE)] ^= 1;
		else
			plain[first + i].word = word;
	}
	if (what < 5) {
		w.payload = payload[0];
		w.same_filled = page_map_same_filled(payload[0], n);
		page_map_write(map, &w);
	} else if (what < 8) {
		page_map_stored(map, replica, first, n);
	} else if (what == 8) {
		page_map_bad(map, replica, first, n);
	} else if (what == 9) {
		page_map_backed(map, first, n, result);
	} else if (what == 10) {
		page_map_discard(map, first, n);
	} else if (draw(4)) {
		page_map_replica_gone(map, slab, replica);
		first = slab * SLAB_PAGES;
		n = page_map_slab_pages(map, slab);
	} else {
		page_map_lose(map, first, n);
		what = 12;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct page *p = &plain[first + i];
		uint8_t bit = (uint8_t)(1u << replica);

		if (what < 5) {
			p->written = true;
			p->same = w.same_filled >> i & 1;
			p->stored = p->same ? 0 : p->stored;
		} else if (what < 8) {
			p->stored |= bit;
		} else if (what == 8 || what == 11) {
			p->stored &= (uint8_t)~bit;
		} else if (what == 9) {
			p->stale = result < 0;
		} else if (what == 10) {
			p->stored = p->written ? 0 : p->stored;
			p->same = p->written ? false : p->same;
			p->written = false;
		} else {
			*p = (struct page){ .written = true, .stale = true };
		}
	}
}

static void check_words(void)
{
	static uint8_t to[EBB_PAGE];

	for (uint32_t i = 0; i < PAGES; i++) {
		if (!plain[i].same)
			continue;
		page_map_fill(map, i, 1, to);
		for (size_t k = 0; k < EBB_PAGE; k += 8)
			assert_memory_equal(to + k, &plain[i].word, 8);
	}
}

static void against_a_plain_table(void **state)
{
	for (int backup = 0; backup < 2; backup++) {
		uint64_t live = 0, stale = 0;

		seed = 7 + (uint64_t)backup;
		memset(plain, 0, sizeof(plain));
		map = page_map_new(PAGES, SLAB_PAGES, backup);
		assert_non_null(map);
		assert_int_equal(map->slabs, SLABS);
		for (int i = 0; i < 20000; i++) {
			change_one();
			check_find(backup);
			check_slab(draw(SLABS), backup);
		}
		check_words();
		for (uint32_t i = 0; i < PAGES; i++) {
			live += plain[i].written && !plain[i].same;
			stale += lacks(&plain[i], PAGE_MAP_BACKUP);
		}
		assert_int_equal(map->live, live);
		assert_int_equal(map->stale, stale);
		assert_true(stale);
		/* A predecessor died in the midst of counting. */
		map->live = map->stale = 1;
		page_map_recount(map);
		assert_int_equal(map->live, live);
		assert_int_equal(map->stale, stale);
		check_slab(0, backup);
		page_map_free(&map);
		assert_null(map);
	}
}

static void emptied_slabs_are_found(void **state)
{
	struct page_write w = { .count = 1, .payload = payload[0] };

	map = page_map_new(PAGES, SLAB_PAGES, false);
	assert_int_equal(page_map_next_emptied(map, 0), SLABS);
	for (uint32_t slab = 0; slab < SLABS; slab++) {
		w.first = slab * SLAB_PAGES;
		page_map_write(map, &w);
	}
	page_map_discard(map, SLAB_PAGES, 1);
	/* A same-filled page is not live. */
	w.first = 3 * SLAB_PAGES;
	w.same_filled = 1;
	page_map_write(map, &w);
	assert_int_equal(page_map_next_emptied(map, 0), 1);
	assert_int_equal(page_map_next_emptied(map, 2), 3);
	page_map_forget_emptied(map, 1);
	assert_int_equal(page_map_next_emptied(map, 0), 3);
	page_map_note_emptied(map, 2);
	assert_int_equal(page_map_next_emptied(map, 0), 2);
	assert_int_equal(page_map_next_emptied(map, SLABS), SLABS);
	page_map_free(&map);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(against_a_plain_table), cmocka_unit_test(emptied_slabs_are_found),
	};

	return cmocka_run_group_tests_name("page_map", tests, NULL, NULL);
}
