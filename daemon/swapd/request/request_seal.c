// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>
#include <sys/prctl.h>

#include "lib/base/log_ring.h"
#include "request.h"
#include "request_seal.h"
#include "swapd/page/shared.h"

#define PAGE EBB_PAGE

int sealing_init(struct sealing *s, uint32_t pages, struct error *e)
{
	int r;

	/* The heap has the key's schedule: keep it out of core dumps. */
	prctl(PR_SET_DUMPABLE, 0);
	r = seal_table_init(&s->seals, pages, e);
	if (!r)
		r = sealer_init(&s->sealer, &s->seals, e);
	s->on = !r;
	return r;
}

void sealing_free(struct sealing *s)
{
	sealer_free(&s->sealer);
	seal_table_free(&s->seals);
	s->on = false;
}

static void deliver(struct sealing *s, struct sealed_page *p)
{
	struct slot *slot = &s->slots->slot[p->slot - 1];

	shared_order();
	memcpy(slot->payload + p->page * (size_t)PAGE, p->bytes, PAGE);
	shared_order();
	slot->sealed |= 1ull << p->page;
	shared_order();
	p->slot = 0;
}

bool sealing_leaves(struct sealing *s, struct slot *slot)
{
	if (!s->on)
		return true;
	for (uint32_t i = 0; i < slot->count; i++) {
		struct sealed_page *p = s->page;
		uint8_t *page = slot->payload + i * (size_t)PAGE;

		/* A predecessor may have sealed some. */
		if (slot->sealed >> i & 1)
			continue;
		if (slot->same_filled >> i & 1) {
			/* The page map has the word; the backup, which gets the slot, must not. */
			memset(page, 0, PAGE);
			continue;
		}
		if (seal_page(&s->sealer, slot->first + i, page, p->bytes)) {
			note(s->notes, LOG_LVL_ERR,
			     "a page cannot be sealed and is not sent; destroy and re-create the device");
			/* An older content may still be on its way to the backup. */
			seal_forget(&s->seals, slot->first, slot->count);
			return false;
		}
		p->page = i;
		shared_order();
		p->slot = (uint32_t)slot_index(s->slots, slot) + 1;
		deliver(s, p);
	}
	return true;
}

void sealing_take_over(struct sealing *s)
{
	if (s->page->slot)
		deliver(s, s->page);
}

void sealing_forget(struct sealing *s, uint32_t first, uint32_t count)
{
	if (s->on)
		seal_forget(&s->seals, first, count);
}

bool sealing_came(struct sealing *s, struct slot *slot)
{
	uint32_t page = slot->first + slot->cursor, bad;
	uint8_t *payload = slot->payload + slot->cursor * (size_t)PAGE;

	if (!s->on ||
	    !(slot->kind == SLOT_RESYNC ? seal_check(&s->sealer, page, slot->run, payload, &bad) :
					seal_open(&s->sealer, page, slot->run, payload, &bad)))
		return true;
	if (bad > page) {
		/* Pages before it are good.  It is repeated, as the first of its run. */
		slot->run = bad - page;
		return true;
	}
	slot->run = 1;
	return false;
}
