// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ebb/page.h>
#include "bpf/probe.skel.h"
#include "lib/host/cgroup.h"
#include "self_test.h"

/* More than a CPU collects before they come to the LRU lists. */
#define PAGES 256

static int touch_pages(struct probe_bpf *probe)
{
	size_t size = PAGES * EBB_PAGE;
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return -errno;
	madvise(at, size, MADV_NOHUGEPAGE);
	probe->bss->first = (uintptr_t)at >> EBB_PAGE_SHIFT;
	probe->bss->end = probe->bss->first + PAGES;
	probe->bss->tgid = (__u32)getpid();
	for (size_t i = 0; i < size; i += EBB_PAGE)
		((volatile char *)at)[i] = 1;
	munmap(at, size);
	return 0;
}

static int judge(const struct probe_bpf *probe, char *text, size_t size)
{
	const struct probe_bpf__bss *is = probe->bss;
	struct error e = { 0 };
	struct cgroup_ref own;

	if (cgroup_of_process(getpid(), &own, &e)) {
		snprintf(text, size, "%s", e.text);
		return -ENOENT;
	}
	if (!is->seen) {
		snprintf(text, size, "tp_btf/mm_lru_insertion: does not fire");
		return -ENODATA;
	}
	if (!is->found)
		snprintf(text, size, "swap_write(): finds neither mapping nor index of a page: pages "
			 "out are not attributed to processes, and epochs do not end");
	else if (is->task_cgroup != own.id)
		snprintf(text, size, "memory_cgroup(): finds cgroup %llu for a task in %llu: no fault "
			 "is counted and nothing is prefetched",
			 (unsigned long long)is->task_cgroup, (unsigned long long)own.id);
	else if (is->page_cgroup != own.id)
		snprintf(text, size, "folio_cgroup(): finds cgroup %llu for a page of %llu: swap-ins "
			 "and misses are not counted and nothing is prefetched",
			 (unsigned long long)is->page_cgroup, (unsigned long long)own.id);
	else if (!is->mm_known)
		snprintf(text, size, "mm_pages(): this kernel counts the pages of a process in another "
			 "form: epochs do not end");
	else
		return 0;
	return -EILSEQ;
}

int self_test(char *text, size_t size)
{
	struct probe_bpf *probe = probe_bpf__open_and_load();
	int r = probe ? probe_bpf__attach(probe) : -errno;

	if (!r)
		r = touch_pages(probe);
	if (r)
		snprintf(text, size, "bpf/probe: %s", strerror(-r));
	else
		r = judge(probe, text, size);
	probe_bpf__destroy(probe);
	return r;
}
