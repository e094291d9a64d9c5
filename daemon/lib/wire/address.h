/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where a donor listens.  The form of the text chooses the transport: "HOST:PORT"
 * is tcp (tcp.h), "unix:/PATH" is shm (local.h), "rdma:HOST:PORT" is rdma: the same
 * place as without, where the donor tells at which port it takes RDMA.
 */
#ifndef EBB_ADDRESS_H
#define EBB_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/error.h"
#include "socket_address.h"

/* -EINVAL names @what and the accepted forms; -ENOENT: the host has no address. */
int address_parse(const char *text, const char *what, struct address *a, struct error *e);

/*
 * The first @most places that @text means now, in the order they are to be tried; how
 * many, -EINVAL or -ENOENT.  A name is asked for, which may take as long as
 * resolv.conf(5) allows.
 */
int address_resolve(const char *text, struct address *found, int most);

/* Whether @text is a name, which may mean something else tomorrow. */
bool address_is_name(const char *text);

/*
 * Checks @text by its form alone, without asking for a name, and writes it with
 * its port to @to of @size bytes, so that one place has one text.  -EINVAL names
 * @what and the accepted forms.
 */
int address_check(const char *text, const char *what, char *to, size_t size, struct error *e);

/* Whether both are one place, whatever it was called. */
bool address_same(const struct address *a, const struct address *b);

/* On this machine, through a unix socket: slabs are handed over as file descriptors. */
bool address_is_local(const struct address *a);

/* Pages are to go there by RDMA; all else as by tcp. */
bool address_is_rdma(const struct address *a);

/* A listening, non-blocking fd; errors as tcp_listen() and local_listen(). */
int address_listen(struct address *a, enum address_reach reach, struct error *e);

/* Starts connecting, non-blocking; returns the fd or -errno. */
int address_connect(const struct address *a);

#endif
