// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdarg.h>
#include <stdio.h>

#include "log_ring.h"

static void put(struct notes *n, enum log_event event, enum log_level level, const char *fmt,
		va_list ap)
{
	struct note *slot = &n->ring[n->put % NOTES];

	if (n->put - __atomic_load_n(&n->taken, __ATOMIC_ACQUIRE) == NOTES) {
		__atomic_add_fetch(&n->dropped, 1, __ATOMIC_RELAXED);
		return;
	}
	slot->level = level;
	slot->event = event;
	vsnprintf(slot->text, sizeof(slot->text), fmt, ap);
	__atomic_store_n(&n->put, n->put + 1, __ATOMIC_RELEASE);
}

void note(struct notes *n, enum log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put(n, EVENT_NONE, level, fmt, ap);
	va_end(ap);
}

void note_event(struct notes *n, enum log_event event, enum log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put(n, event, level, fmt, ap);
	va_end(ap);
}

void notes_log(struct notes *n)
{
	uint32_t dropped;

	while (n->taken != __atomic_load_n(&n->put, __ATOMIC_ACQUIRE)) {
		const struct note *slot = &n->ring[n->taken % NOTES];

		log_event(slot->event, slot->level, "%s", slot->text);
		__atomic_store_n(&n->taken, n->taken + 1, __ATOMIC_RELEASE);
	}
	dropped = __atomic_exchange_n(&n->dropped, 0, __ATOMIC_RELAXED);
	if (dropped)
		log_warn("%u log lines were dropped", dropped);
}
