/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The subcommands of ebb-sim. */
#ifndef EBB_SIM_COMMANDS_H
#define EBB_SIM_COMMANDS_H

#include "lib/base/options.h"

extern const struct command sim_command_show, sim_command_plot, sim_command_report;
extern const struct command sim_command_advise;
extern const struct command sim_command_trace, sim_command_policies, sim_command_cluster;

#define SIM_OPTION(of, field_name, option_name, kind, meta, ...) \
	{ .name = option_name, .type = kind, .offset = offsetof(struct of, field_name), \
	  .metavar = meta, __VA_ARGS__ }
#define SIM_JSON { .name = "json", .letter = 'j', .type = OPTION_FLAG, .help = "print JSON", \
		   .offset = 0 }

#endif
