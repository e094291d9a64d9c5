/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The devices' servers, all or one, by their control sockets. */
#ifndef EBB_DEVICE_SERVERS_H
#define EBB_DEVICE_SERVERS_H

#include <json-c/json.h>

#include "lib/base/error.h"

/* {"verb": @verb}; the caller's. */
struct json_object *server_request(const char *verb);

/* Asks @device's server; takes @request.  *@answer is the caller's. */
int server_call(const char *device, struct json_object *request, struct json_object **answer,
		struct error *e);

/* The same where only "ok" is of interest. */
int server_tell(const char *device, struct json_object *request, struct error *e);

/*
 * Calls @each for every device that has a record, with what its server answers to
 * @verb; stops when it returns non-zero, and returns that.  A server that does not
 * answer is told of on stderr and left out.
 */
int servers_ask(const char *verb, int (*each)(const char *device, struct json_object *answer,
					      void *data),
		void *data);

#endif
