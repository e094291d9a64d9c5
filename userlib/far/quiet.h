/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * TLS without SIGPIPE.  OpenSSL writes to a socket by write(2), which raises SIGPIPE when the donor
 * has closed the connection.  The disposition of that signal is the program's: while OpenSSL runs,
 * this thread blocks it, and discards the one that it raised.
 */
#ifndef EBBFAR_QUIET_H
#define EBBFAR_QUIET_H

#include "lib/wire/stream.h"
#include "lib/wire/tls.h"

/* As tls_io. */
extern const struct stream_io quiet_io;

/* As tls_handshake(). */
int quiet_handshake(struct tls *t);

#endif
