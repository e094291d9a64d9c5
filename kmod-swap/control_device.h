/* SPDX-License-Identifier: GPL-2.0-only */
/* Commands about a device and its classes. */
#ifndef EBB_CONTROL_DEVICE_H
#define EBB_CONTROL_DEVICE_H

struct genl_info;
struct sk_buff;

int ebb_do_create(struct sk_buff *skb, struct genl_info *info);
int ebb_do_destroy(struct sk_buff *skb, struct genl_info *info);
int ebb_do_class(struct sk_buff *skb, struct genl_info *info);
int ebb_do_assign(struct sk_buff *skb, struct genl_info *info);

#endif
