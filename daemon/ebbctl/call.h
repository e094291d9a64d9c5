/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Talking to ebbd, and what its statistics mean. */
#ifndef EBB_DAEMON_CALL_H
#define EBB_DAEMON_CALL_H

#include <json-c/json.h>
#include <stdint.h>

#include "lib/base/error.h"

/* {"verb": @verb}; the caller's. */
struct json_object *daemon_request(const char *verb);

/*
 * Sends @request (consumed) to ebbd; *@answer, without "ok", is the caller's.
 * EXIT_NO_DAEMON when nobody listens.
 */
int daemon_call(struct json_object *request, struct json_object **answer, struct error *e);
/* The same, where an answer may take longer than half a minute. */
int daemon_call_within(int timeout_ms, struct json_object *request, struct json_object **answer,
		       struct error *e);

/* The same where the answer does not matter. */
int daemon_tell(struct json_object *request, struct error *e);

/*
 * "params" of a request from @n words "key=value" (whole numbers); run=kernel is
 * accepted, and run=daemon is ignored with a warning.
 * EXIT_USAGE names the word.
 */
int daemon_add_params(struct json_object *request, const char *const *words, int n,
		      struct error *e);

/*
 * Adds to a row of "stats": "coverage" = used / (used + misses) and "accuracy" =
 * used / prefetched, used = hits + late (null where nothing is counted);
 * "miss_p50_ns", "miss_p99_ns" from the histogram; "lost_ns" = time in misses
 * and late hits.
 */
void daemon_derive(struct json_object *row);

/* The @q quantile (0..1) of a log2 histogram, interpolated within its bucket, ns. */
uint64_t histogram_quantile(struct json_object *histogram, double q);

#endif
