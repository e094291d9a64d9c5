// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ebb/abi.h>
#include "affinity.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/host/cgroup_files.h"
#include "lib/host/cgroup_walk.h"

#define PASSES 4                /* over threads that appear meanwhile */
/* At the limit, every process of a cgroup loses pages; an idle one swaps none in. */
#define PAGES_IN 64
#define STAT_PROCESSOR 39       /* of /proc/PID/stat: where it ran last */
#define CPUS_DIR "/sys/devices/system/cpu/"

/* Parses "0-3,8". */
static void parse_cpus(const char *list, cpu_set_t *set)
{
	CPU_ZERO(set);
	while (*list >= '0' && *list <= '9') {
		char *end;
		unsigned long first = strtoul(list, &end, 10), last = first;

		if (*end == '-')
			last = strtoul(end + 1, &end, 10);
		for (; first <= last && first < CPU_SETSIZE; first++)
			CPU_SET(first, set);
		list = *end == ',' ? end + 1 : "";
	}
}

static void read_cpus(const char *name, cpu_set_t *set)
{
	char path[64], list[4096];

	snprintf(path, sizeof(path), CPUS_DIR "%s", name);
	parse_cpus(file_read(path, list, sizeof(list)) > 0 ? list : "", set);
}

/* Stores the CPUs that the cpuset of @pid allows and that are online. */
static void cpuset_of(pid_t pid, cpu_set_t *set)
{
	char list[4096];
	cpu_set_t online;

	read_cpus("online", &online);
	*set = online;
	if (cgroup_cpus(pid, list, sizeof(list)))
		return;
	parse_cpus(list, set);
	CPU_AND(set, set, &online);
}

/* Calls @each for the threads of @tgid until it returns non-zero, which it returns. */
static int each_thread(pid_t tgid, int (*each)(void *data, pid_t tgid, pid_t tid), void *data)
{
	_cleanup_dir_ DIR *dir = NULL;
	struct dirent *entry;
	char path[32];
	int r = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", tgid);
	dir = opendir(path);
	while (!r && dir && (entry = readdir(dir)))
		if (*entry->d_name != '.')
			r = each(data, tgid, (pid_t)strtol(entry->d_name, NULL, 10));
	return r;
}

static bool attached(const struct plane *plane, uint64_t id)
{
	struct ebb_cgroup c;

	return !bpf_map_lookup_elem(plane->cgroups, &id, &c) && (c.flags & EBB_CGROUP_ATTACHED);
}

struct visit {
	const struct affinity *a;
	int (*each)(void *data, pid_t tgid);
	void *data;
	uint32_t seen;
};

static int each_process_of(const char *dir, void *data)
{
	_cleanup_file_ FILE *f = NULL;
	struct visit *v = data;
	char path[PATH_MAX + 16];
	struct stat st;
	int tgid, r = 0;

	if (++v->seen > AFFINITY_PROCESSES)
		return -E2BIG;
	if (strcmp(dir, v->a->path) && (stat(dir, &st) || attached(v->a->plane, st.st_ino)))
		return CGROUP_SKIP;
	snprintf(path, sizeof(path), "%.4095s/cgroup.procs", dir);
	f = fopen(path, "re");
	while (!r && f && fscanf(f, "%d", &tgid) == 1)
		r = ++v->seen > AFFINITY_PROCESSES ? -E2BIG : tgid > 0 ? v->each(v->data, tgid) : 0;
	return r;
}

/*
 * Calls @each for the processes of the cgroup and those below it, as each_thread().  Returns -E2BIG
 * if these are more than AFFINITY_PROCESSES.
 */
static int each_process(const struct affinity *a, int (*each)(void *data, pid_t tgid), void *data)
{
	struct visit v = { a, each, data, 0 };

	return cgroup_walk(a->path, each_process_of, &v);
}

/* Returns the pages that the process has swapped in, 0 while these are few. */
static uint64_t pages(const struct affinity *a, pid_t tgid)
{
	uint32_t key = (uint32_t)tgid;
	struct ebb_proc p;

	return !bpf_map_lookup_elem(a->plane->procs, &key, &p) && p.swapped_in >= PAGES_IN ?
	       p.swapped_in : 0;
}

/* Removes those of isolcpus= and nohz_full=: they are reserved for what their user puts there. */
static void remove_isolated(cpu_set_t *set)
{
	static const char *const names[] = { "isolated", "nohz_full" };
	cpu_set_t out;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		read_cpus(names[i], &out);
		CPU_AND(&out, &out, set);
		CPU_XOR(set, set, &out);
	}
}

int affinity_init(struct affinity *a, uint64_t owner, const char *path, const struct plane *plane)
{
	memset(a, 0, sizeof(*a));
	a->cpu = a->busiest = AFFINITY_NONE;
	a->owner = owner;
	a->plane = plane;
	a->path = strdup(path);
	if (sched_getaffinity(getpid(), sizeof(a->usable), &a->usable))
		CPU_ZERO(&a->usable);
	remove_isolated(&a->usable);
	return a->path ? 0 : -ENOMEM;
}

void affinity_close(struct affinity *a)
{
	free(a->path);
	a->path = NULL;
}

/* A look in progress. */
struct look {
	struct affinity *a;
	const struct pins *pins;
	struct affinity_thread thread[AFFINITY_THREADS];
	uint32_t threads;
	cpu_set_t cpuset, allowed;
	uint64_t pages, wall_ns, most_ns, total_ns;
	enum affinity_state state;
};

static bool measure(struct affinity_thread *t)
{
	char path[64], text[1024];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", t->tgid, t->tid);
	if (file_read(path, text, sizeof(text)) <= 0)
		return false;
	t->running_ns = strtoull(text, NULL, 10);
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", t->tgid, t->tid);
	if (file_read(path, text, sizeof(text)) <= 0)
		return false;
	t->cpu = (int)stat_field(text, STAT_PROCESSOR);
	return true;
}

/* Returns for how long @t ran since the last look, of which it may be new. */
static uint64_t progress(const struct look *l, const struct affinity_thread *t)
{
	uint64_t before = 0;

	for (uint32_t i = 0; i < l->a->threads; i++) {
		const struct affinity_thread *old = &l->a->thread[i];

		if (old->tid == t->tid && old->tgid == t->tgid && old->running_ns <= t->running_ns)
			before = old->running_ns;
	}
	return t->running_ns - before < l->wall_ns ? t->running_ns - before : l->wall_ns;
}

/* Finds the busiest thread. */
static void add_progress(struct look *l, const struct affinity_thread *t)
{
	uint64_t ns = progress(l, t);

	l->total_ns += ns;
	if (ns < l->most_ns)
		return;
	l->most_ns = ns;
	l->a->busiest = t->cpu;
}

static void worsen(enum affinity_state *state, enum affinity_state to)
{
	if (*state < to)
		*state = to;
}

/* Judges the affinity @mask of thread @tid. */
static void look_mask(struct look *l, pid_t tid, const cpu_set_t *mask)
{
	const struct ebb_pin *pin = pins_find(l->pins, tid);
	bool heir = pin && pin->e.flags & EBB_PINNED_BORN, free = CPU_EQUAL(mask, &l->cpuset);

	if (pin && pins_ours(pin)) {
		/* An heir will be released. */
		l->a->moved |= !heir && !cpus_only(mask, pin->e.cpu);
	} else if (pin && !heir) {
		/* Before Linux 6.2, a change of the cpuset ends affinities, too. */
		l->a->moved |= free && !pin->e.id;
		l->a->overridden |= pin->e.id != 0;
		if (!free || pin->e.id)
			worsen(&l->state, AFFINITY_OWN);
	} else if (!free && !pins_has(l->pins, tid)) {
		worsen(&l->state, AFFINITY_OWN);
	}
}

static bool is_realtime(pid_t tid)
{
	int policy = sched_getscheduler(tid) & ~SCHED_RESET_ON_FORK;

	return policy == SCHED_FIFO || policy == SCHED_RR || policy == SCHED_DEADLINE;
}

static int look_thread(void *data, pid_t tgid, pid_t tid)
{
	struct affinity_thread t = { .tgid = tgid, .tid = tid };
	struct look *l = data;
	cpu_set_t mask;

	if (sched_getaffinity(tid, sizeof(mask), &mask))
		return 0;
	if (l->threads == AFFINITY_THREADS) {
		l->state = AFFINITY_MANY;
		return 1;
	}
	worsen(&l->state, AFFINITY_FREE);
	if (is_realtime(tid))
		worsen(&l->state, AFFINITY_REALTIME);
	look_mask(l, tid, &mask);
	if (!measure(&t))
		return 0;
	add_progress(l, &t);
	l->thread[l->threads++] = t;
	return 0;
}

static int look_process(void *data, pid_t tgid)
{
	struct look *l = data;
	uint64_t in = pages(l->a, tgid);

	if (!in)
		return 0;
	l->pages += in;
	cpuset_of(tgid, &l->cpuset);
	CPU_AND(&l->allowed, &l->allowed, &l->cpuset);
	return each_thread(tgid, look_thread, l);
}

enum affinity_state affinity_look(struct affinity *a, const struct pins *pins)
{
	struct look l = { .a = a, .pins = pins, .allowed = a->usable, .state = AFFINITY_IDLE };
	uint64_t now = now_ns();

	l.wall_ns = a->looked_ns ? now - a->looked_ns : 0;
	a->looked_ns = now;
	a->moved = a->overridden = false;
	a->busiest = AFFINITY_NONE;
	if (each_process(a, look_process, &l) == -E2BIG)
		l.state = AFFINITY_MANY;
	memcpy(a->thread, l.thread, l.threads * sizeof(*l.thread));
	a->threads = l.threads;
	a->allowed = l.allowed;
	a->look = (struct colocate_look){
		.wall_ns = l.wall_ns, .busiest_ns = l.most_ns, .others_ns = l.total_ns - l.most_ns,
		/* Less if a process has exited. */
		.pages = l.pages > a->pages ? l.pages - a->pages : 0,
	};
	a->pages = l.pages;
	if (l.state == AFFINITY_FREE && CPU_COUNT(&a->allowed) < 2)
		l.state = AFFINITY_SINGLE;
	return l.state;
}

/* A pass over the processes of a cgroup. */
struct pass {
	const struct affinity *a;
	struct pins *pins;
	cpu_set_t cpuset, *confined;
	pid_t member[AFFINITY_THREADS]; /* processes that page */
	uint32_t members;
	uint32_t planned;       /* threads */
};

static int confined_process(void *data, pid_t tgid)
{
	const struct pass *p = data;
	cpu_set_t mask;

	if (!pins_find(p->pins, tgid) && !sched_getaffinity(tgid, sizeof(mask), &mask) &&
	    CPU_COUNT(&mask) == 1)
		CPU_OR(p->confined, p->confined, &mask);
	return 0;
}

void affinity_confined(const struct affinity *a, const struct pins *pins, cpu_set_t *set)
{
	struct pass p = { .a = a, .pins = (struct pins *)pins, .confined = set };

	CPU_ZERO(set);
	each_process(a, confined_process, &p);
}

static int pin_thread(void *data, pid_t tgid, pid_t tid)
{
	struct pass *p = data;
	const struct ebb_pin *pin = pins_find(p->pins, tid);
	cpu_set_t mask;
	int r;

	/* Its affinity could not be restored: another cannot be recorded. */
	if (pin && pin->e.owner == p->a->owner && !(pin->e.flags & EBB_PINNED_BORN) &&
	    pin->e.cpu != p->a->cpu)
		return -EBUSY;
	if (pin || sched_getaffinity(tid, sizeof(mask), &mask))
		return 0;
	if (!CPU_EQUAL(&mask, &p->cpuset))
		return pins_has(p->pins, tid) ? 0 : -EBUSY;
	r = pins_plan(p->pins, p->a->owner, tgid, tid, p->a->cpu);
	p->planned += !r;
	return r == -ESRCH ? 0 : r;
}

static int pin_process(void *data, pid_t tgid)
{
	struct pass *p = data;

	if (!pages(p->a, tgid) || p->members == AFFINITY_THREADS)
		return 0;
	p->member[p->members++] = tgid;
	cpuset_of(tgid, &p->cpuset);
	return each_thread(tgid, pin_thread, p);
}

static bool is_member(const struct pass *p, const struct ebb_pin *t)
{
	for (uint32_t i = 0; i < p->members; i++)
		if (p->member[i] == (pid_t)t->e.tgid)
			return true;
	return false;
}

/* Releases the threads of processes that have left the cgroup, or do not page. */
static void release_left(const struct pass *p)
{
	const struct ebb_pin *t;

	for (uint32_t i = 0; (t = pins_at(p->pins, i)); i++)
		if (t->e.owner == p->a->owner && (t->e.flags & EBB_PINNED_BORN || !is_member(p, t)))
			pins_release(p->pins, t);
}

int affinity_pin(struct affinity *a, struct pins *pins)
{
	struct pass p = { .a = a, .pins = pins };
	int r = 1;

	/* They may start threads meanwhile.  A pass that pins none is the last. */
	for (int pass = 0; pass < PASSES && r > 0; pass++) {
		p.members = p.planned = 0;
		r = each_process(a, pin_process, &p);
		if (!pass && !r)
			release_left(&p);
		if (!r && p.planned)
			r = pins_apply(pins, a->owner);
	}
	return r < 0 ? r : 0;
}

void affinity_free(struct affinity *a, struct pins *pins)
{
	const struct ebb_pin *t;
	bool any = true;

	a->cpu = AFFINITY_NONE;
	for (int pass = 0; pass < PASSES && any && !pins_read(pins); pass++) {
		any = false;
		for (uint32_t i = 0; (t = pins_at(pins, i)); i++)
			if (t->e.owner == a->owner) {
				pins_release(pins, t);
				any = true;
			}
	}
}
