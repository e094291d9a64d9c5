/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Classes of pages, with donors and durability of their own.  A swap-out's bio carries the cgroup
 * that the page belongs to: the nearest one with the io controller.  Rules map cgroups to classes.
 * A page keeps its class until it is written again.  Without classes this costs a request one
 * look at a pointer.
 */
#ifndef EBB_CLASS_H
#define EBB_CLASS_H

#include "device.h"

enum ebb_class_kind { CLASS_OPEN, CLASS_SEALED };

void ebb_class_free(struct ebb_device *device);
/* Creates @class, or changes its @copies; ebb_control_lock.  -EEXIST: it is of the other kind. */
int ebb_class_create(struct ebb_device *device, u32 class, u32 copies, enum ebb_class_kind kind,
		     const char **why);
/* Assigns @cgroup to @class, EBB_NO_CLASS = to that of its parent; ebb_control_lock. */
#define EBB_NO_CLASS U32_MAX
int ebb_class_assign(struct ebb_device *device, u64 cgroup, u32 class);
/* The @i-th assignment; false = there is none.  ebb_control_lock. */
bool ebb_class_assigned(const struct ebb_device *device, u32 i, u64 *cgroup, u32 *class);
/* The class of @rq, a write: the kernel merges no bios of different cgroups. */
u32 ebb_class_of_request(const struct ebb_device *device, const struct request *rq);
/*
 * The class of @page; of *@run pages from there on, *@run becomes how many have the same class.
 * slab->lock is held, as for the next two.
 */
u32 ebb_class_of_pages(const struct ebb_device *device, u64 page, u32 *run);
void ebb_class_set(struct ebb_device *device, u64 page, u32 count, u32 class);
/* Which pages of a word of bits are of @class. */
unsigned long ebb_class_word(const struct ebb_device *device, size_t word, u32 class);

#endif
