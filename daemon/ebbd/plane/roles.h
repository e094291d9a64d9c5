/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Thread roles by name: which threads of managed runtimes collect garbage.
 *
 * A thread that registers itself takes a name that begins with EBB_GC_THREAD.
 */
#ifndef EBB_ROLES_H
#define EBB_ROLES_H

#include "plane.h"

#define EBB_GC_THREAD "ebb-gc"

/* Fills maps/roles. */
int roles_write(struct plane *p, struct error *e);

#endif
