// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "events.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "lib/host/cgroup_walk.h"

#define LINKS_DIR EBB_PINS "/links"

/* One software event with its program. */
struct event {
	struct bpf_link *link;
	pid_t tid;            /* per-thread events: thread */
	uint32_t round;       /* when the thread was last seen in the cgroup */
};

/*
 * A v2 directory scopes the events of detection to a cgroup.  Where a v1 cgroup has no twin there,
 * each thread has inherited events, so that other tasks pay nothing.
 */
struct event_set {
	struct plane *plane;
	struct cgroup_ref cgroup;
	int cgroup_fd;        /* v2 directory, or -1 */
	struct event *detect; /* enter and minor: one pair per CPU or thread */
	uint32_t detects;
	uint32_t round;       /* number of the last scan for threads */
	atomic_bool detecting;
	pthread_mutex_t lock; /* protects the detection members */
};

static int event_open(struct event *ev, struct bpf_program *program, uint64_t config, pid_t pid,
		      int cpu, unsigned long flags, unsigned long inherit)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE, .size = sizeof(attr), .config = config,
		.sample_period = 1, .disabled = 1, .inherit = inherit,
	};
	int fd, r;

	fd = (int)syscall(SYS_perf_event_open, &attr, pid, cpu, -1, flags | PERF_FLAG_FD_CLOEXEC);
	if (fd < 0)
		return -errno;
	ev->link = bpf_program__attach_perf_event(program, fd);
	if (!ev->link) {
		r = -errno;
		close(fd);
		return r;
	}
	return 0;
}

static void event_close(struct event *ev)
{
	bpf_link__destroy(ev->link);
	*ev = (struct event){ 0 };
}

static void major_pin(uint32_t cpu, char *path, size_t size)
{
	snprintf(path, size, LINKS_DIR "/major-%u", cpu);
}

static int open_major(struct plane *p, uint32_t cpu)
{
	struct event *ev = &p->major[cpu];
	char path[128];
	int r;

	r = event_open(ev, plane_program(p, PLANE_MAJOR), PERF_COUNT_SW_PAGE_FAULTS_MAJ, -1,
		       (int)cpu, 0, 0);
	if (r)
		return r == -ENODEV ? 0 : r; /* an offline CPU */
	major_pin(cpu, path, sizeof(path));
	unlink(path);
	bpf_link__pin(ev->link, path);
	return 0;
}

int events_watch(struct plane *p, struct error *e)
{
	uint32_t cpus = (uint32_t)sysconf(_SC_NPROCESSORS_CONF);
	int r = 0;

	if (p->major)
		return 0;
	p->major = calloc(cpus, sizeof(*p->major));
	if (!p->major)
		return fail(e, ENOMEM, "events: out of memory");
	for (p->majors = 0; !r && p->majors < cpus; p->majors++)
		r = open_major(p, p->majors);
	if (!r)
		return 0;
	events_unwatch(p, EVENTS_UNPIN);
	return fail_exit(e, EXIT_UNSUPPORTED, r,
			 "major faults: cannot open their perf events: %s; "
			 "ebbd needs CAP_PERFMON and a kernel with BPF on perf events", strerror(-r));
}

void events_unwatch(struct plane *p, enum events_pins pins)
{
	char path[128];

	for (uint32_t cpu = 0; cpu < p->majors; cpu++) {
		major_pin(cpu, path, sizeof(path));
		if (pins == EVENTS_UNPIN)
			unlink(path);
		else if (p->major[cpu].link)
			bpf_link__disconnect(p->major[cpu].link); /* else destroying disables it */
		event_close(&p->major[cpu]);
	}
	free(p->major);
	p->major = NULL;
	p->majors = 0;
}

static struct event *detect_slot(struct event_set *s)
{
	struct event *more = realloc(s->detect, (s->detects + 2) * sizeof(*more));

	if (!more)
		return NULL;
	s->detect = more;
	return &s->detect[s->detects];
}

/* Opens enter and minor for one CPU or one thread; all or nothing. */
static int open_pair(struct event_set *s, pid_t pid, int cpu, unsigned long flags,
		     unsigned long inherit)
{
	struct event *ev = detect_slot(s);
	int r;

	if (!ev)
		return -ENOMEM;
	r = event_open(&ev[0], plane_program(s->plane, PLANE_ENTER), PERF_COUNT_SW_PAGE_FAULTS, pid,
		       cpu, flags, inherit);
	if (r)
		return r;
	r = event_open(&ev[1], plane_program(s->plane, PLANE_MINOR), PERF_COUNT_SW_PAGE_FAULTS_MIN,
		       pid, cpu, flags, inherit);
	if (r) {
		event_close(&ev[0]);
		return r;
	}
	ev[0].tid = ev[1].tid = inherit ? pid : 0;
	ev[0].round = ev[1].round = s->round;
	s->detects += 2;
	return 0;
}

/* Threads of a cgroup, by number. */
struct threads {
	pid_t *tid;
	uint32_t n, room;
	bool incomplete;      /* some could not be listed */
};

static void threads_add(struct threads *t, pid_t tid)
{
	pid_t *more;

	if (t->n == t->room) {
		more = realloc(t->tid, (2 * t->room + 64) * sizeof(*more));
		if (!more) {
			t->incomplete = true;
			return;
		}
		t->tid = more;
		t->room = 2 * t->room + 64;
	}
	t->tid[t->n++] = tid;
}

/* For a failure to list a cgroup: a removed one has no threads. */
static void threads_missed(struct threads *t)
{
	if (errno != ENOENT && errno != ENODEV)
		t->incomplete = true;
}

/* Adds the threads listed in @file.  The kernel allocates memory to list them, and may fail. */
static void threads_in(struct threads *t, const char *file)
{
	_cleanup_file_ FILE *f = fopen(file, "re");
	int tid;

	while (f && fscanf(f, "%d", &tid) == 1)
		threads_add(t, tid);
	if (!f || ferror(f))
		threads_missed(t);
}

static int threads_of(const char *dir, void *data)
{
	struct threads *t = data;
	char file[PATH_MAX];

	if (snprintf(file, sizeof(file), "%s/tasks", dir) >= (int)sizeof(file))
		t->incomplete = true;
	else
		threads_in(t, file);
	return 0;
}

static void threads_below(struct threads *t, const char *path)
{
	if (cgroup_walk(path, threads_of, t))
		t->incomplete = true;
}

static int by_number(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return x < y ? -1 : x > y;
}

/* Sorts @t; a thread that moved meanwhile was found twice. */
static void threads_sort(struct threads *t)
{
	uint32_t n = 0;

	if (t->n)
		qsort(t->tid, t->n, sizeof(t->tid[0]), by_number);
	for (uint32_t i = 0; i < t->n; i++)
		if (!n || t->tid[n - 1] != t->tid[i])
			t->tid[n++] = t->tid[i];
	t->n = n;
}

/* Opens a pair for each thread of @t without one, and marks the pairs of the others. */
static void open_missing(struct event_set *s, struct threads *t)
{
	_cleanup_free_ bool *has = calloc(t->n + 1, sizeof(*has));

	if (!has) {
		t->incomplete = true;
		return;
	}
	for (uint32_t i = 0; i < s->detects; i += 2) {
		const pid_t *at = bsearch(&s->detect[i].tid, t->tid, t->n, sizeof(*at), by_number);

		if (!at)
			continue;
		has[at - t->tid] = true;
		s->detect[i].round = s->round;
	}
	for (uint32_t i = 0; i < t->n; i++)
		if (!has[i])
			open_pair(s, t->tid[i], -1, 0, 1);
}

/*
 * Opens one pair for every thread of the v1 cgroup and below, and closes pairs of threads that
 * ended or left, unless the list of threads is incomplete.  A new thread has inherited its
 * creator's pair and gets its own here, which stays when the creator's goes.
 */
static void open_threads(struct event_set *s)
{
	struct threads t = { 0 };

	s->round++;
	threads_below(&t, s->cgroup.path);
	threads_sort(&t);
	open_missing(s, &t);
	free(t.tid);
	for (uint32_t i = t.incomplete ? 0 : s->detects; i > 0;) {
		i -= 2;
		if (s->detect[i].round == s->round)
			continue;
		event_close(&s->detect[i]);
		event_close(&s->detect[i + 1]);
		s->detects -= 2;
		memmove(&s->detect[i], &s->detect[s->detects], 2 * sizeof(*s->detect));
	}
}

static void close_detect(struct event_set *s)
{
	for (uint32_t i = 0; i < s->detects; i++)
		event_close(&s->detect[i]);
	free(s->detect);
	s->detect = NULL;
	s->detects = 0;
}

static void detect_off(struct event_set *s)
{
	if (s->detecting)
		s->plane->detecting--;
	s->detecting = false;
	close_detect(s);
}

int events_open(struct plane *p, const struct cgroup_ref *cgroup, struct event_set **set,
		struct error *e)
{
	struct event_set *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return fail(e, ENOMEM, "events: out of memory");
	pthread_mutex_init(&s->lock, NULL);
	s->plane = p;
	s->cgroup = *cgroup;
	s->cgroup_fd = *cgroup->twin ? open(cgroup->twin, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (*cgroup->twin && s->cgroup_fd < 0 && errno != ENOENT) {
		r = fail(e, errno, "%s: cannot be opened for its events: %m", cgroup->twin);
		events_close(&s);
		return r;
	}
	*set = s;
	return 0;
}

void events_close(struct event_set **set)
{
	struct event_set *s = *set;

	if (!s)
		return;
	detect_off(s);
	pthread_mutex_destroy(&s->lock);
	if (s->cgroup_fd >= 0)
		close(s->cgroup_fd);
	free(s);
	*set = NULL;
}

/*
 * Opens the events, which are closed rather than disabled when not needed: while an event of a kind
 * exists, every fault on the machine takes the slow path to check for it.
 */
static void open_detect(struct event_set *s)
{
	int cpus = (int)sysconf(_SC_NPROCESSORS_CONF), r;

	if (s->cgroup_fd < 0) {
		open_threads(s);
		return;
	}
	for (int cpu = 0; cpu < cpus; cpu++) {
		r = open_pair(s, s->cgroup_fd, cpu, PERF_FLAG_PID_CGROUP, 0);
		if (r && r != -ENODEV)
			log_warn("%s: cannot count hits on CPU %d: %s", s->cgroup.path, cpu, strerror(-r));
	}
}

void events_detect_on(struct event_set *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	if (!s->detecting) {
		open_detect(s);
		s->plane->detecting++;
	}
	s->detecting = true;
	pthread_mutex_unlock(&s->lock);
}

void events_detect_off(struct event_set *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	detect_off(s);
	pthread_mutex_unlock(&s->lock);
}

bool events_detecting(const struct event_set *s)
{
	return s && s->detecting;
}

void events_refresh(struct event_set *s)
{
	if (!s || s->cgroup_fd >= 0)
		return;
	pthread_mutex_lock(&s->lock);
	if (s->detecting)
		open_threads(s);
	pthread_mutex_unlock(&s->lock);
}

void events_sweep_pins(void)
{
	_cleanup_dir_ DIR *d = opendir(LINKS_DIR);
	struct dirent *entry;

	while (d && (entry = readdir(d)))
		if (!strncmp(entry->d_name, "major-", 6))
			unlinkat(dirfd(d), entry->d_name, 0);
}
