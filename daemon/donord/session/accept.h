/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Listens, accepts, and decides which connections get a place. */
#ifndef EBB_ACCEPT_H
#define EBB_ACCEPT_H

#include "lib/wire/address.h"
#include "session.h"

#define PLACES 4
/* Most connections accepted from one socket in a turn: about 1 ms. */
#define CONNECTION_ACCEPTS 64

/* Listening sockets. */
struct places {
	struct sessions *sessions;
	struct address a[PLACES];
	int fds[PLACES];
	int count;
	uint64_t first_key; /* key of place 0 in the sessions' epoll set */
	bool paused;
};

/* Listens at one more address and sets its port in @a. */
int places_listen(struct places *p, struct address *a, struct error *e);
void places_free(struct places *p);

/* Accepts up to CONNECTION_ACCEPTS connections that wait at place @i. */
void places_accept(struct places *p, int i);
/* Accepts again after an error that paused it. */
void places_resume(struct places *p);

/* Adopts the connected socket @fd as if accepted; closes it on failure. */
struct connection *connection_adopt(struct sessions *s, int fd,
				    const struct sockaddr_storage *peer);

#endif
