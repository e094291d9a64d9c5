/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A BPF program of bpf/fault that the executor runs, once for many pages. */
#ifndef EBB_PROGRAM_H
#define EBB_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

struct program {
	int fd;
	const char *name;
	const char *lost;     /* what fails with it, for the log */
	uint64_t logged_ns;   /* time of the last report; 0 = none yet */
};

/* Returns whether it ran; logs a failure, at most once a minute. */
bool program_run(struct program *p);

#endif
