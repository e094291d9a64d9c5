// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <ebb/abi.h>
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/json.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "cgroup.h"
#include "cgroup_files.h"
#include "cgroup_walk.h"
#include "scope.h"
#include "systemd.h"

#define KEEP_MAX (EBB_MAX_CGROUPS + 1) /* one more that is being attached */
/* Before the first limit, wait longer for ebbd: it may attach a policy, for seconds. */
#define FIRST_MS 30000
#define AGAIN_MS 2000
#define LIMITED "0" /* memory.swap.max, or memory.swappiness */

struct scope {
	const char *keep[KEEP_MAX];    /* directories of attached cgroups */
	int n;
	bool v2;
	bool silent;                   /* systemd does not answer */
	size_t root;                   /* length of the hierarchy's mount point */
	struct json_object *changes;   /* {directory: old value} */
	struct json_object *planned;   /* changes that are still to be made */
};

static const char *scope_file(const char *device)
{
	static _Thread_local char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s.scope", ebb_device_dir(), device);
	return path;
}

/* Concurrent callers would overwrite each other's changes of the file. */
static int lock_scopes(enum scope_caller caller, struct error *e)
{
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/scope.lock", ebb_device_dir());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || flock(fd, caller == SCOPE_DAEMON ? LOCK_EX | LOCK_NB : LOCK_EX) < 0)
		return fail(e, errno, "%s: %s", path, strerror(errno));
	return TAKE_FD(fd);
}

static const char *knob(const char *dir, bool v2)
{
	static _Thread_local char path[PATH_MAX];

	snprintf(path, sizeof(path), "%.4000s/%s", dir, v2 ? "memory.swap.max" : "memory.swappiness");
	return path;
}

static bool is_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	return !strncmp(path, dir, len) && (!path[len] || path[len] == '/');
}

/* Returns whether @dir is attached, or below or above an attached cgroup: not to be limited. */
static bool is_kept(const struct scope *s, const char *dir)
{
	for (int i = 0; i < s->n; i++)
		if (is_below(dir, s->keep[i]) || is_below(s->keep[i], dir))
			return true;
	return false;
}

/* A cgroup that was removed, or lost its memory controller, has no limit: that is no error. */
static int unless_gone(int r)
{
	return r == -ENOENT || r == -ENODEV ? 0 : r;
}

static int set(struct scope *s, const char *dir, const char *value)
{
	const char *mount = cgroup_memory_mount(NULL);
	uint64_t bytes = strcmp(value, "max") ? strtoull(value, NULL, 10) : UINT64_MAX;

	if (!mount || access(dir, F_OK) < 0)
		return 0;
	/* systemd would restore its own value at the next reload. */
	if (s->v2 && !s->silent)
		s->silent = transient_swap_max(dir + strlen(mount), bytes) == -ETIMEDOUT;
	return unless_gone(file_write(knob(dir, s->v2), value));
}

/* Stores the value of @dir in @value.  Returns 0 or -errno. */
static int get(const struct scope *s, const char *dir, char *value, size_t size)
{
	ssize_t n = file_read(knob(dir, s->v2), value, size);

	if (n <= 0)
		return n ? (int)n : -ENODATA;
	value[strcspn(value, "\n")] = '\0';
	return 0;
}

/* Leaves another limit, which an administrator has set meanwhile. */
static int restore(struct scope *s, const char *dir, struct json_object *old)
{
	char now[64];
	int r = get(s, dir, now, sizeof(now));

	if (r)
		return unless_gone(r);
	return strcmp(now, LIMITED) ? 0 : set(s, dir, json_object_get_string(old));
}

static int add_inherited(const char *dir, void *data)
{
	struct scope *s = data;
	_cleanup_free_ char *parent = strndup(dir, (size_t)(strrchr(dir, '/') - dir));
	const char *old = parent ? json_text(s->changes, parent, NULL) : NULL;
	char now[64];

	if (old && !json_member(s->changes, dir) && !get(s, dir, now, sizeof(now)) &&
	    !strcmp(now, LIMITED))
		json_add_text(s->changes, dir, old);
	return 0;
}

/* On version 1 a cgroup is created with its parent's value: below a limited one, with 0. */
static void add_later_ones(struct scope *s)
{
	if (!s->v2)
		cgroup_each(add_inherited, s);
}

/* Returns NULL, with *e set, rather than forget which limits are to be restored. */
static struct json_object *load(const char *device, struct error *e)
{
	_cleanup_json_ struct json_object *list = NULL;
	struct json_object *changes = json_object_new_object();

	if (access(scope_file(device), F_OK) < 0 && errno == ENOENT)
		return changes;
	list = json_object_from_file(scope_file(device));
	if (json_object_is_type(list, json_type_array)) {
		for (size_t i = 0; i < json_object_array_length(list); i++) {
			struct json_object *o = json_object_array_get_idx(list, i);

			json_add_text(changes, json_text(o, "dir", ""), json_text(o, "old", "max"));
		}
		return changes;
	}
	json_object_put(changes);
	fail(e, EUCLEAN, "device %s: %s: cannot read which limits of cgroups to restore; restore memory.swap.max (memory.swappiness on cgroup v1) where it is 0, then remove the file",
	     device, scope_file(device));
	return NULL;
}

/* Writes [{"dir", "old"}]. */
static int save(const char *device, struct json_object *changes, struct error *e)
{
	_cleanup_json_ struct json_object *list = json_object_new_array();
	int r = file_make_dirs(ebb_device_dir(), 0755);

	json_object_object_foreach(changes, dir, old) {
		struct json_object *o = json_object_new_object();

		json_add_text(o, "dir", dir);
		json_object_object_add(o, "old", json_object_get(old));
		json_object_array_add(list, o);
	}
	if (!r)
		r = file_replace(scope_file(device), json_object_to_json_string(list));
	return r ? fail(e, r, "device %s: cannot write %s: %s", device, scope_file(device),
			strerror(-r)) : 0;
}

static int plan(const char *dir, void *data)
{
	struct scope *s = data;
	char old[64];

	if (strlen(dir) <= s->root || is_kept(s, dir))
		return 0;
	if (!json_member(s->changes, dir)) {
		/* On version 1, 0 is recorded to tell it from a cgroup that is created later. */
		if (get(s, dir, old, sizeof(old)) || (s->v2 && !strcmp(old, LIMITED)))
			return 0;
		json_add_text(s->planned, dir, old);
	}
	/* The limit of v2 includes descendants. */
	return s->v2 ? CGROUP_SKIP : 0;
}

/* Cgroups whose limit could not be written. */
struct failures {
	const char *dir; /* one of them */
	int n, code;     /* its -errno */
};

static void count_failure(struct failures *f, const char *dir, int code)
{
	if (!f->n++) {
		f->dir = dir;
		f->code = code;
	}
}

static int cannot_restore(const struct scope *s, const struct failures *f, const char *device,
			  const char *remedy, struct error *e)
{
	return fail(e, f->code,
		    "device %s: cannot restore memory.%s of %d cgroup%s, such as %.200s: %s; %s",
		    device, s->v2 ? "swap.max" : "swappiness", f->n, f->n == 1 ? "" : "s", f->dir,
		    strerror(-f->code), remedy);
}

/*
 * Restores cgroups that have been attached since.  Others stay in the list while they exist, and
 * those that cannot be restored.
 */
static int release(struct scope *s, const char *device, struct error *e)
{
	struct failures failed = { .n = 0 };

	json_object_object_foreach(s->changes, dir, old) {
		bool kept = is_kept(s, dir);
		int r = kept ? restore(s, dir, old) : 0;

		if (r)
			count_failure(&failed, dir, r);
		else if (kept || access(dir, F_OK) < 0)
			json_object_object_del(s->changes, dir);
	}
	return failed.n ? cannot_restore(s, &failed, device,
					 "attach the policy again as root, or programs there cannot swap",
					 e) : 0;
}

static void keep_attached(struct scope *s, struct json_object *status)
{
	struct json_object *list = json_member(status, "attachments");
	size_t n = list ? json_object_array_length(list) : 0;

	for (size_t i = 0; i < n && s->n < KEEP_MAX; i++) {
		const char *dir = json_text(json_object_array_get_idx(list, i), "cgroup", NULL);

		if (dir)
			s->keep[s->n++] = dir;
	}
}

/* Records the planned limits, sets them, and forgets those that could not be set. */
static int limit(struct scope *s, const char *device, struct error *e)
{
	struct failures failed = { .n = 0 };
	int r;

	json_object_object_foreach(s->planned, dir, old)
		json_object_object_add(s->changes, dir, json_object_get(old));
	r = save(device, s->changes, e);
	if (r)
		return r;
	json_object_object_foreach(s->planned, limited, unused) {
		r = set(s, limited, LIMITED);
		if (r) {
			count_failure(&failed, limited, r);
			json_object_object_del(s->changes, limited);
		}
	}
	if (!failed.n)
		return 0;
	log_warn("device %s: cannot limit %d cgroup%s, such as %.200s: %s; run ebb as root, or its programs use the device",
		 device, failed.n, failed.n == 1 ? "" : "s", failed.dir, strerror(-failed.code));
	return save(device, s->changes, e);
}

int scope_apply(const char *device, const char *extra, enum scope_caller caller, struct error *e)
{
	struct json_object *status;
	struct scope s = { .n = 0 };
	const char *mount = cgroup_memory_mount(&s.v2);
	_cleanup_close_ int lock = lock_scopes(caller, e);
	bool first;
	int r, released;

	if (lock < 0)
		return lock;
	first = !scope_has_limits(device);
	/* `device destroy` undoes the limits before it removes the device's record. */
	if (first && caller == SCOPE_DAEMON)
		return 0;
	s.changes = load(device, e);
	if (!s.changes)
		return -EUCLEAN;
	status = control_ask(ebb_control_socket(), "status", first ? FIRST_MS : AGAIN_MS);
	if (extra)
		s.keep[s.n++] = extra;
	keep_attached(&s, status);
	s.root = mount ? strlen(mount) : 0;
	s.planned = json_object_new_object();
	add_later_ones(&s);
	released = release(&s, device, e);
	/* While ebbd is unresponsive or restarts, any cgroup may be attached. */
	if (status || first)
		cgroup_each(plan, &s);
	r = limit(&s, device, e) ?: released;
	if (!r && !status && !first)
		r = fail_exit(e, EXIT_NO_DAEMON, ENODATA,
			      "device %s: ebbd does not answer, so that --scope attached limits no more cgroups; attach or detach a cgroup once ebbd runs",
			      device);
	json_object_put(s.planned);
	json_object_put(s.changes);
	json_object_put(status);
	return r;
}

bool scope_has_limits(const char *device)
{
	return access(scope_file(device), F_OK) == 0;
}

int scope_undo(const char *device, struct error *e)
{
	_cleanup_close_ int lock = -1;
	struct scope s = { .n = 0 };
	struct failures failed = { .n = 0 };
	char remedy[128];
	int r = 0;

	if (!scope_has_limits(device))
		return 0;
	lock = lock_scopes(SCOPE_COMMAND, e);
	if (lock < 0)
		return lock;
	s.changes = load(device, e);
	if (!s.changes)
		return -EUCLEAN;
	cgroup_memory_mount(&s.v2);
	add_later_ones(&s);
	json_object_object_foreach(s.changes, dir, old) {
		r = restore(&s, dir, old);
		if (r)
			count_failure(&failed, dir, r);
		else
			json_object_object_del(s.changes, dir);
	}
	snprintf(remedy, sizeof(remedy), "run \"ebbctl device destroy %.31s\" again as root", device);
	r = failed.n ? cannot_restore(&s, &failed, device, remedy, e) : 0;
	if (failed.n)
		save(device, s.changes, NULL);
	json_object_put(s.changes);
	if (!r && unlink(scope_file(device)) < 0 && errno != ENOENT)
		r = fail(e, errno, "%s: cannot remove: %s", scope_file(device), strerror(errno));
	return r;
}
