// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "donor_table.h"
#include "lib/link/transport.h"
#include "lib/wire/tcp.h"
#include "swapd/page/shared.h"
#include "swapd/swapd.h"

/* Of a donor's recent latency, the newest read is one part in so many. */
#define LATENCY_SHARE 8

const char *donor_state_text(uint8_t state)
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

	return texts[state];
}

void donor_set_state(struct donor *d, enum donor_state state, uint64_t now)
{
	__atomic_store_n(&d->state, (uint8_t)state, __ATOMIC_RELEASE);
	d->since = now;
}

bool donor_has_room(const struct donor *d)
{
	return d->tx.count - d->legs_queued < DONOR_SEND_BESIDE;
}

/* Who comes from elsewhere must be known by a key. */
bool donor_may_be_at(const struct swapd *s, const struct address *a)
{
	return s->tls || address_is_local(a) || tcp_is_loopback(a);
}

/* Writes down for a successor what it has to know of @d. */
void donor_record_one(struct swapd *s, const struct donor *d)
{
	struct donor_record *r = &s->shared->donors[d->index];

	if (d->state == DONOR_ABSENT) {
		r->used = false;
		return;
	}
	if (!r->used || memcmp(&r->address, &d->address, sizeof(d->address)))
		r->address = d->address;
	if (!r->used || memcmp(&r->at, &d->at, sizeof(d->at)))
		r->at = d->at;
	r->identity = d->identity;
	r->quarantined = d->state == DONOR_QUARANTINED;
	r->leaving = d->leaving & (uint8_t)~DONOR_DRAINING;
	r->losses = d->losses;
	r->bad_pages = d->bad_pages;
	memcpy(r->why, d->why, sizeof(r->why));
	shared_order();
	r->used = true;
}

void donors_record(struct swapd *s)
{
	for (int i = 0; i < s->donor_count; i++)
		donor_record_one(s, &s->donors[i]);
}

void donor_blame(struct donor *d, uint32_t page)
{
	count_add(&d->bad_pages, 1);
	if (!d->blamed && !(d->leaving & DONOR_SUSPECT))
		snprintf(d->why, sizeof(d->why), "it returned a page that was not written there (%u)",
			 page);
	d->blamed = true;
}

uint64_t donor_leg_tag(const struct swapd *s, const struct slot *slot, int leg)
{
	return (uint64_t)TAG_LEG << TAG_KIND | (uint64_t)slot->leg[leg].sequence << 16 |
	       (uint32_t)leg_number(&s->slots, slot, leg);
}

void donor_wait(struct swapd *s, struct donor *d, struct slot *slot, int leg)
{
	slot->leg[leg].donor = d->index;
	slot->leg[leg].since = now_ns();
	slot->leg[leg].sequence++;
	leg_append(&s->slots, &d->waiting, leg_number(&s->slots, slot, leg));
}

void donor_answered(struct swapd *s, struct donor *d, int number)
{
	leg_remove(&s->slots, &d->waiting, number);
	d->moves = true;
}

void donor_count_latency(struct swapd *s, struct donor *d, uint64_t ns)
{
	int bucket = ns ? 63 - __builtin_clzll(ns) : 0;

	d->latency += ((int64_t)ns - (int64_t)d->latency) / LATENCY_SHARE;
	count_add(&s->count->latency[bucket < LATENCY_BUCKETS ? bucket : LATENCY_BUCKETS - 1], 1);
}

struct donor *donor_at(struct swapd *s, const struct address *a)
{
	struct donor *same = NULL;

	for (int i = 0; i < s->donor_count; i++) {
		struct donor *d = &s->donors[i];

		if (d->state == DONOR_ABSENT)
			continue;
		/* By its name first: what a name means may change. */
		if (!strcmp(d->address.text, a->text))
			return d;
		if (address_same(&d->address, a))
			same = d;
	}
	return same;
}

struct donor *donor_find(struct swapd *s, const char *text)
{
	struct address a;

	return address_parse(text, "donor", &a, NULL) ? NULL : donor_at(s, &a);
}

int donor_check(const struct swapd *s, const char *text, struct address *a, struct error *e)
{
	int r = address_parse(text, "donor", a, e);

	if (r)
		return r;
	if (address_is_rdma(a) && !s->tls)
		return fail_exit(e, EXIT_REFUSED, EPERM,
				 "donor %s: RDMA requires a key; pass --key FILE and add it to the donor's --keys",
				 text);
	if (!donor_may_be_at(s, a))
		return fail_exit(e, EXIT_REFUSED, EPERM,
				 "donor %s: not on this machine, so it must prove a key; pass --key FILE, made by ebbctl key create",
				 text);
	if (s->local_only && !address_is_local(a))
		return fail_exit(e, EXIT_REFUSED, EPERM,
				 "donor %s: not on this machine, and pages of this device are not sealed; re-create the device with --seal on",
				 text);
	return 0;
}

void donor_free_links(struct swapd *s, struct donor *d)
{
	for (uint64_t i = 0; s->tls && i < s->options.connections; i++)
		data_link_free(&d->link[i]);
}

/* A further entry, behind the others. */
static int add_entry(struct swapd *s, struct error *e)
{
	struct donor *d = &s->donors[s->donor_count];
	int r;

	*d = (struct donor){ .index = (uint16_t)s->donor_count, .fd = -1 };
	r = stream_rx_init(&d->rx, WIRE_AT_BORROWER);
	if (!r)
		r = stream_tx_init(&d->tx, DONOR_SEND_QUEUE);
	/* Used again by others, they may have to be there. */
	for (uint64_t i = 0; s->tls && i < s->options.connections && !r; i++)
		r = data_link_init(&d->link[i], (uint8_t)i, SLOT_COUNT);
	if (r) {
		donor_free_links(s, d);
		stream_rx_free(&d->rx);
		stream_tx_free(&d->tx);
		return fail(e, r, "donor: cannot add an entry: %s", strerror(-r));
	}
	d->state = DONOR_ABSENT;
	__atomic_store_n(&s->donor_count, s->donor_count + 1, __ATOMIC_RELEASE);
	return 0;
}

int donors_reserve(struct swapd *s, int n, struct error *e)
{
	int free_entries = 0, r = 0;

	for (int i = 0; i < s->donor_count; i++)
		free_entries += s->donors[i].state == DONOR_ABSENT;
	if (free_entries + MAX_DONORS - s->donor_count < n)
		return fail(e, ENOSPC, "donors: %d more would be more than %d; remove some first", n,
			    MAX_DONORS);
	for (; free_entries < n && !r; free_entries++)
		r = add_entry(s, e);
	return r;
}

/* Entries are used again, with their buffers. */
static void renew(struct donor *d, const struct address *address, const struct address *at)
{
	struct donor fresh = { .index = d->index, .fd = -1, .rx = d->rx, .tx = d->tx,
			       .address = *address, .at = *at, .state = DONOR_ABSENT,
			       .waiting = LEG_LIST_EMPTY, .backoff = DONOR_BACKOFF_FIRST };

	memcpy(fresh.link, d->link, sizeof(d->link));
	fresh.rx.takes_fds = false;
	fresh.transport = transport_for(address);
	*d = fresh;
}

int donor_make(struct swapd *s, const struct address *a)
{
	struct donor *d = s->donors;

	while (d->state != DONOR_ABSENT)
		d++;
	renew(d, a, a);
	if (address_is_name(a->text)) {
		int n = address_resolve(a->text, d->places, RESOLVER_PLACES);

		for (int i = 0; i < n && donor_may_be_at(s, &d->places[i]); i++)
			d->place_count = (uint8_t)(i + 1);
		if (!d->place_count)
			d->places[d->place_count++] = *a;
	}
	return d->index;
}

/* The entry at @d, not connected, as a predecessor had it. */
static void reset_entry(struct donor *d, const struct donor_record *r)
{
	renew(d, &r->address, &r->at);
	/* First where it was; what the name means else is asked when it is not there. */
	if (address_is_name(r->address.text))
		d->places[d->place_count++] = r->at;
}

int donor_new(struct swapd *s, const char *text, struct error *e)
{
	struct address a;
	int r = donor_check(s, text, &a, e);

	if (r)
		return r;
	if (donor_at(s, &a))
		return fail(e, EEXIST, "donor %s: named twice; each replica needs its own donor",
			    text);
	r = donors_reserve(s, 1, e);
	return r ? r : donor_make(s, &a);
}

void donors_prepare(struct swapd *s)
{
	for (int i = 0; i < MAX_DONORS; i++) {
		const struct donor_record *r = &s->shared->donors[i];

		while (r->used && s->donor_count <= i)
			if (add_entry(s, NULL))
				return;
		if (r->used && transport_prepare(s, &r->address, NULL))
			return;
	}
}

void donor_enter(struct donor *d, uint64_t now)
{
	donor_set_state(d, DONOR_DOWN, now);
	d->backoff = DONOR_BACKOFF_FIRST;
	d->retry_at = now;
}

void donors_take_over(struct swapd *s, uint64_t now)
{
	donors_prepare(s);
	for (int i = 0; i < s->donor_count; i++) {
		const struct donor_record *r = &s->shared->donors[i];
		struct donor *d = &s->donors[i];

		if (!r->used) {
			d->state = DONOR_ABSENT;
			continue;
		}
		reset_entry(d, r);
		donor_enter(d, now);
		d->leaving = r->leaving;
		d->identity = r->identity;
		d->losses = r->losses;
		d->bad_pages = r->bad_pages;
		memcpy(d->why, r->why, sizeof(d->why));
		if (r->quarantined)
			d->state = DONOR_QUARANTINED;
	}
}
