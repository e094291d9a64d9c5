// SPDX-License-Identifier: GPL-2.0-only
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <net/sock.h>

#include "netlink.h"

DEFINE_MUTEX(ebb_devices_lock);
LIST_HEAD(ebb_devices);

static struct genl_family *registered;
static struct workqueue_struct *commands;

/* A command that a work queue runs. */
struct command {
	struct work_struct work;
	int (*run)(struct sk_buff *skb, struct genl_info *info);
	struct sk_buff *skb;      /* its message, whose data it shares with genetlink's */
	struct genl_info info;
	struct netlink_ext_ack extack;
	struct nlattr *attrs[EBB_SWAP_ATTRIBUTES];
};

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
	int r;

	/* A repair, without which swap-out may hang, needs a rescuer thread. */
	commands = alloc_workqueue("ebb_commands", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	if (!commands)
		return -ENOMEM;
	registered = family;
	r = genl_register_family(family);
	if (r)
		destroy_workqueue(commands);
	return r;
}

void ebb_netlink_unregister(void)
{
	genl_unregister_family(registered);
	destroy_workqueue(commands);
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

/* Answers as netlink_rcv_skb() does. */
static void command_work(struct work_struct *work)
{
	struct command *c = container_of(work, struct command, work);
	struct nlmsghdr *head = (struct nlmsghdr *)c->info.nlhdr;
	struct sock *from = NETLINK_CB(c->skb).sk;
	/* Swap-out may wait for this command: its allocations must not wait for swap-out. */
	unsigned int noio = memalloc_noio_save();
	int r = c->run(c->skb, &c->info);

	if (r || head->nlmsg_flags & NLM_F_ACK)
		netlink_ack(c->skb, head, r, &c->extack);
	memalloc_noio_restore(noio);
	/* It was not charged to the kernel's socket. */
	c->skb->sk = NULL;
	consume_skb(c->skb);
	sock_put(from);
	kfree(c);
}

int ebb_netlink_defer(struct sk_buff *skb, struct genl_info *info,
		      int (*run)(struct sk_buff *skb, struct genl_info *info))
{
	int r = ebb_netlink_permitted(skb, info->extack);
	struct command *c;

	if (r)
		return r;
	c = kzalloc(sizeof(*c), GFP_KERNEL);
	if (!c)
		return -ENOMEM;
	c->skb = netlink_skb_clone(skb, GFP_KERNEL);
	if (!c->skb) {
		kfree(c);
		return -ENOMEM;
	}
	/* netlink_ack() answers from the kernel's socket, and looks at that of the sender. */
	c->skb->sk = skb->sk;
	sock_hold(NETLINK_CB(skb).sk);
	c->run = run;
	c->info = *info;
	c->info.extack = &c->extack;
	c->info.attrs = c->attrs;
	memcpy(c->attrs, info->attrs, sizeof(c->attrs));
	INIT_WORK(&c->work, command_work);
	queue_work(commands, &c->work);
	/* As from netlink_dump_start(): no answer yet. */
	return -EINTR;
}

static void device_put(struct ebb_device *d)
{
	bool last;

	mutex_lock(&ebb_devices_lock);
	last = !--d->users;
	mutex_unlock(&ebb_devices_lock);
	if (!last)
		return;
	kfree(d);
	/* The reference of ebb_device_create(). */
	module_put(THIS_MODULE);
}

int ebb_netlink_begin(struct genl_info *info, struct ebb_device **device)
{
	struct ebb_device *d;

	if (!info->attrs[EBB_SWAP_A_DEVICE])
		return ebb_refuse(info, EBB_SWAP_A_DEVICE, -EINVAL, "device: not given");
	mutex_lock(&ebb_devices_lock);
	d = ebb_device_find(nla_get_u32(info->attrs[EBB_SWAP_A_DEVICE]));
	if (d)
		d->users++;
	mutex_unlock(&ebb_devices_lock);
	if (d) {
		mutex_lock(&d->control);
		*device = d;
		if (!d->removing)
			return 0;
		ebb_netlink_end(d);
	}
	return ebb_refuse(info, EBB_SWAP_A_DEVICE, -ENODEV, "device: no such device");
}

void ebb_netlink_end(struct ebb_device *d)
{
	mutex_unlock(&d->control);
	device_put(d);
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
