// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * pins CASE [CPUSET]: whether the record of pinned threads restores what ebbd set, and nothing
 * else.  CPUs 0 and 1: ebbd pins to the first, users to the second.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebbd/plane/pins.h"
#include "lib/base/paths.h"

#define OWNER 42
#define OURS 0
#define USERS 1
#define TIMES 50
#define THREADS (EBB_MAX_PINNED + 100) /* more than the record has entries */
#define STACK 16384
#define FORK_BYTES (64 << 20) /* that a slow fork copies the page tables of */

#define NEED(what) do { \
	if (!(what)) { \
		printf("%s:%d: %s is false: %s\n", __FILE__, __LINE__, #what, strerror(errno)); \
		exit(1); \
	} \
} while (0)

static struct pins *pins;
static const char *cpuset;
static int order[2], reply[2]; /* pipes to and from a child */

static void set(pid_t tid, int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	NEED(!sched_setaffinity(tid, sizeof(one), &one));
}

static bool has(pid_t tid, int cpu)
{
	cpu_set_t mask;

	return !sched_getaffinity(tid, sizeof(mask), &mask) && cpus_only(&mask, cpu);
}

static bool is_free(pid_t tid)
{
	cpu_set_t mask;

	return !sched_getaffinity(tid, sizeof(mask), &mask) && CPU_COUNT(&mask) > 1;
}

static void say(pid_t tid)
{
	NEED(write(reply[1], &tid, sizeof(tid)) == sizeof(tid));
}

static pid_t hear(void)
{
	pid_t tid;

	NEED(read(reply[0], &tid, sizeof(tid)) == sizeof(tid));
	return tid;
}

static void wait_order(void)
{
	char c;

	NEED(read(order[0], &c, 1) == 1);
}

static void give_order(void)
{
	NEED(write(order[1], "x", 1) == 1);
}

/* Returns a child that runs @body and then waits. */
static pid_t start(void (*body)(void))
{
	pid_t pid = fork();

	NEED(pid >= 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (body)
		body();
	for (;;)
		pause();
}

/* Ends the process of @tid, also a child's child, for which waitpid() would not wait. */
static void end(pid_t tid)
{
	struct pollfd fd = { .fd = (int)syscall(SYS_pidfd_open, tid, 0), .events = POLLIN };

	kill(tid, SIGKILL);
	/* A thread has no such descriptor; its process ends later. */
	if (fd.fd >= 0) {
		NEED(poll(&fd, 1, -1) == 1);
		close(fd.fd);
	}
	waitpid(tid, NULL, 0);
}

static void pin(pid_t tid)
{
	NEED(!pins_plan(pins, OWNER, tid, tid, OURS));
	NEED(pins_apply(pins, OWNER) >= 0);
}

static void release_all(void)
{
	const struct ebb_pin *t;

	NEED(!pins_read(pins));
	for (uint32_t i = 0; (t = pins_at(pins, i)); i++)
		pins_release(pins, t);
}

/* --- a parent that set its own affinity --------------------------------------- */

static void set_and_fork(void)
{
	wait_order();
	set(0, USERS);
	say(start(NULL));
}

static void *thread(void *data)
{
	say(gettid());
	pause();
	return NULL;
}

static void set_and_create(void)
{
	pthread_t t;

	wait_order();
	set(0, USERS);
	NEED(!pthread_create(&t, NULL, thread, NULL));
}

/* Its user's affinity is the one that the child inherits. */
static void inherited(void)
{
	void (*const bodies[])(void) = { set_and_fork, set_and_create };

	for (int i = 0; i < 2; i++) {
		pid_t parent = start(bodies[i]), child;

		pin(parent);
		NEED(has(parent, OURS));
		give_order();
		child = hear();
		release_all();
		NEED(has(parent, USERS));
		NEED(has(child, USERS));
		end(child);
		end(parent);
	}
}

/* --- affinities of users ------------------------------------------------------ */

static void set_twice(void)
{
	wait_order();
	set(0, OURS);
	set(0, USERS);
	say(getpid());
}

/* The kernel may keep the second where ebbd's was, more often if one CPU has set both. */
static void twice(void)
{
	set(0, OURS);
	for (int i = 0; i < TIMES; i++) {
		pid_t pid = start(set_twice);

		pin(pid);
		give_order();
		hear();
		release_all();
		NEED(has(pid, USERS));
		end(pid);
	}
}

static atomic_bool stop;

static void *set_always(void *data)
{
	bool last;

	do {
		last = atomic_load(&stop);
		set(*(pid_t *)data, USERS);
	} while (!last);
	return NULL;
}

static void meanwhile(void)
{
	for (int i = 0; i < TIMES; i++) {
		pid_t pid = start(NULL);
		pthread_t user;

		atomic_store(&stop, false);
		NEED(!pthread_create(&user, NULL, set_always, &pid));
		for (int k = 0; k < TIMES; k++) {
			pin(pid);
			NEED(!pins_read(pins));
		}
		atomic_store(&stop, true);
		pthread_join(user, NULL);
		release_all();
		NEED(has(pid, USERS));
		end(pid);
	}
}

/* --- restoring ---------------------------------------------------------------- */

static void cpuset_write(const char *file, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", cpuset, file);
	f = fopen(path, "w");
	NEED(f);
	NEED(fputs(text, f) >= 0 && !fclose(f));
}

/* A thread that has @USERS to be restored, in a cpuset without it. */
static pid_t start_confined(void)
{
	char text[16];
	pid_t pid = start(NULL);

	snprintf(text, sizeof(text), "%d", pid);
	cpuset_write("cgroup.procs", text);
	set(pid, USERS);
	pin(pid);
	cpuset_write("cpuset.cpus", "0");
	return pid;
}

/* What cannot be restored is, later. */
static void shrunk(void)
{
	pid_t pid = start_confined();

	release_all();
	NEED(has(pid, OURS));
	cpuset_write("cpuset.cpus", "0-1");
	release_all();
	NEED(has(pid, USERS));
	NEED(!pins_read(pins) && !pins_at(pins, 0));
	end(pid);
}

/* Also by the next ebbd, which pins nothing before. */
static void left(void)
{
	pid_t pid = start_confined();
	struct error e = { 0 };
	uint32_t kept;

	pins_close(&pins);
	NEED(pins_recover(&kept) == 0 && kept == 1);
	NEED(pins_open(&pins, &e) == -EBUSY);
	cpuset_write("cpuset.cpus", "0-1");
	NEED(pins_recover(&kept) == 1 && kept == 0);
	NEED(has(pid, USERS));
	NEED(!pins_open(&pins, &e));
	end(pid);
}

/* A record is not removed with an entry. */
static void closed(void)
{
	pid_t pid = start(NULL);
	uint32_t kept;

	pin(pid);
	pins_close(&pins);
	NEED(pins_recover(&kept) == 1 && kept == 0);
	NEED(is_free(pid));
	NEED(pins_recover(&kept) == -ENOENT);
	end(pid);
}

/* --- forks -------------------------------------------------------------------- */

static void fork_often(void)
{
	char *memory = mmap(NULL, FORK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);

	NEED(memory != MAP_FAILED);
	memset(memory, 1, FORK_BYTES);
	wait_order();
	for (int i = 0; i < TIMES; i++)
		say(start(NULL));
	say(0);
}

/* What a fork creates that had begun when its thread was released. */
static void forked(void)
{
	pid_t parent = start(fork_often), child[TIMES];
	struct pollfd heard = { .fd = reply[0], .events = POLLIN };
	int n = 0, pinned = 0;

	give_order();
	for (pid_t tid = 1; tid; pinned++) {
		pin(parent);
		release_all();
		while (tid && poll(&heard, 1, 0) > 0) {
			tid = hear();
			if (tid)
				child[n++] = tid;
		}
	}
	NEED(n == TIMES && pinned > TIMES);
	NEED(!pins_release_all(pins) && pins_empty(pins));
	NEED(is_free(parent));
	for (int i = 0; i < n; i++) {
		NEED(is_free(child[i]));
		end(child[i]);
	}
	end(parent);
}

/* --- new threads -------------------------------------------------------------- */

/* Returns the next thread that inherited an affinity. */
static struct ebb_pin next_born(void)
{
	struct pollfd fd = { .fd = pins_fd(pins), .events = POLLIN };
	struct ebb_pin t;

	while (!pins_next_born(pins, &t)) {
		NEED(poll(&fd, 1, 10000) == 1);
		pins_born(pins);
	}
	return t;
}

static void fork_two(void)
{
	for (int i = 0; i < 2; i++) {
		wait_order();
		say(start(NULL));
	}
}

/* Each is looked up and released alone, not by a walk over all tasks. */
static void heard(void)
{
	pid_t parent = start(fork_two), child[2];
	uint64_t walks;
	struct ebb_pin t;

	pin(parent);
	walks = pins_walks(pins);
	NEED(walks > 0);
	for (int i = 0; i < 2; i++) {
		give_order();
		child[i] = hear();
		t = next_born();
		NEED((pid_t)t.tid == child[i] && t.e.owner == OWNER);
		NEED(t.e.flags & EBB_PINNED_BORN);
		/* The second one's user sets the very same affinity. */
		if (i)
			set(child[i], OURS);
		NEED(pins_look(pins, &t) && (pid_t)t.tid == child[i]);
		NEED(pins_ours(&t) == (!i || !t.now));
		NEED(pins_release(pins, &t));
		NEED(!pins_look(pins, &t));
	}
	NEED(is_free(child[0]));
	NEED(!t.now || has(child[1], OURS));
	NEED(!pins_next_born(pins, &t));
	NEED(pins_walks(pins) == walks);
	release_all();
	NEED(is_free(parent));
	for (int i = 0; i < 2; i++)
		end(child[i]);
	end(parent);
}

static void *wait_for_ever(void *data)
{
	pause();
	return NULL;
}

static void create_many(void)
{
	pthread_attr_t small;
	pthread_t t;

	NEED(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, STACK));
	wait_order();
	for (int i = 0; i < THREADS; i++)
		NEED(!pthread_create(&t, &small, wait_for_ever, NULL));
	say(0);
}

/* A cgroup that starts more threads than the record has entries leaves those of others. */
static void crowd(void)
{
	pid_t parent = start(create_many), other, next, child;

	pin(parent);
	NEED(!pins_crowded(pins, OWNER));
	give_order();
	NEED(hear() == 0);
	/* Only now: both would wait for the order. */
	other = start(fork_two);
	next = start(NULL);
	NEED(pins_crowded(pins, OWNER));
	NEED(pins_plan(pins, OWNER, next, next, OURS) == -E2BIG);

	NEED(!pins_plan(pins, OWNER + 1, other, other, OURS));
	NEED(pins_apply(pins, OWNER + 1) == 1);
	NEED(!pins_crowded(pins, OWNER + 1));
	give_order();
	child = hear();
	NEED(has(child, OURS) && pins_has(pins, child));
	release_all();
	NEED(is_free(child) && is_free(other) && is_free(parent));
	/* What has exited, or was released, makes room. */
	end(parent);
	NEED(!pins_crowded(pins, OWNER));
	NEED(!pins_plan(pins, OWNER, next, next, OURS));
	end(child);
	end(other);
	end(next);
}

/* --- exits -------------------------------------------------------------------- */

static void leave_leader(void)
{
	pthread_t t;

	NEED(!pthread_create(&t, NULL, thread, NULL));
	pthread_exit(NULL);
}

/* No entry outlives its thread. */
static void exited(void)
{
	pid_t pid = start(leave_leader);

	hear();
	for (int i = 0; i < 5; i++) {
		pins_plan(pins, OWNER, pid, pid, OURS);
		NEED(pins_apply(pins, OWNER) >= 0);
		usleep(20000);
	}
	NEED(!pins_has(pins, pid));
	end(pid);
	NEED(!pins_has(pins, pid));
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } cases[] = {
		{ "inherited", inherited }, { "twice", twice }, { "meanwhile", meanwhile },
		{ "shrunk", shrunk }, { "left", left }, { "closed", closed }, { "forked", forked },
		{ "exited", exited }, { "heard", heard }, { "crowd", crowd },
	};
	struct error e = { 0 };

	setvbuf(stdout, NULL, _IONBF, 0);
	cpuset = argc > 2 ? argv[2] : NULL;
	NEED(!pipe(order) && !pipe(reply));
	NEED(!mkdir(EBB_PINS, 0700) || errno == EEXIST);
	if (pins_open(&pins, &e)) {
		printf("%s\n", e.text);
		return 1;
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (argc > 1 && !strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			pins_close(&pins);
			return 0;
		}
	printf("no such case\n");
	return 2;
}
