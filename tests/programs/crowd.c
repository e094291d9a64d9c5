// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * crowd: idle processes.  Of each line "N DIRECTORY..." of stdin it enters the cgroup, which has a
 * directory in each hierarchy, and forks N processes that sleep; they end with it.  Says "ready" at
 * the end of stdin.  Static, so that ten thousand of them cost little memory.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void give_up(const char *what)
{
	fprintf(stderr, "crowd: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void enter(const char *directory)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/cgroup.procs", directory);
	f = fopen(path, "w");
	if (!f || fputs("0", f) < 0 || fclose(f))
		give_up(path);
}

static void sleeper(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (getppid() == parent)
		pause();
	_exit(0);
}

int main(void)
{
	pid_t self = getpid();
	char line[8192];

	while (fgets(line, sizeof(line), stdin)) {
		int n = atoi(strtok(line, " \n"));

		for (char *at; (at = strtok(NULL, " \n"));)
			enter(at);
		while (n-- > 0) {
			pid_t child = fork();

			if (child < 0)
				give_up("fork");
			if (!child)
				sleeper(self);
		}
	}
	puts("ready");
	fflush(stdout);
	pause();
	return 0;
}
