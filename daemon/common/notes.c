// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdarg.h>
#include <stdio.h>

#include "notes.h"

void note(struct notes *n, enum log_level level, const char *fmt, ...)
{
	struct note *slot = &n->ring[n->put % NOTES];
	va_list ap;

	if (n->put - __atomic_load_n(&n->taken, __ATOMIC_ACQUIRE) == NOTES) {
		__atomic_add_fetch(&n->dropped, 1, __ATOMIC_RELAXED);
		return;
	}
	slot->level = level;
	va_start(ap, fmt);
	vsnprintf(slot->text, sizeof(slot->text), fmt, ap);
	va_end(ap);
	__atomic_store_n(&n->put, n->put + 1, __ATOMIC_RELEASE);
}

void notes_log(struct notes *n)
{
	uint32_t dropped;

	while (n->taken != __atomic_load_n(&n->put, __ATOMIC_ACQUIRE)) {
		const struct note *slot = &n->ring[n->taken % NOTES];

		log_line(slot->level, "%s", slot->text);
		__atomic_store_n(&n->taken, n->taken + 1, __ATOMIC_RELEASE);
	}
	dropped = __atomic_exchange_n(&n->dropped, 0, __ATOMIC_RELAXED);
	if (dropped)
		log_warn("%u log lines were dropped", dropped);
}
