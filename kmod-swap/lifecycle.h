/* SPDX-License-Identifier: GPL-2.0-only */
/* Sessions opened, suspended, resumed and closed; session.h has the states. */
#ifndef EBB_LIFECYCLE_H
#define EBB_LIFECYCLE_H

#include "session.h"

struct ebb_donor {
	struct sockaddr_storage to;
	const u8 *key, *key_number; /* NULL: the device's key */
};

/* On failure *@why is a static text. */
int ebb_session_open(struct ebb_device *device, const struct ebb_donor *donor, u32 class,
		     const struct ebb_session_ops *ops, struct ebb_session **out,
		     const char **why);
/* Ends the session, waits for its I/O in flight, and frees it. */
void ebb_session_free(struct ebb_session *s, const char *reason);

#endif
