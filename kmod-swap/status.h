/* SPDX-License-Identifier: GPL-2.0-only */
/* Dumps of the netlink family: STATUS and SLABS. */
#ifndef EBB_STATUS_H
#define EBB_STATUS_H

struct netlink_callback;
struct sk_buff;

int ebb_status_dump(struct sk_buff *skb, struct netlink_callback *cb);
int ebb_status_dump_slabs(struct sk_buff *skb, struct netlink_callback *cb);

#endif
