/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How pages travel between this machine and a donor.
 *
 * What all transports share is in donor/: the control connection, a stream socket
 * with frames (HELLO, MAP, UNMAP, PING), its deadlines, its end and its
 * reopening, and which donor has which slab.  A transport opens that connection
 * and carries pages:
 *
 *	open --> [map_slab --> submit ... --> unmap_slab] ... --> close
 *
 * A mapped slab is an array of pages to read and to write; whether the donor has
 * to do anything for that (tcp) or not (shm, RDMA) is the transport's affair.
 * One that needs no time is done when submit() returns.  One that does has the
 * slot wait (donor_wait()), under the donor's deadline, and ends that with
 * donor_answered() and engine_donor_reply().
 *
 * All is called by the loop thread.
 */
#ifndef EBB_TRANSPORT_H
#define EBB_TRANSPORT_H

#include <stdint.h>

#include "lib/base/error.h"
#include "lib/wire/address.h"
#include "lib/wire/stream.h"

struct copy;
struct donor;
struct slot;
struct swapd;

enum transport_progress { TRANSPORT_UNDER_WAY, TRANSPORT_DONE };

struct transport {
	const char *name; /* for people: "tcp" */
	uint32_t hello_flags; /* in HELLO, besides those of every transport */

	/*
	 * Whatever it needs of memory and threads, in this process, before the first donor is
	 * reached by it; once, further calls do nothing.  Not in the loop thread once it serves.
	 * May be NULL.
	 */
	int (*prepare)(struct swapd *s, struct error *e);
	/* What is to be polled for @d besides its socket, where epoll is not used; -1 or NULL: nothing. */
	int (*fd)(struct swapd *s, const struct donor *d);

	/*
	 * Starts the control connection and returns its fd, which is the donor's to
	 * poll and to close, or -errno.  Completions that come by other descriptors:
	 * add those to swapd.epoll_fd under a donor_key() each, and see to them in
	 * complete().
	 */
	int (*open)(struct swapd *s, struct donor *d);

	/*
	 * HELLO was answered, with what the donor @told.  0 when pages can go; 1 when
	 * the transport calls donor_ready() as soon as they can; -errno.  May be NULL
	 * where there are no sessions.
	 */
	int (*greeted)(struct swapd *s, struct donor *d, const struct wire_donor *told);

	/*
	 * The donor granted @copy, just so long that the frame in donor->rx is at
	 * hand.  Makes it reachable.  0, -EPROTO when the grant is no good, other
	 * -errno when this machine cannot reach it.  May be NULL.
	 */
	int (*map_slab)(struct swapd *s, struct donor *d, struct copy *copy);
	/* Undoes that; nobody uses @copy any more.  May be NULL. */
	void (*unmap_slab)(struct swapd *s, struct donor *d, struct copy *copy);

	/*
	 * Moves slot->run pages of @slot, from its cursor on, between its payload
	 * and @copy of the slab they lie in, as leg number @leg of @slot.  A request
	 * of kind READ whose pages are all moved at once may have slot->source set
	 * instead of its payload filled.  Cannot fail: a donor that is found gone is
	 * lost by its deadline or by donor_event().
	 */
	enum transport_progress (*submit)(struct swapd *s, struct donor *d, struct slot *slot,
					  int leg, const struct copy *copy, enum wire_op op);
	/*
	 * Something happened on the donor's @channel, which is not the control
	 * connection; 0 = on any, perhaps.  It may have been an earlier donor's of that
	 * entry.  May be NULL where there are none.
	 */
	void (*complete)(struct swapd *s, struct donor *d, uint32_t channel);
	/* Sends what submit() has queued by itself.  May be NULL. */
	void (*flush)(struct swapd *s, struct donor *d);

	/*
	 * A READ or WRITE frame came by the donor's @channel: as the operations of
	 * struct stream_rx_ops.  NULL where pages do not come that way; such a frame
	 * then breaks the protocol.
	 */
	int (*arrived)(struct swapd *s, struct donor *d, uint32_t channel,
		       const struct wire_frame *f, void **payload);
	int (*finished)(struct swapd *s, struct donor *d, uint32_t channel,
			const struct wire_frame *f);

	/*
	 * The donor is lost or let go.  When it returns, nothing that was under way
	 * touches a payload any more.  May be NULL.
	 */
	void (*close)(struct swapd *s, struct donor *d);
};

extern const struct transport transport_tcp; /* "HOST:PORT" */
extern const struct transport transport_shm; /* "unix:/PATH" */
extern const struct transport transport_rdma; /* "rdma:HOST:PORT" */

/* The transport of donors at @a. */
const struct transport *transport_for(const struct address *a);
/* Prepares it; 0 where nothing is needed. */
int transport_prepare(struct swapd *s, const struct address *a, struct error *e);

#endif
