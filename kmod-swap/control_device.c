// SPDX-License-Identifier: GPL-2.0-only
/* The generic netlink family "ebb_swap": its commands; swap.h documents it. */
#include <linux/inet.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <net/genetlink.h>

#include "internal.h"

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
/* What find_next_bit() and the slab's number can name: 16 TiB. */
#define PAGES_MAX (1ull << 32)
#define SLABS_MAX (1u << 20)

DEFINE_MUTEX(control_lock);
LIST_HEAD(control_devices);

/* Refuses for @attr, or for want of it: the text begins with the field's name. */
#define refuse(info, attr, error, text) ({ \
	if ((info)->attrs[attr]) \
		NL_SET_ERR_MSG_ATTR((info)->extack, (info)->attrs[attr], text); \
	else \
		NL_SET_ERR_MSG((info)->extack, text); \
	error; \
})

/* For texts that are not literal here. */
static int refuse_why(struct genl_info *info, int error, const char *why)
{
	if (info->extack && why)
		info->extack->_msg = why;
	return error;
}

static int permitted(struct sk_buff *skb, struct genl_info *info)
{
	if (netlink_capable(skb, CAP_SYS_ADMIN))
		return 0;
	NL_SET_ERR_MSG(info->extack, "ebb_swap: needs CAP_SYS_ADMIN");
	return -EPERM;
}

struct ebb_device *control_find(u32 index)
{
	struct ebb_device *d;

	list_for_each_entry(d, &control_devices, node)
		if (d->index == index)
			return d;
	return NULL;
}

/* Takes control_lock; the caller gives it back, when 0 is returned. */
static int begin(struct sk_buff *skb, struct genl_info *info, struct ebb_device **device)
{
	int r = permitted(skb, info);

	if (r)
		return r;
	if (!info->attrs[EBB_SWAP_A_DEVICE])
		return refuse(info, EBB_SWAP_A_DEVICE, -EINVAL, "device: not given");
	mutex_lock(&control_lock);
	*device = control_find(nla_get_u32(info->attrs[EBB_SWAP_A_DEVICE]));
	if (*device)
		return 0;
	mutex_unlock(&control_lock);
	return refuse(info, EBB_SWAP_A_DEVICE, -ENODEV, "device: there is none of this number");
}

/* The one that @attr names. */
static int find_session(struct genl_info *info, struct ebb_device *d, int attr,
			struct ebb_session **out)
{
	struct ebb_session *s;

	if (!info->attrs[attr])
		return refuse(info, attr, -EINVAL, "session: not given");
	list_for_each_entry(s, &d->sessions, node) {
		if (s->index == nla_get_u32(info->attrs[attr])) {
			*out = s;
			return 0;
		}
	}
	return refuse(info, attr, -ENOENT,
		      "session: the device has none of this number");
}

/* A u32 that may be absent. */
static u32 number_or(struct genl_info *info, int attr, u32 otherwise)
{
	return info->attrs[attr] ? nla_get_u32(info->attrs[attr]) : otherwise;
}

static int find_slab(struct genl_info *info, struct ebb_device *d, struct ebb_slab **out)
{
	struct nlattr *attr = info->attrs[EBB_SWAP_A_SLAB];

	if (!attr)
		return refuse(info, EBB_SWAP_A_SLAB, -EINVAL, "slab: not given");
	if (nla_get_u32(attr) >= d->slab_count)
		return refuse(info, EBB_SWAP_A_SLAB, -ERANGE, "slab: beyond the device");
	*out = &d->slabs[nla_get_u32(attr)];
	return 0;
}

/* The class that is given, or 0. */
static int find_class(struct genl_info *info, struct ebb_device *d, u32 *class)
{
	*class = number_or(info, EBB_SWAP_A_CLASS, 0);
	if (*class >= EBB_SWAP_CLASSES)
		return refuse(info, EBB_SWAP_A_CLASS, -ERANGE, "class: 0 to 7 are wanted");
	if (!slab_hold(d, d->slabs, *class))
		return refuse(info, EBB_SWAP_A_CLASS, -ENOENT,
			      "class: the device has none of this number");
	return 0;
}

/* Replies with one number. */
static int reply_number(struct genl_info *info, int command, int attr, u32 number)
{
	struct sk_buff *skb = genlmsg_new(nla_total_size(sizeof(u32)), GFP_KERNEL);
	void *head;

	if (!skb)
		return -ENOMEM;
	head = genlmsg_put_reply(skb, info, &control_family, 0, command);
	if (!head || nla_put_u32(skb, attr, number)) {
		nlmsg_free(skb);
		return -EMSGSIZE;
	}
	genlmsg_end(skb, head);
	return genlmsg_reply(skb, info);
}

static int parse_sizes(struct genl_info *info, struct ebb_settings *s)
{
	struct nlattr *size = info->attrs[EBB_SWAP_A_SIZE];
	struct nlattr *slab = info->attrs[EBB_SWAP_A_SLAB_SIZE];

	s->slab_size = slab ? nla_get_u64(slab) : SLAB_DEFAULT;
	if (s->slab_size < SLAB_MIN || s->slab_size > SLAB_MAX || !is_power_of_2(s->slab_size))
		return refuse(info, EBB_SWAP_A_SLAB_SIZE, -EINVAL,
			      "slab size: a power of two from 1 MiB to 1 GiB is wanted");
	if (!size)
		return refuse(info, EBB_SWAP_A_SIZE, -EINVAL, "size: not given");
	s->size = nla_get_u64(size);
	if (!s->size || s->size & (s->slab_size - 1))
		return refuse(info, EBB_SWAP_A_SIZE, -EINVAL, "size: not a multiple of the slab size");
	if (s->size >> PAGE_SHIFT > PAGES_MAX)
		return refuse(info, EBB_SWAP_A_SIZE, -EFBIG, "size: more than 16 TiB");
	if (s->size / s->slab_size > SLABS_MAX)
		return refuse(info, EBB_SWAP_A_SIZE, -EFBIG,
			      "size: more than 1048576 slabs; give a larger slab size");
	return 0;
}

/* Where writes can go, with a @backup or without. */
enum with_backup { WITHOUT_BACKUP, WITH_BACKUP };

static int check_copies(struct genl_info *info, u32 copies, enum with_backup with)
{
	if (!copies || copies & ~(EBB_SWAP_DONOR | EBB_SWAP_SECOND | EBB_SWAP_BACKUP))
		return refuse(info, EBB_SWAP_A_COPIES, -EINVAL,
			      "copies: donor, backup, or both, are wanted");
	if (copies & EBB_SWAP_SECOND && !(copies & EBB_SWAP_DONOR))
		return refuse(info, EBB_SWAP_A_COPIES, -EINVAL,
			      "copies: a second donor without a first");
	if (copies & EBB_SWAP_BACKUP && with == WITHOUT_BACKUP)
		return refuse(info, EBB_SWAP_A_COPIES, -EINVAL, "copies: the device has no backup");
	return 0;
}

/* Of slabs that belong at a donor. */
static int check_donor_copies(struct genl_info *info, u32 copies, enum with_backup with)
{
	if (!(copies & EBB_SWAP_DONOR))
		return refuse(info, EBB_SWAP_A_COPIES, -EINVAL,
			      "copies: donor, with a second, the backup or both, is wanted");
	return check_copies(info, copies, with);
}

static enum with_backup has_backup(const struct ebb_device *d)
{
	return d->backup.bdev ? WITH_BACKUP : WITHOUT_BACKUP;
}

static int parse_settings(struct genl_info *info, struct ebb_settings *s)
{
	struct nlattr *key = info->attrs[EBB_SWAP_A_KEY];
	int r = parse_sizes(info, s);

	if (r)
		return r;
	s->queues = number_or(info, EBB_SWAP_A_QUEUES, min_t(u32, num_online_cpus(),
							     QUEUES_DEFAULT));
	if (!s->queues || s->queues > EBB_SWAP_QUEUES)
		return refuse(info, EBB_SWAP_A_QUEUES, -ERANGE, "queues: 1 to 16 are wanted");
	s->depth = number_or(info, EBB_SWAP_A_DEPTH, DEPTH_DEFAULT);
	if (!s->depth || s->depth > DEPTH_MAX)
		return refuse(info, EBB_SWAP_A_DEPTH, -ERANGE, "depth: 1 to 1024 are wanted");
	s->deadline = number_or(info, EBB_SWAP_A_DEADLINE, DEADLINE_DEFAULT);
	if (!s->deadline || s->deadline > DEADLINE_MAX)
		return refuse(info, EBB_SWAP_A_DEADLINE, -ERANGE,
			      "deadline: 1 to 600000 milliseconds are wanted");
	s->pool = info->attrs[EBB_SWAP_A_POOL] ? nla_get_u64(info->attrs[EBB_SWAP_A_POOL]) :
						 POOL_DEFAULT;
	if (s->pool > POOL_MAX || s->pool & ~PAGE_MASK)
		return refuse(info, EBB_SWAP_A_POOL, -ERANGE, "pool: whole pages, at most 1 GiB");
	if (info->attrs[EBB_SWAP_A_BACKUP]) {
		s->backup = nla_data(info->attrs[EBB_SWAP_A_BACKUP]);
		if (!*s->backup)
			return refuse(info, EBB_SWAP_A_BACKUP, -EINVAL, "backup: an empty path");
	}
	if (!key || !info->attrs[EBB_SWAP_A_KEY_NUMBER])
		return refuse(info, EBB_SWAP_A_KEY, -EINVAL, "key: not given, or without its number");
	s->key = nla_data(key);
	s->key_number = nla_data(info->attrs[EBB_SWAP_A_KEY_NUMBER]);
	s->seal = info->attrs[EBB_SWAP_A_SEAL];
	s->copies = number_or(info, EBB_SWAP_A_COPIES,
			      EBB_SWAP_DONOR | (s->backup ? EBB_SWAP_BACKUP : 0));
	return check_donor_copies(info, s->copies, s->backup ? WITH_BACKUP : WITHOUT_BACKUP);
}

static int pick_index(struct genl_info *info, u32 *index)
{
	struct nlattr *attr = info->attrs[EBB_SWAP_A_DEVICE];

	if (attr) {
		*index = nla_get_u32(attr);
		if (*index >= EBB_SWAP_DEVICES)
			return refuse(info, EBB_SWAP_A_DEVICE, -ERANGE, "device: 0 to 63 are wanted");
		if (control_find(*index))
			return refuse(info, EBB_SWAP_A_DEVICE, -EEXIST, "device: it exists");
		return 0;
	}
	for (*index = 0; *index < EBB_SWAP_DEVICES; (*index)++)
		if (!control_find(*index))
			return 0;
	return refuse(info, EBB_SWAP_A_DEVICE, -ENOSPC, "device: all 64 exist");
}

static int create(struct genl_info *info)
{
	struct ebb_settings s = { };
	const char *why = NULL;
	struct ebb_device *d;
	int r = parse_settings(info, &s);

	if (r)
		return r;
	mutex_lock(&control_lock);
	r = pick_index(info, &s.index);
	if (r)
		goto unlock;
	r = device_new(&s, &d, &why);
	if (r) {
		refuse_why(info, r, why);
		goto unlock;
	}
	list_add_tail(&d->node, &control_devices);
	r = reply_number(info, EBB_SWAP_CMD_CREATE, EBB_SWAP_A_DEVICE, d->index);
unlock:
	mutex_unlock(&control_lock);
	return r;
}

static int do_create(struct sk_buff *skb, struct genl_info *info)
{
	struct nlattr *key = info->attrs[EBB_SWAP_A_KEY];
	int r = permitted(skb, info) ?: create(info);

	/* The message stays in memory for who gets that next. */
	if (key)
		memzero_explicit(nla_data(key), nla_len(key));
	return r;
}

static int do_destroy(struct sk_buff *skb, struct genl_info *info)
{
	struct ebb_device *d;
	int r = begin(skb, info, &d);

	if (r)
		return r;
	list_del(&d->node);
	r = device_free(d);
	if (r) {
		list_add_tail(&d->node, &control_devices);
		refuse(info, EBB_SWAP_A_DEVICE, r, "device: it is open; swapoff or unmount it first");
	}
	mutex_unlock(&control_lock);
	return r;
}

static int parse_address(struct genl_info *info, struct sockaddr_storage *to)
{
	struct nlattr *address = info->attrs[EBB_SWAP_A_ADDRESS];
	struct nlattr *port = info->attrs[EBB_SWAP_A_PORT];
	char text[8];

	if (!address)
		return refuse(info, EBB_SWAP_A_ADDRESS, -EINVAL, "address: not given");
	if (!port || !nla_get_u16(port))
		return refuse(info, EBB_SWAP_A_PORT, -EINVAL, "port: not given, or 0");
	snprintf(text, sizeof(text), "%u", nla_get_u16(port));
	if (inet_pton_with_scope(&init_net, AF_UNSPEC, nla_data(address), text, to))
		return refuse(info, EBB_SWAP_A_ADDRESS, -EINVAL,
			      "address: neither IPv4 nor IPv6");
	return 0;
}

static int do_connect(struct sk_buff *skb, struct genl_info *info)
{
	struct sockaddr_storage to = { };
	const char *why = NULL;
	struct ebb_session *s;
	struct ebb_device *d;
	struct list_head *p;
	u32 n = 0, class;
	int r = begin(skb, info, &d);

	if (r)
		return r;
	r = find_class(info, d, &class) ?: parse_address(info, &to);
	list_for_each(p, &d->sessions)
		n++;
	if (!r && n >= EBB_SWAP_SESSIONS)
		r = refuse(info, EBB_SWAP_A_DEVICE, -ENOSPC, "device: it has 64 sessions");
	if (!r) {
		r = session_open(d, &to, class, &s, &why);
		if (r)
			refuse_why(info, r, why);
		else
			r = reply_number(info, EBB_SWAP_CMD_CONNECT, EBB_SWAP_A_SESSION, s->index);
	}
	mutex_unlock(&control_lock);
	return r;
}

/* Pages that are at its place @at and nowhere else; slab->lock is held. */
static u32 only_there(const struct ebb_device *d, struct ebb_slab *slab, u32 class,
		      enum ebb_at at)
{
	u32 others = BIT(AT_POOL) | BIT(AT_BACKUP) | hold_live(slab_hold(d, slab, class));

	return at == AT_DONORS ? 0 : slab_count_only(d, slab - d->slabs, class, at, others & ~BIT(at));
}

enum leave { LEAVE_ASK, LEAVE_DO };

/*
 * Pages of @slab that would be lost without @s.  LEAVE_DO: if there are none it is
 * detached, so that no write is acknowledged by that donor alone from here on.
 */
static u32 only_at(struct ebb_device *d, struct ebb_slab *slab, const struct ebb_session *s,
		   enum leave leave)
{
	const struct ebb_hold *hold = slab_hold(d, slab, s->class);
	unsigned long flags;
	u32 n = 0;

	spin_lock_irqsave(&slab->lock, flags);
	n = only_there(d, slab, s->class, hold_session(hold, s));
	if (!n && leave == LEAVE_DO)
		slab_detach(d, slab, s);
	spin_unlock_irqrestore(&slab->lock, flags);
	return n;
}

static int do_disconnect(struct sk_buff *skb, struct genl_info *info)
{
	struct ebb_session *s;
	struct ebb_device *d;
	int r = begin(skb, info, &d);

	if (r)
		return r;
	r = find_session(info, d, EBB_SWAP_A_SESSION, &s);
	/* All are asked before the first is detached. */
	for (enum leave leave = LEAVE_ASK; leave <= LEAVE_DO; leave++)
		for (u32 i = 0; !r && !info->attrs[EBB_SWAP_A_FORCE] && i < d->slab_count; i++)
			if (only_at(d, &d->slabs[i], s, leave))
				r = refuse(info, EBB_SWAP_A_SESSION, -EBUSY,
					   "session: pages are at its donor alone; force loses them");
	if (!r)
		session_free(s, "disconnected");
	mutex_unlock(&control_lock);
	return r;
}

/* It is one that slabs can be given to. */
static int check_session(struct genl_info *info, int attr, const struct ebb_session *s)
{
	if (!session_live(s))
		return refuse(info, attr, -ENOTCONN, "session: it is over; connect anew");
	if (s->draining)
		return refuse(info, attr, -ESHUTDOWN, "session: it is drained; give another");
	return 0;
}

/* What @class has of @slab now: sessions end, and the copier is through, at any time. */
static struct ebb_hold hold_now(const struct ebb_device *d, struct ebb_slab *slab, u32 class)
{
	struct ebb_hold hold;
	unsigned long flags;

	spin_lock_irqsave(&slab->lock, flags);
	hold = *slab_hold(d, slab, class);
	spin_unlock_irqrestore(&slab->lock, flags);
	return hold;
}

/*
 * Another place than @but, AT_DONORS = none, is at the donor of @s: one loss would be both's.  So
 * it would with the source, which is a donor of the slab's again when the new one ends.
 */
static bool donor_has_other(const struct ebb_hold *hold, const struct ebb_session *s,
			    enum ebb_at but)
{
	for (int i = 0; i < AT_DONORS; i++) {
		const struct ebb_session *other = hold->at[i].session;

		if (other && i != but && (other == s || !memcmp(&other->to, &s->to, sizeof(s->to))))
			return true;
	}
	return false;
}

/* Where a new place of the slab belongs, in the stead of that of @epoch, 0 = of none. */
static enum ebb_at place_for(const struct ebb_hold *hold, u32 epoch)
{
	enum ebb_at old = hold_epoch(hold, epoch);

	if (old < EBB_COPIES)
		return hold->at[AT_SOURCE].session ? AT_DONORS : old;
	/* What was there has ended meanwhile, or is the source already. */
	if (!hold->at[AT_DONOR].session)
		return AT_DONOR;
	return hold->copies & EBB_SWAP_SECOND && !hold->at[AT_SECOND].session ? AT_SECOND : AT_DONORS;
}

/*
 * Gives what @class has of @slab, in the stead of its place of @epoch, to the donor of @s,
 * NULL = to what else has it; what it had becomes its source.
 */
static int give(struct genl_info *info, struct ebb_device *d, struct ebb_slab *slab, u32 class,
		struct ebb_session *s, u32 epoch)
{
	const struct ebb_hold *hold = slab_hold(d, slab, class);
	const char *why = NULL, *unheard;
	struct ebb_place place = { };
	unsigned long flags;
	enum ebb_at at;
	int r = s ? session_map(s, &place, &why) : 0;

	if (r)
		return refuse_why(info, r, why);
	spin_lock_irqsave(&slab->lock, flags);
	at = place_for(hold, epoch);
	/* One that failed meanwhile has been, or is about to be, detached from its slabs. */
	if (s && !session_live(s))
		r = refuse_why(info, -ENOTCONN, "session: it is over; connect anew");
	else if (at == AT_DONORS || (!s && !hold->at[at].session))
		r = refuse_why(info, -EAGAIN, "slab: its donors have changed; look again");
	else
		slab_move(d, slab, class, at, s ? &place : NULL);
	spin_unlock_irqrestore(&slab->lock, flags);
	if (r == -EAGAIN && s)
		session_unmap(s, place.remote, place.generation, &unheard);
	copier_kick(d);
	return r;
}

static int do_map(struct sk_buff *skb, struct genl_info *info)
{
	struct ebb_session *s;
	struct ebb_device *d;
	struct ebb_slab *slab;
	struct ebb_hold hold;
	u32 copies;
	int r = begin(skb, info, &d);

	if (r)
		return r;
	r = find_slab(info, d, &slab) ?: find_session(info, d, EBB_SWAP_A_SESSION, &s);
	if (r)
		goto unlock;
	hold = hold_now(d, slab, s->class);
	copies = number_or(info, EBB_SWAP_A_COPIES, hold.copies);
	r = check_donor_copies(info, copies, has_backup(d));
	if (r)
		goto unlock;
	if (hold.at[AT_DONOR].session &&
	    (!(copies & EBB_SWAP_SECOND) || hold.at[AT_SECOND].session))
		r = refuse(info, EBB_SWAP_A_SLAB, -EEXIST, "slab: it is mapped");
	else if (!hold.at[AT_DONOR].session && hold.at[AT_SOURCE].session)
		r = refuse(info, EBB_SWAP_A_SLAB, -EBUSY, "slab: it migrates; wait until it has");
	else if (hold_session(&hold, s) < AT_DONORS || donor_has_other(&hold, s, AT_DONORS))
		r = refuse(info, EBB_SWAP_A_SESSION, -EEXIST,
			   "session: its donor has the slab; give another's");
	else
		r = check_session(info, EBB_SWAP_A_SESSION, s);
	if (r)
		goto unlock;
	/* Only commands write it, one at a time. */
	WRITE_ONCE(slab_hold(d, slab, s->class)->copies, copies);
	r = give(info, d, slab, s->class, s, 0);
unlock:
	mutex_unlock(&control_lock);
	return r;
}

/* Which of the slab's donors @attr says: its session's, without one the only one. */
static int find_place(struct genl_info *info, struct ebb_device *d, const struct ebb_hold *hold,
		      int attr, enum ebb_at *at)
{
	struct ebb_session *s;
	int r;

	*at = AT_DONOR;
	if (!hold->at[AT_DONOR].session)
		return refuse(info, EBB_SWAP_A_SLAB, -ENOENT, "slab: it is not mapped");
	if (!info->attrs[attr])
		return !hold->at[AT_SECOND].session ? 0 :
		       refuse(info, EBB_SWAP_A_SLAB, -EINVAL,
			      "slab: it has two donors; say which one it is to leave");
	r = find_session(info, d, attr, &s);
	if (r)
		return r;
	*at = hold_session(hold, s);
	return *at < EBB_COPIES ? 0 : refuse(info, attr, -ENOENT, "session: the slab is not there");
}

/* Why what a class has of a slab cannot leave @at for @to, NULL = what else has it, now. */
static int check_leave(struct genl_info *info, const struct ebb_device *d,
		       const struct ebb_hold *hold, enum ebb_at at, const struct ebb_session *to)
{
	if (hold->at[AT_SOURCE].session)
		return refuse(info, EBB_SWAP_A_SLAB, -EBUSY,
			      "slab: it migrates; wait until it has");
	if (!to && !d->backup.bdev)
		return refuse_why(info, -EINVAL,
				  "session: not given, and the device has no backup");
	if (to && hold_session(hold, to) < AT_DONORS)
		return refuse(info, EBB_SWAP_A_SESSION, -EEXIST, "session: the slab is there");
	if (to && donor_has_other(hold, to, at))
		return refuse(info, EBB_SWAP_A_SESSION, -EEXIST,
			      "session: its donor has the slab; give another's");
	return 0;
}

static int do_migrate(struct sk_buff *skb, struct genl_info *info)
{
	struct ebb_session *s = NULL;
	struct ebb_device *d;
	struct ebb_slab *slab;
	struct ebb_hold hold;
	enum ebb_at at;
	u32 class;
	int r = begin(skb, info, &d);

	if (r)
		return r;
	r = find_slab(info, d, &slab) ?: find_class(info, d, &class);
	if (!r && info->attrs[EBB_SWAP_A_SESSION])
		r = find_session(info, d, EBB_SWAP_A_SESSION, &s) ?:
		    check_session(info, EBB_SWAP_A_SESSION, s);
	if (!r && s && info->attrs[EBB_SWAP_A_CLASS] && s->class != class)
		r = refuse(info, EBB_SWAP_A_CLASS, -EINVAL, "class: the session is of another");
	if (!r && s)
		class = s->class;
	if (!r) {
		hold = hold_now(d, slab, class);
		r = find_place(info, d, &hold, EBB_SWAP_A_FROM, &at) ?:
		    check_leave(info, d, &hold, at, s) ?:
		    give(info, d, slab, class, s, hold.at[at].epoch);
	}
	mutex_unlock(&control_lock);
	return r;
}

static int do_drain(struct sk_buff *skb, struct genl_info *info)
{
	struct ebb_session *s, *to = NULL;
	struct ebb_device *d;
	bool others = false;
	int r = begin(skb, info, &d);

	if (r)
		return r;
	r = find_session(info, d, EBB_SWAP_A_SESSION, &s);
	if (!r && info->attrs[EBB_SWAP_A_TARGET])
		r = find_session(info, d, EBB_SWAP_A_TARGET, &to) ?:
		    check_session(info, EBB_SWAP_A_TARGET, to);
	else if (!r && !d->backup.bdev)
		r = refuse_why(info, -EINVAL, "target: not given, and the device has no backup");
	if (!r && s == to)
		r = refuse(info, EBB_SWAP_A_TARGET, -EINVAL, "target: the session itself");
	if (!r && to && s->class != to->class)
		r = refuse(info, EBB_SWAP_A_TARGET, -EINVAL, "target: of another class");
	if (!r)
		s->draining = true;
	/* Those that migrate are behind the copier, not lost: the next call takes them. */
	for (u32 i = 0; !r && i < d->slab_count; i++) {
		struct ebb_hold hold = hold_now(d, &d->slabs[i], s->class);
		enum ebb_at at = hold_session(&hold, s);

		if (at >= EBB_COPIES)
			continue;
		if (to && !hold.at[AT_SOURCE].session && donor_has_other(&hold, to, at))
			others = true;
		else
			r = check_leave(info, d, &hold, at, to) ?:
			    give(info, d, &d->slabs[i], s->class, to, hold.at[at].epoch);
	}
	if (!r && others)
		r = refuse(info, EBB_SWAP_A_TARGET, -EEXIST,
			   "target: its donor has slabs of the session already; again, with a third");
	mutex_unlock(&control_lock);
	return r;
}

static int do_unmap(struct sk_buff *skb, struct genl_info *info)
{
	const struct ebb_hold *hold;
	struct ebb_place place;
	const char *why = NULL;
	struct ebb_device *d;
	struct ebb_slab *slab;
	unsigned long flags;
	enum ebb_at at;
	u32 class;
	int r = begin(skb, info, &d);

	if (r)
		return r;
	r = find_slab(info, d, &slab) ?: find_class(info, d, &class);
	if (r)
		goto unlock;
	hold = slab_hold(d, slab, class);
	spin_lock_irqsave(&slab->lock, flags);
	if (hold->at[AT_SOURCE].session)
		r = refuse(info, EBB_SWAP_A_SLAB, -EBUSY, "slab: it migrates; wait until it has");
	else
		r = find_place(info, d, hold, EBB_SWAP_A_SESSION, &at);
	if (r) {
		spin_unlock_irqrestore(&slab->lock, flags);
		goto unlock;
	}
	place = hold->at[at];
	if (!list_empty(&slab->active))
		r = refuse(info, EBB_SWAP_A_SLAB, -EAGAIN, "slab: requests are under way; try again");
	else if (!info->attrs[EBB_SWAP_A_FORCE] && only_there(d, slab, class, at))
		r = refuse(info, EBB_SWAP_A_SLAB, -EBUSY,
			   "slab: pages are at its donor alone; force loses them");
	else
		slab_detach(d, slab, place.session);
	spin_unlock_irqrestore(&slab->lock, flags);
	if (!r) {
		r = session_unmap(place.session, place.remote, place.generation, &why);
		if (r)
			refuse_why(info, r, why);
	}
unlock:
	mutex_unlock(&control_lock);
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

/* Of slabs with two donors, which only UNMAP takes one away from. */
static bool has_seconds(struct ebb_device *d, u32 class)
{
	for (u32 i = 0; i < d->slab_count && slab_hold(d, d->slabs, class); i++)
		if (hold_now(d, &d->slabs[i], class).at[AT_SECOND].session)
			return true;
	return false;
}

static int do_class(struct sk_buff *skb, struct genl_info *info)
{
	enum ebb_class_kind kind = info->attrs[EBB_SWAP_A_SEAL] ? CLASS_SEALED : CLASS_OPEN;
	const char *why = NULL;
	struct ebb_device *d;
	u32 class, copies;
	int r = begin(skb, info, &d);

	if (r)
		return r;
	class = number_or(info, EBB_SWAP_A_CLASS, 0);
	copies = number_or(info, EBB_SWAP_A_COPIES, d->class_copies[0]);
	if (!info->attrs[EBB_SWAP_A_CLASS])
		r = refuse(info, EBB_SWAP_A_CLASS, -EINVAL, "class: not given");
	else if (!class || class >= EBB_SWAP_CLASSES)
		r = refuse(info, EBB_SWAP_A_CLASS, -ERANGE, "class: 1 to 7 are wanted");
	if (!r)
		r = check_copies(info, copies, has_backup(d));
	if (r)
		goto unlock;
	if (!(copies & EBB_SWAP_DONOR) && has_donors(d, class))
		r = refuse(info, EBB_SWAP_A_COPIES, -EBUSY,
			   "copies: the class has donors; disconnect them first");
	else if (!(copies & EBB_SWAP_SECOND) && has_seconds(d, class))
		r = refuse(info, EBB_SWAP_A_COPIES, -EBUSY,
			   "copies: the class has slabs with two donors; unmap one of each first");
	else
		r = class_make(d, class, copies, kind, &why);
	if (r)
		refuse_why(info, r, why);
unlock:
	mutex_unlock(&control_lock);
	return r;
}

static int do_assign(struct sk_buff *skb, struct genl_info *info)
{
	struct nlattr *cgroup = info->attrs[EBB_SWAP_A_CGROUP];
	u32 class = EBB_NO_CLASS;
	struct ebb_device *d;
	int r = begin(skb, info, &d);

	if (r)
		return r;
	if (info->attrs[EBB_SWAP_A_CLASS])
		r = find_class(info, d, &class);
	if (!r && !IS_ENABLED(CONFIG_BLK_CGROUP))
		r = refuse(info, EBB_SWAP_A_CGROUP, -EOPNOTSUPP,
			   "cgroup: the kernel has no CONFIG_BLK_CGROUP, so pages do not tell theirs");
	else if (!r && (!cgroup || !nla_get_u64(cgroup)))
		r = refuse(info, EBB_SWAP_A_CGROUP, -EINVAL, "cgroup: not given, or 0");
	else if (!r)
		r = class_assign(d, nla_get_u64(cgroup), class);
	if (r == -ENOENT && class == EBB_NO_CLASS)
		refuse(info, EBB_SWAP_A_CGROUP, r, "cgroup: it has no class");
	else if (r == -ENOSPC)
		refuse(info, EBB_SWAP_A_CGROUP, r, "cgroup: 64 have a class already");
	else if (r == -ENOMEM)
		refuse_why(info, r, "memory: not enough for the cgroup");
	mutex_unlock(&control_lock);
	return r;
}

/* An attribute that a command does not have is refused: each has its own policy. */
#define A(name, kind) [EBB_SWAP_A_##name] = { .type = kind }
#define POLICY(name, ...) \
	static const struct nla_policy name##_policy[EBB_SWAP_ATTRIBUTES] = { __VA_ARGS__ }

POLICY(create, A(DEVICE, NLA_U32), A(SIZE, NLA_U64), A(SLAB_SIZE, NLA_U64), A(QUEUES, NLA_U32),
       A(DEPTH, NLA_U32), A(DEADLINE, NLA_U32), A(POOL, NLA_U64), A(COPIES, NLA_U32),
       A(SEAL, NLA_FLAG),
       [EBB_SWAP_A_BACKUP] = { .type = NLA_NUL_STRING, .len = EBB_SWAP_PATH - 1 },
       [EBB_SWAP_A_KEY] = NLA_POLICY_EXACT_LEN(EBB_SWAP_KEY),
       [EBB_SWAP_A_KEY_NUMBER] = NLA_POLICY_EXACT_LEN(EBB_SWAP_KEY_NUMBER));
POLICY(device, A(DEVICE, NLA_U32));
POLICY(slabs, A(DEVICE, NLA_U32), A(CLASS, NLA_U32));
POLICY(connect, A(DEVICE, NLA_U32), A(PORT, NLA_U16), A(CLASS, NLA_U32),
       [EBB_SWAP_A_ADDRESS] = { .type = NLA_NUL_STRING, .len = INET6_ADDRSTRLEN });
POLICY(disconnect, A(DEVICE, NLA_U32), A(SESSION, NLA_U32), A(FORCE, NLA_FLAG));
POLICY(map, A(DEVICE, NLA_U32), A(SLAB, NLA_U32), A(SESSION, NLA_U32), A(COPIES, NLA_U32));
POLICY(migrate, A(DEVICE, NLA_U32), A(SLAB, NLA_U32), A(SESSION, NLA_U32), A(FROM, NLA_U32),
       A(CLASS, NLA_U32));
POLICY(drain, A(DEVICE, NLA_U32), A(SESSION, NLA_U32), A(TARGET, NLA_U32));
POLICY(unmap, A(DEVICE, NLA_U32), A(SLAB, NLA_U32), A(SESSION, NLA_U32), A(FORCE, NLA_FLAG),
       A(CLASS, NLA_U32));
POLICY(class, A(DEVICE, NLA_U32), A(CLASS, NLA_U32), A(COPIES, NLA_U32), A(SEAL, NLA_FLAG));
POLICY(assign, A(DEVICE, NLA_U32), A(CGROUP, NLA_U64), A(CLASS, NLA_U32));

#define OP(name, call, value, rules) { \
	.cmd = EBB_SWAP_CMD_##name, .call = value, \
	.maxattr = EBB_SWAP_A_MAX, .policy = rules##_policy }

static const struct genl_ops ops[] = {
	OP(CREATE, doit, do_create, create),
	OP(DESTROY, doit, do_destroy, device),
	OP(CONNECT, doit, do_connect, connect),
	OP(DISCONNECT, doit, do_disconnect, disconnect),
	OP(MAP, doit, do_map, map),
	OP(UNMAP, doit, do_unmap, unmap),
	OP(MIGRATE, doit, do_migrate, migrate),
	OP(DRAIN, doit, do_drain, drain),
	OP(STATUS, dumpit, tell_status, device),
	OP(SLABS, dumpit, tell_slabs, slabs),
	OP(CLASS, doit, do_class, class),
	OP(ASSIGN, doit, do_assign, assign),
};

static const struct genl_multicast_group groups[] = {
	{ .name = EBB_SWAP_GROUP, .flags = GENL_MCAST_CAP_SYS_ADMIN },
};

struct genl_family control_family = {
	.name = EBB_SWAP_FAMILY,
	.version = EBB_SWAP_VERSION,
	.maxattr = EBB_SWAP_A_MAX,
	.module = THIS_MODULE,
	.ops = ops,
	.n_ops = ARRAY_SIZE(ops),
	.mcgrps = groups,
	.n_mcgrps = ARRAY_SIZE(groups),
	.resv_start_op = EBB_SWAP_CMDS,
	/*
	 * A connect that takes seconds must hold up no other family.  So of genetlink's locks a
	 * command has cb_lock alone, for reading, and commands of others, nbd's too, run beside it.
	 * Who registers a family takes it for writing: no command may wait for a module that does so
	 * when it is loaded, as CTRL_CMD_GETFAMILY, which gives cb_lock up meanwhile, need not.  The
	 * one that could is CREATE, by opening its backup; hence swap.h has the caller open it.
	 */
	.parallel_ops = true,
};

int control_init(void)
{
	return genl_register_family(&control_family);
}

void control_exit(void)
{
	genl_unregister_family(&control_family);
}
