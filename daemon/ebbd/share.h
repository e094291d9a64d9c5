/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A process's epochs and page faults, which libebbgc reads by plain loads. */
#ifndef EBB_EPOCH_H
#define EBB_EPOCH_H

#include <json-c/json.h>

#include "ebbd.h"

/*
 *   -> {"verb":"epoch.share"}
 *   <- {"ok":true,"map":"/sys/fs/bpf/ebb/maps/epochs","slot":3,"slots":512,
 *       "arrivals":"/sys/fs/bpf/ebb/maps/arrivals"}
 *
 * The process is the one that connected (SO_PEERCRED): getpid() in a PID namespace is the number
 * of another process for ebbd.  A member "pid", which earlier versions read, has no effect.
 *
 * The map is a BPF array of 64-bit counters, to be mapped read-only; the slot is the process's
 * until it ends.  Of arrivals, which is left out for slots from EBB_MAX_ARRIVALS on, page `slot`
 * is the process's struct ebb_arrivals.  -ENOENT when its paging is not tracked, -ENOSPC without
 * a free slot, -ESRCH for a process outside ebbd's PID namespace.
 */
int epoch_share(struct ebbd *d, struct json_object *request, struct json_object *answer,
		struct error *e);

#endif
