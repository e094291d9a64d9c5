// SPDX-License-Identifier: GPL-2.0-or-later
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "device_world.h"
#include "swapd/frontend/frontend.h"
#include "swapd/page/page_map.h"
#include "swapd/request/engine.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

struct swapd s;
struct shared shared;
struct slab *slabs;
uint32_t answered, failed;
uint64_t read_word;

static struct stream_entry *entries;

static enum slot_after answer(void *host, struct slot *slot, int error)
{
	answered++;
	failed += error != 0;
	if (!error && slot->kind == SLOT_READ)
		memcpy(&read_word, slot->payload, sizeof(read_word));
	return SLOT_DONE;
}

static const struct frontend frontend_fake = { .name = "fake", .answer = answer };

void transfer_at_once(struct link *l, const struct mapping *m, struct transfer *t)
{
	l->ops->done(l->owner, t);
}

const struct transport transport_fake = { .name = "fake", .submit = transfer_at_once };

static void add_donor(const struct device_setup *setup, uint16_t i)
{
	s.donors.donor[i] = (struct donor){
		.table = &s.donors, .index = i, .state = DONOR_UP, .version = setup->version,
		.total = PLENTY, .free = PLENTY, .room = PLENTY,
		.link = {
			.transport = setup->transport, .env = &s.donors.env, .ops = s.donors.ops,
			.owner = &s.donors.donor[i], .index = i, .fd = -1,
			.slab_size = s.options.slab,
			.watched_for_write = true, /* frames stay until take_frame() */
			.tx = { .entries = entries + i * setup->queue, .size = setup->queue },
		},
	};
}

void device_begin(const struct device_setup *setup)
{
	uint32_t pages = setup->slabs * setup->slab_pages;
	struct error e = { 0 };

	memset(&shared, 0, sizeof(shared));
	answered = failed = 0;
	slabs = calloc(setup->slabs, sizeof(*slabs));
	entries = calloc((size_t)setup->donors * setup->queue, sizeof(*entries));
	assert_non_null(slabs);
	assert_non_null(entries);
	s = (struct swapd){
		.frontend = &frontend_fake,
		.options = { .name = "unit", .slab = setup->slab_pages * PAGE,
			     .repair_rate = 1 << 30, .repair_delay = setup->repair_delay,
			     .deadline = 500 * MS, .away_timeout = 25 * SECOND },
		.shared = &shared,
		.count = &shared.counters,
		.replicas = { .wanted = setup->replicas, .choices = 2, .seed = 1,
			      .slots_reserved = SLOTS_RESERVED },
		.donors = { .count = setup->donors, .env.epoll_fd = -1 },
		.engine = { .backlog_most = SLOT_COUNT - fuse_frontend.slots,
			    .backup.fd = setup->backup ? 1 << 20 : -1 },
	};
	wiring_events(&s);
	slab_init(&s.engine.table, slabs, setup->slabs, setup->slab_pages);
	s.engine.map = page_map_new(pages, setup->slab_pages, setup->backup);
	assert_non_null(s.engine.map);
	assert_int_equal(slots_init(&s.engine.slots,
				    setup->backup ? SLOT_COUNT : fuse_frontend.slots, &e), 0);
	s.engine.backup.slots = &s.engine.slots;
	for (uint16_t i = 0; i < setup->donors; i++)
		add_donor(setup, i);
}

void device_end(void)
{
	slots_free(&s.engine.slots);
	page_map_free(&s.engine.map);
	free(entries);
	free(slabs);
}

void run(void)
{
	while (engine_run(&s.engine) | engine_begin_large(&s.engine))
		;
}

void request(enum slot_kind kind, uint32_t first, uint32_t count)
{
	struct slot *slot = slot_get(&s.engine.slots);

	assert_non_null(slot);
	slot->kind = (uint8_t)kind;
	slot->first = first;
	slot->count = count;
	for (uint32_t i = 0; i < count; i++)
		memcpy(slot->payload + i * PAGE, "some", 4);
	engine_start(&s.engine, slot);
	run();
}

const uint8_t *take_frame(struct donor *d, struct wire_frame *reply)
{
	struct link *l = &d->link;
	struct stream_tx *tx = &l->tx;
	const struct stream_entry *entry = &tx->entries[tx->head];

	assert_in_range(tx->count, 1, tx->size);
	assert_int_equal(wire_parse(entry->bytes, WIRE_HEADER, WIRE_AT_DONOR, reply), 1);
	l->data_queued -= entry->cookie;
	tx->head = (tx->head + 1) % tx->size;
	tx->count--;
	tx->popped++;
	reply->direction = WIRE_REPLY;
	return entry->bytes + WIRE_HEADER;
}
