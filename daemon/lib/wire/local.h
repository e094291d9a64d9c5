/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Addresses and sockets of the shm transport: "unix:/run/ebb/donor.sock". */
#ifndef EBB_LOCAL_H
#define EBB_LOCAL_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/error.h"
#include "socket_address.h"

/* Returns whether @text has the form of a path, not of a host. */
bool local_is(const char *text);

/* Accepts "unix:" with an absolute path that fits a socket address; else -EINVAL. */
int local_parse(const char *text, const char *what, struct address *a, struct error *e);

/*
 * Listens on @a, for its own user and root only (mode 0600), and returns the
 * non-blocking fd.  Makes its directory.  Replaces a socket that no process answers; -EADDRINUSE
 * when one does.
 */
int local_listen(const struct address *a, struct error *e);

int local_connect(const struct address *a);

/* Returns the path to unlink(2) after listening. */
const char *local_path(const struct address *a);

/* Returns whether the peer of @fd is a process of our own user or root. */
bool local_peer_trusted(int fd);

#endif
