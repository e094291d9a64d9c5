/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A device of ebb-swapd in the test's own process: the real engine, placement and repair.  Requests
 * come from the test, which counts their answers.  Its donors have no connection: frames to them
 * wait in their queues until the test takes them, pages are transferred at once.
 */
#ifndef EBB_DEVICE_WORLD_H
#define EBB_DEVICE_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "swapd/swapd.h"

#define MS 1000000ull
#define SECOND (1000 * MS)

/* Pages of each donor and of the machine: more than any test needs. */
#define PLENTY (1ull << 40)

struct device_setup {
	uint32_t slabs, slab_pages;
	int donors, replicas;  /* how many */
	uint32_t queue;        /* most frames that wait for a donor */
	uint8_t version;       /* of the protocol */
	bool backup;           /* there is one; its descriptor is never used */
	uint64_t repair_delay; /* ns */
	const struct transport *transport;
};

/* The one device, from device_begin() to device_end(). */
extern struct swapd s;
extern struct shared shared;
extern struct slab *slabs;

/* Requests so far, and those of them that ended with an error. */
extern uint32_t answered, failed;
/* First eight bytes of the last READ. */
extern uint64_t read_word;

/* Its pages arrive at once; donors are as far away as those of tcp. */
extern const struct transport transport_fake;
/* Ends @t at once. */
void transfer_at_once(struct link *l, const struct mapping *m, struct transfer *t);

/* All donors are up, with PLENTY to lend. */
void device_begin(const struct device_setup *setup);
void device_end(void);

/* Lets requests go on until they wait. */
void run(void);
/* Starts a request for @count pages, which are written as "some" and zeroes, and calls run(). */
void request(enum slot_kind kind, uint32_t first, uint32_t count);

/*
 * Takes the frame to @d that has waited longest, turned into its reply with the request's length;
 * returns its payload, which is valid until the queue is used again.  There must be a frame.
 */
const uint8_t *take_frame(struct donor *d, struct wire_frame *reply);

#endif
