/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_COMPLETION_H
#define EBB_COMPLETION_H

#include <stdio.h>

#include "common/options.h"

/* Writes a bash completion for @program from its tables (which end with NULL). */
void completion_bash(const char *program, const struct command *const *commands, FILE *out);

#endif
