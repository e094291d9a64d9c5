/* SPDX-License-Identifier: GPL-2.0-only */
/* Connections of a session: a queue pair for each hardware queue of the device. */
#ifndef EBB_CONNECTION_H
#define EBB_CONNECTION_H

#include "session.h"

/* Connects, and opens or resumes the session by HELLO.  After a failure, flush and free. */
int ebb_connections_open(struct ebb_session *s, const char **why);
/* Flushes all work requests; no message arrives afterwards. */
void ebb_connections_flush(struct ebb_session *s);
/* Frees all that the session has of the network device; it can connect again. */
void ebb_connections_free(struct ebb_session *s);

#endif
