/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The attached cgroups, with the policy of each. */
#ifndef EBB_ATTACH_TABLE_H
#define EBB_ATTACH_TABLE_H

#include <pthread.h>
#include <sys/types.h>

#include "ebbd/plane/events.h"
#include "ebbd/plane/plane.h"
#include "ebbd/prefetch/budget.h"
#include "lib/host/cgroup.h"
#include "offload_control.h"

/* Hit detection costs CPU time at each minor fault; it is on only while it is needed. */
enum detect { DETECT_AUTO, DETECT_ALWAYS };

/*
 * Configured attachments of cgroups that belong to users other than root: of one user, and of all.
 * The rest of EBB_MAX_CGROUPS is root's.
 */
#define USER_ATTACHMENTS 64
#define USERS_ATTACHMENTS 768

/* Declarations do not change what a command attached. */
enum attach_by { BY_COMMAND, BY_DECLARATION };

struct attachment {
	struct cgroup_ref cgroup;
	uid_t user;               /* owner of its directory when it was attached */
	const struct policy *policy;
	uint32_t slot;
	enum attach_by by;
	char source[128];         /* of a declaration: "/etc/ebb/ebb.conf:12", "user.ebb.policy" */
	struct ebb_params params;
	enum detect detect;
	uint32_t slowdown;        /* tenths of a percent offloading may cost, 0 = none */
	struct offload_report offload;
	struct budget *budget;    /* how much may be prefetched for it */
	uint64_t timely_told;     /* its timely_ns as the BPF programs know it */
	uint64_t swapped_in;      /* at the last tick */
	bool recording;           /* its events also go to maps/trace */
	bool needed;              /* at this tick: the cgroup or one below needs hit detection */
	uint64_t uses;            /* of hit detection, at this tick */
	uint32_t quiet_ticks;     /* since hit detection was last needed */
	struct event_set *events; /* NULL while an ancestor's events cover the cgroup */
};

struct attachments {
	struct plane *plane;
	struct budget_table *budgets;
	pthread_mutex_t lock;     /* taken by the main, offloading and recording threads */
	struct attachment *item[EBB_MAX_CGROUPS];
	uint32_t n;
	uint64_t refused;         /* attachments beyond the limits of users */
	int cpus;                 /* online when the events were opened */
};

/* Requires the lock. */
struct attachment *attachments_find(const struct attachments *a, uint64_t owner);

#endif
