/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Decodes netlink messages of the kernel module ebb_swap.  The functions are pure, read one message
 * and nothing outside it, whatever its bytes, and set absent values to 0.  include/ebb/swap.h has
 * the units.
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
/* Limit of slabs of a device of the module. */
#define KMOD_SLABS_MAX (1u << 20)

struct kmod_session {
	uint32_t number, state; /* enum ebb_swap_session_state */
	uint32_t class;         /* of its slabs */
	bool draining;
	uint32_t bad_pages;     /* that its donor returned other than they were written */
	uint32_t away;          /* ms since it went away */
	char reason[KMOD_REASON]; /* reason of its end or absence */
	char ip[KMOD_IP];
	uint16_t port;
	uint64_t free;          /* bytes that its donor could lend, as of its last reply */
};

/* Returns whether slabs must leave @s: its donor is drained, or in quarantine. */
static inline bool kmod_session_leaving(const struct kmod_session *s)
{
	return s->draining || s->bad_pages;
}

/* Returns whether @session has the slab, as a replica or as the source of a migration. */
static inline bool kmod_slab_is_at(const struct ebb_swap_slab *slab, uint32_t session)
{
	return slab->session == session || slab->second == session || slab->source == session;
}

struct kmod_device {
	uint32_t number;        /* N of /dev/ebbN */
	uint64_t size, slab;    /* bytes */
	uint64_t pool, pool_used; /* bytes */
	uint32_t deadline;      /* ms */
	char backup[EBB_SWAP_PATH];
	char key[2 * EBB_SWAP_KEY_NUMBER + 1]; /* fingerprint in hexadecimal digits; "": no key */
	uint64_t count[EBB_SWAP_COUNTS];
	struct kmod_session session[EBB_SWAP_SESSIONS];
	uint32_t sessions;
	/* enum ebb_swap_copy of each class: destinations of its pages; 0: no such class. */
	uint32_t copies[EBB_SWAP_CLASSES];
	uint32_t sealed;        /* 1 << class */
	struct { uint64_t id; uint32_t class; } cgroup[EBB_SWAP_CGROUPS];
	uint32_t cgroups;
};

struct kmod_event {
	uint32_t device, kind;  /* enum ebb_swap_event */
	uint32_t session, slab; /* KMOD_NO_SLAB: none */
	char reason[KMOD_REASON];
};

struct kmod_family {
	uint16_t id;
	uint32_t version;       /* EBB_SWAP_VERSION of the module */
	uint32_t events;        /* multicast group; 0: none */
};

/* Result of a call: 0 or -errno, and the text of the extended acknowledgement, if any. */
struct kmod_end {
	int result;
	char text[128];
};

/* Return 0, or -EBADMSG for another message or one that lacks its subject. */
int kmod_decode_device(const struct nlmsghdr *h, struct kmod_device *d);
int kmod_decode_event(const struct nlmsghdr *h, struct kmod_event *event);
int kmod_decode_family(const struct nlmsghdr *h, struct kmod_family *f);

/* Reads the u32 @attribute of a reply to @command. */
int kmod_decode_number(const struct nlmsghdr *h, uint8_t command, uint16_t attribute,
		       uint32_t *number);

/*
 * Reads a part of a device's slab table into @slabs, which has room for @count and holds the first
 * *@known.  Returns -EBADMSG unless the part continues at *@known.
 */
int kmod_decode_slabs(const struct nlmsghdr *h, struct ebb_swap_slab *slabs, uint32_t count,
		      uint32_t *known);

/* Reads NLMSG_ERROR or NLMSG_DONE. */
int kmod_decode_end(const struct nlmsghdr *h, struct kmod_end *end);

#endif
