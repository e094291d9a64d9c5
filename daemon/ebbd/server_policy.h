/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The verbs policy.* of the control socket, and writing JSON for all of them. */
#ifndef EBB_SERVER_POLICY_H
#define EBB_SERVER_POLICY_H

#include <json-c/json.h>

#include "ebbd.h"

int policy_list(struct ebbd *d, struct json_object *request, struct json_object *answer,
		struct error *e);
int policy_load(struct ebbd *d, struct json_object *request, struct json_object *answer,
		struct error *e);
int policy_unload(struct ebbd *d, struct json_object *request, struct json_object *answer,
		  struct error *e);
int policy_attach(struct ebbd *d, struct json_object *request, struct json_object *answer,
		  struct error *e);
int policy_set(struct ebbd *d, struct json_object *request, struct json_object *answer,
	       struct error *e);
int policy_detach(struct ebbd *d, struct json_object *request, struct json_object *answer,
		  struct error *e);
int policy_show(struct ebbd *d, struct json_object *request, struct json_object *answer,
		struct error *e);

/* Returns {"pw_max": 64, ...} as in force, owned by the caller. */
struct json_object *attachment_params(const struct attachment *t);

struct json_object *add_array(struct json_object *o, const char *key);
/* Returns the string member @key, or NULL with EXIT_USAGE in @e. */
const char *need_str(struct json_object *request, const char *key, struct error *e);

#endif
