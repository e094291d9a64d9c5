// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The first reading clears the accessed bits, later ones count them.  Later ones clear nothing,
 * so each knows the accesses since the first, and a process waits for its page tables only once.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "processes.h"
#include "references.h"

/* Of anonymous mappings alone. */
#define CLEAR "2"

struct mapping {
	bool anonymous;
	uint64_t size, referenced, locked;
};

/* A page that several processes map may be idle in one of them only: it counts as accessed. */
static void add(const struct mapping *m, struct referenced *sum)
{
	if (!m->anonymous || m->locked)
		return;
	sum->total += m->size;
	sum->idle += m->size > m->referenced ? m->size - m->referenced : 0;
}

void smaps_read(FILE *smaps, struct referenced *sum)
{
	_cleanup_free_ char *line = NULL;
	struct mapping m = { false, 0, 0, 0 };
	unsigned long long inode, kib;
	size_t size = 0;
	char key[32];

	while (getline(&line, &size, smaps) >= 0) {
		if (sscanf(line, "%*x-%*x %*s %*x %*x:%*x %llu", &inode) == 1) {
			add(&m, sum);
			m = (struct mapping){ .anonymous = !inode };
			continue;
		}
		if (sscanf(line, "%31[^:]: %llu kB", key, &kib) != 2)
			continue;
		if (!strncmp(key, "Private_", 8) && strcmp(key, "Private_Hugetlb"))
			m.size += kib << 10;
		else if (!strcmp(key, "Referenced"))
			m.referenced = kib << 10;
		else if (!strcmp(key, "Locked"))
			m.locked = kib << 10;
	}
	add(&m, sum);
}

static int clear(int pid, void *data)
{
	char path[64];
	int r;

	snprintf(path, sizeof(path), "/proc/%d/clear_refs", pid);
	r = file_write(path, CLEAR);
	/* It has exited meanwhile. */
	return r == -ENOENT || r == -ESRCH ? 0 : r;
}

static int count(int pid, void *data)
{
	_cleanup_file_ FILE *f = NULL;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/smaps", pid);
	f = fopen(path, "re");
	if (f)
		smaps_read(f, data);
	return 0;
}

static int read_references(void *state, bool first, struct idle_counts *counts, struct error *e)
{
	const struct cgroup_ref *c = state;
	struct referenced sum = { 0, 0 };
	int r = first ? cgroup_each_process(c, clear, NULL) : 0;

	if (r)
		return fail(e, r, "%.200s: cannot clear accessed bits: %s; run as root",
			    c->rel, strerror(-r));
	cgroup_each_process(c, count, &sum);
	*counts = (struct idle_counts){ .total = sum.total, .idle = first ? 0 : sum.idle };
	return 0;
}

static void close_references(void *state)
{
	free(state);
}

static int open_references(const struct cgroup_ref *c, void **state, struct error *e)
{
	int pid = cgroup_virtual_machine(c);
	struct cgroup_ref *own;

	if (pid)
		return fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
				 "%.128s: process %d runs a virtual machine, and its page tables do not show the machine's accesses; run \"ebbctl advise\" in that machine",
				 c->rel, pid);
	if (access("/proc/self/clear_refs", W_OK) || access("/proc/self/smaps", R_OK))
		return fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
				 "advise: /proc/PID/clear_refs is missing; use a kernel with CONFIG_PROC_PAGE_MONITOR");
	own = malloc(sizeof(*own));
	if (!own)
		return fail(e, ENOMEM, "advise: out of memory");
	*own = *c;
	*state = own;
	return 0;
}

const struct idle_source idle_references = {
	"references", open_references, read_references, close_references,
};
