// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/control/control.h"
#include "lib/host/cgroup.h"
#include "server_policy.h"
#include "share.h"

/* Returns whether the cgroup or an ancestor has a policy. */
static bool tracked(struct ebbd *d, const struct cgroup_ref *c)
{
	char dir[PATH_MAX];
	struct ebb_cgroup governor;
	struct stat st;
	char *end;

	snprintf(dir, sizeof(dir), "%s", c->path);
	for (end = dir + strlen(dir); stat(dir, &st) == 0; *end = '\0') {
		uint64_t id = st.st_ino;

		if (bpf_map_lookup_elem(d->plane.cgroups, &id, &governor) == 0 &&
		    (governor.flags & EBB_CGROUP_ATTACHED))
			return true;
		if (end - dir <= (ptrdiff_t)(strlen(c->path) - strlen(c->rel)))
			break;
		end = strrchr(dir, '/');
		if (!end || end == dir)
			break;
	}
	return false;
}

/* Finds the lowest free slot, after removing entries of dead processes. */
static int free_slot(int slots, uint32_t *slot)
{
	bool taken[EBB_MAX_EPOCH_SLOTS] = { false };
	uint32_t dead[EBB_MAX_EPOCH_SLOTS], key, *prev = NULL, value, n = 0;

	while (bpf_map_get_next_key(slots, prev, &key) == 0) {
		if (kill((pid_t)key, 0) < 0 && errno == ESRCH && n < EBB_MAX_EPOCH_SLOTS)
			dead[n++] = key;
		else if (bpf_map_lookup_elem(slots, &key, &value) == 0 &&
			 value < EBB_MAX_EPOCH_SLOTS)
			taken[value] = true;
		prev = &key;
	}
	while (n)
		bpf_map_delete_elem(slots, &dead[--n]);
	for (*slot = 0; *slot < EBB_MAX_EPOCH_SLOTS; ++*slot)
		if (!taken[*slot])
			return 0;
	return -ENOSPC;
}

int epoch_share(struct ebbd *d, struct json_object *request, struct json_object *answer,
		struct error *e)
{
	/* A "pid" in the request may be a number of another PID namespace. */
	uint32_t pid = (uint32_t)control_server_peer(d->server)->pid, slot;
	uint64_t zero = 0;
	struct cgroup_ref c;
	int r;

	if (!pid)
		return fail_exit(e, EXIT_REFUSED, ESRCH,
				 "epochs: the requesting process is outside ebbd's PID namespace; "
				 "run ebbd in that of the machine");
	r = cgroup_of_process((int)pid, &c, e);
	if (r)
		return r;
	if (!tracked(d, &c))
		return fail_exit(e, EXIT_REFUSED, ENOENT,
				 "process %u: neither its cgroup %s nor one above has a policy; "
				 "see ebbctl policy attach", pid, c.rel);
	if (bpf_map_lookup_elem(d->plane.epoch_slots, &pid, &slot)) {
		if (free_slot(d->plane.epoch_slots, &slot))
			return fail_exit(e, EXIT_REFUSED, ENOSPC,
					 "process %u: all %d epoch slots are taken", pid,
					 EBB_MAX_EPOCH_SLOTS);
		if (bpf_map_update_elem(d->plane.epochs, &slot, &zero, BPF_ANY) ||
		    bpf_map_update_elem(d->plane.epoch_slots, &pid, &slot, BPF_ANY))
			return fail(e, errno, "maps/epochs: cannot write: %m");
	}
	json_add_text(answer, "map", MAPS_DIR "/epochs");
	json_add_int(answer, "slot", slot);
	json_add_int(answer, "slots", EBB_MAX_EPOCH_SLOTS);
	if (slot < EBB_MAX_ARRIVALS)
		json_add_text(answer, "arrivals", MAPS_DIR "/arrivals");
	return 0;
}
