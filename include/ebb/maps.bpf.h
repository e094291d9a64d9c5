/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps that several objects share.  Each object declares the lot; ebbd
 * creates them once with the fault object and hands their descriptors to the
 * others by name (bpf_map__reuse_fd).  A program that does not touch a map does
 * not carry it.
 */
#ifndef EBB_MAPS_BPF_H
#define EBB_MAPS_BPF_H

#include <ebb/abi.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ebb_meta);
} meta SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EBB_MAX_CGROUPS);
	__type(key, __u64);
	__type(value, struct ebb_params);
} params SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, EBB_MAX_CGROUPS);
	__type(key, __u64);
	__type(value, struct ebb_counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, EBB_MAX_CGROUPS);
	__type(key, __u64);
	__type(value, struct ebb_source_counters);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} requests SEC(".maps");

/*
 * The fault on its way through the tail call.  perf_event programs run with
 * preemption off and never nest, so one entry a CPU is enough.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ebb_fault);
} fault_scratch SEC(".maps");

/* Id of an attached memory cgroup -> what governs its tasks. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EBB_MAX_CGROUPS);
	__type(key, __u64);
	__type(value, struct ebb_cgroup);
} cgroups SEC(".maps");

/*
 * Id of a memory cgroup that is not attached -> id of its nearest attached ancestor, 0 = none.  A
 * cache: where it is full, the least recently used entry goes, and ebbd empties it whenever an
 * attachment changes.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, EBB_MAX_GOVERNORS);
	__type(key, __u64);
	__type(value, __u64);
} governors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, EBB_MAX_POLICIES);
	__type(key, __u32);
	__type(value, __u32);
} policies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EBB_MAX_PREFETCHED);
	__type(key, struct ebb_page);
	__type(value, struct ebb_prefetch);
} prefetched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EBB_MAX_LEAVES);
	__type(key, __u64);
	__type(value, struct ebb_leaf);
} leaves SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, EBB_MAX_PROCS);
	__type(key, __u32);
	__type(value, struct ebb_proc);
} procs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EBB_MAX_EPOCH_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} epoch_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, EBB_MAX_EPOCH_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} epochs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, EBB_MAX_ARRIVALS);
	__type(key, __u32);
	__type(value, struct ebb_arrivals);
} arrivals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} trace SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EBB_MAX_ROLES);
	__type(key, __u32);
	__type(value, struct ebb_role_pattern);
} roles SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EBB_MAX_DEVICES);
	__type(key, __u32);
	__type(value, __u32);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EBB_MAX_CGROUPS);
	__type(key, __u64);
	__type(value, struct ebb_zswap);
} zswap SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ebb_executor);
} executor SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ebb_active);
} active SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ebb_waits);
} waits SEC(".maps");

#define EBB_TOLD 16         /* a power of two */

/* A mapping that bpf/fault told ebbd. */
struct told {
	__u64 first;        /* page */
	__u32 pages;        /* at most UINT32_MAX */
	__u32 time;         /* told_time() */
};

/* State of one task between programs; dies with the task. */
struct task_stamp {
	__u64 vpn;          /* page of the fault that began last */
	__u64 enter_ns;     /* when it began */
	__u64 faults;       /* the task's faults that had ended then */
	__u64 nvcsw;        /* its voluntary switches then: has it slept since? */
	__u64 swapped;      /* page that do_swap_page() handled since, by bpf/exact; 0 = none */
	__u64 end_ns;       /* end of the fault counted last: the next one begins later */
	__u64 read_ns;      /* when it queued a swap read of its own; 0 = has not */
	__u64 read_ip;      /* the program's instruction then */
	__u64 counted;      /* page whose fault, with that read, bpf/exact has counted; 0 = none */
	__u64 counted_faults; /* the task's faults that had ended then */
	__u32 reads;        /* pages it queued since: the kernel's readahead reads a cluster */
	__u32 hits;         /* number of hits, to examine a process only now and then */
	__u32 role;         /* role for this task name */
	__u32 named;        /* the name has been examined */
	char comm[16];
	struct told told[EBB_TOLD];
	__u64 leaf;         /* memory cgroup that bpf/fault told ebbd last */
	__u32 turn;         /* number of mappings told */
	__u32 tells;        /* of them, since .tells_from */
	__u32 tells_from;   /* told_time() */
	__u32 counted_as;   /* EBB_MISS or EBB_LATE */
	__u32 device;       /* of its swap read: the value in maps/devices */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_stamp);
} stamps SEC(".maps");

#endif
