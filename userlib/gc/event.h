/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
#ifndef EBBGC_EVENT_H
#define EBBGC_EVENT_H

#include <stdint.h>
#include "heap.h"

/* Without the lock: calls the program's event handler, if any. */
void event_send(struct ebbgc_heap *h, enum ebbgc_event_kind kind, uint64_t value, const char *text);

#endif
