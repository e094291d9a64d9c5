// SPDX-License-Identifier: GPL-2.0-or-later
#include "donord/donord.h"
#include "resume.h"

/* A donor that is to end does not wait longer for a borrower that is gone. */
#define ENDING_NS (3 * SECOND)

void resume_wait(struct connection *c, const char *why)
{
	struct lender *l = c->lender;
	uint32_t slabs = lend_owned(l->pool, c->number);

	if (!c->keeps || connection_is_data(c) || !slabs) {
		connection_drop(c, why);
		return;
	}
	connection_hang_up(c);
	access_end(&c->access);
	c->kept_until = l->now + l->options.keep;
	lender_say(l, LOG_LVL_INFO, "borrower %s: %s; %u slabs are kept for %llu s", c->name, why,
		   slabs, (unsigned long long)(l->options.keep / SECOND));
}

bool resume_take(struct connection *c, struct connection *old)
{
	struct lender *l = c->lender;
	uint32_t slabs;

	/* What its dead process sent must not arrive behind what this one sends. */
	connection_hang_up(old);
	slabs = lend_move(l->pool, old->number, c->number);
	l->eviction.to_ask = true;
	if (slabs)
		lender_say(l, LOG_LVL_INFO, "borrower %s: a successor has its %u slabs", old->name,
			   slabs);
	return slabs;
}

bool resume_given_up(const struct connection *c, uint64_t now)
{
	uint64_t keep = c->lender->options.keep;
	uint64_t most = c->lender->ending && keep > ENDING_NS ? ENDING_NS : keep;

	return c->kept_until && now >= c->kept_until - keep + most;
}

void resume_settle(struct connection *c)
{
	uint32_t slabs = lend_release_rest(c->lender->pool, c->number);

	if (slabs)
		lender_say(c->lender, LOG_LVL_INFO, "borrower %s: %u slabs taken back", c->name, slabs);
}
