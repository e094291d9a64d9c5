/* SPDX-License-Identifier: GPL-2.0-or-later */
/* ebb-sim, which analyses recordings, in place of ebbctl. */
#ifndef EBB_SIM_EXEC_H
#define EBB_SIM_EXEC_H

#include "lib/trace/sim.h"

/*
 * Replaces this process by ebb-sim @command on the recording @file, with the @options that are set.
 * @specs is their table.  Returns only on failure.
 */
int sim_exec(const char *command, const struct option_spec *specs, const void *options,
	     const char *file, struct error *e);

#endif
