// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <unistd.h>

#include "privilege.h"

int need_root(const char *what, struct error *e)
{
	return geteuid() ? fail_exit(e, EXIT_REFUSED, EPERM, "%s: needs root; use sudo", what) : 0;
}
