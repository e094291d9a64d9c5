/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Log lines on stderr.  Under the journal each line carries its priority as an
 * sd-daemon(3) prefix; on a terminal it carries the program's name instead.
 * What an administrator may want to be woken for is an event besides: an entry
 * of the journal with a MESSAGE_ID, explained in packaging/systemd/ebb.catalog.
 * Never call these on an I/O path: stderr may block.
 */
#ifndef EBB_LOG_H
#define EBB_LOG_H

#include "log_events.h"

enum log_level { LOG_LVL_ERR = 3, LOG_LVL_WARN = 4, LOG_LVL_INFO = 6, LOG_LVL_DEBUG = 7 };

/* @program must outlive the process.  Lines above @level are dropped. */
void log_setup(const char *program, enum log_level level);

void log_line(enum log_level level, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * The same, and an entry with the event's MESSAGE_ID where there is a journal,
 * wherever stderr goes.  Does not wait for the journal and allocates nothing.
 */
void log_event(enum log_event event, enum log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* A field that each event of this process has, "EBB_DEVICE"; both outlive the process. */
void log_field(const char *name, const char *value);

#define log_err(...) log_line(LOG_LVL_ERR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LVL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LVL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LVL_DEBUG, __VA_ARGS__)

#endif
