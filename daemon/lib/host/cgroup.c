// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fts.h>
#include <inttypes.h>
#include <libcgroup.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cgroup.h"
#include "cgroup_files.h"
#include "cgroup_walk.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"

/* Time for which an exited process may still be listed in its cgroup. */
#define LINGER_MS 1000

/* Unlimited on v1: PAGE_COUNTER_MAX, LONG_MAX / PAGE_SIZE, in bytes. */
#define V1_UNLIMITED ((uint64_t)INT64_MAX & ~(uint64_t)0xffff)

static const char *memory_mount(bool *v2, struct error *e)
{
	const char *mount = cgroup_memory_mount(v2);

	if (!mount)
		fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
			  "memory controller: not mounted; mount cgroup2 at /sys/fs/cgroup");
	return mount;
}

static uint64_t inode_of(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 ? st.st_ino : 0;
}

/* Returns the part of @path below @dir ("/..." or ""), or NULL. */
static const char *below(const char *path, const char *dir)
{
	size_t len = dir ? strlen(dir) : 0;

	return len && !strncmp(path, dir, len) && (path[len] == '/' || !path[len]) ?
	       path + len : NULL;
}

/* Fills @c for the existing directory @path of the hierarchy at @mount. */
static int fill(struct cgroup_ref *c, const char *path, const char *mount, bool v2)
{
	const char *rel = below(path, mount), *unified = cgroup_unified_mount();
	char twin[PATH_MAX] = "";

	if (unified)
		snprintf(twin, sizeof(twin), "%.2048s%.2000s", unified, rel);
	snprintf(c->path, sizeof(c->path), "%s", path);
	snprintf(c->rel, sizeof(c->rel), "%s", *rel ? rel : "/");
	snprintf(c->twin, sizeof(c->twin), "%s", v2 ? path : inode_of(twin) ? twin : "");
	c->id = inode_of(path);
	c->v2 = v2;
	return 0;
}

/* Returns whether a component of @path is "..". */
static bool climbs(const char *path)
{
	for (const char *at = strstr(path, ".."); at; at = strstr(at + 1, ".."))
		if ((at == path || at[-1] == '/') && (!at[2] || at[2] == '/'))
			return true;
	return false;
}

int cgroup_resolve(const char *name, struct cgroup_ref *c, struct error *e)
{
	char wanted[PATH_MAX], path[PATH_MAX], stat_file[PATH_MAX + 16];
	const char *mount, *rel;
	bool v2;

	mount = memory_mount(&v2, e);
	if (!mount)
		return -EOPNOTSUPP;
	if (!*name)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "cgroup: its name is empty; give a path such as /spark.slice");
	/* A client that may name cgroups must not learn about other files. */
	if (climbs(name))
		return fail_exit(e, EXIT_USAGE, EINVAL, "cgroup %.128s: its path contains ..; give a path without it",
				 name);
	rel = below(name, mount);
	if (!rel)
		rel = below(name, cgroup_unified_mount());
	if (!rel)
		rel = name;
	if ((size_t)snprintf(wanted, sizeof(wanted), "%s%s%s", mount, *rel && *rel != '/' ? "/" : "",
			     rel) >= sizeof(wanted))
		return fail_exit(e, EXIT_USAGE, ENAMETOOLONG, "cgroup %.64s...: name too long; give a shorter one",
				 name);
	if (!realpath(wanted, path))
		return fail_exit(e, EXIT_USAGE, errno,
				 "cgroup %.128s: %s: looked for %.200s; create it first, or see systemd-cgls",
				 name, strerror(errno), wanted);
	snprintf(stat_file, sizeof(stat_file), "%s/memory.stat", path);
	if (!below(path, mount) || access(stat_file, F_OK) < 0)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "cgroup %.128s: %.200s has no memory controller; enable it in the parent's cgroup.subtree_control",
				 name, path);
	return fill(c, path, mount, v2);
}

/* mkdir -p below @mount. */
static int make_dirs(const char *mount, const char *rel)
{
	char path[PATH_MAX];
	size_t start = snprintf(path, sizeof(path), "%.2048s%.2000s", mount, rel);

	for (char *p = path + strlen(mount) + 1; p <= path + start; p++) {
		char c = *p;

		if (c && c != '/')
			continue;
		*p = '\0';
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return -errno;
		*p = c;
	}
	return 0;
}

/* -errno of the last libcgroup call that returned @r. */
static int library_error(int r)
{
	if (r == ECGOTHER)
		return -(cgroup_get_last_errno() ?: EIO);
	return r == ECGROUPNOTALLOWED || r == ECGROUPNOTOWNER ? -EPERM : -EIO;
}

/* Creates a cgroup by libcgroup, which on v2 also enables the controller in the parents. */
static int create_in_library(const char *rel, struct error *e)
{
	struct cgroup *group;
	int r = cgroup_init();

	if (r)
		return fail(e, library_error(r), "cgroup %s: libcgroup: %s", rel, cgroup_strerror(r));
	group = cgroup_new_cgroup(rel + 1);
	if (!group || !cgroup_add_controller(group, "memory")) {
		cgroup_free(&group);
		return fail(e, ENOMEM, "cgroup %s: out of memory", rel);
	}
	r = cgroup_create_cgroup(group, 1);
	cgroup_free(&group);
	if (!r)
		return 0;
	r = library_error(r);
	return fail(e, r, "cgroup %s: cannot create: %s; %s", rel, strerror(-r),
		    geteuid() ? "run as root" : "check that its parent is delegated to you");
}

int cgroup_limit_set(const struct cgroup_ref *c, uint64_t limit, struct error *e)
{
	char path[PATH_MAX + 64], value[32] = "max";
	int r;

	snprintf(path, sizeof(path), "%s/%s", c->path,
		 c->v2 ? "memory.max" : "memory.limit_in_bytes");
	if (limit)
		snprintf(value, sizeof(value), "%" PRIu64, limit);
	else if (!c->v2)
		strcpy(value, "-1");
	r = file_write(path, value);
	return r ? fail(e, r, "cgroup %s: cannot limit memory to %s: %s", c->rel, value,
			strerror(-r)) : 0;
}

int cgroup_create(const char *rel, uint64_t limit, struct cgroup_ref *c, struct error *e)
{
	char path[PATH_MAX];
	const char *mount, *unified;
	bool v2;
	int r;

	mount = memory_mount(&v2, e);
	if (!mount)
		return -EOPNOTSUPP;
	if (rel[0] != '/' || !rel[1] || strstr(rel, "/../") || strlen(rel) > 1024)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "cgroup %.128s: not a path below the hierarchy; write /NAME", rel);
	snprintf(path, sizeof(path), "%.2048s%.2000s", mount, rel);
	if (access(path, F_OK) == 0)
		return fail_exit(e, EXIT_REFUSED, EEXIST,
				 "cgroup %s: exists; choose another name", rel);
	r = create_in_library(rel, e);
	if (r)
		return r;
	unified = cgroup_unified_mount();
	if (!v2 && unified)
		make_dirs(unified, rel); /* the twin only makes perf events cheaper */
	fill(c, path, mount, v2);
	r = c->id ? cgroup_limit_set(c, limit, e) :
		    fail(e, EIO, "cgroup %s: libcgroup did not create it in %s", rel, mount);
	if (r)
		cgroup_remove(c, NULL);
	return r;
}

static int enter(const char *dir, const char *rel, struct error *e)
{
	char path[PATH_MAX + 16];
	int r;

	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	r = file_write(path, "0");
	return r ? fail(e, r, "cgroup %s: cannot enter %s: %s", rel, dir, strerror(-r)) : 0;
}

int cgroup_enter(const struct cgroup_ref *c, struct error *e)
{
	int r = enter(c->path, c->rel, e);

	if (!r && !c->v2 && *c->twin)
		r = enter(c->twin, c->rel, e);
	return r;
}

/* Removes @dir and its descendants, children first. */
static int remove_tree(const char *dir)
{
	char *roots[] = { (char *)dir, NULL };
	FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
	FTSENT *entry;
	int r = 0;

	if (!tree)
		return -errno;
	while ((entry = fts_read(tree)))
		if (entry->fts_info == FTS_DP && rmdir(entry->fts_accpath) < 0 && errno != ENOENT)
			r = -errno;
	fts_close(tree);
	return r;
}

static int remove_dir(const char *dir)
{
	const struct timespec tick = { .tv_nsec = 10000000 };
	int r;

	for (int ms = 0;; ms += 10) {
		r = *dir ? remove_tree(dir) : 0;
		if (r != -EBUSY || ms >= LINGER_MS)
			return r;
		nanosleep(&tick, NULL);
	}
}

/* Ends the walk with the number of a process. */
static int process_of(const char *dir, void *data)
{
	char path[PATH_MAX + 16], text[32];

	snprintf(path, sizeof(path), "%.4000s/cgroup.procs", dir);
	return file_read(path, text, sizeof(text)) > 0 ? atoi(text) : 0;
}

static int first_process(const char *dir)
{
	int pid = cgroup_walk(dir, process_of, NULL);

	return pid > 0 ? pid : 0;
}

int cgroup_first_process(const struct cgroup_ref *c, char *comm, size_t size)
{
	int pid = first_process(c->path);
	char path[64];

	if (!pid && !c->v2 && *c->twin)
		pid = first_process(c->twin);
	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	if (!pid || file_read(path, comm, size) < 0)
		snprintf(comm, size, "?");
	comm[strcspn(comm, "\n")] = '\0';
	return pid;
}

int cgroup_remove(const struct cgroup_ref *c, struct error *e)
{
	char comm[32];
	int pid, r = remove_dir(c->path), twin = c->v2 ? 0 : remove_dir(c->twin);

	if (!r)
		r = twin;
	if (!r)
		return 0;
	pid = r == -EBUSY ? cgroup_first_process(c, comm, sizeof(comm)) : 0;
	if (pid)
		return fail_exit(e, EXIT_REFUSED, r,
				 "cgroup %s: process %d (%s) still runs in it; end it, then rmdir %s",
				 c->rel, pid, comm, c->path);
	return fail(e, r, "cgroup %s: cannot remove %s: %s", c->rel, c->path, strerror(-r));
}

/* Returns a number in @dir/@file; UINT64_MAX for "max" and v1's huge value. */
static uint64_t number(const char *dir, const char *file, uint64_t fallback)
{
	char path[PATH_MAX + 64], text[64];
	uint64_t v;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	if (file_read(path, text, sizeof(text)) <= 0)
		return fallback;
	if (!strncmp(text, "max", 3))
		return UINT64_MAX;
	v = strtoull(text, NULL, 10);
	return v >= V1_UNLIMITED ? UINT64_MAX : v;
}

uint64_t cgroup_own_limit(const char *dir, bool v2)
{
	uint64_t max = number(dir, v2 ? "memory.max" : "memory.limit_in_bytes", UINT64_MAX);
	uint64_t high = v2 ? number(dir, "memory.high", UINT64_MAX) : UINT64_MAX;

	return high < max ? high : max;
}

uint64_t cgroup_own_swap_limit(const char *dir, bool v2)
{
	return number(dir, v2 ? "memory.swap.max" : "memory.memsw.limit_in_bytes", UINT64_MAX);
}

uint64_t cgroup_swap_usage(const char *dir, bool v2)
{
	return number(dir, v2 ? "memory.swap.current" : "memory.memsw.usage_in_bytes", 0);
}

uint64_t cgroup_limit(const struct cgroup_ref *c)
{
	const char *mount = cgroup_memory_mount(NULL);
	size_t top = mount ? strlen(mount) : 0;
	uint64_t limit = UINT64_MAX, v;
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%s", c->path);
	while (top && strlen(dir) >= top) {
		v = cgroup_own_limit(dir, c->v2);
		limit = v < limit ? v : limit;
		if (strlen(dir) == top)
			break;
		*strrchr(dir, '/') = '\0';
	}
	return limit;
}

uint64_t cgroup_usage(const struct cgroup_ref *c)
{
	return number(c->path, c->v2 ? "memory.current" : "memory.usage_in_bytes", 0);
}

uint64_t cgroup_peak(const struct cgroup_ref *c)
{
	/* memory.peak: kernel 5.19, 8e20d4b33266 */
	return number(c->path, c->v2 ? "memory.peak" : "memory.max_usage_in_bytes", 0);
}

uint64_t cgroup_oom_kills(const struct cgroup_ref *c)
{
	char path[PATH_MAX + 32], text[512], *p;

	snprintf(path, sizeof(path), "%s/%s", c->path,
		 c->v2 ? "memory.events" : "memory.oom_control");
	if (file_read(path, text, sizeof(text)) <= 0)
		return 0;
	p = strstr(text, "oom_kill ");
	return p ? strtoull(p + 9, NULL, 10) : 0;
}

int cgroup_of_process(int pid, struct cgroup_ref *c, struct error *e)
{
	char path[64], line[PATH_MAX + 128], found[PATH_MAX] = "";
	_cleanup_file_ FILE *f = NULL;

	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	f = fopen(path, "re");
	if (!f)
		return fail_exit(e, EXIT_USAGE, ESRCH, "process %d: does not exist", pid);
	while (fgets(line, sizeof(line), f)) {
		/* "4:memory:/x" on version 1, "0::/x" on version 2; a machine may have both. */
		char *controllers = strchr(line, ':'), *name;

		name = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!name)
			continue;
		*name++ = '\0';
		name[strcspn(name, "\n")] = '\0';
		if (!strcmp(controllers + 1, "memory") || (!controllers[1] && !*found))
			snprintf(found, sizeof(found), "%s", name);
	}
	return cgroup_resolve(*found ? found : "/", c, e);
}

int cgroup_each(int (*each)(const char *dir, void *data), void *data)
{
	const char *mount = cgroup_memory_mount(NULL);

	return mount ? cgroup_walk(mount, each, data) : 0;
}

struct wanted {
	const uint64_t *ids;
	char **path;
	uint32_t n;
};

static int look_for(const char *dir, void *data)
{
	struct wanted *w = data;
	uint64_t id = inode_of(dir);

	for (uint32_t i = 0; i < w->n; i++)
		if (w->ids[i] == id && !w->path[i])
			w->path[i] = strdup(dir);
	return 0;
}

void cgroup_find_ids(const uint64_t *ids, char **path, uint32_t n)
{
	struct wanted w = { ids, path, n };

	memset(path, 0, n * sizeof(*path));
	cgroup_each(look_for, &w);
}
