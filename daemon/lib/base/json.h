/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Members of JSON objects: the only way to add and to read one.  Adding replaces
 * a member of that name.  A getter returns @fallback when the member is absent or
 * null, json_text() also when it is no string.
 */
#ifndef EBB_JSON_H
#define EBB_JSON_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

#define _cleanup_json_ __attribute__((cleanup(json_cleanup)))

static inline void json_cleanup(struct json_object **o) { json_object_put(*o); }

static inline void json_add_int(struct json_object *o, const char *key, uint64_t v)
{
	json_object_object_add(o, key, json_object_new_int64((int64_t)v));
}

struct json_number {
	const char *key;
	uint64_t value;
};

/* Adds @numbers, which end with a NULL key. */
static inline void json_add_numbers(struct json_object *o, const struct json_number *numbers)
{
	for (; numbers->key; numbers++)
		json_add_int(o, numbers->key, numbers->value);
}

/* @v NULL: null. */
static inline void json_add_text(struct json_object *o, const char *key, const char *v)
{
	json_object_object_add(o, key, v ? json_object_new_string(v) : NULL);
}

static inline void json_add_bool(struct json_object *o, const char *key, bool v)
{
	json_object_object_add(o, key, json_object_new_boolean(v));
}

/* Six digits. */
static inline void json_add_double(struct json_object *o, const char *key, double v)
{
	struct json_object *d = json_object_new_double(v);

	json_object_set_serializer(d, json_object_double_to_json_string, "%.6g", NULL);
	json_object_object_add(o, key, d);
}

/* Returns a borrowed member; NULL when absent, or when @o is NULL. */
static inline struct json_object *json_member(struct json_object *o, const char *key)
{
	struct json_object *v;

	return json_object_object_get_ex(o, key, &v) ? v : NULL;
}

/* Points into the member. */
static inline const char *json_text(struct json_object *o, const char *key, const char *fallback)
{
	struct json_object *v = json_member(o, key);

	return json_object_is_type(v, json_type_string) ? json_object_get_string(v) : fallback;
}

static inline int64_t json_int(struct json_object *o, const char *key, int64_t fallback)
{
	struct json_object *v = json_member(o, key);

	return v ? json_object_get_int64(v) : fallback;
}

static inline double json_double(struct json_object *o, const char *key, double fallback)
{
	struct json_object *v = json_member(o, key);

	return v ? json_object_get_double(v) : fallback;
}

#endif
