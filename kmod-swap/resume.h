/* SPDX-License-Identifier: GPL-2.0-only */
/* Confirms a device's slabs at a donor that is back. */
#ifndef EBB_RESUME_H
#define EBB_RESUME_H

#include "session.h"

/*
 * For ebb_session_ops.resume: confirms all places at @s, EBB_REQUESTS at a time; a slab loses its
 * place if the donor has ended the loan.  Returns 0, or -errno: the session stays away.
 */
int ebb_resume_slabs(struct ebb_session *s);

#endif
