/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Lines over a stream socket, in pieces: neither function waits for the peer. */
#ifndef EBB_LINE_H
#define EBB_LINE_H

#include <stddef.h>
#include <stdlib.h>

struct line {
	char *text; /* owned, ends with a NUL */
	size_t length, size;
};

static inline void line_free(struct line *l)
{
	free(l->text);
	*l = (struct line){ .length = 0 };
}

/*
 * Receives what has arrived.  Returns 1 when @l has a whole line, 0 when more is to come,
 * -EMSGSIZE beyond @most bytes, -ECONNRESET at the end of the stream, or -errno.
 */
int line_receive(int fd, size_t most, struct line *l);

/*
 * Sends @text from byte *@sent of @length on, then a newline.  Returns 1 when all is sent, 0 when
 * the peer must read first, or -errno.
 */
int line_send(int fd, const char *text, size_t length, size_t *sent);

#endif
