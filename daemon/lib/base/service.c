// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "log.h"
#include "service.h"

bool service_options(const struct command *c, const char *program, int argc, char **argv,
		     void *into, const struct service *s, int *status)
{
	struct error e = { 0 };
	int nargs, r;

	log_setup(program, LOG_LVL_INFO);
	r = options_parse(c->options, argc - 1, argv + 1, into, false, &nargs, &e);
	if (!r && !s->version && nargs)
		r = fail_exit(&e, EXIT_USAGE, EINVAL, "%s: unexpected argument; see %s --help",
			      argv[1], program);
	*status = service_end(&e);
	if (r == OPTIONS_HELP)
		options_usage(program, c);
	else if (!r && s->version)
		printf("%s %s\n", program, EBB_VERSION);
	return !r && !s->version;
}

int service_daemonise(struct service *s, struct error *e)
{
	int fds[2], status = EXIT_FAILED;
	char word;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return fail(e, errno, "pipe: %m");
	pid = fork();
	if (pid < 0)
		return fail(e, errno, "fork: %m");
	if (!pid) {
		close(fds[0]);
		setsid();
		s->parent_fd = fds[1];
		return 0;
	}
	close(fds[1]);
	/* The child writes when it is ready, or ends after printing why. */
	if (read(fds[0], &word, 1) == 1)
		_exit(EXIT_OK);
	waitpid(pid, &status, 0);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILED);
}

void service_detach(const char *log, int flags)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), fd;

	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	if (!getenv("JOURNAL_STREAM")) {
		fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0600);
		dup2(fd >= 0 ? fd : null, STDERR_FILENO);
		if (fd >= 0)
			close(fd);
	}
	close(null);
}

void service_ready(struct service *s, const char *text)
{
	if (s->ready_fd && dprintf((int)s->ready_fd, "READY\n") < 0)
		log_warn("ready-fd %d: %m", (int)s->ready_fd);
	sd_notifyf(0, "READY=1%s%s", text ? "\nSTATUS=" : "", text ?: "");
	if (s->parent_fd > 0 && write(s->parent_fd, "", 1) < 0)
		log_warn("parent: %m");
	/* Readers that wait for these to close must not wait for the service's end. */
	service_forget(s);
}

void service_forget(struct service *s)
{
	if (s->ready_fd > STDERR_FILENO)
		close((int)s->ready_fd);
	if (s->parent_fd > 0)
		close(s->parent_fd);
	s->ready_fd = 0;
	s->parent_fd = 0;
}

int service_end(const struct error *e)
{
	if (!e->code)
		return EXIT_OK;
	log_err("%s", e->text);
	return e->exit_status;
}
