// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ebb/abi.h>
#include "affinity.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/host/cgroup_files.h"

/* In the directory of ebbd's lock: of the machine, whatever the run directory is. */
#define RECORD "/run/ebb/ebbd.pinned"
#define PASSES 4                /* over threads that appear meanwhile */
/* At the limit, every process of a cgroup loses pages; an idle one swaps none in. */
#define PAGES_IN 64
#define ONLINE "/sys/devices/system/cpu/online"

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

/* Stores the CPUs that the cpuset of @pid allows and that are online. */
static void cpuset_of(pid_t pid, cpu_set_t *set)
{
	char list[4096];
	cpu_set_t online;

	file_read(ONLINE, list, sizeof(list));
	parse_cpus(list, &online);
	*set = online;
	if (cgroup_cpus(pid, list, sizeof(list)))
		return;
	parse_cpus(list, set);
	CPU_AND(set, set, &online);
}

static bool is_only(const cpu_set_t *set, int cpu)
{
	return cpu >= 0 && CPU_COUNT(set) == 1 && CPU_ISSET(cpu, set);
}

static bool pinned_to(pid_t tid, int cpu)
{
	cpu_set_t mask;

	return !sched_getaffinity(tid, sizeof(mask), &mask) && is_only(&mask, cpu);
}

static void allow_all(pid_t tid)
{
	cpu_set_t all;

	memset(&all, 0xff, sizeof(all));
	if (sched_setaffinity(tid, sizeof(all), &all) && errno != ESRCH)
		log_warn("placement: thread %d: cannot restore its CPU affinity: %m; run \"taskset -p\"", tid);
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

/* Calls @each for the processes of the cgroup and those below it, as each_thread(). */
static int each_process(const struct affinity *a, int (*each)(void *data, pid_t tgid), void *data)
{
	char *const roots[] = { a->path, NULL };
	FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	FTSENT *node;
	int tgid, r = 0;

	while (!r && tree && (node = fts_read(tree))) {
		_cleanup_file_ FILE *f = NULL;
		char path[PATH_MAX + 16];

		if (node->fts_info != FTS_D)
			continue;
		if (node->fts_level > FTS_ROOTLEVEL &&
		    attached(a->plane, node->fts_statp->st_ino)) {
			fts_set(tree, node, FTS_SKIP);
			continue;
		}
		snprintf(path, sizeof(path), "%s/cgroup.procs", node->fts_path);
		f = fopen(path, "re");
		while (!r && f && fscanf(f, "%d", &tgid) == 1)
			r = tgid > 0 ? each(data, tgid) : 0;
	}
	if (tree)
		fts_close(tree);
	return r;
}

static bool pages(const struct affinity *a, pid_t tgid)
{
	uint32_t key = (uint32_t)tgid;
	struct ebb_proc p;

	return !bpf_map_lookup_elem(a->plane->procs, &key, &p) && p.swapped_in >= PAGES_IN;
}

int affinity_init(struct affinity *a, const char *path, const struct plane *plane)
{
	memset(a, 0, sizeof(*a));
	a->cpu = AFFINITY_NONE;
	a->plane = plane;
	a->path = strdup(path);
	if (sched_getaffinity(getpid(), sizeof(a->usable), &a->usable))
		CPU_ZERO(&a->usable);
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
	struct affinity_thread thread[AFFINITY_THREADS];
	uint32_t threads;
	cpu_set_t cpuset, allowed;
	uint64_t most_ns;
	enum affinity_state state;
};

/* Reads field @n, from 3 on, of /proc/PID/stat after the name, which may contain anything. */
static uint64_t stat_field(const char *text, int n)
{
	const char *at = strrchr(text, ')');

	for (int i = 2; at && i < n; i++) {
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	return at ? strtoull(at, NULL, 10) : 0;
}

static bool measure(struct affinity_thread *t)
{
	char path[64], text[1024];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", t->tgid, t->tid);
	if (file_read(path, text, sizeof(text)) <= 0 ||
	    sscanf(text, "%lu %lu", &t->running_ns, &t->queued_ns) != 2)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", t->tgid, t->tid);
	if (file_read(path, text, sizeof(text)) <= 0)
		return false;
	t->user_ns = stat_field(text, 14) * (1000000000ULL / (uint64_t)sysconf(_SC_CLK_TCK));
	t->cpu = (int)stat_field(text, 39);
	return true;
}

/* Adds what thread @t did since the last look. */
static void add_progress(struct look *l, const struct affinity_thread *t)
{
	struct affinity *a = l->a;

	for (uint32_t i = 0; i < a->threads; i++) {
		const struct affinity_thread *old = &a->thread[i];

		if (old->tid != t->tid || old->tgid != t->tgid || old->running_ns > t->running_ns)
			continue;
		a->running_ns += t->running_ns - old->running_ns;
		a->queued_ns += t->queued_ns - old->queued_ns;
		a->user_ns += t->user_ns - old->user_ns;
		if (t->running_ns - old->running_ns >= l->most_ns) {
			l->most_ns = t->running_ns - old->running_ns;
			a->busiest = t->cpu;
		}
	}
}

static int look_thread(void *data, pid_t tgid, pid_t tid)
{
	struct affinity_thread t = { .tgid = tgid, .tid = tid };
	struct look *l = data;
	cpu_set_t mask;

	if (sched_getaffinity(tid, sizeof(mask), &mask))
		return 0;
	if (!is_only(&mask, l->a->cpu) && !CPU_EQUAL(&mask, &l->cpuset))
		l->state = AFFINITY_OWN;
	else if (l->threads == AFFINITY_THREADS)
		l->state = AFFINITY_MANY;
	if (l->state != AFFINITY_IDLE && l->state != AFFINITY_FREE)
		return 1;
	if (!measure(&t))
		return 0;
	l->state = AFFINITY_FREE;
	add_progress(l, &t);
	l->thread[l->threads++] = t;
	return 0;
}

static int look_process(void *data, pid_t tgid)
{
	struct look *l = data;

	if (!pages(l->a, tgid))
		return 0;
	cpuset_of(tgid, &l->cpuset);
	CPU_AND(&l->allowed, &l->allowed, &l->cpuset);
	return each_thread(tgid, look_thread, l);
}

enum affinity_state affinity_look(struct affinity *a)
{
	struct look l = { .a = a, .allowed = a->usable, .state = AFFINITY_IDLE };

	a->running_ns = a->queued_ns = a->user_ns = 0;
	each_process(a, look_process, &l);
	if (l.state == AFFINITY_OWN || l.state == AFFINITY_MANY)
		return l.state;
	memcpy(a->thread, l.thread, l.threads * sizeof(*l.thread));
	a->threads = l.threads;
	a->allowed = l.allowed;
	return l.state == AFFINITY_FREE && CPU_COUNT(&a->allowed) < 2 ? AFFINITY_SINGLE : l.state;
}

/* A pass over the processes of a cgroup. */
struct pass {
	struct affinity *a;
	int cpu;
	cpu_set_t cpuset;
	uint32_t changes;       /* threads pinned or freed */
};

static uint64_t started(pid_t tgid)
{
	char path[32], text[1024];

	snprintf(path, sizeof(path), "/proc/%d/stat", tgid);
	return file_read(path, text, sizeof(text)) > 0 ? stat_field(text, 22) : 0;
}

static int free_thread(void *data, pid_t tgid, pid_t tid)
{
	struct pass *p = data;

	if (!pinned_to(tid, p->cpu))
		return 0;
	allow_all(tid);
	p->changes++;
	return 0;
}

static int free_process(void *data, pid_t tgid)
{
	return each_thread(tgid, free_thread, data);
}

static int pin_thread(void *data, pid_t tgid, pid_t tid)
{
	struct pass *p = data;
	cpu_set_t mask;

	if (sched_getaffinity(tid, sizeof(mask), &mask) || is_only(&mask, p->cpu))
		return 0;
	if (!CPU_EQUAL(&mask, &p->cpuset))
		return -EBUSY;
	CPU_ZERO(&mask);
	CPU_SET(p->cpu, &mask);
	/* EINVAL: the kernel's own threads in a process, such as those of io_uring. */
	if (sched_setaffinity(tid, sizeof(mask), &mask))
		return errno == ESRCH || errno == EINVAL ? 0 : -errno;
	p->changes++;
	return 0;
}

/* Remembers that @tgid is pinned; false if there is no space. */
static bool note(struct affinity *a, pid_t tgid)
{
	uint64_t start = started(tgid);
	uint32_t i = 0;

	while (i < a->processes && (a->process[i].tgid != tgid || a->process[i].start != start))
		i++;
	if (i == AFFINITY_THREADS)
		return false;
	a->process[i] = (struct affinity_process){ tgid, start, true };
	if (i == a->processes)
		a->processes++;
	return true;
}

static int pin_process(void *data, pid_t tgid)
{
	struct pass *p = data;

	if (!pages(p->a, tgid))
		return pinned_to(tgid, p->cpu) ? each_thread(tgid, free_thread, p) : 0;
	if (!note(p->a, tgid))
		return 0;
	cpuset_of(tgid, &p->cpuset);
	return each_thread(tgid, pin_thread, p);
}

/* Frees the processes that were pinned and have left the cgroup. */
static void free_left(struct affinity *a)
{
	struct pass p = { .a = a, .cpu = a->cpu };

	for (uint32_t i = a->processes; i-- > 0;) {
		struct affinity_process *old = &a->process[i];

		if (old->seen)
			continue;
		if (started(old->tgid) == old->start)
			each_thread(old->tgid, free_thread, &p);
		*old = a->process[--a->processes];
	}
}

int affinity_pin(struct affinity *a)
{
	struct pass p = { .a = a, .cpu = a->cpu };
	int r;

	for (uint32_t i = 0; i < a->processes; i++)
		a->process[i].seen = false;
	for (int pass = 0; pass < PASSES; pass++) {
		p.changes = 0;
		r = each_process(a, pin_process, &p);
		if (r || !p.changes)
			break;
	}
	if (!r)
		free_left(a);
	return r;
}

void affinity_free(struct affinity *a)
{
	struct pass p = { .a = a, .cpu = a->cpu };

	if (a->cpu == AFFINITY_NONE)
		return;
	for (int pass = 0; pass < PASSES; pass++) {
		p.changes = 0;
		each_process(a, free_process, &p);
		if (!p.changes)
			break;
	}
	for (uint32_t i = 0; i < a->processes; i++)
		a->process[i].seen = false;
	free_left(a);
	a->cpu = AFFINITY_NONE;
}

int affinity_record(const struct affinity *const *a, uint32_t n)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_file_ FILE *f = NULL;
	size_t size;

	f = open_memstream(&text, &size);
	if (!f)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		if (a[i]->cpu != AFFINITY_NONE)
			fprintf(f, "%d %s\n", a[i]->cpu, a[i]->path);
	if (fflush(f))
		return -ENOMEM;
	if (size)
		return file_replace(RECORD, text);
	return unlink(RECORD) && errno != ENOENT ? -errno : 0;
}

void affinity_recover(const struct plane *plane)
{
	_cleanup_free_ struct affinity *a = malloc(sizeof(*a));
	_cleanup_free_ char *line = NULL;
	_cleanup_file_ FILE *f = fopen(RECORD, "re");
	size_t size = 0;
	char *path;
	int cpu;

	while (a && f && getline(&line, &size, f) > 0) {
		line[strcspn(line, "\n")] = '\0';
		cpu = (int)strtol(line, &path, 10);
		if (*path != ' ' || cpu < 0 || affinity_init(a, path + 1, plane))
			continue;
		a->cpu = cpu;
		affinity_free(a);
		affinity_close(a);
		log_info("%s: CPU affinity of its programs restored", path + 1);
	}
	unlink(RECORD);
}
