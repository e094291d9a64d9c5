/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The record of a swap device: ebb_device_record(NAME), written whole by
 * ebbctl (staging file and rename) once the device is usable, removed by
 * `device destroy`.  ebbd watches the directory and tells the BPF programs
 * which block devices are ours.
 */
#ifndef EBB_DEVICE_H
#define EBB_DEVICE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"

#define DEVICE_NAME_MAX 32
/* Most donors that a device uses at a time. */
#define DEVICE_DONORS 16
/* donors_from of a device whose donors are those that ebbd knows. */
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
	char donor[2304];           /* "host:port,...": those it began with */
	char donors_from[16];       /* "command": they stay, or DEVICE_DONORS_CONFIGURED */
	char durability[32];        /* "disk", "replicas=N" or "none" */
	char backup[PATH_MAX];      /* backup file; with kmod block device */
	char mount[PATH_MAX];       /* FUSE mount point; empty directory with ublk */
	char scope[16];             /* "any" or "attached" */
	/* Options as they were given, or the rule; connections empty with kmod; all in older records. */
	char key[PATH_MAX];         /* "none" without one */
	char seal[8], connections[8];
};

struct json_object;

/* 0, or -EINVAL with the rule in @e. */
int device_name_check(const char *name, struct error *e);

int device_record_write(const struct device_record *d, struct error *e);
/* -ENOENT when there is none, -EBADMSG when it is damaged; @d is untouched then. */
int device_record_read(const char *name, struct device_record *d, struct error *e);
/* No error when there is none. */
int device_record_remove(const char *name);

/* The record as the object its file holds; the caller's. */
struct json_object *device_record_json(const struct device_record *d);

/*
 * Calls @each for every readable record, in name order; stops when it returns
 * non-zero and returns that.
 */
int device_record_each(int (*each)(const struct device_record *d, void *data), void *data);

#endif
