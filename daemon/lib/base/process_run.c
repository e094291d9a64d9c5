// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process_run.h"

static ssize_t drain(int fd, char *output, size_t size)
{
	char spill[512];
	size_t len = 0;

	for (;;) {
		bool full = !output || len >= size - 1;
		ssize_t n = read(fd, full ? spill : output + len,
				 full ? sizeof(spill) : size - 1 - len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		len += full ? 0 : n;
	}
	if (output)
		output[len] = '\0';
	return len;
}

int process_run(const char *const *argv, char *output, size_t size, struct error *e)
{
	char said[256];
	int fds[2], status = 0;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return fail(e, errno, "%s: pipe: %s", argv[0], strerror(errno));
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		/* exec keeps an ignored signal ignored. */
		signal(SIGPIPE, SIG_DFL);
		setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
		execvp(argv[0], (char *const *)argv);
		dprintf(2, "%s", strerror(errno));
		_exit(127);
	}
	close(fds[1]);
	if (pid < 0) {
		close(fds[0]);
		return fail(e, errno, "%s: fork: %s", argv[0], strerror(errno));
	}
	drain(fds[0], output ?: said, output ? size : sizeof(said));
	close(fds[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return 0;
	if (!output)
		output = said;
	output[strcspn(output, "\n")] = '\0';
	return fail(e, EIO, "%s: %s %d: %.200s", argv[0],
		    WIFSIGNALED(status) ? "killed by signal" : "exit status",
		    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), output);
}
