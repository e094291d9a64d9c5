/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Requests to the servers of devices by their control sockets. */
#ifndef EBB_DEVICE_SERVERS_H
#define EBB_DEVICE_SERVERS_H

#include <json-c/json.h>

#include "lib/base/error.h"

/* Returns {"verb": @verb}; the caller owns it. */
struct json_object *server_request(const char *verb);

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
