// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "far_image.h"
#include "fetch.h"
#include "forward.h"
#include "os.h"
#include "region.h"
#include "trigger.h"

#define SPINS 64u		/* looks at an entry before a thread sleeps: about 2 us */
#define TRIES 200u		/* for memory, one every ms */
#define TRY_NS 1000000u

/* --- places of arrivals --------------------------------------------------------------------- */

/* Heap's lock held. */
static void arrival_close(struct ebbgc_heap *h, struct far_arrival *a)
{
	if (a->region == REGION_NONE)
		return;
	h->regions[a->region].zero = false;
	h->regions[a->region].swept = true;
	region_enlist(h, a->region, a->next == a->end);
	*a = (struct far_arrival){ .region = REGION_NONE };
}

void arrivals_close(struct ebbgc_heap *h)
{
	for (unsigned int k = KIND_MOVABLE; k < SMALL_KINDS; k++)
		arrival_close(h, &h->far.arrivals[k - KIND_MOVABLE]);
}

/* Arrivals' lock held: returns false without a free region. */
static bool arrival_open(struct ebbgc_heap *h, struct far_arrival *a, uint8_t kind)
{
	pthread_mutex_lock(&h->lock);
	arrival_close(h, a);
	a->region = regions_take_any(h, 1, kind);
	/* A cycle frees the addresses of regions that are back. */
	if (h->region_count - h->used < h->far.low && h->requested == h->ended && !h->suspended)
		cycle_request(h);
	pthread_mutex_unlock(&h->lock);
	if (a->region == REGION_NONE)
		return false;
	a->next = region_start(h, a->region);
	a->end = a->next + REGION_SIZE / h->slot_size[kind] * h->slot_size[kind];
	return true;
}

/* Returns a slot, or NULL.  What it holds is garbage. */
static char *arrival_take(struct ebbgc_heap *h, uint8_t kind)
{
	struct far_arrival *a = &h->far.arrivals[kind - KIND_MOVABLE];
	char *slot = NULL;

	pthread_mutex_lock(&h->far.arrivals_lock);
	if (a->next != a->end || arrival_open(h, a, kind)) {
		slot = a->next;
		a->next += h->slot_size[kind];
	}
	pthread_mutex_unlock(&h->far.arrivals_lock);
	return slot;
}

/* Undoes arrival_take(), if it was the last one: else the slot is free after the next sweep. */
static void arrival_undo(struct ebbgc_heap *h, uint8_t kind, char *slot)
{
	struct far_arrival *a = &h->far.arrivals[kind - KIND_MOVABLE];

	pthread_mutex_lock(&h->far.arrivals_lock);
	/* Arrivals may have gone on to the next region, of which none is taken. */
	if (a->region == region_of(h, (uint64_t)(uintptr_t)slot) &&
	    a->next == slot + h->slot_size[kind])
		a->next = slot;
	pthread_mutex_unlock(&h->far.arrivals_lock);
}

/* As arrival_take(), which waits for what is leaving: so the caller must have no claim. */
static char *arrival_wait(struct ebbgc_heap *h, uint8_t kind)
{
	char *slot = arrival_take(h, kind);

	for (unsigned int i = 0; !slot && i < TRIES; i++) {
		pthread_mutex_lock(&h->lock);
		pthread_cond_broadcast(&h->far.wanted);
		pthread_mutex_unlock(&h->lock);
		os_sleep(TRY_NS);
		slot = arrival_take(h, kind);
	}
	return slot;
}

/* --- waiting for others --------------------------------------------------------------------- */

static uint32_t *futex_of(uint64_t *entry)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return (uint32_t *)entry;
#else
	return (uint32_t *)entry + 1;
#endif
}

static void entry_wait(uint64_t *entry)
{
	uint64_t was;

	for (unsigned int i = 0; i < SPINS; i++) {
		if (!(__atomic_load_n(entry, __ATOMIC_SEQ_CST) & FAR_BUSY))
			return;
#ifdef __x86_64__
		__builtin_ia32_pause();
#endif
	}
	was = FAR_BUSY;
	if (!__atomic_compare_exchange_n(entry, &was, FAR_BUSY | FAR_AWAITED, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
	    was != (FAR_BUSY | FAR_AWAITED))
		return;
	syscall(SYS_futex, futex_of(entry), FUTEX_WAIT_PRIVATE, (uint32_t)(FAR_BUSY | FAR_AWAITED),
		NULL, NULL, 0);
}

/* Ends a claim. */
static void entry_set(uint64_t *entry, uint64_t value)
{
	if (__atomic_exchange_n(entry, value, __ATOMIC_SEQ_CST) & FAR_AWAITED)
		syscall(SYS_futex, futex_of(entry), FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static bool entry_claim(uint64_t *entry)
{
	uint64_t none = 0;

	return __atomic_compare_exchange_n(entry, &none, FAR_BUSY, false, __ATOMIC_SEQ_CST,
					   __ATOMIC_SEQ_CST);
}

void far_settle(struct ebbgc_heap *h, uint32_t region)
{
	uint64_t *table = forwards_of(h, region);
	size_t count = forwards_count(h, region);

	/* A table that is made from here on gets claims that find the new state. */
	for (size_t i = 0; table && i < count; i++)
		while (!far_is_quiet(__atomic_load_n(&table[i], __ATOMIC_SEQ_CST) & FAR_BUSY))
			entry_wait(&table[i]);
}

/* --- one object ----------------------------------------------------------------------------- */

static void give_up(int error)
{
	fprintf(stderr, "ebbgc: a far object cannot be read: %s; set the failed() handler of "
			"ebbgc_far_attach() to go on without it\n", strerror(-error));
	abort();
}

/* No claim is held. */
static void fail(struct ebbgc_heap *h, int error)
{
	const struct ebbgc_far_options *o = &h->far.options;

	__atomic_fetch_add(&h->far.failures, 1, __ATOMIC_RELAXED);
	if (!o->failed || o->failed(o->failed_arg, h, error) != EBBGC_FAR_RETRY)
		give_up(error);
}

static size_t slot_number(const struct ebbgc_heap *h, uint64_t object, uint8_t kind)
{
	return (object & (REGION_SIZE - 1)) / h->slot_size[kind];
}

static int fetch(struct ebbgc_heap *h, const struct far_stored *r, uint64_t object, uint8_t kind,
		 char *to)
{
	size_t size = h->slot_size[kind], slot = slot_number(h, object, kind), offset;
	int e = region_lost(h, region_of(h, object));

	if (e)
		return e;
	if (!tablet_has(r->tablet, (uint32_t)slot))
		return -EBADMSG;
	offset = far_offset(h, r, slot, kind);
	e = h->far.store.read(h->far.store.arg, &r->place, offset, to, size);
	if (e)
		return e;
	if (!far_is_sound(h, to, kind) || (r->shadow && memcmp(r->shadow + offset, to, size)))
		return -EBADMSG;
	return 0;
}

/* The thread that leaves heals names meanwhile: each word is old or new. */
static void words_copy(char *to, const char *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = __atomic_load_n((const uint64_t *)(from + i), __ATOMIC_RELAXED);

		__atomic_store_n((uint64_t *)(to + i), word, __ATOMIC_RELAXED);
	}
}

/*
 * The copy in @slot becomes the object.  It is not traced in this cycle: what it refers to is
 * named, or found in the store by a far cycle.
 */
static void arrive(struct ebbgc_heap *h, uint64_t object, char *slot, uint64_t *entry)
{
	uint64_t now = (uint64_t)(uintptr_t)slot + HEADER;
	uint32_t region = region_of(h, object);
	size_t old = granule_of(h, object), fresh = granule_of(h, now);

	if (h->nursery.old)
		bit_set(h->nursery.old, fresh);
	if (h->marking) {
		if (bit_set(h->marks, fresh))
			__atomic_fetch_add(&h->logged_bytes, h->slot_size[h->kinds[region]],
					   __ATOMIC_RELAXED);
		far_reach(h, object);
	}
	bits_publish(&h->allocated[fresh >> 6], UINT64_C(1) << (fresh & 63));
	__atomic_fetch_and(&h->allocated[old >> 6], ~(UINT64_C(1) << (old & 63)),
			   __ATOMIC_RELAXED);
	entry_set(entry, far_entry(now, h->far.snapshots));
	__atomic_fetch_sub(&h->far.regions[region].live, 1, __ATOMIC_SEQ_CST);
}

/* The thread's own counter. */
static void count(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

/* Cycles drop forwards, and free what is empty in the store: they must not be too rare. */
static void brought(struct ebbgc_heap *h, size_t bytes)
{
	uint64_t limit = h->far.budget << REGION_SHIFT;
	uint64_t now = __atomic_add_fetch(&h->far.brought_bytes, bytes, __ATOMIC_RELAXED);

	if (now < limit || now - bytes >= limit)
		return;
	pthread_mutex_lock(&h->lock);
	if (h->requested == h->ended && !h->suspended)
		cycle_request(h);
	pthread_mutex_unlock(&h->lock);
}

/* The caller has claimed the object.  Returns 0, or why it is not brought; the claim has ended. */
static int bring(struct mutator *m, uint64_t object, uint64_t *entry, char *slot)
{
	struct ebbgc_heap *h = m->heap;
	uint32_t region = region_of(h, object);
	uint8_t kind = h->kinds[region];
	size_t size = h->slot_size[kind];
	int r = 0;

	switch (far_source(region_state(h, region))) {
	case FAR_FROM_MEMORY:
		words_copy(slot, (const char *)header_of(object), size);
		count(&m->far.rescued, 1);
		break;
	case FAR_FROM_STORE:
		/* After the claim: until it ends, the place stays. */
		r = fetch(h, far_stored_of(&h->far.regions[region]), object, kind, slot);
		count(&m->far.fetched, !r);
		count(&m->far.fetched_bytes, r ? 0 : size);
		break;
	case FAR_FROM_NOWHERE:
		r = -EBADMSG;
		break;
	}
	if (r) {
		entry_set(entry, 0);
		return r;
	}
	arrive(h, object, slot, entry);
	brought(h, size);
	return 0;
}

/* Brings the object, unless another thread has claimed it.  Returns 0 or a negative errno. */
static int claim_and_bring(struct mutator *m, uint64_t object, uint64_t *entry)
{
	struct ebbgc_heap *h = m->heap;
	uint8_t kind = h->kinds[region_of(h, object)];
	char *slot = arrival_wait(h, kind);
	int r = 0;

	if (!slot)
		return -ENOMEM;
	if (entry_claim(entry)) {
		r = bring(m, object, entry, slot);
		if (!r)
			return 0;
	}
	arrival_undo(h, kind, slot);
	return r;
}

static int bring_uncancelled(struct mutator *m, uint64_t object, uint64_t *entry)
{
	int state, r;

	/* The store's read() may be a cancellation point: the claim would never end. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	r = claim_and_bring(m, object, entry);
	pthread_setcancelstate(state, NULL);
	return r;
}

uint64_t far_bring(struct mutator *m, uint64_t object)
{
	struct ebbgc_heap *h = m->heap;

	while (in_heap(h, object)) {
		uint32_t region = region_of(h, object);
		enum far_state state = region_state(h, region);
		uint64_t *table, *entry = NULL, seen = 0;
		int r = 0;

		if (state == FAR_LOCAL)
			break;
		table = forwards_of(h, region);
		if (!table && far_is_out(state)) {
			table = forwards_get(h, region);
			r = table ? 0 : -ENOMEM;
		}
		if (table) {
			entry = forward_entry(h, region, object);
			seen = __atomic_load_n(entry, __ATOMIC_SEQ_CST);
		}
		switch (r ? FAR_CLAIM : far_ask(state, object, seen)) {
		case FAR_HERE:
			return object;
		case FAR_FOLLOW:
			object = far_target(seen);
			continue;
		case FAR_WAIT:
			/* A thread that the parent has would end it. */
			if (os_forked(h->pid))
				fail(h, -ECHILD);
			else
				entry_wait(entry);
			continue;
		case FAR_CLAIM:
			if (os_forked(h->pid))
				r = -ECHILD;
			if (!r)
				r = bring_uncancelled(m, object, entry);
			if (r)
				fail(h, r);
			continue;
		}
	}
	return object;
}

/* --- a region ------------------------------------------------------------------------------- */

int far_bring_all(struct ebbgc_heap *h, uint32_t region, char *buffer)
{
	const struct far_stored *r = far_stored_of(&h->far.regions[region]);
	uint8_t kind = h->kinds[region];
	uint32_t size = (uint32_t)h->slot_size[kind], slots = tablet_slots(size);
	uint64_t base = (uint64_t)(uintptr_t)region_start(h, region);
	const uint64_t *table = forwards_get(h, region);
	int e = table ? 0 : -ENOMEM;

	if (!e)
		e = h->far.store.read(h->far.store.arg, &r->place, 0, buffer, r->bytes);
	/* In no pause of a minor cycle. */
	pthread_mutex_lock(&h->pausing);
	for (uint32_t i = tablet_next(r->tablet, slots, 0); !e && i < slots;
	     i = tablet_next(r->tablet, slots, i + 1)) {
		uint64_t object = base + (uint64_t)i * size + HEADER;
		const char *from = buffer + far_offset(h, r, i, kind);
		uint64_t *entry = forward_entry(h, region, object);
		char *slot;

		if (!bit_test(h->allocated, granule_of(h, object)))
			continue;
		slot = far_is_sound(h, from, kind) ? arrival_take(h, kind) : NULL;
		if (!slot) {
			e = far_is_sound(h, from, kind) ? -ENOMEM : -EBADMSG;
			break;
		}
		if (!entry_claim(entry)) {
			arrival_undo(h, kind, slot);
			continue;
		}
		words_copy(slot, from, size);
		arrive(h, object, slot, entry);
		__atomic_fetch_add(&h->far.homed, 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&h->pausing);
	/* A thread that has claimed an object may fail and give it up. */
	far_settle(h, region);
	if (!e && __atomic_load_n(&h->far.regions[region].live, __ATOMIC_SEQ_CST))
		e = -EAGAIN;
	if (e)
		__atomic_fetch_add(&h->far.failures, e != -EAGAIN, __ATOMIC_RELAXED);
	return e;
}
