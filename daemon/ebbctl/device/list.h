/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_DEVICE_LIST_H
#define EBB_DEVICE_LIST_H

#include <json-c/json.h>

/*
 * Record, state, use and server status of one device (NULL if it does not exist), or
 * an array of all devices.  The caller owns the result.
 */
struct json_object *device_describe(const char *name);
struct json_object *device_describe_all(void);

#endif
