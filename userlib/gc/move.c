// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <string.h>
#include <sys/mman.h>
#include "check.h"
#include "far_room.h"
#include "finalize.h"
#include "forward.h"
#include "move.h"
#include "os.h"
#include "region.h"
#include "roots.h"
#include "supply.h"
#include "sweep.h"
#include "trigger.h"
#include "type.h"

#define SPARSE 2u			/* slots for each object, at least */
#define REGIONS_LEAST 4u		/* less is not worth a pause */
#define MIXED 4u			/* objects for each hot one, at least */
#define HOT_LEAST (16u << 10)		/* bytes of hot objects: less is not worth a pause */
#define MOVE_MOST ((size_t)1 << 20)	/* bytes copied in a pause of a concurrent cycle */
#define LOOK_MOST 4096u			/* regions examined for it while the lock is held */
#define ALL_PAGES ((UINT32_C(1) << REGION_PAGES) - 1)
#define FREE_SHARE 4u			/* one free region in so many may be taken */

static const struct region_list empty = { REGION_NONE, REGION_NONE };

/* What may still be chosen. */
struct choice {
	bool full;
	bool hot_only;
	size_t looks;		/* regions to be examined */
	size_t bytes;		/* to be copied */
	uint32_t regions;	/* to be taken */
};

static size_t slots_of(const struct ebbgc_heap *h, unsigned int kind)
{
	return REGION_SIZE / h->slot_size[kind];
}

static size_t objects_in(const struct ebbgc_heap *h, uint32_t region)
{
	const uint64_t *allocated = h->allocated + (size_t)region * REGION_WORDS;
	size_t count = 0;

	for (size_t i = 0; i < REGION_WORDS; i++)
		count += (size_t)__builtin_popcountll(allocated[i]);
	return count;
}

static size_t hot_in(const struct ebbgc_heap *h, uint32_t region)
{
	size_t count = 0;

	for (size_t i = (size_t)region * REGION_WORDS; i < (region + 1) * REGION_WORDS; i++)
		count += (size_t)__builtin_popcountll(h->moving.hot[i] & h->allocated[i]);
	return count;
}

/* Can a pause read these pages of the region, a bitmap, without waiting? */
static bool is_in_memory(const struct ebbgc_heap *h, uint32_t region, uint32_t pages)
{
	return os_page_bytes() != PAGE_BYTES ||
	       !(pages & ~residency_pages(region_start(h, region), REGION_PAGES));
}

/* Returns how many of the region's objects are to move. */
static size_t wanted(const struct ebbgc_heap *h, uint32_t region, const struct choice *c)
{
	uint8_t kind = h->kinds[region];
	size_t objects = objects_in(h, region), hot = 0;

	if (c->hot_only) {
		hot = hot_in(h, region);
		if (hot * MIXED > objects)
			return 0;
		objects = hot;
	}
	if (!objects || objects * h->slot_size[kind] > c->bytes)
		return 0;
	if (h->options.check)
		return objects;
	if (!hot && objects * SPARSE > slots_of(h, kind))
		return 0;
	if (c->full || is_in_memory(h, region, pages_of(h, region, kind, hot ? h->moving.hot :
									       h->allocated)))
		return objects;
	return 0;
}

static void append(struct ebbgc_heap *h, struct region_list *l, uint32_t region)
{
	struct region_list one = { region, region };

	region_list_append(h, l, &one);
}

/* Lock held: takes regions that are to be emptied, as far as there is room, off their list. */
static void choose_from(struct ebbgc_heap *h, struct region_list *l, unsigned int kind,
			struct choice *c)
{
	size_t objects = 0, slots = slots_of(h, kind), most = c->regions * slots;
	struct region_list found = empty, rest = empty;
	uint32_t region, count = 0, needed;
	struct choice left = *c;

	for (; left.looks && objects < most && (region = region_list_pop(h, l)) != REGION_NONE;
	     left.looks--) {
		size_t n = wanted(h, region, &left);

		if (!n || objects + n > most || !forwards_add(h, region)) {
			append(h, &rest, region);
			continue;
		}
		append(h, &found, region);
		h->regions[region].hot_only = c->hot_only;
		count++;
		objects += n;
		left.bytes = c->bytes - objects * h->slot_size[kind];
	}
	c->looks = left.looks;
	region_list_append(h, &rest, l);
	*l = rest;
	needed = (uint32_t)((objects + slots - 1) / slots);
	if (c->hot_only || count >= REGIONS_LEAST || h->options.check) {
		left.regions = c->regions - needed;
		*c = left;
		for (region = found.head; region != REGION_NONE; region = h->regions[region].next)
			region_stays(h, region);
		region_list_append(h, &h->moving.regions, &found);
		return;
	}
	for (region = found.head; region != REGION_NONE; region = h->regions[region].next)
		forwards_drop(h, region);
	region_list_append(h, l, &found);
}

/* Lock held: lets a region be that was chosen, but that nothing has left. */
static void leave(struct ebbgc_heap *h, uint32_t region)
{
	forwards_drop(h, region);
	region_enlist(h, region, objects_in(h, region) == slots_of(h, h->kinds[region]));
}

/* Lock held: chooses regions with some hot objects. */
static void choose_hot(struct ebbgc_heap *h, struct choice *c)
{
	struct region_list others = h->moving.regions, hot;
	const size_t bytes = c->bytes;
	uint32_t region;

	c->hot_only = true;
	h->moving.regions = empty;
	for (unsigned int k = KIND_MOVABLE; k < SMALL_KINDS; k++) {
		choose_from(h, &h->partial[k], k, c);
		choose_from(h, &h->full[k], k, c);
	}
	hot = h->moving.regions;
	h->moving.regions = others;
	if (bytes - c->bytes >= HOT_LEAST) {
		region_list_append(h, &h->moving.regions, &hot);
		return;
	}
	while ((region = region_list_pop(h, &hot)) != REGION_NONE)
		leave(h, region);
}

/* The next cycle finds again what is hot. */
static void cool(struct ebbgc_heap *h)
{
	for (size_t i = 0; i < used_bytes(h) / (64 * GRANULE); i++)
		if (h->moving.hot[i])
			__atomic_store_n(&h->moving.hot[i], 0, __ATOMIC_RELAXED);
}

/* Lock held: returns how many regions may be taken. */
static uint32_t regions_left(const struct ebbgc_heap *h)
{
	uint32_t left = (h->region_count - h->used) / FREE_SHARE;
	uint64_t local;

	if (h->large_waiting)
		return 0;
	if (!h->far.on)
		return left;
	/* For a while, what is copied is in local memory twice. */
	local = far_local(h);
	if (local >= far_limit(h))
		return 0;
	return left < far_limit(h) - local ? left : (uint32_t)(far_limit(h) - local);
}

bool move_choose(struct ebbgc_heap *h, bool full, bool scarce)
{
	const bool all = full || h->options.check;
	struct choice c = {
		.full = full, .looks = all ? SIZE_MAX : LOOK_MOST,
		.bytes = all ? SIZE_MAX : MOVE_MOST,
	};

	pthread_mutex_lock(&h->lock);
	c.regions = regions_left(h);
	for (unsigned int k = KIND_MOVABLE; h->moving.states && k < SMALL_KINDS; k++) {
		choose_from(h, &h->partial[k], k, &c);
		if (h->options.check)
			choose_from(h, &h->full[k], k, &c);
	}
	if (h->moving.hot && scarce)
		choose_hot(h, &c);
	pthread_mutex_unlock(&h->lock);
	if (h->moving.regions.head != REGION_NONE)
		return true;
	if (h->moving.hot)
		cool(h);
	return false;
}

/* A region that objects are copied to. */
struct target {
	uint32_t region;
	char *next, *end;
};

struct mover {
	struct ebbgc_heap *h;
	struct target targets[SMALL_KINDS - KIND_MOVABLE][2];	/* for cold and hot objects */
	bool failed;		/* no more memory: the other objects stay */
	struct vector stack;	/* objects to be moved next, the last one first */
};

/* Is it one that was chosen?  Regions of the far generation have tables, too. */
static bool is_chosen(const struct ebbgc_heap *h, uint32_t region)
{
	return h->moving.forwards[region] && !region_is_out(h, region);
}

static void pin(void *arg, ebbgc_ref_t *slot)
{
	struct ebbgc_heap *h = arg;
	uint64_t object = ref_load(slot), *entry;

	if (!in_heap(h, object) || !is_chosen(h, region_of(h, object)))
		return;
	entry = forward_entry(h, region_of(h, object), object);
	h->counting.pinned_objects += !*entry;
	*entry = object;
}

static void target_end(struct ebbgc_heap *h, const struct target *t)
{
	if (t->region == REGION_NONE)
		return;
	pthread_mutex_lock(&h->lock);
	region_enlist(h, t->region, t->next == t->end);
	pthread_mutex_unlock(&h->lock);
}

static bool target_begin(struct ebbgc_heap *h, struct target *t, uint8_t kind)
{
	pthread_mutex_lock(&h->lock);
	t->region = regions_take(h, 1, kind);
	pthread_mutex_unlock(&h->lock);
	if (t->region == REGION_NONE)
		return false;
	/* A pause must not read what is swapped out. */
	if (!h->regions[t->region].zero &&
	    (is_in_memory(h, t->region, ALL_PAGES) ||
	     madvise(region_start(h, t->region), REGION_SIZE, MADV_DONTNEED)))
		region_zero(h, t->region);
	t->next = region_start(h, t->region);
	t->end = t->next + slots_of(h, kind) * h->slot_size[kind];
	return true;
}

/* Returns a free slot, or NULL. */
static char *place(struct mover *v, uint8_t kind, bool hot)
{
	struct target *t = &v->targets[kind - KIND_MOVABLE][hot];
	char *slot;

	if (t->next == t->end) {
		target_end(v->h, t);
		t->next = t->end = NULL;
		if (!target_begin(v->h, t, kind))
			return NULL;
	}
	slot = t->next;
	t->next += v->h->slot_size[kind];
	return slot;
}

static void bit_clear(uint64_t *bits, size_t i)
{
	__atomic_fetch_and(&bits[i >> 6], ~(UINT64_C(1) << (i & 63)), __ATOMIC_RELAXED);
}

static bool is_hot(const struct ebbgc_heap *h, uint64_t object)
{
	return h->moving.hot && bit_test(h->moving.hot, granule_of(h, object));
}

static void move_object(struct mover *v, uint64_t object, uint8_t kind, uint64_t *entry)
{
	struct ebbgc_heap *h = v->h;
	char *slot = place(v, kind, is_hot(h, object));
	uint64_t now = (uint64_t)(uintptr_t)slot + HEADER;

	if (!slot) {
		v->failed = true;
		return;
	}
	memcpy(slot, header_of(object), h->slot_size[kind]);
	bit_set(h->allocated, granule_of(h, now));
	bit_clear(h->allocated, granule_of(h, object));
	if (h->nursery.old) {
		bit_set(h->nursery.old, granule_of(h, now));
		bit_clear(h->nursery.old, granule_of(h, object));
	}
	*entry = now;
	h->moving.states[region_of(h, object)] = FAR_MOVED;
	h->counting.moved_objects++;
	h->counting.moved_bytes += h->slot_size[kind];
}

static void reverse(struct vector *v, size_t from)
{
	for (size_t to = v->count; from + 1 < to; from++) {
		uint64_t item = v->items[from];

		v->items[from] = v->items[--to];
		v->items[to] = item;
	}
}

/* Is it one of the objects that are to move?  Accepts any address. */
static bool moves(const struct ebbgc_heap *h, uint64_t object)
{
	uint32_t region;

	if (!in_heap(h, object))
		return false;
	region = region_of(h, object);
	/* A thread's supply may have slots without objects here. */
	return is_chosen(h, region) && !*forward_entry(h, region, object) &&
	       (!h->regions[region].hot_only || is_hot(h, object)) && !is_named(h, object) &&
	       object_at(h, object) && type_id(object) != TYPE_NONE;
}

static void push_target(void *arg, ebbgc_ref_t *slot)
{
	struct mover *v = arg;
	uint64_t object = ref_load(slot);

	/* Without memory it moves in its turn. */
	if (moves(v->h, object))
		(void)vector_push(&v->stack, object);
}

/*
 * Moves an object and, right behind it, what it leads to, depth first: lists and the branches of
 * trees then lie in the order in which the program follows them.
 */
static void move_from(struct mover *v, uint64_t object)
{
	struct ebbgc_heap *h = v->h;
	size_t count = v->stack.count;

	for (;;) {
		uint8_t kind = h->kinds[region_of(h, object)];
		uint64_t *entry = forward_entry(h, region_of(h, object), object);

		/* It may have been pushed twice. */
		if (!*entry) {
			size_t first = v->stack.count;

			move_object(v, object, kind, entry);
			if (*entry && !kind_is_leaf(kind))
				type_visit(&h->types[type_id(*entry)], *entry, push_target, v);
			reverse(&v->stack, first);
		}
		if (v->failed || v->stack.count == count)
			break;
		object = v->stack.items[--v->stack.count];
	}
}

static void region_move(struct mover *v, uint32_t region)
{
	struct ebbgc_heap *h = v->h;
	const uint64_t *allocated = h->allocated + (size_t)region * REGION_WORDS;

	for (size_t w = 0; w < REGION_WORDS; w++) {
		for (uint64_t bits = allocated[w]; bits && !v->failed; bits &= bits - 1) {
			size_t granule = 64 * w + (size_t)__builtin_ctzll(bits);
			uint64_t object = (uint64_t)(uintptr_t)region_start(h, region) +
					  (granule << GRANULE_SHIFT) + HEADER;

			if (moves(h, object))
				move_from(v, object);
		}
	}
}

/* Lock held, world stopped: do loads have to look at the states of regions? */
static void set_active(struct ebbgc_heap *h)
{
	h->moving.active = h->moving.regions.head != REGION_NONE || h->far.leaving_count ||
			   h->far.out;
}

/* Regions in which all is pinned, and those that there was no memory for, serve allocation. */
static void leave_unmoved(struct ebbgc_heap *h)
{
	struct region_list moved = empty;
	uint32_t region;

	pthread_mutex_lock(&h->lock);
	while ((region = region_list_pop(h, &h->moving.regions)) != REGION_NONE) {
		if (h->moving.states[region])
			append(h, &moved, region);
		else
			leave(h, region);
	}
	h->moving.regions = moved;
	set_active(h);
	pthread_mutex_unlock(&h->lock);
}

void move_objects(struct ebbgc_heap *h)
{
	struct mover v = { .h = h };

	for (size_t i = 0; i < SMALL_KINDS - KIND_MOVABLE; i++)
		v.targets[i][0].region = v.targets[i][1].region = REGION_NONE;
	check_move(h);
	roots_each(h, pin, h);
	stacks_each(h, pin, h);
	for (uint32_t r = h->moving.regions.head; r != REGION_NONE; r = h->regions[r].next)
		region_move(&v, r);
	vector_free(&v.stack);
	for (size_t i = 0; i < SMALL_KINDS - KIND_MOVABLE; i++)
		for (unsigned int hot = 0; hot < 2; hot++)
			target_end(h, &v.targets[i][hot]);
	leave_unmoved(h);
	finalizers_moved(h);
	check_moved(h);
}

void move_done(struct ebbgc_heap *h)
{
	uint64_t released = 0, taken = 0;

	for (uint32_t r = h->moving.regions.head; r != REGION_NONE; r = h->regions[r].next) {
		released += sweep_moved(h, r);
		taken += REGION_SIZE - objects_in(h, r) * h->slot_size[h->kinds[r]];
	}
	pthread_mutex_lock(&h->lock);
	h->stats.released_bytes += released;
	trigger_lower(h, taken);
	pthread_mutex_unlock(&h->lock);
	if (h->moving.hot)
		cool(h);
}

void move_forget(struct ebbgc_heap *h)
{
	uint32_t region;

	while ((region = region_list_pop(h, &h->moving.regions)) != REGION_NONE) {
		forwards_drop(h, region);
		h->regions[region].cursor = 0;
		region_enlist(h, region, false);
	}
	set_active(h);
}
