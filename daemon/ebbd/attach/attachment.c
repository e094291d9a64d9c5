// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "attachment.h"
#include "detect.h"
#include "ebbd/plane/events.h"
#include "ebbd/plane/policy_object.h"
#include "ebbd/plane/policy_store.h"
#include "lib/base/clock.h"
#include "lib/base/lock.h"
#include "lib/base/log.h"

#define SWEEPS 60       /* in which each idle cgroup is looked at once */
#define SECOND_NS 1000000000ULL
#define SLEPT_NS 100000000ULL /* less is the time between two clocks' readings */

/* Time that the machine slept since its start. */
static uint64_t slept_ns(void)
{
	uint64_t awake = now_ns();
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec - awake;
}

void attachments_init(struct attachments *a, struct plane *plane, struct budget_table *budgets)
{
	memset(a, 0, sizeof(*a));
	a->budgets = budgets;
	a->plane = plane;
	a->placed = a->benefited = -1;
	a->cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
	a->slept_ns = slept_ns();
	pthread_mutex_init(&a->lock, NULL);
}

static int write_entry(struct attachments *a, struct attachment *t)
{
	struct ebb_cgroup c = { .owner = t->cgroup.id,
				.policy = t->slot,
				.room = budget_room(t->budget),
				.flags = EBB_CGROUP_ATTACHED,
				.slowdown = t->slowdown,
				.timely_ns = budget_timely_ns(t->budget) };

	if (t->by == BY_DECLARATION)
		c.flags |= EBB_CGROUP_DECLARED;
	if (t->detect == DETECT_ALWAYS)
		c.flags |= EBB_CGROUP_DETECT;
	if (t->placement == PLACEMENT_TOGETHER)
		c.flags |= EBB_CGROUP_TOGETHER;
	if (t->placement == PLACEMENT_OFF)
		c.flags |= EBB_CGROUP_UNPLACED;
	if (t->benefit)
		c.flags |= EBB_CGROUP_BENEFIT | t->paused << EBB_CGROUP_PAUSED_SHIFT;
	if (t->recording)
		c.flags |= EBB_CGROUP_RECORD;
	t->timely_told = c.timely_ns;
	return bpf_map_update_elem(a->plane->cgroups, &t->cgroup.id, &c, BPF_ANY);
}

static int write_maps(struct attachments *a, struct attachment *t, struct error *e)
{
	struct ebb_counters zero[a->plane->cpus];
	struct plane *p = a->plane;

	memset(zero, 0, sizeof(zero));
	if (bpf_map_update_elem(p->params, &t->cgroup.id, &t->params, BPF_ANY) ||
	    (bpf_map_update_elem(p->counters, &t->cgroup.id, zero, BPF_NOEXIST) &&
	     errno != EEXIST) ||
	    (t->benefit && bpf_map_update_elem(p->sources, &t->cgroup.id, zero, BPF_NOEXIST) &&
	     errno != EEXIST) ||
	    write_entry(a, t))
		return fail(e, errno, "%s: cannot attach: maps: %s", t->cgroup.path,
			    strerror(errno));
	plane_flush_cache(p);
	return 0;
}

static void clear_maps(struct plane *p, uint64_t owner)
{
	bpf_map_delete_elem(p->cgroups, &owner);
	bpf_map_delete_elem(p->params, &owner);
	bpf_map_delete_elem(p->counters, &owner);
	bpf_map_delete_elem(p->sources, &owner);
	bpf_map_delete_elem(p->zswap, &owner);
	bpf_map_delete_elem(p->cgroup_stats, &owner);
	plane_flush_cache(p);
}

/* Returns whether the cgroup was removed, or re-created like a restarted service's. */
static bool is_gone(const struct attachment *t)
{
	struct stat st;

	return stat(t->cgroup.path, &st) < 0 || st.st_ino != t->cgroup.id;
}

/*
 * Writes the entries of a new attachment.  BPF tells of the removal of a cgroup that has an entry;
 * one removed before that is found here.
 */
static int write_first(struct attachments *a, struct attachment *t, struct error *e)
{
	int r = write_maps(a, t, e);

	if (!r && is_gone(t))
		r = fail(e, ENOENT, "%s: the cgroup was removed", t->cgroup.path);
	if (r)
		clear_maps(a->plane, t->cgroup.id);
	return r;
}

/*
 * Publishes the budgets of all present attachments to the executor.  Each attach sorts all of them:
 * EBB_MAX_CGROUPS attaches half a million pointers in all, with eight comparisons for each.
 */
static int publish(struct attachments *a)
{
	struct budget *b[EBB_MAX_CGROUPS];

	for (uint32_t i = 0; i < a->n; i++)
		b[i] = a->item[i]->budget;
	return budget_publish(a->budgets, b, a->n);
}

static void forget(struct attachments *a, struct attachment *t)
{
	struct cgroup_ref *c = &t->cgroup;

	attachments_remove(a, t);
	if (!a->n)
		events_unwatch(a->plane, EVENTS_UNPIN);
	/* The executor may hold the budget longer than the outermost cgroup has events. */
	budget_set_events(t->budget, NULL);
	detect_close(a, t);
	clear_maps(a->plane, c->id);
	/* If this fails, the executor keeps the old budget, for which no request arrives. */
	publish(a);
	budget_put(&t->budget);
	detect_rebalance_below(a, c->rel, NULL);
	free(t);
}

bool attach_has(const char *name)
{
	return !strcmp(name, "detect") || !strcmp(name, "slowdown") ||
	       !strcmp(name, "placement") || !strcmp(name, "benefit");
}

/* Sets the parameter @name, which every policy has. */
static int set_own(struct attachment *t, const char *name, uint64_t value, struct error *e)
{
	if (!strcmp(name, "detect")) {
		if (value > 1)
			return fail_exit(e, EXIT_USAGE, ERANGE, "detect: %llu is out of range; 0 or 1",
					 (unsigned long long)value);
		t->detect = value ? DETECT_ALWAYS : DETECT_AUTO;
	} else if (!strcmp(name, "slowdown")) {
		if (value > OFFLOAD_TARGET_MAX)
			return fail_exit(e, EXIT_USAGE, ERANGE,
					 "slowdown: %llu tenths of a percent is out of range; 0 to %u",
					 (unsigned long long)value, OFFLOAD_TARGET_MAX);
		t->slowdown = (uint32_t)value;
	} else if (!strcmp(name, "benefit")) {
		if (value > 1)
			return fail_exit(e, EXIT_USAGE, ERANGE, "benefit: %llu is out of range; 0 or 1",
					 (unsigned long long)value);
		t->benefit = value;
	} else {
		if (value >= PLACEMENTS)
			return fail_exit(e, EXIT_USAGE, ERANGE, "placement: %llu is out of range; 0 to %u",
					 (unsigned long long)value, PLACEMENTS - 1);
		t->placement = (enum placement)value;
	}
	return 0;
}

/* Sets parameters of @t, which has its policy; the error names an unknown or out-of-range one. */
static int set_params(struct attachment *t, const struct attach_wish *wish, struct error *e)
{
	const struct policy *policy = t->policy;
	const char *const *names = wish->names;
	const uint64_t *values = wish->values;

	for (uint32_t i = 0; i < wish->n; i++) {
		const struct ebb_param_info *info = policy_param(&policy->info, names[i]);

		if (attach_has(names[i])) {
			int r = set_own(t, names[i], values[i], e);

			if (r)
				return r;
			continue;
		}
		if (!info)
			return fail_exit(e, EXIT_USAGE, EINVAL,
					 "%s: policy '%s' has no such parameter; see ebbctl policy list",
					 names[i], policy->name);
		if (values[i] < info->min || values[i] > info->max)
			return fail_exit(e, EXIT_USAGE, ERANGE,
					 "%s: %llu is out of range; policy '%s' takes %llu to %llu",
					 names[i], (unsigned long long)values[i], policy->name,
					 (unsigned long long)info->min,
					 (unsigned long long)info->max);
		t->params.v[info - policy->info.param] = values[i];
	}
	return 0;
}

/* Sets the members of @t that follow from @wish alone. */
static int grant(struct attachments *a, const struct attach_wish *wish, struct attachment *t,
		 struct error *e)
{
	const struct policy *policy = plane_policy(a->plane, wish->policy, &t->slot);

	if (!policy)
		return fail_exit(e, EXIT_USAGE, ENOENT, "%.64s: no such policy; see ebbctl policy list",
				 wish->policy);
	t->policy = policy;
	t->by = wish->by;
	snprintf(t->source, sizeof(t->source), "%s", wish->source ?: "");
	t->placement = PLACEMENT_DEFAULT;
	policy_defaults(&policy->info, &t->params);
	return set_params(t, wish, e);
}

int attach_check(struct attachments *a, const struct attach_wish *wish, struct error *e)
{
	struct attachment t = { 0 };

	return grant(a, wish, &t, e);
}

int attach_load(struct attachments *a, const struct attach_wish *wish, struct error *e)
{
	struct attachment t = { 0 };
	int r = grant(a, wish, &t, e);

	return r ? r : policies_need(a->plane, t.policy, e);
}

bool attachment_is(const struct attachments *a, const struct attachment *t,
		   const struct attach_wish *wish)
{
	struct attachment granted = { 0 };

	return !grant((struct attachments *)a, wish, &granted, NULL) &&
	       granted.policy == t->policy && granted.by == t->by &&
	       granted.detect == t->detect && granted.slowdown == t->slowdown &&
	       granted.placement == t->placement && granted.benefit == t->benefit &&
	       !strcmp(granted.source, t->source) &&
	       !memcmp(&granted.params, &t->params, sizeof(t->params));
}

/* Stops the policy of @t until its entry is rewritten: no policy may read another's parameters. */
static void quiet(struct attachments *a, struct attachment *t)
{
	t->slot = 0;
	write_entry(a, t);
	plane_wait_programs();
}

/* Checks the limits for cgroups of users: a user may create any number of them. */
static int check_user(struct attachments *a, const struct attachment *fresh, struct error *e)
{
	uint32_t own = 0, all = 0, most = a->plane->max_cgroups * USERS_PERCENT / 100;

	if (!fresh->user || fresh->by != BY_DECLARATION)
		return 0;
	for (uint32_t i = 0; i < a->n; i++) {
		const struct attachment *t = a->item[i];

		if (!t->user || t->by != BY_DECLARATION)
			continue;
		all++;
		own += t->user == fresh->user;
	}
	if (own < USER_ATTACHMENTS && all < most)
		return 0;
	a->refused++;
	return fail_exit(e, EXIT_REFUSED, EDQUOT,
			 "%s: user %u has %u configured attachments, all users %u (limits: %u, %u); "
			 "remove cgroups or their policies, then reload ebbd", fresh->cgroup.path,
			 fresh->user, own, all, USER_ATTACHMENTS, most);
}

static void set_placement(struct attachments *a, struct attachment *t, enum placement placement)
{
	if (t->placement == placement)
		return;
	t->placements++;
	t->placement = placement;
	attachments_wake_placing(a);
}

/*
 * What was found of other sources, or before a pause of the trials, does not count.  write_maps()
 * follows.
 */
static void set_benefit(struct attachments *a, struct attachment *t, bool on)
{
	t->benefit = on;
	t->benefits++;
	t->paused = 0;
	t->judged = (struct benefit_report){ 0 };
	bpf_map_delete_elem(a->plane->sources, &t->cgroup.id);
	for (uint32_t i = 0; t->budget && i < EBB_SOURCES; i++)
		t->expired[i] = budget_source_expired(t->budget, i);
	if (on && a->benefited >= 0 && eventfd_write(a->benefited, 1))
		log_err("benefit: cannot wake its thread: %m");
}

int attachment_pause(struct attachments *a, struct attachment *t, uint32_t sources)
{
	uint32_t before = t->paused;

	if (sources == before)
		return 0;
	t->paused = sources;
	if (!write_entry(a, t))
		return 0;
	t->paused = before;
	return -errno;
}

/* Requires the lock, and that attach_load() has succeeded: the verifier may take seconds. */
static int attach_locked(struct attachments *a, const char *cgroup, const struct attach_wish *wish,
			 struct error *e)
{
	struct attachment fresh = { 0 }, *t;
	struct stat st;
	int r;

	r = grant(a, wish, &fresh, e);
	if (!r)
		r = cgroup_resolve(cgroup, &fresh.cgroup, e);
	if (r)
		return r;
	t = attachments_find(a, fresh.cgroup.id);
	if (t) {
		if (t->policy != fresh.policy)
			quiet(a, t);
		if (t->policy != fresh.policy || t->benefit != fresh.benefit)
			set_benefit(a, t, fresh.benefit);
		t->policy = fresh.policy;
		t->slot = fresh.slot;
		t->by = fresh.by;
		memcpy(t->source, fresh.source, sizeof(t->source));
		t->params = fresh.params;
		t->detect = fresh.detect;
		t->slowdown = fresh.slowdown;
		set_placement(a, t, fresh.placement);
		attachment_change(a, t);
		r = write_maps(a, t, e);
		return r ? r : detect_rebalance_below(a, t->cgroup.rel, e);
	}
	fresh.colocation.cpu = -1;
	if (attachment_wants_placing(&fresh))
		attachments_wake_placing(a);
	set_benefit(a, &fresh, fresh.benefit);
	fresh.user = stat(fresh.cgroup.path, &st) ? 0 : st.st_uid;
	r = check_user(a, &fresh, e);
	if (r)
		return r;
	if (a->n >= a->plane->max_cgroups)
		return fail_exit(e, EXIT_REFUSED, ENOSPC,
				 "%s: %u cgroups are attached, the most there can be; detach others",
				 fresh.cgroup.path, a->plane->max_cgroups);
	t = malloc(sizeof(*t));
	if (!t)
		return fail(e, ENOMEM, "%s: out of memory", cgroup);
	*t = fresh;
	t->budget = budget_new(a->budgets, &t->cgroup);
	r = t->budget ? write_first(a, t, e) : fail(e, ENOMEM, "%s: out of memory", cgroup);
	if (r) {
		budget_put(&t->budget);
		free(t);
		return r;
	}
	attachments_insert(a, t);
	attachment_change(a, t);
	/* On version 1 it may come a moment later. */
	if (!*t->cgroup.twin)
		attachment_wake(a, t);
	r = publish(a);
	r = r ? fail(e, -r, "%s: out of memory", cgroup) :
		detect_rebalance_below(a, t->cgroup.rel, e);
	if (r)
		forget(a, t);
	return r;
}

int attach(struct attachments *a, const char *cgroup, const struct attach_wish *wish,
	   struct error *e)
{
	/* Load first: offloading and recording wait for the lock. */
	int r = attach_load(a, wish, e);

	if (r)
		return r;
	HOLD(&a->lock);
	return attach_locked(a, cgroup, wish, e);
}

/* Returns the attachment of @cgroup itself. */
static struct attachment *find_named(struct attachments *a, const char *cgroup, struct error *e)
{
	struct attachment *t = NULL;
	struct cgroup_ref c;

	if (cgroup_resolve(cgroup, &c, e) == 0) {
		t = attachments_find(a, c.id);
		if (!t)
			fail(e, ENOENT, "%s: has no policy of its own; see ebbctl status", c.path);
	}
	return t;
}

int attach_set(struct attachments *a, const char *cgroup, const struct attach_wish *wish,
	       struct error *e)
{
	HOLD(&a->lock);
	struct attachment *t = find_named(a, cgroup, e);
	struct attachment fresh;
	int r;

	if (!t)
		return -ENOENT;
	fresh = *t;
	/* Its policy was loaded when it was attached. */
	r = set_params(&fresh, wish, e);
	if (r)
		return r;
	t->params = fresh.params;
	t->detect = fresh.detect;
	t->slowdown = fresh.slowdown;
	set_placement(a, t, fresh.placement);
	if (t->benefit != fresh.benefit)
		set_benefit(a, t, fresh.benefit);
	t->by = BY_COMMAND;
	*t->source = '\0';
	r = write_maps(a, t, e);
	return r ? r : detect_rebalance_below(a, t->cgroup.rel, e);
}

int attach_detach(struct attachments *a, const char *cgroup, struct error *e)
{
	HOLD(&a->lock);
	struct attachment *t = find_named(a, cgroup, e);

	if (t)
		forget(a, t);
	return t ? 0 : -ENOENT;
}

int attach_record(struct attachments *a, const char *cgroup, enum record_switch on,
		  uint64_t *owner, struct error *e)
{
	HOLD(&a->lock);
	struct attachment *t = find_named(a, cgroup, e);

	if (!t)
		return -ENOENT;
	*owner = t->cgroup.id;
	t->recording = on == RECORD_ON;
	return write_maps(a, t, e);
}

/* Returns whether one exceeds the other by more than a quarter. */
static bool apart(uint64_t a, uint64_t b)
{
	return 4 * a > 5 * b || 4 * b > 5 * a;
}

typedef void handle_fn(struct attachments *a, struct attachment *t);

static void handle_bucket(struct attachments *a, uint32_t bit, handle_fn *handle)
{
	struct attachment *next;

	for (struct attachment *t = LIST_FIRST(&a->bucket[bit]); t; t = next) {
		next = LIST_NEXT(t, bucket);
		handle(a, t);
	}
}

/* Takes the bits in @words of maps/active, and handles all attachments that have one of them. */
static void take_active(struct attachments *a, __u64 *words, handle_fn *handle)
{
	for (uint32_t i = 0; i < EBB_ACTIVE_WORDS; i++) {
		uint64_t bits = __atomic_load_n(&words[i], __ATOMIC_RELAXED);

		if (bits)
			bits = __atomic_exchange_n(&words[i], 0, __ATOMIC_ACQ_REL);
		for (; bits; bits &= bits - 1)
			handle_bucket(a, 64 * i + (uint32_t)__builtin_ctzll(bits), handle);
	}
}

/* Has the executor and the BPF programs use the cgroup's present limit of memory. */
static void read_limit(struct attachments *a, struct attachment *t)
{
	if (budget_read_limit(t->budget, &t->cgroup))
		write_maps(a, t, NULL);
}

/* Of an idle cgroup the limit is read once a minute: it may have changed since. */
static void handle_active(struct attachments *a, struct attachment *t)
{
	if (!t->busy_ticks)
		read_limit(a, t);
	attachment_wake(a, t);
}

static void tick(struct attachments *a, struct attachment *t, uint64_t now)
{
	struct ebb_counters c;

	plane_counters(a->plane, t->cgroup.id, &c);
	if (c.swapped_in != t->swapped_in)
		budget_refresh_stats(t->budget);
	t->swapped_in = c.swapped_in;
	budget_tick(t->budget, &c, now);
	if (apart(budget_timely_ns(t->budget), t->timely_told))
		write_entry(a, t);
	attachment_change(a, t);
	/* Outstanding pages are used or expire, and are judged then. */
	if (!budget_outstanding(t->budget, &c) && !--t->busy_ticks)
		LIST_REMOVE(t, busy);
}

void attachments_tick(struct attachments *a)
{
	struct attachment *t, *next;
	uint64_t now = now_ns();

	pthread_mutex_lock(&a->lock);
	take_active(a, a->plane->active->counted, handle_active);
	for (t = LIST_FIRST(&a->busy); t; t = next) {
		next = LIST_NEXT(t, busy);
		tick(a, t, now);
	}
	detect_tick(a);
	pthread_mutex_unlock(&a->lock);
}

/* Returns whether a v1 cgroup that lacked a v2 twin when it was attached has one now. */
static bool twin_came(struct attachment *t)
{
	struct cgroup_ref c;

	if (cgroup_resolve(t->cgroup.path, &c, NULL) || c.id != t->cgroup.id || !*c.twin)
		return false;
	t->cgroup = c;
	return true;
}

static void forget_gone(struct attachments *a, struct attachment *t)
{
	if (is_gone(t))
		forget(a, t);
}

/* Returns whether the events of @t are to be opened again. */
static bool look_at(struct attachments *a, struct attachment *t)
{
	if (is_gone(t)) {
		forget(a, t);
		return false;
	}
	read_limit(a, t);
	if (*t->cgroup.twin || !twin_came(t))
		return false;
	detect_close(a, t);
	return true;
}

/* Looks at the busy cgroups, and at a part of the idle ones. */
static bool look(struct attachments *a)
{
	uint32_t some = (a->n + SWEEPS - 1) / SWEEPS;
	struct attachment *t, *next;
	bool moved = false;

	take_active(a, a->plane->active->removed, forget_gone);
	for (t = LIST_FIRST(&a->busy); t; t = next) {
		next = LIST_NEXT(t, busy);
		moved |= look_at(a, t);
	}
	for (; some && a->n; some--) {
		a->turn %= a->n;
		t = a->item[a->turn++];
		if (!t->busy_ticks)
			moved |= look_at(a, t);
	}
	return moved;
}

/* Returns whether CPUs went offline and lost their events: also those that sleep took offline. */
static bool cpus_changed(struct attachments *a)
{
	int cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t slept = slept_ns();
	bool changed = cpus != a->cpus || slept > a->slept_ns + SLEPT_NS;

	a->cpus = cpus;
	a->slept_ns = slept;
	return changed;
}

void attachments_sweep(struct attachments *a)
{
	struct error e = { 0 };
	bool changed, again;

	pthread_mutex_lock(&a->lock);
	changed = cpus_changed(a);
	again = look(a) || a->unopened || changed;
	for (uint32_t i = 0; i < a->n && atomic_load(&a->plane->detecting); i++)
		events_refresh(a->item[i]->events);
	for (uint32_t i = 0; i < a->n && changed; i++)
		detect_close(a, a->item[i]);
	if (changed)
		events_unwatch(a->plane, EVENTS_UNPIN);
	plane_flush_late(a->plane);
	if (again && detect_rebalance(a, &e))
		log_warn("%s; faults may not be seen until ebbd, which tries once a second, succeeds",
			 e.text);
	pthread_mutex_unlock(&a->lock);
}

/* Takes over those of the @old values that the policy, perhaps a newer version, accepts. */
static void take_params(struct attachment *t, const struct ebb_params *old)
{
	for (uint32_t i = 0; i < t->policy->info.params; i++)
		if (old->v[i] >= t->policy->info.param[i].min &&
		    old->v[i] <= t->policy->info.param[i].max)
			t->params.v[i] = old->v[i];
}

static bool is_truncated(const struct ebb_cgroup_stats *s)
{
	return strnlen(s->path, sizeof(s->path)) == sizeof(s->path) - 1;
}

/* Finds the paths of @ids, if one is too long for its entry: all by one search of the hierarchy. */
static void find_long_paths(struct plane *p, const uint64_t *ids, char **path, uint32_t n)
{
	struct ebb_cgroup_stats s;

	for (uint32_t i = 0; i < n; i++)
		if (!bpf_map_lookup_elem(p->cgroup_stats, &ids[i], &s) && is_truncated(&s)) {
			cgroup_find_ids(ids, path, n);
			return;
		}
}

/* Finds the cgroup of @s by its path or, if that is truncated, by @path, which may be NULL. */
static int find_again(const struct ebb_cgroup_stats *s, uint64_t id, const char *path,
		      struct cgroup_ref *c, struct error *e)
{
	if (!is_truncated(s))
		path = s->path;
	return !path || cgroup_resolve(path, c, e) || c->id != id ? -ENOENT : 0;
}

/*
 * Removes entries without an attachment: look-ups that programs of 0.1.0 cached in maps/cgroups,
 * and what an ebbd left that died during an attach or a detach.
 */
static void remove_strays(struct attachments *a)
{
	struct plane *p = a->plane;
	const int maps[] = { p->cgroups, p->params, p->counters, p->cgroup_stats, p->zswap };
	uint64_t id, next;
	int r;

	for (size_t i = 0; i < sizeof(maps) / sizeof(*maps); i++)
		for (r = bpf_map_get_next_key(maps[i], NULL, &next); !r;) {
			id = next;
			r = bpf_map_get_next_key(maps[i], &id, &next);
			if (!attachments_find(a, id))
				bpf_map_delete_elem(maps[i], &id);
		}
}

void attachments_restore(struct attachments *a)
{
	struct plane *p = a->plane;
	static const char *const names[] = { "detect" };
	uint64_t id, ids[EBB_MAX_CGROUPS], detect, *prev = NULL;
	char *path[EBB_MAX_CGROUPS] = { NULL };
	struct ebb_cgroup_stats s;
	struct ebb_params params;
	struct ebb_cgroup entry;
	struct attachment *t;
	struct cgroup_ref c;
	struct ebb_counters sum;
	uint64_t gone;
	struct error e;
	uint32_t n = 0;

	events_sweep_pins();
	while (n < EBB_MAX_CGROUPS && bpf_map_get_next_key(p->cgroup_stats, prev, &id) == 0) {
		ids[n++] = id;
		prev = &id;
	}
	find_long_paths(p, ids, path, n);
	for (uint32_t i = 0; i < n; i++) {
		struct attach_wish wish = {
			.policy = s.policy, .source = "before", .n = 1, .names = names, .values = &detect,
		};

		e = (struct error){ 0 };
		entry.flags = entry.slowdown = 0;
		bpf_map_lookup_elem(p->cgroups, &ids[i], &entry);
		wish.by = entry.flags & EBB_CGROUP_DECLARED ? BY_DECLARATION : BY_COMMAND;
		detect = !!(entry.flags & EBB_CGROUP_DETECT);
		if (bpf_map_lookup_elem(p->cgroup_stats, &ids[i], &s) ||
		    find_again(&s, ids[i], path[i], &c, &e) ||
		    bpf_map_lookup_elem(p->params, &ids[i], &params) ||
		    attach_load(a, &wish, &e) || attach_locked(a, c.path, &wish, &e)) {
			log_warn("%s: cannot take over%s%s", s.path, e.code ? ": " : "", e.text);
			clear_maps(p, ids[i]);
			continue;
		}
		t = attachments_find(a, ids[i]);
		take_params(t, &params);
		t->slowdown = entry.slowdown <= OFFLOAD_TARGET_MAX ? entry.slowdown : 0;
		set_placement(a, t, entry.flags & EBB_CGROUP_TOGETHER ? PLACEMENT_TOGETHER :
			      entry.flags & EBB_CGROUP_UNPLACED ? PLACEMENT_OFF : PLACEMENT_AUTO);
		set_benefit(a, t, entry.flags & EBB_CGROUP_BENEFIT);
		write_maps(a, t, NULL);
		/* Pages outstanding at the restart count as expired. */
		plane_counters(p, ids[i], &sum);
		gone = sum.hits + sum.late + sum.wasted;
		budget_restore(t->budget, s.prefetched,
			       s.prefetched > gone ? s.prefetched - gone : 0);
		log_info("%s: taken over with policy %s", c.rel, s.policy);
	}
	for (uint32_t i = 0; i < n; i++)
		free(path[i]);
	remove_strays(a);
	plane_flush_cache(p);
}

void attachments_close(struct attachments *a)
{
	for (uint32_t i = 0; i < a->n; i++) {
		events_close(&a->item[i]->events);
		budget_put(&a->item[i]->budget);
		free(a->item[i]);
	}
	a->n = 0;
	events_unwatch(a->plane, EVENTS_KEEP_PINS);
	pthread_mutex_destroy(&a->lock);
}
