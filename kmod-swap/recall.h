/* SPDX-License-Identifier: GPL-2.0-only */
/* EVICTs that the donor sends, and their answers. */
#ifndef EBB_RECALL_H
#define EBB_RECALL_H

#include "session.h"

/* Queues an EVICT; other requests are for other borrowers. */
void ebb_recall_take(struct ebb_session *s, const struct wire_frame *f);
/* session->answering: answers the EVICTs, by ebb_session_ops.recalled. */
void ebb_recall_work(struct work_struct *work);

#endif
