// SPDX-License-Identifier: GPL-2.0-only
#include <linux/inet.h>

#include "class.h"
#include "commands.h"
#include "netlink.h"
#include "session.h"
#include "slab.h"
#include "writeback.h"

#define SLABS_A_MESSAGE 64
/* Most bytes in a STATUS of: a device, each of its sessions, each cgroup with a class. */
#define DEVICE_BYTES 2048
#define SESSION_BYTES 256
#define CGROUP_BYTES 32

static int put_session(struct sk_buff *skb, const struct ebb_session *s)
{
	u32 bad_pages = atomic_read(&s->bad_pages), state = atomic_read(&s->state);
	struct nlattr *nest = nla_nest_start(skb, EBB_SWAP_A_SESSION_INFO);
	/* sin6_port has the offset of sin_port. */
	u16 port = ntohs(((const struct sockaddr_in *)&s->to)->sin_port);
	char address[INET6_ADDRSTRLEN + 2];

	if (!nest)
		return -EMSGSIZE;
	snprintf(address, sizeof(address), "%pISc", &s->to);
	if (nla_put_u32(skb, EBB_SWAP_A_SESSION, s->index) ||
	    nla_put_u32(skb, EBB_SWAP_A_STATE, state) ||
	    nla_put_string(skb, EBB_SWAP_A_REASON, READ_ONCE(s->reason)) ||
	    (s->cause && nla_put_u32(skb, EBB_SWAP_A_CAUSE, READ_ONCE(s->cause))) ||
	    nla_put_string(skb, EBB_SWAP_A_ADDRESS, address) ||
	    nla_put_u16(skb, EBB_SWAP_A_PORT, port) ||
	    nla_put_u64_64bit(skb, EBB_SWAP_A_DONOR_FREE, s->donor_free, EBB_SWAP_A_PAD) ||
	    (state == EBB_SWAP_AWAY &&
	     nla_put_u32(skb, EBB_SWAP_A_AWAY,
			 jiffies_to_msecs(jiffies - READ_ONCE(s->away_at)))) ||
	    (bad_pages && nla_put_u32(skb, EBB_SWAP_A_BAD_PAGES, bad_pages)) ||
	    (s->draining && nla_put_flag(skb, EBB_SWAP_A_DRAINING)) ||
	    (s->class && nla_put_u32(skb, EBB_SWAP_A_CLASS, s->class)))
		return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

static int put_counts(struct sk_buff *skb, const struct ebb_device *d)
{
	struct nlattr *nest = nla_nest_start(skb, EBB_SWAP_A_COUNTS);

	if (!nest)
		return -EMSGSIZE;
	for (int i = 1; i < EBB_SWAP_COUNTS; i++) {
		u64 sum = 0;
		int cpu;

		for_each_possible_cpu(cpu)
			sum += per_cpu_ptr(d->counts, cpu)->n[i];
		/* Attribute type 0 is padding. */
		if (nla_put_u64_64bit(skb, i, sum, 0))
			return -EMSGSIZE;
	}
	nla_nest_end(skb, nest);
	return 0;
}

/* Nests the nonzero arguments in @attr. */
static int put_class(struct sk_buff *skb, int attr, u32 class, u64 cgroup, u32 copies,
		     enum ebb_class_kind kind)
{
	struct nlattr *nest = nla_nest_start(skb, attr);

	if (!nest || nla_put_u32(skb, EBB_SWAP_A_CLASS, class) ||
	    (cgroup && nla_put_u64_64bit(skb, EBB_SWAP_A_CGROUP, cgroup, EBB_SWAP_A_PAD)) ||
	    (copies && nla_put_u32(skb, EBB_SWAP_A_COPIES, copies)) ||
	    (kind == CLASS_SEALED && nla_put_flag(skb, EBB_SWAP_A_SEAL)))
		return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

static int put_classes(struct sk_buff *skb, const struct ebb_device *d)
{
	u32 class;
	u64 cgroup;
	int r = 0;

	for (class = 1; !r && class < EBB_SWAP_CLASSES; class++)
		if (d->holds[class])
			r = put_class(skb, EBB_SWAP_A_CLASS_INFO, class, 0, d->class_copies[class],
				      d->sealed & BIT(class) ? CLASS_SEALED : CLASS_OPEN);
	for (u32 i = 0; !r && ebb_class_assigned(d, i, &cgroup, &class); i++)
		r = put_class(skb, EBB_SWAP_A_CGROUP_INFO, class, cgroup, 0, CLASS_OPEN);
	return r;
}

static int put_sessions(struct sk_buff *skb, struct ebb_device *d)
{
	const struct ebb_session *s;
	int r = 0;

	mutex_lock(&d->sessions_lock);
	list_for_each_entry(s, &d->sessions, node)
		if (!r)
			r = put_session(skb, s);
	mutex_unlock(&d->sessions_lock);
	return r;
}

/* Without device->control, which a command holds while it waits for a donor. */
static int put_status(struct sk_buff *skb, struct ebb_device *d)
{
	u64 pool, used;

	ebb_writeback_usage(d, &pool, &used);
	if (nla_put_u32(skb, EBB_SWAP_A_DEVICE, d->index) ||
	    nla_put_u64_64bit(skb, EBB_SWAP_A_SIZE, d->pages << PAGE_SHIFT, EBB_SWAP_A_PAD) ||
	    nla_put_u64_64bit(skb, EBB_SWAP_A_SLAB_SIZE, (u64)d->slab_pages << PAGE_SHIFT,
			      EBB_SWAP_A_PAD) ||
	    nla_put_u32(skb, EBB_SWAP_A_QUEUES, d->queues) ||
	    nla_put_u32(skb, EBB_SWAP_A_DEPTH, d->depth) ||
	    nla_put_u32(skb, EBB_SWAP_A_DEADLINE, d->deadline) ||
	    nla_put_u32(skb, EBB_SWAP_A_COPIES, d->class_copies[0]) ||
	    nla_put_u64_64bit(skb, EBB_SWAP_A_POOL, pool, EBB_SWAP_A_PAD) ||
	    nla_put_u64_64bit(skb, EBB_SWAP_A_POOL_USED, used, EBB_SWAP_A_PAD) ||
	    nla_put(skb, EBB_SWAP_A_KEY_NUMBER, sizeof(d->key.number), d->key.number) ||
	    (d->sealed & BIT(0) && nla_put_flag(skb, EBB_SWAP_A_SEAL)) ||
	    (d->backup.bdev && nla_put_string(skb, EBB_SWAP_A_BACKUP, d->backup_path)))
		return -EMSGSIZE;
	return put_counts(skb, d) ?: put_sessions(skb, d) ?: put_classes(skb, d);
}

static u32 status_bytes(struct ebb_device *d)
{
	u32 n = DEVICE_BYTES, class, i;
	struct list_head *p;
	u64 cgroup;

	mutex_lock(&d->sessions_lock);
	list_for_each(p, &d->sessions)
		n += SESSION_BYTES;
	mutex_unlock(&d->sessions_lock);
	for (i = 0; ebb_class_assigned(d, i, &cgroup, &class); i++)
		n += CGROUP_BYTES;
	return n;
}

/*
 * A device must fit in a message.  Unless its size is known here, netlink allocates 4 KiB for a
 * message, or more if the client has shown a larger buffer and memory is not fragmented.
 */
int ebb_status_start(struct netlink_callback *cb)
{
	struct ebb_device *d;

	mutex_lock(&ebb_devices_lock);
	list_for_each_entry(d, &ebb_devices, node)
		cb->min_dump_alloc = max(cb->min_dump_alloc, status_bytes(d));
	mutex_unlock(&ebb_devices_lock);
	return 0;
}

int ebb_status_dump(struct sk_buff *skb, struct netlink_callback *cb)
{
	int r = ebb_netlink_permitted(cb->skb, cb->extack);

	if (r)
		return r;
	mutex_lock(&ebb_devices_lock);
	/* By index: a device destroyed between two messages must not hide another. */
	for (; cb->args[0] < EBB_SWAP_DEVICES; cb->args[0]++) {
		struct ebb_device *d = ebb_device_find(cb->args[0]);
		void *head;

		if (!d)
			continue;
		head = genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq,
				   ebb_netlink_family(), NLM_F_MULTI, EBB_SWAP_CMD_STATUS);
		if (!head)
			break;
		r = put_status(skb, d);
		if (r) {
			genlmsg_cancel(skb, head);
			break;
		}
		genlmsg_end(skb, head);
	}
	mutex_unlock(&ebb_devices_lock);
	/* A device that does not fit the message must not look like the end of the dump. */
	return skb->len ?: r;
}

static u32 number_of(const struct ebb_place *place)
{
	return place->session ? place->session->index : EBB_NO_SESSION;
}

static void slab_report(struct ebb_device *d, u32 index, u32 class, struct ebb_swap_slab *to)
{
	static const u32 copy[EBB_COPIES] = { EBB_SWAP_DONOR, EBB_SWAP_SECOND };
	struct ebb_slab *slab = &d->slabs[index];
	const struct ebb_hold *hold = ebb_slab_hold(d, slab, class);
	u32 elsewhere = BIT(AT_POOL) | BIT(AT_BACKUP);
	unsigned long flags;

	memset(to, 0, sizeof(*to));
	spin_lock_irqsave(&slab->lock, flags);
	to->session = number_of(&hold->at[AT_DONOR]);
	to->second = number_of(&hold->at[AT_SECOND]);
	to->source = number_of(&hold->at[AT_SOURCE]);
	to->copies = hold->copies;
	if (hold->at[AT_DONOR].session) {
		to->remote = hold->at[AT_DONOR].loan->remote;
		to->generation = hold->at[AT_DONOR].loan->generation;
	}
	to->written = ebb_slab_count_only(d, index, class, WRITTEN, 0);
	/* Pages at several donors count once. */
	for (int at = 0; at < AT_DONORS; elsewhere |= BIT(at++))
		to->donor_only += ebb_slab_count_only(d, index, class, at, elsewhere);
	to->uncopied = ebb_slab_count_lacking(d, index, class, AT_PLACES);
	for (int i = 0; i < EBB_COPIES; i++) {
		if (!hold->at[i].session)
			continue;
		to->recalled |= hold->at[i].recalled ? BIT(i) : 0;
		if (ebb_slab_count_lacking(d, index, class, i))
			to->copies |= EBB_SWAP_LACKING(copy[i]);
	}
	to->reads = slab->reads;
	to->writes = slab->writes;
	spin_unlock_irqrestore(&slab->lock, flags);
}

int ebb_status_dump_slabs(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct nlattr *device = compat_dump_attrs(cb)[EBB_SWAP_A_DEVICE];
	struct nlattr *of = compat_dump_attrs(cb)[EBB_SWAP_A_CLASS];
	u32 class = of ? nla_get_u32(of) : 0;
	int r = ebb_netlink_permitted(cb->skb, cb->extack);
	struct ebb_device *d;

	if (r)
		return r;
	if (!device) {
		NL_SET_ERR_MSG(cb->extack, "device: not given");
		return -EINVAL;
	}
	mutex_lock(&ebb_devices_lock);
	d = ebb_device_find(nla_get_u32(device));
	if (!d) {
		NL_SET_ERR_MSG_ATTR(cb->extack, device, "device: no such device");
		r = -ENODEV;
	} else if (class >= EBB_SWAP_CLASSES || !ebb_slab_hold(d, d->slabs, class)) {
		NL_SET_ERR_MSG_ATTR(cb->extack, of, "class: no such class");
		r = -ENOENT;
	}
	while (!r && cb->args[0] < d->slab_count) {
		u32 first = cb->args[0], n = min_t(u32, d->slab_count - first, SLABS_A_MESSAGE);
		struct nlattr *table;
		void *head = genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq,
					 ebb_netlink_family(), NLM_F_MULTI, EBB_SWAP_CMD_SLABS);

		if (!head)
			break;
		if (nla_put_u32(skb, EBB_SWAP_A_DEVICE, d->index) ||
		    nla_put_u32(skb, EBB_SWAP_A_SLAB_FIRST, first) ||
		    !(table = nla_reserve(skb, EBB_SWAP_A_SLAB_TABLE,
					  n * sizeof(struct ebb_swap_slab)))) {
			genlmsg_cancel(skb, head);
			break;
		}
		for (u32 i = 0; i < n; i++) {
			struct ebb_swap_slab slab;

			/* An attribute is aligned to four bytes only. */
			slab_report(d, first + i, class, &slab);
			memcpy(nla_data(table) + i * sizeof(slab), &slab, sizeof(slab));
		}
		genlmsg_end(skb, head);
		cb->args[0] += n;
	}
	mutex_unlock(&ebb_devices_lock);
	return r ?: skb->len;
}
