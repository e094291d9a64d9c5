/* SPDX-License-Identifier: GPL-2.0-only */
/* What commands of the generic netlink family share: devices, arguments, refusals, replies. */
#ifndef EBB_NETLINK_H
#define EBB_NETLINK_H

#include <net/genetlink.h>

#include "session.h"

extern struct mutex ebb_control_lock; /* one command at a time */
extern struct list_head ebb_devices;  /* ebb_control_lock */

/* NULL = there is none with this number; ebb_control_lock. */
struct ebb_device *ebb_device_find(u32 index);

/* Refuses for @attr, or for its absence: the text begins with the field's name. */
#define ebb_refuse(info, attr, error, text) ({ \
	if ((info)->attrs[attr]) \
		NL_SET_ERR_MSG_ATTR((info)->extack, (info)->attrs[attr], text); \
	else \
		NL_SET_ERR_MSG((info)->extack, text); \
	error; \
})

/* For static texts that are not literal here; @why may be NULL. */
int ebb_refuse_why(struct genl_info *info, int error, const char *why);

/* The family, once it is registered: messages of any file are of it. */
int ebb_netlink_register(struct genl_family *family);
void ebb_netlink_unregister(void);
const struct genl_family *ebb_netlink_family(void);

/* -EPERM without CAP_SYS_ADMIN. */
int ebb_netlink_permitted(struct sk_buff *skb, struct netlink_ext_ack *extack);

/* Finds the device and takes ebb_control_lock, which the caller releases if 0 is returned. */
int ebb_netlink_begin(struct sk_buff *skb, struct genl_info *info, struct ebb_device **device);
void ebb_netlink_end(void);

/* A u32 that may be absent. */
u32 ebb_netlink_u32(struct genl_info *info, int attr, u32 otherwise);
/* The session that @attr names. */
int ebb_netlink_session(struct genl_info *info, struct ebb_device *d, int attr,
			struct ebb_session **out);
int ebb_netlink_slab(struct genl_info *info, struct ebb_device *d, struct ebb_slab **out);
/* The class that is given, or 0. */
int ebb_netlink_class(struct genl_info *info, struct ebb_device *d, u32 *class);

/* Checks the copies, enum ebb_swap_copy, of a device with a backup or without one. */
int ebb_netlink_check_copies(struct genl_info *info, u32 copies, bool backup);
/* Those of slabs that belong at a donor. */
int ebb_netlink_check_donor_copies(struct genl_info *info, u32 copies, bool backup);

/* Replies with one number. */
int ebb_netlink_reply(struct genl_info *info, int command, int attr, u32 number);

#endif
