// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "far_image.h"
#include "far_mark.h"
#include "far_queue.h"
#include "far_room.h"
#include "far_trace.h"
#include "forward.h"
#include "leave.h"
#include "mark.h"
#include "named.h"
#include "os.h"

#define SPARE 16u		/* regions: a store that grows by less waits */
#define READ_COST 4096u		/* of a read, beside its bytes */
#define COST_SHARE 8u		/* of what is stored, in reads: more is abandoned; */
#define COST_NEEDED 64u		/* when memory is needed */
#define SPARSE 8u		/* objects are read one by one if they are less than this share */
#define REMARKS 4u		/* pauses that only find more to read, before they read it */
#define PACE 4u			/* times the duration of a far cycle, between two */
#define FAILURES 6u		/* doublings of that, at most */
#define FAILED_NS 250000000u	/* after one that was abandoned, at least, before these */
#define LITTLE 8u		/* freeing less than this share of the store is a failure */

static size_t granule_bytes(const struct ebbgc_heap *h)
{
	return (size_t)h->region_count * REGION_WORDS * sizeof(uint64_t);
}

/* Returns the number of regions that were ever used. */
static uint32_t top_of(const struct ebbgc_heap *h)
{
	return __atomic_load_n(&h->top, __ATOMIC_RELAXED);
}

static uint64_t *words_of(uint64_t *bitmap, uint32_t region)
{
	return bitmap + (size_t)region * REGION_WORDS;
}

static uint64_t word_at(const uint64_t *bitmap, uint32_t region, size_t i)
{
	return __atomic_load_n(&bitmap[(size_t)region * REGION_WORDS + i], __ATOMIC_RELAXED);
}

/* --- 1. begin ------------------------------------------------------------------------------- */

/* Lock held. */
static bool has_grown(const struct ebbgc_heap *h)
{
	const struct far_marking *k = &h->far.marking;
	uint64_t least = k->lived / 2 + SPARE * REGION_SIZE;

	return h->far.left_bytes - k->left >= least << (k->failures < 2 ? k->failures : 2);
}

/* Lock held. */
static bool is_due(const struct ebbgc_heap *h, bool asked)
{
	const struct far_marking *k = &h->far.marking;

	if (!h->far.stored)
		return false;
	if (asked || (h->options.check && h->far.snapshots % 2))
		return true;
	return has_grown(h) || (k->full && os_now() >= k->next_at);
}

static bool tables_make(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;

	if (!k->sent)
		k->sent = os_map(granule_bytes(h));
	if (!k->named)
		k->named = os_map(granule_bytes(h));
	if (!k->holders)
		k->holders = os_map(h->region_count * sizeof(*k->holders));
	if (!k->buffer)
		k->buffer = os_map(REGION_SIZE);
	return k->sent && k->named && k->holders && k->buffer;
}

/* Returns how many bytes the cycle keeps at most, beside those of far.tables. */
static uint64_t tables_bytes(const struct ebbgc_heap *h)
{
	uint64_t bitmap = REGION_WORDS * sizeof(uint64_t), each = 2 * bitmap + sizeof(uint32_t);

	if (h->far.marking.by == FAR_TO_TRACE)
		each += 2 * bitmap + sizeof(struct ebbgc_far_region) + sizeof(bool);
	return top_of(h) * each + REGION_SIZE + FAR_SETS * sizeof(struct ebbgc_far_set);
}

static void tables_count(struct ebbgc_heap *h, uint64_t bytes)
{
	pthread_mutex_lock(&h->lock);
	h->far.marking.tables = bytes;
	pthread_mutex_unlock(&h->lock);
}

/*
 * Clears the marks of a region's objects in the store.  Threads may bring some of these meanwhile:
 * from here on nothing asks for the marks of those.
 */
static void region_clear(struct ebbgc_heap *h, uint32_t region)
{
	uint64_t *marks = words_of(h->marks, region);
	uint64_t *sent = words_of(h->far.marking.sent, region);

	for (size_t i = 0; i < REGION_WORDS; i++) {
		uint64_t in_store = word_at(h->allocated, region, i);

		/* Also what lost its mark when it came back during an earlier cycle, or is dead. */
		sent[i] = ~in_store;
		if (word_at(h->marks, region, i))
			__atomic_fetch_and(&marks[i], ~in_store, __ATOMIC_RELAXED);
	}
	h->far.regions[region].traced = true;
}

/*
 * Asks whether the region's place is lost.  From the cycle's first pause on, which waits for loads,
 * nothing that it has comes back: its objects have no references any more.
 */
static void lost_find(struct ebbgc_heap *h, uint32_t region)
{
	const struct ebbgc_far_store *s = &h->far.store;
	struct far_region *r = &h->far.regions[region];
	const struct far_stored *at = far_stored_of(r);
	int e = s->lost && at->bytes && !r->lost ? s->lost(s->arg, &at->place) : 0;

	if (e >= 0)
		return;
	__atomic_store_n(&r->lost, e, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&h->lock);
	h->far.lost += at->bytes;
	pthread_mutex_unlock(&h->lock);
}

void far_mark_begin(struct ebbgc_heap *h, bool asked)
{
	struct far_marking *k = &h->far.marking;
	uint64_t cpu = h->far.on ? os_thread_ns() : 0;
	bool due;

	if (!h->far.on)
		return;
	pthread_mutex_lock(&h->lock);
	due = is_due(h, asked);
	if (due) {
		k->left = h->far.left_bytes;
		k->stored = h->far.stored - h->far.lost;
		k->most = (asked || k->full ? COST_NEEDED : COST_SHARE) *
			  (k->stored + SPARE * REGION_SIZE);
		k->full = false;
	}
	pthread_mutex_unlock(&h->lock);
	if (!due || !tables_make(h))
		return;
	k->reads = k->bytes = k->objects = k->visits = k->ns = 0;
	k->remarks = 0;
	far_hold(h);
	leave_take_away(h);
	/* Nothing marks now.  Others in the queue are not traced in this cycle. */
	far_queue_take(h);
	for (uint32_t r = h->far.mine.head; r != REGION_NONE; r = h->regions[r].next) {
		__atomic_store_n(&h->far.regions[r].waits, false, __ATOMIC_RELAXED);
		__atomic_store_n(&h->far.regions[r].queued, false, __ATOMIC_RELAXED);
		if (region_state(h, r) != FAR_AWAY)
			continue;
		lost_find(h, r);
		region_clear(h, r);
	}
	for (uint32_t r = 0; r < top_of(h); r++)
		for (size_t i = 0; region_state(h, r) == FAR_LEAVING && i < REGION_WORDS; i++)
			words_of(k->sent, r)[i] = word_at(h->allocated, r, i);
	__atomic_store_n(&h->far.reached, false, __ATOMIC_RELAXED);
	far_trace_begin(h);
	tables_count(h, tables_bytes(h));
	k->on = true;
	k->cpu_ns = os_thread_ns() - cpu;
}

/* --- 2, 3. what objects refer to ------------------------------------------------------------ */

struct reader {
	struct ebbgc_heap *h;
	uint32_t count;			/* of far.naming: regions in which this one holds names */
	int error;
};

static void read_slot(void *arg, ebbgc_ref_t *slot)
{
	struct reader *d = arg;
	struct ebbgc_heap *h = d->h;
	struct far_marking *k = &h->far.marking;
	uint64_t name = ref_load(slot);
	uint32_t in;

	if (!in_heap(h, name) || d->error)
		return;
	/* Whatever the store says, nothing else is followed. */
	if (!is_named(h, name)) {
		d->error = -EBADMSG;
		return;
	}
	in = region_of(h, name);
	bit_set(k->named, granule_of(h, name));
	if (h->far.regions[in].seen != h->far.naming_serial) {
		h->far.regions[in].seen = h->far.naming_serial;
		h->far.naming[d->count++] = in;
		k->holders[in]++;
	}
	mark_object(&h->marker.tracers[0], forward(h, name));
}

/* Adds the regions in which this one holds names: more than once if it was read in parts. */
static int holds_add(struct ebbgc_heap *h, uint32_t region, uint32_t count)
{
	struct far_region *r = &h->far.regions[region];
	uint32_t *more;

	if (!count)
		return 0;
	more = realloc(r->holds_next, (r->holds_next_count + count) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	memcpy(more + r->holds_next_count, h->far.naming, count * sizeof(*more));
	r->holds_next = more;
	r->holds_next_count += count;
	return 0;
}

/* @image: of an object of the region, header included. */
static void read_object(struct reader *d, const char *image)
{
	uint64_t object = (uint64_t)(uintptr_t)image + HEADER;

	type_visit(&d->h->types[type_id(object)], object, read_slot, d);
}

/*
 * Of a region that is LEAVING: originals in memory, also of what was brought since the cycle began.
 * What was brought before that is traced, and may have been before the region named anything.
 */
static int leaving_read(struct ebbgc_heap *h, uint32_t region)
{
	struct reader d = { .h = h };

	h->far.naming_serial++;
	for (size_t i = 0; i < REGION_WORDS; i++) {
		for (uint64_t bits = words_of(h->far.marking.sent, region)[i]; bits;
		     bits &= bits - 1) {
			size_t granule = 64 * i + (size_t)__builtin_ctzll(bits);
			const char *slot = region_start(h, region) + (granule << GRANULE_SHIFT);

			if (type_id((uint64_t)(uintptr_t)slot + HEADER) != TYPE_NONE)
				read_object(&d, slot);
		}
	}
	return d.error ? d.error : holds_add(h, region, d.count);
}

/* Where a region's objects are while they are read. */
struct image {
	bool whole;			/* all are in the buffer */
	unsigned int singles;		/* else: objects that were read one by one */
	int error;
};

/* Reads the region. */
static void image_read(struct ebbgc_heap *h, uint32_t region, struct image *i)
{
	const struct far_stored *r = far_stored_of(&h->far.regions[region]);
	const struct ebbgc_far_store *s = &h->far.store;
	struct far_marking *k = &h->far.marking;

	i->whole = true;
	k->reads++;
	k->bytes += r->bytes;
	i->error = s->read(s->arg, &r->place, 0, k->buffer, r->bytes);
}

static const char *object_read(struct ebbgc_heap *h, uint32_t region, uint32_t slot,
			       struct image *i)
{
	const struct far_stored *r = far_stored_of(&h->far.regions[region]);
	const struct ebbgc_far_store *s = &h->far.store;
	struct far_marking *k = &h->far.marking;
	uint8_t kind = h->kinds[region];
	size_t size = h->slot_size[kind], offset = far_offset(h, r, slot, kind);
	char *at;

	/* Others lead to one after the other. */
	if (!i->whole && i->singles * READ_COST >= r->bytes)
		image_read(h, region, i);
	at = i->whole ? k->buffer + offset : k->buffer;
	if (!i->whole) {
		i->singles++;
		k->reads++;
		k->bytes += size;
		i->error = s->read(s->arg, &r->place, offset, at, size);
	}
	if (!i->error && (!far_is_sound(h, at, kind) ||
			  (r->shadow && memcmp(r->shadow + offset, at, size))))
		i->error = -EBADMSG;
	return i->error ? NULL : at;
}

static size_t waiting_in(const struct ebbgc_heap *h, uint32_t region)
{
	size_t count = 0;

	for (size_t i = 0; i < REGION_WORDS; i++)
		count += (size_t)__builtin_popcountll(word_at(h->marks, region, i) &
						      ~word_at(h->far.marking.sent, region, i));
	return count;
}

/* Reads the objects that wait in a word of the bitmaps. */
static void word_read(struct reader *d, uint32_t region, size_t i, struct image *image)
{
	struct ebbgc_heap *h = d->h;
	size_t per_slot = h->slot_size[h->kinds[region]] >> GRANULE_SHIFT;
	uint64_t *sent = &words_of(h->far.marking.sent, region)[i], bits;

	while (!image->error && !d->error && (bits = word_at(h->marks, region, i) & ~*sent)) {
		uint32_t slot = (uint32_t)((64 * i + (size_t)__builtin_ctzll(bits)) / per_slot);
		const char *at = NULL;

		*sent |= bits & -bits;
		if (tablet_has(far_stored_of(&h->far.regions[region])->tablet, slot))
			at = object_read(h, region, slot, image);
		if (at) {
			h->far.marking.objects++;
			read_object(d, at);
		}
	}
}

/* Objects that wait in a region that is lost lead nowhere. */
static void region_skip(struct ebbgc_heap *h, uint32_t region)
{
	uint64_t *sent = words_of(h->far.marking.sent, region);

	while (__atomic_exchange_n(&h->far.regions[region].waits, false, __ATOMIC_SEQ_CST))
		for (size_t i = 0; i < REGION_WORDS; i++)
			sent[i] |= word_at(h->marks, region, i);
}

/* Reads all objects of a region that wait, also those that others of it lead to. */
static int region_read(struct ebbgc_heap *h, uint32_t region)
{
	struct far_region *r = &h->far.regions[region];
	struct image image = { .whole = false };
	struct reader d = { .h = h };

	if (r->lost) {
		region_skip(h, region);
		return 0;
	}
	if (waiting_in(h, region) * h->slot_size[h->kinds[region]] * SPARSE >=
	    far_stored_of(r)->bytes)
		image_read(h, region, &image);
	h->far.naming_serial++;
	while (__atomic_exchange_n(&r->waits, false, __ATOMIC_SEQ_CST))
		for (size_t i = 0; i < REGION_WORDS; i++)
			word_read(&d, region, i, &image);
	if (image.error) {
		__atomic_fetch_add(&h->far.failures, 1, __ATOMIC_RELAXED);
		return image.error;
	}
	return d.error ? d.error : holds_add(h, region, d.count);
}

/* --- the end -------------------------------------------------------------------------------- */

/* Zeroes what the next far cycle finds so. */
static void zero(void *start, size_t bytes)
{
	/* Fails for locked memory. */
	if (madvise(start, bytes, MADV_DONTNEED))
		memset(start, 0, bytes);
}

static void tables_zero(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	size_t top = top_of(h);

	zero(k->sent, top * REGION_WORDS * sizeof(*k->sent));
	zero(k->named, top * REGION_WORDS * sizeof(*k->named));
	memset(k->holders, 0, top * sizeof(*k->holders));
	if (k->passed)
		zero(k->passed, top * REGION_WORDS * sizeof(*k->passed));
	if (k->names)
		zero(k->names, top * REGION_WORDS * sizeof(*k->names));
	tables_count(h, 0);
}

/* Waits longer before the next one, or not. */
static void pace(struct ebbgc_heap *h, bool failed)
{
	struct far_marking *k = &h->far.marking;

	pthread_mutex_lock(&h->lock);
	k->failures = failed ? k->failures + (k->failures < FAILURES) : 0;
	/* A lost donor fails at once. */
	k->next_at = os_now() + ((k->ns * PACE + (k->on ? 0 : FAILED_NS)) << k->failures);
	h->stats.far_cycles += k->on;
	h->stats.far_abandoned += !k->on;
	h->stats.far_read_bytes += k->bytes;
	h->stats.far_read_objects += k->objects;
	h->stats.far_donor_cycles += k->on && k->by == FAR_TRACED;
	h->stats.far_donor_objects += k->donor_objects;
	h->stats.far_donor_failures += k->donor_failed;
	h->stats.far_donor_skipped += k->skipped;
	h->stats.far_cpu_ns += k->cpu_ns;
	pthread_mutex_unlock(&h->lock);
}

/* All objects in the store are alive, and what is named is. */
static void abandon(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;

	for (uint32_t r = h->far.mine.head; r != REGION_NONE; r = h->regions[r].next) {
		struct far_region *f = &h->far.regions[r];

		for (size_t i = 0; f->traced && i < REGION_WORDS; i++)
			__atomic_fetch_or(&words_of(h->marks, r)[i],
					  word_at(h->allocated, r, i), __ATOMIC_SEQ_CST);
		f->traced = false;
	}
	for (uint32_t r = 0; r < top_of(h); r++) {
		free(h->far.regions[r].holds_next);
		h->far.regions[r].holds_next = NULL;
		h->far.regions[r].holds_next_count = 0;
	}
	k->on = false;
	pace(h, true);
	far_trace_end(h);
	tables_zero(h);
	named_mark(h, &h->marker.tracers[0]);
}

void far_mark_leaving(struct ebbgc_heap *h)
{
	uint64_t cpu = h->far.marking.on ? os_thread_ns() : 0;
	int e = 0;

	if (!h->far.marking.on)
		return;
	for (uint32_t r = 0; !e && r < top_of(h); r++)
		if (region_state(h, r) == FAR_LEAVING && !kind_is_leaf(h->kinds[r]))
			e = leaving_read(h, r);
	far_release(h);
	h->far.marking.cpu_ns += os_thread_ns() - cpu;
	if (e)
		abandon(h);
}

bool far_mark_waits(const struct ebbgc_heap *h)
{
	return h->far.marking.on && __atomic_load_n(&h->far.reached, __ATOMIC_SEQ_CST);
}

bool far_mark_hurries(const struct ebbgc_heap *h)
{
	return h->far.marking.remarks > REMARKS;
}

void far_mark_remark(struct ebbgc_heap *h)
{
	if (h->far.marking.on && ++h->far.marking.remarks > 2 * REMARKS)
		abandon(h);
}

/* Reads what waits, but what the store traces.  Returns false if the heap is being destroyed. */
static bool read_some(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	uint64_t since = os_now(), cpu = os_thread_ns();
	uint32_t next;
	int e = 0;

	for (uint32_t r = far_queue_take(h); !e && r != REGION_NONE; r = next) {
		if (marking_abandoned(h))
			return false;
		next = far_queue_next(h, r);
		if (!h->far.regions[r].traced ||
		    !__atomic_load_n(&h->far.regions[r].waits, __ATOMIC_SEQ_CST))
			continue;
		if (k->by == FAR_TRACES && h->far.regions[r].asked) {
			far_queue_add(h, r);
			continue;
		}
		e = region_read(h, r);
		if (k->bytes + k->reads * READ_COST > k->most)
			e = -EFBIG;
	}
	k->ns += os_now() - since;
	k->cpu_ns += os_thread_ns() - cpu;
	if (e)
		abandon(h);
	return true;
}

/* Lets the store trace.  Returns false if that is over. */
static bool trace_some(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	uint64_t since = os_now(), cpu = os_thread_ns();
	bool more = far_trace_some(h);

	k->ns += os_now() - since;
	k->cpu_ns += os_thread_ns() - cpu;
	return more;
}

bool far_mark_some(struct ebbgc_heap *h)
{
	if (!h->far.marking.on || marking_abandoned(h))
		return false;
	if (trace_some(h))
		return h->far.marking.by != FAR_TRACES || read_some(h);
	return __atomic_exchange_n(&h->far.reached, false, __ATOMIC_SEQ_CST) && read_some(h);
}

/* --- 4, 5. what is dead --------------------------------------------------------------------- */

void far_mark_end(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	uint64_t *named = h->far.named;
	uint32_t *holders = h->far.holders;

	if (!k->on)
		return;
	h->far.named = k->named;
	h->far.holders = k->holders;
	k->named = named;
	k->holders = holders;
}

/* Returns the bytes that were freed. */
static uint64_t region_sweep(struct ebbgc_heap *h, uint32_t region)
{
	struct far_region *r = &h->far.regions[region];
	uint32_t dead = 0;

	for (size_t i = 0; i < REGION_WORDS; i++) {
		uint64_t bits = word_at(h->allocated, region, i) & ~word_at(h->marks, region, i);

		if (!bits)
			continue;
		dead += (uint32_t)__builtin_popcountll(bits);
		__atomic_fetch_and(&words_of(h->allocated, region)[i], ~bits, __ATOMIC_RELAXED);
	}
	__atomic_fetch_sub(&r->live, dead, __ATOMIC_SEQ_CST);
	r->traced = false;
	return (uint64_t)dead * h->slot_size[h->kinds[region]];
}

/* The store has traced the region's objects, but for those that were read: adds what they name. */
static void holds_keep(struct ebbgc_heap *h, uint32_t region)
{
	struct far_region *r = &h->far.regions[region];
	uint32_t *more, count = 0;

	far_trace_holds(h, region);
	if (!r->holds_next_count)
		return;
	h->far.naming_serial++;
	for (uint32_t i = 0; i < r->holds_count; i++)
		h->far.regions[r->holds[i]].seen = h->far.naming_serial;
	for (uint32_t i = 0; i < r->holds_next_count; i++) {
		uint32_t in = r->holds_next[i];

		if (h->far.regions[in].seen == h->far.naming_serial) {
			/* It counts once. */
			h->far.holders[in]--;
			continue;
		}
		h->far.regions[in].seen = h->far.naming_serial;
		r->holds_next[count++] = in;
	}
	more = count ? realloc(r->holds, (r->holds_count + count) * sizeof(*more)) : NULL;
	if (more) {
		memcpy(more + r->holds_count, r->holds_next, count * sizeof(*more));
		__atomic_fetch_add(&h->far.tables, count * sizeof(*more), __ATOMIC_RELAXED);
		r->holds = more;
		r->holds_count += count;
	} else if (count) {
		r->holds_for_ever = true;
	}
	free(r->holds_next);
	r->holds_next = NULL;
	r->holds_next_count = 0;
}

/* The region holds the names that were found. */
static void holds_take(struct ebbgc_heap *h, uint32_t region)
{
	struct far_region *r = &h->far.regions[region];

	if (h->far.marking.by == FAR_TRACED && r->traced && r->asked)
		return holds_keep(h, region);
	r->holds_for_ever = false;
	__atomic_fetch_add(&h->far.tables,
			   ((uint64_t)r->holds_next_count - r->holds_count) * sizeof(*r->holds),
			   __ATOMIC_RELAXED);
	free(r->holds);
	r->holds = r->holds_next;
	r->holds_count = r->holds_next_count;
	r->holds_next = NULL;
	r->holds_next_count = 0;
}

void far_mark_free(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	uint64_t freed = 0, lived = 0, cpu;

	if (!k->on)
		return;
	cpu = os_thread_ns();
	if (k->by == FAR_TRACED)
		far_trace_names(h);
	for (uint32_t r = 0; r < top_of(h); r++)
		if (region_is_out(h, r))
			holds_take(h, r);
	if (k->by == FAR_TRACED)
		far_trace_unheld(h);
	for (uint32_t r = h->far.mine.head; r != REGION_NONE; r = h->regions[r].next) {
		if (!h->far.regions[r].traced)
			continue;
		freed += region_sweep(h, r);
		if (h->far.regions[r].lost)
			continue;
		lived += h->slot_size[h->kinds[r]] *
			 (uint64_t)__atomic_load_n(&h->far.regions[r].live, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_lock(&h->lock);
	k->lived = lived;
	h->stats.far_freed_bytes += freed;
	pthread_mutex_unlock(&h->lock);
	k->cpu_ns += os_thread_ns() - cpu;
	pace(h, freed * LITTLE < k->stored);
	far_trace_end(h);
	k->on = false;
	tables_zero(h);
}
