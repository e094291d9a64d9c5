// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ebbctl/call.h"
#include "ebbctl/device/create.h"
#include "ebbctl/device/destroy.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "ebbctl/process.h"
#include "run_services.h"

#define DONOR "ebb-donord"
#define DAEMON "ebbd"
/* Allows for loading BPF and touching all lent memory on an emulated machine. */
#define START_MS 60000
#define END_MS 10000

int services_use(struct program *p, struct error *e)
{
	const struct timespec tick = { .tv_nsec = 20000000 };
	_cleanup_close_ int fd = -1;
	char path[512];
	int r = file_make_dirs(ebb_run_dir(), 0755);

	snprintf(path, sizeof(path), "%.400s/run.lock", ebb_run_dir());
	if (!r)
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail(e, r ?: errno, "%s: cannot create: %s", path, strerror(r ? -r : errno));
	/* Another ebbctl may run swapoff for minutes, and signals are blocked. */
	while (flock(fd, LOCK_SH | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return fail(e, errno, "%s: %s", path, strerror(errno));
		if (program_interrupted(p))
			return fail_exit(e, 128 + SIGINT, EINTR,
					 "run: interrupted while another run stops its services; try again");
		nanosleep(&tick, NULL);
	}
	return TAKE_FD(fd);
}

/* Returns a free port of loopback. */
static int free_port(void)
{
	_cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof(a);

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ||
	    getsockname(fd, (struct sockaddr *)&a, &len) < 0)
		return -errno;
	return ntohs(a.sin_port);
}

static const char *log_of(const char *program)
{
	static char path[512];

	snprintf(path, sizeof(path), "%.400s/%s.log", ebb_run_dir(), program);
	return path;
}

static int start_daemon(struct started *s, struct error *e)
{
	const char *const argv[] = { ebb_program(DAEMON), "--daemon", "--purge", NULL };
	int r = process_start(argv, "ebbd-run.scope", log_of(DAEMON), -1, START_MS, e);
	struct json_object *status = NULL;

	if (r)
		return r;
	r = daemon_call(control_request("status"), &status, e);
	s->daemon = r ? process_find(DAEMON, "--daemon", "--purge") :
			(pid_t)json_int(status, "pid", 0);
	json_object_put(status);
	return r;
}

static int start_donor(struct started *s, uint64_t memory, struct error *e)
{
	char size[32];
	const char *const argv[] = { ebb_program(DONOR), "--listen", s->donor_address, "--memory", size,
				     NULL };
	int r, port = free_port();

	if (port < 0)
		return fail(e, port, "loopback: no free port: %s; try again", strerror(-port));
	snprintf(s->donor_address, sizeof(s->donor_address), "127.0.0.1:%d", port);
	snprintf(size, sizeof(size), "%llu", (unsigned long long)memory);
	r = process_start(argv, "ebb-donord-run.scope", log_of(DONOR), -1, START_MS, e);
	if (r)
		return r;
	s->donor = process_find(DONOR, "--listen", s->donor_address);
	return s->donor ? 0 : fail(e, ESRCH, "%s: exited during startup; see %s", DONOR, log_of(DONOR));
}

static int start_device(struct started *s, uint64_t memory, struct error *e)
{
	struct device_plan plan = DEVICE_PLAN_DEFAULTS;
	struct device_record d;
	int r;

	plan.size = memory;
	plan.donors = (struct option_list){ .v = { s->donor_address }, .n = 1 };
	r = device_create(STARTED_DEVICE, &plan, &d, e);
	s->device = !r;
	return r;
}

int started_begin(struct started *s, bool daemon_runs, bool device_is_on, uint64_t memory,
		  struct error *e)
{
	int r = file_make_dirs(ebb_device_dir(), 0755);

	*s = (struct started){ .donor = 0 };
	/* Donors lend only whole slabs. */
	memory = (memory + DEVICE_SLAB - 1) / DEVICE_SLAB * DEVICE_SLAB;
	if (r)
		return fail(e, r, "%s: cannot create: %s", ebb_device_dir(), strerror(-r));
	if (!daemon_runs)
		r = start_daemon(s, e);
	if (!r && !device_is_on)
		r = start_donor(s, memory, e);
	if (!r && !device_is_on)
		r = start_device(s, memory, e);
	return r;
}

/*
 * Keeps the exclusive lock, so that no run begins that finds the services.  flock(2) releases the
 * shared lock first: of two runs that end at a time, one gets the exclusive lock.
 */
static int check_runs(int lock, struct error *e)
{
	if (flock(lock, LOCK_EX | LOCK_NB) == 0)
		return 0;
	return fail_exit(e, EXIT_REFUSED, EBUSY, "run: another \"ebbctl run\" uses what --start started");
}

/* Cgroups of ebbd's configuration had no policy before --start, either. */
static int check_attached(struct error *e)
{
	_cleanup_json_ struct json_object *status = NULL;
	struct json_object *rows;

	if (daemon_call(control_request("status"), &status, NULL))
		return 0;
	rows = json_member(status, "attachments");
	for (size_t i = 0; rows && i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);

		if (!strcmp(json_text(row, "by", ""), "command"))
			return fail_exit(e, EXIT_REFUSED, EBUSY,
					 "run: cgroup %.256s uses the ebbd that --start started",
					 json_text(row, "cgroup", "?"));
	}
	return 0;
}

/* Ends the process *@pid, if any, and sets *@pid to 0. */
static int end_process(pid_t *pid, const char *name, struct error *e)
{
	int r = *pid ? process_end(*pid, name, END_MS) : 0;

	if (r)
		return fail(e, r, "%s: pid %d does not exit: %s; see %s", name, *pid, strerror(-r),
			    log_of(name));
	*pid = 0;
	return 0;
}

int started_end(struct started *s, int lock, struct error *e)
{
	int r = started_any(s) ? check_runs(lock, e) : 0;

	if (!r && s->daemon)
		r = check_attached(e);
	if (!r && s->device) {
		r = device_destroy(STARTED_DEVICE, DESTROY_PATIENT, SWAPOFF_MS, SWAPOFF_QUIET, e);
		/* Another ebbctl may have destroyed it meanwhile. */
		r = r == -ENOENT ? 0 : r;
		s->device = r != 0;
	}
	/* A device that is on needs its donor. */
	if (!r)
		r = end_process(&s->donor, DONOR, e);
	if (!r)
		r = end_process(&s->daemon, DAEMON, e);
	return r;
}

bool started_any(const struct started *s)
{
	return s->device || s->donor || s->daemon;
}

const char *started_format(const struct started *s, char *text, size_t size)
{
	const pid_t pids[] = { s->donor, s->daemon };
	size_t len = (size_t)snprintf(text, size, "%s",
				      s->device ? "ebbctl device destroy " STARTED_DEVICE : "");

	if (len < size && (s->donor || s->daemon))
		len += (size_t)snprintf(text + len, size - len, "%skill", len ? " && " : "");
	for (int i = 0; i < 2; i++)
		if (len < size && pids[i])
			len += (size_t)snprintf(text + len, size - len, " %d", pids[i]);
	return text;
}
