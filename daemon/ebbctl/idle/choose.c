// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>

#include "choose.h"
#include "generations.h"
#include "processes.h"
#include "references.h"

int idle_choose(const struct cgroup_ref *c, const struct idle_source **source, void **state,
		struct error *e)
{
	static const struct idle_source *const sources[] = { &idle_generations, &idle_references };
	struct error why[2] = { 0 };
	int pid = cgroup_virtual_machine(c);

	if (pid)
		return fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
				 "%.128s: process %d runs a virtual machine, whose accesses its page tables do not show; run \"ebbctl advise\" in that machine",
				 c->rel, pid);
	for (size_t i = 0; i < 2; i++)
		if (!sources[i]->open(c, state, &why[i])) {
			*source = sources[i];
			return 0;
		}
	return fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
			 "advise: the kernel does not show which memory is idle: %.150s; %.150s",
			 why[0].text, why[1].text);
}
