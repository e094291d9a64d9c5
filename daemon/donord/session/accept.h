/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Listening, accepting, and which connection gets a place. */
#ifndef EBB_ACCEPT_H
#define EBB_ACCEPT_H

#include "lib/wire/address.h"
#include "session.h"

#define PLACES 4
/* Connections accepted from one socket in a turn: about 1 ms. */
#define CONNECTION_ACCEPTS 64

/* The sockets that listen. */
struct places {
	struct sessions *sessions;
	struct address a[PLACES];
	int fds[PLACES];
	int count;
	uint64_t first_key; /* place i is this and i in the sessions' epoll set */
	bool paused;
};

/* Listens at @a too, which is updated with the port. */
int places_listen(struct places *p, struct address *a, struct error *e);
void places_free(struct places *p);

/* Accepts what waits at place @i, at most CONNECTION_ACCEPTS. */
void places_accept(struct places *p, int i);
/* Accepts again after an error that paused it. */
void places_resume(struct places *p);

/* Takes the connected socket @fd, which is closed on failure, as if it had been accepted. */
struct connection *connection_adopt(struct sessions *s, int fd,
				    const struct sockaddr_storage *peer);

#endif
