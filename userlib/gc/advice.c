// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "advice.h"
#include "residency.h"

void advice_open(struct advice *a)
{
	a->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
}

void advice_close(struct advice *a)
{
	if (a->pidfd >= 0)
		close(a->pidfd);
	a->pidfd = -1;
}

size_t advice_give(struct advice *a, char *base, const uint32_t *pages, unsigned int n, int advice)
{
	struct iovec runs[ADVICE_PAGES];
	size_t count = 0;

	for (unsigned int i = 0; i < n; i++) {
		char *at = base + (size_t)pages[i] * PAGE_BYTES;

		if (count && (char *)runs[count - 1].iov_base + runs[count - 1].iov_len == at)
			runs[count - 1].iov_len += PAGE_BYTES;
		else
			runs[count++] = (struct iovec){ at, PAGE_BYTES };
	}
	if (a->pidfd >= 0 && !__atomic_load_n(&a->one_by_one, __ATOMIC_RELAXED)) {
		if (syscall(SYS_process_madvise, a->pidfd, runs, count, advice, 0) >= 0)
			return 1;
		__atomic_store_n(&a->one_by_one, true, __ATOMIC_RELAXED);
	}
	for (size_t i = 0; i < count; i++)
		madvise(runs[i].iov_base, runs[i].iov_len, advice);
	return count;
}
