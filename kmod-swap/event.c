// SPDX-License-Identifier: GPL-2.0-only
#include "event.h"
#include "netlink.h"

void ebb_event_send(const struct ebb_device *d, u32 event, u32 session, u32 slab,
		    u32 cause, const char *reason)
{
	const struct genl_family *family = ebb_netlink_family();
	struct sk_buff *skb;
	void *head;

	if (!ebb_event_has_listeners())
		return;
	skb = genlmsg_new(NLMSG_GOODSIZE, GFP_NOWAIT);
	if (!skb)
		return;
	head = genlmsg_put(skb, 0, 0, family, 0, EBB_SWAP_CMD_EVENT);
	if (!head || nla_put_u32(skb, EBB_SWAP_A_DEVICE, d->index) ||
	    nla_put_u32(skb, EBB_SWAP_A_EVENT, event) ||
	    nla_put_u32(skb, EBB_SWAP_A_SESSION, session) ||
	    (slab != EBB_NO_SLAB && nla_put_u32(skb, EBB_SWAP_A_SLAB, slab)) ||
	    (cause && nla_put_u32(skb, EBB_SWAP_A_CAUSE, cause)) ||
	    (reason && nla_put_string(skb, EBB_SWAP_A_REASON, reason))) {
		nlmsg_free(skb);
		return;
	}
	genlmsg_end(skb, head);
	genlmsg_multicast(family, skb, 0, 0, GFP_NOWAIT);
}

bool ebb_event_has_listeners(void)
{
	return genl_has_listeners(ebb_netlink_family(), &init_net, 0);
}
