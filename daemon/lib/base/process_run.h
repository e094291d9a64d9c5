/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_PROCESS_RUN_H
#define EBB_PROCESS_RUN_H

#include <stddef.h>

#include "error.h"

/*
 * Runs @argv from the system's directories to its end.  Its output goes to @output
 * (NUL-terminated) unless NULL.  SIGPIPE has its default action there.  Fails unless its exit
 * status is 0.
 */
int process_run(const char *const *argv, char *output, size_t size, struct error *e);

#endif
