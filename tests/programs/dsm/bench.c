// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * dsm_bench PROGRAM SHARE processes|threads WORKERS SIZE DELAY_US [LOCAL,TCP]...
 *
 * Runs a program, and prints as a line of JSON a digest of its results and what all workers
 * together have sent and waited for.  SHARE is a way to share objects: "malloc" is of threads
 * alone, "ebbdsm" of both.  LOCAL and TCP are the addresses of each machine's donor.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "bench.h"

static const struct share *const shares[] = {
	&share_local, &share_dsm, &share_directory, &share_delegation, &share_messages,
};

static const struct program *const programs[] = {
	&program_matrix, &program_group_by, &program_social, &program_store_a, &program_store_b,
	&program_store_c, &program_store_own,
};

static struct results {
	uint64_t digest, cpu_us, wall_ns;
} * results;

static const struct program *chosen;
static uint64_t program_size;

void give_up(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fputs("dsm_bench: ", stderr);
	vfprintf(stderr, fmt, args);
	fputc('\n', stderr);
	va_end(args);
	_exit(1);
}

void *shared_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		give_up("out of memory");
	return p;
}

static uint64_t cpu_us(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000u +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* All that is measured: valgrind counts the instructions of this function. */
__attribute__((noinline)) uint64_t run_measured(struct worker *w);
uint64_t run_measured(struct worker *w)
{
	return chosen->run(w, program_size);
}

static void work(struct worker *w, bool first)
{
	uint64_t cpu, digest, since;

	if (chosen->load)
		chosen->load(w, program_size);
	barrier();
	if (!w->rank)
		memset(counts, 0, sizeof(*counts));
	barrier();
	cpu = cpu_us();
	since = now_ns();
	digest = run_measured(w);
	barrier();
	count(&results->digest, digest);
	if (first)
		count(&results->cpu_us, cpu_us() - cpu);
	if (!w->rank)
		results->wall_ns = now_ns() - since;
	barrier();
}

static void *run_thread(void *data)
{
	struct worker *w = data;

	work(w, !w->rank);
	return NULL;
}

static void run_threads(struct worker *workers)
{
	pthread_t threads[WORKERS_MOST];

	workers->share->join(workers);
	for (uint32_t i = 0; i < workers->workers; i++)
		if (pthread_create(&threads[i], NULL, run_thread, &workers[i]))
			give_up("cannot start a thread");
	for (uint32_t i = 0; i < workers->workers; i++)
		pthread_join(threads[i], NULL);
	workers->share->leave(workers);
}

static void run_process(struct worker *w)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_TIMERSLACK, 1);
	mesh_join(w);
	w->share->join(w);
	barrier();
	work(w, true);
	mesh_leave(w);
	w->share->leave(w);
	_exit(0);
}

static void run_processes(struct worker *workers)
{
	uint32_t n = workers->workers;
	pid_t pids[WORKERS_MOST];
	int status;

	for (uint32_t i = 0; i < n; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			give_up("fork: %s", strerror(errno));
		if (!pids[i])
			run_process(&workers[i]);
	}
	for (uint32_t left = n; left; left--) {
		wait(&status);
		if (!status)
			continue;
		/* The others wait for it. */
		for (uint32_t i = 0; i < n; i++)
			kill(pids[i], SIGKILL);
		give_up("a worker has failed");
	}
}

static void print(void)
{
	printf("{\"digest\": \"%lx\", \"seconds\": %.4f, \"cpu_seconds\": %.4f, "
	       "\"messages\": %lu, \"trips\": %lu, \"bytes\": %lu, "
	       "\"calls\": %lu, \"far_trips\": %lu, \"far_bytes\": %lu}\n",
	       results->digest, (double)results->wall_ns / 1e9, (double)results->cpu_us / 1e6,
	       counts->messages + counts->far_messages, counts->calls + counts->far_trips,
	       counts->message_bytes + counts->far_bytes, counts->calls, counts->far_trips,
	       counts->far_bytes);
}

static const struct share *find_share(const char *name)
{
	for (size_t i = 0; i < sizeof(shares) / sizeof(*shares); i++)
		if (!strcmp(shares[i]->name, name))
			return shares[i];
	give_up("%s: no way to share; see the source", name);
}

static const struct program *find_program(const char *name)
{
	for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++)
		if (!strcmp(programs[i]->name, name))
			return programs[i];
	give_up("%s: no such program; see the source", name);
}

int main(int argc, char **argv)
{
	const char *local[WORKERS_MOST] = { NULL }, *remote[WORKERS_MOST] = { NULL };
	struct worker workers[WORKERS_MOST];
	const struct share *share;
	bool threads;
	uint32_t n;

	if (argc < 7)
		give_up("usage: dsm_bench PROGRAM SHARE processes|threads WORKERS SIZE DELAY_US [LOCAL,TCP]...");
	chosen = find_program(argv[1]);
	share = find_share(argv[2]);
	threads = !strcmp(argv[3], "threads");
	n = (uint32_t)atoi(argv[4]);
	program_size = strtoull(argv[5], NULL, 10);
	if (n < 1 || n > WORKERS_MOST)
		give_up("%s workers; give 1 to %d", argv[4], WORKERS_MOST);
	if (threads != (share == &share_local) && share != &share_dsm)
		give_up("%s: not a way of %s", argv[2], argv[3]);
	for (int i = 7; i < argc && i < 7 + WORKERS_MOST; i++) {
		local[i - 7] = strtok(argv[i], ",");
		remote[i - 7] = strtok(NULL, ",");
	}
	for (uint32_t i = 0; i < n; i++)
		workers[i] = (struct worker){ i, n, threads, share, local, remote };
	results = shared_memory(sizeof(*results));
	mesh_new(n, threads);
	delay_ns = strtoull(argv[6], NULL, 10) * 1000;
	if (threads)
		run_threads(workers);
	else
		run_processes(workers);
	print();
	return 0;
}
