// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdarg.h>
#include <stdio.h>

#include "error.h"
#include "utf8.h"

static int record(struct error *e, int exit_status, int code, const char *fmt,
		  va_list ap)
{
	code = code > 0 ? -code : code;
	if (e && !e->code) {
		e->code = code;
		e->exit_status = exit_status;
		vsnprintf(e->text, sizeof(e->text), fmt, ap);
		utf8_print(e->text);
	}
	return code;
}

int fail(struct error *e, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	code = record(e, EXIT_FAILED, code, fmt, ap);
	va_end(ap);
	return code;
}

int fail_exit(struct error *e, int exit_status, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	code = record(e, exit_status, code, fmt, ap);
	va_end(ap);
	return code;
}
