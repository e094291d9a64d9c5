// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cycle.h"
#include "lib/base/bytes.h"
#include "lib/base/clock.h"

#define REGIONS_LEAST 256u /* of the table, a power of two */
/*
 * Most replies in a row with which a donor that has more to do gets no further: it neither marks an
 * object nor ends a region.  To trace a region takes up to 9 * 8192 units, and each TRACE does 61
 * or more of these.
 */
#define IDLE_MOST 2048u

enum list { GHOSTS, OBJECTS, LISTS };

/* Objects of a region that wait to be sent, by granule. */
struct wait {
	struct wait *next;
	struct region *region;
	uint64_t bits[TABLET_WORDS];
};

struct region {
	uint32_t number;
	struct wait *waits[LISTS];   /* in the lists of its donor; NULL = none */
	uint64_t sent[TABLET_WORDS]; /* objects that were reached */
};

struct donor {
	ebbfar_t *far;
	struct wait *first[LISTS], *last[LISTS]; /* what waits to be sent */
	enum far_cycle_message waits;
	uint64_t next_at;          /* ns, of now_ns(): when it works again */
	uint32_t next;             /* region of the next COMMIT */
	uint64_t visited;          /* objects, as of the last reply */
	uint32_t queued;           /* regions: the least since it has marked one */
	uint32_t idle, pauses;     /* replies in a row */
	uint64_t waited;           /* ns, for its replies and its pauses */
	struct jobs_call *call;    /* NULL = it was left to the client */
};

struct cycle {
	struct far_cycle step;
	const struct cycle_ops *ops;
	void *data;
	int error;                 /* the first one */
	uint32_t faults, running;  /* bits of donors, see cycle_faults() and cycle_running() */
	uint32_t heap_regions;
	struct region **regions;   /* by hash; NULL = unused */
	uint32_t size, count;
	struct cycle_counts counts;
	struct donor donor[];
};

/* --- objects ---------------------------------------------------------------------- */

static struct region **place_of(struct region **regions, uint32_t size, uint32_t number)
{
	uint32_t at = number * 0x9E3779B1u & (size - 1);

	while (regions[at] && regions[at]->number != number)
		at = (at + 1) & (size - 1);
	return &regions[at];
}

static int grow(struct cycle *c)
{
	struct region **larger = calloc(2 * c->size, sizeof(*larger));

	if (!larger)
		return -ENOMEM;
	for (uint32_t i = 0; i < c->size; i++)
		if (c->regions[i])
			*place_of(larger, 2 * c->size, c->regions[i]->number) = c->regions[i];
	free(c->regions);
	c->regions = larger;
	c->size *= 2;
	return 0;
}

static struct region *find(struct cycle *c, uint32_t number)
{
	struct region **at = place_of(c->regions, c->size, number);

	if (*at)
		return *at;
	if (c->count >= c->size / 2) {
		if (grow(c))
			return NULL;
		at = place_of(c->regions, c->size, number);
	}
	*at = calloc(1, sizeof(**at));
	if (*at) {
		(*at)->number = number;
		c->count++;
	}
	return *at;
}

/* Adds objects of a word of granules to what waits for the donor. */
static int add_waits(struct donor *d, enum list list, struct region *r, uint32_t word,
		     uint64_t bits)
{
	struct wait *w = r->waits[list];

	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w)
			return -ENOMEM;
		w->region = r;
		r->waits[list] = w;
		if (d->last[list])
			d->last[list]->next = w;
		else
			d->first[list] = w;
		d->last[list] = w;
	}
	w->bits[word] |= bits;
	return 0;
}

int cycle_ghosts(struct cycle *c, uint32_t donor, uint32_t region, uint32_t word, uint64_t bits)
{
	struct region *r = find(c, region);

	return r ? add_waits(&c->donor[donor], GHOSTS, r, word, bits) : -ENOMEM;
}

int cycle_ghost(struct cycle *c, uint32_t donor, uint32_t region, uint32_t granule)
{
	return cycle_ghosts(c, donor, region, granule / 64, UINT64_C(1) << granule % 64);
}

int cycle_push_word(struct cycle *c, uint32_t donor, uint32_t region, uint32_t word, uint64_t bits)
{
	struct region *r = find(c, region);

	if (!r || add_waits(&c->donor[donor], OBJECTS, r, word, bits))
		return -ENOMEM;
	r->sent[word] |= bits;
	far_cycle_queue(&c->step, donor);
	c->counts.sent += (uint64_t)__builtin_popcountll(bits);
	return 0;
}

int cycle_push(struct cycle *c, uint32_t region, uint32_t granule)
{
	uint64_t bit = UINT64_C(1) << granule % 64;
	struct region *r = find(c, region);
	int donor, error = 0;

	if (!r)
		return -ENOMEM;
	if (r->sent[granule / 64] & bit)
		return 0;
	r->sent[granule / 64] |= bit;
	donor = c->ops->reached(c->data, region, granule);
	/* The callee may have made the table larger: @r stays where it is. */
	if (donor >= 0 && (uint32_t)donor < c->step.donors) {
		error = add_waits(&c->donor[donor], OBJECTS, r, granule / 64, bit);
		far_cycle_queue(&c->step, (uint32_t)donor);
		c->counts.sent++;
	}
	return error;
}

/* --- messages --------------------------------------------------------------------- */

/* Returns how many words in a row have objects, from @first on. */
static uint32_t row_of(const struct wait *w, uint32_t first)
{
	uint32_t n = 0;

	while (first + n < TABLET_WORDS && w->bits[first + n])
		n++;
	return n;
}

/* Moves sets that wait into the payload from @at on, as many as fit; returns its length. */
static uint32_t take_sets(struct donor *d, enum list list, uint32_t at)
{
	while (d->first[list]) {
		struct wait *w = d->first[list];
		uint32_t i = 0, n;

		/* A set for each row of words. */
		for (; i < TABLET_WORDS; i += n ?: 1) {
			n = row_of(w, i);
			if (!n)
				continue;
			if (at + WIRE_JOB_SET_SIZE + 8 > WIRE_JOB_SETS_MOST)
				break;
			if (n > (WIRE_JOB_SETS_MOST - WIRE_JOB_SET_SIZE - at) / 8)
				n = (WIRE_JOB_SETS_MOST - WIRE_JOB_SET_SIZE - at) / 8;
			at += wire_put_job_set(d->call->payload + at, &(struct wire_job_set){
				.region = w->region->number, .first = (uint16_t)i,
				.words = (uint16_t)n });
			for (uint32_t k = i; k < i + n; k++, at += 8) {
				put64(d->call->payload + at, w->bits[k]);
				w->bits[k] = 0;
			}
		}
		if (i < TABLET_WORDS)
			break;
		d->first[list] = w->next;
		if (!d->first[list])
			d->last[list] = NULL;
		w->region->waits[list] = NULL;
		free(w);
	}
	return at;
}

static void send_message(struct cycle *c, uint32_t i, enum far_cycle_message m)
{
	static const enum wire_job_op ops[] = {
		[FAR_CYCLE_BEGIN] = WIRE_JOB_BEGIN, [FAR_CYCLE_TRACE] = WIRE_JOB_TRACE,
		[FAR_CYCLE_COMMIT] = WIRE_JOB_END,
	};
	struct donor *d = &c->donor[i];
	uint8_t *to = d->call->payload;

	switch (m) {
	case FAR_CYCLE_BEGIN:
		wire_build_job_begin(to, &(struct wire_job_begin){ c->step.number });
		d->call->length = take_sets(d, GHOSTS, WIRE_JOB_BEGIN_SIZE);
		break;
	case FAR_CYCLE_TRACE:
		wire_build_job_trace(to, &(struct wire_job_trace){
			c->step.number, c->step.donor[i].batch + 1, 0 });
		d->call->length = take_sets(d, OBJECTS, WIRE_JOB_TRACE_SIZE);
		c->counts.batches++;
		break;
	default:
		wire_build_job_end(to, &(struct wire_job_end){
			c->step.number, WIRE_JOB_COMMIT, d->next });
		d->call->length = WIRE_JOB_END_SIZE;
	}
	if (c->ops->message)
		c->ops->message(c->data, i, m, false);
	far_cycle_sent(&c->step, i, m, d->first[m == FAR_CYCLE_BEGIN ? GHOSTS : OBJECTS]);
	d->waits = m;
	jobs_start(d->far, ops[m], d->call);
}

/* Returns whether donor @d gets on, or waits for its share of the processor and then will. */
static bool gets_on(struct donor *d, const struct wire_job_traced *t)
{
	if (t->visited > d->visited || t->queued < d->queued || !t->queued) {
		d->queued = t->queued;
		d->idle = 0;
	}
	d->pauses = t->pause ? d->pauses + 1 : 0;
	d->idle += !t->pause;
	return t->visited >= d->visited && d->idle <= IDLE_MOST && d->pauses <= JOBS_PAUSES;
}

/* Takes the objects of a set that a donor has reached. */
static int take_set(struct cycle *c, const struct wire_job_set *s)
{
	/* Each region takes memory here. */
	if (s->region >= c->heap_regions)
		return -EPROTO;
	for (uint32_t w = 0; w < s->words; w++)
		for (uint64_t bits = get64(s->bits + 8 * w); bits; bits &= bits - 1) {
			uint32_t granule = 64 * (s->first + w) + (uint32_t)__builtin_ctzll(bits);
			int r;

			c->counts.received++;
			r = c->ops->named(c->data, s->region, granule) ?:
			    cycle_push(c, s->region, granule);
			if (r)
				return r;
		}
	return 0;
}

static int take_traced(struct cycle *c, uint32_t i)
{
	struct donor *d = &c->donor[i];
	size_t at = WIRE_JOB_TRACED_SIZE;
	struct wire_job_traced t;
	struct wire_job_set s;
	int r = wire_parse_job_traced(d->call->reply, d->call->got, &t);

	if (r || t.cycle != c->step.number || !gets_on(d, &t) ||
	    t.visited > (uint64_t)c->heap_regions * TABLET_SLOTS ||
	    !far_cycle_replied(&c->step, i, FAR_CYCLE_TRACE, t.batch, t.queued))
		return -EPROTO;
	/* What it has traced is not what the heap has there. */
	if (t.odd)
		return -EBADMSG;
	d->next_at = t.pause ? now_ns() + t.pause * 1000ull : 0;
	c->counts.paused += t.pause;
	while ((r = wire_next_job_set(d->call->reply, d->call->got, &at, &s)) > 0) {
		r = take_set(c, &s);
		if (r)
			return r;
	}
	c->counts.visited += t.visited - d->visited;
	d->visited = t.visited;
	return r;
}

static int take_ended(struct cycle *c, uint32_t i)
{
	struct donor *d = &c->donor[i];
	size_t at = WIRE_JOB_ENDED_SIZE;
	struct wire_job_ended e;
	struct wire_job_bits b;
	int r = wire_parse_job_ended(d->call->reply, d->call->got, &e);

	/* Each part goes on: else a donor could keep the borrower for ever. */
	if (r || e.cycle != c->step.number || e.next <= d->next ||
	    (e.next >= c->heap_regions && e.next != WIRE_JOB_NO_REGION))
		return -EPROTO;
	while ((r = wire_next_job_bits(d->call->reply, d->call->got, &at, 2, &b)) > 0) {
		if (b.region >= c->heap_regions)
			return -EPROTO;
		c->ops->marks(c->data, i, &b);
	}
	if (r)
		return r;
	d->next = e.next;
	far_cycle_replied(&c->step, i, FAR_CYCLE_COMMIT, 0, e.next != WIRE_JOB_NO_REGION);
	return 0;
}

/* The donor has failed by @error: nothing may be freed. */
static void failed(struct cycle *c, uint32_t i, int error)
{
	c->error = c->error ?: error;
	/* These are of this process. */
	if (error != -ENOMEM && error != -ECANCELED)
		c->faults |= 1u << i;
	far_cycle_fail(&c->step, i, *ebbfar_why(c->donor[i].far));
}

static void take(struct cycle *c, uint32_t i)
{
	struct donor *d = &c->donor[i];
	enum far_cycle_message m = d->waits;
	int r = -EAGAIN;

	d->waits = FAR_CYCLE_NONE;
	if (!jobs_is_done(d->call)) {
		jobs_leave(d->call);
		d->call = NULL;
	} else {
		r = d->call->result;
		if (!r && m == FAR_CYCLE_BEGIN)
			far_cycle_replied(&c->step, i, m, 0, false);
		else if (!r)
			r = m == FAR_CYCLE_TRACE ? take_traced(c, i) : take_ended(c, i);
	}
	if (c->ops->message)
		c->ops->message(c->data, i, m, true);
	if (r)
		failed(c, i, r);
}

/* Returns the message to send to a donor, or FAR_CYCLE_NONE; @at: it does not work before that. */
static enum far_cycle_message next_message(const struct cycle *c, uint32_t i, uint64_t *at)
{
	enum far_cycle_message m = far_cycle_next(&c->step, i);

	*at = m == FAR_CYCLE_TRACE ? c->donor[i].next_at : 0;
	return m;
}

static struct jobs_wait wait_of(const struct cycle *c, uint32_t wait_ms)
{
	return (struct jobs_wait){
		wait_ms == CYCLE_WAITS ? UINT64_MAX : now_ns() + wait_ms * UINT64_C(1000000),
		c->ops->late, c->data };
}

/* Sleeps from @now until @first, of now_ns(); less if it is late before.  Returns when it ends. */
static uint64_t nap(uint64_t now, uint64_t first, const struct jobs_wait *w)
{
	while (now < first && !jobs_is_late(w)) {
		uint64_t ns = w->late && first - now > JOBS_LATE_NS ? JOBS_LATE_NS : first - now;

		nanosleep(&(struct timespec){ (time_t)(ns / 1000000000), (long)(ns % 1000000000) },
			  NULL);
		now = now_ns();
	}
	return now;
}

/*
 * Waits for the donor that works again first, if no donor works now.  Returns false if it is late,
 * or would be then.
 */
static bool wait_for_donors(struct cycle *c, const struct jobs_wait *w)
{
	uint64_t first = UINT64_MAX, now = now_ns(), at;
	uint32_t donor = 0;

	for (uint32_t i = 0; i < c->step.donors; i++)
		if (next_message(c, i, &at) && at < first) {
			first = at;
			donor = i;
		}
	if (first == UINT64_MAX || first < now)
		first = now;
	if (first > w->until)
		return false;
	at = nap(now, first, w);
	c->donor[donor].waited += at - now;
	return at >= first;
}

/*
 * Sends each donor its next message, unless it does not work yet, and takes all replies that come
 * until it is late.  Returns whether there was any message.
 */
static bool exchange(struct cycle *c, const struct jobs_wait *w)
{
	struct jobs_call *calls[FAR_CYCLE_DONORS];
	uint64_t now = now_ns(), at;
	uint32_t n = 0;
	bool any = false;

	for (uint32_t i = 0; i < c->step.donors; i++) {
		enum far_cycle_message m = next_message(c, i, &at);

		any = any || m;
		if (!m || at > now)
			continue;
		send_message(c, i, m);
		calls[n++] = c->donor[i].call;
	}
	jobs_settle(calls, n, w);
	for (uint32_t i = 0; i < c->step.donors; i++) {
		struct donor *d = &c->donor[i];

		if (!d->waits)
			continue;
		d->waited += (jobs_is_done(d->call) ? d->call->done_at : now_ns()) - now;
		take(c, i);
	}
	return any;
}

/* The time is up: before the end of marking, or of the marks' transfer. */
static void late(struct cycle *c)
{
	c->error = c->error ?: -EAGAIN;
	for (uint32_t i = 0; i < c->step.donors; i++)
		if (c->step.phase == FAR_CYCLE_MARKS ? !far_cycle_is_done(&c->step, i) :
						       !c->step.donor[i].ended)
			c->faults |= 1u << i;
}

int cycle_run(struct cycle *c, uint32_t wait_ms)
{
	const struct jobs_wait w = wait_of(c, wait_ms);

	while (c->step.phase == FAR_CYCLE_MARKS && !far_cycle_is_quiet(&c->step)) {
		if (!wait_for_donors(c, &w)) {
			late(c);
			break;
		}
		exchange(c, &w);
	}
	if (c->step.phase == FAR_CYCLE_MARKS && !far_cycle_is_quiet(&c->step))
		c->step.phase = FAR_CYCLE_ABANDONED;
	if (c->step.phase == FAR_CYCLE_MARKS)
		return 0;
	cycle_abandon(c);
	return c->error ?: -ECANCELED;
}

int cycle_end(struct cycle *c, uint32_t wait_ms)
{
	const struct jobs_wait w = wait_of(c, wait_ms);

	if (!far_cycle_end(&c->step))
		return c->error ?: -EBUSY;
	/* A donor may send the marks of one region at a time. */
	while (c->step.phase == FAR_CYCLE_ENDS && exchange(c, &w))
		if (c->step.phase == FAR_CYCLE_ENDS && jobs_is_late(&w)) {
			late(c);
			break;
		}
	if (c->step.phase == FAR_CYCLE_DONE)
		return 0;
	cycle_abandon(c);
	return c->error ?: -ECANCELED;
}

void cycle_abandon(struct cycle *c)
{
	/* One time-out for all of them. */
	uint64_t began = now_ns();

	if (c->step.phase == FAR_CYCLE_MARKS || c->step.phase == FAR_CYCLE_ENDS)
		c->step.phase = FAR_CYCLE_ABANDONED;
	if (c->step.phase != FAR_CYCLE_ABANDONED)
		return;
	for (uint32_t i = 0; i < c->step.donors; i++) {
		if (far_cycle_next(&c->step, i) != FAR_CYCLE_ABORT)
			continue;
		if (c->ops->message)
			c->ops->message(c->data, i, FAR_CYCLE_ABORT, false);
		if (!jobs_abort(c->donor[i].far, c->step.number, began))
			c->running |= 1u << i;
		/* The reply says nothing. */
		far_cycle_sent(&c->step, i, FAR_CYCLE_ABORT, false);
		far_cycle_replied(&c->step, i, FAR_CYCLE_ABORT, 0, false);
		if (c->ops->message)
			c->ops->message(c->data, i, FAR_CYCLE_ABORT, true);
	}
}

enum far_cycle_phase cycle_phase(const struct cycle *c)
{
	return c->step.phase;
}

uint32_t cycle_faults(const struct cycle *c)
{
	return c->faults;
}

uint32_t cycle_running(const struct cycle *c)
{
	return c->running;
}

uint32_t cycle_slowest(const struct cycle *c)
{
	uint32_t slowest = 0;

	for (uint32_t i = 1; i < c->step.donors; i++)
		if (c->donor[i].waited > c->donor[slowest].waited)
			slowest = i;
	return slowest;
}

struct cycle_counts cycle_counts(const struct cycle *c)
{
	return c->counts;
}

/* --- begin and end ---------------------------------------------------------------- */

int cycle_new(struct cycle **out, ebbfar_t *const *donors, uint32_t n, uint32_t number,
	      uint32_t regions, const struct cycle_ops *ops, void *data)
{
	struct cycle *c;

	if (n > FAR_CYCLE_DONORS)
		return -EINVAL;
	c = calloc(1, sizeof(*c) + n * sizeof(c->donor[0]));
	if (!c)
		return -ENOMEM;
	c->regions = calloc(REGIONS_LEAST, sizeof(*c->regions));
	if (!c->regions) {
		free(c);
		return -ENOMEM;
	}
	c->size = REGIONS_LEAST;
	c->heap_regions = regions;
	c->ops = ops;
	c->data = data;
	far_cycle_begin(&c->step, number, n);
	for (uint32_t i = 0; i < n; i++) {
		c->donor[i].far = donors[i];
		c->donor[i].call = malloc(sizeof(*c->donor[i].call));
		if (!c->donor[i].call) {
			cycle_free(&c);
			return -ENOMEM;
		}
	}
	*out = c;
	return 0;
}

void cycle_leave_out(struct cycle *c, uint32_t donor)
{
	far_cycle_leave_out(&c->step, donor);
}

void cycle_free(struct cycle **cp)
{
	struct cycle *c = *cp;

	*cp = NULL;
	if (!c)
		return;
	for (uint32_t i = 0; i < c->size; i++) {
		for (int list = 0; c->regions[i] && list < LISTS; list++)
			free(c->regions[i]->waits[list]);
		free(c->regions[i]);
	}
	for (uint32_t i = 0; i < c->step.donors; i++)
		free(c->donor[i].call);
	free(c->regions);
	free(c);
}
