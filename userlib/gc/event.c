// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "event.h"
#include "os.h"

void event_send(struct ebbgc_heap *h, enum ebbgc_event_kind kind, uint64_t value, const char *text)
{
	struct ebbgc_event event = {
		.kind = kind, .time_ns = os_now(), .value = value, .text = text
	};

	if (h->options.event)
		h->options.event(h->options.event_arg, &event);
}
