/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the kernel module ebb_swap says, out of netlink messages.  Pure functions over
 * one message each: whatever its bytes are, nothing outside it is read, and what it
 * does not say is 0.  include/ebb/swap.h has the units.
 */
#ifndef EBB_KMOD_DECODE_H
#define EBB_KMOD_DECODE_H

#include <linux/netlink.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ebb/swap.h>

#define KMOD_NO_SESSION 0xffffffffu
#define KMOD_NO_SLAB 0xffffffffu
#define KMOD_REASON 96
#define KMOD_IP 48
/* Beyond what the module makes; a table is never larger. */
#define KMOD_SLABS_MAX (1u << 20)

struct kmod_session {
	uint32_t number, state; /* enum ebb_swap_session_state */
	uint32_t class;         /* whose slabs go there */
	bool draining;
	char reason[KMOD_REASON]; /* why it ended */
	char ip[KMOD_IP];
	uint16_t port;
	uint64_t free;          /* bytes that its donor had to lend when last asked */
};

struct kmod_device {
	uint32_t number;        /* N of /dev/ebbN */
	uint64_t size, slab;    /* bytes */
	uint64_t pool, pool_used; /* bytes */
	uint32_t deadline;      /* ms */
	char backup[EBB_SWAP_PATH];
	char key[2 * EBB_SWAP_KEY_NUMBER + 1]; /* fingerprint of what its donors have; "": no key */
	uint64_t count[EBB_SWAP_COUNTS];
	struct kmod_session session[EBB_SWAP_SESSIONS];
	uint32_t sessions;
	/* Of each class: enum ebb_swap_copy, where its pages go; 0: there is none. */
	uint32_t copies[EBB_SWAP_CLASSES];
	uint32_t sealed;        /* 1 << class, of those that are */
	struct { uint64_t id; uint32_t class; } cgroup[EBB_SWAP_CGROUPS];
	uint32_t cgroups;
};

struct kmod_event {
	uint32_t device, kind;  /* enum ebb_swap_event */
	uint32_t session, slab; /* KMOD_NO_SLAB: of none */
	char reason[KMOD_REASON];
};

struct kmod_family {
	uint16_t id;
	uint32_t version;       /* EBB_SWAP_VERSION of the module */
	uint32_t events;        /* the group that the module tells events to; 0: none */
};

/* How a call ended: 0 or -errno, and the extended acknowledgement's words, if any. */
struct kmod_end {
	int result;
	char text[128];
};

/* Each: 0, or -EBADMSG when it is another message, or lacks what names its subject. */
int kmod_decode_device(const struct nlmsghdr *h, struct kmod_device *d);
int kmod_decode_event(const struct nlmsghdr *h, struct kmod_event *event);
int kmod_decode_family(const struct nlmsghdr *h, struct kmod_family *f);

/* The one u32 that a reply to @command has as @attribute. */
int kmod_decode_number(const struct nlmsghdr *h, uint8_t command, uint16_t attribute,
		       uint32_t *number);

/*
 * A part of a device's slab table, into @slabs, which has room for @count: one that is to have
 * no second donor has none.  *@told are
 * those known from the first on: parts come in order, one that does not is -EBADMSG.
 */
int kmod_decode_slabs(const struct nlmsghdr *h, struct ebb_swap_slab *slabs, uint32_t count,
		      uint32_t *told);

/* NLMSG_ERROR or NLMSG_DONE. */
int kmod_decode_end(const struct nlmsghdr *h, struct kmod_end *end);

#endif
