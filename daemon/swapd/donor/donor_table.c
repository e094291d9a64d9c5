// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "donor_table.h"
#include "lib/base/clock.h"
#include "lib/link/transport.h"
#include "lib/wire/tcp.h"
#include "swapd/page/counters.h"
#include "swapd/page/shared.h"

/* Lines about a donor in a burst, and the time after which there may be one more. */
#define LINES 128
#define LINE_EVERY 30000000000ull

/* The newest read has a weight of 1 / this in a donor's recent latency. */
#define LATENCY_SHARE 8

const char *donor_state_text(const struct donor *d)
{
	static const char *const texts[] = {
		[DONOR_DOWN] = "down",
		[DONOR_CONNECTING] = "connecting",
		[DONOR_SECURING] = "securing",
		[DONOR_GREETING] = "greeting",
		[DONOR_UP] = "up",
		[DONOR_QUARANTINED] = "quarantined",
		[DONOR_ABSENT] = "absent",
	};

	uint8_t state = __atomic_load_n(&d->state, __ATOMIC_ACQUIRE);

	return state < DONOR_UP && __atomic_load_n(&d->resume, __ATOMIC_RELAXED) == RESUME_WANTED ?
	       "away" : texts[state];
}

void donor_set_state(struct donor *d, enum donor_state state, uint64_t now)
{
	if (state == DONOR_ABSENT)
		alert_end(&d->alert);
	__atomic_store_n(&d->state, (uint8_t)state, __ATOMIC_RELEASE);
	d->since = now;
}

bool donor_has_room(const struct donor *d)
{
	return d->link.tx.count - d->link.data_queued < DONOR_SEND_BESIDE;
}

bool donor_may_be_at(const struct donors *ds, const struct address *a)
{
	return ds->env.tls || address_is_local(a) || tcp_is_loopback(a);
}

void donor_record_one(const struct donor *d)
{
	struct donor_record *r = &d->table->records[d->index];

	if (d->state == DONOR_ABSENT) {
		r->used = false;
		return;
	}
	if (!r->used || memcmp(&r->address, &d->address, sizeof(d->address)))
		r->address = d->address;
	if (!r->used || memcmp(&r->at, &d->link.at, sizeof(d->link.at)))
		r->at = d->link.at;
	r->number = d->number;
	r->identity = d->identity;
	r->grace = d->grace;
	r->reserved = d->reserved;
	r->quarantined = d->state == DONOR_QUARANTINED;
	r->leaving = d->leaving & (uint8_t)~DONOR_DRAINING;
	r->unlisted = d->unlisted;
	r->losses = d->losses;
	r->absences = d->absences;
	r->bad_pages = d->bad_pages;
	r->altered = d->altered;
	r->alterations = d->alterations;
	memcpy(r->why, d->why, sizeof(r->why));
	shared_order();
	r->used = true;
}

void donors_record(struct donors *ds)
{
	for (int i = 0; i < ds->count; i++)
		donor_record_one(&ds->donor[i]);
}

bool donor_may_log(struct donor *d)
{
	uint64_t now = now_ns(), more = (now - d->lines_at) / LINE_EVERY;

	if (!d->lines_at)
		d->lines_left = LINES;
	if (!d->lines_at || more) {
		d->lines_left = more < LINES - d->lines_left ? d->lines_left + (uint32_t)more :
							       LINES;
		d->lines_at = now;
	}
	if (!d->lines_left) {
		d->lines_omitted++;
		return false;
	}
	d->lines_left--;
	if (d->lines_omitted)
		note(d->table->notes, LOG_LVL_WARN, "donor %s: %u lines were not logged",
		     d->address.text, d->lines_omitted);
	d->lines_omitted = 0;
	return true;
}

void donor_blame(struct donor *d, uint32_t page)
{
	count_add(&d->bad_pages, 1);
	if (!d->blamed && !(d->leaving & DONOR_SUSPECT))
		snprintf(d->why, sizeof(d->why), "it returned a page that was not written there (%u)",
			 page);
	d->blamed = true;
}

void donor_count(struct donor *d, const struct transfer *t)
{
	uint64_t ns;
	int bucket;

	/* Without a round trip a transfer says nothing about the donor. */
	if (!t->since)
		return;
	d->moves = true;
	if (t->op != WIRE_READ || t->result)
		return;
	ns = now_ns() - t->since;
	bucket = ns ? 63 - __builtin_clzll(ns) : 0;
	d->latency += ((int64_t)ns - (int64_t)d->latency) / LATENCY_SHARE;
	if (t->length <= DONOR_SMALL && (!d->fastest || ns < d->fastest))
		d->fastest = ns;
	count_add(&d->table->counters->latency[bucket < LATENCY_BUCKETS ? bucket :
					       LATENCY_BUCKETS - 1], 1);
}

struct donor *donor_at(struct donors *ds, const struct address *a)
{
	struct donor *same = NULL;

	for (int i = 0; i < ds->count; i++) {
		struct donor *d = &ds->donor[i];

		if (d->state == DONOR_ABSENT)
			continue;
		/* By the text first: the address of a name may change. */
		if (!strcmp(d->address.text, a->text))
			return d;
		if (address_same(&d->address, a))
			same = d;
	}
	return same;
}

struct donor *donor_find(struct donors *ds, const char *text)
{
	struct address a;

	return address_parse(text, "donor", &a, NULL) ? NULL : donor_at(ds, &a);
}

int donor_check(const struct donors *ds, const char *text, struct address *a, struct error *e)
{
	int r = address_parse(text, "donor", a, e);

	if (r)
		return r;
	if (address_is_rdma(a) && !ds->env.tls)
		return fail_exit(e, EXIT_REFUSED, EPERM,
				 "donor %s: RDMA requires a key; pass --key FILE and add it to the donor's --keys",
				 text);
	if (!donor_may_be_at(ds, a))
		return fail_exit(e, EXIT_REFUSED, EPERM,
				 "donor %s: not on this machine, so it must prove a key; pass --key FILE, made by ebbctl key create",
				 text);
	if (ds->local_only && !address_is_local(a))
		return fail_exit(e, EXIT_REFUSED, EPERM,
				 "donor %s: not on this machine, and pages of this device are not sealed; re-create the device with --seal on",
				 text);
	return 0;
}

/* Appends an entry. */
static int add_entry(struct donors *ds, struct error *e)
{
	struct donor *d = &ds->donor[ds->count];
	int r;

	*d = (struct donor){ .table = ds, .index = (uint16_t)ds->count, .state = DONOR_ABSENT };
	r = link_init(&d->link, &ds->env, d->index,
		      ds->env.transfers + WIRE_ASKED + DONOR_SEND_BESIDE);
	if (r)
		return fail(e, r, "donor: cannot add an entry: %s", strerror(-r));
	d->link.ops = ds->ops;
	d->link.owner = d;
	__atomic_store_n(&ds->count, ds->count + 1, __ATOMIC_RELEASE);
	return 0;
}

int donors_reserve(struct donors *ds, int n, struct error *e)
{
	int free_entries = 0, r = 0;

	for (int i = 0; i < ds->count; i++)
		free_entries += ds->donor[i].state == DONOR_ABSENT;
	if (free_entries + MAX_DONORS - ds->count < n)
		return fail(e, ENOSPC, "donors: %d more would be more than %d; remove some first", n,
			    MAX_DONORS);
	for (; free_entries < n && !r; free_entries++)
		r = add_entry(ds, e);
	return r;
}

/* Entries are reused, with their buffers. */
static void renew(struct donor *d, const struct address *address, const struct address *at)
{
	struct donor fresh = { .table = d->table, .index = d->index, .link = d->link,
			       .address = *address, .state = DONOR_ABSENT,
			       .backoff = DONOR_BACKOFF_FIRST };

	*d = fresh;
	link_reset(&d->link, transport_for(address), at);
}

int donor_make(struct donors *ds, const struct address *a)
{
	struct donor *d = ds->donor;

	while (d->state != DONOR_ABSENT)
		d++;
	renew(d, a, a);
	while (getrandom(&d->number, sizeof(d->number), 0) != sizeof(d->number))
		;
	if (address_is_name(a->text)) {
		int n = address_resolve(a->text, d->places, RESOLVER_PLACES);

		for (int i = 0; i < n && donor_may_be_at(ds, &d->places[i]); i++)
			d->place_count = (uint8_t)(i + 1);
		if (!d->place_count)
			d->places[d->place_count++] = *a;
	}
	return d->index;
}

/* Restores the entry @d of a predecessor, not connected. */
static void reset_entry(struct donor *d, const struct donor_record *r)
{
	renew(d, &r->address, &r->at);
	/* Its last address first; the name is looked up if that fails. */
	if (address_is_name(r->address.text))
		d->places[d->place_count++] = r->at;
}

int donor_new(struct donors *ds, const char *text, struct error *e)
{
	struct address a;
	int r = donor_check(ds, text, &a, e);

	if (r)
		return r;
	if (donor_at(ds, &a))
		return fail(e, EEXIST, "donor %s: named twice; each replica needs its own donor",
			    text);
	r = donors_reserve(ds, 1, e);
	return r ? r : donor_make(ds, &a);
}

/* Makes the entry of record @i, and those before it; 0 or -errno. */
static int prepare(struct donors *ds, int i)
{
	int r = 0;

	while (ds->count <= i && !r)
		r = add_entry(ds, NULL);
	return r ? r : transport_prepare(&ds->env, &ds->records[i].address, NULL);
}

/* Logs the first of them: a standby tries once a second. */
static void tell_unprepared(struct donors *ds, int i, int error)
{
	if (!ds->told_unprepared)
		note(ds->notes, LOG_LVL_ERR,
		     "donor %s: the next server cannot use it: %s; raise LimitMEMLOCK= and LimitNOFILE=, or free memory",
		     ds->records[i].address.text, strerror(-error));
	ds->told_unprepared = true;
}

int donors_prepare(struct donors *ds)
{
	int result = 0;

	ds->unprepared = 0;
	for (int i = 0; i < MAX_DONORS; i++) {
		int r = ds->records[i].used ? prepare(ds, i) : 0;

		if (!r)
			continue;
		tell_unprepared(ds, i, r);
		ds->unprepared |= 1ull << i;
		result = r;
	}
	return result;
}
_Static_assert(MAX_DONORS <= 64, "a bit per donor");

void donor_enter(struct donor *d, uint64_t now)
{
	donor_set_state(d, DONOR_DOWN, now);
	d->backoff = DONOR_BACKOFF_FIRST;
	d->retry_at = now;
}

void donors_take_over(struct donors *ds, uint64_t now)
{
	for (int i = 0; i < ds->count; i++) {
		const struct donor_record *r = &ds->records[i];
		struct donor *d = &ds->donor[i];

		if (!r->used) {
			d->state = DONOR_ABSENT;
			continue;
		}
		reset_entry(d, r);
		donor_enter(d, now);
		d->number = r->number;
		d->leaving = r->leaving;
		d->unlisted = r->unlisted;
		d->identity = r->identity;
		d->grace = r->grace;
		d->reserved = r->reserved;
		d->losses = r->losses;
		d->absences = r->absences;
		d->bad_pages = r->bad_pages;
		d->altered = r->altered;
		d->alterations = r->alterations;
		memcpy(d->why, r->why, sizeof(d->why));
		if (r->quarantined)
			d->state = DONOR_QUARANTINED;
	}
}
