/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_PRIVILEGE_H
#define EBB_PRIVILEGE_H

#include "error.h"

/* 0 for root; otherwise -EPERM, with EXIT_REFUSED and an error that @what needs root. */
int need_root(const char *what, struct error *e);

/* 0 in the initial PID namespace, whose process numbers are the kernel's; otherwise -EXDEV. */
int need_initial_pids(const char *what, struct error *e);

#endif
