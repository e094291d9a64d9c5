// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "far_speed.h"

struct start {
	void (*work)(struct job *);
	struct job job;
};

static void pause_us(long us)
{
	nanosleep(&(struct timespec){ .tv_nsec = us * 1000 }, NULL);
}

void worker_begin(struct run *run)
{
	__atomic_add_fetch(&run->ready, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&run->go, __ATOMIC_ACQUIRE))
		pause_us(100);
}

void worker_end(struct job *j, uint64_t done)
{
	struct worker *w = &j->run->worker[j->number];

	w->done = done;
	w->seconds = now_s() - j->run->since;
}

static void *start_thread(void *data)
{
	struct start *s = data;

	s->work(&s->job);
	return NULL;
}

static pid_t start_process(struct start *s)
{
	pid_t pid = fork();

	if (pid < 0)
		give_up("fork: %s", strerror(errno));
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	s->work(&s->job);
	_exit(0);
}

static void check_exit(pid_t pid, int status)
{
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		give_up("worker %d: it has failed", (int)pid);
}

/* A worker that fails says why itself. */
static void wait_until_ready(const struct run *run, enum kind kind)
{
	int status;
	pid_t pid;

	while (__atomic_load_n(&run->ready, __ATOMIC_ACQUIRE) < run->workers) {
		pid = kind == PROCESSES ? waitpid(-1, &status, WNOHANG) : 0;
		if (pid > 0)
			check_exit(pid, status);
		pause_us(100);
	}
}

struct timing run_workers(enum kind kind, uint32_t n, double seconds, void (*work)(struct job *),
			  const void *data)
{
	struct run *run = mmap(NULL, sizeof(*run), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct start starts[WORKERS_MOST];
	pthread_t threads[WORKERS_MOST];
	pid_t pids[WORKERS_MOST];
	struct timing t = { 0 };
	double rate = 0;

	if (run == MAP_FAILED)
		give_up("memory: %s", strerror(errno));
	run->workers = n;
	for (uint32_t i = 0; i < n; i++) {
		starts[i] = (struct start){ work, { run, i, data } };
		if (kind == PROCESSES)
			pids[i] = start_process(&starts[i]);
		else if (pthread_create(&threads[i], NULL, start_thread, &starts[i]))
			give_up("cannot start a thread");
	}
	wait_until_ready(run, kind);
	run->since = now_s();
	__atomic_store_n(&run->go, 1, __ATOMIC_RELEASE);
	while (now_s() - run->since < seconds)
		pause_us(1000);
	__atomic_store_n(&run->stop, 1, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < n; i++) {
		int status = 0;

		if (kind == THREADS)
			pthread_join(threads[i], NULL);
		else if (waitpid(pids[i], &status, 0) == pids[i])
			check_exit(pids[i], status);
		t.done += run->worker[i].done;
		rate += (double)run->worker[i].done / run->worker[i].seconds;
	}
	t.seconds = (double)t.done / rate;
	munmap(run, sizeof(*run));
	return t;
}
