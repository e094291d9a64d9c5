// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdatomic.h>

#include "detect.h"
#include "ebbd/plane/events.h"

/* Delay before detection goes off: switching costs more than 2 s of it. */
#define DETECT_TICKS 20

/* Each budget refers to the events of its outermost cgroup. */
static void tell_budgets(struct attachments *a, struct attached_range r)
{
	for (uint32_t i = r.first; i < r.end; i++)
		budget_set_events(a->item[i]->budget, a->item[i]->root->events);
}

void detect_close(struct attachments *a, struct attachment *t)
{
	struct attached_range r = attachments_below(a, t->cgroup.rel);

	if (!t->events)
		return;
	/* Separately, because @t may no longer be in the list. */
	budget_set_events(t->budget, NULL);
	for (uint32_t i = r.first; i < r.end; i++)
		budget_set_events(a->item[i]->budget, NULL);
	budget_quiesce(a->budgets);
	events_close(&t->events);
	tell_budgets(a, r);
}

static int settle(struct attachments *a, struct attached_range r, struct error *e)
{
	int failed = a->n ? events_watch(a->plane, e) : 0;
	struct attachment *t;

	for (uint32_t i = r.first; i < r.end && !failed; i++) {
		t = a->item[i];
		if (!t->events && t->root == t)
			failed = events_open(a->plane, &t->cgroup, &t->events, e);
	}
	a->unopened |= failed != 0;
	tell_budgets(a, r);
	for (uint32_t i = r.first; i < r.end && !failed; i++)
		if (a->item[i]->events && a->item[i]->root != a->item[i])
			detect_close(a, a->item[i]);
	for (uint32_t i = r.first; i < r.end && !failed; i++)
		if (a->item[i]->detect == DETECT_ALWAYS)
			events_detect_on(a->item[i]->root->events);
	return failed;
}

int detect_rebalance(struct attachments *a, struct error *e)
{
	a->unopened = false;
	return settle(a, (struct attached_range){ 0, a->n }, e);
}

int detect_rebalance_below(struct attachments *a, const char *rel, struct error *e)
{
	return a->unopened ? detect_rebalance(a, e) : settle(a, attachments_below(a, rel), e);
}

bool attachment_detecting(const struct attachment *t)
{
	return events_detecting(t->root->events);
}

static bool needs(const struct attachments *a, struct attachment *t)
{
	uint64_t before = t->uses;
	struct ebb_counters c;

	t->uses = budget_uses(t->budget);
	if (t->detect == DETECT_ALWAYS || t->uses != before)
		return true;
	plane_counters(a->plane, t->cgroup.id, &c);
	return budget_outstanding(t->budget, &c);
}

void detect_tick(struct attachments *a)
{
	bool off = false;

	if (!atomic_load(&a->plane->detecting))
		return;
	for (uint32_t i = 0; i < a->n; i++)
		a->item[i]->needed = false;
	/* One pass over all attachments: a search for each root would be quadratic. */
	for (uint32_t i = 0; i < a->n; i++) {
		struct attachment *t = a->item[i], *root = t->root;

		if (events_detecting(root->events) && !root->needed)
			root->needed = needs(a, t);
	}
	for (uint32_t i = 0; i < a->n; i++) {
		struct attachment *root = a->item[i];

		if (!events_detecting(root->events))
			continue;
		root->quiet_ticks = root->needed ? 0 : root->quiet_ticks + 1;
		if (root->quiet_ticks > DETECT_TICKS) {
			events_detect_off(root->events);
			off = true;
		}
	}
	/*
	 * The executor may just have found detection on, and does not check again for this batch.
	 */
	for (uint32_t i = 0; off && i < a->n; i++)
		if (budget_uses(a->item[i]->budget) != a->item[i]->uses)
			events_detect_on(a->item[i]->root->events);
}
