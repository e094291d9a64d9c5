/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Fibres: objects whose references change without barrier, and which are therefore traced either by
 * a tracer, or by the thread that is about to touch them, or in the first pause.  The fibre's own
 * word says whether it is traced in this cycle: 2 * fibre_cycle while it is, and one more then.
 */
#ifndef EBBGC_FIBRE_H
#define EBBGC_FIBRE_H

#include <stdint.h>

struct ebbgc_heap;
struct tracer;
struct type;

/* Traces a fibre, unless it is or was traced in this cycle. */
void fibre_trace(struct tracer *t, const struct type *type, uint64_t object);

/* World stopped, a cycle begins: traces the fibres that threads have entered, which are roots. */
void fibres_snapshot(struct ebbgc_heap *h);

#endif
