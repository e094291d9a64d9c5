// SPDX-License-Identifier: GPL-2.0-only
#include "netlink.h"

DEFINE_MUTEX(ebb_control_lock);
LIST_HEAD(ebb_devices);

static struct genl_family *registered;

struct ebb_device *ebb_device_find(u32 index)
{
	struct ebb_device *d;

	list_for_each_entry(d, &ebb_devices, node)
		if (d->index == index)
			return d;
	return NULL;
}

int ebb_refuse_why(struct genl_info *info, int error, const char *why)
{
	if (info->extack && why)
		info->extack->_msg = why;
	return error;
}

int ebb_netlink_register(struct genl_family *family)
{
	registered = family;
	return genl_register_family(family);
}

void ebb_netlink_unregister(void)
{
	genl_unregister_family(registered);
}

const struct genl_family *ebb_netlink_family(void)
{
	return registered;
}

int ebb_netlink_permitted(struct sk_buff *skb, struct netlink_ext_ack *extack)
{
	if (netlink_capable(skb, CAP_SYS_ADMIN))
		return 0;
	NL_SET_ERR_MSG(extack, "ebb_swap: needs CAP_SYS_ADMIN");
	return -EPERM;
}

int ebb_netlink_begin(struct sk_buff *skb, struct genl_info *info, struct ebb_device **device)
{
	int r = ebb_netlink_permitted(skb, info->extack);

	if (r)
		return r;
	if (!info->attrs[EBB_SWAP_A_DEVICE])
		return ebb_refuse(info, EBB_SWAP_A_DEVICE, -EINVAL, "device: not given");
	mutex_lock(&ebb_control_lock);
	*device = ebb_device_find(nla_get_u32(info->attrs[EBB_SWAP_A_DEVICE]));
	if (*device)
		return 0;
	mutex_unlock(&ebb_control_lock);
	return ebb_refuse(info, EBB_SWAP_A_DEVICE, -ENODEV, "device: no such device");
}

void ebb_netlink_end(void)
{
	mutex_unlock(&ebb_control_lock);
}

u32 ebb_netlink_u32(struct genl_info *info, int attr, u32 otherwise)
{
	return info->attrs[attr] ? nla_get_u32(info->attrs[attr]) : otherwise;
}

int ebb_netlink_session(struct genl_info *info, struct ebb_device *d, int attr,
			struct ebb_session **out)
{
	struct ebb_session *s;

	if (!info->attrs[attr])
		return ebb_refuse(info, attr, -EINVAL, "session: not given");
	list_for_each_entry(s, &d->sessions, node) {
		if (s->index == nla_get_u32(info->attrs[attr])) {
			*out = s;
			return 0;
		}
	}
	return ebb_refuse(info, attr, -ENOENT, "session: no such session");
}

int ebb_netlink_slab(struct genl_info *info, struct ebb_device *d, struct ebb_slab **out)
{
	struct nlattr *attr = info->attrs[EBB_SWAP_A_SLAB];

	if (!attr)
		return ebb_refuse(info, EBB_SWAP_A_SLAB, -EINVAL, "slab: not given");
	if (nla_get_u32(attr) >= d->slab_count)
		return ebb_refuse(info, EBB_SWAP_A_SLAB, -ERANGE, "slab: beyond the device");
	*out = &d->slabs[nla_get_u32(attr)];
	return 0;
}

int ebb_netlink_class(struct genl_info *info, struct ebb_device *d, u32 *class)
{
	*class = ebb_netlink_u32(info, EBB_SWAP_A_CLASS, 0);
	if (*class >= EBB_SWAP_CLASSES)
		return ebb_refuse(info, EBB_SWAP_A_CLASS, -ERANGE, "class: must be 0 to 7");
	if (!ebb_slab_hold(d, d->slabs, *class))
		return ebb_refuse(info, EBB_SWAP_A_CLASS, -ENOENT,
				  "class: no such class");
	return 0;
}

int ebb_netlink_check_copies(struct genl_info *info, u32 copies, bool backup)
{
	if (!copies || copies & ~(EBB_SWAP_DONOR | EBB_SWAP_SECOND | EBB_SWAP_BACKUP))
		return ebb_refuse(info, EBB_SWAP_A_COPIES, -EINVAL,
				  "copies: must be donor, backup or both");
	if (copies & EBB_SWAP_SECOND && !(copies & EBB_SWAP_DONOR))
		return ebb_refuse(info, EBB_SWAP_A_COPIES, -EINVAL,
				  "copies: a second donor without a first");
	if (copies & EBB_SWAP_BACKUP && !backup)
		return ebb_refuse(info, EBB_SWAP_A_COPIES, -EINVAL,
				  "copies: the device has no backup");
	return 0;
}

int ebb_netlink_check_donor_copies(struct genl_info *info, u32 copies, bool backup)
{
	if (!(copies & EBB_SWAP_DONOR))
		return ebb_refuse(info, EBB_SWAP_A_COPIES, -EINVAL,
				  "copies: must include the donor");
	return ebb_netlink_check_copies(info, copies, backup);
}

int ebb_netlink_reply(struct genl_info *info, int command, int attr, u32 number)
{
	struct sk_buff *skb = genlmsg_new(nla_total_size(sizeof(u32)), GFP_KERNEL);
	void *head;

	if (!skb)
		return -ENOMEM;
	head = genlmsg_put_reply(skb, info, registered, 0, command);
	if (!head || nla_put_u32(skb, attr, number)) {
		nlmsg_free(skb);
		return -EMSGSIZE;
	}
	genlmsg_end(skb, head);
	return genlmsg_reply(skb, info);
}
