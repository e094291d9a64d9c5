/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Log lines on stderr.  Under the journal each line carries its priority as an
 * sd-daemon(3) prefix, elsewhere the program's name.  Conditions that may need an
 * administrator are also events: journal entries with a MESSAGE_ID that
 * packaging/systemd/ebb.catalog explains.
 * Never call these on an I/O path: stderr may block.
 */
#ifndef EBB_LOG_H
#define EBB_LOG_H

#include "log_events.h"

enum log_level { LOG_LVL_ERR = 3, LOG_LVL_WARN = 4, LOG_LVL_INFO = 6, LOG_LVL_DEBUG = 7 };

/* @program stays valid as long as the process.  Lines above @level are dropped. */
void log_setup(const char *program, enum log_level level);

void log_line(enum log_level level, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * As log_line(), and writes an entry with the event's MESSAGE_ID to the journal, if
 * any.  Does not wait for the journal and allocates nothing.
 */
void log_event(enum log_event event, enum log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* As log_event(), with the field EBB_DEVICE=@device instead of that of log_field(). */
void log_device_event(const char *device, enum log_event event, enum log_level level,
		      const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Adds a field such as "EBB_DEVICE" to every event of this process; both strings stay valid. */
void log_field(const char *name, const char *value);

#define log_err(...) log_line(LOG_LVL_ERR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LVL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LVL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LVL_DEBUG, __VA_ARGS__)

#endif
