/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A socket to the kernel module ebb_swap, for one thread.  A call lasts as long as the module
 * works, more than ten seconds if a donor is slow, and cannot be interrupted.
 */
#ifndef EBB_KMOD_NETLINK_H
#define EBB_KMOD_NETLINK_H

#include "decode.h"
#include "lib/base/error.h"

struct kmod_link;

/*
 * Fails with -ENOENT (EXIT_UNSUPPORTED) if the module is not loaded, -EPERM without CAP_SYS_ADMIN.
 * The caller owns *@out and calls kmod_close().
 */
int kmod_open(struct kmod_link **out, struct error *e);
void kmod_close(struct kmod_link **l);
/* Limits the wait for an answer to @ms [15 minutes].  After -ETIMEDOUT: kmod_close(). */
void kmod_limit(struct kmod_link *l, uint32_t ms);

/* Subscribes to events, which kmod_event() reads. */
int kmod_listen(struct kmod_link *l, struct error *e);
int kmod_fd(const struct kmod_link *l); /* readable if there is an event */
/*
 * Reads the next event: 1, 0 if there is none now, -ENOBUFS if some were lost, -errno.  Requires a
 * link that has subscribed and makes no calls.
 */
int kmod_event(struct kmod_link *l, struct kmod_event *event);

struct kmod_settings {
	uint32_t device;    /* N of /dev/ebbN */
	uint64_t size, slab;
	const char *backup; /* path of a block device, or NULL */
	uint32_t copies;    /* enum ebb_swap_copy; 0: a donor, and the backup if there is one */
	const uint8_t *key; /* EBB_SWAP_KEY bytes */
	uint8_t key_number[EBB_SWAP_KEY_NUMBER];
	bool seal;          /* pages of class 0 */
};

struct kmod_peer {
	const char *ip;
	uint16_t port;
	/* EBB_SWAP_KEY bytes, or NULL: the device's, which modules before version 3 always use. */
	const uint8_t *key;
	uint8_t key_number[EBB_SWAP_KEY_NUMBER];
};

/*
 * The module's commands.  Errors begin with "/dev/ebbN: " and have the module's text.  @session
 * may be KMOD_NO_SESSION where the command has it optional.
 */
int kmod_create(struct kmod_link *l, const struct kmod_settings *s, struct error *e);
int kmod_destroy(struct kmod_link *l, uint32_t device, struct error *e);
/* -EACCES: the donor refuses; -ENOKEY: it does not know peer->key. */
int kmod_connect(struct kmod_link *l, uint32_t device, uint32_t class,
		 const struct kmod_peer *peer, uint32_t *session, struct error *e);
int kmod_disconnect(struct kmod_link *l, uint32_t device, uint32_t session, struct error *e);
/* Maps @slab, or the second donor of a slab with two copies. */
int kmod_map(struct kmod_link *l, uint32_t device, uint32_t slab, uint32_t session,
	     struct error *e);
/* @from: session that the slab leaves. */
int kmod_migrate(struct kmod_link *l, uint32_t device, uint32_t class, uint32_t slab,
		 uint32_t from, uint32_t session, struct error *e);
/*
 * Excludes @session from new placements.  A module of version 1 also moves those slabs that it
 * can to @target; KMOD_NO_SESSION: to the backup.
 */
int kmod_drain(struct kmod_link *l, uint32_t device, uint32_t session, uint32_t target,
	       struct error *e);

/* Ends the exclusion of a session with wrong pages. */
int kmod_trust(struct kmod_link *l, uint32_t device, uint32_t session, struct error *e);

#define KMOD_NO_CLASS 0xffffffffu
enum kmod_seal { KMOD_PLAIN, KMOD_SEALED };
/*
 * Creates @class, whose pages go to @copies, enum ebb_swap_copy, or changes its copies.  -EEXIST
 * if @seal differs from that of the existing class.
 */
int kmod_class(struct kmod_link *l, uint32_t device, uint32_t class, uint32_t copies,
	       enum kmod_seal seal, struct error *e);
/* Assigns @class to pages that @cgroup writes from now on; KMOD_NO_CLASS: its parent's class. */
int kmod_assign(struct kmod_link *l, uint32_t device, uint64_t cgroup, uint32_t class,
		struct error *e);

/* Returns -ENODEV if the module has no such device. */
int kmod_status(struct kmod_link *l, uint32_t device, struct kmod_device *out, struct error *e);

/* Reads the slabs of @class.  The caller frees *@out, which has *@count elements. */
int kmod_slabs(struct kmod_link *l, const struct kmod_device *device, uint32_t class,
	       struct ebb_swap_slab **out, uint32_t *count, struct error *e);

#endif
