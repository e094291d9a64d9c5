// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "barrier.h"
#include "fetch.h"
#include "forward.h"
#include "mark.h"
#include "notes.h"
#include "object.h"
#include "os.h"
#include "remember.h"
#include "type.h"
#include "work_pool.h"

void barrier_set(const struct ebbgc_heap *h, struct mutator *m)
{
	/* With a nursery, stores take the slow path to be remembered. */
	uint32_t flags = h->marking || remembers(h) ? EBBGC_MARKING : 0;

	if (h->marking && h->marker.order->wants_notes)
		flags |= EBBGC_NOTING;
	if (h->stamped)
		flags |= EBBGC_STAMPED;
	if (h->moving.active)
		flags |= EBBGC_MOVED;
	/* The thread may be running, and reads them, if they are set. */
	if (m->public.states != h->moving.states) {
		m->public.states = h->moving.states;
		m->public.base = (uint64_t)(uintptr_t)h->base;
		m->public.blocks = h->region_count;
	}
	__atomic_store_n(&m->public.stamp, h->tag, __ATOMIC_RELAXED);
	__atomic_store_n(&m->public.flags, flags, __ATOMIC_RELAXED);
}

void barrier_set_all(struct ebbgc_heap *h)
{
	for (struct mutator *m = h->mutators; m; m = m->next)
		barrier_set(h, m);
}

/*
 * Returns a reference to where the object is for this thread.  A child of fork() that is made while
 * objects move, before threads have EBBGC_MOVED, sees the old copies only.
 */
static uint64_t forwarded(const struct mutator *m, uint64_t bits)
{
	return ebbgc_flags(&m->public) & EBBGC_MOVED ? forward_bits(m->heap, bits) : bits;
}

void barrier_log(struct mutator *m, ebbgc_ref_t old)
{
	if (!m->heap->marking)
		return;
	old.bits = forwarded(m, old.bits);
	if (object_marked(m->heap, old.bits & EBBGC_ADDRESS_MASK))
		return;
	if (m->logged == SATB_ENTRIES) {
		/* After fork() no thread marks, and the pool's lock may be held for ever. */
		if (!os_forked(m->heap->pid))
			work_add_log(m->heap, m->log, m->logged);
		m->logged = 0;
	}
	m->log[m->logged++] = old.bits;
}

void ebbgc_log_old(ebbgc_mutator_t *mutator, ebbgc_ref_t old)
{
	struct mutator *m = mutator_of(mutator);

	if (remembers(m->heap))
		remember_nothing(m->heap);
	barrier_log(m, old);
}

/*
 * Is it known that the object dies in this cycle?  Only weak slots refer to it.  Once all is marked
 * no slot has an old name.
 */
static bool is_dead(const ebbgc_mutator_t *mutator, ebbgc_ref_t ref)
{
	const struct ebbgc_heap *h = ((const struct mutator *)mutator)->heap;

	return weak_are_null(h) && !object_marked(h, ref.bits & EBBGC_ADDRESS_MASK);
}

/*
 * Is it known that the program cannot reach the object, so that it need not be logged?  Unlike
 * is_dead(), also while the program may still find dead objects by EBBGC_CLEAR_LAST.
 */
static bool is_unreachable(const ebbgc_mutator_t *mutator, ebbgc_ref_t ref)
{
	const struct ebbgc_heap *h = ((const struct mutator *)mutator)->heap;

	return all_marked(h) && !object_marked(h, ref.bits & EBBGC_ADDRESS_MASK);
}

/* Logs what a word refers to.  That of an ambiguous slot may point into an object, or to none. */
static void log_word(struct mutator *m, ebbgc_ref_t word)
{
	const struct ebbgc_heap *h = m->heap;

	if (!h->marking)
		return;
	word.bits = forwarded(m, word.bits);
	if (!object_at(h, word.bits & EBBGC_ADDRESS_MASK))
		word.bits = old_object_containing(h, word.bits);
	if (!ebbgc_is_null(word) && !is_unreachable(&m->public, word))
		barrier_log(m, word);
}

void ebbgc_overwrite_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t old)
{
	struct mutator *m = mutator_of(mutator);

	if (remembers(m->heap))
		remember_object(m, object);
	log_word(m, old);
}

void ebbgc_replace_slow(ebbgc_mutator_t *mutator, const void *slot, ebbgc_ref_t old,
			ebbgc_ref_t value)
{
	struct mutator *m = mutator_of(mutator);

	if (remembers(m->heap))
		remember_slot(m, slot, value);
	log_word(m, old);
}

void barrier_find(struct ebbgc_heap *h)
{
	/* In a child of fork() nothing is cleared, and the lock may be held for ever. */
	if (__atomic_load_n(&h->found, __ATOMIC_RELAXED) || os_forked(h->pid))
		return;
	pthread_mutex_lock(&h->clearing);
	__atomic_store_n(&h->found, true, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&h->clearing);
}

ebbgc_ref_t ebbgc_weak_read_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t ref, enum ebbgc_clear when)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	bool null = when == EBBGC_CLEAR_LAST ? h->settled_last : weak_are_null(h);

	if (ebbgc_is_null(ref))
		return ref;
	if (h->settled && !object_marked(h, ref.bits & EBBGC_ADDRESS_MASK)) {
		if (null)
			return EBBGC_NULL;
		barrier_find(h);
	}
	barrier_log(mutator_of(mutator), ref);
	return ref;
}

static uint64_t stamped(uint64_t bits, const ebbgc_mutator_t *mutator)
{
	return (bits & EBBGC_ADDRESS_MASK) | __atomic_load_n(&mutator->stamp, __ATOMIC_RELAXED);
}

/* Returns a reference to where the object is, in local memory; keeps the stamp. */
static uint64_t current(struct mutator *m, uint64_t bits)
{
	if (!m->heap->far.on)
		return forwarded(m, bits);
	if (!(__atomic_load_n(&m->public.flags, __ATOMIC_RELAXED) & EBBGC_MOVED))
		return bits;
	return (bits & ~EBBGC_ADDRESS_MASK) | far_bring(m, bits & EBBGC_ADDRESS_MASK);
}

ebbgc_ref_t ebbgc_load_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t object, const ebbgc_ref_t *slot,
			    ebbgc_ref_t ref)
{
	uint64_t was = ref.bits;

	ref.bits = current(mutator_of(mutator), was);
	if (__atomic_load_n(&mutator->flags, __ATOMIC_RELAXED) & EBBGC_NOTING) {
		notes_add(mutator_of(mutator), object.bits & EBBGC_ADDRESS_MASK);
		notes_add_target(mutator_of(mutator), ref.bits & EBBGC_ADDRESS_MASK);
	}
	if (ebbgc_is_stale(mutator, ref))
		ref.bits = stamped(ref.bits, mutator);
	if (ref.bits == was)
		return ref;
	/* Heal or stamp the slot too, without undoing a concurrent store. */
	if (__atomic_compare_exchange_n((uint64_t *)&slot->bits, &was, ref.bits, false,
					__ATOMIC_ACQ_REL, __ATOMIC_RELAXED) &&
	    mutator_of(mutator)->heap->far.on)
		far_healed(mutator_of(mutator));
	return ref;
}

void ebbgc_store_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slot,
		      ebbgc_ref_t value)
{
	uint32_t flags = __atomic_load_n(&mutator->flags, __ATOMIC_RELAXED);
	struct mutator *m = mutator_of(mutator);

	if (!ebbgc_is_null(value))
		value.bits = stamped(value.bits, mutator);
	if (remembers(m->heap))
		remember(m, object, slot, value);
	if (m->heap->marking) {
		ebbgc_ref_t old;

		old.bits = __atomic_exchange_n(&slot->bits, value.bits, __ATOMIC_ACQ_REL);
		/* Logged, what was dead would survive. */
		if (!is_unreachable(mutator, old))
			barrier_log(m, old);
		if (flags & EBBGC_NOTING)
			notes_add(m, object.bits & EBBGC_ADDRESS_MASK);
		return;
	}
	__atomic_store_n(&slot->bits, value.bits, __ATOMIC_RELEASE);
}

/* The snapshot may have no strong path to the target: log it, to keep it alive. */
ebbgc_ref_t ebbgc_load_weak(ebbgc_mutator_t *mutator, ebbgc_ref_t object, const ebbgc_ref_t *slot)
{
	const bool marking = EBBGC_UNLIKELY(ebbgc_flags(mutator) & EBBGC_MARKING);
	ebbgc_ref_t ref = ebbgc_read(slot);

	/* What is dead must not be brought: it would count as alive. */
	if (marking && mutator_of(mutator)->heap->far.on) {
		ref.bits = forwarded(mutator_of(mutator), ref.bits);
		if (is_dead(mutator, ref))
			return EBBGC_NULL;
	}
	ref = ebbgc_load(mutator, object, slot);
	if (marking) {
		if (is_dead(mutator, ref))
			return EBBGC_NULL;
		barrier_log(mutator_of(mutator), ref);
	}
	return ref;
}

bool ebbgc_cas_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slot,
		    ebbgc_ref_t *expected, ebbgc_ref_t value)
{
	ebbgc_ref_t was = { __atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE) }, now, seen;
	struct mutator *m = mutator_of(mutator);

	if (remembers(m->heap))
		remember(m, object, slot, value);
	for (;;) {
		now.bits = forwarded(m, was.bits);
		seen = is_dead(mutator, now) ? EBBGC_NULL : now;
		/*
		 * Stamps may differ between two references to one object.  What is not in local
		 * memory cannot be what is expected: no thread has its address.
		 */
		if (!ebbgc_same(seen, *expected))
			break;
		if (__atomic_compare_exchange_n(&slot->bits, &was.bits, value.bits, false,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			barrier_log(m, seen);
			return true;
		}
	}
	seen.bits = current(m, seen.bits);
	barrier_log(m, seen);
	*expected = seen;
	return false;
}

/* For another slot: an object in the store stays there. */
static ebbgc_ref_t load_to_copy(ebbgc_mutator_t *mutator, ebbgc_ref_t object,
				const ebbgc_ref_t *slot)
{
	const struct mutator *m = mutator_of(mutator);
	ebbgc_ref_t ref;

	if (!m->heap->far.on)
		return ebbgc_load(mutator, object, slot);
	ref = ebbgc_read(slot);
	ref.bits = forwarded(m, ref.bits);
	return ref;
}

static bool is_weak(const struct ebbgc_heap *h, ebbgc_ref_t object)
{
	return in_heap(h, object.bits & EBBGC_ADDRESS_MASK) &&
	       (h->types[ebbgc_type_of(object)].flags & EBBGC_WEAK);
}

void ebbgc_copy(ebbgc_mutator_t *mutator, ebbgc_ref_t to_object, ebbgc_ref_t *to,
		ebbgc_ref_t from_object, const ebbgc_ref_t *from, size_t count)
{
	/*
	 * Weak references are loaded as such: the copy may be strong and already traced, or weak
	 * and not visited when dead references are cleared.
	 */
	const bool weak = EBBGC_UNLIKELY(ebbgc_flags(mutator) & EBBGC_MARKING) &&
			  is_weak(mutator_of(mutator)->heap, from_object);

	/* Upwards, unless that would overwrite slots that are still to be read. */
	const bool up = to <= from || to >= from + count;

	for (size_t n = 0; n < count; n++) {
		size_t i = up ? n : count - 1 - n;

		ebbgc_store(mutator, to_object, &to[i],
			    weak ? ebbgc_load_weak(mutator, from_object, &from[i]) :
				   load_to_copy(mutator, from_object, &from[i]));
	}
}

void ebbgc_fill(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slots,
		ebbgc_ref_t value, size_t count)
{
	for (size_t i = 0; i < count; i++)
		ebbgc_store(mutator, object, &slots[i], value);
}
