// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>

#include "roles.h"

/* Names of threads have at most 15 characters; longer runtime names are truncated. */
static const char *const collectors[] = {
	EBB_GC_THREAD,
	/* HotSpot: Parallel and G1, ZGC, Shenandoah; the VM thread runs the serial collector. */
	"GC Thread#", "G1 ", "VM Thread", "ZWorker", "XWorker", "ZDriver", "XDriver", "Shenandoah",
	/* .NET: server and background collection. */
	".NET Server GC", ".NET BGC",
};

int roles_write(struct plane *p, struct error *e)
{
	struct ebb_role_pattern pattern;
	uint32_t i;

	_Static_assert(sizeof(collectors) / sizeof(collectors[0]) <= EBB_MAX_ROLES, "too many");
	for (i = 0; i < sizeof(collectors) / sizeof(collectors[0]); i++) {
		size_t length = strlen(collectors[i]);

		pattern = (struct ebb_role_pattern){ .role = EBB_ROLE_GC };
		memcpy(pattern.name, collectors[i], length);
		memset(pattern.mask, 0xff, length);
		if (bpf_map_update_elem(p->roles, &i, &pattern, BPF_ANY))
			return fail(e, errno, "maps/roles: cannot write: %s", strerror(errno));
	}
	return 0;
}
