/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Runs arbitrary bytes through the protocol's decoder, as a donor or a borrower
 * receives them, and checks what comes out.
 *
 * The first byte says which side receives and what it does with payloads; the
 * rest is the peer's stream.  It is received twice, in pieces of other sizes: the
 * outcome must be the same.  Every frame that is accepted satisfies what wire.h
 * promises, and survives being built and parsed again.  Requests go on to the
 * donor's slabs, which must not let an access leave the slab, the loan or its
 * owner.  The other decoders get the same bytes.
 */
#ifndef FUZZ_PROTOCOL_H
#define FUZZ_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"

#define FUZZ_PROTOCOL_SLABS 3u

enum { FUZZ_DONOR = 0, FUZZ_BORROWER = 1, FUZZ_SIDE = 1, FUZZ_THROW_AWAY = 2, FUZZ_NOT_NOW = 4 };

struct fuzz_protocol_result {
	uint64_t frames;  /* whole and valid */
	uint64_t loans, accesses; /* granted by the donor */
	uint64_t sum;     /* of all frames and payloads */
	int end;          /* -EPROTO, or -ECONNRESET at the end of the bytes */
	char wrong[160];  /* empty if nothing was */
};

/* Once, before the others.  -ENOMEM and the like. */
int fuzz_protocol_set_up(struct error *e);
void fuzz_protocol_tear_down(void);

void fuzz_protocol(const uint8_t *data, size_t size, struct fuzz_protocol_result *result);

/* Frames, some with a wrong byte: @size random bytes would be refused at the first. */
void fuzz_protocol_bytes(uint64_t seed, uint8_t *data, size_t size);

#endif
