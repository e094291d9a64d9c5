// SPDX-License-Identifier: GPL-2.0-or-later
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "inflight.h"
#include "lib/control/device.h"

static int add(const struct device_record *d, void *data)
{
	struct inflight *f = data;
	char path[64];
	int fd;

	if (f->devices == EBB_MAX_DEVICES)
		return 1;
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/inflight", d->major, d->minor);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		f->fd[f->devices++] = fd;
	return 0;
}

void inflight_close(struct inflight *f)
{
	while (f->devices)
		close(f->fd[--f->devices]);
}

void inflight_refresh(struct inflight *f)
{
	inflight_close(f);
	device_record_each(add, f);
}

uint64_t inflight_reads(const struct inflight *f)
{
	uint64_t sum = 0;
	char text[64];
	ssize_t n;

	for (uint32_t i = 0; i < f->devices; i++) {
		n = pread(f->fd[i], text, sizeof(text) - 1, 0);
		if (n <= 0)
			continue;
		text[n] = '\0';
		sum += strtoull(text, NULL, 10);
	}
	return sum;
}
