/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Processes of a cgroup and of those below it. */
#ifndef EBB_IDLE_PROCESSES_H
#define EBB_IDLE_PROCESSES_H

#include <stdbool.h>

#include "lib/host/cgroup.h"

/* Calls @each for every process; stops at the first non-zero result and returns it. */
int cgroup_each_process(const struct cgroup_ref *c, int (*each)(int pid, void *data), void *data);

/* Whether a descriptor in the directory @fds ("/proc/PID/fd") is a virtual machine of KVM. */
bool holds_virtual_machine(const char *fds);

/* Returns a process that runs a virtual machine, or 0. */
int cgroup_virtual_machine(const struct cgroup_ref *c);

#endif
