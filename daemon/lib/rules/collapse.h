/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Whether drop-behind collapses windows of 2 MiB into huge pages before it pages them out.
 *
 * Paging out a dirty page costs an interrupt to each processor that runs the program, and some
 * 16 us; a huge page costs that once for 512.  Collapsing copies 2 MiB and charges the cgroup with
 * them before it frees the small pages.  So it loses where the charge reclaims pages in use, where
 * pages are clean and need no write, where the pages are soon used again, and where swap has no 512
 * slots in sequence.  Each of these switches it off for the cgroup: COLLAPSE_RETRY_NS, then twice
 * as long after each further time, up to COLLAPSE_RETRY_MAX_NS.
 *
 * A cgroup starts in COLLAPSE_SAMPLING: drop-behind by small pages, as without collapsing, tells
 * the share that is dirty and what a page costs.  A pure function of what it is told.
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
#define COLLAPSE_LEAST 2                /* fewer are not worth the call's fixed cost */
#define COLLAPSE_MARGIN (512ULL << 10)  /* bytes that faults may charge during a call */
#define COLLAPSE_CALL_NS 10000000ULL    /* a call delays prefetches */
#define COLLAPSE_SAMPLE 2048            /* small pages paged out before it begins */
#define COLLAPSE_REFRESH 16             /* one window in so many leaves small, and tells again */
#define COLLAPSE_JUDGED 16              /* windows per judgement */
#define COLLAPSE_SETTLED 256            /* windows after which former failures are forgotten */
#define COLLAPSE_RETRY_NS 10000000000ULL
#define COLLAPSE_RETRY_MAX_NS 640000000000ULL

enum collapse_state { COLLAPSE_SAMPLING, COLLAPSE_ON, COLLAPSE_OFF };

/* Why it is off. */
enum collapse_reason {
	COLLAPSE_NONE,
	COLLAPSE_CLEAN,         /* fewer than half of the small pages were written */
	COLLAPSE_SLOW,          /* costs no less time than small pages do */
	COLLAPSE_RETURNED,      /* over a quarter of the windows was used again early */
	COLLAPSE_SCATTERED,     /* over a quarter left in other than 512 slots in sequence */
	COLLAPSE_REFUSED,       /* the kernel collapsed less than half of the windows */
	COLLAPSE_CROWDED,       /* over half of the windows left as small pages, to make room */
	COLLAPSE_LIMIT,         /* the cgroup's limit is too small, or there is none */
	COLLAPSE_UNSUPPORTED,   /* by the kernel, or by its settings */
};

/* Windows since the last judgement, and those of them that speak against collapsing. */
struct collapse_tally {
	uint32_t all, bad;
};

struct collapse {
	enum collapse_state state;
	enum collapse_reason reason;  /* of the last COLLAPSE_OFF */
	uint32_t failures;            /* times in sequence */
	uint64_t retry_ns;            /* end of COLLAPSE_OFF */
	uint64_t since;               /* windows collapsed since it is on */
	uint32_t turn;                /* windows since the last that left as small pages */
	/* Since the last decision about dirty pages. */
	uint64_t small_pages, small_written;
	/* Means of a window, 0 = not known. */
	uint64_t small_ns, collapse_ns, huge_ns;
	struct collapse_tally returned, scattered, refused, crowded;
	/* Totals, for people. */
	uint64_t windows;             /* collapsed */
	uint64_t rejected;            /* that the kernel did not collapse */
	uint64_t whole;               /* paged out to 512 slots in sequence */
	uint64_t again;               /* used again early */
	uint64_t crowding;            /* left as small pages to make room */
	uint64_t trips;               /* times that it switched off */
};

/* What is known when a stream has passed @ready windows. */
struct collapse_facts {
	uint64_t limit;         /* bytes: the tightest one */
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

/* Returns whether windows are collapsed; ends COLLAPSE_OFF at its time. */
bool collapse_is_on(struct collapse *c, uint64_t now);
/* Switches off until COLLAPSE_RETRY_NS have passed, for a reason that is no failure. */
void collapse_exclude(struct collapse *c, enum collapse_reason reason, uint64_t now);
/* Returns the windows of a call in a cgroup with this limit; 0: none are collapsed there. */
uint32_t collapse_batch(const struct collapse *c, uint64_t limit);
/*
 * Decides about the passed windows of a cgroup in COLLAPSE_ON.  Collapses only with free capacity
 * for one window and the margin: the kernel frees the small pages of each before it charges the
 * next.  Pages that are written but still charged are free capacity too: the kernel reclaims them
 * first, and without an interrupt.  Without free capacity it waits until twice the windows
 * of a call are ready, then makes room by half of them for the others: if the stream had to pass
 * more windows meanwhile, it would fill that room.  It waits longer for what is being written.
 */
struct collapse_plan collapse_plan(struct collapse *c, const struct collapse_facts *f);

/* @pages left as small pages in @ns; the kernel wrote @written of them, others were clean. */
void collapse_tell_small(struct collapse *c, uint64_t pages, uint64_t written, uint64_t ns,
			 uint64_t now);
/* Of @windows, @huge are huge pages after @ns; 0 ns: they were not given to the kernel. */
void collapse_tell_collapsed(struct collapse *c, uint32_t windows, uint32_t huge, uint64_t ns,
			     uint64_t now);
/* @windows huge pages were paged out in @ns, @whole of them to 512 slots in sequence. */
void collapse_tell_out(struct collapse *c, uint32_t windows, uint32_t whole, uint64_t ns,
		       uint64_t now);
/* A window was judged; @returned: the program used much of it before LRU would have evicted it. */
void collapse_tell_return(struct collapse *c, bool returned, uint64_t now);

/* "sampling", "on", "off"; "none", "clean", ... */
const char *collapse_state_name(enum collapse_state s);
const char *collapse_reason_name(enum collapse_reason r);

#endif
