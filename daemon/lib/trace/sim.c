// SPDX-License-Identifier: GPL-2.0-or-later
#include "sim.h"

#define PARTIAL(of) \
	OPTION(of, partial, "partial", OPTION_FLAG, NULL, .help = "accept a truncated or unfinished trace")

const struct option_spec sim_show_options[] = {
	OPTION(sim_show, csv, "csv", OPTION_FLAG, NULL, .help = "print one line per record"),
	PARTIAL(sim_show),
	OPTION_JSON,
	OPTIONS_END
};

const struct option_spec sim_plot_options[] = {
	OPTION(sim_plot, output, "output", OPTION_STRING, "FILE", .letter = 'o',
	       .help = "picture to write: OUT.svg or OUT.png; required"),
	OPTION(sim_plot, by, "by", OPTION_STRING, "kind|thread",
	       .help = "meaning of the colours [kind]"),
	PARTIAL(sim_plot),
	OPTION_JSON,
	OPTIONS_END
};

const struct option_spec sim_report_options[] = {
	OPTION(sim_report, output, "output", OPTION_STRING, "DIR", .letter = 'o',
	       .help = "directory for index.html, created if missing; required"),
	PARTIAL(sim_report),
	OPTION_JSON,
	OPTIONS_END
};

const struct option_spec sim_advise_options[] = {
	OPTION(sim_advise, sizes, "sizes", OPTION_STRING, "PERCENT,...",
	       .help = "shares of the memory that the program needs, 1 to 400 [100,75,50,25]"),
	OPTION(sim_advise, needed, "needed", OPTION_SIZE, "SIZE",
	       .help = "memory that the program needs [derived from the trace]"),
	OPTION(sim_advise, subject, "subject", OPTION_STRING, "NAME",
	       .help = "name of the program in the output [FILE]"),
	OPTION(sim_advise, full_time, "full-time", OPTION_DURATION, "TIME",
	       .help = "run time with all memory"),
	OPTION(sim_advise, recorded_time, "recorded-time", OPTION_DURATION, "TIME",
	       .help = "run time during the recording"),
	OPTION_JSON,
	OPTIONS_END
};
