/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A whole trace in memory, summed up, for `trace show` and `trace plot`. */
#ifndef EBB_TRACE_LOAD_H
#define EBB_TRACE_LOAD_H

#include "lib/base/json.h"
#include "lib/trace/trace.h"

struct loaded_thread {
	uint32_t tgid, tid;
	uint16_t role;
	char comm[16];              /* "" = not known */
	uint64_t count[TRACE_KINDS];
};

struct loaded_trace {
	struct trace_info info;
	struct trace_record *record; /* as in the file */
	size_t records;
	struct trace_sample *sample; /* in order of time */
	size_t samples;
	struct loaded_thread *thread; /* those that faulted, most faults first */
	size_t threads;
	uint64_t count[TRACE_KINDS];
	uint64_t pages;             /* distinct ones */
	uint64_t span_ns, miss_ns, late_ns;
};

/* Frees nothing on failure; call trace_unload() in any case. */
int trace_load(struct loaded_trace *t, const char *path, enum trace_demand demand,
	       struct error *e);
void trace_unload(struct loaded_trace *t);

/* A page of a process, and their order: by process, then by address. */
struct traced_page {
	uint32_t tgid;
	uint64_t vpn;
};

int traced_page_compare(const void *a, const void *b);

/*
 * Returns the distinct pages of @t in that order, @t->pages of them, owned by the caller; NULL
 * without memory.
 */
struct traced_page *trace_pages(const struct loaded_trace *t);

/* Adds the header and the counts to @o. */
void trace_add_about(struct json_object *o, const struct trace_info *info);
void trace_add_counts(struct json_object *o, const struct loaded_trace *t);

/*
 * Returns at most @most threads as an array, owned by the caller.  @roles: names of a program's
 * thread and of a collector's.
 */
struct json_object *trace_threads_json(const struct loaded_trace *t, size_t most,
				       const char *const roles[2]);

#define _cleanup_loaded_ __attribute__((cleanup(trace_unload)))

#endif
