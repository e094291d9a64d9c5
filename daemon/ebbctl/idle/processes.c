// SPDX-License-Identifier: GPL-2.0-or-later
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "processes.h"

struct each_process {
	const struct cgroup_ref *cgroup;
	int (*each)(int pid, void *data);
	void *data;
};

static int each_of(const char *dir, void *data)
{
	const struct each_process *p = data;
	_cleanup_file_ FILE *f = NULL;
	char path[PATH_MAX + 16];
	size_t n = strlen(p->cgroup->path);
	int pid, r = 0;

	if (strncmp(dir, p->cgroup->path, n) || (dir[n] && dir[n] != '/'))
		return 0;
	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	f = fopen(path, "re");
	/* 0: a process of another PID namespace. */
	while (f && !r && fscanf(f, "%d", &pid) == 1)
		r = pid > 0 ? p->each(pid, p->data) : 0;
	return r;
}

int cgroup_each_process(const struct cgroup_ref *c, int (*each)(int pid, void *data), void *data)
{
	struct each_process p = { c, each, data };

	return cgroup_each(each_of, &p);
}

bool holds_virtual_machine(const char *fds)
{
	_cleanup_dir_ DIR *d = opendir(fds);
	struct dirent *entry;
	char link[64];

	while (d && (entry = readdir(d))) {
		ssize_t n = readlinkat(dirfd(d), entry->d_name, link, sizeof(link) - 1);

		if (n <= 0)
			continue;
		link[n] = '\0';
		if (!strcmp(link, "anon_inode:kvm-vm"))
			return true;
	}
	return false;
}

static int is_virtual_machine(int pid, void *data)
{
	char fds[32];

	snprintf(fds, sizeof(fds), "/proc/%d/fd", pid);
	return holds_virtual_machine(fds) ? pid : 0;
}

int cgroup_virtual_machine(const struct cgroup_ref *c)
{
	int pid = cgroup_each_process(c, is_virtual_machine, NULL);

	return pid > 0 ? pid : 0;
}
