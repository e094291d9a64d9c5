/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Runs arbitrary bytes through the decoder of far memory's frames and, as a donor does, on to a
 * pool with two members.  The first byte says which side receives, and whether the members also map
 * the arena: then a WRITE that the donor refuses changes the table behind its back.  At the end
 * both members are dead, and their recovery must end.
 */
#ifndef FUZZ_FAR_H
#define FUZZ_FAR_H

#include "protocol.h"

enum { FUZZ_FAR_DONOR = 0, FUZZ_FAR_MEMBER = 1, FUZZ_FAR_SIDE = 1, FUZZ_FAR_MAPPED = 2 };

/* As those of protocol.h; .loans are arenas, .accesses those that the donor permitted. */
int fuzz_far_set_up(struct error *e);
void fuzz_far_tear_down(void);
void fuzz_far(const uint8_t *data, size_t size, struct fuzz_protocol_result *result);
void fuzz_far_bytes(uint64_t seed, uint8_t *data, size_t size);

#endif
