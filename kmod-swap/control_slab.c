// SPDX-License-Identifier: GPL-2.0-only
#include "commands.h"
#include "copy.h"
#include "loan.h"
#include "netlink.h"
#include "session.h"
#include "slab.h"

/* Returns 0 if slabs can be placed at @s. */
static int check_session(struct genl_info *info, int attr, const struct ebb_session *s)
{
	if (!ebb_session_live(s) && !ebb_session_ended(s))
		return ebb_refuse(info, attr, -ENOTCONN, "session: its donor is away; name another");
	if (!ebb_session_live(s))
		return ebb_refuse(info, attr, -ENOTCONN, "session: it has ended; connect again");
	if (s->draining)
		return ebb_refuse(info, attr, -ESHUTDOWN, "session: it is drained; name another");
	if (ebb_session_suspect(s))
		return ebb_refuse(info, attr, -ESHUTDOWN,
				  "session: its donor returned a wrong page; name another");
	return 0;
}

/* Returns a snapshot: at any time sessions may end and the copier may release a source. */
static struct ebb_hold hold_now(const struct ebb_device *d, struct ebb_slab *slab, u32 class)
{
	struct ebb_hold hold;
	unsigned long flags;

	spin_lock_irqsave(&slab->lock, flags);
	hold = *ebb_slab_hold(d, slab, class);
	spin_unlock_irqrestore(&slab->lock, flags);
	return hold;
}

/*
 * Returns whether a place other than @but (AT_DONORS = none) is at the donor of @s: one failure
 * would lose both.  The source counts: it becomes a donor again if the new one is lost.
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

/*
 * Returns where to put a place that replaces that of @epoch (0 = none), if writes go to @copies;
 * AT_DONORS = nowhere.
 */
static enum ebb_at place_for(const struct ebb_hold *hold, u32 epoch, u32 copies)
{
	enum ebb_at old = ebb_hold_epoch(hold, epoch);

	if (old < EBB_COPIES)
		return hold->at[AT_SOURCE].session ? AT_DONORS : old;
	/* The old place has ended, or is the source already. */
	if (!hold->at[AT_DONOR].session)
		return AT_DONOR;
	return copies & EBB_SWAP_SECOND && !hold->at[AT_SECOND].session ? AT_SECOND : AT_DONORS;
}

/*
 * Maps @slab's pages of @class at the donor of @s, replacing the place of @epoch, which becomes the
 * source; from then on writes go to @copies.  @s NULL = the pages migrate to the remaining places.
 */
static int give(struct genl_info *info, struct ebb_device *d, struct ebb_slab *slab, u32 class,
		struct ebb_session *s, u32 epoch, u32 copies)
{
	struct ebb_hold *hold = ebb_slab_hold(d, slab, class);
	const char *why = NULL;
	struct ebb_place place = {};
	unsigned long flags;
	enum ebb_at at;
	int r = s ? ebb_session_map(s, &place, &why) : 0;

	if (r)
		return ebb_refuse_why(info, r, why);
	spin_lock_irqsave(&slab->lock, flags);
	at = place_for(hold, epoch, copies);
	/* It has failed since, or it was resumed, without this loan. */
	if (s && (!ebb_session_live(s) || READ_ONCE(place.loan->gone)))
		r = ebb_refuse_why(info, -ENOTCONN, "session: it has ended; connect again");
	else if (at == AT_DONORS || (!s && !hold->at[at].session))
		r = ebb_refuse_why(info, -EAGAIN, "slab: its donors have changed; try again");
	if (!r) {
		/* Not before: a refusal must not end writes to the backup. */
		WRITE_ONCE(hold->copies, copies);
		ebb_slab_move(d, slab, class, at, s ? &place : NULL);
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	if (r == -EAGAIN && s)
		ebb_session_release(s, place.loan);
	ebb_copier_kick(d);
	return r;
}

int ebb_do_map(struct sk_buff *skb, struct genl_info *info)
{
	struct ebb_session *s;
	struct ebb_device *d;
	struct ebb_slab *slab;
	struct ebb_hold hold;
	u32 copies;
	int r = ebb_netlink_begin(info, &d);

	if (r)
		return r;
	r = ebb_netlink_slab(info, d, &slab) ?:
					       ebb_netlink_session(info, d, EBB_SWAP_A_SESSION, &s);
	if (r)
		goto unlock;
	hold = hold_now(d, slab, s->class);
	copies = ebb_netlink_u32(info, EBB_SWAP_A_COPIES, hold.copies);
	r = ebb_netlink_check_donor_copies(info, copies, d->backup.bdev);
	if (r)
		goto unlock;
	if (hold.at[AT_DONOR].session &&
	    (!(copies & EBB_SWAP_SECOND) || hold.at[AT_SECOND].session))
		r = ebb_refuse(info, EBB_SWAP_A_SLAB, -EEXIST, "slab: already mapped");
	else if (!hold.at[AT_DONOR].session && hold.at[AT_SOURCE].session)
		r = ebb_refuse(info, EBB_SWAP_A_SLAB, -EBUSY, "slab: migrating; wait until it has migrated");
	else if (ebb_hold_session(&hold, s) < AT_DONORS || donor_has_other(&hold, s, AT_DONORS))
		r = ebb_refuse(info, EBB_SWAP_A_SESSION, -EEXIST,
			   "session: its donor has the slab; name another");
	else
		r = check_session(info, EBB_SWAP_A_SESSION, s);
	if (!r)
		r = give(info, d, slab, s->class, s, 0, copies);
unlock:
	ebb_netlink_end(d);
	return r;
}

/* Finds the slab's place at the session in @attr; without @attr, its only place. */
static int find_place(struct genl_info *info, struct ebb_device *d, const struct ebb_hold *hold,
		      int attr, enum ebb_at *at)
{
	struct ebb_session *s;
	int r;

	*at = AT_DONOR;
	if (!hold->at[AT_DONOR].session)
		return ebb_refuse(info, EBB_SWAP_A_SLAB, -ENOENT, "slab: not mapped");
	if (!info->attrs[attr])
		return !hold->at[AT_SECOND].session ? 0 :
		       ebb_refuse(info, EBB_SWAP_A_SLAB, -EINVAL,
			      "slab: it has two donors; name the one to leave");
	r = ebb_netlink_session(info, d, attr, &s);
	if (r)
		return r;
	*at = ebb_hold_session(hold, s);
	return *at < EBB_COPIES ? 0 : ebb_refuse(info, attr, -ENOENT, "session: does not have the slab");
}

/* Returns 0 if the slab's pages can leave @at for @to now; @to NULL = for the other places. */
static int check_leave(struct genl_info *info, const struct ebb_device *d,
		       const struct ebb_hold *hold, enum ebb_at at, const struct ebb_session *to)
{
	if (hold->at[AT_SOURCE].session)
		return ebb_refuse(info, EBB_SWAP_A_SLAB, -EBUSY,
			      "slab: migrating; wait until it has migrated");
	if (!to && !d->backup.bdev)
		return ebb_refuse_why(info, -EINVAL,
				  "session: not given, and the device has no backup");
	if (to && ebb_hold_session(hold, to) < AT_DONORS)
		return ebb_refuse(info, EBB_SWAP_A_SESSION, -EEXIST, "session: already has the slab");
	if (to && donor_has_other(hold, to, at))
		return ebb_refuse(info, EBB_SWAP_A_SESSION, -EEXIST,
			      "session: its donor has the slab; name another");
	return 0;
}

int ebb_do_migrate(struct sk_buff *skb, struct genl_info *info)
{
	struct ebb_session *s = NULL;
	struct ebb_device *d;
	struct ebb_slab *slab;
	struct ebb_hold hold;
	enum ebb_at at;
	u32 class;
	int r = ebb_netlink_begin(info, &d);

	if (r)
		return r;
	r = ebb_netlink_slab(info, d, &slab) ?: ebb_netlink_class(info, d, &class);
	if (!r && info->attrs[EBB_SWAP_A_SESSION])
		r = ebb_netlink_session(info, d, EBB_SWAP_A_SESSION, &s) ?:
		    check_session(info, EBB_SWAP_A_SESSION, s);
	if (!r && s && info->attrs[EBB_SWAP_A_CLASS] && s->class != class)
		r = ebb_refuse(info, EBB_SWAP_A_CLASS, -EINVAL, "class: the session is of another");
	if (!r && s)
		class = s->class;
	if (!r) {
		hold = hold_now(d, slab, class);
		r = find_place(info, d, &hold, EBB_SWAP_A_FROM, &at) ?:
		    check_leave(info, d, &hold, at, s) ?:
		    give(info, d, slab, class, s, hold.at[at].epoch, hold.copies);
	}
	ebb_netlink_end(d);
	return r;
}

int ebb_do_unmap(struct sk_buff *skb, struct genl_info *info)
{
	const struct ebb_hold *hold;
	struct ebb_place place;
	const char *why = NULL;
	struct ebb_device *d;
	struct ebb_slab *slab;
	unsigned long flags;
	enum ebb_at at;
	u32 class;
	int r = ebb_netlink_begin(info, &d);

	if (r)
		return r;
	r = ebb_netlink_slab(info, d, &slab) ?: ebb_netlink_class(info, d, &class);
	if (r)
		goto unlock;
	hold = ebb_slab_hold(d, slab, class);
	spin_lock_irqsave(&slab->lock, flags);
	if (hold->at[AT_SOURCE].session)
		r = ebb_refuse(info, EBB_SWAP_A_SLAB, -EBUSY, "slab: migrating; wait until it has migrated");
	else
		r = find_place(info, d, hold, EBB_SWAP_A_SESSION, &at);
	if (r) {
		spin_unlock_irqrestore(&slab->lock, flags);
		goto unlock;
	}
	place = hold->at[at];
	if (!list_empty(&slab->active))
		r = ebb_refuse(info, EBB_SWAP_A_SLAB, -EAGAIN, "slab: requests are in flight; try again");
	else if (!info->attrs[EBB_SWAP_A_FORCE] && ebb_slab_count_unique(d, slab, class, at))
		r = ebb_refuse(info, EBB_SWAP_A_SLAB, -EBUSY,
			   "slab: its donor has the only copy of some pages; FORCE loses them");
	else
		ebb_slab_detach(d, slab, place.session);
	spin_unlock_irqrestore(&slab->lock, flags);
	if (!r) {
		r = ebb_session_unmap(place.session, place.loan, &why);
		/* The slab has left its donor, which learns that when it is back. */
		if (r == -ENOTCONN && !ebb_session_ended(place.session))
			r = 0;
		if (r)
			ebb_refuse_why(info, r, why);
	}
unlock:
	ebb_netlink_end(d);
	return r;
}
