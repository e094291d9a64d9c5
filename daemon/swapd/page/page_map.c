// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "bits.h"
#include "page_map.h"
#include "shared.h"
#include "swapd/swapd.h"

#define WORDS (PAGE / sizeof(uint64_t))

int pages_init(struct swapd *s, int copies, struct error *e)
{
	size_t size = bits_words(s->pages) * sizeof(uint64_t);
	bool ok;

	s->written = shared_new(size);
	s->spoilt = shared_new(size);
	s->same = shared_new(size);
	s->word = shared_new(s->pages * sizeof(*s->word));
	s->emptied = shared_new(bits_words(s->table.count) * sizeof(uint64_t));
	ok = s->written && s->spoilt && s->same && s->word && s->emptied;
	for (int c = 0; c < copies; c++) {
		s->valid[c] = shared_new(size);
		ok = ok && s->valid[c];
	}
	return ok ? 0 : fail(e, ENOMEM, "device %s: no memory for its tables", s->options.name);
}

void pages_free(struct swapd *s)
{
	size_t size = bits_words(s->pages) * sizeof(uint64_t);

	shared_free(s->written, size);
	shared_free(s->spoilt, size);
	shared_free(s->same, size);
	shared_free(s->word, s->pages * sizeof(*s->word));
	shared_free(s->emptied, bits_words(s->table.count) * sizeof(uint64_t));
	for (int c = 0; c < SLAB_COPIES; c++)
		shared_free(s->valid[c], size);
}

static bool is_same(const uint64_t *page)
{
	for (size_t i = 1; i < WORDS; i++)
		if (page[i] != page[0])
			return false;
	return true;
}

void pages_look(struct slot *slot)
{
	slot->same = 0;
	for (uint32_t i = 0; i < slot->count; i++)
		if (is_same((const void *)(slot->payload + i * (size_t)PAGE)))
			slot->same |= 1ull << i;
}

/* No copy has @page's newest content. */
static void forget(struct swapd *s, uint32_t page)
{
	for (int c = 0; c < SLAB_COPIES && s->valid[c]; c++)
		bits_clear(s->valid[c], page, 1);
}

static void set_live(struct swapd *s, uint32_t page, bool was, bool is)
{
	struct slab *slab = slab_of_page(&s->table, page);

	slab->live += (uint32_t)is - (uint32_t)was;
	s->live += (uint64_t)is - (uint64_t)was;
	if (was && !slab->live)
		bits_set(s->emptied, page / s->table.pages, 1);
}

static bool is_live(const struct swapd *s, uint32_t page)
{
	return bits_test(s->written, page) && !bits_test(s->same, page);
}

void pages_write(struct swapd *s, const struct slot *slot)
{
	for (uint32_t i = 0; i < slot->count; i++) {
		uint32_t page = slot->first + i;
		bool same = slot->same >> i & 1;

		set_live(s, page, is_live(s, page), !same);
		bits_set(s->written, page, 1);
		if (same) {
			memcpy(&s->word[page], slot->payload + i * (size_t)PAGE, sizeof(*s->word));
			bits_set(s->same, page, 1);
			forget(s, page);
		} else {
			bits_clear(s->same, page, 1);
		}
	}
}

void pages_lose(struct swapd *s, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++) {
		set_live(s, i, is_live(s, i), true);
		forget(s, i);
	}
	bits_set(s->written, first, count);
	bits_clear(s->same, first, count);
	bits_set(s->spoilt, first, count);
}

void pages_discard(struct swapd *s, uint32_t first, uint32_t count)
{
	for (uint32_t n, page = first; page < first + count; page += n) {
		n = bits_run(s->written, page, first + count - page);
		if (!bits_test(s->written, page))
			continue;
		for (uint32_t i = page; i < page + n; i++)
			set_live(s, i, is_live(s, i), false);
		for (int c = 0; c < SLAB_COPIES && s->valid[c]; c++)
			bits_clear(s->valid[c], page, n);
		bits_clear(s->same, page, n);
		/* Last: by it a successor finds what is to be done again. */
		shared_order();
		bits_clear(s->written, page, n);
	}
}

enum page_source pages_source(const struct swapd *s, uint32_t page, int *copy)
{
	const struct slab *slab = slab_of_page(&s->table, page);
	uint64_t best = UINT64_MAX, latency;
	const struct donor *d;

	*copy = -1;
	for (int c = 0; c < SLAB_COPIES; c++) {
		if (slab->copy[c].state != COPY_MAPPED || !bits_test(s->valid[c], page))
			continue;
		d = &s->donors[slab->copy[c].donor];
		/* One that is to be quarantined comes last. */
		latency = d->latency + (d->leaving & DONOR_SUSPECT ? UINT64_MAX / 2 : 0);
		if (latency < best) {
			best = latency;
			*copy = c;
		}
	}
	if (*copy >= 0)
		return PAGE_COPY;
	if (!bits_test(s->written, page))
		return PAGE_ZERO;
	if (bits_test(s->same, page))
		return PAGE_SAME;
	if (!backup_there(&s->backup))
		return PAGE_NOWHERE;
	if (bits_test(s->spoilt, page) && !backup_pending(&s->backup))
		return PAGE_NOWHERE;
	return PAGE_BACKUP;
}

uint32_t pages_run(const struct swapd *s, uint32_t page, uint32_t count,
		   enum page_source source, int copy)
{
	bool spoilt = source == PAGE_BACKUP && bits_test(s->spoilt, page);
	uint32_t n = 1;
	int other;

	if (source == PAGE_COPY)
		return bits_run(s->valid[copy], page, count);
	while (n < count && pages_source(s, page + n, &other) == source &&
	       (source != PAGE_BACKUP || bits_test(s->spoilt, page + n) == spoilt))
		n++;
	return n;
}

void pages_fill(const struct swapd *s, uint32_t page, uint32_t count, uint8_t *to)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t *words = (void *)(to + i * (size_t)PAGE);

		for (size_t w = 0; w < WORDS; w++)
			words[w] = s->word[page + i];
	}
}

bool pages_lacks(const struct swapd *s, uint32_t page, int copy)
{
	return is_live(s, page) && (copy == FILL_BACKUP ? bits_test(s->spoilt, page) :
							  !bits_test(s->valid[copy], page));
}
