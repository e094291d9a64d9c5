// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

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
static const struct start_limit start_limit = { .ms = 60000 };
#define END_MS 10000

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
	int r = process_start(argv, "ebbd-run.scope", log_of(DAEMON), -1, &start_limit, e);

	s->daemon = !r;
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
	r = process_start(argv, "ebb-donord-run.scope", log_of(DONOR), -1, &start_limit, e);
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
	if (r)
		started_end(s, NULL);
	return r;
}

static int stop_daemon(struct error *e)
{
	struct json_object *status = NULL;
	int r = daemon_call(control_request("status"), &status, NULL);

	if (r)
		return 0;
	r = process_end((pid_t)json_int(status, "pid", 0), DAEMON, END_MS);
	json_object_put(status);
	return r ? fail(e, r, "%s: does not exit: %s; see %s", DAEMON, strerror(-r), log_of(DAEMON)) : 0;
}

int started_end(struct started *s, struct error *e)
{
	int r = 0, also;

	if (s->device)
		r = device_destroy(STARTED_DEVICE, DESTROY_CLEANUP, SWAPOFF_MS, SWAPOFF_QUIET, e);
	/* A device that is on needs its donor. */
	if (s->donor && !r) {
		also = process_end(s->donor, DONOR, END_MS);
		r = also ? fail(e, also, "%s: pid %d does not exit: %s; kill it", DONOR, s->donor,
				strerror(-also)) : 0;
	}
	if (s->daemon) {
		also = stop_daemon(e);
		r = r ?: also;
	}
	*s = (struct started){ .donor = 0 };
	return r;
}
