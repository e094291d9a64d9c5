/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Devices and donors as tables and sentences, for the verbs that print them. */
#ifndef EBB_DEVICE_VIEW_H
#define EBB_DEVICE_VIEW_H

#include <json-c/json.h>
#include <stdint.h>

/* Prints the result of device_describe_all(). */
void device_print_table(struct json_object *rows);

/* Slabs that cannot leave the donor of @row, which has an "outlook" while it is drained. */
int64_t donor_stuck(struct json_object *row);
/* Prints why, if any. */
void donor_print_stuck(const char *donor, const char *device, struct json_object *row);

#endif
