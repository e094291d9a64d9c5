/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Decides whether drop-behind collapses what a stream has passed into huge pages before it pages
 * them out.  A window is an aligned range of 2 MiB: a huge page's worth of small pages.
 *
 * Paging out a dirty small page takes some 16 us and interrupts each CPU that runs the program: for
 * a window, 8 ms and 512 interrupts.  Collapsing it and paging out the huge page take 1.5 to 5 ms,
 * two such interrupts, and one of every CPU of the machine (two-vCPU VM, Linux 6.18).  But
 * collapsing charges the cgroup with another 2 MiB before it frees the small pages, and makes clean
 * pages dirty.  So it loses
 *  - at the limit, where the charge reclaims pages in use;
 *  - where pages are clean, and need not be written;
 *  - where the program soon uses the pages again;
 *  - where swap has no 512 slots in sequence: the kernel then splits the huge page again.
 * Each of these switches it off for the cgroup, for COLLAPSE_RETRY_NS, then twice as long after
 * each further time, up to COLLAPSE_RETRY_MAX_NS.
 *
 * A cgroup starts in COLLAPSE_SAMPLING: drop-behind pages out small pages, as it does without
 * collapsing, which measures the share of dirty pages and what a page costs.  Pure functions.
 */
#ifndef EBB_COLLAPSE_RULE_H
#define EBB_COLLAPSE_RULE_H

#include <stdbool.h>
#include <stdint.h>

#define COLLAPSE_SHIFT 9                /* pages of a window: 2 MiB */
#define COLLAPSE_PAGES (1u << COLLAPSE_SHIFT)
#define COLLAPSE_BYTES (2ULL << 20)
#define COLLAPSE_WINDOWS 16             /* most in a call */
#define COLLAPSE_SHARE 16               /* a call's windows have at most limit / this */
#define COLLAPSE_LEAST 2                /* least in a call, for its fixed cost */
#define COLLAPSE_MARGIN (512ULL << 10)  /* bytes that faults may charge during a call */
#define COLLAPSE_CALL_NS 10000000ULL    /* intended time of a call: it delays prefetches */
#define COLLAPSE_SAMPLE 2048            /* small pages that end COLLAPSE_SAMPLING */
#define COLLAPSE_REFRESH 16             /* after so many windows, one is paged out as small pages */
#define COLLAPSE_JUDGED 16              /* windows per judgement */
#define COLLAPSE_HOPELESS 4             /* times the cost of small pages: off without judgement */
#define COLLAPSE_SETTLED 256            /* windows after which former failures are forgotten */
#define COLLAPSE_RETRY_NS 10000000000ULL
#define COLLAPSE_RETRY_MAX_NS 640000000000ULL

enum collapse_state { COLLAPSE_SAMPLING, COLLAPSE_ON, COLLAPSE_OFF };

/* Why it is off, or was last. */
enum collapse_reason {
	COLLAPSE_NONE,
	COLLAPSE_CLEAN,         /* fewer than half of the small pages were written (3/4 to begin) */
	COLLAPSE_SLOW,          /* took no less time than small pages do */
	COLLAPSE_RETURNED,      /* the program soon used over a quarter of the windows again */
	COLLAPSE_SCATTERED,     /* over a quarter left otherwise than to 512 slots in sequence */
	COLLAPSE_REFUSED,       /* over half were shared, not fully present, or rejected */
	COLLAPSE_CROWDED,       /* over half were paged out as small pages, for free capacity */
	COLLAPSE_LIMIT,         /* the cgroup's limit is too low */
	COLLAPSE_UNSUPPORTED,   /* by the kernel, or by its settings */
};

/* Windows since the last judgement, and those of them that speak against collapsing. */
struct collapse_tally {
	uint32_t all, bad;
};

struct collapse {
	enum collapse_state state;
	enum collapse_reason reason;  /* of the last COLLAPSE_OFF */
	uint32_t failures;            /* in sequence */
	uint64_t retry_ns;            /* end of COLLAPSE_OFF */
	uint64_t since;               /* windows collapsed since it is on */
	uint32_t turn;                /* windows since the last one paged out for measurement */
	uint64_t small_pages, small_written; /* since the last decision about dirty pages */
	/* Mean time for a window: as small pages, to collapse, as a huge page.  0: not known. */
	uint64_t small_ns, collapse_ns, huge_ns;
	struct collapse_tally returned, scattered, refused, crowded;
	/* Totals, for reports: numbers of windows, but for the last. */
	uint64_t windows;             /* collapsed */
	uint64_t rejected;            /* not collapsed: shared, not fully present, or rejected */
	uint64_t whole;               /* paged out to 512 slots in sequence */
	uint64_t again;               /* used again soon */
	uint64_t crowding;            /* paged out as small pages, for free capacity */
	uint64_t trips;               /* times that it switched off */
};

/* What is known when a stream has passed @ready windows. */
struct collapse_facts {
	uint64_t limit;         /* bytes: the tightest of the cgroup and its ancestors */
	uint64_t unused;        /* bytes below the nearest limit */
	uint64_t freeable;      /* bytes paged out and written, but still charged */
	uint64_t outgoing;      /* bytes being written */
	uint32_t ready;
	uint64_t now;
};

enum collapse_action {
	COLLAPSE_WAIT,          /* for more windows, or for free capacity */
	COLLAPSE_SMALL,         /* page out @windows as small pages */
	COLLAPSE_HUGE,          /* collapse @windows */
};

struct collapse_plan {
	enum collapse_action action;
	uint32_t windows;       /* the oldest ones */
};

/*
 * Returns whether windows of a process whose cgroup has this limit are collapsed; ends COLLAPSE_OFF
 * when it is time.  Cgroups with different limits may share @c.
 */
bool collapse_is_on(struct collapse *c, uint64_t limit, uint64_t now);
/* Switches off for COLLAPSE_RETRY_NS, for a reason that is no failure. */
void collapse_exclude(struct collapse *c, enum collapse_reason reason, uint64_t now);
/* Returns the windows of a call in a cgroup with this limit; 0: none are collapsed there. */
uint32_t collapse_batch(const struct collapse *c, uint64_t limit);
/*
 * Returns whether there is free capacity for a call.  One window and the margin suffice for any
 * number of windows: the kernel frees the small pages of each before it charges the next.  Pages
 * that are written but still charged are free capacity too: reclaim takes them first, and without
 * an interrupt.
 */
bool collapse_has_room(const struct collapse_facts *f);
/*
 * Decides about the passed windows of a cgroup.  Without free capacity it waits until twice the
 * windows of a call are ready, or three times while pages are being written; then it pages out all
 * but those of a call, as small pages, so that these have free capacity.  If it paged out one at a
 * time, the stream would use up what each frees.
 */
struct collapse_plan collapse_plan(struct collapse *c, const struct collapse_facts *f);

/* @pages were paged out as small pages in @ns; the kernel wrote @written, others were clean. */
void collapse_tell_small(struct collapse *c, uint64_t pages, uint64_t written, uint64_t ns,
			 uint64_t now);
/* Of @windows, @huge are huge pages after @ns; 0 ns: the kernel was not asked. */
void collapse_tell_collapsed(struct collapse *c, uint32_t windows, uint32_t huge, uint64_t ns,
			     uint64_t now);
/* @windows huge pages were paged out in @ns, @whole of them to 512 slots in sequence. */
void collapse_tell_out(struct collapse *c, uint32_t windows, uint32_t whole, uint64_t ns,
		       uint64_t now);
/* A window that was paged out was looked at; @returned: the program has used much of it again. */
void collapse_tell_return(struct collapse *c, bool returned, uint64_t now);

/* "sampling", "on", "off"; "none", "clean", ... */
const char *collapse_state_name(enum collapse_state s);
const char *collapse_reason_name(enum collapse_reason r);

#endif
