/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_IDLE_CHOOSE_H
#define EBB_IDLE_CHOOSE_H

#include "source.h"

/*
 * Chooses the best source for @c and opens it.  EXIT_UNSUPPORTED with the reason of each if there
 * is none, or if a virtual machine's accesses are in no page table of its process.
 */
int idle_choose(const struct cgroup_ref *c, const struct idle_source **source, void **state,
		struct error *e);

#endif
