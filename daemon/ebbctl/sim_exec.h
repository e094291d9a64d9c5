/* SPDX-License-Identifier: GPL-2.0-or-later */
/* ebb-sim, which analyses recordings, in place of ebbctl. */
#ifndef EBB_SIM_EXEC_H
#define EBB_SIM_EXEC_H

#include <stdbool.h>

#include "lib/base/error.h"

#define SIM_WORDS 24

struct sim_call {
	const char *word[SIM_WORDS];
	int n;
};

/* First the command, then its options; a NULL @value adds nothing.  The pointers are kept. */
void sim_command(struct sim_call *c, const char *word);
void sim_add(struct sim_call *c, const char *option, const char *value);
void sim_add_flag(struct sim_call *c, const char *option, bool given);

/* Replaces this process by ebb-sim on the recording @file.  Returns only on failure. */
int sim_exec(struct sim_call *c, const char *file, struct error *e);

#endif
