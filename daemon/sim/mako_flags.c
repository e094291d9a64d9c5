// SPDX-License-Identifier: GPL-2.0-or-later
#include "mako_flags.h"

/* After each event: flags that differ from before are a change. */
static void update(struct mako_agent *a, const struct mako_rule *rule)
{
	uint8_t now = 0;

	if (a->grey)
		now |= MAKO_TRACING;
	if (a->roots)
		now |= MAKO_ROOTS;
	if (a->ghosts || (a->unacknowledged && !rule->clear_on_send))
		now |= MAKO_GHOSTS;
	now &= (uint8_t)~rule->without;
	a->changed |= now != a->flags;
	a->flags = now;
}

void mako_receive(struct mako_agent *a, const struct mako_rule *rule, uint32_t references)
{
	a->roots += references;
	update(a, rule);
}

void mako_drop(struct mako_agent *a, const struct mako_rule *rule, uint32_t references)
{
	a->roots -= references;
	update(a, rule);
}

void mako_take(struct mako_agent *a, const struct mako_rule *rule)
{
	/* At once: between the two flags a server with work would look idle. */
	a->grey += a->roots;
	a->roots = 0;
	update(a, rule);
}

void mako_visit(struct mako_agent *a, const struct mako_rule *rule, uint32_t local,
		uint32_t remote)
{
	a->grey += local - 1;
	a->ghosts += remote;
	update(a, rule);
}

void mako_send(struct mako_agent *a, const struct mako_rule *rule, uint32_t references)
{
	a->ghosts -= references;
	a->unacknowledged++;
	update(a, rule);
}

void mako_acknowledged(struct mako_agent *a, const struct mako_rule *rule)
{
	a->unacknowledged--;
	update(a, rule);
}

uint8_t mako_reply(struct mako_agent *a, const struct mako_rule *rule, uint8_t round)
{
	uint8_t flags = a->flags;

	if (!round) {
		a->changed = false;
		a->polled = a->flags;
		return flags;
	}
	if (rule->compare ? a->flags != a->polled : a->changed)
		flags |= MAKO_CHANGED;
	return flags & (uint8_t)~rule->without;
}

void mako_poll(struct mako_poller *p, uint8_t servers)
{
	p->servers = servers;
	p->round = 0;
	p->seen = 0;
	p->again = 0;
	p->waiting = (1u << servers) - 1;
}

enum mako_progress mako_replied(struct mako_poller *p, const struct mako_rule *rule,
				uint8_t server, uint8_t flags)
{
	p->seen |= flags;
	if (rule->overlap && !(p->again & 1u << server)) {
		p->again |= 1u << server;
		return MAKO_POLL_ONE;
	}
	p->waiting &= ~(1u << server);
	if (p->waiting)
		return MAKO_WAIT;
	if (p->seen) {
		mako_poll(p, p->servers);
		return MAKO_POLL;
	}
	if (p->round || rule->one_round || rule->overlap)
		return MAKO_ENDED;
	p->round = 1;
	p->waiting = (1u << p->servers) - 1;
	return MAKO_POLL;
}
