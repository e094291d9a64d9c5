/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_DEVICE_LIST_H
#define EBB_DEVICE_LIST_H

#include <json-c/json.h>
#include <stdint.h>

/*
 * Record, state, use and what the server says, of one device (NULL when there
 * is none) or as an array of all.  The caller's.
 */
struct json_object *device_describe(const char *name);
struct json_object *device_describe_all(void);

/* The plain view of device_describe_all(). */
void device_print_table(struct json_object *rows);

/* Slabs that cannot leave the donor @row is about, which has an "outlook" if it is left. */
int64_t donor_stuck(struct json_object *row);
/* Says why, if there are any. */
void donor_print_stuck(const char *donor, const char *device, struct json_object *row);

#endif
