/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The BPF plane: objects, shared maps, pins and policies.
 *
 * Maps are pinned below EBB_PINS and outlive ebbd; the next ebbd uses them if its ABI
 * number is equal, and starts with empty state otherwise.  Programs belong to the
 * running ebbd.  Those without cost for a fault (major faults, swap I/O, life cycle)
 * stay attached without ebbd, through pinned links; the others are detached when ebbd
 * exits.
 */
#ifndef EBB_PLANE_H
#define EBB_PLANE_H

#include <bpf/libbpf.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include <ebb/abi.h>
#include "lib/base/error.h"
#include "lib/base/paths.h"

#define MAPS_DIR EBB_PINS "/maps"

/* Cost of a call. */
struct policy_cost {
	uint32_t verified;      /* instructions that the verifier processed, over all paths */
	uint32_t instructions;  /* as loaded */
	uint32_t machine_bytes; /* of compiled code */
	uint32_t calls;         /* in the trial; 0 = not measured */
	uint32_t median_ns;     /* of all calls */
	uint32_t slowest_ns;    /* median of the costliest access pattern */
	uint32_t max_ns;        /* includes interrupts and preemption */
};

enum policy_origin { POLICY_BUILTIN, POLICY_LOADED };

struct policy {
	char name[24];             /* "" in a free slot */
	struct ebb_policy_info info;
	struct bpf_object *object; /* NULL for "none", which is the absence of a program */
	bool deferred;             /* its object is loaded when it is first needed */
	struct error rejected;     /* why the kernel did not load it then, */
	uint64_t rejected_ns;      /* at this time; 0 = never */
	enum policy_origin origin;
	char file[PATH_MAX];       /* it was loaded from */
	struct policy_cost cost;
};

struct event;

struct plane {
	struct fault_bpf *fault;
	struct evict_bpf *evict;
	struct exact_bpf *exact;   /* NULL where the kernel lets no function be hooked */
	struct policy policy[EBB_MAX_POLICIES]; /* index = slot; [0] is "none" */
	uint32_t policies;       /* slots used so far, free ones among them */
	char policy_dir[PATH_MAX];
	uint32_t flushes;        /* flushes of the cache still to come */
	bool unflushed;          /* the last flush failed */
	struct {                 /* scratch of a flush, too large for the stack of a thread */
		uint64_t id[EBB_MAX_GOVERNORS], owner[EBB_MAX_GOVERNORS];
	} entries;
	int cpus;                /* possible CPUs: the length of per-CPU values */
	uint32_t max_cgroups;    /* attached ones for which there are counters */
	bool mounted_bpffs;      /* created by this ebbd */
	bool took_over;          /* found the pins of a previous ebbd */
	int tested;              /* result of self_test(), */
	char misread[256];       /* and its text, "" if 0 */
	/* Descriptors of the shared maps, owned by the objects. */
	int meta, params, counters, sources, requests, cgroups, governors, procs, trace, devices,
	    cgroup_stats, roles, programs, epoch_slots, epochs, zswap;
	struct ebb_executor *executor; /* mapped */
	const struct ebb_waits *waits; /* mapped */
	struct ebb_active *active; /* mapped; the main thread takes its bits */
	struct event *major;     /* one per CPU, or NULL: plane/events.c */
	uint32_t majors;
	_Atomic uint32_t detecting; /* sets of events with hit detection on: plane/events.c */
	uint64_t *filter;        /* mapped, EBB_FILTER_WORDS; the executor thread writes it */
	struct ebb_batch *batch; /* mapped: of PLANE_BATCH; the executor thread's */
	struct ebb_look *look;   /* mapped: of PLANE_LOOK; the executor thread's */
};

enum plane_program { PLANE_ENTER, PLANE_MINOR, PLANE_MAJOR, PLANE_BATCH, PLANE_LOOK };

/* HOOKS_AUTO tries fentry first. */
enum hooks_wish { HOOKS_AUTO, HOOKS_FENTRY, HOOKS_TRACEPOINTS };

struct plane_wish {
	uint32_t epoch_percent;
	enum hooks_wish hooks;
};

/*
 * Returns for how many cgroups there are counters on a machine with @memory bytes.  A cgroup has
 * them for each possible CPU, of which a small virtual machine may declare hundreds: they take a
 * 200th of memory at most.
 */
static inline uint32_t plane_cgroups(uint64_t memory, int cpus)
{
	uint64_t each = sizeof(struct ebb_counters) + sizeof(struct ebb_source_counters);
	uint64_t n = memory / 200 / ((uint64_t)cpus * each);

	return n < 64 ? 64 : n < EBB_MAX_CGROUPS ? (uint32_t)n : EBB_MAX_CGROUPS;
}

/* Loads, shares, pins and attaches.  On failure it leaves nothing behind. */
int plane_open(struct plane *p, const struct plane_wish *wish, struct error *e);

/* Returns "passed", "failed" or "skipped": whether BPF reads the right fields of this kernel. */
const char *plane_self_test(const struct plane *p);

/* Returns "fentry" or "tracepoints": the hooks for misses and evicted pages. */
const char *plane_hooks(const struct plane *p);

/*
 * Leaves maps and cheap links pinned for the next ebbd if @keep_pins is KEEP_PINS;
 * removes everything otherwise.
 */
enum plane_pins { DROP_PINS, KEEP_PINS };
void plane_close(struct plane *p, enum plane_pins pins);

/* Returns the descriptor of the shared map @name. */
int plane_map(const struct plane *p, const char *name);

/* Bytes of stack for a thread that may read counters, which are those of all CPUs. */
static inline size_t plane_stack(const struct plane *p)
{
	return (512u << 10) + 2 * (size_t)p->cpus * sizeof(struct ebb_counters);
}

struct bpf_program *plane_program(struct plane *p, enum plane_program which);

/* Makes @to, before it is loaded, use the fault program's maps of equal names. */
int plane_share_maps(struct plane *p, struct bpf_object *to);

/* Sets the error of @what, which the kernel rejected with -errno @r. */
int plane_load_failed(struct error *e, const char *what, int r);

/* Heartbeat: policies stop requesting EBB_QUIET_NS after the last call. */
void plane_heartbeat(struct plane *p);

/* Returns the policy of that name, or NULL; @slot may be NULL. */
const struct policy *plane_policy(const struct plane *p, const char *name, uint32_t *slot);

/* Sums the counters of @owner over all CPUs; zeroes without any. */
void plane_counters(const struct plane *p, uint64_t owner, struct ebb_counters *sum);
/* As plane_counters(), those by source. */
void plane_sources(const struct plane *p, uint64_t owner, struct ebb_source_counters *sum);

/* Waits until all BPF programs that were running have ended: none uses older map values. */
void plane_wait_programs(void);

/* Empties maps/governors, the cached look-ups of policies; one call at a time. */
void plane_flush_cache(struct plane *p);
/*
 * Once a second: removes entries that look-ups cached during the last flush, and all of them if
 * that flush failed.
 */
void plane_flush_late(struct plane *p);

#endif
