// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "donor_log.h"
#include "lib/base/clock.h"

/* Lines per second, and in a burst, the last of which are for errors and events. */
#define LOG_RATE 10
#define LOG_BURST 40
#define LOG_URGENT 10

void donor_log_init(struct donor_log *l)
{
	*l = (struct donor_log){ .at = now_ns(), .left = LOG_BURST, .wake_fd = -1 };
}

void donor_log_wake(const struct donor_log *l)
{
	if (l->wake_fd >= 0)
		eventfd_write(l->wake_fd, 1);
}

void donor_tell(struct donor_log *l, enum log_event event, enum log_level level, const char *fmt,
		...)
{
	uint64_t now = now_ns(), more = (now - l->at) / (1000000000 / LOG_RATE);
	bool urgent = event != EVENT_NONE || level == LOG_LVL_ERR;
	char text[240];
	va_list ap;

	if (more) {
		l->left = l->left + more < LOG_BURST ? l->left + (uint32_t)more : LOG_BURST;
		l->at = now;
	}
	/* Strangers cause other lines, as many as they like. */
	if (l->left <= (urgent ? 0 : LOG_URGENT)) {
		l->dropped++;
		return;
	}
	l->left--;
	if (l->dropped)
		note(&l->notes, LOG_LVL_WARN, "%u lines were not logged", l->dropped);
	l->dropped = 0;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	note_event(&l->notes, event, level, "%s", text);
	donor_log_wake(l);
}
