// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "advise_idle.h"
#include "ebbctl/run/subject.h"
#include "ebbctl/sim_exec.h"
#include "lib/base/privilege.h"
#include "lib/base/size.h"
#include "verbs.h"

#define DEFAULT_FOR (600 * 1000000000ULL)
#define DEFAULT_IDLE "1m,5m" /* shorter than DEFAULT_FOR, so that each is reached */
#define DEFAULT_SIZES "100,75,50,25"
#define DEFAULT_SLAB (64ULL << 20) /* of device create */

struct advise_options {
	bool json;
	const char *sizes, *trace, *idle;
	uint64_t floor;         /* per cent */
	uint64_t watch, page_ns, slab;
	struct subject_plan plan;
};

/* Whether to watch a cgroup's memory instead of recording faults. */
static bool watches(const struct advise_options *o)
{
	return o->plan.cgroup && !o->plan.seconds;
}

static int smallest_of(const char *sizes, uint64_t *smallest, struct error *e)
{
	uint64_t share[SHARES_MAX];
	uint32_t n = SHARES_MAX;
	int r = shares_parse(sizes, "--sizes", share, &n, e);

	if (r)
		return r;
	*smallest = share[0];
	for (uint32_t i = 1; i < n; i++)
		*smallest = share[i] < *smallest ? share[i] : *smallest;
	return 0;
}

static int check(int argc, const struct advise_options *o, uint64_t smallest, struct error *e)
{
	int subjects = (argc > 0) + !!o->plan.cgroup + !!o->trace;

	if (subjects != 1)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "advise: %s; give exactly one of -- PROGRAM, --cgroup and --trace",
				 subjects ? "several inputs" : "no input");
	if ((o->watch || o->idle || o->page_ns || o->slab) && !watches(o))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "advise: --for, --idle, --page-cost and --slab require --cgroup without --seconds; drop them");
	if (watches(o) && (o->plan.full || o->plan.output || o->sizes))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "advise: --full, --output and --sizes require a recording; give --seconds, too, or drop them");
	if (!o->plan.cgroup && (o->plan.seconds || o->plan.full))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "advise: --seconds and --full require --cgroup; drop them");
	if (argc == 0 && (o->floor || o->plan.start || o->plan.as_root))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "advise: --floor, --start and --root require a PROGRAM; drop them");
	if (o->trace && o->plan.output)
		return fail_exit(e, EXIT_USAGE, EINVAL, "advise: --trace excludes --output; drop one");
	if (o->floor > smallest)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--floor: above the smallest of --sizes, %llu %%; give at most that",
				 (unsigned long long)smallest);
	return o->trace ? 0 : need_root("advise", e);
}

/*
 * A temporary recording becomes ebb-sim's standard input and has no name from then on,
 * so that nothing is left behind when ebb-sim is killed.
 */
static int release(struct subject *s, const char **file, struct error *e)
{
	bool temporary = s->temporary;
	int fd = temporary ? open(s->trace, O_RDONLY | O_CLOEXEC) : -1;

	*file = temporary ? "/dev/stdin" : s->trace;
	if (temporary && (fd < 0 || dup2(fd, STDIN_FILENO) < 0))
		fail(e, errno, "%s: %s", s->trace, strerror(errno));
	if (fd >= 0)
		close(fd);
	subject_end(s);
	return e->code;
}

static int analyse(struct subject *s, const struct advise_options *opt, struct error *e)
{
	struct sim_advise sim = {
		.json = opt->json, .sizes = opt->sizes ?: DEFAULT_SIZES,
		.subject = s->name, .needed = s->needed,
		.full_time = (uint64_t)(s->full_seconds * 1e9),
		.recorded_time = (uint64_t)(s->recorded_seconds * 1e9),
	};
	const char *file;
	int r = release(s, &file, e);

	return r ? r : sim_exec("advise", sim_advise_options, &sim, file, e);
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_subject_ struct subject s = { .name = NULL };
	const struct advise_options *opt = options;
	uint64_t smallest;
	int r = smallest_of(opt->sizes ?: DEFAULT_SIZES, &smallest, e);

	if (!r)
		r = check(argc, opt, smallest, e);
	if (r)
		return r;
	if (watches(opt))
		return advise_idle(&(struct advise_idle){
			opt->plan.cgroup, opt->idle ?: DEFAULT_IDLE, opt->watch ?: DEFAULT_FOR,
			opt->page_ns, opt->slab ?: DEFAULT_SLAB, opt->json }, e);
	if (opt->trace) {
		s.name = opt->trace;
		snprintf(s.trace, sizeof(s.trace), "%s", opt->trace);
	} else {
		r = opt->plan.cgroup ? subject_record(&s, &opt->plan, e) :
		    subject_run(&s, &opt->plan, opt->floor ?: smallest, argv, e);
	}
	return r ? r : analyse(&s, opt, e);
}

static const struct option_spec specs[] = {
	OPTION(advise_options, sizes, "sizes", OPTION_STRING, "PERCENT,...",
	       .help = "shares of the memory that the program needs, 1 to 400 [" DEFAULT_SIZES "]"),
	OPTION(advise_options, floor, "floor", OPTION_UINT, "PERCENT", .min = 1, .max = 100,
	       .help = "share of that memory in the recorded run [smallest of --sizes]"),
	OPTION(advise_options, plan.start, "start", OPTION_FLAG, NULL,
	       .help = "start ebbd, a donor on loopback and a device as needed"),
	OPTION(advise_options, plan.as_root, "root", OPTION_FLAG, NULL, .help = "with sudo, run the program as root"),
	OPTION(advise_options, plan.cgroup, "cgroup", OPTION_STRING, "CGROUP",
	       .help = "find the idle memory of this cgroup, or with --seconds record it"),
	OPTION(advise_options, watch, "for", OPTION_DURATION, "TIME", .min = 1000,
	       .help = "watch the cgroup for TIME, or until ^C [10m]"),
	OPTION(advise_options, idle, "idle", OPTION_STRING, "TIME,...",
	       .help = "report the memory that is idle for these times [" DEFAULT_IDLE "]"),
	OPTION(advise_options, page_ns, "page-cost", OPTION_DURATION, "TIME", .min = 1000,
	       .help = "cost of a page that returns [median miss at the device]"),
	OPTION(advise_options, slab, "slab", OPTION_SIZE, "SIZE", .min = 1 << 20, .max = 1 << 30,
	       .help = "slab size of the device [64M]"),
	OPTION(advise_options, plan.seconds, "seconds", OPTION_DURATION, "TIME", .min = 1000,
	       .help = "record the faults of the attached cgroup for TIME"),
	OPTION(advise_options, plan.full, "full", OPTION_SIZE, "SIZE", .min = 1 << 20, .max = 1ULL << 44,
	       .help = "limit the cgroup to SIZE while recording"),
	OPTION(advise_options, trace, "trace", OPTION_STRING, "FILE",
	       .help = "use this trace"),
	OPTION(advise_options, plan.output, "output", OPTION_STRING, "FILE", .letter = 'o',
	       .help = "keep the trace"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_advise = {
	.object = "advise", .arguments = "[-- PROGRAM [ARG...]]",
	.help = "Predict a program's run time with less memory, or find the idle memory of a cgroup",
	.example = "  sudo ebbctl advise --start -- sort -S 1G big.txt -o sorted.txt\n"
		   "  sudo ebbctl advise --cgroup app.slice --idle 5m,30m --for 40m\n",
	.options = specs, .options_size = sizeof(struct advise_options),
	.run = run, .max_args = -1,
};
