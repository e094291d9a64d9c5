// SPDX-License-Identifier: GPL-2.0-only
#include <linux/delay.h>
#include <linux/inet.h>
#include <linux/mm.h>
#include <net/net_namespace.h>

#include "commands.h"
#include "copy.h"
#include "event.h"
#include "evict.h"
#include "lifecycle.h"
#include "loan.h"
#include "netlink.h"
#include "resume.h"
#include "slab.h"
#include "span.h"

static void session_failed(struct ebb_session *s)
{
	struct ebb_device *d = s->device;

	for (u32 i = 0; i < d->slab_count; i++) {
		struct ebb_slab *slab = &d->slabs[i];
		unsigned long flags;

		spin_lock_irqsave(&slab->lock, flags);
		ebb_slab_detach(d, slab, s);
		spin_unlock_irqrestore(&slab->lock, flags);
	}
}

static void session_away(struct ebb_session *s)
{
	ebb_event_send(s->device, EBB_SWAP_EVENT_AWAY, s->index, EBB_NO_SLAB, s->cause, s->reason);
}

static void session_back(struct ebb_session *s)
{
	/* Pages were written elsewhere meanwhile. */
	ebb_copier_kick(s->device);
	ebb_event_send(s->device, EBB_SWAP_EVENT_BACK, s->index, EBB_NO_SLAB, 0, NULL);
}

static void session_drained(struct ebb_session *s)
{
	/* Slabs that were detached from this session may have pages to copy. */
	ebb_copier_kick(s->device);
}

static void session_closed(struct ebb_session *s)
{
	ebb_event_send(s->device, EBB_SWAP_EVENT_ENDED, s->index, EBB_NO_SLAB, s->cause,
		       s->reason);
}

static const struct ebb_session_ops session_ops = {
	.failed = session_failed,
	.away = session_away,
	.resume = ebb_resume_slabs,
	.back = session_back,
	.drained = session_drained,
	.closed = session_closed,
	.recalled = ebb_evict_recalled,
};

static int parse_address(struct genl_info *info, struct sockaddr_storage *to)
{
	struct nlattr *address = info->attrs[EBB_SWAP_A_ADDRESS];
	struct nlattr *port = info->attrs[EBB_SWAP_A_PORT];
	char text[8];

	if (!address)
		return ebb_refuse(info, EBB_SWAP_A_ADDRESS, -EINVAL, "address: not given");
	if (!port || !nla_get_u16(port))
		return ebb_refuse(info, EBB_SWAP_A_PORT, -EINVAL, "port: not given, or 0");
	snprintf(text, sizeof(text), "%u", nla_get_u16(port));
	if (inet_pton_with_scope(&init_net, AF_UNSPEC, nla_data(address), text, to))
		return ebb_refuse(info, EBB_SWAP_A_ADDRESS, -EINVAL,
			      "address: neither IPv4 nor IPv6");
	return 0;
}

static int parse_key(struct genl_info *info, struct ebb_donor *donor)
{
	struct nlattr *key = info->attrs[EBB_SWAP_A_KEY];
	struct nlattr *number = info->attrs[EBB_SWAP_A_KEY_NUMBER];

	if (!key != !number)
		return ebb_refuse(info, EBB_SWAP_A_KEY, -EINVAL, "key: not given, or without its number");
	donor->key = key ? nla_data(key) : NULL;
	donor->key_number = number ? nla_data(number) : NULL;
	return 0;
}

static int connect(struct sk_buff *skb, struct genl_info *info)
{
	struct ebb_donor donor = {};
	const char *why = NULL;
	struct ebb_session *s;
	struct ebb_device *d;
	struct list_head *p;
	u32 n = 0, class;
	int r = ebb_netlink_begin(info, &d);

	if (r)
		return r;
	r = ebb_netlink_class(info, d, &class) ?: parse_address(info, &donor.to) ?:
	    parse_key(info, &donor);
	list_for_each(p, &d->sessions)
		n++;
	if (!r && n >= EBB_SWAP_SESSIONS)
		r = ebb_refuse(info, EBB_SWAP_A_DEVICE, -ENOSPC, "device: at most 64 sessions");
	if (!r) {
		r = ebb_session_open(d, &donor, class, &session_ops, &s, &why);
		if (r)
			ebb_refuse_why(info, r, why);
		else
			r = ebb_netlink_reply(info, EBB_SWAP_CMD_CONNECT, EBB_SWAP_A_SESSION,
					      s->index);
	}
	ebb_netlink_end(d);
	return r;
}

int ebb_do_connect(struct sk_buff *skb, struct genl_info *info)
{
	struct nlattr *key = info->attrs[EBB_SWAP_A_KEY];
	int r = connect(skb, info);

	/* The kernel reuses the message's memory without clearing it. */
	if (key)
		memzero_explicit(nla_data(key), nla_len(key));
	return r;
}

/* A slab that was detached from a session. */
struct detached {
	struct ebb_slab *slab;
	struct ebb_loan *loan;
	u32 epoch;
};

/*
 * Returns whether pages of @slab would be lost without @s.  If not, and with @left, detaches the
 * session, so that from now on no write is acknowledged by its donor alone.
 */
static bool is_only_at(struct ebb_device *d, struct ebb_slab *slab, const struct ebb_session *s,
		       struct detached *left)
{
	const struct ebb_hold *hold = ebb_slab_hold(d, slab, s->class);
	unsigned long flags;
	enum ebb_at at;
	bool only;

	spin_lock_irqsave(&slab->lock, flags);
	at = ebb_hold_session(hold, s);
	only = ebb_slab_count_unique(d, slab, s->class, at);
	if (!only && left && at < AT_DONORS) {
		*left = (struct detached){ slab, hold->at[at].loan, hold->at[at].epoch };
		ebb_slab_detach(d, slab, s);
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	return only;
}

/*
 * Releases a slab of a session that goes on, once no request uses it, at most until @end (jiffies).
 * If a request hangs at another place, the slab stays lent until the session ends.
 */
static void release(struct ebb_session *s, const struct detached *left, unsigned long end)
{
	unsigned long flags;
	bool used;

	do {
		spin_lock_irqsave(&left->slab->lock, flags);
		used = ebb_span_uses(left->slab, left->epoch);
		spin_unlock_irqrestore(&left->slab->lock, flags);
		if (!used) {
			ebb_session_release(s, left->loan);
			return;
		}
		msleep(1);
	} while (time_before(jiffies, end));
}

/* Detaches @s from all slabs, or from none that has pages nowhere else. */
static int leave(struct genl_info *info, struct ebb_device *d, struct ebb_session *s)
{
	struct detached *left = kvcalloc(d->slab_count, sizeof(*left), GFP_KERNEL);
	bool only = false;
	unsigned long end;

	if (!left)
		return ebb_refuse_why(info, -ENOMEM, "session: out of memory");
	/* Check all slabs before detaching the first. */
	for (u32 i = 0; !only && i < d->slab_count; i++)
		only = is_only_at(d, &d->slabs[i], s, NULL);
	for (u32 i = 0; !only && i < d->slab_count; i++)
		only = is_only_at(d, &d->slabs[i], s, &left[i]);
	/* A write came between.  One limit for all: other commands of the device wait. */
	end = jiffies + 2 * msecs_to_jiffies(d->deadline);
	for (u32 i = 0; only && i < d->slab_count; i++)
		if (left[i].slab)
			release(s, &left[i], end);
	kvfree(left);
	return only ? ebb_refuse(info, EBB_SWAP_A_SESSION, -EBUSY,
				 "session: its donor has the only copy of some pages; FORCE loses them") : 0;
}

int ebb_do_disconnect(struct sk_buff *skb, struct genl_info *info)
{
	struct ebb_session *s;
	struct ebb_device *d;
	int r = ebb_netlink_begin(info, &d);

	if (r)
		return r;
	r = ebb_netlink_session(info, d, EBB_SWAP_A_SESSION, &s);
	if (!r && !info->attrs[EBB_SWAP_A_FORCE])
		r = leave(info, d, s);
	if (!r)
		ebb_session_free(s, "disconnected");
	ebb_netlink_end(d);
	return r;
}

/* Calls @change for the session that @info names. */
static int session_change(struct genl_info *info, void (*change)(struct ebb_session *s))
{
	struct ebb_session *s;
	struct ebb_device *d;
	int r = ebb_netlink_begin(info, &d);

	if (r)
		return r;
	r = ebb_netlink_session(info, d, EBB_SWAP_A_SESSION, &s);
	if (!r)
		change(s);
	ebb_netlink_end(d);
	return r;
}

static void trust(struct ebb_session *s)
{
	atomic_set(&s->bad_pages, 0);
}

int ebb_do_trust(struct sk_buff *skb, struct genl_info *info)
{
	return session_change(info, trust);
}

static void drain(struct ebb_session *s)
{
	s->draining = true;
}

int ebb_do_drain(struct sk_buff *skb, struct genl_info *info)
{
	return session_change(info, drain);
}
