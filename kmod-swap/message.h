/* SPDX-License-Identifier: GPL-2.0-only */
/* Frames of a session, with their MACs, on its first queue pair. */
#ifndef EBB_MESSAGE_H
#define EBB_MESSAGE_H

#include "session.h"

/*
 * Allocates the session's messages and posts the receives; @take gets each frame of the donor.  On
 * failure ebb_messages_free() releases those that exist.
 */
int ebb_messages_init(struct ebb_session *s, ebb_take_fn *take);
void ebb_messages_free(struct ebb_session *s);
/* Sends the frame of @length bytes in @m, plus its MAC. */
int ebb_message_send(struct ebb_session *s, struct ebb_message *m, u32 length);

#endif
