/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Attachments: which cgroup has which policy, and the perf events that make
 * its faults visible.
 *
 * Events are scoped to the cgroup's directory in the v2 hierarchy, so that
 * other tasks pay nothing.  Nested cgroup events would fire once each, so only
 * the outermost attached cgroup has events; the BPF side finds the nearest.
 */
#ifndef EBB_ATTACH_H
#define EBB_ATTACH_H

#include <pthread.h>

#include "ebbd/plane/plane.h"
#include "lib/host/cgroup.h"
#include "lib/rules/pace.h"
#include "lib/rules/throttle.h"
#include "offload.h"

struct event_set;

/* Hit detection costs a fault something; it is on only while it is needed. */
enum detect { DETECT_AUTO, DETECT_ALWAYS };

/* Who wanted it: what is explicit is not touched by declarations. */
enum attach_by { BY_COMMAND, BY_DECLARATION };

struct attachment {
	struct cgroup_ref cgroup;
	const struct policy *policy;
	uint32_t slot;
	enum attach_by by;
	char source[128];         /* of a declaration: "/etc/ebb/ebb.conf:12", "user.ebb.policy" */
	struct ebb_params params;
	enum detect detect;
	uint32_t slowdown;        /* tenths of a percent offloading may cost, 0 = none */
	struct offload_report offload;
	uint64_t limit;           /* bytes, the tightest of its ancestors too */
	uint32_t room;            /* pages that may be outstanding: limit / headroom */
	uint64_t prefetched;      /* pages ebbd asked the kernel for */
	uint64_t expired;         /* given up unread: wasted, by estimate */
	struct throttle throttle; /* of what its policy asks for */
	uint64_t timely_told;     /* its timely_ns as the BPF programs know it */
	struct neighbour neighbour; /* whether it waits behind what others are fetched */
	uint64_t idle;            /* outstanding for so long that they are hardly on their way */
	uint64_t unused;          /* outstanding for so long that they were hardly needed */
	uint64_t writeback;       /* bytes on their way out, when memory.stat was read last */
	uint64_t unflushed;       /* pages brought in since its memory.stat was read */
	uint64_t swapped_in;      /* at the last tick */
	int stat_fd;              /* memory.stat */
	bool recording;           /* its events also go to maps/trace */
	bool needed;              /* hit detection, by it or one below, at this tick */
	uint32_t quiet_ticks;     /* since hit detection was last needed */
	struct event_set *events; /* NULL while an ancestor's cover it */
	uint32_t held;            /* by the executor; what is detached meanwhile goes with the last */
	bool detached;
};

struct attachments {
	struct plane *plane;
	pthread_mutex_t lock;     /* main thread, executor, offloading */
	struct attachment *item[EBB_MAX_CGROUPS];
	uint32_t n;
	int cpus;                 /* online when the events were opened */
	uint32_t headroom;        /* see ebb.conf(5) */
};

/* Prefetched pages not yet asked for stay below a cgroup's limit / @headroom. */
void attachments_init(struct attachments *a, struct plane *plane, uint32_t headroom);
/* Takes over what an earlier ebbd left in the pinned maps. */
void attachments_restore(struct attachments *a);
/* Detaches nothing: the maps keep what is attached for a successor. */
void attachments_close(struct attachments *a);

/*
 * @names and @values (@n of them) set parameters, the others keep their initial
 * values.  Beside the policy's: detect, and slowdown in tenths of a percent.
 */
struct attach_wish {
	const char *policy;
	enum attach_by by;
	const char *source;       /* of a declaration */
	uint32_t n;
	const char *const *names;
	const uint64_t *values;
};

/* Attaches a policy to @cgroup or changes its policy. */
int attach(struct attachments *a, const char *cgroup, const struct attach_wish *wish,
	   struct error *e);
/* Changes parameters; wish->policy is not looked at. */
int attach_set(struct attachments *a, const char *cgroup, const struct attach_wish *wish,
	       struct error *e);
/* Whether @wish is one that could be granted, apart from the cgroup and what the kernel says. */
int attach_check(struct attachments *a, const struct attach_wish *wish, struct error *e);
/* Has the kernel take the policy of @wish, which can be granted. */
int attach_load(struct attachments *a, const struct attach_wish *wish, struct error *e);
/* Whether @t is what @wish, which can be granted, would make of it. */
bool attachment_is(const struct attachments *a, const struct attachment *t,
		   const struct attach_wish *wish);
int attach_detach(struct attachments *a, const char *cgroup, struct error *e);
/* EBB_CGROUP_RECORD on or off for an attached cgroup; its id is returned in @owner. */
enum record_switch { RECORD_OFF, RECORD_ON };
int attach_record(struct attachments *a, const char *cgroup, enum record_switch on,
		  uint64_t *owner, struct error *e);

/*
 * With the lock held: how many are under @policy; their cgroups, ", " between
 * them, go to @text if there is one.
 */
uint32_t attachments_name(const struct attachments *a, const struct policy *policy, char *text,
			  size_t size);

/*
 * With the lock held: @policy is about to be as @to says.  Parameters of its
 * attachments keep their values where name and range allow; what does not is
 * named in @dropped.
 */
void attachments_translate(struct attachments *a, const struct policy *policy,
			   const struct ebb_policy_info *to, char *dropped, size_t size);

/* With the lock held. */
struct attachment *attachments_find(struct attachments *a, uint64_t owner);

/*
 * With the lock held.  Between the two @t stays valid without it, but what is in it may
 * change, and counts for nothing once it is detached.
 */
void attachment_hold(struct attachment *t);
void attachment_release(struct attachment *t);

/* Prefetched pages of @t nobody has asked for yet, by the counters. */
uint64_t attachment_outstanding(const struct attachments *a, const struct attachment *t);

/* With the lock held: detection on for @t now, before its first page is asked for. */
void attachment_detect(struct attachments *a, struct attachment *t);
/* True while hit detection is on for it. */
bool attachment_detecting(const struct attachments *a, const struct attachment *t);

/*
 * Refreshes the statistics that reclaim of @t goes by.
 *
 * Reclaim decides whether the active list must be shrunk by statistics that
 * the kernel flushes every 2 s.  A page that comes back soon after it was paged
 * out goes to the active list; once the inactive list has run dry before that
 * is noticed, nothing is reclaimed and the OOM killer strikes a cgroup whose
 * pages could all go to swap.  Seen on 6.18 without ebb too: a random walk over
 * twice its memory is killed one time in eight.  Reading memory.stat flushes,
 * and tells how much is on its way out.
 */
void attachment_refresh_stats(struct attachment *t);

/*
 * Ten times a second: statistics of those that swap in; detection off where
 * nothing is outstanding any more.
 */
void attachments_tick(struct attachments *a);
/* Once a second: limits, cgroups that are gone, CPUs that came and went. */
void attachments_sweep(struct attachments *a);

#endif
