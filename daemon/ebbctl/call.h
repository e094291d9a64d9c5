/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Requests to ebbd and to the servers of devices, and values derived from statistics. */
#ifndef EBB_DAEMON_CALL_H
#define EBB_DAEMON_CALL_H

#include <json-c/json.h>
#include <stdint.h>

#include "lib/base/error.h"

/*
 * Sends @request, which it frees, to ebbd; the caller owns *@answer, which lacks "ok".
 * EXIT_NO_DAEMON when ebbd does not listen.
 */
int daemon_call(struct json_object *request, struct json_object **answer, struct error *e);
/* daemon_call() for answers that may take longer than half a minute. */
int daemon_call_within(int timeout_ms, struct json_object *request, struct json_object **answer,
		       struct error *e);

/* daemon_call() without the answer. */
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
 * and late prefetches.
 */
void daemon_derive(struct json_object *row);

/* Returns the @q quantile (0..1) of a log2 histogram in ns, interpolated within its bucket. */
uint64_t histogram_quantile(struct json_object *histogram, double q);

/* Sends @request, which it frees, to the server of @device; the caller owns *@answer. */
int server_call(const char *device, struct json_object *request, struct json_object **answer,
		struct error *e);

/* server_call() without the answer. */
int server_tell(const char *device, struct json_object *request, struct error *e);

/*
 * Calls @each for every device that has a record, with the answer of its server to @verb.
 * Stops at the first non-zero result and returns it.  Reports a server that does not
 * answer on stderr and skips it.
 */
int servers_ask(const char *verb, int (*each)(const char *device, struct json_object *answer,
					      void *data),
		void *data);

#endif
