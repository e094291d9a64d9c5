/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where a donor is, and when it is tried.  All of the loop thread. */
#ifndef EBB_CONNECT_H
#define EBB_CONNECT_H

#include "donor_table.h"

/* Has the name of @d looked up; then all of its addresses are tried again. */
void connect_ask_name(struct swapd *s, struct donor *d, uint64_t now);
/* Sets d->at to where it is to be tried now; false while its name is being looked up. */
bool connect_next_place(struct swapd *s, struct donor *d, uint64_t now);
/* Sets d->retry_at. */
void connect_back_off(struct swapd *s, struct donor *d, uint64_t now);
/* Begins the control connection to d->at: CONNECTING.  0 or -errno. */
int connect_open(struct swapd *s, struct donor *d);
/* Has epoll tell when the control connection can be read, and, with @write, written. */
void connect_watch(struct swapd *s, struct donor *d, bool write);

#endif
