/* SPDX-License-Identifier: GPL-2.0-only */
/* Shared by commands of the generic netlink family: devices, arguments, errors, replies. */
#ifndef EBB_NETLINK_H
#define EBB_NETLINK_H

#include <net/genetlink.h>

#include "session.h"

extern struct mutex ebb_devices_lock; /* held for moments: a device's commands have its own lock */
extern struct list_head ebb_devices;

/* Returns NULL if there is no device with this index; ebb_devices_lock. */
struct ebb_device *ebb_device_find(u32 index);

/* Reports @error for @attr or for its absence; the text begins with the field's name. */
#define ebb_refuse(info, attr, error, text) ({ \
	if ((info)->attrs[attr]) \
		NL_SET_ERR_MSG_ATTR((info)->extack, (info)->attrs[attr], text); \
	else \
		NL_SET_ERR_MSG((info)->extack, text); \
	error; \
})

/* As ebb_refuse(), for static texts that are not literals; @why may be NULL. */
int ebb_refuse_why(struct genl_info *info, int error, const char *why);

/* The family that all files send messages for, once it is registered. */
int ebb_netlink_register(struct genl_family *family);
/* Waits for deferred commands. */
void ebb_netlink_unregister(void);
const struct genl_family *ebb_netlink_family(void);

/* Returns -EPERM without CAP_SYS_ADMIN; only while the message is being sent. */
int ebb_netlink_permitted(struct sk_buff *skb, struct netlink_ext_ack *extack);

/*
 * Has a work queue run the command, which answers when it is done.  A command that waits for a
 * donor must not hold genetlink's cb_lock, which every family's commands take.
 */
int ebb_netlink_defer(struct sk_buff *skb, struct genl_info *info,
		      int (*run)(struct sk_buff *skb, struct genl_info *info));

/* Finds the device and takes device->control; ebb_netlink_end() follows if 0 is returned. */
int ebb_netlink_begin(struct genl_info *info, struct ebb_device **device);
void ebb_netlink_end(struct ebb_device *device);

/* Returns an attribute's u32, or @otherwise if it is absent. */
u32 ebb_netlink_u32(struct genl_info *info, int attr, u32 otherwise);
/* Finds the session that @attr names. */
int ebb_netlink_session(struct genl_info *info, struct ebb_device *d, int attr,
			struct ebb_session **out);
int ebb_netlink_slab(struct genl_info *info, struct ebb_device *d, struct ebb_slab **out);
/* Reads the class attribute; 0 if it is absent. */
int ebb_netlink_class(struct genl_info *info, struct ebb_device *d, u32 *class);

/* Checks @copies (enum ebb_swap_copy) of a device with or without a backup. */
int ebb_netlink_check_copies(struct genl_info *info, u32 copies, bool backup);
/* As above, and requires a donor. */
int ebb_netlink_check_donor_copies(struct genl_info *info, u32 copies, bool backup);

/* Replies with one number. */
int ebb_netlink_reply(struct genl_info *info, int command, int attr, u32 number);

#endif
