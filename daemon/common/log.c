// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "log.h"

static struct {
	const char *program;
	enum log_level level;
	bool journal;
} logger = { "ebb", LOG_LVL_INFO, false };

void log_setup(const char *program, enum log_level level)
{
	logger.program = program;
	logger.level = level;
	logger.journal = getenv("JOURNAL_STREAM") != NULL;
}

void log_line(enum log_level level, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	if (level > logger.level)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (logger.journal)
		fprintf(stderr, "<%d>%s\n", level, text);
	else
		fprintf(stderr, "%s: %s%s\n", logger.program,
			level == LOG_LVL_ERR ? "error: " :
			level == LOG_LVL_WARN ? "warning: " : "", text);
}
