/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Runs a session of the kernel module (kmod-swap/lifecycle.c and below) with a donor that the
 * bytes describe: its answers to connection requests and calls, valid, altered, repeated, late or
 * missing; its EVICTs; failures of connections, work requests and memory; and the order in which
 * deferred work runs.
 *
 * The module must take exactly the frames that docs/protocol.md allows, end the session at any
 * other, answer each EVICT once and in order, return only grants that the donor has sent, never
 * wait for ever nor sleep under a spinlock, and free everything.
 */
#ifndef FUZZ_KMOD_H
#define FUZZ_KMOD_H

#include "protocol.h"

/*
 * frames: accepted; loans: slabs mapped; accesses: EVICTs answered, sum: of those with "no room";
 * end: negative enum ebb_swap_cause.
 */
void fuzz_kmod(const uint8_t *data, size_t size, struct fuzz_protocol_result *result);
/*
 * Opens a session with @slabs slabs, breaks its connection and resumes it; the donor answers all
 * requests each time that the module waits.  Returns how often that is, 0 = never resumed; sum: the
 * loans confirmed.
 */
uint32_t fuzz_kmod_resume(uint32_t slabs, struct fuzz_protocol_result *result);
void fuzz_kmod_bytes(uint64_t seed, uint8_t *data, size_t size);

#endif
