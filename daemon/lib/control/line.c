// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "line.h"

static int grow(struct line *l, size_t most)
{
	size_t size = l->size ? l->size * 2 : 4096;
	char *bigger = size <= most ? realloc(l->text, size) : NULL;

	if (!bigger)
		return size > most ? -EMSGSIZE : -ENOMEM;
	l->text = bigger;
	l->size = size;
	return 0;
}

int line_receive(int fd, size_t most, struct line *l)
{
	for (;;) {
		int r = l->length + 1 >= l->size ? grow(l, most) : 0;
		ssize_t n;

		if (r)
			return r;
		n = recv(fd, l->text + l->length, l->size - l->length - 1, MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n <= 0)
			return n ? -errno : -ECONNRESET;
		l->length += (size_t)n;
		l->text[l->length] = '\0';
		if (memchr(l->text + l->length - n, '\n', (size_t)n))
			return 1;
	}
}

int line_send(int fd, const char *text, size_t length, size_t *sent)
{
	while (*sent <= length) {
		/* The newline goes where the NUL is. */
		bool end = *sent == length;
		ssize_t n = send(fd, end ? "\n" : text + *sent, end ? 1 : length - *sent,
				 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n > 0)
			*sent += (size_t)n;
		else if (errno == EAGAIN)
			return 0;
		else if (errno != EINTR)
			return -errno;
	}
	return 1;
}
