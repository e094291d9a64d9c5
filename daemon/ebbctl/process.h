/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Starts, finds and ends ebb's other programs. */
#ifndef EBB_PROCESS_H
#define EBB_PROCESS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "lib/base/error.h"

/*
 * Sets @set to the signals that end a command: SIGINT, SIGQUIT, SIGTERM and SIGHUP, without
 * those that the caller of ebbctl ignores, such as nohup(1).
 */
void process_ending_signals(sigset_t *set);

/*
 * Makes these signals, except SIGQUIT, only set process_interrupted(), and ignores SIGPIPE, so
 * that a command completes or undoes its changes.
 */
void process_defer_signals(void);
bool process_interrupted(void);

/*
 * Starts the daemon @argv (NULL-terminated) in its own session, outside any limited memory
 * cgroup, with stdin from /dev/null and output to the file @log.  It inherits only the
 * descriptor @also, unless -1.  Appends "--ready-fd N" to its arguments and waits up to
 * @timeout_ms for "READY\n" there; the daemon may have forked by then.  If it exits
 * earlier, @e has the last line of @log and its exit status.  -EINTR after
 * process_interrupted().  @unit names its systemd scope, if systemd runs.
 */
int process_start(const char *const *argv, const char *unit, const char *log, int also,
		  int timeout_ms, struct error *e);

/*
 * Returns the pid of the process with command name @comm whose arguments contain the
 * words @option @value in sequence (both NULL: any), or 0.  Ignores processes of users
 * other than root and the caller.
 */
pid_t process_find(const char *comm, const char *option, const char *value);

/*
 * Ends @pid by SIGTERM if its command name is @comm, and waits for its exit; -ETIMEDOUT
 * after @timeout_ms.  Succeeds when it does not exist.
 */
int process_end(pid_t pid, const char *comm, int timeout_ms);

enum process_patience {
	PATIENCE_UNTIL_INTERRUPTED,
	PATIENCE_TO_THE_END,
};

/*
 * Waits for the exit of the process behind @pidfd: 0, -ETIMEDOUT, or, if @patience
 * allows, -EINTR after process_interrupted().
 */
int process_wait(int pidfd, int timeout_ms, enum process_patience patience);

#endif
