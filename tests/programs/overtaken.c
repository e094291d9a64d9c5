// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * overtaken: swaps its pages out and in, while a second thread enters the page that is next, as
 * ebbd does before a prefetch, and withdraws it, all the time: before, during and after the fault.
 *
 * Of each line "touch|direct OWNER EXEC" of stdin it makes a pass, by accesses or by direct I/O,
 * and answers with the faults for which a read was queued and the ns that they took.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <ebb/abi.h>

#define PAGES 1024
#define FILE_NAME "/var/tmp/ebb-test-overtaken"

struct toggler {
	pthread_t thread;
	int map;
	uint64_t owner;
	uint32_t exec;
	_Atomic uint64_t vpn;      /* 0 = stop */
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void need(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "overtaken: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void *toggle(void *data)
{
	struct toggler *t = data;
	struct ebb_page page = { .tgid = (uint32_t)getpid(), .exec = t->exec };
	struct ebb_prefetch value = { .owner = t->owner };

	while ((page.vpn = t->vpn)) {
		value.issued_ns = now_ns();
		bpf_map_update_elem(t->map, &page, &value, BPF_ANY);
		bpf_map_delete_elem(t->map, &page);
	}
	return NULL;
}

static long major_faults(void)
{
	struct rusage r;

	getrusage(RUSAGE_THREAD, &r);
	return r.ru_majflt;
}

static void reach(unsigned char *page, int file)
{
	if (file >= 0)
		need(pread(file, page, EBB_PAGE, 0) == EBB_PAGE, "direct read");
	else
		*(volatile unsigned char *)page;
}

static void pass(struct toggler *t, unsigned char *area, int file)
{
	long before = major_faults();
	uint64_t begin = now_ns();

	t->vpn = (uintptr_t)area >> EBB_PAGE_SHIFT;
	need(!pthread_create(&t->thread, NULL, toggle, t), "thread");
	for (int i = 0; i < PAGES; i++) {
		t->vpn = ((uintptr_t)area >> EBB_PAGE_SHIFT) + (uint64_t)i;
		reach(area + (size_t)i * EBB_PAGE, file);
	}
	t->vpn = 0;
	pthread_join(t->thread, NULL);
	printf("%ld %" PRIu64 "\n", major_faults() - before, now_ns() - begin);
}

int main(void)
{
	int file = open(FILE_NAME, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
	struct toggler t = { .map = bpf_obj_get("/sys/fs/bpf/ebb/maps/prefetched") };
	size_t size = (size_t)PAGES * EBB_PAGE;
	unsigned char *area;
	char how[16];

	need(file >= 0 && !unlink(FILE_NAME), FILE_NAME);
	need(t.map >= 0, "maps/prefetched");
	need(!mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT), "mlockall");
	area = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(area != MAP_FAILED && !madvise(area, size, MADV_NOHUGEPAGE) && !munlock(area, size), "area");
	for (size_t at = 0; at < size / 8; at++)
		((uint64_t *)area)[at] = at + 1; /* neither zero nor same-filled */
	/* A hole would be read without the device. */
	need(pwrite(file, area, EBB_PAGE, 0) == EBB_PAGE, "direct write");
	for (;;) {
		need(!madvise(area, size, MADV_PAGEOUT), "page out");
		puts("out");
		fflush(stdout);
		if (scanf("%15s %" SCNu64 " %" SCNu32, how, &t.owner, &t.exec) != 3)
			return 0;
		pass(&t, area, strcmp(how, "direct") ? -1 : file);
		fflush(stdout);
	}
}
