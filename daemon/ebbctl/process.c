// SPDX-License-Identifier: GPL-2.0-or-later
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/host/cgroup_files.h"
#include "lib/host/systemd.h"
#include "process.h"

#define MAX_ARGS 64
/* Interval of checks for an interrupt. */
#define SLICE_MS 100

void process_ending_signals(sigset_t *set)
{
	static const int numbers[] = { SIGINT, SIGQUIT, SIGTERM, SIGHUP };
	struct sigaction now;

	sigemptyset(set);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
			sigaddset(set, numbers[i]);
}

void process_defer_signals(void)
{
	sigset_t set;

	/* Progress may go to a pipe that nothing reads any more. */
	signal(SIGPIPE, SIG_IGN);
	process_ending_signals(&set);
	sigdelset(&set, SIGQUIT);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

bool process_interrupted(void)
{
	sigset_t set;

	/* An ignored signal that is not blocked is never pending. */
	sigpending(&set);
	return sigismember(&set, SIGINT) || sigismember(&set, SIGTERM) || sigismember(&set, SIGHUP);
}

/*
 * A server of memory must not be charged to the cgroup that starts it, nor be
 * reclaimed with it.
 */
static void leave_limits(const char *unit)
{
	const pid_t self = getpid();
	const char *mount;
	char path[PATH_MAX];
	bool v2;

	if (transient_scope(unit, &self, 1, NULL, 0, NULL) == 0)
		return;
	mount = cgroup_memory_mount(&v2);
	snprintf(path, sizeof(path), "%.4000s/cgroup.procs", mount ?: "");
	if (mount && file_write(path, "0") < 0)
		fprintf(stderr, "%s: warning: cannot leave the memory cgroup of ebbctl\n", unit);
}

static void become(const char *const *argv, const char *unit, const char *log, int ready, int also)
{
	const char *args[MAX_ARGS + 3];
	char number[16];
	int n = 0, in, out;
	sigset_t none;

	/* ^C at the terminal must not reach the server of a swap device. */
	setsid();
	/* A daemon that inherits an ignored SIGCHLD cannot wait for its children. */
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	in = open("/dev/null", O_RDONLY | O_CLOEXEC);
	out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	/* A daemon must not hold the caller's locks and pipes. */
	close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 ||
	    fcntl(ready, F_SETFD, 0) < 0 || (also >= 0 && fcntl(also, F_SETFD, 0) < 0))
		_exit(127);
	leave_limits(unit);
	for (; argv[n] && n < MAX_ARGS; n++)
		args[n] = argv[n];
	snprintf(number, sizeof(number), "%d", ready);
	args[n++] = "--ready-fd";
	args[n++] = number;
	args[n] = NULL;
	execvp(args[0], (char *const *)args);
	fprintf(stderr, "%s: cannot run: %s; install it beside ebbctl\n", args[0], strerror(errno));
	_exit(127);
}

/* Returns the last non-empty line of the file. */
static void last_line(const char *path, char *line, size_t size)
{
	_cleanup_file_ FILE *f = fopen(path, "re");
	char text[400];

	snprintf(line, size, "no message");
	while (f && fgets(text, sizeof(text), f)) {
		text[strcspn(text, "\n")] = '\0';
		if (*text)
			snprintf(line, size, "%s", text);
	}
}

/* Returns a log line without "PROGRAM: error: " or the journal's "<3>". */
static const char *without_prefix(const char *line)
{
	const char *mark = strstr(line, ": error: ");

	if (line[0] == '<' && line[1] && line[2] == '>')
		return line + 3;
	return mark ? mark + strlen(": error: ") : line;
}

/* Returns 0 after "READY\n", -ECONNRESET at end of file, -ETIMEDOUT. */
static int wait_ready(int fd, int timeout_ms)
{
	int64_t deadline = now_ms() + timeout_ms;
	char text[8];
	size_t len = 0;

	while (len < 6) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int64_t left = deadline - now_ms();
		ssize_t n;

		if (left <= 0)
			return -ETIMEDOUT;
		if (process_interrupted())
			return -EINTR;
		if (poll(&p, 1, left < SLICE_MS ? (int)left : SLICE_MS) <= 0)
			continue;
		n = read(fd, text + len, 6 - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -ECONNRESET;
		len += n;
	}
	return memcmp(text, "READY\n", 6) ? -EPROTO : 0;
}

int process_start(const char *const *argv, const char *unit, const char *log, int also,
		  int timeout_ms, struct error *e)
{
	const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
	_cleanup_close_ int ours = -1;
	char line[480];
	int fds[2], r, status = 0;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return fail(e, errno, "%s: pipe: %s", name, strerror(errno));
	ours = fds[0];
	unlink(log);
	pid = fork();
	if (pid == 0)
		become(argv, unit, log, fds[1], also);
	close(fds[1]);
	if (pid < 0)
		return fail(e, errno, "%s: fork: %s", name, strerror(errno));
	r = wait_ready(ours, timeout_ms);
	if (!r)
		return 0;
	if (r != -ECONNRESET) {
		kill(pid, SIGTERM);
		if (r == -EINTR)
			return fail(e, r, "%s: interrupted during startup; try again", name);
		return fail(e, r, "%s: not ready after %d s; see %s", name, timeout_ms / 1000, log);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	last_line(log, line, sizeof(line));
	status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
	return fail_exit(e, status && status <= EXIT_REFUSED ? status : EXIT_FAILED, ECHILD,
			 "%s: cannot start: %s", name, without_prefix(line));
}

/* Returns whether the NUL-separated @words of @len bytes contain @option then @value. */
static bool has_words(const char *words, size_t len, const char *option, const char *value)
{
	const char *end = words + len, *next;

	for (const char *w = words; w < end; w = next) {
		next = w + strlen(w) + 1;
		if (!strcmp(w, option) && next < end && !strcmp(next, value))
			return true;
	}
	return false;
}

static bool is_named(pid_t pid, const char *comm)
{
	char path[64], text[32];

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	if (file_read(path, text, sizeof(text)) < 0)
		return false;
	text[strcspn(text, "\n")] = '\0';
	return !strcmp(text, comm);
}

/* Every user can name a process and choose its arguments. */
static bool is_trusted(DIR *proc, const char *pid)
{
	struct stat st;

	return fstatat(dirfd(proc), pid, &st, 0) == 0 && (st.st_uid == 0 || st.st_uid == geteuid());
}

pid_t process_find(const char *comm, const char *option, const char *value)
{
	_cleanup_dir_ DIR *dir = opendir("/proc");
	char path[64], words[4 * PATH_MAX];
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		pid_t pid = isdigit((unsigned char)*entry->d_name) ? atoi(entry->d_name) : 0;
		ssize_t n;

		if (!pid || !is_named(pid, comm) || !is_trusted(dir, entry->d_name))
			continue;
		if (!option)
			return pid;
		/* Only for matching names: the read waits while the process faults. */
		snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
		n = file_read(path, words, sizeof(words));
		if (n > 0 && has_words(words, n, option, value))
			return pid;
	}
	return 0;
}

int process_wait(int pidfd, int timeout_ms, enum process_patience patience)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };
	int64_t deadline = now_ms() + timeout_ms;

	for (;;) {
		int64_t left = deadline - now_ms();

		if (poll(&p, 1, left > SLICE_MS ? SLICE_MS : left > 0 ? (int)left : 0) > 0)
			return 0;
		if (left <= 0)
			return -ETIMEDOUT;
		if (patience == PATIENCE_UNTIL_INTERRUPTED && process_interrupted())
			return -EINTR;
	}
}

int process_end(pid_t pid, const char *comm, int timeout_ms)
{
	_cleanup_close_ int fd = syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int64_t deadline = now_ms() + timeout_ms;

	if (fd < 0)
		return errno == ESRCH ? 0 : -errno;
	if (!is_named(pid, comm))
		return 0;
	if (syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0) < 0)
		return errno == ESRCH ? 0 : -errno;
	for (;;) {
		int64_t left = deadline - now_ms();
		int n = poll(&p, 1, left > 0 ? (int)left : 0);

		if (n > 0)
			return 0;
		if (left <= 0)
			return -ETIMEDOUT;
	}
}
