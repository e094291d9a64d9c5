/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The device of device_world.h with two donors that end a transfer when the test tells them to, and
 * a backup that ends a job when the test tells it to.
 */
#ifndef EBB_SLOW_DEVICE_H
#define EBB_SLOW_DEVICE_H

#include "device_world.h"

enum { SLABS = 480, SLAB_PAGES = 256, DONORS = 2, QUEUE = 700 };

/* Set: transfers wait for reply().  Else they end at once. */
extern bool slow;
/* Result of the backup's jobs: 0 or -errno. */
extern int disk;

/* Submits a transfer as `slow` says. */
void submit(struct link *l, const struct mapping *m, struct transfer *t);

/* Begins a device of @replicas replicas; device_end() ends it. */
void begin(int replicas, bool backup);

void lose(struct donor *d);
void tick(uint64_t now);
/* Donors grant the slabs that they are asked for, and take pages. */
void grant(void);
/* @d ends the transfer that has waited longest for it. */
void reply(struct donor *d);
/* The backup ends the next @n jobs, reads first. */
void back_up(uint32_t n);

/* Tells the device that @d has revoked @m; returns what donor_frame() does. */
int tell_revoked(struct donor *d, const struct mapping *m);

#endif
