// SPDX-License-Identifier: GPL-2.0-or-later
#include "lib/base/clock.h"
#include "watch.h"

/* The first reading, one for each time, and the last one. */
#define READINGS_MAX (IDLE_TIMES_MAX + 2)

/* The readings of a watch; reading 0 begins it. */
struct readings {
	uint64_t at[READINGS_MAX]; /* ns after reading 0 */
	uint64_t asked[READINGS_MAX];
	struct idle_counts counts[READINGS_MAX];
	uint32_t n;
};

/* Sets what was idle at reading @i and no longer at the next one. */
static void count_returned(const struct readings *r, uint32_t i, struct idle_row *row)
{
	uint64_t before = r->counts[i].idle, after;

	if (i + 1 == r->n)
		return;
	after = r->counts[i + 1].idle;
	row->returned = before > after ? before - after : 0;
	row->window_ns = r->at[i + 1] - r->at[i];
}

static void report_fill(const struct readings *r, struct idle_report *report)
{
	for (uint32_t i = 1; i < r->n; i++) {
		struct idle_row row = { .asked_ns = r->asked[i], .idle_ns = r->at[i],
					.bytes = r->counts[i].idle };

		report->reached += !!row.asked_ns;
		/* The last reading is a row only if it is the only one. */
		if (!row.asked_ns && report->n)
			continue;
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
	int status = source->read(state, !r->n, c, e);

	if (status)
		return status;
	r->at[r->n] = r->n ? now_ns() - begin : 0;
	r->asked[r->n] = asked;
	plan->progress(plan->data, r->at[r->n], c->idle, c->total);
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
