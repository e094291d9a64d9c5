// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <ebb/page.h>
#include "doctor_check.h"
#include "lib/base/cleanup.h"
#include "lib/base/paths.h"
#include "lib/host/cgroup_files.h"

#define BTF_FILE "/sys/kernel/btf/vmlinux"
#define BPFFS_MAGIC 0xcafe4a11

/* r0 = 0; exit */
static const struct bpf_insn nothing[] = {
	{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0 },
	{ .code = BPF_JMP | BPF_EXIT },
};

/* Loads an empty program; returns its descriptor or -errno. */
static int load(enum bpf_prog_type type, enum bpf_attach_type attach, __u32 btf_id)
{
	LIBBPF_OPTS(bpf_prog_load_opts, opts, .expected_attach_type = attach,
		    .attach_btf_id = btf_id);
	int fd = bpf_prog_load(type, "ebb_doctor", "GPL", nothing,
			       sizeof(nothing) / sizeof(nothing[0]), &opts);

	return fd < 0 ? -errno : fd;
}

/* Returns the id of "btf_trace_NAME" or of a function, 0 if the kernel lacks it. */
static __u32 kernel_id(const struct btf *btf, const char *name, __u32 kind)
{
	__s32 id = btf ? btf__find_by_name_kind(btf, name, kind) : -ENOENT;

	return id > 0 ? (__u32)id : 0;
}

/* Attaches @prog, a descriptor or -errno, and detaches it. */
static int try_attach(int prog)
{
	int link;

	if (prog < 0)
		return prog;
	link = bpf_raw_tracepoint_open(NULL, prog);
	link = link < 0 ? -errno : link;
	close(prog);
	if (link < 0)
		return link;
	close(link);
	return 0;
}

/*
 * Loads a program for a tracepoint and attaches it: the kernel may load a program that it
 * refuses to attach.
 */
static int try_tracepoint(const struct btf *btf, const char *name)
{
	char typedef_name[128];
	__u32 id;

	snprintf(typedef_name, sizeof(typedef_name), "btf_trace_%s", name);
	id = kernel_id(btf, typedef_name, BTF_KIND_TYPEDEF);
	if (!id)
		return -ENOENT;
	return try_attach(load(BPF_PROG_TYPE_TRACING, BPF_TRACE_RAW_TP, id));
}

static void tracepoint(struct doctor *d, const struct btf *btf, enum verdict without,
		       const char *name, const char *loss)
{
	char row[64];
	int r = try_tracepoint(btf, name);

	snprintf(row, sizeof(row), "tp_btf/%s", name);
	doctor_add(d, r ? without : HAVE, row, loss, "%s", r ? strerror(-r) : "loads and attaches");
}

/* The exit of the function, which ebbd attaches to. */
static int try_function(const struct btf *btf, const char *name)
{
	__u32 id = kernel_id(btf, name, BTF_KIND_FUNC);

	return try_attach(id ? load(BPF_PROG_TYPE_TRACING, BPF_TRACE_FEXIT, id) : -ENOENT);
}

static void functions(struct doctor *d, const struct btf *btf)
{
	static const char *const names[] = { "do_swap_page", "try_to_unmap_one" };
	const char *name = NULL;
	int r = 0;

	for (size_t i = 0; !r && i < sizeof(names) / sizeof(names[0]); i++) {
		name = names[i];
		r = try_function(btf, name);
	}
	if (r)
		doctor_add(d, NOTE, "BPF fentry",
			   "optional: tracepoints replace it, without counts of clean evictions",
			   "%s: %s", name, strerror(-r));
	else
		doctor_add(d, HAVE, "BPF fentry", NULL, "do_swap_page, try_to_unmap_one: attaches");
}

static void ring_buffer(struct doctor *d)
{
	_cleanup_close_ int fd = bpf_map_create(BPF_MAP_TYPE_RINGBUF, "ebb_doctor", 0, 0,
						EBB_PAGE, NULL);

	doctor_add(d, fd < 0 ? MISSING : HAVE, "BPF ring buffer", "use Linux 5.8 or later",
		   "%s", fd < 0 ? strerror(errno) : "works");
}

static void bpffs(struct doctor *d)
{
	struct statfs fs;
	bool mounted = statfs(EBB_BPFFS, &fs) == 0 && (__u32)fs.f_type == BPFFS_MAGIC;

	/* ebbd mounts it at start. */
	doctor_add(d, mounted ? HAVE : DEGRADED, "bpffs",
		   "mount -t bpf bpf " EBB_BPFFS " (ebbd does so at start)", "%s",
		   mounted ? EBB_BPFFS : "not mounted");
}

void doctor_bpf(struct doctor *d)
{
	struct btf *btf = btf__load_vmlinux_btf();
	int fd;

	doctor_add(d, btf ? HAVE : MISSING, "kernel BTF",
		   "use a kernel built with CONFIG_DEBUG_INFO_BTF", "%s",
		   btf ? BTF_FILE : strerror(errno));
	bpffs(d);
	fd = load(BPF_PROG_TYPE_PERF_EVENT, 0, 0);
	doctor_add(d, fd < 0 ? MISSING : HAVE, "BPF perf_event",
		   "run as root with CAP_BPF and CAP_PERFMON, without lockdown=confidentiality", "%s",
		   fd < 0 ? strerror(-fd) : "loads");
	close_fdp(&fd);
	ring_buffer(d);
	tracepoint(d, btf, MISSING, "mm_vmscan_write_folio", "swap-outs are not counted");
	tracepoint(d, btf, MISSING, "block_bio_queue",
		   "pages read from and written to ebb's devices are not counted");
	tracepoint(d, btf, DEGRADED, "rss_stat", "only writes advance epochs");
	functions(d, btf);
	btf__free(btf);
}

static int open_event(__u64 config, int scope, int cpu)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE, .size = sizeof(attr), .config = config,
		.sample_period = 1, .disabled = 1,
	};
	int fd = (int)syscall(SYS_perf_event_open, &attr, scope, cpu, -1,
			      PERF_FLAG_FD_CLOEXEC | (scope >= 0 ? PERF_FLAG_PID_CGROUP : 0));

	return fd < 0 ? -errno : fd;
}

static int try_attached(int event)
{
	_cleanup_close_ int prog = load(BPF_PROG_TYPE_PERF_EVENT, 0, 0);

	if (prog < 0)
		return prog;
	return ioctl(event, PERF_EVENT_IOC_SET_BPF, prog) < 0 ? -errno : 0;
}

void doctor_perf(struct doctor *d)
{
	_cleanup_close_ int event = open_event(PERF_COUNT_SW_PAGE_FAULTS_MAJ, -1, 0);
	_cleanup_close_ int scoped = -1, scope = -1;
	const char *unified = cgroup_unified_mount();
	int r = event < 0 ? event : try_attached(event);

	doctor_add(d, r < 0 ? MISSING : HAVE, "page-fault perf events",
		   "grant CAP_PERFMON, see kernel.perf_event_paranoid", "%s",
		   r < 0 ? strerror(-r) : "opens, accepts a BPF program");
	scope = unified ? open(unified, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	scoped = scope < 0 ? -ENOENT : open_event(PERF_COUNT_SW_PAGE_FAULTS_MAJ, scope, 0);
	doctor_add(d, scoped < 0 ? DEGRADED : HAVE, "cgroup-scoped perf events",
		   "mount cgroup2; without it the filter slows down untracked programs",
		   "%s%s", scoped < 0 ? strerror(-scoped) : "on ", scoped < 0 ? "" : unified);
}
