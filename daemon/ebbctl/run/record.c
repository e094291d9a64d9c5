// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ebbctl/call.h"
#include "ebbctl/device/memory_floor.h"
#include "lib/control/control.h"
#include "lib/host/cgroup.h"
#include "record.h"

#define NS_PER_S 1000000000ULL
#define CHECK_NS (NS_PER_S / 2)
/* ebbd ends a recording without record.check for this time, such as after ebbctl was killed. */
#define WATCH_NS (10 * NS_PER_S)

int record_path(const char *name, char *path, size_t size, struct error *e)
{
	char dir[PATH_MAX] = "";

	/* ebbd has another working directory. */
	if (name[0] != '/' && !realpath(".", dir))
		return fail(e, errno, "%.200s: %s; give an absolute path", name, strerror(errno));
	if ((size_t)snprintf(path, size, "%s%s%s", dir, *dir ? "/" : "", name) >= size)
		return fail_exit(e, EXIT_USAGE, ENAMETOOLONG, "%.64s...: name too long; give a shorter one",
				 name);
	return 0;
}

/* ^C ends the recording, not ebbctl, which must notify ebbd. */
static sigset_t stop_signals(void)
{
	sigset_t stop;

	sigemptyset(&stop);
	sigaddset(&stop, SIGINT);
	sigaddset(&stop, SIGTERM);
	sigaddset(&stop, SIGHUP);
	return stop;
}

static int tell(const char *verb, const char *cgroup, const char *file, struct error *e)
{
	struct json_object *request = control_request(verb);

	json_add_text(request, "cgroup", cgroup);
	if (file) {
		json_add_text(request, "file", file);
		json_add_int(request, "watch_ns", WATCH_NS);
	}
	return daemon_tell(request, e);
}

/* Waits for a signal, for @ns (0: unlimited), or until the recording ends by itself. */
static void wait_for(const char *cgroup, uint64_t ns)
{
	sigset_t stop = stop_signals();

	for (;;) {
		uint64_t turn = ns && ns < CHECK_NS ? ns : CHECK_NS;
		struct timespec t = { .tv_sec = turn / NS_PER_S, .tv_nsec = turn % NS_PER_S };

		if (sigtimedwait(&stop, NULL, &t) > 0 || (ns && ns <= turn) ||
		    tell("record.check", cgroup, NULL, NULL))
			return;
		ns -= ns ? turn : 0;
	}
}

int record_stop(const char *cgroup, struct json_object **answer, struct error *e)
{
	struct json_object *request = control_request("record.stop");

	json_add_text(request, "cgroup", cgroup);
	return daemon_call(request, answer, e);
}

int record_for(const struct cgroup_ref *c, const struct record_plan *plan,
	       struct json_object **answer, struct error *e)
{
	struct memory_floor floor = { .hold = -1 };
	sigset_t stop = stop_signals();
	int r;

	sigprocmask(SIG_BLOCK, &stop, NULL);
	r = plan->full ? memory_floor_set(&floor, c, plan->full, e) : 0;
	if (!r)
		r = tell("record.start", c->path, plan->file, e);
	if (!r) {
		wait_for(c->path, plan->ns);
		r = record_stop(c->path, answer, e);
	}
	memory_floor_end(&floor);
	return r;
}
