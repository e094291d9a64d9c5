/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Devices and donors as tables and sentences, for the verbs that print them. */
#ifndef EBB_DEVICE_VIEW_H
#define EBB_DEVICE_VIEW_H

#include <json-c/json.h>
#include <stdint.h>

/* Returns the word that tables have for @state, a value or member of JSON. */
const char *state_word(const char *state);
/* Prints the result of device_describe_all(). */
void device_print_table(struct json_object *rows);

/*
 * Returns the number of slabs that cannot leave the donor of @row, which has an "outlook" while it
 * is drained.
 */
int64_t donor_stuck(struct json_object *row);
/* Prints the number of stuck slabs and the cause, if any. */
void donor_print_stuck(const char *donor, const char *device, struct json_object *row);

#endif
