/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Types shared by BPF programs and user space.  Both sides compile this file; all
 * types have fixed widths and asserted sizes, so that a pinned map outlives the
 * program that created it.  Increment EBB_ABI when a meaning changes.
 */
#ifndef EBB_ABI_H
#define EBB_ABI_H

#ifndef __bpf__
#include <linux/types.h>
#endif
#include <ebb/page.h>
#include <ebb/share.h>

#define EBB_ABI 4

#define EBB_MAX_CGROUPS 1024        /* attached ones */
#define EBB_MAX_GOVERNORS 4096
#define EBB_MAX_LEAVES 4096
#define EBB_MAX_PROCS 8192
#define EBB_MAX_PREFETCHED 65536    /* pages outstanding, machine-wide */
#define EBB_MAX_POLICIES 32
#define EBB_MAX_DEVICES 16
#define EBB_MAX_ROLES 32
#define EBB_PARAMS 8
#define EBB_HIST 32                 /* log2 buckets: [i] counts 2^i <= ns < 2^(i+1) */
#define EBB_QUIET_NS 2000000000ULL  /* without a heartbeat for so long, policies stop */

/* Hooks for misses and evicted pages. */
enum ebb_hooks {
	EBB_HOOKS_TRACEPOINTS = 0, /* perf events, tracepoints and the process's swap-entry count */
	EBB_HOOKS_FENTRY = 1, /* and the exits of do_swap_page and try_to_unmap_one: bpf/exact */
};

/* maps/meta, one entry. */
struct ebb_meta {
	__u32 abi;
	__u32 epoch_percent; /* N: churn that ends an epoch, % of a process's memory */
	__u64 heartbeat_ns;         /* CLOCK_MONOTONIC of ebbd's last heartbeat */
	__u32 daemon_tgid;          /* ebbd, whose swap reads are prefetches */
	__u32 hooks;                /* enum ebb_hooks */
	char version[32];
};

enum ebb_cgroup_flags {
	EBB_CGROUP_ATTACHED = 1 << 0,  /* has a policy of its own */
	/* 1 << 1, 1 << 2: cached look-ups, in 0.1.0 */
	EBB_CGROUP_RECORD = 1 << 3,    /* every fault also goes to maps/trace */
	/* 1 << 4: policies that ran in ebbd, in 0.1.0 */
	EBB_CGROUP_DECLARED = 1 << 5, /* by configuration or xattr; used by ebbd only */
	EBB_CGROUP_DETECT = 1 << 6,   /* hits are always detected; used by ebbd only */
	EBB_CGROUP_TOGETHER = 1 << 7, /* placement=together; used by ebbd only */
	EBB_CGROUP_UNPLACED = 1 << 8, /* placement=off; used by ebbd only */
	EBB_CGROUP_BENEFIT = 1 << 9,  /* benefit=on: maps/sources counts */
};

/* Of the flags, bit 16 + enum ebb_source: ebbd has paused this source of requests. */
#define EBB_CGROUP_PAUSED_SHIFT 16

/* What predicts the pages of a request; ebbd counts and judges each source separately. */
enum ebb_source {
	EBB_SOURCE_OTHER = 0,
	EBB_SOURCE_STREAMS = 1,     /* strided scans */
	EBB_SOURCE_REPLAY = 2,      /* a learned pattern */
	EBB_SOURCE_NEAR = 3,        /* pages around a miss */
	EBB_SOURCES
};

/* maps/cgroups: id of an attached memory cgroup -> what governs its tasks. */
struct ebb_cgroup {
	__u64 owner;                /* id of the cgroup whose policy this is */
	__u32 policy;               /* slot in maps/policies */
	__u32 flags;                /* enum ebb_cgroup_flags, of the owner */
	__u32 room;                 /* pages that may be outstanding */
	__u32 slowdown; /* target of offloading, tenths of a percent; used by ebbd only */
	__u64 timely_ns;            /* a later use of a prefetched page is chance; 0 = not known */
};

/* maps/params: owner id -> parameters of its policy, in the policy's order. */
struct ebb_params {
	__u64 v[EBB_PARAMS];
};

/* Counters of one cgroup on one CPU (maps/counters, per CPU). */
struct ebb_counters {
	__u64 misses;               /* swap-ins that waited for a read of their own */
	__u64 hits;                 /* faults on a prefetched page, no wait */
	__u64 late;                 /* faults on a prefetched page that waited for its I/O */
	__u64 wasted;               /* prefetched and dropped unused */
	__u64 file_majors;          /* major faults on file mappings */
	__u64 zero_majors;          /* of memory, without a read: zero-filled, zswap */
	__u64 swapped_in;           /* pages read from an ebb device */
	__u64 swapped_out;          /* pages written to an ebb device */
	__u64 written;              /* pages of memory that reclaim sent to any swap device */
	__u64 shared;               /* those that more than one process may map */
	__u64 epochs;
	__u64 requests;             /* prefetch requests of policies */
	__u64 request_pages;        /* pages in them */
	__u64 dropped;              /* requests lost because the ring was full */
	__u64 miss_ns;              /* total time in misses */
	__u64 late_ns;              /* total time in late prefetches */
	__u64 gc_misses;            /* of misses, those of a collector's threads */
	__u64 gc_hits;              /* of hits and late, those of a collector's threads */
	__u64 by_chance;            /* those of hits that came after timely_ns */
	__u64 miss_hist[EBB_HIST];  /* latency of misses */
	__u64 hit_hist[EBB_HIST];   /* latency of hits and late prefetches */
	__u64 clean;                /* pages evicted unwritten, valid on swap; EBB_HOOKS_FENTRY */
};

/* maps/cgroup_stats: totals for people and bpftool, one entry per tracked cgroup. */
struct ebb_cgroup_stats {
	char path[128];             /* below the memory hierarchy, NUL-terminated */
	char policy[32];
	__u64 misses;
	__u64 hits;
	__u64 late;
	__u64 wasted;               /* includes pages that expired unread: an estimate */
	__u64 prefetched;           /* pages = hits + late + wasted + outstanding */
	__u64 outstanding;          /* prefetched, not used yet */
	__u64 file_majors;
	__u64 zero_majors;
	__u64 swapped_in;
	__u64 swapped_out;
	__u64 written;
	__u64 shared;
	__u64 epochs;
	__u64 requests;
	__u64 request_pages;
	__u64 dropped;
	__u64 miss_ns;
	__u64 late_ns;
	__u64 gc_misses;
	__u64 gc_hits;
	__u64 by_chance;
	__u64 miss_ns_log2[EBB_HIST];
	__u64 hit_ns_log2[EBB_HIST];
	__u64 clean;                /* 0 without EBB_HOOKS_FENTRY */
};

/* maps/procs: tgid -> paging of one process. */
struct ebb_proc {
	__u64 cgroup;               /* owner id */
	__u64 swapped_in;           /* pages read for it */
	__u64 swapped_out;          /* pages evicted from it, written or dropped clean */
	__u64 epoch;                /* advances each time churn exceeds epoch_percent */
	__u64 base;                 /* swapped_in + swapped_out when the epoch began */
	__s64 swapents;             /* swapped-out pages when it was first seen */
	__u32 exec;                 /* task_struct.self_exec_id, changed by exec */
	__u32 pad;
	char comm[16];
};

/* maps/epoch_slots: tgid -> slot in maps/epochs and maps/arrivals, see <ebb/share.h>. */

/*
 * One virtual page of one program.  The exec id stands for the address space:
 * it changes with exec as the pid does with fork.
 */
struct ebb_page {
	__u32 tgid;
	__u32 exec;
	__u64 vpn;
};

/*
 * A filter before maps/prefetched: one bit a page, by hash.  A clear bit means
 * that the page is not in the set, which spares a minor fault the look-up.
 */
#define EBB_FILTER_BITS 20
#define EBB_FILTER_WORDS (1u << (EBB_FILTER_BITS - 6))

static inline __u32 ebb_filter_bit(__u32 tgid, __u64 vpn)
{
	return (__u32)(((vpn ^ ((__u64)tgid << 36)) * 0x9e3779b97f4a7c15ULL) >>
		       (64 - EBB_FILTER_BITS));
}

/* maps/prefetched: pages in flight or waiting for their first access. */
struct ebb_prefetch {
	__u64 issued_ns;            /* but for EBB_ISSUED_BITS */
	__u64 owner;                /* cgroup charged with the outcome */
};

/* The lowest bits of .issued_ns: enum ebb_source of the request. */
#define EBB_ISSUED_SOURCE 3ULL
/* The next one: a page of shared memory, which is swapped in without do_swap_page(). */
#define EBB_ISSUED_SHARED 4ULL
#define EBB_ISSUED_BITS (EBB_ISSUED_SOURCE | EBB_ISSUED_SHARED)

/* maps/sources: owner id, with EBB_CGROUP_BENEFIT -> its prefetched pages by source, per CPU. */
struct ebb_source_counters {
	__u64 used[EBB_SOURCES];    /* as hits and late of struct ebb_counters */
	__u64 wasted[EBB_SOURCES];
};

/* An unread page that was requested this long ago may be evicted by now. */
#define EBB_EVICTED_NS 20000000ULL

/* What one call does to pages of maps/prefetched. */
enum ebb_batch_op {
	EBB_BATCH_ENTER = 0,
	EBB_BATCH_RENEW = 1,        /* restart their age */
	EBB_BATCH_WITHDRAW = 2,
};

enum ebb_batch_state {
	EBB_BATCH_FULL = 0,         /* not entered, renewed or withdrawn */
	EBB_BATCH_DONE = 1,
	EBB_BATCH_OLD = 2,          /* not entered: in the set for EBB_EVICTED_NS or longer */
	EBB_BATCH_YOUNG = 3,        /* not entered: in the set for less */
};

#define EBB_BATCH_MAX 64

/* Pages of one process, and what became of each; ebbd and bpf/fault share one. */
struct ebb_batch {
	__u64 owner, now_ns;
	__u32 tgid, exec;
	__u32 op;                   /* enum ebb_batch_op */
	__u32 n;
	__u64 vpn[EBB_BATCH_MAX];
	__u8 state[EBB_BATCH_MAX];  /* enum ebb_batch_state */
};

#define EBB_LOOK_NOT_SWAPPED 0xff

/* Pages of shared memory: which are in swap?  ebbd and bpf/fault share one. */
struct ebb_look {
	struct {
		__u64 file, index;  /* as in struct ebb_memory */
	} page[EBB_BATCH_MAX];
	__u32 n, pad;
	__u64 slot[EBB_BATCH_MAX];  /* offset in that swap */
	__u8 type[EBB_BATCH_MAX];   /* swap type, or EBB_LOOK_NOT_SWAPPED */
};

enum ebb_fault_kind {
	EBB_MISS = 0,
	EBB_HIT = 1,
	EBB_LATE = 2,
};

/* Role of a thread, by its name (maps/roles). */
enum ebb_role {
	EBB_ROLE_APP = 0,
	EBB_ROLE_GC = 1,            /* traces or moves objects: not the program's access pattern */
	EBB_ROLES
};

/*
 * maps/roles: prefixes of thread names.  A thread matches if its name, as two
 * words, equals name in the bits of mask.  An entry with an empty mask ends the list.
 */
struct ebb_role_pattern {
	__u64 name[2], mask[2];
	__u32 role;                 /* enum ebb_role */
	__u32 pad;
};

/* One fault, the input of a policy. */
struct ebb_fault {
	__u64 vpn;                  /* virtual page */
	__u64 time_ns;              /* CLOCK_MONOTONIC at its end */
	__u64 duration_ns;          /* 0 = not known */
	__u64 owner;                /* cgroup whose policy runs */
	__u64 ip;                   /* instruction that faulted, user or kernel; 0 = not known */
	__u32 tgid, tid;
	__u32 exec;
	__u32 kind;                 /* enum ebb_fault_kind */
	__u32 policy;
	__u32 cluster; /* pages that the kernel read by itself with a miss, including it */
	__u16 role;                 /* enum ebb_role of the thread */
	__u16 paused;               /* bit: enum ebb_source whose requests are dropped */
	__u32 room;                 /* pages the cgroup may have outstanding */
};

/* maps/requests (ring buffer): a policy's request to ebbd. */
struct ebb_request {
	__u64 first;                /* virtual page */
	__s64 stride;               /* pages; never 0 */
	__u64 at;                   /* page of the fault that caused the request */
	__u64 owner;
	__u64 time_ns;
	__u32 tgid, exec;
	__u32 count;                /* pages */
	__u16 op;                   /* enum ebb_op */
	__u16 source;               /* enum ebb_source */
	__u32 run;                  /* pages that the stream has covered; 0 = no stream */
	__u32 passed;               /* of run, since the previous request */
};

enum ebb_op {
	EBB_OP_PREFETCH = 0,
	EBB_OP_COLD = 1,            /* make consumed pages the first to be reclaimed */
	EBB_OP_OUT = 2,             /* reclaim consumed pages now */
	EBB_OP_LIST = 3,            /* prefetch listed pages; a struct ebb_list_request */
	EBB_OP_COLD_LIST = 4,       /* EBB_OP_COLD for listed pages; a struct ebb_list_request */
	EBB_OP_MEMORY = 5,          /* of bpf/fault, not of a policy: a struct ebb_memory */
};

#define EBB_REQUEST_MAX 1024        /* pages in one request */
#define EBB_LIST_MAX 16             /* limit of pages in a list */

/* A request for arbitrary pages; first and stride of head are unused. */
struct ebb_list_request {
	struct ebb_request head; /* op = EBB_OP_LIST or EBB_OP_COLD_LIST, count <= EBB_LIST_MAX */
	__u64 vpn[EBB_LIST_MAX];
};

/*
 * Tells ebbd before a request of the process where it faulted: pages first to end - 1 are one
 * mapping of anonymous or shared memory, and leaf is its memory cgroup.  Begins as a struct
 * ebb_request.
 */
struct ebb_memory {
	__u64 first;
	__s64 stride;               /* 1 */
	__u64 end;
	__u64 owner;
	__u64 time_ns;
	__u32 tgid, exec;
	__u32 count;                /* 0 */
	__u16 op;                   /* EBB_OP_MEMORY */
	__u16 source;               /* 0 */
	__u64 leaf;
	__u64 file;                 /* shared memory: its struct address_space; 0 = anonymous */
	__u64 index;                /* of page first in it */
};

/* maps/leaves: memory cgroup with processes that ebbd prefetches for -> its share. */
struct ebb_leaf {
	__u64 used;                 /* prefetched pages that faulted, or were read once more */
	__u64 room;                 /* pages that may be outstanding */
};

/* A further kind, in maps/trace only: reclaim sent the page to swap; tid is 0. */
#define EBB_OUT 3

/* maps/trace (ring buffer): one fault or swap-out, while a recording runs. */
struct ebb_trace {
	__u64 time_ns;
	__u64 duration_ns;
	__u64 vpn;
	__u64 owner;
	__u64 ip;
	__u32 tgid, tid;
	__u16 kind;                 /* enum ebb_fault_kind, or EBB_OUT */
	__u16 role;                 /* enum ebb_role */
	__u32 cluster;
};

/* Description of a policy, in its section .rodata.policy. */
struct ebb_param_info {
	char name[24];
	__u64 initial, min, max;
	char help[104];
};

struct ebb_policy_info {
	__u32 abi;
	__u32 params;
	char name[24];
	char help[120];
	struct ebb_param_info param[EBB_PARAMS];
};

/* Process whose pages ebbd's prefetch thread reads; written by ebbd. */
struct ebb_reader {
	__u32 tid;                  /* 0 = none */
	__u32 tgid, exec;
	__u32 pad;
};

/* maps/executor, one entry. */
struct ebb_executor {
	__u64 reads;                /* block reads of ebbd, counted by bpf/evict */
	__u64 pages;                /* pages in these reads */
	struct ebb_reader reader;
	__u64 written;              /* anonymous pages that reclaim wrote in that thread */
};

/*
 * maps/zswap: owner id -> pages of the cgroup that zswap held, or did not, while zswap was in use.
 * An entry begins with the first of them.
 */
struct ebb_zswap {
	__u64 hits;                 /* swapped in from zswap: no device was read */
	__u64 misses;               /* read from an ebb device */
	__u64 stored;               /* that reclaim sent to swap and no device was written */
	__u64 direct;               /* that reclaim wrote to an ebb device: zswap refused them */
	__u64 written_back;         /* that zswap's shrinker wrote to an ebb device */
};

/*
 * The bit of a swap slot, before it is masked, in the map of slots that zswap holds.  A bit that
 * slots of several devices share tells little of each.
 */
static inline __u64 ebb_slot_bit(__u32 type, __u64 offset)
{
	return offset + type * 0x9e3779b97f4a7c00ULL;
}

/*
 * maps/active, one entry: what happened to which attached cgroups, a bit by hash of the cgroup's
 * id.  ebbd takes the bits and looks at all cgroups with them: at none that is idle but a few by
 * chance.
 */
#define EBB_ACTIVE_SHIFT 12
#define EBB_ACTIVE_BITS (1u << EBB_ACTIVE_SHIFT)
#define EBB_ACTIVE_WORDS (EBB_ACTIVE_BITS / 64)

struct ebb_active {
	/* BPF: its counters change, just after.  ebbd: its prefetched or expired pages changed. */
	__u64 counted[EBB_ACTIVE_WORDS];
	__u64 removed[EBB_ACTIVE_WORDS];
};

static inline __u32 ebb_active_bit(__u64 owner)
{
	return (__u32)((owner * 0x9e3779b97f4a7c15ULL) >> (64 - EBB_ACTIVE_SHIFT));
}

/*
 * maps/devices: (major << 20 | minor), the kernel's dev_t -> EBB_SWAP_TYPE + the swap type of the
 * device, which bpf/evict learns from the first page; less while it is not known.
 */
#define EBB_SWAP_TYPE 0x100

#define EBB_MAX_PINNED 8192
#define EBB_PINNED_WORDS 16         /* of an affinity: 1024 CPUs */
#define EBB_PINNED_FORK_NS 1000000000ULL /* longest fork that is followed after a release */

enum ebb_pinned_flags {
	EBB_PINNED_READ = 1 << 0,   /* .user is valid */
	EBB_PINNED_SET = 1 << 1,    /* .id is valid */
	EBB_PINNED_BORN = 1 << 2,   /* a process that inherited the affinity */
	EBB_PINNED_LATE = 1 << 3,   /* born while the affinity of its parent changed */
	/*
	 * The affinity is being restored or was.  A fork that had begun may still create a thread
	 * with the affinity of before: the entry remains for EBB_PINNED_FORK_NS.
	 */
	EBB_PINNED_RELEASED = 1 << 4,
};

/*
 * Thread id -> a thread that ebbd pins, or that inherited its affinity from one.  A map of
 * bpf/place: the record by which affinities are restored, also by the next ebbd.
 */
struct ebb_pinned {
	__u64 owner;                /* cgroup that it was pinned for */
	__u64 id;                   /* ebb_pin.now as ebbd set it, or as inherited */
	__u64 start;                /* of the thread, CLOCK_BOOTTIME; 0 = not read yet */
	__u64 released;             /* when, CLOCK_MONOTONIC, ns; with EBB_PINNED_RELEASED */
	__u32 tgid;
	__s32 cpu;
	__u32 flags;                /* enum ebb_pinned_flags */
	__u32 slot;                 /* of the owner's number of entries, in bpf/place */
	__u64 user[EBB_PINNED_WORDS]; /* set before; all 0 = none */
};

/* What the iterator of bpf/place writes for each. */
struct ebb_pin {
	__u32 tid, pad;
	struct ebb_pinned e;
	/*
	 * The affinity that was set for the thread, as the kernel's address of its copy; 0 before
	 * Linux 6.2, which keeps none.  It changes with each sched_setaffinity(), not with cpusets;
	 * but the address of a copy that was freed is used again.
	 */
	__u64 now;
	__u64 mask[EBB_PINNED_WORDS]; /* that copy */
};

/*
 * maps/waits, one entry: misses by swap type and by the time from their read to the end of the
 * fault.  Finer than miss_hist: a median that grows by half must show.
 */
#define EBB_SWAP_TYPES 32
#define EBB_WAITS 64                /* buckets: four per power of two from 2^12 ns (4 us) to */
#define EBB_WAIT_SHIFT 12           /* 2^28 ns (268 ms); the outermost include the rest */

struct ebb_waits {
	__u32 misses[EBB_SWAP_TYPES][EBB_WAITS];
};

/* Returns the bucket of @ns, whose highest bit is @log2. */
static inline __u32 ebb_wait_bucket(__u64 ns, __u32 log2)
{
	__u32 bucket;

	if (log2 < EBB_WAIT_SHIFT)
		return 0;
	bucket = (log2 - EBB_WAIT_SHIFT) * 4 + (__u32)(ns >> (log2 - 2) & 3);
	return bucket < EBB_WAITS ? bucket : EBB_WAITS - 1;
}

#define EBB_ASSERT_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type)
EBB_ASSERT_SIZE(struct ebb_meta, 56);
EBB_ASSERT_SIZE(struct ebb_cgroup, 32);
EBB_ASSERT_SIZE(struct ebb_params, 64);
EBB_ASSERT_SIZE(struct ebb_counters, 20 * 8 + 2 * EBB_HIST * 8);
EBB_ASSERT_SIZE(struct ebb_cgroup_stats, 160 + 22 * 8 + 2 * EBB_HIST * 8);
EBB_ASSERT_SIZE(struct ebb_proc, 72);
EBB_ASSERT_SIZE(struct ebb_arrivals, 1 << EBB_PAGE_SHIFT);
EBB_ASSERT_SIZE(struct ebb_page, 16);
EBB_ASSERT_SIZE(struct ebb_prefetch, 16);
EBB_ASSERT_SIZE(struct ebb_source_counters, 64);
EBB_ASSERT_SIZE(struct ebb_batch, 32 + 9 * EBB_BATCH_MAX);
EBB_ASSERT_SIZE(struct ebb_role_pattern, 40);
EBB_ASSERT_SIZE(struct ebb_fault, 72);
EBB_ASSERT_SIZE(struct ebb_request, 64);
EBB_ASSERT_SIZE(struct ebb_list_request, 64 + 8 * EBB_LIST_MAX);
EBB_ASSERT_SIZE(struct ebb_look, 8 + 25 * EBB_BATCH_MAX);
EBB_ASSERT_SIZE(struct ebb_memory, 80);
EBB_ASSERT_SIZE(struct ebb_leaf, 16);
EBB_ASSERT_SIZE(struct ebb_zswap, 40);
EBB_ASSERT_SIZE(struct ebb_trace, 56);
EBB_ASSERT_SIZE(struct ebb_active, 1024);
EBB_ASSERT_SIZE(struct ebb_pinned, 48 + 8 * EBB_PINNED_WORDS);
EBB_ASSERT_SIZE(struct ebb_pin, 64 + 16 * EBB_PINNED_WORDS);
EBB_ASSERT_SIZE(struct ebb_waits, 2 << EBB_PAGE_SHIFT);
EBB_ASSERT_SIZE(struct ebb_param_info, 152);
EBB_ASSERT_SIZE(struct ebb_policy_info, 152 + EBB_PARAMS * 152);

#endif
