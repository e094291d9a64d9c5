/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Members of the answers that daemons give to control sockets (control.h). */
#ifndef EBB_JSON_H
#define EBB_JSON_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

static inline void json_add_int(struct json_object *o, const char *key, uint64_t v)
{
	json_object_object_add(o, key, json_object_new_int64((int64_t)v));
}

static inline void json_add_text(struct json_object *o, const char *key, const char *v)
{
	json_object_object_add(o, key, json_object_new_string(v));
}

static inline void json_add_bool(struct json_object *o, const char *key, bool v)
{
	json_object_object_add(o, key, json_object_new_boolean(v));
}

#endif
