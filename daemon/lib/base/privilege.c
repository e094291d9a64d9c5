// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "privilege.h"

/* Constant since Linux 3.8; PID_NS_INIT_INO of <linux/nsfs.h> since 6.18. */
#define INITIAL_PIDS 0xEFFFFFFCu

int need_root(const char *what, struct error *e)
{
	return geteuid() ? fail_exit(e, EXIT_REFUSED, EPERM, "%s: needs root; use sudo", what) : 0;
}

int need_initial_pids(const char *what, struct error *e)
{
	struct stat st;

	if (stat("/proc/self/ns/pid", &st))
		return fail(e, errno, "/proc/self/ns/pid: %m; mount proc at /proc");
	if (st.st_ino == INITIAL_PIDS)
		return 0;
	return fail_exit(e, EXIT_REFUSED, EXDEV,
			 "PID namespace: not the host's, so that process numbers are not the kernel's; "
			 "start %s in the host's (hostPID: true, --pid=host)", what);
}
