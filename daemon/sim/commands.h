/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The subcommands of ebb-sim. */
#ifndef EBB_SIM_COMMANDS_H
#define EBB_SIM_COMMANDS_H

#include "lib/base/command.h"

extern const struct command sim_command_show, sim_command_plot, sim_command_report;
extern const struct command sim_command_advise;
extern const struct command sim_command_trace, sim_command_policies, sim_command_cluster;
extern const struct command sim_command_extents, sim_command_heap;

#endif
