// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "load.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { TICKS = 8, IDLE = 3, IOWAIT = 4 };

static void sample_cpu(struct load *l)
{
	uint64_t tick[TICKS] = { 0 }, total = 0, busy;
	FILE *f = fopen("/proc/stat", "re");
	int n = 0;

	if (!f)
		return;
	if (fscanf(f, "cpu") == 0)
		while (n < TICKS && fscanf(f, "%" SCNu64, &tick[n]) == 1)
			total += tick[n++];
	fclose(f);
	if (n <= IOWAIT)
		return;
	busy = total - tick[IDLE] - tick[IOWAIT];
	/* Counts of waiting for I/O may go back. */
	if (total > l->total && busy >= l->busy && l->total)
		l->cpu = (uint32_t)((busy - l->busy) * 1000 / (total - l->total));
	l->cpu = l->cpu < 1000 ? l->cpu : 1000;
	l->busy = busy;
	l->total = total;
}

static void sample_memory(struct load *l)
{
	uint64_t total = 0, available = 0, kib;
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128], name[32];

	if (!f)
		return;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%31[^:]: %" SCNu64, name, &kib) != 2)
			continue;
		if (!strcmp(name, "MemTotal"))
			total = kib;
		else if (!strcmp(name, "MemAvailable"))
			available = kib;
	}
	fclose(f);
	available = available < total ? available : total;
	l->memory = total ? (uint32_t)((total - available) * 1000 / total) : 0;
}

void load_sample(struct load *l)
{
	sample_cpu(l);
	sample_memory(l);
}
