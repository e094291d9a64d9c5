/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The same for what is there with keys (docs/protocol.md, "Authentication").  The first
 * byte says which:
 *
 *	FUZZ_LINK   a data connection's frames with their marks and, in version 4, trailers,
 *		    as the rest of the input wants them made, spoilt, left out and repeated.
 *		    What is taken must be what was sent, in its order, up to the first that was
 *		    spoilt.
 *	FUZZ_JOIN   JOINs to a session: taken only with its MAC, and a number only once.
 *	FUZZ_HELLO  bytes for a TLS handshake, of a donor or a borrower: none completes.
 *	FUZZ_MIDDLE a real handshake and frames after it, with bytes changed on the way:
 *		    what arrives is what was sent, or nothing does.
 */
#ifndef EBB_FUZZ_SECURE_H
#define EBB_FUZZ_SECURE_H

#include "protocol.h"

enum fuzz_secure_kind { FUZZ_LINK, FUZZ_JOIN, FUZZ_HELLO, FUZZ_MIDDLE, FUZZ_SECURE_KINDS };

/* frames: taken; loans: sessions or connections that came about; end: how the last ended. */
void fuzz_secure(const uint8_t *data, size_t size, struct fuzz_protocol_result *result);
void fuzz_secure_bytes(uint64_t seed, uint8_t *data, size_t size);
int fuzz_secure_set_up(struct error *e);
void fuzz_secure_tear_down(void);

static inline enum fuzz_secure_kind fuzz_secure_kind(uint8_t first)
{
	return first % FUZZ_SECURE_KINDS;
}

#endif
