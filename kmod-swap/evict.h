/* SPDX-License-Identifier: GPL-2.0-only */
/* Recalls (EVICT): a donor wants a slab back. */
#ifndef EBB_EVICT_H
#define EBB_EVICT_H

#include "session.h"

/*
 * Of struct ebb_session_ops.  The recall is accepted if it can be obeyed: with a backup always,
 * without one only if user space listens, which has to know another donor.
 */
u16 ebb_evict_recalled(struct ebb_session *s, const struct ebb_recall *recall);

#endif
