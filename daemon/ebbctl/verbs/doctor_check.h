/* SPDX-License-Identifier: GPL-2.0-or-later */
/* `ebbctl doctor`: prerequisites, one row each. */
#ifndef EBB_DOCTOR_CHECK_H
#define EBB_DOCTOR_CHECK_H

#include <json-c/json.h>

enum verdict {
	HAVE,      /* available */
	MISSING,   /* ebb does not work without it */
	DEGRADED,  /* ebb works with the restriction that the remedy names */
	NOTE,      /* for information */
};

struct doctor {
	struct json_object *checks; /* [{"name", "state", "found", "remedy"}] */
	int missing;
};

/* Adds a row; @found as for printf(3), @remedy NULL if none. */
void doctor_add(struct doctor *d, enum verdict v, const char *name, const char *remedy,
		const char *found, ...) __attribute__((format(printf, 5, 6)));

/* BPF: loads and attaches programs. */
void doctor_bpf(struct doctor *d);
/* Perf events of page faults, and their scope on a cgroup. */
void doctor_perf(struct doctor *d);
/* Memory: controllers, swap, zram, zswap, THP, MGLRU, readahead. */
void doctor_memory(struct doctor *d);
/* zswap: whether memory compresses, and its settings. */
void doctor_zswap(struct doctor *d);
/* The device: FUSE, loop, process_madvise, IO_FLUSHER, locked memory. */
void doctor_device(struct doctor *d);
/* Keys that donors share: of the donor on this machine, and of @devices' donors. */
void doctor_keys(struct doctor *d, struct json_object *devices);
/* ebbd, devices, and other programs that swap to ebb's devices. */
void doctor_running(struct doctor *d);

#endif
