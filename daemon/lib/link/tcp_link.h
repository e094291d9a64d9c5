/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The data connections to a donor whose control connection is TLS: READ and WRITE go
 * there, their headers marked (lib/wire/session.h).  They are opened when HELLO has named a
 * session, and end with the control connection; when one breaks, the donor is lost.
 *
 *	NONE --open--> CONNECTING --> JOINING --> UP
 *
 * There are options.connections of them.  Requests are spread by where they are on the
 * device.  Between connections there is no order, and none is needed: a request is begun
 * when those that it overlaps have ended (request.h).
 */
#ifndef EBB_DATA_LINK_H
#define EBB_DATA_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/wire/session.h"
#include "lib/wire/stream.h"

struct donor;
struct swapd;

/* More would bring nothing: one thread at either end has to do with all of them. */
#define DATA_LINKS 8

enum data_link_state { LINK_NONE, LINK_CONNECTING, LINK_JOINING, LINK_UP };

struct data_link {
	uint8_t state; /* enum data_link_state */
	bool watched_for_write;
	uint8_t number; /* of the session's, from 0 on */
	int fd;
	struct wire_join join;
	uint8_t key[SESSION_KEY];
	struct stream_rx rx;
	struct stream_tx tx;
	struct session_guard in, out;
	uint8_t small[WIRE_JOIN_SIZE]; /* payloads that are not pages */
};

/* Makes the buffers of the one that is @number, for @queue frames to send. */
int data_link_init(struct data_link *l, uint8_t number, uint32_t queue);
void data_link_free(struct data_link *l);

/* The rest is the loop thread's. */

/* Opens @d's for @session; donor_ready() comes when all are up.  0 or -errno. */
int data_links_open(struct swapd *s, struct donor *d, uint64_t session);

/* Something happened on @d's @channel, or, with 0, perhaps on one of them. */
void data_links_event(struct swapd *s, struct donor *d, uint32_t channel);

/* Sends what is queued. */
void data_links_flush(struct swapd *s, struct donor *d);

void data_link_close(struct data_link *l);

/* The channel that a request goes by which begins at @page of the device: 0, or a link's. */
uint32_t data_channel(const struct swapd *s, const struct donor *d, uint32_t page);

#endif
