// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ebb/abi.h>
#include <ebb/page.h>
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "plane.h"
#include "policy_trial.h"

#define CALLS 128           /* per access pattern */
#define ROOM 4096           /* pages: room of a cgroup of 128 MiB */
#define TRIAL_NS 100000000  /* longer means: slow */

/* Page of the @i-th fault. */
static uint64_t walk_sequential(uint64_t i) { return i; }
static uint64_t walk_backwards(uint64_t i) { return 100000 - 7 * i; }
static uint64_t walk_two(uint64_t i) { return i & 1 ? 500000 + i : 3 * i; }
static uint64_t walk_random(uint64_t i) { return (i + 1) * 0x9e3779b97f4a7c15ULL >> 44; }
/* Repeats a few pages in an irregular order. */
static uint64_t walk_again(uint64_t i) { return walk_random(i % 32); }

static const struct {
	uint64_t (*page)(uint64_t i);
	uint32_t kind, cluster, role;
} walks[] = {
	{ walk_sequential, EBB_MISS, 8, EBB_ROLE_APP },
	{ walk_sequential, EBB_HIT, 0, EBB_ROLE_APP },
	{ walk_backwards, EBB_MISS, 0, EBB_ROLE_APP },
	{ walk_backwards, EBB_LATE, 0, EBB_ROLE_APP },
	{ walk_two, EBB_MISS, 0, EBB_ROLE_APP },
	{ walk_again, EBB_MISS, 0, EBB_ROLE_APP },
	{ walk_random, EBB_MISS, 0, EBB_ROLE_APP },
	{ walk_random, EBB_MISS, 0, EBB_ROLE_GC },
};
#define WALKS (sizeof(walks) / sizeof(walks[0]))

struct trial {
	int program, scratch;
	uint64_t time_ns, calls;    /* of the program, when last read */
	struct ebb_fault *value;    /* one for each possible CPU */
	int cpus;
	char *pages;                /* CALLS of them */
};

static int read_stats(struct trial *t, uint64_t *ns, uint64_t *calls)
{
	struct bpf_prog_info info = { 0 };
	uint32_t size = sizeof(info);

	if (bpf_obj_get_info_by_fd(t->program, &info, &size))
		return -errno;
	*ns = info.run_time_ns - t->time_ns;
	*calls = info.run_cnt - t->calls;
	t->time_ns = info.run_time_ns;
	t->calls = info.run_cnt;
	return 0;
}

void policy_cost_read(int program, struct policy_cost *cost)
{
	struct bpf_prog_info info = { 0 };
	uint32_t size = sizeof(info);

	if (bpf_obj_get_info_by_fd(program, &info, &size))
		return;
	cost->verified = info.verified_insns;
	cost->instructions = info.xlated_prog_len / 8;
	cost->machine_bytes = info.jited_prog_len;
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Calls the policy by a page fault of this thread; sets *@ns to its duration. */
static int call(struct trial *t, uint32_t walk, uint32_t i, uint32_t *ns)
{
	struct ebb_fault f = {
		.vpn = 0x7f0000000 + walks[walk].page(i), .time_ns = now_ns(),
		.duration_ns = 20000, .owner = 1, .ip = 0x400000, .tgid = 1, .tid = 1 + (i & 1),
		.exec = 1, .kind = walks[walk].kind, .cluster = walks[walk].cluster,
		.role = walks[walk].role, .room = ROOM,
	};
	uint64_t total, calls;
	uint32_t zero = 0;
	int r;

	for (int cpu = 0; cpu < t->cpus; cpu++)
		t->value[cpu] = f;
	if (bpf_map_update_elem(t->scratch, &zero, t->value, BPF_ANY))
		return -errno;
	*(volatile char *)(t->pages + i * EBB_PAGE) = 1;
	r = read_stats(t, &total, &calls);
	if (r)
		return r;
	*ns = calls ? (uint32_t)(total / calls) : 0;
	return calls ? 0 : -EOPNOTSUPP;
}

static int measure(struct trial *t, struct policy_cost *cost)
{
	uint32_t all[WALKS * CALLS], one[CALLS], n = 0;
	uint64_t spent = 0;
	int r;

	for (uint32_t w = 0; w < WALKS && spent < TRIAL_NS; w++) {
		uint32_t done = 0;

		if (madvise(t->pages, CALLS * EBB_PAGE, MADV_DONTNEED))
			return -errno;
		while (done < CALLS && spent < TRIAL_NS) {
			r = call(t, w, done, &one[done]);
			if (r)
				return r;
			spent += one[done];
			all[n++] = one[done++];
		}
		qsort(one, done, sizeof(*one), by_value);
		if (one[done / 2] > cost->slowest_ns)
			cost->slowest_ns = one[done / 2];
	}
	qsort(all, n, sizeof(*all), by_value);
	cost->median_ns = all[n / 2];
	cost->max_ns = all[n - 1];
	cost->calls = n;
	return 0;
}

static int with_pages(struct trial *t, struct policy_cost *cost)
{
	size_t size;
	int r;

	size = CALLS * EBB_PAGE;
	t->pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (t->pages == MAP_FAILED)
		return -errno;
	/* mlockall() has populated the pages, which then never fault. */
	munlock(t->pages, size);
	madvise(t->pages, size, MADV_NOHUGEPAGE);
	r = measure(t, cost);
	munmap(t->pages, size);
	return r;
}

static int with_event(struct trial *t, struct bpf_program *program, struct policy_cost *cost)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE, .size = sizeof(attr),
		.config = PERF_COUNT_SW_PAGE_FAULTS_MIN, .sample_period = 1, .disabled = 1,
	};
	_cleanup_close_ int stats = bpf_enable_stats(BPF_STATS_RUN_TIME);
	struct bpf_link *link;
	uint64_t ns, calls;
	int fd, r;

	if (stats < 0)
		return stats;
	fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (fd < 0)
		return -errno;
	link = bpf_program__attach_perf_event(program, fd);
	if (!link) {
		r = -errno;
		close(fd);
		return r;
	}
	r = read_stats(t, &ns, &calls);
	if (!r)
		r = with_pages(t, cost);
	bpf_link__destroy(link);
	return r;
}

int policy_trial(struct bpf_object *object, const struct ebb_params *params,
		 struct policy_cost *cost)
{
	struct bpf_program *program = bpf_object__next_program(object, NULL);
	int params_map = bpf_object__find_map_fd_by_name(object, "params"), r;
	struct trial t = {
		.program = bpf_program__fd(program),
		.scratch = bpf_object__find_map_fd_by_name(object, "fault_scratch"),
		.cpus = libbpf_num_possible_cpus(),
	};
	uint64_t owner = 1;

	if (t.scratch < 0 || t.cpus < 1)
		return -ENOENT;
	if (params_map >= 0)
		bpf_map_update_elem(params_map, &owner, params, BPF_ANY);
	t.value = calloc(t.cpus, sizeof(*t.value));
	if (!t.value)
		return -ENOMEM;
	r = with_event(&t, program, cost);
	free(t.value);
	return r;
}
