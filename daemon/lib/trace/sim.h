/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Options of the commands of ebb-sim that ebbctl runs. */
#ifndef EBB_TRACE_SIM_H
#define EBB_TRACE_SIM_H

#include "lib/base/command.h"

struct sim_show {
	bool json, csv, partial;
};

struct sim_plot {
	bool json, partial;
	const char *output, *by;
};

struct sim_report {
	bool json, partial;
	const char *output;
};

struct sim_advise {
	bool json;
	const char *sizes, *subject;
	uint64_t needed;                   /* bytes */
	uint64_t full_time, recorded_time; /* ns */
};

extern const struct option_spec sim_show_options[], sim_plot_options[];
extern const struct option_spec sim_report_options[], sim_advise_options[];

#endif
