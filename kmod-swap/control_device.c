// SPDX-License-Identifier: GPL-2.0-only
#include <linux/slab.h>

#include "class.h"
#include "commands.h"
#include "create.h"
#include "netlink.h"
#include "session.h"

#define QUEUES_DEFAULT 8
#define DEPTH_DEFAULT 64
#define DEPTH_MAX 1024
#define DEADLINE_DEFAULT 5000
#define DEADLINE_MAX 600000
#define POOL_DEFAULT (4ull << 20)
#define POOL_MAX (1ull << 30)
#define SLAB_DEFAULT (64ull << 20)
#define SLAB_MIN (1ull << 20)
#define SLAB_MAX (1ull << 30)
/* Slabs share no word of a bitmap: each slab's words are under its own lock. */
static_assert((SLAB_MIN >> PAGE_SHIFT) % BITS_PER_LONG == 0,
	      "ebb_swap: kernels with 64 KiB pages are not supported");
/* 16 TiB: limits of the page's number in a seal's nonce, and of slab numbers. */
#define PAGES_MAX (1ull << 32)
#define SLABS_MAX (1u << 20)

/* Of devices that exist, are being created, or destroyed; ebb_devices_lock. */
static DECLARE_BITMAP(indices, EBB_SWAP_DEVICES);

static int parse_sizes(struct genl_info *info, struct ebb_settings *s)
{
	struct nlattr *size = info->attrs[EBB_SWAP_A_SIZE];
	struct nlattr *slab = info->attrs[EBB_SWAP_A_SLAB_SIZE];

	s->slab_size = slab ? nla_get_u64(slab) : SLAB_DEFAULT;
	if (s->slab_size < SLAB_MIN || s->slab_size > SLAB_MAX || !is_power_of_2(s->slab_size))
		return ebb_refuse(info, EBB_SWAP_A_SLAB_SIZE, -EINVAL,
			      "slab size: must be a power of two from 1 MiB to 1 GiB");
	if (!size)
		return ebb_refuse(info, EBB_SWAP_A_SIZE, -EINVAL, "size: not given");
	s->size = nla_get_u64(size);
	if (!s->size || s->size & (s->slab_size - 1))
		return ebb_refuse(info, EBB_SWAP_A_SIZE, -EINVAL, "size: not a multiple of the slab size");
	if (s->size >> PAGE_SHIFT > PAGES_MAX)
		return ebb_refuse(info, EBB_SWAP_A_SIZE, -EFBIG, "size: more than 16 TiB");
	if (s->size / s->slab_size > SLABS_MAX)
		return ebb_refuse(info, EBB_SWAP_A_SIZE, -EFBIG,
			      "size: more than 1048576 slabs; give a larger slab size");
	return 0;
}

static int parse_settings(struct genl_info *info, struct ebb_settings *s)
{
	struct nlattr *key = info->attrs[EBB_SWAP_A_KEY];
	int r = parse_sizes(info, s);

	if (r)
		return r;
	s->queues = ebb_netlink_u32(info, EBB_SWAP_A_QUEUES, min_t(u32, num_online_cpus(),
							     QUEUES_DEFAULT));
	if (!s->queues || s->queues > EBB_SWAP_QUEUES)
		return ebb_refuse(info, EBB_SWAP_A_QUEUES, -ERANGE, "queues: must be 1 to 16");
	s->depth = ebb_netlink_u32(info, EBB_SWAP_A_DEPTH, DEPTH_DEFAULT);
	if (!s->depth || s->depth > DEPTH_MAX)
		return ebb_refuse(info, EBB_SWAP_A_DEPTH, -ERANGE, "depth: must be 1 to 1024");
	s->deadline = ebb_netlink_u32(info, EBB_SWAP_A_DEADLINE, DEADLINE_DEFAULT);
	if (!s->deadline || s->deadline > DEADLINE_MAX)
		return ebb_refuse(info, EBB_SWAP_A_DEADLINE, -ERANGE,
			      "deadline: must be 1 to 600000 ms");
	s->pool = info->attrs[EBB_SWAP_A_POOL] ? nla_get_u64(info->attrs[EBB_SWAP_A_POOL]) :
						 POOL_DEFAULT;
	if (s->pool > POOL_MAX || s->pool & ~PAGE_MASK)
		return ebb_refuse(info, EBB_SWAP_A_POOL, -ERANGE, "pool: must be whole pages, at most 1 GiB");
	if (info->attrs[EBB_SWAP_A_BACKUP]) {
		s->backup = nla_data(info->attrs[EBB_SWAP_A_BACKUP]);
		if (!*s->backup)
			return ebb_refuse(info, EBB_SWAP_A_BACKUP, -EINVAL, "backup: an empty path");
	}
	if (!key || !info->attrs[EBB_SWAP_A_KEY_NUMBER])
		return ebb_refuse(info, EBB_SWAP_A_KEY, -EINVAL, "key: not given, or without its number");
	s->key = nla_data(key);
	s->key_number = nla_data(info->attrs[EBB_SWAP_A_KEY_NUMBER]);
	s->seal = info->attrs[EBB_SWAP_A_SEAL];
	s->copies = ebb_netlink_u32(info, EBB_SWAP_A_COPIES,
			      EBB_SWAP_DONOR | (s->backup ? EBB_SWAP_BACKUP : 0));
	return ebb_netlink_check_donor_copies(info, s->copies, s->backup);
}

/* Reserves an index for a device that is created or destroyed without ebb_devices_lock. */
static int pick_index(struct genl_info *info, u32 *index)
{
	struct nlattr *attr = info->attrs[EBB_SWAP_A_DEVICE];

	*index = attr ? nla_get_u32(attr) : find_first_zero_bit(indices, EBB_SWAP_DEVICES);
	if (*index >= EBB_SWAP_DEVICES)
		return attr ? ebb_refuse(info, EBB_SWAP_A_DEVICE, -ERANGE, "device: must be 0 to 63") :
			      ebb_refuse(info, EBB_SWAP_A_DEVICE, -ENOSPC, "device: at most 64 can exist");
	if (__test_and_set_bit(*index, indices))
		return ebb_refuse(info, EBB_SWAP_A_DEVICE, -EEXIST, "device: already exists");
	return 0;
}

static int create(struct genl_info *info)
{
	struct ebb_settings s = {};
	const char *why = NULL;
	struct ebb_device *d;
	int r = parse_settings(info, &s);

	if (r)
		return r;
	mutex_lock(&ebb_devices_lock);
	r = pick_index(info, &s.index);
	mutex_unlock(&ebb_devices_lock);
	if (r)
		return r;
	r = ebb_device_create(&s, &d, &why);
	mutex_lock(&ebb_devices_lock);
	if (r)
		__clear_bit(s.index, indices);
	else
		list_add_tail(&d->node, &ebb_devices);
	mutex_unlock(&ebb_devices_lock);
	if (r)
		return ebb_refuse_why(info, r, why);
	return ebb_netlink_reply(info, EBB_SWAP_CMD_CREATE, EBB_SWAP_A_DEVICE, s.index);
}

int ebb_do_create(struct sk_buff *skb, struct genl_info *info)
{
	struct nlattr *key = info->attrs[EBB_SWAP_A_KEY];
	int r = ebb_netlink_permitted(skb, info->extack) ?: create(info);

	/* The kernel reuses the message's memory without clearing it. */
	if (key)
		memzero_explicit(nla_data(key), nla_len(key));
	return r;
}

int ebb_do_destroy(struct sk_buff *skb, struct genl_info *info)
{
	struct ebb_device *d;
	int r = ebb_netlink_begin(info, &d);

	if (r)
		return r;
	r = ebb_device_stop(d);
	if (r) {
		ebb_refuse(info, EBB_SWAP_A_DEVICE, r, "device: it is open; swapoff or unmount it first");
	} else {
		/* STATUS and SLABS look at it no more. */
		mutex_lock(&ebb_devices_lock);
		list_del(&d->node);
		d->users--;
		mutex_unlock(&ebb_devices_lock);
		ebb_device_release(d);
		mutex_lock(&ebb_devices_lock);
		__clear_bit(d->index, indices);
		mutex_unlock(&ebb_devices_lock);
	}
	ebb_netlink_end(d);
	return r;
}

static bool has_donors(const struct ebb_device *d, u32 class)
{
	const struct ebb_session *s;

	list_for_each_entry(s, &d->sessions, node)
		if (s->class == class)
			return true;
	return false;
}

/* Returns whether any slab has a second donor, which only UNMAP can remove. */
static bool has_seconds(struct ebb_device *d, u32 class)
{
	for (u32 i = 0; i < d->slab_count && ebb_slab_hold(d, d->slabs, class); i++)
		if (READ_ONCE(ebb_slab_hold(d, &d->slabs[i], class)->at[AT_SECOND].session))
			return true;
	return false;
}

int ebb_do_class(struct sk_buff *skb, struct genl_info *info)
{
	enum ebb_class_kind kind = info->attrs[EBB_SWAP_A_SEAL] ? CLASS_SEALED : CLASS_OPEN;
	const char *why = NULL;
	struct ebb_device *d;
	u32 class, copies;
	int r = ebb_netlink_begin(info, &d);

	if (r)
		return r;
	class = ebb_netlink_u32(info, EBB_SWAP_A_CLASS, 0);
	copies = ebb_netlink_u32(info, EBB_SWAP_A_COPIES, d->class_copies[0]);
	if (!info->attrs[EBB_SWAP_A_CLASS])
		r = ebb_refuse(info, EBB_SWAP_A_CLASS, -EINVAL, "class: not given");
	else if (!class || class >= EBB_SWAP_CLASSES)
		r = ebb_refuse(info, EBB_SWAP_A_CLASS, -ERANGE, "class: must be 1 to 7");
	if (!r)
		r = ebb_netlink_check_copies(info, copies, d->backup.bdev);
	if (r)
		goto unlock;
	if (!(copies & EBB_SWAP_DONOR) && has_donors(d, class))
		r = ebb_refuse(info, EBB_SWAP_A_COPIES, -EBUSY,
			   "copies: the class has donors; disconnect them first");
	else if (!(copies & EBB_SWAP_SECOND) && has_seconds(d, class))
		r = ebb_refuse(info, EBB_SWAP_A_COPIES, -EBUSY,
			   "copies: the class has slabs with two donors; unmap one of each first");
	else
		r = ebb_class_create(d, class, copies, kind, &why);
	if (r)
		ebb_refuse_why(info, r, why);
unlock:
	ebb_netlink_end(d);
	return r;
}

int ebb_do_assign(struct sk_buff *skb, struct genl_info *info)
{
	struct nlattr *cgroup = info->attrs[EBB_SWAP_A_CGROUP];
	u32 class = EBB_NO_CLASS;
	struct ebb_device *d;
	int r = ebb_netlink_begin(info, &d);

	if (r)
		return r;
	if (info->attrs[EBB_SWAP_A_CLASS])
		r = ebb_netlink_class(info, d, &class);
	if (!r && !IS_ENABLED(CONFIG_BLK_CGROUP))
		r = ebb_refuse(info, EBB_SWAP_A_CGROUP, -EOPNOTSUPP,
			   "cgroup: needs a kernel with CONFIG_BLK_CGROUP");
	else if (!r && (!cgroup || !nla_get_u64(cgroup)))
		r = ebb_refuse(info, EBB_SWAP_A_CGROUP, -EINVAL, "cgroup: not given, or 0");
	else if (!r)
		r = ebb_class_assign(d, nla_get_u64(cgroup), class);
	if (r == -ENOENT && class == EBB_NO_CLASS)
		ebb_refuse(info, EBB_SWAP_A_CGROUP, r, "cgroup: it has no class");
	else if (r == -ENOSPC)
		ebb_refuse(info, EBB_SWAP_A_CGROUP, r, "cgroup: at most 64 can have a class");
	else if (r == -ENOMEM)
		ebb_refuse_why(info, r, "cgroup: out of memory");
	ebb_netlink_end(d);
	return r;
}
