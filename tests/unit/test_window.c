// SPDX-License-Identifier: GPL-2.0-or-later
/* Windows of a process, by its pagemap: which may be collapsed, and what collapsing leaves. */
#include <errno.h>
#include <linux/kernel-page-flags.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebbd/prefetch/window.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define BYTES ((size_t)COLLAPSE_BYTES)

/* A process with two windows of memory; it says that it is ready, and checks them when told to. */
struct process {
	pid_t pid;
	int ready[2], check[2];
	struct target target;
	uint64_t vpn;
};

/* The windows at an aligned address, of which every byte of a page tells the page. */
static unsigned char *fill(void)
{
	/*
	 * Small pages, whatever the machine's setting.  Not by MADV_NOHUGEPAGE: to undo it,
	 * MADV_HUGEPAGE wakes khugepaged, which may collapse the windows before ebbd does.
	 */
	int disabled = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	unsigned char *all = mmap(NULL, 3 * BYTES, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *at = (unsigned char *)(((uintptr_t)all + BYTES - 1) & ~(BYTES - 1));

	if (disabled || all == MAP_FAILED)
		_exit(2);
	for (size_t i = 0; i < 2 * BYTES; i += 4096)
		memset(at + i, 1 + (int)(i >> 12) % 251, 4096);
	return at;
}

static bool intact(const unsigned char *at)
{
	for (size_t i = 0; i < 2 * BYTES; i++)
		if (at[i] != 1 + (i >> 12) % 251)
			return false;
	return true;
}

typedef void prepare(unsigned char *at);

static void huge_pages_may_be(unsigned char *at)
{
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

static void are_forbidden(unsigned char *at)
{
	huge_pages_may_be(at);
	madvise(at, 2 * BYTES, MADV_NOHUGEPAGE);
}

static void stay_disabled(unsigned char *at)
{
}

static void are_locked(unsigned char *at)
{
	huge_pages_may_be(at);
	if (mlock(at, 2 * BYTES))
		_exit(3);
}

static void a_page_was_never_touched(unsigned char *at)
{
	madvise(at + BYTES / 2, 4096, MADV_DONTNEED);
	huge_pages_may_be(at);
}

static void a_child_shares_a_page(unsigned char *at)
{
	pid_t parent = getpid(), child = fork();

	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* It may have exited before. */
		while (getppid() == parent)
			pause();
		_exit(0);
	}
	/* All but one page is the process's own again. */
	for (size_t i = 0; i < 2 * BYTES; i += 4096)
		if (i != 7 * 4096)
			*(volatile unsigned char *)(at + i) = at[i];
	huge_pages_may_be(at);
}

static void a_page_is_a_files(unsigned char *at)
{
	int fd = memfd_create("window", 0);

	if (fd < 0 || ftruncate(fd, 4096))
		_exit(4);
	mmap(at + 4096, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	memset(at + 4096, 2, 4096);
	huge_pages_may_be(at);
}

static void start(struct process *p, prepare *prepare)
{
	unsigned char *at;
	char c;

	assert_int_equal(pipe(p->ready), 0);
	assert_int_equal(pipe(p->check), 0);
	p->pid = fork();
	assert_true(p->pid >= 0);
	if (!p->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(p->check[1]);
		at = fill();
		prepare(at);
		if (write(p->ready[1], &at, sizeof(at)) != sizeof(at) ||
		    read(p->check[0], &c, 1) != 1)
			_exit(1);
		_exit(intact(at) ? 0 : 9);
	}
	close(p->ready[1]);
	close(p->check[0]);
	assert_int_equal(read(p->ready[0], &at, sizeof(at)), sizeof(at));
	p->vpn = (uintptr_t)at >> 12;
	assert_int_equal(target_open(&p->target, (uint32_t)p->pid, 1, 0), 0);
}

/* Returns the status with which the process found its memory. */
static int end(struct process *p)
{
	int status = 0;

	assert_int_equal(write(p->check[1], "", 1), 1);
	assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
	close(p->check[1]);
	close(p->ready[0]);
	target_close(&p->target);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Starts another process if page frames are in sequence by chance, or khugepaged was faster. */
static void start_small(struct process *p, prepare *prepare)
{
	for (int tries = 0; tries < 5; tries++) {
		start(p, prepare);
		if (!window_look(&p->target, p->vpn).huge &&
		    !window_look(&p->target, p->vpn + COLLAPSE_PAGES).huge)
			return;
		end(p);
	}
	fail_msg("windows of five processes are huge pages already");
}

/* Whether this user may: the pagemap has no page frames for others. */
static int is_possible(void **state)
{
	struct windows w;
	bool can = geteuid() == 0 && !windows_open(&w, NULL);

	if (can)
		windows_close(&w);
	else
		print_message("skip: needs root, and a kernel with MADV_COLLAPSE\n");
	*state = can ? state : NULL;
	return 0;
}

static void only_what_may_be_is_collapsed(void **state)
{
	static const struct {
		const char *name;
		prepare *prepare;
		uint32_t present;
		bool private[2], huge[2];
	} row[] = {
		{ "plain", huge_pages_may_be, 512, { true, true }, { true, true } },
		{ "locked", are_locked, 512, { true, true }, { true, true } },
		{ "MADV_NOHUGEPAGE", are_forbidden, 512, { true, true }, { false, false } },
		{ "PR_SET_THP_DISABLE", stay_disabled, 512, { true, true }, { false, false } },
		{ "shared", a_child_shares_a_page, 512, { false, true }, { true, true } },
		{ "a file's", a_page_is_a_files, 512, { false, true }, { false, false } },
	};

	if (!*state)
		skip();
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct process p = { 0 };
		struct window w;

		start_small(&p, row[i].prepare);
		for (int k = 0; k < 2; k++) {
			w = window_look(&p.target, p.vpn + k * COLLAPSE_PAGES);
			assert_int_equal(w.present, row[i].present);
			if (w.private != row[i].private[k] || w.huge || w.whole)
				fail_msg("%s: window %d: private %d, huge %d", row[i].name, k,
					 w.private, w.huge);
		}
		window_collapse(&p.target, p.vpn, 2);
		for (int k = 0; k < 2; k++) {
			w = window_look(&p.target, p.vpn + k * COLLAPSE_PAGES);
			if (w.huge != row[i].huge[k])
				fail_msg("%s: window %d: huge %d", row[i].name, k, w.huge);
			assert_int_equal(w.frame[7] - w.frame[0] == COLLAPSE_PAGES * 7 / 8, w.huge);
		}
		assert_int_equal(end(&p), 0);
	}
}

static void a_hole_is_seen(void **state)
{
	struct process p = { 0 };
	struct window w;

	if (!*state)
		skip();
	start(&p, a_page_was_never_touched);
	w = window_look(&p.target, p.vpn);
	assert_int_equal(w.present, COLLAPSE_PAGES - 1);
	assert_false(w.private);
	assert_true(window_look(&p.target, p.vpn + COLLAPSE_PAGES).private);
	assert_int_equal(end(&p), 9);
}

static void a_process_that_exited_has_none(void **state)
{
	struct process p = { 0 };
	struct target kept;

	if (!*state)
		skip();
	start(&p, huge_pages_may_be);
	assert_int_equal(target_open(&kept, (uint32_t)p.pid, 1, 0), 0);
	assert_int_equal(end(&p), 0);
	assert_int_equal(window_look(&kept, p.vpn).present, 0);
	window_collapse(&kept, p.vpn, 2);
	assert_int_equal(window_page_out(&kept, p.vpn), 0);
	target_close(&kept);
}

/* Memory in use is no free capacity, of whatever cgroup. */
static void a_mapped_frame_is_not_freeable(void **state)
{
	struct process p = { 0 };
	struct windows w;
	struct window at;
	uint64_t cgroup = 0;

	if (!*state)
		skip();
	assert_int_equal(windows_open(&w, NULL), 0);
	start(&p, huge_pages_may_be);
	at = window_look(&p.target, p.vpn);
	if (pread(w.cgroups, &cgroup, sizeof(cgroup), (off_t)(at.frame[0] * 8)) == sizeof(cgroup))
		assert_int_equal(windows_frame(&w, at.frame[0], 1, cgroup), FRAME_OTHER);
	assert_int_equal(windows_frame(&w, at.frame[0], 1, cgroup + 1), FRAME_OTHER);
	assert_int_equal(end(&p), 0);
	windows_close(&w);
}

/* A file with this content. */
static int file_of(const void *data, size_t size)
{
	int fd = memfd_create("window", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, size), size);
	return fd;
}

static void settings_allow_them_or_not(void **state)
{
	static const struct {
		const char *enabled, *size;
		bool allowed;
	} row[] = {
		{ "[always] madvise never\n", NULL, true },
		{ "always [madvise] never\n", NULL, true },
		{ "always madvise [never]\n", NULL, false },
		{ "always madvise [never]\n", "always [inherit] madvise never\n", false },
		{ "[always] madvise never\n", "always [inherit] madvise never\n", true },
		{ "always madvise [never]\n", "always inherit [madvise] never\n", true },
		{ "[always] madvise never\n", "always inherit madvise [never]\n", false },
		{ NULL, NULL, false },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct windows w = { -1, -1, -1, -1 };

		if (row[i].enabled)
			w.enabled = file_of(row[i].enabled, strlen(row[i].enabled));
		if (row[i].size)
			w.size = file_of(row[i].size, strlen(row[i].size));
		assert_int_equal(windows_allowed(&w), row[i].allowed);
		windows_close(&w);
	}
}

#define KPF(name) (1ULL << KPF_##name)

/* Reclaim frees only what was written and is not mapped; an unused prefetched page is neither. */
static void what_was_paged_out_is_freeable_once_written(void **state)
{
	static const uint64_t left = KPF(ANON) | KPF(SWAPCACHE) | KPF(SWAPBACKED) | KPF(LRU);
	static const struct {
		uint64_t flags, cgroup;
		uint32_t pages;
		enum frame_state state;
	} row[] = {
		{ left, 7, 1, FRAME_FREEABLE },
		{ left | KPF(WRITEBACK), 7, 1, FRAME_OUTGOING },
		{ left | KPF(DIRTY), 7, 1, FRAME_OTHER },
		{ left | KPF(MMAP), 7, 1, FRAME_OTHER },
		{ left, 8, 1, FRAME_OTHER },
		/* Prefetched and not used yet. */
		{ left & ~KPF(ANON), 7, 1, FRAME_OTHER },
		{ left & ~KPF(SWAPCACHE), 7, 1, FRAME_OTHER },
		{ KPF(BUDDY), 0, 1, FRAME_OTHER },
		/* A huge page's frame may be a small page's by now. */
		{ left | KPF(THP) | KPF(COMPOUND_HEAD), 7, 512, FRAME_FREEABLE },
		{ left | KPF(THP) | KPF(COMPOUND_HEAD) | KPF(WRITEBACK), 7, 512, FRAME_OUTGOING },
		{ left, 7, 512, FRAME_OTHER },
	};
	uint64_t flags[20] = { 0 }, cgroups[20] = { 0 };
	struct windows w = { -1, -1, -1, -1 };

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		flags[i + 1] = row[i].flags;
		cgroups[i + 1] = row[i].cgroup;
	}
	flags[0] = left;
	cgroups[0] = 7;
	w.flags = file_of(flags, sizeof(flags));
	w.cgroups = file_of(cgroups, sizeof(cgroups));
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		assert_int_equal(windows_frame(&w, i + 1, row[i].pages, 7), row[i].state);
	/* No page was present; and no such frame. */
	assert_int_equal(windows_frame(&w, 0, 1, 7), FRAME_OTHER);
	assert_int_equal(windows_frame(&w, 100, 1, 7), FRAME_OTHER);
	windows_close(&w);
	assert_int_equal(windows_frame(&w, 1, 1, 7), FRAME_OTHER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_what_may_be_is_collapsed),
		cmocka_unit_test(a_hole_is_seen),
		cmocka_unit_test(a_process_that_exited_has_none),
		cmocka_unit_test(a_mapped_frame_is_not_freeable),
		cmocka_unit_test(settings_allow_them_or_not),
		cmocka_unit_test(what_was_paged_out_is_freeable_once_written),
	};

	return cmocka_run_group_tests(tests, is_possible, NULL);
}
