/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Data connections of a link whose control connection is TLS: READ and WRITE travel there, with a
 * message authentication code on each header and, from version 4 on, on each payload
 * (lib/wire/session.h).  They are opened when HELLO has named a session, and end with the control
 * connection.  When one breaks, the link is lost.
 *
 *	NONE --open--> CONNECTING --> JOINING --> UP
 *
 * Transfers are spread over env.connections of them by their place.  Between data connections
 * there is no order: the submitter never has two overlapping transfers in flight.
 */
#ifndef EBB_DATA_LINK_H
#define EBB_DATA_LINK_H

#include "link.h"

/* Loop thread only. */

/*
 * Opens the data connections of @l for the session that @told names; ready() follows when all are
 * up.  Returns 0 or -errno.
 */
int data_links_open(struct link *l, const struct wire_donor *told);
/* Fills in their descriptors, as in struct transport. */
int data_links_fds(const struct link *l, struct pollfd *p, int most);
/* Handles an event of @channel; 0 means any of them. */
void data_links_event(struct link *l, uint32_t channel);
/* Receives a piece on each connection that has more; returns whether there was one. */
bool data_links_more(struct link *l);
/* Sends queued frames. */
void data_links_flush(struct link *l);
void data_links_close(struct link *l);

/* Returns the channel of a transfer at @offset of a mapping: 0, or a data connection. */
uint32_t data_channel(const struct link *l, const struct mapping *m, uint32_t offset);

#endif
