/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_DOCTOR_BPF_H
#define EBB_DOCTOR_BPF_H

#include "doctor_check.h"

/* BPF: loads and attaches programs. */
void doctor_bpf(struct doctor *d);
/* Perf events of page faults, and their scope on a cgroup. */
void doctor_perf(struct doctor *d);

#endif
