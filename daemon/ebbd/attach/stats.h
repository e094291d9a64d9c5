/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Totals for people: sums the per-CPU counters into maps/cgroup_stats and JSON. */
#ifndef EBB_STATS_H
#define EBB_STATS_H

#include <json-c/json.h>

#include "attachment.h"

/* Writes changed entries of the pinned map; once a second and after every change. */
void stats_publish(struct attachments *a);
/* Writes all entries, for the next ebbd. */
void stats_publish_all(struct attachments *a);

/* Appends one object per attached cgroup to @rows; all if @owner is 0. */
void stats_json(struct attachments *a, uint64_t owner, struct json_object *rows);

/* Adds the member "collapse" of @t to @to, if the setting allows collapsing. */
void collapse_json(const struct attachment *t, struct json_object *to);
/* Returns the offloading state of @t as JSON, owned by the caller.  Requires the lock. */
struct json_object *offload_json(const struct attachment *t);
/* As offload_json(), the setting benefit= and its state. */
struct json_object *benefit_json(const struct attachment *t);
/* As offload_json(), the sources of its requests, an array. */
struct json_object *sources_json(const struct attachments *a, const struct attachment *t);
/* As offload_json(), the placement. */
struct json_object *placement_json(const struct attachment *t);

#endif
