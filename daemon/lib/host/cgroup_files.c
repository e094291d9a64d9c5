// SPDX-License-Identifier: GPL-2.0-or-later
/* Separate from cgroup.c, so that programs can link it without libcgroup. */
#include <errno.h>
#include <limits.h>
#include <mntent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cgroup_files.h"
#include "lib/base/files.h"

#define STAT_BYTES 8192
#define MOUNT_BYTES 4096 /* of a line of the mount table; only those of overlays are longer */

static bool has_word(const char *words, const char *word)
{
	size_t len = strlen(word);

	for (const char *w = strstr(words, word); w; w = strstr(w + 1, word))
		if ((w == words || w[-1] == ' ') && (!w[len] || w[len] == ' ' || w[len] == '\n'))
			return true;
	return false;
}

static bool unified_has_memory(const char *mount)
{
	char path[PATH_MAX + 32], words[512];

	snprintf(path, sizeof(path), "%s/cgroup.controllers", mount);
	return file_read(path, words, sizeof(words)) >= 0 && has_word(words, "memory");
}

/* Finds the first mount of @type, with option @option unless NULL. */
static bool find_mount(const char *type, const char *option, char *dir, size_t size)
{
	FILE *f = setmntent("/proc/self/mounts", "re");
	char text[MOUNT_BYTES];
	struct mntent entry;
	bool found = false;

	while (f && !found && getmntent_r(f, &entry, text, sizeof(text))) {
		found = !strcmp(entry.mnt_type, type) && (!option || hasmntopt(&entry, option));
		if (found)
			snprintf(dir, size, "%s", entry.mnt_dir);
	}
	if (f)
		endmntent(f);
	return found;
}

/* A mount point, once found, is not written again: other threads may be reading it. */
static struct {
	pthread_mutex_t lock;
	char memory[PATH_MAX], unified[PATH_MAX];
	bool memory_v2;
} mounts = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool find_unified(void)
{
	return *mounts.unified ||
	       find_mount("cgroup2", NULL, mounts.unified, sizeof(mounts.unified));
}

static bool find_memory(void)
{
	if (*mounts.memory)
		return true;
	mounts.memory_v2 = find_unified() && unified_has_memory(mounts.unified);
	if (!mounts.memory_v2)
		return find_mount("cgroup", "memory", mounts.memory, sizeof(mounts.memory));
	memcpy(mounts.memory, mounts.unified, sizeof(mounts.memory));
	return true;
}

const char *cgroup_unified_mount(void)
{
	bool found;

	pthread_mutex_lock(&mounts.lock);
	found = find_unified();
	pthread_mutex_unlock(&mounts.lock);
	return found ? mounts.unified : NULL;
}

const char *cgroup_memory_mount(bool *v2)
{
	bool found;

	pthread_mutex_lock(&mounts.lock);
	found = find_memory();
	if (v2)
		*v2 = found && mounts.memory_v2;
	pthread_mutex_unlock(&mounts.lock);
	return found ? mounts.memory : NULL;
}

uint64_t cgroup_stat(const char *text, const char *key)
{
	size_t n = strlen(key);

	for (const char *line = text; line && *line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, key, n) && line[n] == ' ')
			return strtoull(line + n, NULL, 10);
	}
	return 0;
}

static uint64_t file_value(const char *dir, const char *name)
{
	char path[PATH_MAX + 32];
	int64_t v;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	v = file_number(path, 0);
	return v > 0 ? (uint64_t)v : 0;
}

int cgroup_memory_read(const char *dir, struct cgroup_memory *m)
{
	char path[PATH_MAX + 32], text[STAT_BYTES];
	uint64_t on_swap;
	ssize_t n;

	*m = (struct cgroup_memory){ 0 };
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	n = file_read(path, text, sizeof(text));
	if (n < 0)
		return (int)n;
	if (strstr(text, "\ntotal_rss ")) {
		m->anon = cgroup_stat(text, "total_rss");
		m->shared = cgroup_stat(text, "total_shmem");
		m->mapped = cgroup_stat(text, "total_mapped_file");
		m->cached = cgroup_stat(text, "total_swapcached");
		m->swapped = cgroup_stat(text, "total_swap");
		m->kernel = file_value(dir, "memory.kmem.usage_in_bytes");
		return 0;
	}
	m->anon = cgroup_stat(text, "anon");
	m->shared = cgroup_stat(text, "shmem");
	m->mapped = cgroup_stat(text, "file_mapped");
	m->kernel = cgroup_stat(text, "kernel");
	/* Version 2 also counts a page that was swapped in while its slot is kept. */
	m->cached = cgroup_stat(text, "swapcached");
	on_swap = file_value(dir, "memory.swap.current");
	m->swapped = on_swap > m->cached ? on_swap - m->cached : 0;
	return 0;
}

/* Returns the path for @controller, "" for version 2, in the text of /proc/PID/cgroup; alters it. */
static char *path_of(char *text, const char *controller)
{
	char *line, *names, *name;

	while ((line = strsep(&text, "\n"))) {
		strsep(&line, ":");
		names = strsep(&line, ":");
		while (line && (name = strsep(&names, ",")))
			if (!strcmp(name, controller))
				return line;
	}
	return NULL;
}

int cgroup_cpus(int pid, char *list, size_t size)
{
	char file[PATH_MAX + 64], text[PATH_MAX + 512], mount[2048], *path, *slash;
	bool own = find_mount("cgroup", "cpuset", mount, sizeof(mount));

	snprintf(file, sizeof(file), "/proc/%d/cgroup", pid);
	if (file_read(file, text, sizeof(text)) <= 0)
		return -ESRCH;
	if (!own && !find_mount("cgroup2", NULL, mount, sizeof(mount)))
		return -ENOENT;
	path = path_of(text, own ? "cpuset" : "");
	/* In version 2, the nearest cgroup with the controller decides. */
	while (path) {
		snprintf(file, sizeof(file), "%s%.2000s/%s", mount, path,
			 own ? "cpuset.effective_cpus" : "cpuset.cpus.effective");
		if (file_read(file, list, size) > 0)
			return 0;
		slash = strrchr(path, '/');
		if (!slash || own)
			break;
		*slash = '\0';
	}
	return -ENOENT;
}
