// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"
#include "utf8.h"

#define JOURNAL "/run/systemd/journal/socket"

static const char *const message_ids[EVENTS] = {
#define E(name, id) [EVENT_##name] = id,
	LOG_EVENTS(E)
#undef E
};

static struct {
	const char *program;
	enum log_level level;
	bool journal;
	const char *field, *value;
} logger = { "ebb", LOG_LVL_INFO, false, NULL, NULL };

void log_setup(const char *program, enum log_level level)
{
	logger.program = program;
	logger.level = level;
	logger.journal = getenv("JOURNAL_STREAM") != NULL;
}

void log_field(const char *name, const char *value)
{
	logger.field = name;
	logger.value = value;
}

/*
 * One datagram of the journal's native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL).
 * sd_journal_send() would wait for a journal that does not read, which may itself wait
 * for the swap device that logs.
 */
static bool journal_send(enum log_event event, enum log_level level, const char *device,
			 const char *text)
{
	static const struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = JOURNAL };
	const char *field = device ? "EBB_DEVICE" : logger.field, *value = device ?: logger.value;
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), n;
	char entry[2048];
	bool sent;

	if (fd < 0)
		return false;
	n = snprintf(entry, sizeof(entry),
		     "MESSAGE=%s\nPRIORITY=%d\nMESSAGE_ID=%s\nSYSLOG_IDENTIFIER=%s\n%s%s%.256s%s", text,
		     level, message_ids[event], logger.program, field ?: "", field ? "=" : "",
		     field ? value : "", field ? "\n" : "");
	sent = n > 0 && (size_t)n < sizeof(entry) &&
	       sendto(fd, entry, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL,
		      (const struct sockaddr *)&address, sizeof(address)) == n;
	close(fd);
	return sent;
}

static void say(enum log_event event, enum log_level level, const char *device, const char *fmt,
		va_list ap)
{
	char text[1024];

	if (level > logger.level)
		return;
	vsnprintf(text, sizeof(text), fmt, ap);
	utf8_print(text);
	if (event != EVENT_NONE && journal_send(event, level, device, text) && logger.journal)
		return;
	if (logger.journal)
		fprintf(stderr, "<%d>%s\n", level, text);
	else
		fprintf(stderr, "%s: %s%s\n", logger.program,
			level == LOG_LVL_ERR ? "error: " :
			level == LOG_LVL_WARN ? "warning: " : "", text);
}

void log_line(enum log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(EVENT_NONE, level, NULL, fmt, ap);
	va_end(ap);
}

void log_event(enum log_event event, enum log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(event, level, NULL, fmt, ap);
	va_end(ap);
}

void log_device_event(const char *device, enum log_event event, enum log_level level,
		      const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(event, level, device, fmt, ap);
	va_end(ap);
}
