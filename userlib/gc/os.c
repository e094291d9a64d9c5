// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>
#include "os.h"

#define SECOND_NS 1000000000u

uint64_t os_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t os_thread_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

void os_sleep(uint64_t ns)
{
	const struct timespec time = { (time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS) };

	nanosleep(&time, NULL);
}

void os_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t steady;

	pthread_condattr_init(&steady);
	pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &steady);
	pthread_condattr_destroy(&steady);
}

bool os_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t ns)
{
	uint64_t until = os_now() + ns;
	const struct timespec time = { (time_t)(until / SECOND_NS), (long)(until % SECOND_NS) };

	return pthread_cond_timedwait(cond, lock, &time) != ETIMEDOUT;
}

size_t os_page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

size_t os_memory(void)
{
	struct sysinfo info;

	return sysinfo(&info) ? 0 : (size_t)info.totalram * info.mem_unit;
}

void *os_map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

bool os_forked(pid_t creator)
{
	return getpid() != creator;
}

uint64_t os_major_faults(void)
{
	struct rusage usage;

	return getrusage(RUSAGE_THREAD, &usage) ? 0 : (uint64_t)usage.ru_majflt;
}

bool os_swapped(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	unsigned long kib = 0;
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmSwap: %lu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}
