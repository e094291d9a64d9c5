// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "policy_object.h"
#include "policy_store.h"
#include "policy_trial.h"

#define VERIFIER_LOG (16u << 20)
#define REJECTED_NS 10000000000ULL

static void bpf_object_closep(struct bpf_object **o) { bpf_object__close(*o); }

static struct policy *find(struct plane *p, const char *name)
{
	return (struct policy *)plane_policy(p, name, NULL);
}

static uint32_t slot_of(const struct plane *p, const struct policy *policy)
{
	return (uint32_t)(policy - p->policy);
}

static struct policy *free_slot(struct plane *p)
{
	for (uint32_t i = 1; i < p->policies; i++)
		if (!*p->policy[i].name)
			return &p->policy[i];
	return p->policies < EBB_MAX_POLICIES ? &p->policy[p->policies] : NULL;
}

/*
 * Joins the last lines of a verifier log, without statistics, by " | ": the last is the reason, the
 * others the place.
 */
static void last_words(char *log, char *text, size_t size)
{
	char *line[3] = { "", "", "" }, *save = NULL;
	size_t len = 0;

	for (char *l = strtok_r(log, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		if (!strncmp(l, "processed ", 10) || !strncmp(l, "verification time", 17) ||
		    !strncmp(l, "stack depth", 11))
			continue;
		line[0] = line[1];
		line[1] = line[2];
		line[2] = l;
	}
	*text = '\0';
	for (int i = 0; i < 3 && len < size; i++)
		if (*line[i])
			len += snprintf(text + len, size - len, "%s%.100s", len ? " | " : "", line[i]);
}

/* Stores the whole log for the policy's author. */
static void keep_log(const char *log)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/verifier.log", ebb_run_dir());
	if (file_replace(path, log))
		log_debug("%s: cannot be written", path);
}

enum maps { MAPS_SHARED, MAPS_OF_ITS_OWN };

/* @file is for messages. */
static int load(struct plane *p, const char *file, const struct policy_object *source,
		enum maps maps, struct bpf_object **out, struct error *e)
{
	_cleanup_(bpf_object_closep) struct bpf_object *o = NULL;
	_cleanup_free_ char *log = malloc(VERIFIER_LOG);
	LIBBPF_OPTS(bpf_object_open_opts, opts, .object_name = source->info.name,
		    .kernel_log_buf = log, .kernel_log_size = log ? VERIFIER_LOG : 0);
	struct bpf_program *program;
	char words[320];
	int r;

	if (log)
		*log = '\0';
	o = bpf_object__open_mem(source->data, source->size, &opts);
	if (!o)
		return fail_exit(e, EXIT_USAGE, errno, "%s: libbpf cannot open it: %m; compile it again",
				 file);
	program = bpf_object__next_program(o, NULL);
	if (!program || bpf_program__type(program) != BPF_PROG_TYPE_PERF_EVENT ||
	    bpf_object__next_program(o, program))
		return fail_exit(e, EXIT_USAGE, ENOEXEC,
				 "%s: not one perf_event program; use EBB_POLICY_ENTRY() of ebb_policy.h once",
				 file);
	r = maps == MAPS_SHARED ? plane_share_maps(p, o) : 0;
	if (!r)
		r = bpf_object__load(o);
	if (r && log && *log) {
		keep_log(log);
		last_words(log, words, sizeof(words));
		return fail_exit(e, EXIT_REFUSED, r, "%.120s: rejected by the verifier: %s; the whole log is in "
				 "%s/verifier.log", file, words, ebb_run_dir());
	}
	if (r)
		return plane_load_failed(e, file, r);
	*out = TAKE_PTR(o);
	return 0;
}

static int put_program(struct plane *p, uint32_t slot, struct bpf_object *o)
{
	int fd = bpf_program__fd(bpf_object__next_program(o, NULL));

	return bpf_map_update_elem(p->programs, &slot, &fd, BPF_ANY) ? -errno : 0;
}

/* Fills the free slot @policy; takes @object on success. */
static int occupy(struct plane *p, struct policy *policy, const struct ebb_policy_info *info,
		  struct bpf_object *object, enum policy_origin origin, const char *file)
{
	uint32_t slot = slot_of(p, policy);
	int r = object ? put_program(p, slot, object) : 0;

	if (r)
		return r;
	/* The pinned map may hold a program of an earlier ebbd in this slot. */
	if (!object)
		bpf_map_delete_elem(p->programs, &slot);
	*policy = (struct policy){ .info = *info, .object = object, .origin = origin };
	snprintf(policy->name, sizeof(policy->name), "%s", info->name);
	snprintf(policy->file, sizeof(policy->file), "%s", file);
	if (object)
		policy_cost_read(bpf_program__fd(bpf_object__next_program(object, NULL)),
				 &policy->cost);
	if (slot >= p->policies)
		p->policies = slot + 1;
	return 0;
}

static int no_slot(const char *file, struct error *e)
{
	return fail_exit(e, EXIT_REFUSED, ENOSPC, "%s: limit of %u policies reached; unload one",
			 file, EBB_MAX_POLICIES - 1);
}

/* Opens one policy of either origin at start. */
static int open_object(struct plane *p, const char *file, enum policy_origin origin,
		       struct error *e)
{
	_cleanup_(policy_object_free) struct policy_object source = { 0 };
	_cleanup_(bpf_object_closep) struct bpf_object *o = NULL;
	struct policy *policy;
	int r;

	r = policy_object_read(file, &source, e);
	if (r)
		return r;
	if (!strcmp(source.info.name, "none")) {
		/* Slot 0 has no program. */
		p->policy[0].info = source.info;
		snprintf(p->policy[0].file, sizeof(p->policy[0].file), "%s", file);
		return 0;
	}
	if (find(p, source.info.name))
		return fail(e, EEXIST, "%s: a policy '%s' comes with ebb; rename yours", file,
			    source.info.name);
	policy = free_slot(p);
	if (!policy)
		return no_slot(file, e);
	if (origin != POLICY_BUILTIN)
		r = load(p, file, &source, MAPS_SHARED, &o, e);
	if (!r)
		r = occupy(p, policy, &source.info, o, origin, file);
	policy->deferred = !r && !o;
	if (r)
		return plane_load_failed(e, file, r);
	TAKE_PTR(o);
	return 0;
}

/*
 * Keeps a stored policy that does not load, perhaps on another kernel, under its name:
 * configuration may refer to it, and attaching reports the reason.
 */
static int open_unloadable(struct plane *p, const char *file, enum policy_origin origin,
			   struct error *e)
{
	_cleanup_(policy_object_free) struct policy_object source = { 0 };
	struct policy *policy;
	int r;

	/* The failed attempt to load has logged why a file is no policy. */
	if (policy_object_read(file, &source, NULL) || find(p, source.info.name))
		return 0;
	policy = free_slot(p);
	r = policy ? occupy(p, policy, &source.info, NULL, origin, file) : 0;
	if (policy && !r)
		policy->deferred = true;
	return r;
}

/* Rejects a NAME.so of 0.1.0, which ran in ebbd. */
static int open_native(struct plane *p, const char *file, enum policy_origin origin,
		       struct error *e)
{
	_cleanup_(policy_object_free) struct policy_object source = { 0 };
	const char *base = strrchr(file, '/') + 1;
	char name[NAME_MAX];

	snprintf(name, sizeof(name), "%.*s", (int)(strlen(base) - strlen(".so")), base);
	return find(p, name) ? 0 : policy_object_read(file, &source, e);
}

bool policies_unusable(const struct plane *p, const char *name)
{
	static const char *const kinds[] = { "bpf.o", "so" };
	char file[PATH_MAX];
	bool stored = false;

	for (int i = 0; i < 2 && !stored; i++) {
		snprintf(file, sizeof(file), "%s/%s.%s", ebb_loaded_policy_dir(), name, kinds[i]);
		stored = !access(file, F_OK);
	}
	return stored && !plane_policy(p, name, NULL);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n > m && !strcmp(text + n - m, end);
}

/*
 * Opens the files of @dir whose names end with @suffix.  A bad policy does not affect the others.
 * -errno when @dir cannot be read.
 */
static int open_each(struct plane *p, const char *dir, const char *suffix,
		     enum policy_origin origin,
		     int (*open_one)(struct plane *p, const char *file, enum policy_origin origin,
				     struct error *e))
{
	struct dirent **files = NULL;
	int n = scandir(dir, &files, NULL, by_name);
	char file[PATH_MAX];

	if (n < 0)
		return -errno;
	for (int i = 0; i < n; i++) {
		struct error e = { 0 };

		snprintf(file, sizeof(file), "%s/%s", dir, files[i]->d_name);
		if (*files[i]->d_name != '.' && ends_with(file, suffix) &&
		    open_one(p, file, origin, &e))
			log_err("%s", e.text);
		free(files[i]);
	}
	free(files);
	return 0;
}

int policies_open(struct plane *p, const char *dir, struct error *e)
{
	int r;

	snprintf(p->policy_dir, sizeof(p->policy_dir), "%s", dir);
	strcpy(p->policy[0].name, "none");
	p->policies = 1;
	r = open_each(p, dir, ".bpf.o", POLICY_BUILTIN, open_object);
	if (r)
		return fail(e, r, "%s: cannot read policies: %s; set --policy-dir", dir, strerror(-r));
	if (p->policies == 1)
		return fail(e, ENOENT, "%s: no policy could be loaded; set --policy-dir", dir);
	open_each(p, ebb_loaded_policy_dir(), ".bpf.o", POLICY_LOADED, open_object);
	open_each(p, ebb_loaded_policy_dir(), ".bpf.o", POLICY_LOADED, open_unloadable);
	open_each(p, ebb_loaded_policy_dir(), ".so", POLICY_LOADED, open_native);
	return 0;
}

void policies_close(struct plane *p)
{
	for (uint32_t i = 0; i < p->policies; i++)
		bpf_object__close(p->policy[i].object);
	p->policies = 0;
}

/* --- load and unload, live ------------------------------------------------ */

/* Measures the policy in a trial, and rejects one that would stall faults. */
static int try_out(struct plane *p, const char *file, const struct policy_object *source,
		   struct policy_cost *cost, struct error *e)
{
	_cleanup_(bpf_object_closep) struct bpf_object *o = NULL;
	struct ebb_params params;
	int r = load(p, file, source, MAPS_OF_ITS_OWN, &o, e);

	if (r)
		return r;
	policy_cost_read(bpf_program__fd(bpf_object__next_program(o, NULL)), cost);
	if (cost->verified > POLICY_MAX_VERIFIED)
		return fail_exit(e, EXIT_REFUSED, E2BIG,
				 "%s: too long: the verifier processed %u instructions, the limit is %u; "
				 "use shorter loops", file, cost->verified,
				 POLICY_MAX_VERIFIED);
	policy_defaults(&source->info, &params);
	r = policy_trial(o, &params, cost);
	if (r)
		log_warn("%s: cannot measure its cost: %s", file, strerror(-r));
	else if (cost->slowest_ns > POLICY_MAX_NS)
		return fail_exit(e, EXIT_REFUSED, E2BIG,
				 "%s: too slow: a call takes %u ns, the limit is %u; use shorter loops",
				 file, cost->slowest_ns, POLICY_MAX_NS);
	return 0;
}

/* Writes @size bytes to the file @temporary beside @final; fsync'ed. */
static int stage(const char *name, const void *data, size_t size, char *temporary, char *final,
		 struct error *e)
{
	const char *dir = ebb_loaded_policy_dir();
	_cleanup_close_ int fd = -1;
	ssize_t n;
	int r = file_make_dirs(dir, 0755);

	if (r)
		return fail(e, r, "%s: cannot create: %s; loaded policies are stored there, see EBB_STATE_DIR", dir,
			    strerror(-r));
	snprintf(final, PATH_MAX, "%s/%s.bpf.o", dir, name);
	snprintf(temporary, PATH_MAX, "%s/.%s.bpf.o", dir, name);
	unlink(temporary);
	fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	n = fd >= 0 ? write(fd, data, size) : -1;
	if (n != (ssize_t)size || fsync(fd)) {
		r = n >= 0 && n != (ssize_t)size ? ENOSPC : errno;
		unlink(temporary);
		return fail(e, r, "%s: cannot write: %s; loaded policies are stored there, see EBB_STATE_DIR", temporary,
			    strerror(r));
	}
	return 0;
}

static int same_params(const struct ebb_policy_info *a, const struct ebb_policy_info *b)
{
	if (a->params != b->params)
		return 0;
	for (uint32_t i = 0; i < a->params; i++)
		if (strcmp(a->param[i].name, b->param[i].name) ||
		    a->param[i].min != b->param[i].min || a->param[i].max != b->param[i].max)
			return 0;
	return 1;
}

/* Checks that @file may replace the policy @name; sets *@old to that policy or NULL. */
static int may_replace(struct plane *p, const char *file, const char *name, struct policy **old,
		       struct error *e)
{
	*old = find(p, name);
	if (!strcmp(name, "none") || (*old && (*old)->origin == POLICY_BUILTIN))
		return fail_exit(e, EXIT_REFUSED, EEXIST,
				 "%s: a policy '%s' comes with ebb; give yours another name", file, name);
	return !*old && !free_slot(p) ? no_slot(file, e) : 0;
}

/*
 * Requires the lock: no policy may run in that slot while its parameters change their meaning.
 * Takes @object if policy->object is @object afterwards.
 */
static int swap_object(struct plane *p, const struct policy_users *users, struct policy *policy,
		       const struct ebb_policy_info *info, struct bpf_object *object,
		       struct policy_change *change)
{
	uint32_t slot = slot_of(p, policy);
	struct bpf_object *old = policy->object;
	int r;

	if (old)
		bpf_map_delete_elem(p->programs, &slot);
	r = put_program(p, slot, object);
	if (r) {
		if (old)
			put_program(p, slot, old);
		return r;
	}
	/* It must not run before its parameters are in place either. */
	bpf_map_delete_elem(p->programs, &slot);
	plane_wait_programs();
	users->translate(users->data, policy, info, change->dropped, sizeof(change->dropped));
	policy->info = *info;
	policy->object = object;
	r = put_program(p, slot, object);
	policy->deferred = false;
	bpf_object__close(old);
	return r;
}

int policies_load(struct plane *p, const struct policy_users *users, const char *file,
		  struct policy_change *change, struct error *e)
{
	_cleanup_(policy_object_free) struct policy_object source = { 0 };
	_cleanup_(bpf_object_closep) struct bpf_object *o = NULL;
	char temporary[PATH_MAX], final[PATH_MAX];
	struct policy_cost cost = { 0 };
	struct policy *policy;
	int r;

	*change = (struct policy_change){ .what = POLICY_NEW };
	r = policy_object_read(file, &source, e);
	if (!r)
		r = may_replace(p, file, source.info.name, &policy, e);
	if (!r)
		r = try_out(p, file, &source, &cost, e);
	if (!r)
		r = load(p, file, &source, MAPS_SHARED, &o, e);
	if (!r)
		r = stage(source.info.name, source.data, source.size, temporary, final, e);
	if (r)
		return r;
	users->lock(users->data);
	if (policy) {
		change->what = POLICY_REPLACED;
		r = swap_object(p, users, policy, &source.info, o, change);
	} else {
		policy = free_slot(p);
		r = occupy(p, policy, &source.info, o, POLICY_LOADED, file);
	}
	if (policy->object == o)
		TAKE_PTR(o);
	if (!r) {
		policy->cost = cost;
		snprintf(policy->file, sizeof(policy->file), "%s", file);
		change->policy = policy;
	}
	users->unlock(users->data);
	if (r) {
		unlink(temporary);
		return plane_load_failed(e, file, r);
	}
	if (rename(temporary, final))
		log_err("%s: cannot rename: %m; the policy is lost when ebbd restarts", final);
	return 0;
}

int policies_unload(struct plane *p, const struct policy_users *users, const char *name,
		    struct error *e)
{
	struct policy *policy = find(p, name);
	char where[256], file[PATH_MAX];
	uint32_t slot, n;

	if (!policy)
		return fail_exit(e, EXIT_USAGE, ENOENT, "%s: no such policy; see ebbctl policy list", name);
	if (policy->origin == POLICY_BUILTIN)
		return fail_exit(e, EXIT_REFUSED, EPERM, "%s: comes with ebb, cannot be unloaded; detach it instead",
				 name);
	users->lock(users->data);
	n = users->name(users->data, policy, where, sizeof(where));
	if (n) {
		users->unlock(users->data);
		return fail_exit(e, EXIT_REFUSED, EBUSY, "%s: attached to %u cgroup%s: %s; detach it first",
				 name, n, n == 1 ? "" : "s", where);
	}
	slot = slot_of(p, policy);
	bpf_map_delete_elem(p->programs, &slot);
	bpf_object__close(policy->object);
	memset(policy, 0, sizeof(*policy));
	users->unlock(users->data);
	snprintf(file, sizeof(file), "%s/%s.bpf.o", ebb_loaded_policy_dir(), name);
	if (unlink(file) < 0 && errno != ENOENT)
		log_err("%s: cannot remove: %m; it is loaded again at the next start", file);
	return 0;
}

/*
 * Loads @source for @policy.  The verifier may take seconds, and any owner of a cgroup can request
 * a policy repeatedly: a rejected one is not verified again for REJECTED_NS.
 */
static int load_once(struct plane *p, struct policy *policy, const struct policy_object *source,
		     struct bpf_object **out, struct error *e)
{
	struct error *why = &policy->rejected;

	if (!policy->rejected_ns || now_ns() - policy->rejected_ns >= REJECTED_NS) {
		*why = (struct error){ 0 };
		policy->rejected_ns = 0;
		if (!load(p, policy->file, source, MAPS_SHARED, out, why))
			return 0;
		policy->rejected_ns = now_ns();
	}
	return fail_exit(e, why->exit_status, why->code, "%s", why->text);
}

int policies_need(struct plane *p, const struct policy *policy, struct error *e)
{
	_cleanup_(policy_object_free) struct policy_object source = { 0 };
	struct policy *own = &p->policy[slot_of(p, policy)];
	struct bpf_object *o = NULL;
	int r;

	if (!own->deferred)
		return 0;
	r = policy_object_read(own->file, &source, e);
	if (!r && !same_params(&own->info, &source.info))
		r = fail(e, EPROTO, "%s: replaced since ebbd started; restart ebbd", own->file);
	if (!r)
		r = load_once(p, own, &source, &o, e);
	if (r)
		return r;
	r = put_program(p, slot_of(p, own), o);
	if (r) {
		bpf_object__close(o);
		return plane_load_failed(e, own->file, r);
	}
	policy_cost_read(bpf_program__fd(bpf_object__next_program(o, NULL)), &own->cost);
	own->object = o;
	own->deferred = false;
	return 0;
}

int policies_measure(struct plane *p, const struct policy *policy)
{
	_cleanup_(policy_object_free) struct policy_object source = { 0 };
	_cleanup_(bpf_object_closep) struct bpf_object *o = NULL;
	struct policy *own = &p->policy[slot_of(p, policy)];
	struct ebb_params params;
	struct error e = { 0 };
	int r;

	if (own->deferred && policies_need(p, own, &e)) {
		log_warn("%s", e.text);
		return -EINVAL;
	}
	if (own->cost.calls || !own->object)
		return 0;
	r = policy_object_read(own->file, &source, &e);
	if (!r)
		r = load(p, own->file, &source, MAPS_OF_ITS_OWN, &o, &e);
	if (r) {
		log_warn("%s", e.text);
		return r;
	}
	policy_defaults(&source.info, &params);
	return policy_trial(o, &params, &own->cost);
}
