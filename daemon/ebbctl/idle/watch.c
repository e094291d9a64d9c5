// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "lib/base/clock.h"
#include "watch.h"

/* The readings of a watch; reading 0 begins it. */
struct readings {
	uint64_t at[IDLE_READINGS_MAX]; /* ns after reading 0 */
	uint64_t asked[IDLE_READINGS_MAX];
	struct idle_counts counts[IDLE_READINGS_MAX];
	uint32_t n;
};

/* Returns the first reading from which reading @i knows the accesses; @i: none. */
static uint32_t known_from(const struct readings *r, uint32_t i)
{
	for (uint32_t j = 0; j < i; j++)
		if (r->counts[i].since[j] != IDLE_UNKNOWN)
			return j;
	return i;
}

/* How much of what was idle at reading @i was no longer at the next reading. */
static void count_returned(const struct readings *r, uint32_t i, struct idle_row *row)
{
	uint32_t j = i + 1 < r->n ? known_from(r, i + 1) : i;
	uint64_t before, after;

	/* Both readings must know of the same set. */
	if (j >= i || r->counts[i].since[j] == IDLE_UNKNOWN)
		return;
	before = r->counts[i].since[j];
	after = r->counts[i + 1].since[j];
	row->returned = before > after ? before - after : 0;
	row->window_ns = r->at[i + 1] - r->at[i];
}

static void report_fill(const struct readings *r, struct idle_report *report)
{
	for (uint32_t i = 1; i < r->n; i++) {
		uint32_t j = known_from(r, i);
		struct idle_row row = { .asked_ns = r->asked[i], .idle_ns = r->at[i] - r->at[j] };

		report->reached += !!row.asked_ns;
		/* The last reading is a row only if it is the only one. */
		if (j == i || (!row.asked_ns && report->n))
			continue;
		row.bytes = r->counts[i].since[j];
		count_returned(r, i, &row);
		report->row[report->n++] = row;
	}
	report->watched = r->at[r->n - 1];
	report->seen = r->counts[r->n - 1].total;
}

static int take(const struct idle_source *source, void *state, const struct idle_plan *plan,
		struct readings *r, uint64_t begin, uint64_t asked, struct error *e)
{
	struct idle_counts *c = &r->counts[r->n];
	uint32_t from;
	int status;

	memset(c->since, 0xff, sizeof(c->since));
	status = source->read(state, r->n, c, e);
	if (status)
		return status;
	r->at[r->n] = r->n ? now_ns() - begin : 0;
	r->asked[r->n] = asked;
	from = known_from(r, r->n);
	if (r->n && from == r->n)
		return fail_exit(e, EXIT_REFUSED, EAGAIN,
				 "advise: the kernel aged this memory itself, under memory pressure or for another program; try again without them");
	plan->progress(plan->data, r->at[r->n], r->n ? c->since[from] : 0, c->total);
	r->n++;
	return 0;
}

int idle_watch(const struct idle_source *source, void *state, const struct idle_plan *plan,
	       struct idle_report *report, struct error *e)
{
	struct readings r = { .n = 0 };
	bool waits = true;
	uint64_t begin;
	int status = take(source, state, plan, &r, 0, 0, e);

	*report = (struct idle_report){ 0 };
	if (status)
		return status;
	begin = now_ns();
	for (uint32_t i = 0; !status && waits && i < plan->n; i++) {
		if (plan->times[i] > plan->duration)
			break;
		waits = plan->wait(begin, plan->times[i]);
		status = take(source, state, plan, &r, begin, waits ? plan->times[i] : 0, e);
	}
	/* Shows what came back after the last time. */
	if (!status && waits && r.asked[r.n - 1] < plan->duration) {
		plan->wait(begin, plan->duration);
		status = take(source, state, plan, &r, begin, 0, e);
	}
	report_fill(&r, report);
	return status;
}
