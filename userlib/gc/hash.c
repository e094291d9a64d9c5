// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Identity hashes: the upper half of an object's header, 0 until the first request. */
#include "object.h"

#define HASH_SHIFT 32
#define HASH_BLOCK 1024

/* Stafford's variant 13 of the finalizer of MurmurHash3: any bit changes half of the others. */
static uint32_t mixed(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	x = (x ^ x >> 31) >> HASH_SHIFT;
	return x ? (uint32_t)x : 1;
}

/* Returns a number that no object of the heap has had.  A thread takes them in blocks. */
static uint64_t new_number(struct mutator *m)
{
	if (!(m->hashes % HASH_BLOCK))
		m->hashes = __atomic_fetch_add(&m->heap->hashes, HASH_BLOCK, __ATOMIC_RELAXED);
	return ++m->hashes;
}

uint32_t ebbgc_hash(ebbgc_mutator_t *mutator, ebbgc_ref_t ref)
{
	struct mutator *m = mutator_of(mutator);
	uint64_t object = ref.bits & EBBGC_ADDRESS_MASK, header, hash;

	if (!object)
		return 0;
	/* It has no header, and does not move. */
	if (!in_heap(m->heap, object))
		return mixed(object);
	header = __atomic_load_n(header_of(object), __ATOMIC_RELAXED);
	if (header >> HASH_SHIFT)
		return (uint32_t)(header >> HASH_SHIFT);
	/* Multiples of the golden ratio do not repeat. */
	hash = mixed(new_number(m) * UINT64_C(0x9e3779b97f4a7c15));
	if (__atomic_compare_exchange_n(header_of(object), &header, header | hash << HASH_SHIFT,
					false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return (uint32_t)hash;
	/* Another thread was faster. */
	return (uint32_t)(header >> HASH_SHIFT);
}
