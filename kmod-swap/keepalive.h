/* SPDX-License-Identifier: GPL-2.0-only */
/* Probes of an idle connection, which does not notice that its donor has lost power. */
#ifndef EBB_KEEPALIVE_H
#define EBB_KEEPALIVE_H

#include "session.h"

/* session->keepalive. */
void ebb_keepalive_work(struct work_struct *work);
/* session->probe. */
void ebb_keepalive_probed(struct ib_cq *cq, struct ib_wc *wc);
/* Begins to probe. */
void ebb_keepalive_start(struct ebb_session *s);

#endif
