// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ebb/page.h>
#include "lib/base/cleanup.h"
#include "lib/base/size.h"
#include "memory_floor.h"
#include "swaps.h"

static uint64_t swap_free(void)
{
	struct swap_area areas[SWAPS_MAX];
	int n = swaps_read(areas);
	uint64_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += areas[i].size - areas[i].used;
	return sum;
}

static int check(const struct cgroup_ref *c, uint64_t bytes, struct error *e)
{
	uint64_t usage = cgroup_usage(c), room = swap_free();
	char has[16], wants[16], there[16];

	size_format(bytes, wants, sizeof(wants));
	if (cgroup_limit(c) <= bytes)
		return fail_exit(e, EXIT_REFUSED, ERANGE,
				 "--full: %s uses only %s; give less, or drop --full",
				 c->rel, wants);
	if (usage > bytes && usage - bytes > room)
		return fail_exit(e, EXIT_REFUSED, ENOSPC,
				 "--full: %s uses %s, and %s of free swap cannot hold what exceeds %s; create a larger device",
				 c->rel, size_format(usage, has, sizeof(has)),
				 size_format(room, there, sizeof(there)), wants);
	return 0;
}

/* Reads the limit, which is one line; returns 0 or -errno. */
static int limit_read(int limit, char *text, size_t size)
{
	ssize_t n = pread(limit, text, size - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return n < 0 ? -errno : 0;
}

/* Kernel files require one write(2). */
static int limit_write(int limit, const char *text)
{
	return pwrite(limit, text, strlen(text), 0) < 0 ? -errno : 0;
}

/* An administrator may have set another limit meanwhile. */
static int restore(int limit, uint64_t lowered, const char *before)
{
	char now[64];
	int r = limit_read(limit, now, sizeof(now));

	return r || strtoull(now, NULL, 10) != lowered ? r : limit_write(limit, before);
}

/* Waits for the other end of @hold to close. */
static pid_t start_keeper(int hold, int other, int limit, uint64_t lowered, const char *before)
{
	pid_t pid = fork();
	sigset_t all;
	char byte;

	if (pid)
		return pid;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	prctl(PR_SET_NAME, "ebb-floor");
	close(other);
	/* Readers of the caller's pipes must not wait for this process. */
	close(STDOUT_FILENO);
	while (read(hold, &byte, 1) < 0 && errno == EINTR)
		;
	_exit(restore(limit, lowered, before) ? 1 : 0);
}

int memory_floor_set(struct memory_floor *f, const struct cgroup_ref *c, uint64_t bytes,
		     struct error *e)
{
	char file[PATH_MAX + 32], before[64], now[32];
	_cleanup_close_ int limit = -1;
	int ends[2], r = check(c, bytes, e);

	*f = (struct memory_floor){ .hold = -1 };
	if (r)
		return r;
	snprintf(file, sizeof(file), "%s/%s", c->path,
		 c->v2 ? "memory.high" : "memory.limit_in_bytes");
	/* That of a removed cgroup does not reach another one of its name. */
	limit = open(file, O_RDWR | O_CLOEXEC);
	r = limit < 0 ? -errno : limit_read(limit, before, sizeof(before));
	if (r < 0)
		return fail(e, r, "%s: cannot read: %s", file, strerror(-r));
	/* As the kernel rounds it. */
	bytes -= bytes % EBB_PAGE;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return fail(e, errno, "pipe: %s", strerror(errno));
	f->keeper = start_keeper(ends[0], ends[1], limit, bytes, before);
	close(ends[0]);
	f->hold = ends[1];
	if (f->keeper < 0) {
		r = fail(e, errno, "fork: %s", strerror(errno));
		f->keeper = 0;
		memory_floor_end(f);
		return r;
	}
	snprintf(now, sizeof(now), "%llu", (unsigned long long)bytes);
	r = limit_write(limit, now);
	if (r) {
		memory_floor_end(f);
		return fail(e, r, "%s: cannot lower to %s bytes: %s; give a larger --full", file, now,
			    strerror(-r));
	}
	return 0;
}

void memory_floor_end(struct memory_floor *f)
{
	if (f->keeper <= 0 && f->hold <= 0)
		return;
	close(f->hold);
	if (f->keeper > 0)
		waitpid(f->keeper, NULL, 0);
	*f = (struct memory_floor){ .hold = -1 };
}
