/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The attached cgroups, with the policy of each.
 *
 * Most of a thousand cgroups are idle, and an idle one costs little: the BPF programs and the
 * executor tell which were active (maps/active), and the ticks handle these, the list of busy ones.
 */
#ifndef EBB_ATTACH_TABLE_H
#define EBB_ATTACH_TABLE_H

#include <pthread.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "ebbd/plane/events.h"
#include "ebbd/plane/plane.h"
#include "ebbd/prefetch/budget.h"
#include "lib/base/size.h"
#include "lib/host/cgroup.h"
#include "lib/rules/governor.h"
#include "offload_control.h"

/* Hit detection costs CPU time at each minor fault; it is on only while it is needed. */
enum detect { DETECT_AUTO, DETECT_ALWAYS };

/*
 * Configured attachments of cgroups that belong to users other than root: of one user, and of all
 * in percent.  The rest is root's.
 */
#define USER_ATTACHMENTS 64
#define USERS_PERCENT 75

/* Declarations do not change what a command attached. */
enum attach_by { BY_COMMAND, BY_DECLARATION };

/* Whether the programs of a cgroup and the executor share a CPU, or why not. */
enum colocation_state {
	COLOCATION_OFF,           /* set so */
	COLOCATION_IDLE,          /* no program swaps */
	COLOCATION_TOGETHER,
	COLOCATION_OWN,           /* a program has an affinity of its own */
	COLOCATION_REALTIME,      /* a thread has a real-time policy */
	COLOCATION_MANY,          /* threads */
	COLOCATION_SINGLE,        /* one CPU */
	COLOCATION_APART,         /* placement=auto: it would not pay now */
	COLOCATION_FAILED,        /* the affinity cannot be set or recorded */
	COLOCATION_FULL,          /* the record of pinned threads is full, of other cgroups' */
};

/* Status of one attachment; the placement thread writes it with the attachments' lock held. */
struct colocation_report {
	enum colocation_state state;
	int cpu;                  /* -1: none */
	uint64_t together_ns;
};

/* Where one source of requests stands; see lib/rules/governor.h. */
struct source_report {
	enum governor_state state;
	double gain, error;       /* in logarithms; error 0 = gain is not known */
	uint32_t trials;
};

enum benefit_state {
	BENEFIT_IDLE,             /* no program swaps */
	BENEFIT_MEASURES,
	BENEFIT_UNKNOWN,          /* its programs' CPU time is too short, or cannot be read */
	BENEFIT_OFFLOADS,         /* slowdown= is set */
};

/* Status of one attachment; the benefit thread writes it with the attachments' lock held. */
struct benefit_report {
	enum benefit_state state;
	struct source_report source[EBB_SOURCES];
};

struct attachment {
	LIST_ENTRY(attachment) bucket;  /* of those with this bit in maps/active */
	LIST_ENTRY(attachment) busy;
	LIST_ENTRY(attachment) changed;
	struct attachment *root;  /* the outermost attached cgroup that contains it */
	uint32_t busy_ticks;      /* ticks for which it stays busy; 0 = idle */
	bool is_changed;          /* since maps/cgroup_stats was written */
	bool recording;           /* its events also go to maps/trace */
	bool needed;              /* at this tick: the cgroup or one below needs hit detection */
	struct event_set *events; /* NULL while an ancestor's events cover the cgroup */
	struct budget *budget;    /* how much may be prefetched for it */
	uint64_t uses;            /* of hit detection, at this tick */
	uint32_t quiet_ticks;     /* since hit detection was last needed */
	enum detect detect;
	uint32_t slot;
	enum attach_by by;
	const struct policy *policy;
	struct ebb_params params;
	uint32_t slowdown;        /* tenths of a percent offloading may cost, 0 = none */
	uid_t user;               /* owner of its directory when it was attached */
	struct offload_report offload;
	enum placement placement;
	uint32_t placements;      /* changes of it: the placement thread may miss a value */
	bool placing;             /* the placement thread looks at the cgroup */
	struct colocation_report colocation;
	bool benefit;             /* sources of requests are judged, and paused */
	uint32_t benefits;        /* changes of it or of the policy: trials start afresh */
	uint32_t paused;          /* sources, one bit each; 0 without .benefit */
	struct benefit_report judged;
	uint64_t expired[EBB_SOURCES]; /* expired pages by source when .benefit was set */
	struct offload_job *job;  /* of the offloading thread; NULL without */
	uint64_t timely_told;     /* its timely_ns as the BPF programs know it */
	uint64_t swapped_in;      /* at the last tick */
	char source[128];         /* of a declaration: "/etc/ebb/ebb.conf:12", "user.ebb.policy" */
	struct cgroup_ref cgroup;
};

LIST_HEAD(attachment_list, attachment);

struct attachments {
	struct plane *plane;
	struct budget_table *budgets;
	pthread_mutex_t lock;     /* taken by the main, offloading and recording threads */
	/* By path: a cgroup is followed by those below it. */
	struct attachment *item[EBB_MAX_CGROUPS];
	uint32_t n;
	struct attachment_list bucket[EBB_ACTIVE_BITS];
	struct attachment_list busy;
	struct attachment_list changed;
	uint32_t turn;            /* next item that a sweep looks at though it is idle */
	uint64_t refused;         /* attachments beyond the limits of users */
	int placed; /* eventfd: the placement thread has work; owned by colocation.c, or -1 */
	int benefited;            /* eventfd: benefit=on was set; owned by benefit.c, or -1 */
	int cpus;                 /* online when the events were opened, */
	uint64_t slept_ns;        /* time that the machine had slept by then */
	bool unopened;            /* some events could not be opened: try again */
};

/* All functions require the lock. */

/* Items first to end - 1. */
struct attached_range {
	uint32_t first, end;
};

/* Adds @t, of which .cgroup is set; there is room for it. */
void attachments_insert(struct attachments *a, struct attachment *t);
void attachments_remove(struct attachments *a, struct attachment *t);
struct attachment *attachments_find(const struct attachments *a, uint64_t owner);
/* Returns the attached cgroups at and below the path @rel. */
struct attached_range attachments_below(const struct attachments *a, const char *rel);

/* Has the next ticks look at @t, and the placement thread if placement=auto. */
void attachment_wake(struct attachments *a, struct attachment *t);
/* Whether the placement thread is to look at @t. */
bool attachment_wants_placing(const struct attachment *t);
void attachments_wake_placing(struct attachments *a);
/* Has the next stats_publish() write the entry of @t. */
void attachment_change(struct attachments *a, struct attachment *t);

#endif
