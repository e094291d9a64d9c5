// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ebb/page.h>
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/size.h"
#include "swapoff.h"
#include "swaps.h"

/* Longest wait for a swapoff that was told to stop. */
#define STOP_MS 5000
/* A rate is that of one to two of these intervals. */
#define PACE_MS 5000
#define LIVE_MS 500
#define LINES_MS 10000
/* Name of the process that calls swapoff(2). */
#define COMM "ebb-swapoff"
#define ERASE_LINE "\r\033[K"

void swapoff_pace_add(struct swapoff_pace *p, uint64_t used, int64_t now_ms)
{
	if (!p->ms[0])
		*p = (struct swapoff_pace){ { now_ms, now_ms }, { used, used }, now_ms, used };
	if (now_ms - p->ms[1] >= PACE_MS) {
		p->ms[0] = p->ms[1];
		p->used[0] = p->used[1];
		p->ms[1] = now_ms;
		p->used[1] = used;
	}
	if (used < p->last)
		p->moved_ms = now_ms;
	p->last = used;
}

char *swapoff_pace_format(const struct swapoff_pace *p, int64_t now_ms, char *text, int size)
{
	uint64_t moved = p->used[0] > p->last ? p->used[0] - p->last : 0;
	uint64_t ms = now_ms > p->ms[0] ? (uint64_t)(now_ms - p->ms[0]) : 1;
	uint64_t rate = moved * 1000 / ms, silent = (uint64_t)(now_ms - p->moved_ms) / 1000;
	char left[16], each[16];
	int n;

	n = snprintf(text, size, "%" PRIu64 " pages (%s) still swapped out", p->last / EBB_PAGE,
		     size_format(p->last, left, sizeof(left)));
	if (n >= size)
		return text;
	if (silent >= PACE_MS / 1000)
		snprintf(text + n, size - n, ", none read back for %" PRIu64 " s", silent);
	else if (rate)
		snprintf(text + n, size - n, ", %s/s, %" PRIu64 " s left",
			 size_format(rate, each, sizeof(each)), (p->last + rate - 1) / rate);
	return text;
}

/*
 * EINVAL means that the swap is off, or that another swapoff(2) still reads pages back:
 * systemd's at shutdown, which makes a swap unit for every line of /proc/swaps.  The area
 * is listed until that ends, and the server must keep running.
 */
static int off_in_child(const char *block)
{
	const struct timespec tick = { .tv_nsec = 20000000 };
	struct swap_area area;

	prctl(PR_SET_NAME, COMM);
	/* ebbctl handles ^C. */
	setsid();
	/* A hung child must not hold the lock and the pipes of ebbctl. */
	close_range(0, ~0u, 0);
	while (swapoff(block) < 0) {
		if (errno != EINVAL)
			_exit(errno);
		if (swaps_find(block, &area) == -ENOENT)
			break;
		nanosleep(&tick, NULL);
	}
	_exit(0);
}

/* One swapoff(2). */
struct swapoff_run {
	const char *device, *block, *again;
	enum swapoff_show show;
	pid_t pid;
	int fd; /* of its process */
	struct swapoff_pace pace;
	int64_t shown_ms;
};

static void look(struct swapoff_run *run)
{
	struct swap_area area;

	if (!swaps_find(run->block, &area))
		swapoff_pace_add(&run->pace, area.used, now_ms());
}

static void show(struct swapoff_run *run)
{
	int64_t now = now_ms();
	char text[128];

	if (run->show == SWAPOFF_QUIET || !run->pace.ms[0] ||
	    now - run->shown_ms < (run->show == SWAPOFF_LIVE ? LIVE_MS : LINES_MS))
		return;
	run->shown_ms = now;
	fprintf(stderr, "%sdevice %s: swapoff: %s%s", run->show == SWAPOFF_LIVE ? ERASE_LINE : "",
		run->device, swapoff_pace_format(&run->pace, now, text, sizeof(text)),
		run->show == SWAPOFF_LIVE ? "" : "\n");
	fflush(stderr);
}

/* Waits for the child as process_wait() does, and shows progress. */
static int wait_showing(struct swapoff_run *run, int timeout_ms, enum process_patience patience)
{
	int64_t left, deadline = now_ms() + timeout_ms;
	int r;

	do {
		look(run);
		show(run);
		left = deadline - now_ms();
		r = process_wait(run->fd, left < LIVE_MS ? (int)(left > 0 ? left : 0) : LIVE_MS,
				 patience);
	} while (r == -ETIMEDOUT && left > LIVE_MS);
	return r;
}

static int ended(const struct swapoff_run *run, struct error *e)
{
	int status = 0;

	waitpid(run->pid, &status, 0);
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return 0;
	if (WIFEXITED(status))
		return fail(e, WEXITSTATUS(status), "device %s: swapoff: %s; the device still works",
			    run->device, strerror(WEXITSTATUS(status)));
	/* During swapoff the OOM killer prefers the process that called it. */
	return fail(e, EINTR,
		    "device %s: swapoff: killed by signal %d; if by the OOM killer, free memory and try again; the device still works",
		    run->device, WTERMSIG(status));
}

/* @why: -EINTR or -ETIMEDOUT after @seconds. */
static int stopped(const struct swapoff_run *run, int why, int seconds, struct error *e)
{
	char left[16];

	size_format(run->pace.last, left, sizeof(left));
	if (why == -EINTR)
		return fail(e, EINTR,
			    "device %s: interrupted with %s still swapped out; swap stays on, run \"%s\" to continue",
			    run->device, left, run->again);
	return fail(e, ETIMEDOUT,
		    "device %s: swapoff not done after %d s, %s still swapped out; the device still works, run \"%s\" with a longer --timeout",
		    run->device, seconds, left, run->again);
}

/*
 * swapoff(2) checks for signals between processes, not between the pages of one: a large one may
 * take minutes.
 */
static int stop(struct swapoff_run *run, int why, int seconds, struct error *e)
{
	uint64_t before;
	char left[16];

	look(run);
	before = run->pace.last;
	kill(run->pid, SIGKILL);
	if (!wait_showing(run, STOP_MS, PATIENCE_TO_THE_END)) {
		struct swap_area area;

		waitpid(run->pid, NULL, 0);
		look(run);
		/* It may have been past the last check. */
		return swaps_find(run->block, &area) == -ENOENT ? 0 : stopped(run, why, seconds, e);
	}
	size_format(run->pace.last, left, sizeof(left));
	if (run->pace.last < before)
		return fail(e, EINPROGRESS,
			    "device %s: swapoff ends once the kernel has read back the pages of the current process, %s still swapped out; the device still works, run \"%s\" to continue",
			    run->device, left, run->again);
	return fail(e, EINPROGRESS,
		    "device %s: swapoff hangs (process %d, %s still swapped out): ebb-swapd or a donor is unresponsive; do NOT stop ebb-swapd, see \"ebbctl device list\", last resort \"ebbctl device abort %s\"",
		    run->device, run->pid, left, run->device);
}

int swaps_off(const char *device, const char *block, const struct swapoff_options *o,
	      struct error *e)
{
	char destroy[64];
	struct swapoff_run run = { device, block, o->again ?: destroy, o->show,
				   .shown_ms = now_ms() };
	_cleanup_close_ int fd = -1;
	int r;

	snprintf(destroy, sizeof(destroy), "ebbctl device destroy %.31s", device);
	run.pid = fork();
	if (run.pid == 0)
		off_in_child(block);
	fd = run.pid > 0 ? (int)syscall(SYS_pidfd_open, run.pid, 0) : -1;
	if (fd < 0)
		return fail(e, errno, "device %s: swapoff: %s", device, strerror(errno));
	run.fd = fd;
	r = wait_showing(&run, o->timeout_ms, o->patience);
	r = r ? stop(&run, r, o->timeout_ms / 1000, e) : ended(&run, e);
	if (o->show == SWAPOFF_LIVE)
		fputs(ERASE_LINE, stderr);
	return r;
}

bool swapoff_goes_on(void)
{
	return process_find(COMM, NULL, NULL) > 0;
}
