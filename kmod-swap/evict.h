/* SPDX-License-Identifier: GPL-2.0-only */
/* Recalls (EVICT): a donor requests the return of a slab. */
#ifndef EBB_EVICT_H
#define EBB_EVICT_H

#include "session.h"

/*
 * recalled() of struct ebb_session_ops.  Accepts a recall that can be obeyed: always with a backup,
 * otherwise only if user space listens, since it must provide another donor.
 */
u16 ebb_evict_recalled(struct ebb_session *s, const struct ebb_recall *recall);

#endif
