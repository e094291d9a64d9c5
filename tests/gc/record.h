/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Records what a program does with its heap (RECORDED), object by object, for `make bench-heap`:
 * births, touches and deaths go to the file HEAP_TRACE (daemon/sim/heap_trace.h); with
 * HEAP_REFERENCES=1 references, too, for `ebb-sim heap`.  One thread.
 *
 * No collector runs but a full one each time that HEAP_EVERY (8 MiB) bytes have been allocated: it
 * tells what has died.  A touch of an object that is one of the last RECENT touched is left out.
 */
#ifndef RECORD_H
#define RECORD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "../../daemon/sim/heap_trace.h"

#define RECENT 4
#define RECORD_FRAMES 64
#define RECORD_REACH (UINT64_C(12) << 30)	/* of the heap, below and above its first object */

static struct recorder {
	FILE *file;
	struct heap_trace_head head;
	uint64_t base, high, every, since, alive_bytes, pages;
	uint32_t *number_at;		/* by place / 8: number + 1 */
	uint16_t *in_page;		/* objects */
	uint64_t *places;		/* by number */
	uint32_t *sizes, *seen;
	uint32_t *alive, alive_count, capacity, cycle;
	struct { uint64_t what; bool written; } recent[RECENT];
	unsigned int next_recent;
	uint64_t touched, loader, loaded;	/* places of objects; 0: none */
	bool references;
	struct { const ebbgc_ref_t *slots; size_t count; } frames[RECORD_FRAMES];
	unsigned int frame_count;
} rec;

static void record_fail(const char *what)
{
	fprintf(stderr, "recording: %s\n", what);
	exit(2);
}

static void *record_map(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		record_fail("no address space; set vm.overcommit_memory to 0 or 1");
	return p;
}

static void record_open(void)
{
	const char *path = getenv("HEAP_TRACE"), *every = getenv("HEAP_EVERY");
	static const char head[HEAP_TRACE_HEAD];

	rec.every = every ? strtoull(every, NULL, 10) : UINT64_C(8) << 20;
	rec.references = getenv("HEAP_REFERENCES") != NULL;
	rec.file = path ? fopen(path, "we") : NULL;
	if (!rec.file || fwrite(head, sizeof(head), 1, rec.file) != 1)
		record_fail("cannot write the trace; set HEAP_TRACE to a file");
	rec.number_at = record_map(2 * RECORD_REACH / 8 * sizeof(*rec.number_at));
	rec.in_page = record_map(2 * RECORD_REACH / HEAP_PAGE * sizeof(*rec.in_page));
	rec.places = record_map(HEAP_OBJECTS_MOST * sizeof(*rec.places));
	rec.sizes = record_map(HEAP_OBJECTS_MOST * sizeof(*rec.sizes));
	rec.seen = record_map(HEAP_OBJECTS_MOST * sizeof(*rec.seen));
	rec.alive = record_map(HEAP_OBJECTS_MOST * sizeof(*rec.alive));
	rec.head = (struct heap_trace_head){ .magic = HEAP_TRACE_MAGIC, .low = UINT64_MAX };
}

/* Places count from `base` while recording; replays subtract the head's `low`. */
static void record_put(uint64_t event)
{
	if (fwrite(&event, sizeof(event), 1, rec.file) != 1)
		record_fail("cannot write the trace; free disk space");
	rec.head.events++;
}

static void record_close(void)
{
	rec.head.bytes = rec.high - rec.head.low;
	if (fseek(rec.file, 0, SEEK_SET) || fwrite(&rec.head, sizeof(rec.head), 1, rec.file) != 1 ||
	    fclose(rec.file))
		record_fail("cannot write the trace; free disk space");
}

static uint64_t record_place(const void *object)
{
	return (uint64_t)(uintptr_t)object - 8 - rec.base;
}

static void record_forget_recent(void)
{
	memset(rec.recent, 0, sizeof(rec.recent));
	rec.touched = rec.loader = rec.loaded = 0;
}

/* Is a touch of @what worth an event?  It then is one of the recent ones. */
static bool record_is_news(uint64_t what, bool write)
{
	for (unsigned int i = 0; i < RECENT; i++) {
		if (rec.recent[i].what != what)
			continue;
		if (rec.recent[i].written || !write)
			return false;
		rec.recent[i].written = true;
		return true;
	}
	rec.recent[rec.next_recent].what = what;
	rec.recent[rec.next_recent].written = write;
	rec.next_recent = (rec.next_recent + 1) % RECENT;
	return true;
}

/*
 * A touch of the object at @object, or, if it is large, of its word at @word.  NULL: a pointer to
 * the object is made; the words of a large one that it leads to come apart.
 */
static void record_touch(const void *object, const void *word, bool write)
{
	uint64_t place = record_place(object), at = (uint64_t)(uintptr_t)word - rec.base;
	uint32_t number = rec.number_at[place / 8];
	bool via = place == rec.loaded && rec.touched == rec.loader;

	if (!number)
		record_fail("a touch of what is no object");
	if (heap_is_large(rec.sizes[number - 1]) && !word)
		return;
	rec.touched = place;
	if (heap_is_large(rec.sizes[number - 1])) {
		if (record_is_news(at / HEAP_PAGE * HEAP_PAGE | 1, write))
			record_put(heap_event(write ? HEAP_WRITE_LARGE : HEAP_READ_LARGE,
					      number - 1, at));
	} else if (record_is_news(place, write)) {
		record_put(heap_event(write ? HEAP_WRITE : HEAP_READ, number - 1, place) |
			   (via ? HEAP_VIA : 0));
	}
}

/* A pair: the slot at @place of object @owner, and what it refers to. */
static void record_pair(uint32_t owner, uint64_t place, ebbgc_ref_t value, enum heap_access access)
{
	uint32_t number = 0;

	if (!rec.references)
		return;
	if (ebbgc_is_null(value))
		access = HEAP_CLEARED;
	else
		number = rec.number_at[record_place(ebbgc_ptr(value)) / 8] - 1;
	if (number >= HEAP_OBJECTS_MOST)
		record_fail("a reference to what is no object");
	record_put(heap_event(HEAP_MARK, owner, place) | HEAP_REFERENCE);
	record_put(heap_event(HEAP_MARK, number, (uint64_t)access * 8) | HEAP_REFERENCE);
}

/* @object NULL: the object that the slot is in is searched for. */
static void record_slot(const void *object, const ebbgc_ref_t *slot, ebbgc_ref_t value,
			enum heap_access access)
{
	uint64_t place = (uint64_t)(uintptr_t)slot - rec.base, at = place / 8;

	if (object)
		at = record_place(object) / 8;
	else
		while (at && !rec.number_at[at])
			at--;
	if (!rec.number_at[at])
		record_fail("a slot is outside of objects");
	record_pair(rec.number_at[at] - 1, place, value, access);
}

static void record_roots(void)
{
	if (!rec.references)
		return;
	record_put(heap_event(HEAP_MARK, HEAP_COLLECTED, 0));
	for (unsigned int i = 0; i < rec.frame_count; i++)
		for (size_t k = 0; k < rec.frames[i].count; k++)
			if (!ebbgc_is_null(rec.frames[i].slots[k]))
				record_pair(0, 0, rec.frames[i].slots[k], HEAP_ROOT);
}

static void record_died(uint32_t number)
{
	uint64_t place = rec.places[number], size = rec.sizes[number];

	record_put(heap_event(HEAP_DIED, number, place));
	rec.number_at[place / 8] = 0;
	rec.alive_bytes -= size;
	for (uint64_t page = place / HEAP_PAGE; page <= (place + size - 1) / HEAP_PAGE; page++)
		if (!--rec.in_page[page]) {
			rec.pages--;
			record_put(heap_event(HEAP_DROP, 1, page * HEAP_PAGE));
		}
}

static void record_live(void *arg, ebbgc_ref_t object)
{
	uint32_t number = rec.number_at[record_place(ebbgc_ptr(object)) / 8];

	(void)arg;
	if (!number)
		record_fail("the collector found what is no object");
	rec.seen[number - 1] = rec.cycle;
}

/* Before an allocation: from time to time finds out what has died. */
static void record_collect(ebbgc_mutator_t *c)
{
	uint32_t kept = 0;

	if (rec.since < rec.every)
		return;
	rec.since = 0;
	rec.cycle++;
	if (ebbgc_heap_each(c, record_live, NULL))
		record_fail("no collection");
	for (uint32_t i = 0; i < rec.alive_count; i++) {
		uint32_t number = rec.alive[i];

		if (rec.seen[number] == rec.cycle)
			rec.alive[kept++] = number;
		else
			record_died(number);
	}
	rec.alive_count = kept;
	record_roots();
	record_forget_recent();
}

/* A new object of @bytes bytes, without its header. */
static void record_born(const void *object, uint64_t bytes)
{
	uint64_t size = (bytes + 8 + 7) / 8 * 8, place;
	uint32_t number = (uint32_t)rec.head.objects++;

	if (!rec.base) {
		uint64_t first = (uint64_t)(uintptr_t)object & ~UINT64_C(0xffff);

		rec.base = first > RECORD_REACH ? first - RECORD_REACH : 0;
	}
	place = record_place(object);
	if (size > HEAP_SIZE_MOST || number >= HEAP_OBJECTS_MOST || place >= 2 * RECORD_REACH)
		record_fail("too large; use a smaller -n or fewer rounds");
	if (rec.number_at[place / 8])
		record_fail("an object is born where another lives");
	rec.number_at[place / 8] = number + 1;
	rec.places[number] = place;
	rec.sizes[number] = (uint32_t)size;
	rec.alive[rec.alive_count++] = number;
	rec.since += size;
	rec.alive_bytes += size;
	rec.head.born_bytes += size;
	if (rec.alive_bytes > rec.head.peak_bytes)
		rec.head.peak_bytes = rec.alive_bytes;
	if ((place & ~UINT64_C(0xffff)) < rec.head.low)
		rec.head.low = place & ~UINT64_C(0xffff);
	if (place + size > rec.high)
		rec.high = place + size;
	for (uint64_t page = place / HEAP_PAGE; page <= (place + size - 1) / HEAP_PAGE; page++)
		rec.pages += !rec.in_page[page]++;
	if (rec.pages > rec.head.peak_pages)
		rec.head.peak_pages = rec.pages;
	record_put(heap_born(size, place));
	record_is_news(place, true);
}

static inline ebbgc_ref_t recorded_born(ebbgc_ref_t r, uint64_t bytes)
{
	record_born(ebbgc_ptr(r), bytes);
	return r;
}

static inline void *recorded_ptr(ebbgc_ref_t r)
{
	void *p = ebbgc_ptr(r);

	if (p)
		record_touch(p, NULL, false);
	return p;
}

static inline void *recorded_written(ebbgc_ref_t r)
{
	void *p = ebbgc_ptr(r);

	record_touch(p, NULL, true);
	return p;
}

static inline ebbgc_ref_t recorded_load(ebbgc_mutator_t *c, ebbgc_ref_t object,
					const ebbgc_ref_t *slot)
{
	ebbgc_ref_t r = ebbgc_load(c, object, slot);

	record_touch(ebbgc_ptr(object), slot, false);
	rec.loader = rec.touched;
	rec.loaded = ebbgc_is_null(r) ? 0 : record_place(ebbgc_ptr(r));
	if (rec.loaded)
		record_slot(ebbgc_ptr(object), slot, r, HEAP_LOADED);
	return r;
}

static inline void recorded_store(ebbgc_mutator_t *c, ebbgc_ref_t object, ebbgc_ref_t *slot,
				  ebbgc_ref_t value)
{
	record_touch(ebbgc_ptr(object), slot, true);
	record_slot(ebbgc_ptr(object), slot, value, HEAP_STORED);
	ebbgc_store(c, object, slot, value);
}

/* Of an object that was just born. */
static inline void recorded_init(ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	record_slot(NULL, slot, value, HEAP_STORED);
	ebbgc_init(slot, value);
}

static inline void recorded_push(ebbgc_mutator_t *c, struct ebbgc_frame *frame, ebbgc_ref_t *slots,
				 size_t n)
{
	if (rec.frame_count == RECORD_FRAMES)
		record_fail("too many frames of roots");
	rec.frames[rec.frame_count].slots = slots;
	rec.frames[rec.frame_count++].count = n;
	ebbgc_frame_push(c, frame, slots, n);
}

static inline void recorded_pop(ebbgc_mutator_t *c, struct ebbgc_frame *frame)
{
	rec.frame_count--;
	ebbgc_frame_pop(c, frame);
}

/* What system.h's INIT(), ROOTS() and UNROOT() call. */
#define ebbgc_init(slot, value) recorded_init(slot, value)
#define ebbgc_frame_push(c, frame, slots, n) recorded_push(c, frame, slots, n)
#define ebbgc_frame_pop(c, frame) recorded_pop(c, frame)

#endif
