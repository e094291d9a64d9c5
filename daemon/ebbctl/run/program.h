/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The program of `run`: held until its cgroup is ready, then run as the calling user on the
 * same terminal.  Signals are passed on.
 */
#ifndef EBB_PROGRAM_H
#define EBB_PROGRAM_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "lib/base/error.h"
#include "lib/host/cgroup.h"

#define PROGRAM_NOT_RUNNABLE 126 /* as env(1), timeout(1) */
#define PROGRAM_NOT_FOUND 127
#define PROGRAM_TICK_MS 20

enum program_user {
	USER_INVOKING, /* SUDO_UID under sudo(8) */
	USER_SELF,
};

struct program {
	const char *name;
	pid_t pid;
	int pidfd;
	pid_t keeper;   /* of program_keep(), or 0 */
	int go;         /* a write lets it run; its exec closes it */
	int failed;     /* receives the errno of a failed exec */
	int signals;    /* signalfd of signals to pass on */
	sigset_t mask;  /* before program_block_signals() */
	struct sigaction pipe, child; /* of SIGPIPE and SIGCHLD before program_block_signals() */
	void (*tick)(void *data); /* called every PROGRAM_TICK_MS while it runs; or NULL */
	void *tick_data;
};

struct program_end {
	int status;     /* exit status, 128 + signal */
	int signal;     /* signal that ended it, 0: none */
	double seconds; /* wall clock */
	struct rusage usage;
};

/*
 * Blocks SIGINT, SIGQUIT, SIGTERM and SIGHUP, ignores SIGPIPE and opens p->signals, so that
 * none of them ends ebbctl before its cleanup.  Call it first.
 */
int program_block_signals(struct program *p, struct error *e);
/* Restores SIGPIPE after the cleanup. */
void program_restore_pipe(const struct program *p);

/* Returns whether one of the signals arrived before the program ran. */
bool program_interrupted(struct program *p);

/* Forks a child that waits for program_go(). */
int program_fork(struct program *p, char **argv, enum program_user user, struct error *e);

/*
 * Forks an idle process into the cgroup, so that systemd does not remove the cgroup before
 * its counters are read.
 */
int program_keep(struct program *p, struct error *e);
void program_keep_end(struct program *p);

/*
 * Moves the child into @c (NULL: it is in its cgroup) and lets it exec.  A failed exec is
 * an error with exit status 126 or 127.
 */
int program_go(struct program *p, const struct cgroup_ref *c, struct error *e);

/*
 * Waits for its exit and passes on signals, except those of the terminal, which the whole
 * process group receives.
 */
int program_wait(struct program *p, struct program_end *end, struct error *e);

/* Ends a child that still waits, closes all descriptors.  Idempotent. */
void program_close(struct program *p);

/*
 * Sends SIGTERM, and SIGKILL after @grace_ms, to every process in @c and below.  Returns the
 * number of processes that got SIGTERM.
 */
int program_clear_cgroup(const struct cgroup_ref *c, int grace_ms);

#endif
