/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The record of a swap device, the file ebb_device_record(NAME).  ebbctl writes it
 * atomically once the device is usable, and `device destroy` removes it.  ebbd watches the
 * directory and tells the BPF programs which block devices belong to ebb.
 */
#ifndef EBB_DEVICE_H
#define EBB_DEVICE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"

#define DEVICE_NAME_MAX 32
/* Limit of donors per device. */
#define DEVICE_DONORS 16
/* donors_from of a device whose donors come from ebbd. */
#define DEVICE_DONORS_CONFIGURED "configuration"

struct device_record {
	char name[DEVICE_NAME_MAX]; /* [a-z0-9][a-z0-9_-]* */
	char frontend[16];          /* "fuse", "ublk" or "kmod" */
	char block[64];             /* "/dev/loop0", "/dev/ublkb0", "/dev/ebb0" */
	uint32_t major, minor;      /* of block */
	uint64_t size;              /* bytes */
	uint64_t slab;              /* bytes */
	int priority;               /* swap priority */
	int server_pid;             /* ebb-swapd; 0 with kmod */
	char donor[2304];           /* initial donors, "host:port,..." */
	char donors_from[16];       /* "command" (fixed) or DEVICE_DONORS_CONFIGURED */
	char durability[32];        /* "disk", "replicas=N" or "none" */
	char backup[PATH_MAX];      /* backup file; with kmod block device */
	char mount[PATH_MAX];       /* FUSE mount point; empty directory with ublk */
	char scope[16];             /* "any" or "attached" */
	/*
	 * Options as given, or their defaults; connections empty with kmod; all in older records.
	 */
	char key[PATH_MAX];         /* "none" without one */
	char seal[8], connections[8];
	char overcommit[4];         /* "on": no capacity is reserved at donors */
};

struct json_object;

/* Returns 0, or -EINVAL with the rule in @e. */
int device_name_check(const char *name, struct error *e);

int device_record_write(const struct device_record *d, struct error *e);
/* Returns -ENOENT when it does not exist, -EBADMSG when it is damaged; @d is then unchanged. */
int device_record_read(const char *name, struct device_record *d, struct error *e);
/* Succeeds when there is none. */
int device_record_remove(const char *name);

/* Returns the record as the JSON object of its file; the caller owns it. */
struct json_object *device_record_json(const struct device_record *d);

/*
 * Calls @each for every readable record, in name order.  Stops at the first non-zero
 * result and returns it.
 */
int device_record_each(int (*each)(const struct device_record *d, void *data), void *data);

#endif
