// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>

#include "choose.h"
#include "processes.h"
#include "references.h"

int idle_choose(const struct cgroup_ref *c, const struct idle_source **source, void **state,
		struct error *e)
{
	int pid = cgroup_virtual_machine(c);

	if (pid)
		return fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
				 "%.128s: process %d runs a virtual machine, whose accesses its page tables do not show; run \"ebbctl advise\" in that machine",
				 c->rel, pid);
	*source = &idle_references;
	return idle_references.open(c, state, e);
}
