// SPDX-License-Identifier: GPL-2.0-or-later
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cgroup_walk.h"
#include "lib/base/cleanup.h"

/* Directories that are still to be visited. */
struct pending {
	struct pending *next;
	char path[];
};

static bool push(struct pending **list, const char *dir, const char *name)
{
	size_t size = strlen(dir) + 1 + strlen(name) + 1;
	struct pending *p = malloc(sizeof(*p) + size);

	if (!p)
		return false;
	snprintf(p->path, size, *name ? "%s/%s" : "%s%s", dir, name);
	p->next = *list;
	*list = p;
	return true;
}

static int push_children(struct pending **list, const struct pending *parent)
{
	_cleanup_dir_ DIR *d = opendir(parent->path);
	struct dirent *entry;

	/* A cgroup may be removed meanwhile, or be nested more deeply than a path can say. */
	if (!d)
		return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : 0;
	while ((entry = readdir(d)))
		if (entry->d_type == DT_DIR && strcmp(entry->d_name, ".") &&
		    strcmp(entry->d_name, "..") &&
		    !push(list, parent->path, entry->d_name))
			return -ENOMEM;
	return 0;
}

int cgroup_walk(const char *dir, int (*each)(const char *dir, void *data), void *data)
{
	struct pending *list = NULL, *p;
	int r = push(&list, dir, "") ? 0 : -ENOMEM;

	while ((p = list)) {
		list = p->next;
		if (!r) {
			r = each(p->path, data);
			if (r == CGROUP_SKIP)
				r = 0;
			else if (!r)
				r = push_children(&list, p);
		}
		free(p);
	}
	return r;
}
