/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Log lines of the loop thread.  Writing to stderr may block, so the loop thread puts
 * its lines into a ring and the control thread writes them.
 */
#ifndef EBB_NOTES_H
#define EBB_NOTES_H

#include <stdint.h>

#include "log.h"

#define NOTES 64

struct notes {
	struct note { enum log_level level; enum log_event event; char text[240]; } ring[NOTES];
	uint32_t put, taken; /* one producer, one consumer */
	uint32_t dropped;
};

/* Loop thread.  A full ring drops the line. */
void note(struct notes *n, enum log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* As note(), with an event of the journal. */
void note_event(struct notes *n, enum log_event event, enum log_level level, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Control thread: logs the lines in the ring. */
void notes_log(struct notes *n);

#endif
