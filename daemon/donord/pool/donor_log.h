/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The log of the loop's thread.  The control thread writes the lines, from a ring, at a bounded
 * rate: strangers must not fill the disk, nor hide errors and events.
 */
#ifndef EBB_DONOR_LOG_H
#define EBB_DONOR_LOG_H

#include "lib/base/log_ring.h"

struct donor_log {
	struct notes notes;
	uint64_t at;             /* ns: .left last grew */
	uint32_t left, dropped;  /* lines that may be logged; lines not logged */
	int wake_fd;             /* eventfd of the control thread; -1 = none */
};

void donor_log_init(struct donor_log *l);

/* Queues a line, or counts it when there are too many.  The loop's thread. */
void donor_tell(struct donor_log *l, enum log_event event, enum log_level level, const char *fmt,
		...) __attribute__((format(printf, 4, 5)));
#define donor_say(l, level, ...) donor_tell(l, EVENT_NONE, level, __VA_ARGS__)

void donor_log_wake(const struct donor_log *l);

#endif
