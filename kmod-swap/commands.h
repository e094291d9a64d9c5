/* SPDX-License-Identifier: GPL-2.0-only */
/* Commands of the generic netlink family "ebb_swap", documented in ebb/swap.h. */
#ifndef EBB_COMMANDS_H
#define EBB_COMMANDS_H

struct genl_info;
struct netlink_callback;
struct sk_buff;

/* control.c: registers the family; undone by ebb_netlink_unregister(). */
int ebb_control_init(void);

/* control_device.c */
int ebb_do_create(struct sk_buff *skb, struct genl_info *info);
int ebb_do_destroy(struct sk_buff *skb, struct genl_info *info);
int ebb_do_class(struct sk_buff *skb, struct genl_info *info);
int ebb_do_assign(struct sk_buff *skb, struct genl_info *info);

/* control_session.c */
int ebb_do_connect(struct sk_buff *skb, struct genl_info *info);
int ebb_do_disconnect(struct sk_buff *skb, struct genl_info *info);
int ebb_do_drain(struct sk_buff *skb, struct genl_info *info);
int ebb_do_trust(struct sk_buff *skb, struct genl_info *info);

/* control_slab.c */
int ebb_do_map(struct sk_buff *skb, struct genl_info *info);
int ebb_do_unmap(struct sk_buff *skb, struct genl_info *info);
int ebb_do_migrate(struct sk_buff *skb, struct genl_info *info);

/* status.c */
int ebb_status_start(struct netlink_callback *cb);
int ebb_status_dump(struct sk_buff *skb, struct netlink_callback *cb);
int ebb_status_dump_slabs(struct sk_buff *skb, struct netlink_callback *cb);

#endif
