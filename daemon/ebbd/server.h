/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The verbs of ebbd's control socket; the protocol is in lib/control/control.h. */
#ifndef EBB_SERVER_H
#define EBB_SERVER_H

#include <json-c/json.h>

#include "lib/base/error.h"
#include "lib/control/control_server.h"

/* Sets the commands that each kind of peer may use. */
void server_rules(struct control_rules *rules);

/* A control_handler; @data is the struct ebbd. */
int server_handle(void *data, const char *verb, struct json_object *request,
		  struct json_object *answer, struct error *e);

#endif
