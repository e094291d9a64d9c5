/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The data connection to a donor whose control connection is TLS: READ and WRITE go
 * there, their headers marked (wire/session.h).  It is opened when HELLO has named a
 * session, and ends with the control connection; when it breaks, the donor is lost.
 *
 *	NONE --open--> CONNECTING --> JOINING --> UP
 */
#ifndef EBB_DATA_LINK_H
#define EBB_DATA_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/session.h"
#include "wire/stream.h"

struct donor;
struct swapd;

enum data_link_state { LINK_NONE, LINK_CONNECTING, LINK_JOINING, LINK_UP };

struct data_link {
	uint8_t state; /* enum data_link_state */
	bool watched_for_write;
	int fd;
	struct wire_join join;
	uint8_t key[SESSION_KEY];
	struct stream_rx rx;
	struct stream_tx tx;
	struct session_guard in, out;
	uint8_t small[WIRE_JOIN_SIZE]; /* payloads that are not pages */
};

/* Makes the buffers, for @queue frames to send. */
int data_link_init(struct data_link *l, uint32_t queue);
void data_link_free(struct data_link *l);

/* The rest is the loop thread's. */

/* Opens @d's for @session; donor_ready() comes when it is up.  0 or -errno. */
int data_link_open(struct swapd *s, struct donor *d, uint64_t session);

/* Something happened on one of @d's descriptors. */
void data_link_event(struct swapd *s, struct donor *d);

/* Sends what is queued. */
void data_link_flush(struct swapd *s, struct donor *d);

void data_link_close(struct data_link *l);

#endif
