// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/cgroup.h"
#include "common/control.h"
#include "common/size.h"
#include "daemon_call.h"
#include "output.h"
#include "record.h"
#include "verbs.h"

#define NS_PER_S 1000000000ULL
#define CHECK_NS (NS_PER_S / 2)
/* ebbd ends a recording that nobody has asked about for so long: ours, if we are killed. */
#define WATCH_NS (10 * NS_PER_S)

struct record_options {
	bool json;
	const char *output;
	uint64_t seconds; /* ns */
};

int record_path(const char *name, char *path, size_t size, struct error *e)
{
	char dir[PATH_MAX];

	if (name[0] == '/')
		return snprintf(path, size, "%s", name) < (int)size ? 0 : -ENAMETOOLONG;
	/* ebbd has a working directory of its own. */
	if (!realpath(".", dir) || (size_t)snprintf(path, size, "%.2000s/%.2000s", dir, name) >= size)
		return fail(e, errno, "%s: %s; give an absolute path", name, strerror(errno));
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

	put_str(request, "cgroup", cgroup);
	if (file) {
		put_str(request, "file", file);
		put_int(request, "watch_ns", WATCH_NS);
	}
	return daemon_tell(request, e);
}

int record_begin(const char *cgroup, const char *file, struct error *e)
{
	sigset_t stop = stop_signals();

	sigprocmask(SIG_BLOCK, &stop, NULL);
	return tell("record.start", cgroup, file, e);
}

void record_wait(const char *cgroup, uint64_t ns)
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

	put_str(request, "cgroup", cgroup);
	return daemon_call(request, answer, e);
}

static void print_recorded(struct json_object *o)
{
	char size[16];

	printf("%s: %lld records, %s", control_str(o, "file", ""),
	       (long long)control_int(o, "records", 0),
	       size_format(control_int(o, "bytes", 0), size, sizeof(size)));
	if (control_int(o, "lost", 0))
		printf(", %lld faults lost", (long long)control_int(o, "lost", 0));
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
	r = record_begin(c.path, file, e);
	if (r)
		return r;
	record_wait(c.path, opt->seconds);
	r = record_stop(c.path, &o, e);
	if (r)
		return r;
	put_str(o, "file", file);
	put_int(o, "bytes", stat(file, &st) == 0 ? st.st_size : 0);
	output(opt->json, o, print_recorded);
	return 0;
}

static const struct option_spec specs[] = {
	OPTION(record_options, output, "output", OPTION_STRING, "FILE", .letter = 'o',
	       .help = "where the trace goes"),
	OPTION(record_options, seconds, "seconds", OPTION_DURATION, "N",
	       .help = "how long, such as 10 or 500ms [until ^C]"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_record = {
	.object = "record", .arguments = "CGROUP",
	.help = "Records every fault of an attached cgroup as a trace", .options = specs,
	.example = "  ebbctl record spark.slice -o faults.trace --seconds 10\n",
	.options_size = sizeof(struct record_options), .run = run, .min_args = 1, .max_args = 1,
};
