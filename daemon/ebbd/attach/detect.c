// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "detect.h"
#include "ebbd/plane/events.h"

/* Delay before detection goes off: switching costs more than 2 s of it. */
#define DETECT_TICKS 20

/* Returns the outermost attached cgroup that contains @t: the one with the events. */
static struct attachment *outermost(const struct attachments *a, const struct attachment *t)
{
	struct attachment *best = (struct attachment *)t;

	for (uint32_t i = 0; i < a->n; i++) {
		const char *rel = a->item[i]->cgroup.rel;
		size_t n = strlen(rel);

		if (n < strlen(best->cgroup.rel) && !strncmp(rel, t->cgroup.rel, n) &&
		    (t->cgroup.rel[n] == '/' || !strcmp(rel, "/")))
			best = a->item[i];
	}
	return best;
}

/* Each budget refers to the events of its outermost cgroup. */
static void tell_budgets(struct attachments *a)
{
	for (uint32_t i = 0; i < a->n; i++)
		budget_set_events(a->item[i]->budget, outermost(a, a->item[i])->events);
}

void detect_close(struct attachments *a, struct attachment *t)
{
	if (!t->events)
		return;
	/* Separately, because @t may no longer be in the list. */
	budget_set_events(t->budget, NULL);
	for (uint32_t i = 0; i < a->n; i++)
		budget_set_events(a->item[i]->budget, NULL);
	budget_quiesce(a->budgets);
	events_close(&t->events, EVENTS_UNPIN);
	tell_budgets(a);
}

int detect_rebalance(struct attachments *a, struct error *e)
{
	int r = 0;

	for (uint32_t i = 0; i < a->n && !r; i++)
		if (!a->item[i]->events && outermost(a, a->item[i]) == a->item[i])
			r = events_open(a->plane, &a->item[i]->cgroup, &a->item[i]->events, e);
	tell_budgets(a);
	for (uint32_t i = 0; i < a->n && !r; i++)
		if (a->item[i]->events && outermost(a, a->item[i]) != a->item[i])
			detect_close(a, a->item[i]);
	for (uint32_t i = 0; i < a->n && !r; i++)
		if (a->item[i]->detect == DETECT_ALWAYS)
			events_detect_on(outermost(a, a->item[i])->events);
	return r;
}

bool attachment_detecting(const struct attachments *a, const struct attachment *t)
{
	return events_detecting(outermost(a, t)->events);
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

	for (uint32_t i = 0; i < a->n; i++)
		a->item[i]->needed = false;
	/* One pass over all attachments: a search for each root would be cubic. */
	for (uint32_t i = 0; i < a->n; i++) {
		struct attachment *t = a->item[i], *root = outermost(a, t);

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
			events_detect_on(outermost(a, a->item[i])->events);
}
