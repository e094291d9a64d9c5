// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "ebbctl/call.h"
#include "ebbctl/device/memory_floor.h"
#include "ebbctl/text.h"
#include "ebbctl/verbs/verbs.h"
#include "lib/base/size.h"
#include "lib/control/control.h"
#include "lib/host/cgroup.h"
#include "record.h"

#define NS_PER_S 1000000000ULL
#define CHECK_NS (NS_PER_S / 2)
/* ebbd ends a recording that nobody has asked about for so long: ours, if we are killed. */
#define WATCH_NS (10 * NS_PER_S)

struct record_options {
	bool json;
	const char *output;
	uint64_t seconds; /* ns */
	uint64_t full;    /* bytes */
};

int record_path(const char *name, char *path, size_t size, struct error *e)
{
	char dir[PATH_MAX] = "";

	/* ebbd has a working directory of its own. */
	if (name[0] != '/' && !realpath(".", dir))
		return fail(e, errno, "%.200s: %s; give an absolute path", name, strerror(errno));
	if ((size_t)snprintf(path, size, "%s%s%s", dir, *dir ? "/" : "", name) >= size)
		return fail_exit(e, EXIT_USAGE, ENAMETOOLONG, "%.64s...: its name is too long; give a shorter one",
				 name);
	return 0;
}

/* ^C ends the recording, not the program that has to tell ebbd. */
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
	struct json_object *request = daemon_request(verb);

	json_add_text(request, "cgroup", cgroup);
	if (file) {
		json_add_text(request, "file", file);
		json_add_int(request, "watch_ns", WATCH_NS);
	}
	return daemon_tell(request, e);
}

/* Until a signal, @ns have passed (0: for ever), or the recording has ended by itself. */
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
	struct json_object *request = daemon_request("record.stop");

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

static void print_recorded(struct json_object *o)
{
	char size[16];

	printf("%s: %lld records, %s", json_text(o, "file", ""),
	       (long long)json_int(o, "records", 0),
	       size_format(json_int(o, "bytes", 0), size, sizeof(size)));
	if (json_int(o, "lost", 0))
		printf(", %lld faults lost", (long long)json_int(o, "lost", 0));
	printf("\n");
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = NULL;
	const struct record_options *opt = options;
	char file[PATH_MAX];
	struct cgroup_ref c;
	struct stat st;
	int r;

	if (!opt->output)
		return fail_exit(e, EXIT_USAGE, EINVAL, "record: no file; give -o FILE");
	r = cgroup_resolve(argv[0], &c, e);
	if (!r)
		r = record_path(opt->output, file, sizeof(file), e);
	if (r)
		return r;
	r = record_for(&c, &(struct record_plan){ file, opt->seconds, opt->full }, &o, e);
	if (r)
		return r;
	json_add_text(o, "file", file);
	json_add_int(o, "bytes", stat(file, &st) == 0 ? st.st_size : 0);
	output(opt->json, o, print_recorded);
	return 0;
}

static const struct option_spec specs[] = {
	OPTION(record_options, output, "output", OPTION_STRING, "FILE", .letter = 'o',
	       .help = "where the trace goes"),
	OPTION(record_options, seconds, "seconds", OPTION_DURATION, "N", .min = 1,
	       .help = "how long, such as 10 or 500ms [until ^C]"),
	OPTION(record_options, full, "full", OPTION_SIZE, "SIZE", .min = 1 << 20, .max = 1ULL << 44,
	       .help = "leave it only SIZE meanwhile: touches of all other pages fault"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_record = {
	.object = "record", .arguments = "CGROUP",
	.help = "Records every fault of an attached cgroup as a trace", .options = specs,
	.example = "  ebbctl record spark.slice -o faults.trace --seconds 10\n",
	.options_size = sizeof(struct record_options), .run = run, .min_args = 1, .max_args = 1,
};
