// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "event.h"
#include "far_compact.h"
#include "far_room.h"
#include "fetch.h"
#include "forward.h"
#include "leave.h"
#include "lib/rules/tablet.h"
#include "mark.h"
#include "minor.h"
#include "named.h"
#include "os.h"
#include "region.h"
#include "roots.h"
#include "supply.h"
#include "sweep.h"
#include "thread.h"
#include "trigger.h"
#include "world.h"

#define BATCH 32u		/* regions that begin to leave in one pause */
#define NAP_NS 20000000u	/* when nothing can leave */
#define FULL_NAP_NS 100000000u	/* when the store takes no more */
#define SPARE 16u		/* regions: less is not worth bringing home */
#define COMPACT_LEAST 4096u	/* bytes: a smaller place is not freed by a smaller one */
#define COMPACT_NS 250000000u	/* for the store to compact, after a cycle */
#define FEW_SHARE 4u		/* of addresses */

static const struct region_list empty = { REGION_NONE, REGION_NONE };

static void append(struct ebbgc_heap *h, struct region_list *l, uint32_t region)
{
	struct region_list one = { region, region };

	region_list_append(h, l, &one);
}

static void state_set(struct ebbgc_heap *h, uint32_t region, enum far_event event)
{
	enum far_state next = far_next(region_state(h, region), event);

	__atomic_store_n(&h->moving.states[region], (uint8_t)next, __ATOMIC_SEQ_CST);
}

static uint32_t slots_of(const struct ebbgc_heap *h, uint32_t region)
{
	return tablet_slots((uint32_t)h->slot_size[h->kinds[region]]);
}

static uint32_t objects_in(const struct ebbgc_heap *h, uint32_t region)
{
	const uint64_t *allocated = h->allocated + (size_t)region * REGION_WORDS;
	uint32_t count = 0;

	for (size_t i = 0; i < REGION_WORDS; i++)
		count += (uint32_t)__builtin_popcountll(__atomic_load_n(&allocated[i],
									__ATOMIC_RELAXED));
	return count;
}

/* In checking mode, wrong accesses fault.  Fails harmlessly if there are too many mappings. */
static void protect(const struct ebbgc_heap *h, uint32_t region, int rights)
{
	if (h->options.check)
		mprotect(region_start(h, region), REGION_SIZE, rights);
}

/* --- 1. choosing ---------------------------------------------------------------------------- */

/*
 * Lock held, in the thread's turn, so that no region is unswept: takes at most @limit regions off
 * their lists, of those that were taken, or found pinned, @before.
 */
static struct region_list choose(struct ebbgc_heap *h, uint32_t limit, uint64_t before)
{
	struct region_list chosen = empty;
	uint32_t region;

	if (limit > BATCH)
		limit = BATCH;
	while (limit-- && (region = oldest_take(&h->far.oldest, before)) != REGION_NONE) {
		region_delist(h, region);
		state_set(h, region, FAR_CHOSEN);
		append(h, &chosen, region);
	}
	return chosen;
}

/* --- 2. pins -------------------------------------------------------------------------------- */

static void pin_region(struct ebbgc_heap *h, uint32_t region)
{
	if (region_state(h, region) == FAR_PROBING)
		h->regions[region].pinned = true;
}

static void pin(void *arg, ebbgc_ref_t *slot)
{
	struct ebbgc_heap *h = arg;
	uint64_t object = ref_load(slot);

	if (in_heap(h, object))
		pin_region(h, region_of(h, object));
}

/* World stopped. */
static void pins_find(struct ebbgc_heap *h)
{
	roots_each(h, pin, h);
	stacks_each(h, pin, h);
	/* Slots that threads have taken and that hold no object yet. */
	for (const struct mutator *m = h->mutators; m; m = m->next)
		for (unsigned int k = KIND_MOVABLE; k < SMALL_KINDS; k++)
			if (m->supply[k].next != m->supply[k].end)
				pin_region(h, region_of(h, (uint64_t)(uintptr_t)m->supply[k].next));
}

/* World stopped, lock held: the region stays, as a new one. */
static void stay(struct ebbgc_heap *h, uint32_t region)
{
	state_set(h, region, FAR_PINNED);
	h->regions[region].pinned = false;
	h->regions[region].arrived = h->far.clock++;
	region_enlist(h, region, objects_in(h, region) == slots_of(h, region));
}

/* World stopped, lock held: from here on no thread has an address in the region. */
static void leave(struct ebbgc_heap *h, uint32_t region)
{
	size_t from = (size_t)region * REGION_WORDS;

	h->far.regions[region] = (struct far_region){ .live = objects_in(h, region) };
	for (size_t i = from; i < from + REGION_WORDS; i++)
		__atomic_store_n(&h->marks[i], __atomic_load_n(&h->allocated[i], __ATOMIC_RELAXED),
				 __ATOMIC_RELAXED);
	state_set(h, region, FAR_UNPINNED);
	h->far.leaving_count++;
	h->moving.active = true;
}

/* Adds the region to a list that begins with the oldest. */
static void insert(struct ebbgc_heap *h, struct region_list *l, uint32_t region)
{
	uint32_t before = REGION_NONE, behind = l->head;

	while (behind != REGION_NONE && h->regions[behind].arrived <= h->regions[region].arrived) {
		before = behind;
		behind = h->regions[behind].next;
	}
	if (before == REGION_NONE)
		return region_list_push(h, l, region);
	h->regions[before].next = region;
	h->regions[region].prev = before;
	h->regions[region].next = behind;
	if (behind == REGION_NONE)
		l->tail = region;
	else
		h->regions[behind].prev = region;
}

/* World stopped: returns those of the chosen regions that leave, the oldest first. */
static struct region_list sort_out(struct ebbgc_heap *h, struct region_list *chosen)
{
	struct region_list left = empty;
	uint32_t region;

	pins_find(h);
	pthread_mutex_lock(&h->lock);
	while ((region = region_list_pop(h, chosen)) != REGION_NONE) {
		if (h->regions[region].pinned) {
			stay(h, region);
		} else {
			leave(h, region);
			insert(h, &left, region);
		}
	}
	pthread_mutex_unlock(&h->lock);
	return left;
}

/* Whose regions leave. */
enum whose {
	OF_NO_THREAD,
	OF_THREADS,		/* also those that threads take slots from */
};

/* World stopped, lock held: threads lose the regions that they take slots from, or would next. */
static void regions_recall(struct ebbgc_heap *h)
{
	for (struct mutator *m = h->mutators; m; m = m->next)
		supplies_drop(h, m);
	for (unsigned int k = KIND_MOVABLE; k < SMALL_KINDS; k++) {
		uint32_t region;

		while ((region = region_list_pop(h, &h->recycled[k])) != REGION_NONE) {
			h->regions[region].recycled = false;
			h->nursery.recycled--;
			region_enlist(h, region, false);
		}
	}
	arrivals_close(h);
}

/* A pause: returns those of the chosen regions that leave. */
static struct region_list probe(struct ebbgc_heap *h, struct region_list *chosen, enum whose whose)
{
	struct region_list left;
	uint64_t since, ready;

	pause_begin(h);
	sweep_all(h);
	since = os_now();
	world_stop(h);
	ready = minor_collect(h);
	if (whose == OF_THREADS) {
		pthread_mutex_lock(&h->lock);
		regions_recall(h);
		pthread_mutex_unlock(&h->lock);
	}
	left = sort_out(h, chosen);
	world_resume(h, since);
	pause_end(h);
	if (ready)
		event_send(h, EBBGC_EVENT_FINALIZERS_READY, ready, NULL);
	return left;
}

/* --- 3. names ------------------------------------------------------------------------------- */

/*
 * Lock held, released meanwhile; it is the thread's turn: makes at most @limit regions leave.
 * Returns how many do.  *@any is set to whether there were any, perhaps pinned.
 */
static uint32_t announce(struct ebbgc_heap *h, uint32_t limit, uint64_t before, bool *any)
{
	struct region_list chosen = choose(h, limit, before), left = empty;
	uint32_t count = 0;

	*any = chosen.head != REGION_NONE;
	if (!*any)
		return 0;
	pthread_mutex_unlock(&h->lock);
	left = probe(h, &chosen, OF_NO_THREAD);
	for (uint32_t r = left.head; r != REGION_NONE; r = h->regions[r].next) {
		named_add_region(h, r);
		protect(h, r, PROT_READ);
		count++;
	}
	pthread_mutex_lock(&h->lock);
	region_list_append(h, &h->far.leaving, &left);
	return count;
}

/* --- 4. writing ----------------------------------------------------------------------------- */

static void tablet_drop(struct ebbgc_heap *h, uint32_t region)
{
	struct far_region *r = &h->far.regions[region];

	far_stored_drop(h, region, &r->stored[r->now]);
}

/*
 * A slot that a thread had taken, and has left without an object.  Threads that still have such
 * slots keep the region.
 */
static bool drop_bare(struct ebbgc_heap *h, uint32_t region, uint64_t object)
{
	size_t granule = granule_of(h, object);

	if (type_id(object) != TYPE_NONE)
		return false;
	__atomic_fetch_and(&h->allocated[granule >> 6], ~(UINT64_C(1) << (granule & 63)),
			   __ATOMIC_RELAXED);
	__atomic_fetch_sub(&h->far.regions[region].live, 1, __ATOMIC_SEQ_CST);
	return true;
}

/* Packs the objects of a LEAVING region; fills in its tablet.  Returns 0 or -ENOMEM. */
static int pack(struct ebbgc_heap *h, uint32_t region, char *buffer)
{
	struct far_stored *r = &h->far.regions[region].stored[0];
	uint32_t slots = slots_of(h, region), size = (uint32_t)h->slot_size[h->kinds[region]];
	const uint64_t *allocated = h->allocated + (size_t)region * REGION_WORDS;
	const char *from = region_start(h, region);

	if (!far_stored_make(h, region, r))
		return -ENOMEM;
	for (uint32_t i = 0; i < slots; i++) {
		if (!bit_test(allocated, i * (size >> GRANULE_SHIFT)) ||
		    drop_bare(h, region, (uint64_t)(uintptr_t)from + (uint64_t)i * size + HEADER))
			continue;
		r->tablet[i / 64] |= UINT64_C(1) << i % 64;
		memcpy(buffer + r->bytes, from + (size_t)i * size, size);
		r->bytes += size;
	}
	tablet_index(r->tablet, slots, (uint16_t *)(r->tablet + tablet_words(slots)));
	if (!h->options.check)
		return 0;
	r->shadow = malloc(r->bytes);
	if (!r->shadow)
		return -ENOMEM;
	memcpy(r->shadow, buffer, r->bytes);
	return 0;
}

/* Writes a LEAVING region; its bytes are 0 if nothing was left.  Returns 0 or an error. */
static int store(struct ebbgc_heap *h, uint32_t region, char *buffer)
{
	struct far_stored *r = &h->far.regions[region].stored[0];
	const struct ebbgc_far_store *s = &h->far.store;
	int e = pack(h, region, buffer);

	if (!e && !r->bytes) {
		tablet_drop(h, region);
		return 0;
	}
	if (!e)
		e = s->alloc(s->arg, r->bytes, &r->place);
	if (!e) {
		e = s->write(s->arg, &r->place, buffer, r->bytes);
		if (e)
			s->free(s->arg, &r->place);
	}
	if (e)
		tablet_drop(h, region);
	return e;
}

/* Objects that are allocated there, once the region is free, rely on zeros. */
static void memory_return(const struct ebbgc_heap *h, uint32_t region)
{
	char *start = region_start(h, region);

	/* Fails for locked memory. */
	if (madvise(start, REGION_SIZE, MADV_DONTNEED)) {
		protect(h, region, PROT_READ | PROT_WRITE);
		memset(start, 0, REGION_SIZE);
	}
	protect(h, region, PROT_NONE);
}

/*
 * A region that is LEAVING and on no list becomes AWAY, and at last the collector's.  Returns 0 or
 * an error: it is as before.
 */
static int write_out(struct ebbgc_heap *h, uint32_t region, char *buffer)
{
	const struct far_stored *r = &h->far.regions[region].stored[0];
	int e = store(h, region, buffer);

	if (e) {
		__atomic_fetch_add(&h->far.failures, 1, __ATOMIC_RELAXED);
		return e;
	}
	state_set(h, region, FAR_WRITTEN);
	far_settle(h, region);
	memory_return(h, region);
	pthread_mutex_lock(&h->lock);
	h->far.out++;
	h->far.leaving_count--;
	h->far.left += r->bytes > 0;
	h->far.left_bytes += r->bytes;
	h->far.stored += r->bytes;
	append(h, &h->far.away, region);
	pthread_mutex_unlock(&h->lock);
	return 0;
}

/* Lock held, released meanwhile: writes the oldest region that leaves.  Returns 0 or an error. */
static int write_one(struct ebbgc_heap *h, char *buffer)
{
	uint32_t region;
	int e;

	while (h->far.held)
		pthread_cond_wait(&h->far.wanted, &h->lock);
	region = region_list_pop(h, &h->far.leaving);
	h->far.writing = true;
	pthread_mutex_unlock(&h->lock);
	e = write_out(h, region, buffer);
	pthread_mutex_lock(&h->lock);
	h->far.writing = false;
	if (h->far.held)
		pthread_cond_broadcast(&h->far.wanted);
	if (e)
		region_list_push(h, &h->far.leaving, region);
	return e;
}

/* --- the thread ----------------------------------------------------------------------------- */

/* Lock held. */
static bool must_write(const struct ebbgc_heap *h)
{
	return !h->quit && far_local(h) > far_limit(h) && h->far.leaving.head != REGION_NONE;
}

/* Lock held: births that wait for room look again. */
static void round_end(struct ebbgc_heap *h, int error)
{
	h->far.stuck = error;
	h->far.rounds++;
	__atomic_store_n(&h->far.short_of, !error && far_local(h) > far_limit(h),
			 __ATOMIC_RELAXED);
	pthread_cond_broadcast(&h->far.made_room);
}

/* Lock held, released meanwhile: writes regions until enough is free.  Returns 0 or an error. */
static int write_some(struct ebbgc_heap *h, char *buffer)
{
	bool any = must_write(h);
	int e = 0;

	while (!e && must_write(h))
		e = write_one(h, buffer);
	if (any)
		round_end(h, e);
	return e;
}

/* Lock held, released meanwhile: makes room.  Returns 0, or why it did not. */
static int make_room(struct ebbgc_heap *h, char *buffer)
{
	int e = write_some(h, buffer);
	uint64_t ticket;
	uint32_t n = 1;
	bool any;

	if (e || h->quit || h->far.leaving_count >= far_leaving(h))
		return e;
	/* What runs now is a cycle, during which regions that are leaving can be written. */
	for (ticket = far_turn_ask(h); !far_turn_is(h, ticket);) {
		if (!e && must_write(h))
			e = write_some(h, buffer);
		else
			pthread_cond_wait(&h->far.wanted, &h->lock);
	}
	if (!h->quit && h->far.leaving_count < far_leaving(h))
		n = announce(h, (uint32_t)(far_leaving(h) - h->far.leaving_count), h->far.clock,
			     &any);
	far_turn_end(h);
	return e ? e : n ? 0 : -ENOENT;
}

/* Lock held: if the store takes no more, a far cycle may free some of it. */
static void full(struct ebbgc_heap *h, int error)
{
	if (error == -ENOSPC && far_full(h, os_now()) && !h->quit && !h->suspended &&
	    h->requested == h->ended)
		cycle_request(h);
}

/* Lock held, released meanwhile: moves all that can leave. */
static void evict(struct ebbgc_heap *h, char *buffer)
{
	struct region_list none = empty;
	uint64_t ticket = h->far.evict;
	int e = buffer ? 0 : -ENOMEM;
	uint64_t before;
	bool any = false;

	/*
	 * After a cycle that runs.  In the same turn: a cycle in between could move all objects to
	 * new regions.
	 */
	far_turn_take(h);
	pthread_mutex_unlock(&h->lock);
	probe(h, &none, OF_THREADS);
	pthread_mutex_lock(&h->lock);
	/* Each region is tried once: those that are pinned count as new. */
	before = h->far.clock;
	for (;;) {
		if (!e)
			announce(h, BATCH, before, &any);
		far_turn_end(h);
		while (!e && !h->quit && h->far.leaving.head != REGION_NONE)
			e = write_one(h, buffer);
		if (e || h->quit || !any)
			break;
		far_turn_take(h);
	}
	full(h, e);
	h->far.failed = e;
	h->far.evicted = ticket;
	pthread_cond_broadcast(&h->far.made_room);
}

static void *far_thread(void *arg)
{
	struct ebbgc_heap *h = arg;
	char *buffer = os_map(REGION_SIZE);

	thread_name(h, "ebb-gc-far");
	pthread_mutex_lock(&h->lock);
	while (!h->quit) {
		int e;

		if (!far_is_due(h)) {
			h->far.stuck = false;
			__atomic_store_n(&h->far.short_of, false, __ATOMIC_RELAXED);
			/* What left by other means, such as a cycle, made room, too. */
			pthread_cond_broadcast(&h->far.made_room);
			pthread_cond_wait(&h->far.wanted, &h->lock);
			continue;
		}
		if (h->far.evict != h->far.evicted) {
			evict(h, buffer);
			continue;
		}
		e = buffer ? make_room(h, buffer) : -ENOMEM;
		round_end(h, e);
		full(h, e);
		/* All is pinned or in use, or the store takes no more. */
		if (e && !h->quit)
			os_wait(&h->far.wanted, &h->lock, e == -ENOENT ? NAP_NS : FULL_NAP_NS);
	}
	pthread_mutex_unlock(&h->lock);
	if (buffer)
		munmap(buffer, REGION_SIZE);
	return NULL;
}

int leave_start(struct ebbgc_heap *h)
{
	int r = thread_start(&h->far.thread, far_thread, h);

	h->far.started = !r;
	return r;
}

void leave_stop(struct ebbgc_heap *h)
{
	if (!h->far.started || os_forked(h->pid))
		return;
	pthread_mutex_lock(&h->lock);
	h->quit = true;
	pthread_cond_broadcast(&h->far.wanted);
	pthread_mutex_unlock(&h->lock);
	pthread_join(h->far.thread, NULL);
}

/* --- 5, 6. forwards and the end ------------------------------------------------------------- */

/* Its last object was brought, or is dead: nothing has a claim there. */
static void drain(struct ebbgc_heap *h, uint32_t region)
{
	const struct far_region *r = &h->far.regions[region];
	const struct far_stored *s = far_stored_of(r);

	state_set(h, region, FAR_DRAINED);
	if (!s->bytes)
		return;
	if (h->far.store.free(h->far.store.arg, &s->place) && !r->lost)
		__atomic_fetch_add(&h->far.failures, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&h->lock);
	h->far.stored -= s->bytes;
	h->far.lost -= r->lost ? s->bytes : 0;
	pthread_mutex_unlock(&h->lock);
	tablet_drop(h, region);
}

/* A forward leads to where its object is, not to a name whose forward may be dropped. */
static void shorten(struct ebbgc_heap *h, uint32_t region)
{
	uint64_t *table = forwards_of(h, region);
	size_t count = forwards_count(h, region);

	for (size_t i = 0; table && i < count; i++) {
		uint64_t seen = __atomic_load_n(&table[i], __ATOMIC_SEQ_CST), target, last;

		target = far_target(seen);
		last = target ? forward(h, target) : 0;
		/* A target never changes but here. */
		if (last != target)
			__atomic_store_n(&table[i], last | (seen & FAR_FLAGS), __ATOMIC_SEQ_CST);
	}
}

void leave_shorten(struct ebbgc_heap *h)
{
	uint32_t top = __atomic_load_n(&h->top, __ATOMIC_RELAXED);

	for (uint32_t r = 0; h->far.on && r < top; r++)
		if (region_is_out(h, r))
			shorten(h, r);
}

/* Drops forwards; returns how many remain. */
static size_t drop_forwards(struct ebbgc_heap *h, uint32_t region)
{
	uint64_t *table = forwards_of(h, region);
	size_t count = forwards_count(h, region), kept = 0, size = h->slot_size[h->kinds[region]];
	uint64_t base = (uint64_t)(uintptr_t)region_start(h, region) + HEADER;

	for (size_t i = 0; table && i < count; i++) {
		uint64_t entry = __atomic_load_n(&table[i], __ATOMIC_SEQ_CST);

		if (!entry)
			continue;
		if (far_may_drop(entry, is_named(h, base + i * size), h->far.snapshots))
			__atomic_store_n(&table[i], 0, __ATOMIC_SEQ_CST);
		else
			kept++;
	}
	return kept;
}

/* The region is EMPTY and has no forward: no slot names it.  Frees it, in no pause. */
static void forget(struct ebbgc_heap *h, uint32_t region)
{
	size_t from = (size_t)region * REGION_WORDS;
	uint64_t table = forwards_count(h, region) * sizeof(uint64_t);

	protect(h, region, PROT_READ | PROT_WRITE);
	pause_begin(h);
	for (size_t i = from; i < from + REGION_WORDS; i++) {
		__atomic_store_n(&h->marks[i], 0, __ATOMIC_RELAXED);
		__atomic_store_n(&h->allocated[i], 0, __ATOMIC_RELAXED);
		if (h->nursery.old)
			__atomic_store_n(&h->nursery.old[i], 0, __ATOMIC_RELAXED);
	}
	if (forwards_of(h, region))
		__atomic_fetch_sub(&h->far.tables, table, __ATOMIC_RELAXED);
	pthread_mutex_lock(&h->lock);
	state_set(h, region, FAR_FORGOTTEN);
	forwards_drop(h, region);
	regions_free(h, region, 1);
	h->regions[region].committed = false;
	h->committed_free--;
	h->far.out--;
	pthread_mutex_unlock(&h->lock);
	pause_end(h);
}

static uint64_t live_bytes(const struct ebbgc_heap *h, uint32_t region)
{
	return h->slot_size[h->kinds[region]] *
	       __atomic_load_n(&h->far.regions[region].live, __ATOMIC_SEQ_CST);
}

/* Are free addresses, of which each region that is out keeps a region's, few? */
static bool addresses_are_few(struct ebbgc_heap *h)
{
	bool few;

	pthread_mutex_lock(&h->lock);
	few = h->region_count - h->used < h->region_count / FEW_SHARE;
	pthread_mutex_unlock(&h->lock);
	return few;
}

/* What tidy() has left of its means. */
struct tidying {
	uint64_t room;			/* bytes that may come home: they take local memory */
	uint64_t until;			/* ns: the store compacts until then, 0: not at all */
	char *buffer;
};

/*
 * Has the store compact a region, or leaves that to the next cycle: then *@stored stays as it is.
 * Returns false if the store does not.
 */
static bool compact(struct ebbgc_heap *h, uint32_t region, struct tidying *t, uint64_t *stored)
{
	const struct far_region *r = &h->far.regions[region];
	uint64_t now = os_now(), before = far_stored_of(r)->bytes;
	int e;

	if (!t->until || before <= COMPACT_LEAST || !live_bytes(h, region))
		return false;
	if (now >= t->until)
		return true;
	e = far_compact(h, region, (unsigned int)((t->until - now) / 1000000) + 1);
	/* -EAGAIN: the store does not want to now; -ENOENT: all has come back meanwhile. */
	if (e && e != -EAGAIN && e != -ENOENT) {
		__atomic_fetch_add(&h->far.failures, 1, __ATOMIC_RELAXED);
		t->until = 0;
	}
	if (e)
		return false;
	*stored -= before - far_stored_of(r)->bytes;
	return true;
}

static bool bring_home(struct ebbgc_heap *h, uint32_t region, struct tidying *t)
{
	uint64_t left = live_bytes(h, region);

	if (left > t->room || far_bring_all(h, region, t->buffer))
		return false;
	drain(h, region);
	t->room -= left;
	return true;
}

/* Frees what objects have left behind in the store, and dead ones, when that is most of it. */
static void tidy(struct ebbgc_heap *h)
{
	uint64_t spare = h->options.check ? 0 : SPARE * REGION_SIZE, stored = 0, live = 0;
	struct tidying t = { .room = h->far.window * REGION_SIZE / 2 };
	bool few = addresses_are_few(h);

	for (uint32_t r = h->far.mine.head; r != REGION_NONE; r = h->regions[r].next) {
		if (h->far.regions[r].lost)
			continue;
		stored += far_stored_of(&h->far.regions[r])->bytes;
		live += live_bytes(h, r);
	}
	if (stored <= 2 * live + spare && !few)
		return;
	t.buffer = os_map(REGION_SIZE);
	t.until = far_compacts(h) && !few ? os_now() + COMPACT_NS : 0;
	for (uint32_t r = h->far.mine.head;
	     t.buffer && r != REGION_NONE && !marking_abandoned(h); r = h->regions[r].next) {
		const struct far_region *f = &h->far.regions[r];
		uint64_t bytes = far_stored_of(f)->bytes, left = live_bytes(h, r);
		/* What the store has compacted has most of its addresses unused. */
		bool holes = few && f->compacted && 2 * left < REGION_SIZE;

		if (region_state(h, r) != FAR_AWAY || f->lost ||
		    !(holes || 2 * left < bytes))
			continue;
		if (!compact(h, r, &t, &stored) && (holes || stored > 2 * live) &&
		    bring_home(h, r, &t))
			stored -= bytes;
	}
	if (t.buffer)
		munmap(t.buffer, REGION_SIZE);
}

void leave_take_away(struct ebbgc_heap *h)
{
	pthread_mutex_lock(&h->lock);
	region_list_append(h, &h->far.mine, &h->far.away);
	pthread_mutex_unlock(&h->lock);
}

/* Withdraws the names of regions that were EMPTY before the cycle. */
static void names_end(struct ebbgc_heap *h)
{
	for (uint32_t r = h->far.mine.head; r != REGION_NONE; r = h->regions[r].next)
		if (far_may_withdraw(region_state(h, r)))
			named_withdraw(h, r);
}

/* Drops forwards; frees regions that were EMPTY before the cycle; regions become EMPTY. */
static void regions_end(struct ebbgc_heap *h)
{
	struct region_list rest = empty;
	uint32_t region;

	while ((region = region_list_pop(h, &h->far.mine)) != REGION_NONE) {
		size_t kept = drop_forwards(h, region);

		if (far_may_forget(region_state(h, region), kept)) {
			forget(h, region);
			continue;
		}
		if (region_state(h, region) == FAR_AWAY && !live_bytes(h, region))
			drain(h, region);
		append(h, &rest, region);
	}
	h->far.mine = rest;
}

void leave_forget(struct ebbgc_heap *h)
{
	if (!h->far.on)
		return;
	__atomic_store_n(&h->far.brought_bytes, 0, __ATOMIC_RELAXED);
	leave_take_away(h);
	names_end(h);
	regions_end(h);
	tidy(h);
	pthread_mutex_lock(&h->lock);
	h->far.low = (h->region_count - h->used) / 2;
	pthread_mutex_unlock(&h->lock);
}

void leave_nothing(struct ebbgc_heap *h)
{
	if (!h->far.on)
		return;
	for (uint32_t r = 0; r < h->top; r++) {
		enum far_state state = region_state(h, r);

		if (!far_is_out(state))
			continue;
		if (!os_forked(h->pid)) {
			const struct far_stored *s = far_stored_of(&h->far.regions[r]);

			if (state == FAR_AWAY && s->bytes)
				h->far.store.free(h->far.store.arg, &s->place);
			free(s->tablet);
			free(s->shadow);
			free(h->far.regions[r].holds);
			free(h->far.regions[r].holds_next);
			free(forwards_of(h, r));
		}
	}
}
