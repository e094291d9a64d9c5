/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Finds a donor's address and decides when to connect.  Loop thread only. */
#ifndef EBB_CONNECT_H
#define EBB_CONNECT_H

#include "donor_table.h"

/* Starts a lookup of the name of @d, after which all its addresses are tried again. */
void connect_ask_name(struct donor *d, uint64_t now);
/* Sets the link's address to the next one to try; false while the name is being looked up. */
bool connect_next_place(struct donor *d, uint64_t now);
/* Sets d->retry_at; intervals double up to @most. */
void connect_back_off(struct donor *d, uint64_t now, uint64_t most);
/* Starts the control connection: CONNECTING.  Returns 0 or -errno. */
int connect_open(struct donor *d);

#endif
