/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Classes of pages, each with its own donors and durability.  A swap-out's bio carries the page's
 * cgroup: the nearest one with the io controller.  Rules map cgroups to classes.  A page keeps its
 * class until it is written again.  Without classes, a request reads one pointer.
 */
#ifndef EBB_CLASS_H
#define EBB_CLASS_H

#include "device.h"

enum ebb_class_kind { CLASS_OPEN, CLASS_SEALED };

void ebb_class_free(struct ebb_device *device);
/* Creates @class or changes its @copies; device->control.  -EEXIST: @class has another kind. */
int ebb_class_create(struct ebb_device *device, u32 class, u32 copies, enum ebb_class_kind kind,
		     const char **why);
/* Assigns @cgroup to @class; EBB_NO_CLASS = to its parent's class.  device->control. */
#define EBB_NO_CLASS U32_MAX
int ebb_class_assign(struct ebb_device *device, u64 cgroup, u32 class);
/* Reads the @i-th assignment; false = none. */
bool ebb_class_assigned(const struct ebb_device *device, u32 i, u64 *cgroup, u32 *class);
/* Returns the class of a write: the kernel never merges bios of different cgroups. */
u32 ebb_class_of_request(const struct ebb_device *device, const struct request *rq);
/*
 * Returns the class of @page and shortens *@run to the pages from @page on that have this class.
 * slab->lock is held, also for the next two functions.
 */
u32 ebb_class_of_pages(const struct ebb_device *device, u64 page, u32 *run);
void ebb_class_set(struct ebb_device *device, u64 page, u32 count, u32 class);
/* Returns a mask of the pages of bitmap word @word that are of @class. */
unsigned long ebb_class_word(const struct ebb_device *device, size_t word, u32 class);

#endif
