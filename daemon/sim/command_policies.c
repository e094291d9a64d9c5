// SPDX-License-Identifier: GPL-2.0-or-later
#include <inttypes.h>
#include <stdio.h>

#include "commands.h"
#include "policies/native.h"

static int run_policies(int argc, char **argv, void *options, struct error *e)
{
	for (const struct ebb_policy *const *p = ebb_policies; *p; p++) {
		const struct ebb_policy_info *info = (*p)->info;

		printf("%-10s  %s\n", info->name, info->help);
		for (uint32_t i = 0; i < info->params; i++)
			printf("  %s=%" PRIu64 "  (%" PRIu64 " to %" PRIu64 ") %s\n", info->param[i].name,
			       (uint64_t)info->param[i].initial, (uint64_t)info->param[i].min,
			       (uint64_t)info->param[i].max, info->param[i].help);
	}
	return 0;
}

const struct command sim_command_policies = {
	.object = "policies", .help = "List the policies and their parameters", .run = run_policies,
};
