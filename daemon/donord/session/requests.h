/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Serves a connection's frames: HELLO, MAP, READ, WRITE and all others. */
#ifndef EBB_REQUESTS_H
#define EBB_REQUESTS_H

#include "session.h"

/* For struct sessions. */
extern const struct stream_rx_ops requests;
/* For the borrower of each connection. */
extern const struct borrower_ops requests_borrower;
/* For rdma_place_open(), with the sessions as data. */
struct borrower *requests_prove(void *sessions, const struct wire_join *j);
void requests_joined(void *sessions, struct borrower *b);

#endif
