/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Traces: the swap faults and swap-outs of one cgroup, in a file.
 *
 * docs/trace.md describes the format byte by byte.  In short: a header, blocks
 * of delta-coded records that decode independently, and a second half of the header
 * that is written at the end.  If it is empty, or the file is
 * shorter than it says, the recording is incomplete.
 *
 * A writer or reader belongs to one thread at a time.
 */
#ifndef EBB_TRACE_H
#define EBB_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"

#define TRACE_VERSION 1

/* The numbers are those of enum ebb_fault_kind and EBB_OUT. */
enum trace_kind {
	TRACE_MISS = 0,
	TRACE_HIT = 1,
	TRACE_LATE = 2,
	TRACE_OUT = 3,          /* reclaim sent the page to swap; tid, ip, duration are 0 */
	TRACE_KINDS
};

/* "miss", "hit", "late", "out". */
extern const char *const trace_kind_names[TRACE_KINDS];

struct trace_record {
	uint64_t time_ns;       /* since the recording began; of a fault, when it ended */
	uint64_t duration_ns;   /* of a fault; 0 = not known */
	uint64_t vpn;           /* virtual page */
	uint64_t ip;            /* the instruction that faulted; 0 = not known */
	uint32_t tgid, tid;
	/*
	 * Pages the kernel read on its own with a miss, the missed one included;
	 * of a swap-out, pages of the folio from vpn on (0 and 1: that page).
	 */
	uint32_t cluster;
	uint16_t kind;          /* enum trace_kind */
	uint16_t role;          /* enum ebb_role of the thread */
};

struct trace_info {
	/* Known when a recording begins. */
	uint32_t page_shift;
	uint32_t
		page_cluster; /* vm.page-cluster; 0 = the kernel reads no page but the missed one */
	uint64_t memory;        /* bytes the cgroup may use; 0 = no limit */
	uint64_t start_ns;      /* CLOCK_MONOTONIC */
	uint64_t start_unix_ns; /* CLOCK_REALTIME */
	char kernel[64];        /* release */
	char policy[32];        /* policy that prefetched meanwhile */
	char cgroup[192];       /* below the memory hierarchy; its end if it is longer */
	char machine[32];       /* its name; "" in traces of older ebbs */
	uint32_t cpus;          /* online; 0 in traces of older ebbs */
	/* Known at its end. */
	uint64_t count[TRACE_KINDS]; /* records of each kind */
	uint64_t lost;          /* faults that were counted and are not in the file */
	uint64_t span_ns;       /* time of the last record */
	uint64_t bytes;         /* of the whole file */
	int stopped;            /* errno that ended it early; 0 = it was told to stop */
	bool finished;
	char comm[16];          /* thread with the most faults */
};

struct trace_thread {
	uint32_t tgid, tid;
	char comm[16];
};

/* Where the cgroup and its policy were at one time; pages, counted from its attachment on. */
struct trace_sample {
	uint64_t time_ns;       /* since the recording began */
	uint64_t resident;      /* anonymous pages in local memory */
	uint64_t swapped;       /* and those that were not */
	uint64_t requests;      /* prefetch requests of the policy */
	uint64_t request_pages; /* pages in them */
	uint64_t prefetched;    /* pages prefetched */
	uint64_t wasted;        /* of those, never accessed */
	uint64_t epochs;
};

/* --- writing ------------------------------------------------------------- */

struct trace_writer;

/*
 * Takes over @fd, an empty regular file open for writing, also on failure.
 * @name is for messages.  The second half of @info is not read.
 */
int trace_writer_new(struct trace_writer **w, int fd, const char *name,
		     const struct trace_info *info, struct error *e);

/*
 * Adds a record.  Records need not be in order of time.  Says in @e what went
 * wrong the first time it does (a full disk); what was written before that stays
 * a file that can be read, and every later call returns the same -errno at once.
 */
int trace_write(struct trace_writer *w, const struct trace_record *record, struct error *e);

/* Names a thread; once each, at any time. */
int trace_write_thread(struct trace_writer *w, const struct trace_thread *thread, struct error *e);

/* Adds a sample; in order of time. */
int trace_write_sample(struct trace_writer *w, const struct trace_sample *sample, struct error *e);

/* Records taken so far, and those of them that are faults. */
uint64_t trace_written(const struct trace_writer *w);
uint64_t trace_faults(const struct trace_writer *w);

/*
 * Writes what is left and fills in the end: @lost and @comm as in struct
 * trace_info.  Frees the writer whatever it returns; sets *@w to NULL.
 */
int trace_writer_end(struct trace_writer **w, uint64_t lost, const char *comm, struct error *e);

/* --- reading ------------------------------------------------------------- */

struct trace_reader;

enum trace_demand {
	TRACE_WHOLE,    /* refuse a file that is not finished or shorter than it was */
	TRACE_PARTIAL,  /* read what is whole of it */
};

/*
 * Opens @path.  -EINVAL with EXIT_USAGE when it is no trace, one of another
 * version, damaged, or not whole; @e tells them apart.
 */
int trace_open(struct trace_reader **r, const char *path, enum trace_demand demand,
	       struct error *e);
void trace_close(struct trace_reader **r);

/* Valid as long as the reader. */
const struct trace_info *trace_info(const struct trace_reader *r);

/* The next record: 1, 0 at the end, or -errno.  A damaged block yields no record. */
int trace_next(struct trace_reader *r, struct trace_record *record, struct error *e);

/* The samples as far as the file has been read, *@n of them; valid until the next trace_next(). */
const struct trace_sample *trace_samples(const struct trace_reader *r, size_t *n);

/* Its name as far as the file has been read, "" when it has none. */
const char *trace_thread_name(const struct trace_reader *r, uint32_t tgid, uint32_t tid);

static inline void trace_closep(struct trace_reader **r) { trace_close(r); }

#define _cleanup_trace_ __attribute__((cleanup(trace_closep)))

#endif
