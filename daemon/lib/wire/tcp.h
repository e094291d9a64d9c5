/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Addresses and sockets of the TCP transport. */
#ifndef EBB_TCP_H
#define EBB_TCP_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/error.h"
#include "socket_address.h"

/*
 * Parses "HOST:PORT" ("127.0.0.1:7070", "[::1]:7070", "donor3:7070"); the port
 * may be left out (7070).  -EINVAL names @what and the accepted forms;
 * -ENOENT when the host has no address.
 */
int tcp_parse(const char *text, const char *what, struct address *a, struct error *e);

/* address_resolve() and address_is_name() for TCP addresses. */
int tcp_resolve(const char *text, struct address *found, int most);
bool tcp_is_name(const char *text);

/* address_check() for TCP addresses: names consist of letters, digits and ".-_". */
int tcp_check(const char *text, const char *what, char *to, size_t size, struct error *e);

bool tcp_is_loopback(const struct address *a);

/*
 * Listens on @a and returns the non-blocking fd.  -EACCES if @a is farther than
 * @reach: connections from elsewhere need a key.  Port 0 takes a free
 * one, and @a is updated with it.
 */
int tcp_listen(struct address *a, enum address_reach reach, struct error *e);

/* Starts connecting, non-blocking; returns the fd or -errno. */
int tcp_connect(const struct address *a);

/* No Nagle delay, large buffers, keepalive; failures are harmless. */
void tcp_tune(int fd);

#endif
