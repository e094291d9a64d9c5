// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "program.h"

#define LOG_NS 60000000000ULL              /* least time between two reports of a failure */

/* Requests may come a thousand times a second, and all of them fail. */
static void report(struct program *p, int error)
{
	uint64_t now = now_ns();

	if (p->logged_ns && now - p->logged_ns < LOG_NS)
		return;
	p->logged_ns = now;
	log_err("bpf/fault: cannot run %s: %s; %s; permit ebbd the command BPF_PROG_RUN of bpf(2): "
		"see its security module and SystemCallFilter=", p->name, strerror(error), p->lost);
}

bool program_run(struct program *p)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts);

	if (!bpf_prog_test_run_opts(p->fd, &opts))
		return true;
	report(p, errno);
	return false;
}
