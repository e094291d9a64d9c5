// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * minorfault: what a zero-fill fault, or a context switch, costs the process
 * that has it.  One line of JSON: {"ns":N,"events":N}.
 *
 *   minorfault fault ROUNDS MIB	fastest of ROUNDS passes over fresh memory, per fault
 *   minorfault switch ROUNDS COUNT	fastest of ROUNDS times COUNT round trips through two
 *					pipes on one CPU, per switch; --into CGROUP.PROCS...
 *					puts the far end there, so that each switch crosses
 *					from one cgroup into another
 *
 * The fastest pass is what the code costs; the others are what the machine does besides.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define MAX_NS 1e18

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static int broken(const char *what)
{
	fprintf(stderr, "minorfault: %s: %s\n", what, strerror(errno));
	return 1;
}

static int pass_faults(size_t bytes, double *ns)
{
	uint64_t began;
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return broken("mmap");
	/* One fault a page, whatever the machine thinks of huge pages. */
	if (madvise(p, bytes, MADV_NOHUGEPAGE) < 0)
		return broken("madvise");
	began = now_ns();
	for (size_t i = 0; i < bytes; i += PAGE)
		*(volatile char *)(p + i) = 1;
	*ns = (double)(now_ns() - began) / (double)(bytes / PAGE);
	return munmap(p, bytes) < 0 ? broken("munmap") : 0;
}

/* Answers each byte until there is no one to answer. */
static void answer(int in, int out)
{
	char c;

	while (read(in, &c, 1) == 1)
		if (write(out, &c, 1) != 1)
			break;
	_exit(0);
}

static int pass_switches(int out, int in, long count, double *ns)
{
	uint64_t began = now_ns();
	char c = 0;

	for (long i = 0; i < count; i++)
		if (write(out, &c, 1) != 1 || read(in, &c, 1) != 1)
			return broken("pipe");
	*ns = (double)(now_ns() - began) / (double)count / 2;
	return 0;
}

static int on_one_cpu(void)
{
	cpu_set_t all, one;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		return -1;
	CPU_ZERO(&one);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &all)) {
			CPU_SET(i, &one);
			break;
		}
	return sched_setaffinity(0, sizeof(one), &one);
}

static int enter(const char *procs)
{
	int fd = open(procs, O_WRONLY | O_CLOEXEC);
	int r = fd < 0 || write(fd, "0", 1) != 1 ? -1 : 0;

	if (fd >= 0)
		close(fd);
	return r;
}

static int fork_answerer(char **procs, int there[2], int back[2])
{
	pid_t pid;

	if (pipe(there) < 0 || pipe(back) < 0)
		return broken("pipe");
	pid = fork();
	if (pid < 0)
		return broken("fork");
	if (!pid) {
		close(there[1]);
		close(back[0]);
		for (; *procs; procs++)
			if (enter(*procs) < 0)
				_exit(broken(*procs));
		answer(there[0], back[1]);
	}
	close(there[0]);
	close(back[1]);
	return 0;
}

static int report(double ns, long events)
{
	return printf("{\"ns\":%.1f,\"events\":%ld}\n", ns, events) < 0;
}

static int faults(int rounds, long mib)
{
	double best = MAX_NS, ns;

	for (int i = 0; i < rounds; i++) {
		if (pass_faults((size_t)mib << 20, &ns))
			return 1;
		best = ns < best ? ns : best;
	}
	return report(best, (mib << 20) / PAGE);
}

static int switches(int rounds, long count, char **procs)
{
	int there[2], back[2], status;
	double best = MAX_NS, ns;

	signal(SIGPIPE, SIG_IGN);
	if (on_one_cpu() < 0)
		return broken("sched_setaffinity");
	if (fork_answerer(procs, there, back))
		return 1;
	for (int i = 0; i < rounds; i++) {
		if (pass_switches(there[1], back[0], count, &ns))
			return 1;
		best = ns < best ? ns : best;
	}
	close(there[1]);
	if (wait(&status) < 0 || status)
		return 1;
	return report(best, count);
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 0;
	long amount = argc > 3 ? atol(argv[3]) : 0;
	char *none = NULL;

	if (rounds > 0 && amount > 0 && argc == 4 && !strcmp(argv[1], "fault"))
		return faults(rounds, amount);
	if (rounds > 0 && amount > 0 && !strcmp(argv[1], "switch") &&
	    (argc == 4 || (argc > 5 && !strcmp(argv[4], "--into"))))
		return switches(rounds, amount, argc == 4 ? &none : argv + 5);
	fprintf(stderr, "usage: minorfault fault ROUNDS MIB\n"
		"       minorfault switch ROUNDS COUNT [--into CGROUP.PROCS...]\n");
	return 2;
}
