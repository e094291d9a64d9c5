/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Errors that a person can act on.
 *
 * Functions return 0 or -errno.  A function that takes a struct error describes the
 * failure there as "THING: CAUSE; REMEDY".  The first error wins, so that a caller passes
 * on the callee's.
 */
#ifndef EBB_ERROR_H
#define EBB_ERROR_H

#include <stdbool.h>

/* Exit statuses of every ebb program; documented in ebbctl(8). */
enum ebb_exit {
	EXIT_OK = 0,
	EXIT_FAILED = 1,      /* the operation failed */
	EXIT_USAGE = 2,       /* the command line or the configuration is wrong */
	EXIT_UNSUPPORTED = 3, /* this kernel or machine cannot do it */
	EXIT_NO_DAEMON = 4,   /* a daemon (ebbd, ebb-swapd, ebb-donord) does not answer */
	EXIT_REFUSED = 5,     /* possible, but harmful now */
};

struct error {
	int code;             /* -errno, 0 while nothing failed */
	int exit_status;      /* enum ebb_exit, EXIT_FAILED by default */
	char text[512];
};

/*
 * Records @fmt in @e unless @e is NULL or holds an error already, and returns
 * @code (made negative), so that `return fail(e, EINVAL, "...")` reads well.
 */
int fail(struct error *e, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* As fail(), with an exit status other than EXIT_FAILED. */
int fail_exit(struct error *e, int exit_status, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#endif
