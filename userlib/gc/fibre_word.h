/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The word of a fibre that says whether it is traced in this cycle: 2 * fibre_cycle while it is,
 * and one more then.  A fibre's references change without a barrier, so it is traced by a tracer,
 * or by the thread that is about to touch it, or in the first pause while it is entered.
 */
#ifndef EBBGC_FIBRE_WORD_H
#define EBBGC_FIBRE_WORD_H

#include <stdbool.h>
#include <stdint.h>
#include "heap.h"
#include "type.h"

static inline uint64_t *fibre_word(const struct type *type, uint64_t object)
{
	return (uint64_t *)(uintptr_t)(object + type->fibre_offset);
}

/* Returns true if the caller is to trace the fibre and then call fibre_end(). */
static inline bool fibre_begin(const struct ebbgc_heap *h, uint64_t *word)
{
	uint64_t was = __atomic_load_n(word, __ATOMIC_ACQUIRE);

	return was < 2 * h->fibre_cycle &&
	       __atomic_compare_exchange_n(word, &was, 2 * h->fibre_cycle, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

static inline void fibre_end(const struct ebbgc_heap *h, uint64_t *word)
{
	__atomic_store_n(word, 2 * h->fibre_cycle + 1, __ATOMIC_RELEASE);
}

/* Is another thread tracing it? */
static inline bool fibre_is_busy(const struct ebbgc_heap *h, const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE) == 2 * h->fibre_cycle;
}

#endif
