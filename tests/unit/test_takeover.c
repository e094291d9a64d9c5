// SPDX-License-Identifier: GPL-2.0-or-later
/* What a server leaves to its successor, between any two of its instructions. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "swapd/process/failover.h"
#include "swapd/page/bits.h"
#include "swapd/page/page_map.h"
#include "swapd/replicas/slab_mapping.h"
#include "swapd/process/supervisor.h"
#include "swapd/swapd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLABS = 2, SLAB_PAGES = 256, IDENTITY = 77 };
#define SECOND 1000000000ull

static struct swapd s;
static struct shared shared;
static struct slab slabs[SLABS];

static int map_result; /* of the next slabs */

static int map(struct link *l, struct mapping *m)
{
	return map_result;
}

static const struct transport transport_fake = { .name = "fake", .map = map };

enum { NO_BACKUP = -1, BACKUP = 1 << 20 /* a descriptor that is not used */ };

static void begin(int backup)
{
	struct error e = { 0 };

	memset(&shared, 0, sizeof(shared));
	map_result = 0;
	s = (struct swapd){
		.options = { .name = "unit", .slab = SLAB_PAGES * PAGE, .deadline = SECOND / 2 },
		.frontend = &fuse_frontend,
		.shared = &shared,
		.count = &shared.counters,
		.replicas.wanted = 1,
		.replicas.choices = 2,
		.replicas.seed = 1,
		.engine.backlog_most = SLOT_COUNT - fuse_frontend.slots,
		.engine.backup = { .fd = backup },
		.donors.env.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
	};
	wiring_events(&s);
	slab_init(&s.engine.table, slabs, SLABS, SLAB_PAGES);
	s.engine.map = page_map_new(SLABS * SLAB_PAGES, SLAB_PAGES, backup >= 0);
	assert_non_null(s.engine.map);
	assert_int_equal(slots_init(&s.engine.slots, SLOT_COUNT, &e), 0);
	s.engine.backup.slots = &s.engine.slots;
}

static void end(void)
{
	donors_free(&s.donors);
	slots_free(&s.engine.slots);
	page_map_free(&s.engine.map);
	close(s.donors.env.epoll_fd);
}

/* One that a predecessor had, up, and a copy of slab 0 there. */
static struct donor *take_over_donor(const char *text)
{
	struct donor_record *r = &shared.donors[s.donors.count];
	struct donor *d;

	assert_int_equal(address_parse(text, "donor", &r->address, NULL), 0);
	r->at = r->address;
	r->identity = IDENTITY;
	r->used = true;
	assert_int_equal(donors_prepare(&s.donors), 0);
	donors_take_over(&s.donors, now_ns());
	d = &s.donors.donor[s.donors.count - 1];
	assert_int_equal(d->state, DONOR_DOWN);
	d->link.transport = &transport_fake;
	return d;
}

static void copy_at(struct donor *d, uint32_t index)
{
	int c = slab_ask(&slabs[index], d->index, 1);

	slab_grant(&slabs[index], c, index, 9, false);
	page_map_write(s.engine.map, &(struct page_write){ index * SLAB_PAGES, 1, 0, NULL });
	page_map_stored(s.engine.map, c, index * SLAB_PAGES, 1);
}

static void greeted(struct donor *d)
{
	d->state = DONOR_UP;
	d->release = RELEASE_UNSENT;
	d->pinged = 0;
	d->link.slab_size = s.options.slab;
}

/* The next frame for @d, or 0. */
static uint8_t sent(struct donor *d, struct wire_frame *f)
{
	if (!d->link.tx.count)
		return 0;
	assert_int_equal(wire_parse(d->link.tx.entries[d->link.tx.head].bytes, WIRE_HEADER,
				    WIRE_AT_DONOR, f),
			 1);
	d->link.tx.head = (d->link.tx.head + 1) % d->link.tx.size;
	d->link.tx.count--;
	return f->op;
}

static int answered(struct donor *d, struct wire_frame f)
{
	f.direction = WIRE_REPLY;
	return donor_frame(d, &f, NULL);
}

/* --- slabs that cannot be mapped -------------------------------------------------------- */

static void kept_and_asked_for_again(void **state)
{
	struct wire_frame f, release, ignored;
	struct donor *d;

	begin(NO_BACKUP);
	d = take_over_donor("127.0.0.1:1");
	copy_at(d, 0);
	copy_at(d, 1);
	failover_slabs(&s);
	greeted(d);
	/* It was hard to find. */
	s.donors.resume_for = 100 * SECOND;
	s.donors.resume_until = now_ns();
	mapping_resume(&s.replicas, d);
	assert_int_equal(sent(d, &f), WIRE_REMAP);
	assert_int_equal(sent(d, &ignored), WIRE_REMAP);
	assert_int_equal(answered(d, ignored), 0);
	assert_int_equal(sent(d, &release), WIRE_RELEASE);
	/* Figures from before the RELEASE are of no use. */
	assert_int_equal(sent(d, &ignored), WIRE_PING);
	assert_int_not_equal(d->pinged, 0);
	d->pinged = 0;

	map_result = -ENOMEM;
	assert_int_equal(answered(d, f), 0);
	assert_int_equal(sent(d, &ignored), 0);
	assert_int_equal(slabs[0].copy[0].state, COPY_AWAY);
	assert_int_equal(page_map_count_stored(s.engine.map, 0, 0), 1);
	assert_int_equal(d->resume, RESUME_WANTED);
	assert_int_equal(d->copies, 2);

	/* It alone, and not at once. */
	assert_true(d->retry_at > now_ns());
	mapping_resume(&s.replicas, d);
	assert_int_equal(sent(d, &f), WIRE_REMAP);
	assert_int_equal(f.slab, 0);
	assert_int_equal(sent(d, &ignored), 0);
	assert_int_equal(answered(d, release), 0);
	assert_int_equal(d->resume, RESUME_WANTED);
	map_result = 0;
	assert_int_equal(answered(d, f), 0);
	assert_int_equal(d->resume, RESUME_NOTHING);
	assert_int_equal(slabs[0].copy[0].state, COPY_MAPPED);
	assert_int_equal(d->mapping, 0);
	assert_int_equal(d->unreachable, 0);
	end();
}

/* Confirming nothing, it stays away: no reply to HELLO, no broken connection restarts that. */
static void confirms_nothing(void **state)
{
	uint64_t since, until;
	struct donor *d;

	begin(NO_BACKUP);
	d = take_over_donor("127.0.0.1:1");
	copy_at(d, 0);
	failover_slabs(&s);
	d->grace = 100 * SECOND;
	d->away_since = since = now_ns();
	d->away_until = until = since + 100 * SECOND;
	for (int i = 0; i < 3; i++) {
		greeted(d);
		mapping_resume(&s.replicas, d);
		d->link.tx.count = 0;
		donor_part(d, "cut");
		assert_int_equal(d->state, DONOR_DOWN);
		assert_true(donor_is_away(d));
		assert_int_equal(d->away_since, since);
		assert_int_equal(d->away_until, until);
	}
	assert_int_equal(slabs[0].copy[0].state, COPY_AWAY);
	d->away_until = now_ns();
	donors_tick(&s.donors, d->away_until);
	assert_int_equal(slabs[0].copy[0].state, COPY_NONE);
	assert_int_equal(d->losses, 1);
	end();
}

/* It refuses a page of a slab and confirms all of them: it is lost instead of asked for ever. */
static void refuses_what_it_confirms(void **state)
{
	struct wire_frame f, release;
	struct donor *d;

	begin(NO_BACKUP);
	d = take_over_donor("127.0.0.1:1");
	copy_at(d, 0);
	failover_slabs(&s);
	d->away_until = UINT64_MAX;
	for (int lies = 0; lies < 2; lies++) {
		greeted(d);
		mapping_resume(&s.replicas, d);
		assert_int_equal(sent(d, &f), WIRE_REMAP);
		assert_int_equal(sent(d, &release), WIRE_RELEASE);
		d->link.tx.count = 0;
		assert_int_equal(answered(d, f), 0);
		assert_int_equal(answered(d, release), lies ? -EPROTO : 0);
		if (lies)
			break;
		d->grace = 100 * SECOND;
		d->link.refusal = "stale generation";
		donor_link_lost(d, LOSS_PASSING, "stale generation");
		assert_true(donor_is_away(d));
	}
	end();
}

/* After the deadline: released if another replica exists, else left to the next process. */
static void given_up_in_the_end(void **state)
{
	static const int backups[] = { BACKUP, NO_BACKUP };
	struct wire_frame f;
	struct donor *d;

	for (int i = 0; i < 2; i++) {
		begin(backups[i]);
		d = take_over_donor("127.0.0.1:1");
		copy_at(d, 0);
		failover_slabs(&s);
		greeted(d);
		mapping_resume(&s.replicas, d);
		assert_int_equal(sent(d, &f), WIRE_REMAP);
		d->link.tx.count = 0;
		map_result = -ENOMEM;
		assert_int_equal(answered(d, f), 0);
		if (i) {
			assert_int_equal(slabs[0].copy[0].state, COPY_AWAY);
			assert_int_equal(d->unreachable, -ENOMEM);
			assert_int_equal(sent(d, &f), 0);
			assert_int_equal(failover_donors(&s), -ENOMEM);
		} else {
			assert_int_equal(slabs[0].copy[0].state, COPY_NONE);
			assert_int_equal(sent(d, &f), WIRE_UNMAP);
			assert_int_equal(d->unreachable, 0);
		}
		end();
	}
}

/* A server whose slabs are recalled resumes them first and then releases them. */
static void asked_back_before_it_is_there(void **state)
{
	struct wire_frame evict = { .op = WIRE_EVICT, .generation = 9 }, f;
	struct wire_frame remap = { .op = WIRE_REMAP, .direction = WIRE_REPLY };
	struct donor *d;

	begin(BACKUP);
	d = take_over_donor("127.0.0.1:1");
	copy_at(d, 0);
	copy_at(d, 1);
	failover_slabs(&s);
	/* Its data connection has joined, and we have not read that yet. */
	d->state = DONOR_GREETING;
	assert_int_equal(donor_frame(d, &remap, NULL), -EPROTO);
	assert_int_equal(donor_frame(d, &evict, NULL), 0);
	greeted(d);
	evict.slab = 1;
	assert_int_equal(donor_frame(d, &evict, NULL), 0);
	for (uint32_t i = 0; i < SLABS; i++) {
		assert_int_equal(sent(d, &f), WIRE_EVICT);
		assert_int_equal(f.slab, i);
		assert_int_equal(f.status, WIRE_OK);
	}
	mapping_resume(&s.replicas, d);
	for (uint32_t i = 0; i < SLABS; i++) {
		assert_int_equal(d->link.tx.count, SLABS + 2 - i);
		assert_int_equal(sent(d, &f), WIRE_REMAP);
		assert_int_equal(f.slab, i);
		assert_int_equal(answered(d, f), 0);
	}
	assert_int_equal(sent(d, &f), WIRE_RELEASE);
	assert_int_equal(sent(d, &f), WIRE_PING);
	d->pinged = 0;
	assert_int_equal(failover_donors(&s), 0);
	for (uint32_t i = 0; i < SLABS; i++)
		assert_int_equal(slab_copies(&slabs[i], COPY_AWAY), 0);
	assert_true(slabs[0].copy[0].leaving);
	assert_int_not_equal(slabs[0].copy[0].since, 0);
	end();
}

/* Slabs that the dead server had released or requested are not free at once. */
static void room_that_comes_back(void **state)
{
	struct wire_frame f;
	struct donor *d;

	begin(NO_BACKUP);
	d = take_over_donor("127.0.0.1:1");
	greeted(d);
	d->free = 2 * s.options.slab;
	s.replicas.room_until = now_ns() + 100 * SECOND;
	activity_write(&slabs[0].activity, 1);
	assert_true(mapping_open(&s.replicas, 0, now_ns()));
	assert_int_equal(sent(d, &f), WIRE_MAP);
	f.status = WIRE_NO_SPACE;
	assert_int_equal(answered(d, f), 0);
	assert_int_equal(slabs[0].copy[0].state, COPY_MAPPING);
	assert_true(mapping_oldest(&s.replicas, d) > now_ns());
	assert_int_equal(sent(d, &f), 0);
	mapping_ask_later(&s.replicas, d, now_ns());
	assert_true(mapping_oldest(&s.replicas, d) <= now_ns());
	assert_int_equal(sent(d, &f), WIRE_MAP);
	/* Once. */
	mapping_ask_later(&s.replicas, d, now_ns());
	assert_int_equal(d->link.tx.count, 0);
	f.status = WIRE_NO_SPACE;
	s.replicas.room_until = now_ns();
	assert_int_equal(answered(d, f), 0);
	assert_int_equal(slabs[0].copy[0].state, COPY_NONE);
	assert_false(slabs[0].opening);
	assert_int_equal(d->mapping, 0);
	end();
}

/* --- donors ------------------------------------------------------------------------------ */

static void a_quarantine_is_known_at_once(void **state)
{
	struct donor *d;

	begin(BACKUP);
	d = take_over_donor("127.0.0.1:1");
	greeted(d);
	assert_false(shared.donors[0].quarantined);
	donor_blame(d, 3);
	donors_flush(&s.donors);
	assert_true(shared.donors[0].quarantined);
	donors_take_over(&s.donors, now_ns());
	assert_int_equal(d->state, DONOR_QUARANTINED);
	assert_string_equal(d->why, "it returned a page that was not written there (3)");
	assert_int_equal(d->bad_pages, 1);
	end();

	/* Without a backup its pages move away first; that, too, is known. */
	begin(NO_BACKUP);
	d = take_over_donor("127.0.0.1:1");
	greeted(d);
	donor_blame(d, 3);
	donors_flush(&s.donors);
	assert_int_equal(d->state, DONOR_UP);
	donors_take_over(&s.donors, now_ns());
	assert_int_equal(d->leaving, DONOR_SUSPECT);
	/* Why is told in the end, too. */
	assert_string_equal(d->why, "it returned a page that was not written there (3)");
	end();
}

#define ALTERED "a payload from it was altered between borrower and donor"

/* The connection is lost to an alteration; the next one is there at once. */
static void alter(struct donor *d)
{
	donor_link_lost(d, LOSS_ALTERED, ALTERED);
	if (d->state == DONOR_DOWN)
		greeted(d);
	d->resume = RESUME_NOTHING;
}

static void only_repeated_alterations_quarantine(void **state)
{
	struct donor *d;

	begin(BACKUP);
	d = take_over_donor("127.0.0.1:1");
	copy_at(d, 0);
	d->grace = 30 * SECOND;
	d->copies = 1;
	for (uint32_t n = 1; n < ALTERATIONS_MOST; n++) {
		greeted(d);
		donor_link_lost(d, LOSS_ALTERED, ALTERED);
		assert_string_equal(d->why, ALTERED);
		assert_true(donor_is_away(d));
		assert_int_equal(slabs[0].copy[0].state, COPY_AWAY);
		assert_int_equal(d->absences, n);
		d->resume = RESUME_NOTHING;
	}
	/* A successor counts on. */
	donors_take_over(&s.donors, now_ns());
	d->link.transport = &transport_fake;
	greeted(d);
	assert_int_equal(d->altered, ALTERATIONS_MOST - 1);
	donor_link_lost(d, LOSS_ALTERED, ALTERED);
	assert_int_equal(d->state, DONOR_QUARANTINED);
	assert_non_null(strstr(d->why, "check network cards"));
	assert_int_equal(d->losses, 1);
	assert_int_equal(d->bad_pages, 0);
	assert_int_equal(shared.donors[0].altered, ALTERATIONS_MOST);
	/* Trust forgets them. */
	donor_trust(d, now_ns());
	greeted(d);
	alter(d);
	alter(d);
	assert_int_equal(d->state, DONOR_UP);
	alter(d);
	assert_int_equal(d->state, DONOR_QUARANTINED);
	end();

	/* Without a backup its pages migrate first, over connections that are altered again. */
	begin(NO_BACKUP);
	d = take_over_donor("127.0.0.1:1");
	copy_at(d, 0);
	d->grace = 30 * SECOND;
	d->copies = 1;
	greeted(d);
	for (uint32_t n = 0; n < ALTERATIONS_MOST + 2; n++)
		alter(d);
	assert_int_equal(d->state, DONOR_UP);
	assert_int_equal(d->leaving, DONOR_SUSPECT);
	assert_int_equal(d->losses, 0);
	assert_int_equal(d->absences, ALTERATIONS_MOST + 2);
	end();
}

/* It still gets no slabs, and the next server resumes those that it has. */
static void an_unlisted_donor_stays_unlisted(void **state)
{
	struct donor *d;

	begin(NO_BACKUP);
	d = take_over_donor("127.0.0.1:1");
	d->unlisted = true;
	donors_record(&s.donors);
	donors_take_over(&s.donors, now_ns());
	assert_true(d->unlisted);
	d->link.transport = &transport_fake;
	copy_at(d, 0);
	failover_slabs(&s);
	d->retry_at = d->away_until = UINT64_MAX;
	donors_tick(&s.donors, now_ns());
	assert_int_equal(d->state, DONOR_DOWN);
	greeted(d);
	assert_false(donor_takes(d));
	end();
}

/* What people are told of a donor is not of its last server alone. */
static void losses_are_remembered(void **state)
{
	struct donor *d;

	begin(BACKUP);
	d = take_over_donor("127.0.0.1:1");
	for (uint32_t server = 1; server <= 2; server++) {
		greeted(d);
		donor_lose(d, server == 1 ? "no reply within the deadline" : "gone");
		donors_record(&s.donors);
		donors_take_over(&s.donors, now_ns());
		assert_int_equal(d->losses, server);
		assert_string_equal(d->why, server == 1 ? "no reply within the deadline" : "gone");
		d->link.transport = &transport_fake;
	}
	end();
}

static int greet(struct donor *d, uint64_t identity)
{
	struct wire_frame f = { .op = WIRE_HELLO, .direction = WIRE_REPLY,
				.length = WIRE_DONOR_SIZE };
	struct wire_donor told = { .version = WIRE_VERSION, .slab_size = s.options.slab,
				   .total = 1 << 30, .free = 1 << 30, .identity = identity };
	uint8_t payload[WIRE_DONOR_SIZE];

	wire_build_donor(payload, &told);
	d->state = DONOR_GREETING;
	d->version = WIRE_VERSION;
	d->greeted = false;
	return donor_frame(d, &f, payload);
}

/* A donor's second address is faster than the first, at which it has something of ours. */
static void who_has_something_is_not_refused(void **state)
{
	struct donor *first, *second;

	begin(NO_BACKUP);
	first = take_over_donor("127.0.0.1:1");
	second = take_over_donor("127.0.0.1:2");
	first = &s.donors.donor[0];
	first->link.transport = &transport_fake;
	copy_at(first, 0);
	failover_slabs(&s);
	assert_int_equal(first->resume, RESUME_WANTED);
	assert_int_equal(greet(second, IDENTITY), -ECONNREFUSED);
	assert_non_null(strstr(second->why, first->address.text));
	donor_lose(second, second->why);
	assert_int_equal(greet(first, IDENTITY), 0);
	assert_int_equal(first->state, DONOR_UP);
	/* Written down at once, for the next one. */
	shared.donors[0].identity = 0;
	assert_int_equal(greet(first, IDENTITY), 0);
	assert_int_equal(shared.donors[0].identity, IDENTITY);
	end();
}

static int fake_take_over(struct frontend_host *h, struct slot *reading)
{
	return 0;
}

/*
 * There is no memory for one of two donors: slabs there stay on the table, and this process ends,
 * if only that donor has a page.  Otherwise the device goes on without it.
 */
static void no_memory_for_a_donor(void **state)
{
	enum { ONLY_REPLICA, OTHER_REPLICA, IN_THE_BACKUP, CASES };
	static const struct frontend asked = { .name = "asked", .take_over = fake_take_over };

	for (int which = 0; which < CASES; which++) {
		struct donor *d;

		begin(which == IN_THE_BACKUP ? BACKUP : NO_BACKUP);
		s.frontend = &asked;
		shared.no_claim = true;
		d = take_over_donor("127.0.0.1:1");
		copy_at(d, 0);
		s.donors.donor[1].index = 1;
		copy_at(&s.donors.donor[1], which == OTHER_REPLICA ? 0 : 1);
		shared.donors[1] = shared.donors[0];
		assert_int_equal(address_parse("127.0.0.1:2", "donor", &shared.donors[1].address,
					       NULL), 0);
		s.donors.env.transfers = UINT32_MAX - 1000;
		assert_int_equal(failover(&s), which == ONLY_REPLICA ? -ENOMEM : 0);
		assert_int_equal(*shared.last_words != 0, which == ONLY_REPLICA);
		assert_int_equal(slab_copies(&slabs[1], COPY_NONE) == SLAB_COPIES,
				 which != ONLY_REPLICA);
		assert_int_equal(page_map_is_stored(s.engine.map, SLAB_PAGES, 1),
				 which == ONLY_REPLICA);
		assert_false(page_map_is_stored(s.engine.map, 0, 2));
		assert_true(s.notes.put > 0);
		assert_non_null(strstr(s.notes.ring[0].text, "127.0.0.1:2"));
		s.frontend = &fuse_frontend;
		end();
	}
}

/* --- requests ---------------------------------------------------------------------------- */

static struct slot *answered_write(uint32_t first, uint64_t same, uint64_t sealed)
{
	struct slot *slot = slot_get(&s.engine.slots);

	slot->kind = SLOT_WRITE;
	slot->first = first;
	slot->count = 2;
	slot->same_filled = same;
	slot->sealed = sealed;
	slot->known = slot->answered = true;
	slot->order = ++shared.frontend.arrivals;
	return slot;
}

/* Its server died before the slot was free. */
static void nothing_in_clear_goes_to_the_disk(void **state)
{
	struct slot *sealed;

	begin(BACKUP);
	s.engine.sealing.on = true;
	answered_write(0, 3, 0);
	sealed = answered_write(10, 1, 2);
	answered_write(20, 1, 0); /* could not be sealed */
	failover_slots(&s, SLOT_COUNT);
	assert_int_equal(backup_pending(&s.engine.backup), 1);
	assert_int_equal(s.engine.backup.queue.jobs[0], slot_index(&s.engine.slots, sealed));
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT - 1);
	assert_int_equal(s.engine.backlog, 1);
	s.engine.sealing.on = false;
	end();
}

static struct slot *begun(enum slot_kind kind, uint32_t first, uint32_t count)
{
	struct slot *slot = slot_get(&s.engine.slots);

	slot->kind = (uint8_t)kind;
	slot->first = first;
	slot->count = count;
	slot->unique = 5;
	slot->order = ++shared.frontend.arrivals;
	/* No page is same-filled. */
	for (uint32_t i = 0; i < count; i++)
		slot->payload[i * PAGE] = 1;
	return slot;
}

static int failovers;

static int take_over(struct frontend_host *h, struct slot *reading)
{
	failovers++;
	assert_null(reading);
	return -EIO;
}

static enum slot_after answer(void *host, struct slot *slot, int error)
{
	return SLOT_DONE;
}

/*
 * A frontend that is asked again: writes are not left half done, and take no more slots each time.
 */
static void what_is_asked_again(void **state)
{
	static const struct frontend again = {
		.name = "again", .asks_again = true, .take_over = take_over, .answer = answer,
	};
	struct slot *older, *same, *other;

	begin(NO_BACKUP);
	s.frontend = &again;
	s.engine.answer = answer;
	/* For a predecessor's predecessor, and asked again since. */
	older = begun(SLOT_WRITE, 4, 2);
	begun(SLOT_READ, 4, 1);
	begun(SLOT_DISCARD, 8, 1);
	same = begun(SLOT_WRITE, 4, 2);
	other = begun(SLOT_WRITE, 5, 2);
	/* They wait until their slab is there. */
	slab_ask(&slabs[0], 0, 1);
	failovers = 0;
	assert_int_equal(failover_slots(&s, SLOT_COUNT), -EIO);
	assert_int_equal(failovers, 1);
	assert_int_equal(older->kind, SLOT_FREE);
	assert_int_equal(same->kind, SLOT_WRITE);
	assert_int_equal(other->kind, SLOT_WRITE);
	assert_int_equal(same->unique, 0);
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT - 2);
	/* What was asked first goes first. */
	assert_false(same->blocked);
	assert_true(other->blocked);
	s.frontend = &fuse_frontend;
	end();
}

static uint32_t answers, failures;
static uint8_t answered_byte;

static enum slot_after answer_and_count(void *host, struct slot *slot, int error)
{
	answers++;
	failures += error != 0;
	answered_byte = slot->payload[0];
	return SLOT_DONE;
}

static void submit(struct link *l, const struct mapping *m, struct transfer *t)
{
	link_wait(l, m, t, 0);
}

/*
 * A page was on its way to another donor when its own was lost, and then its server died: the next
 * one continues, before later requests for the page.  Other RESYNCs start over.
 */
static void the_last_content_of_a_page(void **state)
{
	static const struct transport transport = { .name = "slow", .submit = submit };
	static const struct frontend asked = { .name = "asked", .take_over = fake_take_over,
					       .answer = answer_and_count };
	struct slot *last, *stored, *unfetched, *read, *write;
	struct transfer *t;
	struct donor *d;

	begin(NO_BACKUP);
	s.frontend = &asked;
	s.engine.answer = answer_and_count;
	d = take_over_donor("127.0.0.1:1");
	copy_at(d, 0);
	d->link.transport = &transport;
	page_map_write(s.engine.map, &(struct page_write){ 4, 4, 0, NULL });
	last = begun(SLOT_RESYNC, 4, 4);
	last->cursor = 2;
	last->run = 1;
	last->payload[2 * PAGE] = 7;
	last->fetched = true;
	stored = begun(SLOT_RESYNC, 0, 2);
	stored->run = 1;
	stored->fetched = true;
	unfetched = begun(SLOT_RESYNC, 4, 2);
	unfetched->run = 2;
	write = begun(SLOT_WRITE, 6, 1);
	read = begun(SLOT_READ, 6, 1);
	write->order = read->order + 1;
	failover_slabs(&s);
	slab_back(&slabs[0], 0);
	assert_int_equal(failover_slots(&s, SLOT_COUNT), 0);
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT - 2);
	assert_int_equal(last->kind, SLOT_RESYNC);
	assert_int_equal(s.replicas.repair.running, 1);
	assert_int_equal(slabs[0].jobs, 1);
	/* Read from there, and not yet written. */
	assert_int_equal(answers, 1);
	assert_int_equal(failures, 0);
	assert_int_equal(answered_byte, 7);
	assert_true(write->blocked);
	t = d->link.waiting.head;
	assert_ptr_equal(t, &last->transfer[0]);
	assert_null(t->next);
	assert_int_equal(t->op, WIRE_WRITE);
	assert_int_equal(t->offset, 6 * PAGE);
	assert_int_equal(t->length, PAGE);
	assert_int_equal(((const uint8_t *)t->payload)[0], 7);
	link_done(&d->link, t, 0);
	engine_run(&s.engine);
	assert_true(page_map_is_stored(s.engine.map, 6, 1));
	assert_int_equal(s.replicas.repair.running, 0);
	assert_int_equal(slabs[0].jobs, 0);
	assert_ptr_equal(d->link.waiting.head, &write->transfer[0]);
	link_done(&d->link, d->link.waiting.head, 0);
	engine_run(&s.engine);
	assert_int_equal(answers, 2);
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT);
	s.frontend = &fuse_frontend;
	d->link.transport = &transport_fake;
	end();
}

/* --- crashes ------------------------------------------------------------------------------ */

static void one_too_many(void **state)
{
	struct crashes c = { 0 };
	uint64_t now = 1000 * SECOND;

	/* As often as somebody likes. */
	for (int i = 0; i < 100; i++)
		assert_false(crashes_count(&c, DEATH_NOT_COUNTED, now));
	/* Within a minute. */
	for (int i = 0; i < 9; i++)
		assert_false(crashes_count(&c, i % 2 ? DEATH_SERVING : DEATH_TAKING_OVER,
					   now += SECOND));
	assert_true(crashes_count(&c, DEATH_SERVING, now + 50 * SECOND));
	/* Not within one. */
	c = (struct crashes){ 0 };
	for (int i = 0; i < 100; i++)
		assert_false(crashes_count(&c, DEATH_SERVING, now += 7 * SECOND));
	/* None that serves, however slow they are. */
	for (int i = 0; i < 9; i++)
		assert_false(crashes_count(&c, DEATH_TAKING_OVER, now += 100 * SECOND));
	assert_false(crashes_count(&c, DEATH_SERVING, now += 100 * SECOND));
	for (int i = 0; i < 9; i++)
		assert_false(crashes_count(&c, DEATH_TAKING_OVER, now += 100 * SECOND));
	assert_false(crashes_count(&c, DEATH_NOT_COUNTED, now));
	assert_true(crashes_count(&c, DEATH_TAKING_OVER, now + 100 * SECOND));
}

static void what_is_no_crash(void **state)
{
	const uint8_t lives[] = { LIFE_WAITS, LIFE_TAKES_OVER, LIFE_SERVES };
	const int statuses[] = { SIGKILL, SIGSEGV, SIGABRT, 1 << 8 };

	for (size_t i = 0; i < 3; i++)
		assert_int_equal(cause_of_death(lives[i], SIGKILL), DEATH_NOT_COUNTED);
	/* Before it takes over a process only waits, perhaps for memory. */
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(cause_of_death(LIFE_WAITS, statuses[i]), DEATH_NOT_COUNTED);
	for (size_t i = 1; i < 4; i++) {
		assert_int_equal(cause_of_death(LIFE_TAKES_OVER, statuses[i]), DEATH_TAKING_OVER);
		assert_int_equal(cause_of_death(LIFE_SERVES, statuses[i]), DEATH_SERVING);
	}
}

/* --- no progress --------------------------------------------------------------------------- */

static void a_standby_is_tried_before_an_abort(void **state)
{
	struct watchdog_tries t = { 0 };

	/* It does not help. */
	assert_int_equal(watchdog_remedy(&t, 7, true), WATCHDOG_REPLACE);
	assert_int_equal(watchdog_remedy(&t, 7, true), WATCHDOG_ABORT);
	/* It helps, for a while. */
	assert_int_equal(watchdog_remedy(&t, 8, true), WATCHDOG_REPLACE);
	assert_int_equal(watchdog_remedy(&t, 9, true), WATCHDOG_REPLACE);
	assert_int_equal(watchdog_remedy(&t, 9, false), WATCHDOG_ABORT);
	/* There is none. */
	assert_int_equal(watchdog_remedy(&t, 10, false), WATCHDOG_WAIT);
	assert_int_equal(watchdog_remedy(&t, 10, false), WATCHDOG_ABORT);
	/* It comes late. */
	assert_int_equal(watchdog_remedy(&t, 11, false), WATCHDOG_WAIT);
	assert_int_equal(watchdog_remedy(&t, 11, true), WATCHDOG_REPLACE);
	assert_int_equal(watchdog_remedy(&t, 11, true), WATCHDOG_ABORT);
	/* An answer ends the wait for one. */
	assert_int_equal(watchdog_remedy(&t, 12, false), WATCHDOG_WAIT);
	assert_int_equal(watchdog_remedy(&t, 13, false), WATCHDOG_WAIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kept_and_asked_for_again),
		cmocka_unit_test(confirms_nothing),
		cmocka_unit_test(refuses_what_it_confirms),
		cmocka_unit_test(given_up_in_the_end),
		cmocka_unit_test(asked_back_before_it_is_there),
		cmocka_unit_test(room_that_comes_back),
		cmocka_unit_test(a_quarantine_is_known_at_once),
		cmocka_unit_test(only_repeated_alterations_quarantine),
		cmocka_unit_test(an_unlisted_donor_stays_unlisted),
		cmocka_unit_test(losses_are_remembered),
		cmocka_unit_test(who_has_something_is_not_refused),
		cmocka_unit_test(no_memory_for_a_donor),
		cmocka_unit_test(nothing_in_clear_goes_to_the_disk),
		cmocka_unit_test(what_is_asked_again),
		cmocka_unit_test(the_last_content_of_a_page),
		cmocka_unit_test(one_too_many),
		cmocka_unit_test(what_is_no_crash),
		cmocka_unit_test(a_standby_is_tried_before_an_abort),
	};

	return cmocka_run_group_tests_name("takeover", tests, NULL, NULL);
}
