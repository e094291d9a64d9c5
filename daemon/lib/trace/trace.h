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

/* Values of enum ebb_fault_kind, and of EBB_OUT. */
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
	uint64_t time_ns;       /* since the recording began; faults: of their end */
	uint64_t duration_ns;   /* of a fault; 0 = not known */
	uint64_t vpn;           /* virtual page */
	uint64_t ip;            /* the instruction that faulted; 0 = not known */
	uint32_t tgid, tid;
	/*
	 * Pages that the kernel read by itself with a miss, including the missed one; of a
	 * swap-out, pages of the folio from vpn on (0 and 1: that page).
	 */
	uint32_t cluster;
	uint16_t kind;          /* enum trace_kind */
	uint16_t role;          /* enum ebb_role of the thread */
};

struct trace_info {
	/* Known when a recording begins. */
	uint32_t page_shift;
	uint32_t
		page_cluster; /* vm.page-cluster; 0 = no readahead */
	uint64_t memory;        /* bytes: limit of the cgroup; 0 = none */
	uint64_t start_ns;      /* CLOCK_MONOTONIC */
	uint64_t start_unix_ns; /* CLOCK_REALTIME */
	char kernel[64];        /* release */
	char policy[32];        /* policy that prefetched during the recording */
	char cgroup[192];       /* path below the memory hierarchy; only the end of a long one */
	char machine[32];       /* its name; "" in traces of older ebbs */
	uint32_t cpus;          /* online; 0 in traces of older ebbs */
	/* Known at its end. */
	uint64_t count[TRACE_KINDS]; /* records of each kind */
	uint64_t lost;          /* faults counted but not in the file */
	uint64_t span_ns;       /* time of the last record */
	uint64_t bytes;         /* of the whole file */
	int stopped;            /* errno that ended it early; 0 = none */
	bool finished;
	char comm[16];          /* thread with the most faults */
};

struct trace_thread {
	uint32_t tgid, tid;
	char comm[16];
};

/* State of the cgroup and its policy at one time; pages since its attachment. */
struct trace_sample {
	uint64_t time_ns;       /* since the recording began */
	uint64_t resident;      /* anonymous pages in local memory */
	uint64_t swapped;       /* swapped-out anonymous pages */
	uint64_t requests;      /* prefetch requests of the policy */
	uint64_t request_pages; /* pages in them */
	uint64_t prefetched;    /* pages prefetched */
	uint64_t wasted;        /* of those, never accessed */
	uint64_t epochs;
};

/* --- writing ------------------------------------------------------------- */

struct trace_writer;

/*
 * Takes @fd, an empty regular file open for writing, even on failure.  @name is for messages.  The
 * second half of @info is not read.
 */
int trace_writer_new(struct trace_writer **w, int fd, const char *name,
		     const struct trace_info *info, struct error *e);

/*
 * Adds a record; records need not be in order of time.  Describes the first failure (such as a full
 * disk) in @e; earlier records stay a readable file, and every later call returns the same -errno
 * at once.
 */
int trace_write(struct trace_writer *w, const struct trace_record *record, struct error *e);

/* Names a thread; once per thread, at any time. */
int trace_write_thread(struct trace_writer *w, const struct trace_thread *thread, struct error *e);

/* Adds a sample; in order of time. */
int trace_write_sample(struct trace_writer *w, const struct trace_sample *sample, struct error *e);

/* Return the records taken so far, and the faults among them. */
uint64_t trace_written(const struct trace_writer *w);
uint64_t trace_faults(const struct trace_writer *w);

/*
 * Writes the rest and fills in the end: @lost and @comm as in struct trace_info.  Frees the writer
 * in any case; sets *@w to NULL.
 */
int trace_writer_end(struct trace_writer **w, uint64_t lost, const char *comm, struct error *e);

/* --- reading ------------------------------------------------------------- */

struct trace_reader;

enum trace_demand {
	TRACE_WHOLE,    /* refuse an unfinished or truncated file */
	TRACE_PARTIAL,  /* read the intact part */
};

/*
 * Opens @path.  -EINVAL with EXIT_USAGE when it is no trace, of another version, damaged, or
 * incomplete; @e says which.
 */
int trace_open(struct trace_reader **r, const char *path, enum trace_demand demand,
	       struct error *e);
void trace_close(struct trace_reader **r);

/* Valid as long as the reader. */
const struct trace_info *trace_info(const struct trace_reader *r);

/* Reads the next record: 1, 0 at the end, or -errno.  A damaged block yields no record. */
int trace_next(struct trace_reader *r, struct trace_record *record, struct error *e);

/* Returns the samples read so far, *@n of them; valid until the next trace_next(). */
const struct trace_sample *trace_samples(const struct trace_reader *r, size_t *n);

/* Returns the name of a thread as read so far, or "". */
const char *trace_thread_name(const struct trace_reader *r, uint32_t tgid, uint32_t tid);

static inline void trace_closep(struct trace_reader **r) { trace_close(r); }

#define _cleanup_trace_ __attribute__((cleanup(trace_closep)))

#endif
