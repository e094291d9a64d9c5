/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The commands of the verbs; commands.c lists them. */
#ifndef EBB_VERBS_H
#define EBB_VERBS_H

#include "lib/base/command.h"

extern const struct command command_doctor;
extern const struct command command_device_create, command_device_list;
extern const struct command command_device_destroy, command_device_abort;
extern const struct command command_device_class, command_device_sleep, command_device_wake;
extern const struct command command_donor_list, command_donor_drain, command_donor_undrain;
extern const struct command command_donor_trust, command_donor_forget;
extern const struct command command_far_create, command_far_list, command_far_show;
extern const struct command command_far_destroy;
extern const struct command command_dsm_status;
extern const struct command command_slab_list, command_slab_migrate;
extern const struct command command_policy_list, command_policy_attach;
extern const struct command command_policy_detach, command_policy_set;
extern const struct command command_policy_load, command_policy_unload, command_policy_show;
extern const struct command command_key_create, command_key_derive, command_key_show;
extern const struct command command_run, command_record, command_report, command_advise;
extern const struct command command_trace_show, command_trace_plot;
extern const struct command command_status, command_stats, command_top, command_metrics;
extern const struct command command_completion, command_version, command_help;

/* All commands in the order of the help; ends with NULL. */
extern const struct command *const commands[];

/* Returns the command of @object and @action (NULL: one-word command), or NULL. */
const struct command *command_find(const char *object, const char *action);

int ebbctl(int argc, char **argv);

#endif
