/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where a donor listens.  The form of the text chooses the transport: "HOST:PORT" is tcp (tcp.h),
 * "unix:/PATH" is shm (local.h), "rdma:HOST:PORT" is rdma: connected as "HOST:PORT", where the
 * donor reports its RDMA port.
 */
#ifndef EBB_ADDRESS_H
#define EBB_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/error.h"
#include "socket_address.h"

/* -EINVAL names @what and the accepted forms; -ENOENT: the host has no address. */
int address_parse(const char *text, const char *what, struct address *a, struct error *e);

/* Returns whether @text, HOST:PORT, means all addresses of a machine, which no other can reach. */
bool address_is_any(const char *text);

/*
 * Stores the first @most addresses of @text in the order to try them.  Returns their number,
 * -EINVAL or -ENOENT.  Resolving a name may take as long as resolv.conf(5) allows.
 */
int address_resolve(const char *text, struct address *found, int most);

/* Returns whether @text has a host name, which may resolve to another address later. */
bool address_is_name(const char *text);

/*
 * Checks @text by its form alone, without resolving names, and writes its canonical form, with the
 * port, to @to of @size bytes.  -EINVAL names @what and the accepted forms.
 */
int address_check(const char *text, const char *what, char *to, size_t size, struct error *e);

/* Returns whether both are one address, whatever their texts. */
bool address_same(const struct address *a, const struct address *b);

/* Returns whether @a is a unix socket of this machine: slabs are passed as descriptors. */
bool address_is_local(const struct address *a);

/* Returns @text without "rdma:". */
const char *address_place(const char *text);

/* Returns whether pages move by RDMA; all else is as with tcp. */
bool address_is_rdma(const struct address *a);

/* Returns a listening, non-blocking fd; errors as tcp_listen() and local_listen(). */
int address_listen(struct address *a, enum address_reach reach, struct error *e);

/* Starts connecting, non-blocking; returns the fd or -errno. */
int address_connect(const struct address *a);

#endif
