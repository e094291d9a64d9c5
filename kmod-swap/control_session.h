/* SPDX-License-Identifier: GPL-2.0-only */
/* Commands about sessions. */
#ifndef EBB_CONTROL_SESSION_H
#define EBB_CONTROL_SESSION_H

struct genl_info;
struct sk_buff;

int ebb_do_connect(struct sk_buff *skb, struct genl_info *info);
int ebb_do_disconnect(struct sk_buff *skb, struct genl_info *info);
int ebb_do_drain(struct sk_buff *skb, struct genl_info *info);

#endif
