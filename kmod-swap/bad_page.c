// SPDX-License-Identifier: GPL-2.0-only
#include "bad_page.h"
#include "event.h"
#include "session.h"

void ebb_bad_page(struct ebb_device *d, u64 page, u32 class, enum ebb_at from, u32 epoch)
{
	struct ebb_slab *slab = ebb_slab_of(d, page);
	const struct ebb_hold *hold = ebb_slab_hold(d, slab, class);
	enum ebb_at at = from;
	u32 session = EBB_NO_SESSION;
	unsigned long flags;
	bool first = false;

	ebb_count(d, SEAL_BROKEN, 1);
	spin_lock_irqsave(&slab->lock, flags);
	if (from < AT_DONORS)
		at = ebb_hold_epoch(hold, epoch);
	/* A mapping that has ended has no pages. */
	if (at < AT_DONORS || from == AT_BACKUP)
		__clear_bit(page, d->bits[at]);
	if (at < AT_DONORS) {
		session = hold->at[at].session->index;
		first = atomic_inc_return(&hold->at[at].session->bad_pages) == 1;
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	if (from == AT_BACKUP)
		pr_warn_ratelimited("ebb%u: page %llu on the backup is not the one written\n",
				    d->index, page);
	else if (session != EBB_NO_SESSION)
		pr_warn_ratelimited("ebb%u: page %llu of session %u is not the one written\n",
				    d->index, page, session);
	if (first)
		ebb_event_send(d, EBB_SWAP_EVENT_BAD_PAGE, session, slab - d->slabs, 0, NULL);
}
