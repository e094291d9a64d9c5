/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The subcommands of ebb-sim, and the policies it was built with. */
#ifndef EBB_SIM_COMMANDS_H
#define EBB_SIM_COMMANDS_H

#include "common/options.h"
#include "policies/ebb_policy.h"

extern const struct command sim_command_trace, sim_command_policies;

/* Every policies/NAME.bpf.c, compiled natively; ends with NULL.  Made by part.mk. */
extern const struct ebb_policy *const sim_policies[];

#endif
