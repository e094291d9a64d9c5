/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The trace file that tests of one group write and read; set-up and tear-down of the group. */
#ifndef TRACE_FILE_H
#define TRACE_FILE_H

#include <stdlib.h>
#include <unistd.h>

static char path[] = "/tmp/ebb-trace-XXXXXX";

static int make_file(void **unused)
{
	int fd = mkstemp(path);

	return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **unused)
{
	unlink(path);
	return 0;
}

#endif
