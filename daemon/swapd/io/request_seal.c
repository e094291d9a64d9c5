// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

#include "lib/wire/local.h"
#include "request_seal.h"
#include "swapd/page/shared.h"
#include "swapd/swapd.h"

bool sealing_wanted(const struct swapd_options *o)
{
	if (strcmp(o->seal, "auto"))
		return !strcmp(o->seal, "on");
	for (int i = 0; i < o->donors.n; i++)
		if (!local_is(o->donors.v[i]))
			return true;
	/* Without any, those to come may be anywhere. */
	return !o->donors.n;
}

int sealing_init(struct swapd *s, struct error *e)
{
	int r;

	if (!sealing_wanted(&s->options)) {
		s->donors.local_only = strcmp(s->options.seal, "off") != 0;
		return 0;
	}
	/* The key's schedule is on the heap: it is not for core dumps. */
	prctl(PR_SET_DUMPABLE, 0);
	r = seal_table_init(&s->seals, s->map->pages, e);
	if (!r)
		r = sealer_init(&s->sealer, &s->seals, e);
	s->sealed = !r;
	return r;
}

void sealing_free(struct swapd *s)
{
	sealer_free(&s->sealer);
	seal_table_free(&s->seals);
	s->sealed = false;
}

static void deliver(struct swapd *s, struct sealed_page *p)
{
	struct slot *slot = &s->slots.slot[p->slot - 1];

	shared_order();
	memcpy(slot->payload + p->page * (size_t)PAGE, p->bytes, PAGE);
	shared_order();
	slot->sealed |= 1ull << p->page;
	shared_order();
	p->slot = 0;
}

bool sealing_leaves(struct swapd *s, struct slot *slot)
{
	if (!s->sealed)
		return true;
	for (uint32_t i = 0; i < slot->count; i++) {
		struct sealed_page *p = &s->shared->sealed;
		uint8_t *page = slot->payload + i * (size_t)PAGE;

		/* A predecessor may have sealed some. */
		if (slot->sealed >> i & 1)
			continue;
		if (slot->same >> i & 1) {
			/* Their word is known here; the backup, which gets all of the slot, shall not. */
			memset(page, 0, PAGE);
			continue;
		}
		if (seal_page(&s->sealer, slot->first + i, page, p->bytes)) {
			note(&s->notes, LOG_LVL_ERR,
			     "a page cannot be sealed and is not sent; destroy and re-create the device");
			/* An older content may still be on its way to the backup. */
			seal_forget(&s->seals, slot->first, slot->count);
			return false;
		}
		p->page = i;
		shared_order();
		p->slot = (uint32_t)slot_index(&s->slots, slot) + 1;
		deliver(s, p);
	}
	return true;
}

void sealing_take_over(struct swapd *s)
{
	if (s->shared->sealed.slot)
		deliver(s, &s->shared->sealed);
}

void sealing_forget(struct swapd *s, uint32_t first, uint32_t count)
{
	if (s->sealed)
		seal_forget(&s->seals, first, count);
}

static void blame_backup(struct swapd *s)
{
	count_add(&s->count->bad_backup, 1);
	if (s->count->bad_backup == 1)
		note_event(&s->notes, EVENT_BACKUP_BAD, LOG_LVL_ERR,
			   "backup %s: returned a page that was not written there; check the disk, watch `stats`",
			   s->backup.path);
}

bool sealing_came(struct swapd *s, struct slot *slot, int copy)
{
	uint32_t page = slot->first + slot->cursor, bad;
	uint8_t *payload = slot->payload + slot->cursor * (size_t)PAGE;

	if (!s->sealed ||
	    !(slot->kind == SLOT_RESYNC ? seal_check(&s->sealer, page, slot->run, payload, &bad) :
					seal_open(&s->sealer, page, slot->run, payload, &bad)))
		return true;
	if (bad > page) {
		/* Those before it are good.  It comes again, as the first. */
		slot->run = bad - page;
		return true;
	}
	slot->run = 1;
	if (copy < 0) {
		blame_backup(s);
	} else {
		count_add(&s->count->bad_donor, 1);
		donor_blame(&s->donors.donor[slab_of_page(&s->table, page)->copy[copy].donor], page);
	}
	return false;
}
