// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "far_queue.h"
#include "far_room.h"
#include "far_trace.h"
#include "forward.h"
#include "lib/rules/tablet.h"
#include "mark.h"
#include "object.h"
#include "os.h"
#include "type.h"

/*
 * Of all calls in a cycle: ns, and bytes of the store that add 1 ms each; less in pauses, and from
 * when the program waits for the cycle.
 */
#define CYCLE_NS (UINT64_C(10) * 1000000000)
#define CYCLE_BYTES ((uint64_t)64 << 10)
#define PAUSE_NS UINT64_C(500000000)
#define PAUSE_BYTES ((uint64_t)256 << 10)
#define END_MS 1u	/* for an end without marks */

_Static_assert(sizeof(struct ebbgc_far_type) == 48 && sizeof(struct ebbgc_far_region) == 56 &&
	       sizeof(struct ebbgc_far_set) == 16 && sizeof(struct ebbgc_run) == 12,
	       "stores that were compiled before have arrays of these");

static uint64_t *words_of(uint64_t *bitmap, uint32_t region)
{
	return bitmap + (size_t)region * REGION_WORDS;
}

static uint64_t word_at(const uint64_t *bitmap, uint32_t region, size_t i)
{
	return __atomic_load_n(&bitmap[(size_t)region * REGION_WORDS + i], __ATOMIC_ACQUIRE);
}

static uint64_t name_at(const struct ebbgc_heap *h, uint32_t region, size_t granule)
{
	return (uint64_t)(uintptr_t)region_start(h, region) + (granule << GRANULE_SHIFT) + HEADER;
}

/* Can the store trace the region? */
static bool may_ask(const struct ebbgc_heap *h, uint32_t region)
{
	const struct far_region *r = &h->far.regions[region];

	return r->traced && far_stored_of(r)->bytes && !r->lost;
}

/* Does it?  .asked stays set when the region is freed. */
static bool is_asked(const struct ebbgc_heap *h, uint32_t region)
{
	return h->far.regions[region].traced && h->far.regions[region].asked;
}

/* --- time ----------------------------------------------------------------------------------- */

/* Of a cycle beside the program, if that waits for it: the time of a pause since it began to. */
static uint64_t awaited_left(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	uint64_t now = os_now(), most = k->call_ns[1];
	bool awaited;

	pthread_mutex_lock(&h->lock);
	awaited = h->waiting || far_waits_for_cycle(h);
	pthread_mutex_unlock(&h->lock);
	if (!awaited) {
		k->awaited_since = 0;
		return UINT64_MAX;
	}
	if (!k->awaited_since)
		k->awaited_since = now;
	return most - (now - k->awaited_since < most ? now - k->awaited_since : most);
}

/* The time of calls, in ms: 0 if it is used up. */
static unsigned int time_left(struct ebbgc_heap *h)
{
	uint64_t left = h->far.marking.call_ns[h->in_pause];
	uint64_t awaited = h->in_pause ? UINT64_MAX : awaited_left(h);
	uint64_t ms = (awaited < left ? awaited : left) / 1000000;

	return ms > INT_MAX ? INT_MAX : (unsigned int)ms;
}

/* A call has begun at @since, ns. */
static void time_take(struct ebbgc_heap *h, uint64_t since)
{
	uint64_t *left = &h->far.marking.call_ns[h->in_pause], ns = os_now() - since;

	*left -= ns < *left ? ns : *left;
}

/* --- upcalls -------------------------------------------------------------------------------- */

/* Returns whether it is an object that some region named before. */
static bool was_named(const struct ebbgc_heap *h, uint32_t region, uint32_t granule)
{
	return region < __atomic_load_n(&h->top, __ATOMIC_RELAXED) &&
	       granule < REGION_SIZE / GRANULE && is_named(h, name_at(h, region, granule));
}

static bool late(void *data)
{
	struct ebbgc_heap *h = data;

	return marking_abandoned(h) || !time_left(h);
}

static int found(void *data, uint32_t region, uint32_t granule)
{
	struct ebbgc_heap *h = data;
	struct far_marking *k = &h->far.marking;
	struct tracer *t = &h->marker.tracers[0];
	uint64_t name, now;

	if (marking_abandoned(h))
		return -ECANCELED;
	if (!was_named(h, region, granule)) {
		k->wrong = true;
		return -EBADMSG;
	}
	name = name_at(h, region, granule);
	now = forward(h, name);
	bit_set(k->names, granule_of(h, name));
	if (now != name || !is_asked(h, region) || kind_is_leaf(h->kinds[region])) {
		mark_object(t, now);
		return 0;
	}
	/* Its marks are here, without this one. */
	if (h->far.regions[region].told &&
	    !(word_at(k->passed, region, granule / 64) >> granule % 64 & 1)) {
		k->wrong = true;
		return -EBADMSG;
	}
	/* What was marked before is passed on, or will be. */
	if (!mark_far(t, name))
		return 0;
	bit_set(k->passed, granule_of(h, name));
	return 1;
}

/* Of a region: objects by granule from bits by slot.  Returns false if one is not in the store. */
static bool granules_set(const struct ebbgc_heap *h, uint32_t region, const uint64_t *bits,
			 uint64_t *to)
{
	uint32_t size = (uint32_t)h->slot_size[h->kinds[region]];
	uint32_t words = tablet_words(tablet_slots(size));
	const uint64_t *tablet = far_stored_of(&h->far.regions[region])->tablet;

	for (uint32_t i = 0; i < words; i++) {
		if (bits[i] & ~tablet[i])
			return false;
		for (uint64_t rest = bits[i]; rest; rest &= rest - 1) {
			size_t slot = 64 * i + (size_t)__builtin_ctzll(rest);
			size_t granule = slot * (size >> GRANULE_SHIFT);

			to[granule / 64] |= UINT64_C(1) << granule % 64;
		}
	}
	return true;
}

static void take_marks(void *data, uint32_t region, const uint64_t *marks, const uint64_t *named)
{
	struct ebbgc_heap *h = data;
	struct far_marking *k = &h->far.marking;
	uint64_t names[REGION_WORDS] = { 0 }, lives[REGION_WORDS] = { 0 };

	if (region >= __atomic_load_n(&h->top, __ATOMIC_RELAXED) || !is_asked(h, region) ||
	    h->far.regions[region].told || !granules_set(h, region, marks, lives) ||
	    !granules_set(h, region, named, names)) {
		k->wrong = true;
		return;
	}
	h->far.regions[region].told = true;
	k->told++;
	for (size_t i = 0; i < REGION_WORDS; i++) {
		uint64_t *passed = &words_of(k->passed, region)[i];

		/*
		 * What a reference there leads to is marked, and was named before.  All that was
		 * passed is marked.  Nothing was read yet: .sent had come back, or was dead.
		 */
		if ((names[i] & ~(lives[i] & word_at(h->far.named, region, i))) ||
		    (*passed & ~lives[i]) || (lives[i] & word_at(k->sent, region, i)))
			k->wrong = true;
		*passed = lives[i];
		words_of(k->names, region)[i] |= names[i];
	}
}

/* --- a. begin ------------------------------------------------------------------------------- */

/* Objects of other types are not in the store, or have no references. */
static bool is_told(const struct type *t)
{
	return (t->flags & EBBGC_MOVABLE) && !(t->flags & EBBGC_LEAF) &&
	       t->size <= SMALL_MAX - HEADER;
}

/* Of types below @end.  Returns their number; @to may be NULL. */
static uint32_t types_list(const struct ebbgc_heap *h, uint32_t end, struct ebbgc_far_type *to)
{
	uint32_t n = 0;

	for (uint32_t i = TYPE_FIRST_USER; i < end; i++) {
		const struct type *t = &h->types[i];

		if (!is_told(t))
			continue;
		if (to)
			to[n] = (struct ebbgc_far_type){
				.type = i, .size = t->size, .element_size = t->element_size,
				.length_offset = t->length_offset, .length_width = t->length_width,
				.bitmap = t->bitmap, .runs = t->runs,
				.run_count = (uint32_t)t->run_count };
		n++;
	}
	return n;
}

static uint32_t regions_list(const struct ebbgc_heap *h, struct ebbgc_far_region *to)
{
	uint32_t n = 0;

	for (uint32_t r = h->far.mine.head; r != REGION_NONE; r = h->regions[r].next) {
		struct far_region *f = &h->far.regions[r];

		if (!may_ask(h, r))
			continue;
		f->told = false;
		if (to)
			to[n] = (struct ebbgc_far_region){
				.region = r, .slot_bytes = (uint32_t)h->slot_size[h->kinds[r]],
				.leaf = kind_is_leaf(h->kinds[r]), .place = far_stored_of(f)->place,
				.live = far_stored_of(f)->tablet,
				.gone = words_of(h->far.marking.sent, r) };
		n++;
	}
	return n;
}

static int begin(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	/* A thread may register more; what is in the store has one of these. */
	uint32_t end = __atomic_load_n(&h->type_count, __ATOMIC_ACQUIRE);
	uint32_t types = types_list(h, end, NULL), regions = regions_list(h, NULL);
	int e;

	k->types = calloc(types + 1, sizeof(*k->types));
	k->stored_regions = calloc(regions + 1, sizeof(*k->stored_regions));
	k->to_read = calloc(regions + 1, sizeof(*k->to_read));
	if (!k->types || !k->stored_regions || !k->to_read)
		return -ENOMEM;
	k->told = 0;
	k->awaited_since = 0;
	k->call_ns[0] = CYCLE_NS + k->stored / CYCLE_BYTES * 1000000;
	k->call_ns[1] = PAUSE_NS + k->stored / PAUSE_BYTES * 1000000;
	k->cycle = (struct ebbgc_far_cycle){
		.size = sizeof(k->cycle),
		.base = (uint64_t)(uintptr_t)h->base, .mask = EBBGC_ADDRESS_MASK,
		.regions = h->region_count, .types = k->types, .stored = k->stored_regions,
		.type_count = types, .stored_count = regions, .data = h, .found = found,
		.marks = take_marks, .reads = k->to_read, .late = late };
	types_list(h, end, k->types);
	regions_list(h, k->stored_regions);
	k->by = FAR_TRACES;
	e = h->far.store.jobs->begin(h->far.store.arg, &k->cycle);
	for (uint32_t i = 0; !e && i < regions; i++) {
		h->far.regions[k->stored_regions[i].region].asked = !k->to_read[i];
		k->asked += !k->to_read[i];
		k->skipped += k->to_read[i];
	}
	return e;
}

/* --- b. trace ------------------------------------------------------------------------------- */

static int trace(struct ebbgc_heap *h, uint32_t count)
{
	struct far_marking *k = &h->far.marking;
	unsigned int wait_ms = time_left(h);
	uint64_t since = os_now();
	int e;

	if (marking_abandoned(h))
		return -ECANCELED;
	if (!wait_ms)
		return -EAGAIN;
	e = h->far.store.jobs->trace(h->far.store.arg, k->sets, count, wait_ms);
	time_take(h, since);
	return k->wrong ? -EBADMSG : e;
}

/* Passes what waits in a region.  Returns 0 or an error; @count: of the sets. */
static int region_pass(struct ebbgc_heap *h, uint32_t region, uint32_t *count)
{
	struct far_marking *k = &h->far.marking;
	uint64_t *passed = words_of(k->passed, region);
	int e = 0;

	for (uint32_t i = 0; !e && i < REGION_WORDS; i++) {
		uint64_t bits = word_at(h->marks, region, i) & ~word_at(k->sent, region, i) &
				~passed[i];

		if (!bits)
			continue;
		passed[i] |= bits;
		k->sets[(*count)++] = (struct ebbgc_far_set){ region, i, bits };
		if (*count == FAR_SETS) {
			e = trace(h, FAR_SETS);
			*count = 0;
		}
	}
	return e;
}

static int pass(struct ebbgc_heap *h)
{
	uint32_t count = 0, next;
	int e = 0;

	for (uint32_t r = far_queue_take(h); r != REGION_NONE; r = next) {
		next = far_queue_next(h, r);
		while (!e && is_asked(h, r) &&
		       __atomic_exchange_n(&h->far.regions[r].waits, false, __ATOMIC_SEQ_CST))
			e = region_pass(h, r, &count);
		/* It is to be read. */
		if (__atomic_load_n(&h->far.regions[r].waits, __ATOMIC_SEQ_CST))
			far_queue_add(h, r);
	}
	return e || !count ? e : trace(h, count);
}

/* --- c. commit ------------------------------------------------------------------------------ */

/* Marks these objects of a word of the bitmaps; returns those that were not marked before. */
static uint64_t word_mark(struct ebbgc_heap *h, uint32_t region, size_t i, uint64_t lives)
{
	uint64_t fresh = lives & ~word_at(h->marks, region, i);

	/* Values of ephemerons are found by each key. */
	if (h->marker.keys.pairs) {
		for (uint64_t bits = fresh; bits; bits &= bits - 1)
			if (!mark_far(&h->marker.tracers[0],
				      name_at(h, region, 64 * i + (size_t)__builtin_ctzll(bits))))
				fresh &= ~(bits & -bits);
		return fresh;
	}
	return fresh ? fresh & ~__atomic_fetch_or(&words_of(h->marks, region)[i], fresh,
						  __ATOMIC_SEQ_CST) : 0;
}

static void names_take(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	size_t words = (size_t)__atomic_load_n(&h->top, __ATOMIC_RELAXED) * REGION_WORDS;

	for (size_t i = 0; i < words; i++)
		if (k->names[i])
			__atomic_fetch_or(&k->named[i], k->names[i], __ATOMIC_RELAXED);
}

static void marks_take(struct ebbgc_heap *h, uint32_t region)
{
	struct far_marking *k = &h->far.marking;
	struct tracer *t = &h->marker.tracers[0];

	for (size_t i = 0; i < REGION_WORDS; i++) {
		uint64_t there = word_at(h->allocated, region, i);
		uint64_t lives = word_at(k->passed, region, i), back;

		if (!lives)
			continue;
		k->donor_objects += (uint64_t)__builtin_popcountll(lives);
		words_of(k->sent, region)[i] |= lives;
		back = word_mark(h, region, i, lives) & ~there;
		/* They came back before the first pause, and only the store refers to them. */
		for (; back; back &= back - 1)
			mark_object(t, forward(h, name_at(h, region, 64 * i +
							  (size_t)__builtin_ctzll(back))));
	}
}

static int commit(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	unsigned int wait_ms = time_left(h);
	uint64_t since = os_now();
	int e;

	if (!wait_ms)
		return -EAGAIN;
	e = h->far.store.jobs->end(h->far.store.arg, true, wait_ms);
	time_take(h, since);
	if (e)
		return e;
	/* It has ended, whatever it says. */
	k->by = FAR_BY_READING;
	if (k->wrong || k->told != k->asked)
		return -EBADMSG;
	for (uint32_t i = 0; i < k->cycle.stored_count; i++)
		if (!k->to_read[i])
			marks_take(h, k->stored_regions[i].region);
	names_take(h);
	return 0;
}

/* --- the whole ------------------------------------------------------------------------------ */

static bool tables_make(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	size_t bytes = (size_t)h->region_count * REGION_WORDS * sizeof(uint64_t);

	if (!k->passed)
		k->passed = os_map(bytes);
	if (!k->names)
		k->names = os_map(bytes);
	if (!k->sets)
		k->sets = os_map(FAR_SETS * sizeof(*k->sets));
	return k->passed && k->names && k->sets;
}

/* Does each region that has names, and that the store can trace, know in which ones? */
static bool names_are_known(const struct ebbgc_heap *h)
{
	for (uint32_t r = h->far.mine.head; r != REGION_NONE; r = h->regions[r].next)
		if (may_ask(h, r) && h->far.regions[r].holds_for_ever)
			return false;
	return true;
}

void far_trace_begin(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;

	k->by = FAR_BY_READING;
	k->donor_objects = 0;
	k->asked = k->skipped = 0;
	k->donor_failed = k->wrong = false;
	if (!h->far.store.jobs)
		return;
	for (uint32_t r = h->far.mine.head; r != REGION_NONE; r = h->regions[r].next)
		h->far.regions[r].asked = false;
	if (names_are_known(h) && tables_make(h))
		k->by = FAR_TO_TRACE;
	else
		k->donor_failed = true;
}

static void lists_free(struct far_marking *k)
{
	free(k->types);
	free(k->stored_regions);
	free(k->to_read);
	k->types = NULL;
	k->stored_regions = NULL;
	k->to_read = NULL;
}

void far_trace_end(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;

	if (os_forked(h->pid))
		return;
	if (k->by == FAR_TRACES)
		h->far.store.jobs->end(h->far.store.arg, false, END_MS);
	lists_free(k);
	k->by = FAR_BY_READING;
}

/* The store's marks are not used: all that is marked is to be read. */
static void fall_back(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;

	far_trace_end(h);
	k->donor_failed = true;
	for (uint32_t r = h->far.mine.head; r != REGION_NONE; r = h->regions[r].next) {
		h->far.regions[r].asked = false;
		if (!may_ask(h, r) || kind_is_leaf(h->kinds[r]))
			continue;
		__atomic_store_n(&h->far.regions[r].waits, true, __ATOMIC_SEQ_CST);
		far_queue_add(h, r);
	}
	__atomic_store_n(&h->far.reached, true, __ATOMIC_SEQ_CST);
}

bool far_trace_some(struct ebbgc_heap *h)
{
	struct far_marking *k = &h->far.marking;
	bool waits;
	int e = 0;

	if (k->by != FAR_TO_TRACE && k->by != FAR_TRACES)
		return false;
	waits = __atomic_exchange_n(&h->far.reached, false, __ATOMIC_SEQ_CST);
	if (k->by == FAR_TO_TRACE) {
		/* Nothing there lives that has references, or all that does is lost. */
		if (!waits || !regions_list(h, NULL)) {
			k->by = FAR_BY_READING;
			if (waits)
				__atomic_store_n(&h->far.reached, true, __ATOMIC_SEQ_CST);
			return false;
		}
		e = begin(h);
		if (!e && !k->asked) {
			far_trace_end(h);
			__atomic_store_n(&h->far.reached, true, __ATOMIC_SEQ_CST);
			return false;
		}
	}
	if (!e)
		e = waits ? pass(h) : commit(h);
	if (e)
		fall_back(h);
	if (e || waits)
		return !e;
	k->by = FAR_TRACED;
	lists_free(k);
	return true;
}

/* --- names ---------------------------------------------------------------------------------- */

void far_trace_names(struct ebbgc_heap *h)
{
	uint32_t top = __atomic_load_n(&h->top, __ATOMIC_RELAXED);
	/* How many held names there before the cycle is not needed any more. */
	uint32_t *any = h->far.marking.holders;

	for (uint32_t r = 0; r < top; r++) {
		uint64_t bits = 0;

		for (size_t i = 0; any[r] && !bits && i < REGION_WORDS; i++)
			bits = word_at(h->far.named, r, i);
		any[r] = bits != 0;
	}
}

void far_trace_holds(struct ebbgc_heap *h, uint32_t region)
{
	struct far_region *r = &h->far.regions[region];
	uint32_t count = 0;

	for (uint32_t i = 0; i < r->holds_count; i++) {
		uint32_t in = r->holds[i];

		if (!h->far.marking.holders[in])
			continue;
		r->holds[count++] = in;
		h->far.holders[in]++;
	}
	__atomic_fetch_sub(&h->far.tables, (r->holds_count - count) * sizeof(*r->holds),
			   __ATOMIC_RELAXED);
	r->holds_count = count;
}

void far_trace_unheld(struct ebbgc_heap *h)
{
	uint32_t top = __atomic_load_n(&h->top, __ATOMIC_RELAXED);

	for (uint32_t r = 0; r < top; r++)
		if (h->far.marking.holders[r] && !h->far.holders[r])
			memset(words_of(h->far.named, r), 0, REGION_WORDS * sizeof(uint64_t));
}
