/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
#ifndef EBBGC_EVENT_H
#define EBBGC_EVENT_H

#include <stdint.h>
#include "heap.h"

/* Tells the program's event handler, if it has one.  Without the lock. */
void event_send(struct ebbgc_heap *h, enum ebbgc_event_kind kind, uint64_t value, const char *text);

#endif
