/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The loop's state as JSON, for the control thread (control.h). */
#ifndef EBB_DEVICE_STATUS_H
#define EBB_DEVICE_STATUS_H

#include <json-c/json.h>
#include <stdint.h>

struct donor;
struct swapd;

void device_status(const struct swapd *s, struct json_object *a);
void device_stats(const struct swapd *s, struct json_object *a);
/* Adds the slabs from number @from on. */
void device_slabs(const struct swapd *s, uint32_t from, struct json_object *a);
/* Adds the drain estimate of @d. */
void device_drain_estimate(const struct swapd *s, const struct donor *d, struct json_object *a);

#endif
