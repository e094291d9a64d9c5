// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/host/cgroup_walk.h"
#include "ebbctl/process.h"
#include "program.h"

#define KILL_MS 1000

int program_block_signals(struct program *p, struct error *e)
{
	const struct sigaction ignore = { .sa_handler = SIG_IGN },
			       usual = { .sa_handler = SIG_DFL };
	sigset_t set;

	*p = (struct program){ .pidfd = -1, .go = -1, .failed = -1, .signals = -1 };
	sigaction(SIGPIPE, &ignore, &p->pipe);
	/* wait4() fails while SIGCHLD is ignored. */
	sigaction(SIGCHLD, &usual, &p->child);
	process_ending_signals(&set);
	sigprocmask(SIG_BLOCK, &set, &p->mask);
	p->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return p->signals < 0 ? fail(e, errno, "signalfd: %s", strerror(errno)) : 0;
}

void program_restore_pipe(const struct program *p)
{
	sigaction(SIGPIPE, &p->pipe, NULL);
}

bool program_interrupted(struct program *p)
{
	struct pollfd f = { .fd = p->signals, .events = POLLIN };

	return poll(&f, 1, 0) > 0;
}

/* Becomes the user who called sudo(8), as su(1) would. */
static int become_invoking_user(void)
{
	const char *uid = getenv("SUDO_UID"), *gid = getenv("SUDO_GID");
	struct passwd *user;

	if (geteuid() || !uid || !gid || !atoi(uid))
		return 0;
	user = getpwuid((uid_t)strtoul(uid, NULL, 10));
	if (user ? initgroups(user->pw_name, (gid_t)strtoul(gid, NULL, 10)) : setgroups(0, NULL))
		return -errno;
	if (setgid((gid_t)strtoul(gid, NULL, 10)) < 0 || setuid((uid_t)strtoul(uid, NULL, 10)) < 0)
		return -errno;
	if (user) {
		setenv("HOME", user->pw_dir, 1);
		setenv("USER", user->pw_name, 1);
		setenv("LOGNAME", user->pw_name, 1);
		setenv("SHELL", user->pw_shell, 1);
	}
	return 0;
}

/* Read by the child when it may exec. */
struct order {
	bool go, enter;
	struct cgroup_ref cgroup;
};

static void child(const struct program *p, int go, int failed, char **argv, enum program_user user)
{
	struct order *order = calloc(1, sizeof(*order));
	size_t len = 0;
	int r = 0;

	while (order && len < sizeof(*order)) {
		ssize_t n = read(go, (char *)order + len, sizeof(*order) - len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			_exit(0); /* ebbctl gave up */
		len += n;
	}
	if (order && order->enter)
		r = cgroup_enter(&order->cgroup, NULL);
	free(order);
	if (!r && user == USER_INVOKING)
		r = become_invoking_user();
	if (!r) {
		program_restore_pipe(p);
		sigaction(SIGCHLD, &p->child, NULL);
		sigprocmask(SIG_SETMASK, &p->mask, NULL);
		execvp(argv[0], argv);
		r = -errno;
	}
	r = write(failed, &r, sizeof(r)) == sizeof(r) ? PROGRAM_NOT_RUNNABLE : PROGRAM_NOT_FOUND;
	_exit(r);
}

int program_fork(struct program *p, char **argv, enum program_user user, struct error *e)
{
	int go[2], failed[2];

	if (pipe2(go, O_CLOEXEC) < 0)
		return fail(e, errno, "pipe: %s", strerror(errno));
	if (pipe2(failed, O_CLOEXEC) < 0) {
		close(go[0]);
		close(go[1]);
		return fail(e, errno, "pipe: %s", strerror(errno));
	}
	p->name = argv[0];
	p->go = go[1];
	p->failed = failed[0];
	p->pid = fork();
	if (p->pid == 0) {
		close(go[1]);
		close(failed[0]);
		child(p, go[0], failed[1], argv, user);
	}
	close(go[0]);
	close(failed[1]);
	if (p->pid > 0)
		p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
	return p->pidfd < 0 ? fail(e, errno, "%s: fork: %s", argv[0], strerror(errno)) : 0;
}

int program_keep(struct program *p, struct error *e)
{
	p->keeper = fork();
	if (p->keeper == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_NAME, "ebb-keeper");
		/* Readers of the program's pipes must not wait for this process. */
		close_range(0, ~0u, 0);
		for (;;)
			pause();
	}
	return p->keeper < 0 ? fail(e, errno, "fork: %s", strerror(errno)) : 0;
}

void program_keep_end(struct program *p)
{
	if (p->keeper <= 0)
		return;
	kill(p->keeper, SIGKILL);
	waitpid(p->keeper, NULL, 0);
	p->keeper = 0;
}

int program_go(struct program *p, const struct cgroup_ref *c, struct error *e)
{
	struct order order = { .go = true, .enter = c != NULL };
	const char *rest = (const char *)&order;
	size_t left = sizeof(order);
	int code;

	if (c)
		order.cgroup = *c;
	while (left) {
		ssize_t n = write(p->go, rest, left);

		if (n < 0 && errno != EINTR)
			return fail(e, errno, "%s: cannot start: %s", p->name, strerror(errno));
		rest += n > 0 ? n : 0;
		left -= n > 0 ? n : 0;
	}
	close(TAKE_FD(p->go));
	/* exec closes the other end. */
	if (read(p->failed, &code, sizeof(code)) != sizeof(code))
		return 0;
	return fail_exit(e, code == -ENOENT ? PROGRAM_NOT_FOUND : PROGRAM_NOT_RUNNABLE, code,
			 "%.256s: cannot run: %s; check its name and PATH", p->name, strerror(-code));
}

static void pass_on(struct program *p)
{
	struct signalfd_siginfo info;

	while (read(p->signals, &info, sizeof(info)) == sizeof(info))
		if (info.ssi_code != SI_KERNEL)
			syscall(SYS_pidfd_send_signal, p->pidfd, info.ssi_signo, NULL, 0);
}

int program_wait(struct program *p, struct program_end *end, struct error *e)
{
	struct pollfd fds[] = {
		{ .fd = p->pidfd, .events = POLLIN }, { .fd = p->signals, .events = POLLIN },
	};
	uint64_t start = now_ns();
	int status;

	while (!(fds[0].revents & POLLIN)) {
		if (poll(fds, 2, p->tick ? PROGRAM_TICK_MS : -1) < 0 && errno != EINTR)
			return fail(e, errno, "poll: %s", strerror(errno));
		if (p->tick)
			p->tick(p->tick_data);
		if (fds[1].revents & POLLIN)
			pass_on(p);
	}
	while (wait4(p->pid, &status, 0, &end->usage) < 0)
		if (errno != EINTR)
			return fail(e, errno, "wait: %s", strerror(errno));
	p->pid = 0;
	end->seconds = (double)(now_ns() - start) / 1e9;
	end->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	end->status = end->signal ? 128 + end->signal : WEXITSTATUS(status);
	return 0;
}

void program_close(struct program *p)
{
	program_keep_end(p);
	close_fdp(&p->go);
	p->go = -1;
	if (p->pid > 0) {
		kill(p->pid, SIGKILL);
		waitpid(p->pid, NULL, 0);
		p->pid = 0;
	}
	close_fdp(&p->pidfd);
	close_fdp(&p->failed);
	close_fdp(&p->signals);
	p->pidfd = p->failed = p->signals = -1;
}

struct signalling {
	int signal, n; /* processes that took it */
};

static int signal_one(const char *dir, void *data)
{
	struct signalling *s = data;
	_cleanup_file_ FILE *f = NULL;
	char path[PATH_MAX + 16];
	int pid;

	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	f = fopen(path, "re");
	/* 0: of another PID namespace; kill(2) would take it for the own process group. */
	while (f && fscanf(f, "%d", &pid) == 1)
		s->n += pid > 0 && kill(pid, s->signal) == 0;
	return 0;
}

/* The scope is delegated: the program may have moved processes to cgroups below it. */
static int signal_all(const struct cgroup_ref *c, int sig)
{
	struct signalling s = { .signal = sig };

	cgroup_walk(c->path, signal_one, &s);
	return s.n;
}

int program_clear_cgroup(const struct cgroup_ref *c, int grace_ms)
{
	const struct timespec tick = { .tv_nsec = 20000000 };
	int n = signal_all(c, SIGTERM);

	for (int ms = 0; n && ms < grace_ms && signal_all(c, 0); ms += 20)
		nanosleep(&tick, NULL);
	/* Again for those that were forked meanwhile. */
	for (int ms = 0; n && ms < KILL_MS && signal_all(c, SIGKILL); ms += 20)
		nanosleep(&tick, NULL);
	return n;
}
