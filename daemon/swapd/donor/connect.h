/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where a donor is, and when it is tried.  All functions are the loop thread's. */
#ifndef EBB_CONNECT_H
#define EBB_CONNECT_H

#include "donor_table.h"

/* Has the name of @d looked up; all of its addresses are tried again then. */
void connect_ask_name(struct donor *d, uint64_t now);
/* Sets the link's address to the next one to try; false while the name is being looked up. */
bool connect_next_place(struct donor *d, uint64_t now);
/* Sets d->retry_at. */
void connect_back_off(struct donor *d, uint64_t now);
/* Starts the control connection: CONNECTING.  0 or -errno. */
int connect_open(struct donor *d);

#endif
