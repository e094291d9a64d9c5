/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Starting, finding and ending ebb's other programs. */
#ifndef EBB_PROCESS_H
#define EBB_PROCESS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "lib/base/error.h"

/*
 * Sets @set to the signals that end a command: SIGINT, SIGQUIT, SIGTERM and SIGHUP, without those
 * that the caller of ebbctl ignores, as nohup(1) does.
 */
void process_ending_signals(sigset_t *set);

/*
 * Makes these signals, except SIGQUIT, only set process_interrupted(), so that a command
 * completes or undoes its changes.
 */
void process_defer_signals(void);
bool process_interrupted(void);

/*
 * Starts the daemon @argv (NULL-terminated) in a session of its own, outside
 * any limited memory cgroup, stdin from /dev/null, the rest into the file @log.
 * Of our descriptors it has @also, unless -1, and none that we were given.
 * Appends "--ready-fd N" to its arguments and waits up to @timeout_ms until it
 * has written "READY\n" there; it may have daemonised itself by then.  When it
 * ends before that, @e has the last line of @log and its exit status; -EINTR
 * when process_interrupted() meanwhile.  @unit names the systemd
 * scope it gets where systemd runs.
 */
int process_start(const char *const *argv, const char *unit, const char *log, int also,
		  int timeout_ms, struct error *e);

/*
 * The pid of the process with command name @comm whose arguments contain the
 * words @option @value, one after the other (both NULL: any); 0 when there is none.
 * Those of users other than root and our own do not count.
 */
pid_t process_find(const char *comm, const char *option, const char *value);

/*
 * Ends @pid by SIGTERM if its command name is @comm, and waits for it; -ETIMEDOUT
 * after @timeout_ms.  No error when it is gone already.
 */
int process_end(pid_t pid, const char *comm, int timeout_ms);

enum process_patience {
	PATIENCE_UNTIL_INTERRUPTED,
	PATIENCE_TO_THE_END,
};

/*
 * Waits until the process behind @pidfd has ended: 0, -ETIMEDOUT, or -EINTR
 * when process_interrupted() and @patience allows it.
 */
int process_wait(int pidfd, int timeout_ms, enum process_patience patience);

#endif
