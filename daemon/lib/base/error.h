/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Errors that a person can act on.
 *
 * Functions return 0 or -errno and, when they take a struct error, say in it
 * what failed in one sentence of the form "THING: CAUSE; REMEDY".  The first
 * error wins: a caller that adds nothing passes the callee's through.
 */
#ifndef EBB_ERROR_H
#define EBB_ERROR_H

#include <stdbool.h>

/* Exit statuses of every ebb program; documented in ebbctl(8). */
enum ebb_exit {
	EXIT_OK = 0,
	EXIT_FAILED = 1,      /* it was tried and did not work */
	EXIT_USAGE = 2,       /* the command line or the configuration is wrong */
	EXIT_UNSUPPORTED = 3, /* this kernel or machine cannot do it */
	EXIT_NO_DAEMON = 4,   /* ebbd does not answer */
	EXIT_REFUSED = 5,     /* possible, but would do harm now */
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

/* The same with an exit status other than EXIT_FAILED. */
int fail_exit(struct error *e, int exit_status, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#endif
