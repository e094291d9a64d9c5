// SPDX-License-Identifier: GPL-2.0-or-later
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/prctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ebb/page.h>
#include "doctor_check.h"
#include "ebbctl/call.h"
#include "ebbctl/device/list.h"
#include "ebbctl/device/swaps.h"
#include "ebbctl/process.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/size.h"
#include "lib/control/control.h"
#include "lib/control/peer.h"
#include "lib/host/cgroup.h"
#include "lib/host/cgroup_files.h"

#ifndef PR_GET_IO_FLUSHER
#define PR_GET_IO_FLUSHER 58
#define PR_SET_IO_FLUSHER 57
#endif

/* Returns the selected word of "always [madvise] never", or the whole text. */
static const char *setting(const char *path, char *buf, size_t size)
{
	char *open, *close;

	if (file_read(path, buf, size) < 0)
		return "absent";
	buf[strcspn(buf, "\n")] = '\0';
	open = strchr(buf, '[');
	close = open ? strchr(open, ']') : NULL;
	if (close)
		*close = '\0';
	return open ? open + 1 : buf;
}

static void controllers(struct doctor *d)
{
	bool v2 = false;
	const char *mount = cgroup_memory_mount(&v2), *unified;

	doctor_add(d, mount ? HAVE : MISSING, "memory controller",
		   "mount cgroup2 with the memory controller (no cgroup_disable=memory)", "%s%s",
		   mount ? (v2 ? "cgroup v2 at " : "cgroup v1 at ") : "not mounted", mount ?: "");
	unified = cgroup_unified_mount();
	doctor_add(d, unified ? HAVE : DEGRADED, "cgroup v2 hierarchy",
		   "mount -t cgroup2 none /sys/fs/cgroup/unified, for perf events per cgroup", "%s",
		   unified ?: "not mounted");
}

static void other_swap(struct doctor *d)
{
	struct json_object *ours = device_describe_all();
	struct swap_area areas[SWAPS_MAX];
	int n = swaps_read(areas), others = 0;

	for (int i = 0; i < n; i++) {
		bool zram = !strncmp(areas[i].path, "/dev/zram", 9), mine = false;

		for (size_t k = 0; k < json_object_array_length(ours); k++)
			mine |= !strcmp(areas[i].path, json_text(json_object_array_get_idx(ours, k),
								 "block", ""));
		if (mine)
			continue;
		others++;
		doctor_add(d, zram ? DEGRADED : NOTE, zram ? "zram" : "other swap",
			   zram ? "swapoff it: a prefetch that races with a fault there costs a timer tick" :
				  "device create uses a higher priority; --scope attached requires it off",
			   "%s, priority %d", areas[i].path, areas[i].priority);
	}
	if (!others)
		doctor_add(d, HAVE, "no other swap", NULL, "only ebb's devices");
	json_object_put(ours);
}

/*
 * Selection of swap devices by cgroup: its files have changed from one proposal (v10: July 2026) to
 * the next, so ebb names them and uses none.
 */
static void swap_tiers(struct doctor *d)
{
	static const char *const files[] = { "memory.swap.tiers.max", "memory.swap.tiers" };
	const char *found = access("/sys/kernel/mm/swap/tiers", F_OK) ? NULL :
			    "/sys/kernel/mm/swap/tiers";
	struct error e = { 0 };
	struct cgroup_ref own;
	char path[PATH_MAX + 32];

	for (size_t i = 0; !found && i < sizeof(files) / sizeof(files[0]); i++)
		if (!cgroup_of_process(getpid(), &own, &e) &&
		    snprintf(path, sizeof(path), "%s/%s", own.path, files[i]) > 0 && !access(path, F_OK))
			found = files[i];
	if (found)
		doctor_add(d, NOTE, "swap tiers",
			   "ebb does not use them: --scope attached still limits memory.swap.max of other cgroups",
			   "this kernel has %s", found);
	else
		doctor_add(d, HAVE, "swap tiers", NULL,
			   "not in this kernel; --scope attached limits memory.swap.max");
}

static void knobs(struct doctor *d)
{
	const char *thp, *lru;
	char buf[128];

	thp = setting("/sys/kernel/mm/transparent_hugepage/enabled", buf, sizeof(buf));
	doctor_add(d, strcmp(thp, "always") ? HAVE : NOTE, "transparent huge pages",
		   "unchanged; swap-in splits huge pages", "%s", thp);
	lru = setting("/sys/kernel/mm/lru_gen/enabled", buf, sizeof(buf));
	doctor_add(d, strcmp(lru, "absent") && strcmp(lru, "0x0000") ? NOTE : HAVE, "MGLRU",
		   "prefetched pages start in its oldest generation; watch \"wasted\" in \"ebbctl stats\"",
		   "%s", lru);
	doctor_add(d, HAVE, "vm.page-cluster", NULL, "%s, unchanged",
		   setting("/proc/sys/vm/page-cluster", buf, sizeof(buf)));
	doctor_add(d, HAVE, "vm.swappiness", NULL, "%s, unchanged",
		   setting("/proc/sys/vm/swappiness", buf, sizeof(buf)));
}

static void pressure(struct doctor *d)
{
	bool there = access("/proc/pressure/memory", R_OK) == 0;

	doctor_add(d, there ? HAVE : NOTE, "memory pressure",
		   "boot with psi=1 for pressure in ebbctl top and metrics", "%s",
		   there ? "/proc/pressure/memory" : "not available");
}

/*
 * Under global memory pressure, packets and the server's real-time threads draw on memory below
 * this mark.  The kernel's own choice, from 128 KiB to 256 MiB, grows with the root of memory;
 * with transparent huge pages it chooses more.
 */
static uint64_t min_free_by_default(uint64_t total_kib)
{
	uint64_t root = 128;

	while (root < 262144 && (root + 1) * (root + 1) <= total_kib * 16)
		root++;
	return root;
}

static void reserve(struct doctor *d)
{
	char text[4096], remedy[160], *total;
	uint64_t kib, wanted;

	if (file_read("/proc/meminfo", text, sizeof(text)) <= 0)
		return;
	total = strstr(text, "MemTotal:");
	wanted = min_free_by_default(total ? strtoull(total + strlen("MemTotal:"), NULL, 10) : 0);
	kib = strtoull(setting("/proc/sys/vm/min_free_kbytes", text, sizeof(text)), NULL, 10);
	snprintf(remedy, sizeof(remedy), "sysctl vm.min_free_kbytes=%llu, also in /etc/sysctl.d: sockets need free memory to swap out",
		 (unsigned long long)wanted);
	doctor_add(d, kib < wanted ? DEGRADED : HAVE, "vm.min_free_kbytes",
		   kib < wanted ? remedy : NULL, "%llu", (unsigned long long)kib);
}

void doctor_memory(struct doctor *d)
{
	controllers(d);
	pressure(d);
	reserve(d);
	other_swap(d);
	swap_tiers(d);
	doctor_zswap(d);
	knobs(d);
}

static void remote_advice(struct doctor *d)
{
	_cleanup_close_ int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	struct { void *base; size_t len; } page = { NULL, EBB_PAGE };
	long n;

	page.base = mmap(NULL, page.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			 0);
	n = syscall(SYS_process_madvise, self, &page, 1, MADV_WILLNEED, 0);
	doctor_add(d, n < 0 ? MISSING : HAVE, "process_madvise",
		   "use Linux 5.10 or later, with CAP_SYS_NICE and CAP_SYS_PTRACE", "%s",
		   n < 0 ? strerror(errno) : "works");
	munmap(page.base, page.len);
}

static void io_flusher(struct doctor *d)
{
	bool ok = prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0;
	int error = errno;

	if (ok)
		prctl(PR_SET_IO_FLUSHER, 0, 0, 0, 0);
	doctor_add(d, ok ? HAVE : DEGRADED, "PR_SET_IO_FLUSHER",
		   "grant CAP_SYS_RESOURCE, or use the device for cgroup-limited programs only",
		   "%s", ok ? "allowed" : strerror(error));
}

/* CAP_IPC_LOCK ignores the limit: tries to lock more, without touching it. */
static bool may_lock_beyond(rlim_t limit)
{
	size_t size = limit == RLIM_INFINITY ? EBB_PAGE : limit / EBB_PAGE * EBB_PAGE + EBB_PAGE;
	void *m = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	bool may = m != MAP_FAILED && mlock2(m, size, MLOCK_ONFAULT) == 0;

	if (m != MAP_FAILED)
		munmap(m, size);
	return may;
}

static void locked_memory(struct doctor *d)
{
	struct rlimit limit;
	char size[16];
	bool any;

	getrlimit(RLIMIT_MEMLOCK, &limit);
	any = may_lock_beyond(limit.rlim_cur);
	doctor_add(d, any ? HAVE : MISSING, "locked memory",
		   "grant CAP_IPC_LOCK or set LimitMEMLOCK=infinity", "%s%s",
		   any ? "allowed, limit " : "refused, limit ",
		   limit.rlim_cur == RLIM_INFINITY ? "none" :
		   size_format(limit.rlim_cur, size, sizeof(size)));
}

void doctor_device(struct doctor *d)
{
	_cleanup_close_ int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC), loop = -1;
	int error = errno;
	_cleanup_close_ int ublk = open("/dev/ublk-control", O_RDWR | O_CLOEXEC);
	int ublk_error = errno;

	doctor_add(d, fuse < 0 ? MISSING : HAVE, "/dev/fuse", "modprobe fuse", "%s",
		   fuse < 0 ? strerror(error) : "opens");
	loop = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	error = errno;
	doctor_add(d, loop < 0 ? MISSING : HAVE, "/dev/loop-control", "modprobe loop", "%s",
		   loop < 0 ? strerror(error) : "opens");
	doctor_add(d, ublk < 0 ? NOTE : HAVE, "/dev/ublk-control",
		   "modprobe ublk_drv, for device create --frontend ublk", "%s",
		   ublk < 0 ? strerror(ublk_error) : "opens");
	doctor_add(d, access("/sys/module/ebb_swap", F_OK) ? NOTE : HAVE, "ebb_swap",
		   "modprobe ebb_swap (package ebb-swap-dkms), for device create --frontend kmod", "%s",
		   access("/sys/module/ebb_swap", F_OK) ? "not loaded" : "loaded");
	remote_advice(d);
	io_flusher(d);
	locked_memory(d);
}

/* Processes outside attached cgroups with swapped-out pages. */
struct strangers {
	int count;
	uint64_t swapped;
	char named[128];
};

static uint64_t swapped_of(int pid, char *name, size_t size)
{
	char path[64], text[4096], *p;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	if (file_read(path, text, sizeof(text)) <= 0)
		return 0;
	sscanf(text, "Name:\t%31[^\n]", name);
	p = strstr(text, "VmSwap:");
	return p ? strtoull(p + strlen("VmSwap:"), NULL, 10) << 10 : 0;
}

static bool is_attached(int pid, struct json_object *attachments)
{
	char path[64], text[8192];
	size_t n = attachments ? json_object_array_length(attachments) : 0;

	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	file_read(path, text, sizeof(text));
	for (size_t i = 0; i < n; i++) {
		struct json_object *row = json_object_array_get_idx(attachments, i);
		struct cgroup_ref c;

		if (!cgroup_resolve(json_text(row, "cgroup", ""), &c, NULL) && strstr(text, c.rel))
			return true;
	}
	return false;
}

static struct strangers find_strangers(struct json_object *attachments)
{
	struct strangers s = { .count = 0 };
	_cleanup_dir_ DIR *dir = opendir("/proc");
	struct dirent *entry;
	uint64_t largest = 0;

	while (dir && (entry = readdir(dir))) {
		int pid = isdigit((unsigned char)*entry->d_name) ? atoi(entry->d_name) : 0;
		char name[32] = "?";
		uint64_t n = pid ? swapped_of(pid, name, sizeof(name)) : 0;

		if (!n || is_attached(pid, attachments))
			continue;
		s.count++;
		s.swapped += n;
		if (n > largest || pid == 1) {
			largest = pid == 1 ? UINT64_MAX : n;
			snprintf(s.named, sizeof(s.named), "%s (pid %d)", name, pid);
		}
	}
	return s;
}

/* Checks for proactive reclaim of the whole machine. */
static void proactive_reclaim(struct doctor *d)
{
	bool on = process_find("kdamond.0", NULL, NULL) > 0;

	doctor_add(d, on ? NOTE : HAVE, "proactive reclaim",
		   "DAMON swaps out idle memory of any process while swap is on", "%s",
		   on ? "a kernel DAMON thread runs" : "no DAMON thread");
}

/* Groups that may read or change policies without root. */
static void groups(struct doctor *d)
{
	static const char *const purpose[] = { "read statistics", "change policies" };
	struct peer_groups g;
	const struct peer_group *const each[] = { &g.readers, &g.admins };
	char row[64], remedy[160];

	peer_groups_find(&g);
	for (int i = 0; i < 2; i++) {
		snprintf(row, sizeof(row), "group %s", each[i]->name);
		snprintf(remedy, sizeof(remedy), "groupadd --system %s: members %s without root",
			 each[i]->name, purpose[i]);
		if (each[i]->gid == PEER_NO_GROUP)
			doctor_add(d, NOTE, row, remedy, "none: only root may %s", purpose[i]);
		else
			doctor_add(d, HAVE, row, NULL, "members may %s", purpose[i]);
	}
}

/* What ebbd found when it started. */
static void self_test(struct doctor *d, struct json_object *status)
{
	struct json_object *o = json_member(status, "self_test");
	const char *state = json_text(o, "state", ""), *found = json_text(o, "found", "");

	if (*state)
		doctor_add(d, !strcmp(state, "passed") ? HAVE : *state == 'f' ? MISSING : NOTE,
			   "ebbd self-test", "use a kernel that ebb supports, or a newer ebb", "%s",
			   *found ? found : "BPF reads the right fields of this kernel");
}

/* What ebbd cannot see of zswap, if there is anything. */
static void zswap_hooks(struct doctor *d, struct json_object *status)
{
	const char *state = json_text(status, "zswap", "off");

	if (strcmp(state, "off") && strcmp(state, "on"))
		doctor_add(d, NOTE, "ebbd beside zswap",
			   "use a kernel with fentry, or Linux 6.16 or later", "%s", state);
}

void doctor_running(struct doctor *d)
{
	struct json_object *status = NULL, *devices = device_describe_all();
	struct error e = { 0 };
	struct strangers s;
	char size[16];

	daemon_call(control_request("status"), &status, &e);
	doctor_add(d, status ? HAVE : NOTE, "ebbd", "systemctl start ebbd, or ebbctl run --start",
		   status ? "runs, pid %d" : "does not answer", (int)json_int(status, "pid", 0));
	if (status) {
		self_test(d, status);
		zswap_hooks(d, status);
	}
	proactive_reclaim(d);
	groups(d);
	for (size_t i = 0; i < json_object_array_length(devices); i++) {
		struct json_object *o = json_object_array_get_idx(devices, i);
		bool good = !strcmp(json_text(o, "state", ""), "on");

		doctor_add(d, good ? HAVE : DEGRADED, "device", "ebbctl device destroy, then create",
			   "%s is %s", json_text(o, "name", ""), json_text(o, "state", ""));
	}
	if (!json_object_array_length(devices))
		doctor_add(d, NOTE, "device", "ebbctl device create, or ebbctl run --start", "none");
	doctor_keys(d, devices);
	s = find_strangers(json_member(status, "attachments"));
	if (s.count)
		doctor_add(d, NOTE, "others on swap",
			   "limit them, or device create --scope attached",
			   "%s of %d processes without a policy, such as %s",
			   size_format(s.swapped, size, sizeof(size)), s.count, s.named);
	else
		doctor_add(d, HAVE, "others on swap", NULL,
			   "none; any process may swap there without --scope attached");
	json_object_put(devices);
	json_object_put(status);
}
