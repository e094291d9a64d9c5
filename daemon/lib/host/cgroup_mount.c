// SPDX-License-Identifier: GPL-2.0-or-later
/* Apart from cgroup.c, so that programs without libcgroup can link it. */
#include <limits.h>
#include <mntent.h>
#include <stdio.h>
#include <string.h>

#include "cgroup_mount.h"
#include "lib/base/files.h"

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
	struct mntent *m;
	bool found = false;

	while (f && !found && (m = getmntent(f))) {
		found = !strcmp(m->mnt_type, type) && (!option || hasmntopt(m, option));
		if (found)
			snprintf(dir, size, "%s", m->mnt_dir);
	}
	if (f)
		endmntent(f);
	return found;
}

const char *cgroup_unified_mount(void)
{
	static char dir[PATH_MAX];

	return find_mount("cgroup2", NULL, dir, sizeof(dir)) ? dir : NULL;
}

const char *cgroup_memory_mount(bool *v2)
{
	static char dir[PATH_MAX];
	bool two = find_mount("cgroup2", NULL, dir, sizeof(dir)) && unified_has_memory(dir);

	if (v2)
		*v2 = two;
	return two || find_mount("cgroup", "memory", dir, sizeof(dir)) ? dir : NULL;
}
