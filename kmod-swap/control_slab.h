/* SPDX-License-Identifier: GPL-2.0-only */
/* Commands about slabs. */
#ifndef EBB_CONTROL_SLAB_H
#define EBB_CONTROL_SLAB_H

struct genl_info;
struct sk_buff;

int ebb_do_map(struct sk_buff *skb, struct genl_info *info);
int ebb_do_unmap(struct sk_buff *skb, struct genl_info *info);
int ebb_do_migrate(struct sk_buff *skb, struct genl_info *info);

#endif
