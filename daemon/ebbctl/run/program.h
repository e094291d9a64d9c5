/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The program that `run` runs: held back until its cgroup is ready, then as
 * the user who called, on the same terminal, with the signals passed on.
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
	USER_INVOKING, /* SUDO_UID's, under sudo(8) */
	USER_SELF,
};

struct program {
	pid_t pid;
	int pidfd;
	pid_t keeper;   /* program_keep()'s, or 0 */
	int go;         /* written to let it run; its exec closes it */
	int failed;     /* errno of a failed exec comes here */
	int signals;    /* signalfd of what is passed on */
	sigset_t mask;  /* before program_block_signals() */
	struct sigaction pipe, child; /* of SIGPIPE and SIGCHLD, before that */
	void (*tick)(void *data); /* called every PROGRAM_TICK_MS while it runs; or NULL */
	void *tick_data;
};

struct program_end {
	int status;     /* exit status, 128 + signal */
	int signal;     /* that ended it, 0 = none */
	double seconds; /* wall clock */
	struct rusage usage;
};

/*
 * Blocks SIGINT, SIGQUIT, SIGTERM, SIGHUP and opens p->signals, so that none
 * of them ends ebbctl while there is something to clean up, nor does SIGPIPE when
 * nobody reads any more what it says.  First of all.
 */
int program_block_signals(struct program *p, struct error *e);
/* When all is cleaned up: SIGPIPE is what it was. */
void program_restore_pipe(const struct program *p);

/* Whether one of them came before the program ran. */
bool program_interrupted(struct program *p);

/* Forks; the child waits for program_go(). */
int program_fork(struct program *p, char **argv, enum program_user user, struct error *e);

/*
 * Forks a process that does nothing: in the same cgroup, it keeps systemd from
 * removing that before it has been read.
 */
int program_keep(struct program *p, struct error *e);
void program_keep_end(struct program *p);

/*
 * Lets it enter @c (NULL: it is there already) and exec.  A failed exec is an
 * error with exit status 126 or 127.
 */
int program_go(struct program *p, const struct cgroup_ref *c, struct error *e);

/*
 * Waits for its end and passes signals on meanwhile: not those of the terminal,
 * which it got itself, being in the same process group.
 */
int program_wait(struct program *p, struct program_end *end, struct error *e);

/* Ends the held back child, closes what is open.  Idempotent. */
void program_close(struct program *p);

/*
 * SIGTERM, after @grace_ms SIGKILL, to everything in @c; the number of
 * processes there were.
 */
int program_clear_cgroup(const struct cgroup_ref *c, int grace_ms);

#endif
