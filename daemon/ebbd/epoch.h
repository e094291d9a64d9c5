/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A process's epoch, for it to read by a plain load: what libebbgc asks for. */
#ifndef EBB_EPOCH_H
#define EBB_EPOCH_H

#include <json-c/json.h>

#include "ebbd/ebbd.h"

/*
 *   -> {"verb":"epoch.share","pid":1234}
 *   <- {"ok":true,"map":"/sys/fs/bpf/ebb/maps/epochs","slot":3,"slots":512}
 *
 * The map is a BPF array of 64-bit counters, to be mapped read-only; the slot is the process's
 * until it ends.  -ENOENT when its paging is not tracked, -ENOSPC without a free slot.
 */
int epoch_share(struct ebbd *d, struct json_object *request, struct json_object *answer,
		struct error *e);

#endif
