// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A borrower whose pages are sealed, and donors that answer as they like: late, twice, before
 * they have been asked, with other pages, other frames or half of one, or not at all.  By
 * random numbers, over sockets: what is read is what was written, or an error, and no donor
 * and no disk ever has a page in clear.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/draw.h"
#include "swapd/request/engine.h"
#include "swapd/frontend/frontend.h"
#include "swapd/page/page_map.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/reservation.h"
#include "swapd/swapd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLAB = 1 << 20, SLABS = 2, PAGES = SLABS * SLAB / PAGE, DONORS = 3, REMOTE = 4,
       REQUESTS = 1024, BUFFER = 4 << 20, OLD = 64 };
#define SECONDS 3

/* In every page that was written. */
static const char clear[] = "a page in clear!";

static struct swapd s;
static struct shared shared;
static struct slab slabs[SLABS];
static uint64_t seed, number;
static uint32_t evil; /* one in so many does wrong */

static struct expected {
	uint8_t kind;
	bool answered;
	uint32_t first, count;
	uint64_t stamp[SLOT_PAGES];
} requests[REQUESTS];
static uint32_t asked, answered;
static uint64_t newest[PAGES], stamps; /* by arrival; 0 = zeroes */
static uint64_t good, errors, early;
static uint8_t disk[PAGES][PAGE];

static struct fake {
	int fd;
	uint8_t *memory; /* REMOTE slabs */
	bool lent[REMOTE];
	uint32_t generation;
	uint8_t *in;     /* BUFFER */
	size_t length;
	struct wire_frame old[OLD];
	uint32_t olds;
} fakes[DONORS];

static uint32_t draw(uint32_t n)
{
	return draw_below(&seed, n);
}

static void wrong(const char *what)
{
	fail_msg("%s (number %llu)", what, (unsigned long long)number);
}

/* --- the kernel ------------------------------------------------------------------ */

static void fill(uint8_t *page, uint64_t stamp)
{
	uint64_t x = stamp;

	memset(page, 0, PAGE);
	if (!stamp)
		return;
	memcpy(page, clear, sizeof(clear) - 1);
	for (size_t i = 16; i < PAGE; i += sizeof(x)) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		memcpy(page + i, &x, sizeof(x));
	}
}

static enum slot_after answer(void *host, struct slot *slot, int error)
{
	struct expected *e = &requests[slot->unique];
	uint8_t page[PAGE];

	if (e->answered)
		wrong("answered twice");
	e->answered = true;
	answered++;
	errors += error != 0;
	for (uint32_t i = 0; i < e->count && e->kind == SLOT_READ && !error; i++, good++) {
		fill(page, e->stamp[i]);
		if (memcmp(page, slot->payload + i * (size_t)PAGE, PAGE))
			wrong("a page that was not written");
	}
	return SLOT_DONE;
}

static const struct frontend frontend_fake = { .name = "fake", .answer = answer };

static void request(enum slot_kind kind)
{
	uint32_t count = 1 + draw(draw(3) ? 4 : SLOT_PAGES), first = draw(PAGES - count);
	struct slot *slot = s.engine.slots.free_count > 8 && asked < REQUESTS ?
				    slot_get(&s.engine.slots) :
				    NULL;
	struct expected *e = &requests[asked];

	if (!slot)
		return;
	*e = (struct expected){ .kind = (uint8_t)kind, .first = first, .count = count };
	slot->unique = asked++;
	slot->first = first;
	slot->count = count;
	slot->order = ++shared.frontend.arrivals;
	for (uint32_t i = 0; i < count; i++) {
		if (kind == SLOT_WRITE)
			newest[first + i] = ++stamps;
		else if (kind == SLOT_DISCARD)
			newest[first + i] = 0;
		if (kind == SLOT_WRITE)
			fill(slot->payload + i * (size_t)PAGE, newest[first + i]);
		e->stamp[i] = newest[first + i];
	}
	slot->kind = (uint8_t)kind;
	engine_start(&s.engine, slot);
}

/* --- donors ------------------------------------------------------------------------- */

static void hang_up(struct fake *f)
{
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
}

static int open_fake(struct link *l)
{
	struct fake *f = &fakes[l->index];
	int pair[2], size = draw(2) ? 4096 : SLAB;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair),
			 0);
	setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	hang_up(f);
	f->fd = pair[1];
	f->length = 0;
	memset(f->lent, 0, sizeof(f->lent));
	return pair[0];
}

static void send_bytes(const struct fake *f, const void *bytes, size_t n)
{
	if (f->fd >= 0 && send(f->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		assert_true(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
}

static void spoil_pages(uint8_t *pages, uint32_t count)
{
	uint8_t page[PAGE];

	switch (draw(3)) {
	case 0:
		pages[draw(count * PAGE)] ^= (uint8_t)(1u << draw(8));
		break;
	case 1:
		memset(pages, 0, PAGE);
		break;
	default:
		memcpy(page, pages, PAGE);
		memcpy(pages, pages + (count - 1) * (size_t)PAGE, PAGE);
		memcpy(pages + (count - 1) * (size_t)PAGE, page, PAGE);
	}
}

static bool asked_by_donor(const struct wire_frame *f)
{
	return f->op == WIRE_EVICT || f->op == WIRE_ACTIVITY || f->op == WIRE_REVOKED;
}

/* A frame of @f's, @n bytes of payload with it; or something like it. */
static void say(struct fake *f, struct wire_frame frame, const void *payload, uint32_t n)
{
	static uint8_t bytes[WIRE_HEADER + SLOT_BYTES];
	size_t length = WIRE_HEADER + n;

	frame.direction = asked_by_donor(&frame) ? WIRE_REQUEST : WIRE_REPLY;
	wire_build(bytes, &frame);
	if (n)
		memcpy(bytes + WIRE_HEADER, payload, n);
	if (frame.op == WIRE_READ && n && !draw(evil))
		spoil_pages(bytes + WIRE_HEADER, n / PAGE);
	if (!draw(20 * evil))
		bytes[draw(WIRE_HEADER)] ^= (uint8_t)(1u << draw(8));
	if (!draw(20 * evil))
		length = draw((uint32_t)length);
	send_bytes(f, bytes, length);
	if (!draw(4 * evil))
		send_bytes(f, bytes, length);
}

static void tell_figures(struct fake *f, struct wire_frame frame)
{
	struct wire_donor told = { .version = WIRE_VERSION,
				   .slab_size = SLAB,
				   .total = REMOTE * SLAB,
				   .reserved = draw(6) ? SLABS : draw(REMOTE + 1),
				   .flags = draw(20) ? 0 : WIRE_DRAINING };
	uint8_t payload[WIRE_DONOR_SIZE];

	for (int r = 0; r < REMOTE; r++)
		told.free += f->lent[r] ? 0 : SLAB;
	wire_build_donor(payload, &told);
	frame.length = sizeof(payload);
	say(f, frame, payload, sizeof(payload));
}

static void lend(struct fake *f, struct wire_frame frame)
{
	uint32_t r = 0;

	while (r < REMOTE && f->lent[r])
		r++;
	frame.length = 0;
	if (r == REMOTE || !draw(12)) {
		frame.status = WIRE_NO_SPACE;
	} else {
		f->lent[r] = true;
		frame.slab = r;
		frame.generation = ++f->generation;
	}
	say(f, frame, NULL, 0);
}

static void serve_frame(struct fake *f, const struct wire_frame *frame, const uint8_t *payload)
{
	/* What it granted with a wrong number it is asked for by that. */
	uint32_t slab = frame->slab % REMOTE;
	uint8_t *there = f->memory + slab * (size_t)SLAB + frame->offset;

	struct wire_frame refusal = *frame;

	if (frame->direction == WIRE_REPLY || !draw(10 * evil))
		return;
	if ((frame->op == WIRE_READ || frame->op == WIRE_WRITE) && !draw(4 * evil)) {
		refusal.status = draw(3) ? WIRE_STALE : (uint16_t)(1 + draw(WIRE_STATUSES - 1));
		say(f, refusal, NULL, 0);
		return;
	}
	switch (frame->op) {
	case WIRE_HELLO:
	case WIRE_PING:
	case WIRE_RESERVE:
		tell_figures(f, *frame);
		break;
	case WIRE_MAP:
		lend(f, *frame);
		break;
	case WIRE_READ:
		say(f, *frame, there, frame->length);
		break;
	case WIRE_WRITE:
		if (memmem(payload, frame->length, clear, sizeof(clear) - 1))
			wrong("a donor has a page in clear");
		memcpy(there, payload, frame->length);
		say(f, *frame, NULL, 0);
		break;
	case WIRE_UNMAP:
		f->lent[slab] = false;
		/* fall through */
	default:
		say(f, *frame, NULL, 0);
	}
}

/* Takes what has come, or a part of it, and serves up to @most frames. */
static void serve(struct fake *f, uint32_t most)
{
	size_t room = BUFFER - f->length;
	struct wire_frame frame;
	ssize_t n;

	if (f->fd < 0)
		return;
	n = recv(f->fd, f->in + f->length, draw(6) ? room : draw(2000), MSG_DONTWAIT);
	f->length += n > 0 ? (size_t)n : 0;
	while (most-- && f->fd >= 0) {
		int r = wire_parse(f->in, f->length, WIRE_AT_DONOR, &frame);
		size_t whole = WIRE_HEADER + (r > 0 ? wire_payload(&frame) : 0);

		if (r < 0)
			wrong("the borrower says what is no frame");
		if (!r)
			return;
		if (f->length < whole) {
			/* It has the header alone: that is enough for an answer. */
			if (!draw(3))
				say(f, frame, NULL, 0);
			early++;
			return;
		}
		serve_frame(f, &frame, f->in + WIRE_HEADER);
		f->old[f->olds++ % OLD] = frame;
		f->length -= whole;
		memmove(f->in, f->in + whole, f->length);
	}
}

static uint16_t donor_of(const struct slot *slot, int copy)
{
	return slab_of_page(&s.engine.table, slot->first + slot->cursor)->copy[copy].donor;
}

static struct wire_frame frame_of(const struct transfer *t)
{
	return (struct wire_frame){ .op = t->op, .tag = t->tag, .slab = t->remote,
				    .generation = t->generation, .offset = t->offset,
				    .length = t->length };
}

/* An answer to what it was asked long ago, or will be; or something that a donor asks. */
static void speak_up(struct fake *f)
{
	static const uint8_t junk[SLOT_BYTES];
	static const uint8_t ops[] = { WIRE_EVICT, WIRE_ACTIVITY, WIRE_REVOKED };
	struct wire_frame frame = { .op = ops[draw(3)],
				    .slab = draw(REMOTE),
				    .generation = f->generation - draw(3),
				    .tag = draw(5) };
	const struct slot *slot;

	if (frame.op == WIRE_ACTIVITY)
		frame.length = WIRE_LOAN_SIZE * (1 + draw(4));
	if (draw(2) && f->olds)
		frame = f->old[draw(f->olds < OLD ? f->olds : OLD)];
	if (draw(2) && s.engine.slots.active_count) {
		slot = &s.engine.slots
				.slot[s.engine.slots.active[draw(s.engine.slots.active_count)]];
		for (int c = 0; c < SLAB_COPIES; c++)
			if (slot->pending >> c & 1 && &fakes[donor_of(slot, c)] == f)
				frame = frame_of(&slot->transfer[c]);
	}
	if (frame.op == WIRE_HELLO || frame.op == WIRE_PING || frame.op == WIRE_MAP)
		return;
	frame.direction = asked_by_donor(&frame) ? WIRE_REQUEST : WIRE_REPLY;
	say(f, frame, junk, wire_payload(&frame));
}

/* --- the disk ---------------------------------------------------------------------- */

static void disk_step(struct backup_lane *l)
{
	struct slot *slot = &s.engine.slots.slot[l->jobs[l->completed % SLOT_COUNT]];
	uint32_t from, count;
	uint8_t *here;

	if (l->completed == l->submitted)
		return;
	from = slot->kind == SLOT_WRITE ? 0 : slot->cursor;
	count = slot->kind == SLOT_WRITE     ? slot->count :
		slot->kind == SLOT_EXCLUSIVE ? 0 :
					       slot->run;
	here = slot->payload + from * (size_t)PAGE;
	slot->backup_result = draw(40) ? 0 : -EIO;
	if (slot->backup_result)
		count = 0;
	if (slot->kind == SLOT_WRITE || slot->fetched) {
		if (count && memmem(here, count * (size_t)PAGE, clear, sizeof(clear) - 1))
			wrong("the disk has a page in clear");
		memcpy(disk[slot->first + from], here, count * (size_t)PAGE);
	} else {
		memcpy(here, disk[slot->first + from], count * (size_t)PAGE);
	}
	if (!draw(200))
		disk[draw(PAGES)][draw(PAGE)] ^= 1;
	l->completed++;
	engine_backed(&s.engine, backup_reap(&s.engine.backup));
}

/* --- all of it ------------------------------------------------------------------------ */

/* What the event loop does in a round. */
static void look(void)
{
	struct epoll_event ev[2 * DONORS];
	int n;

	donors_flush(&s.donors);
	n = epoll_wait(s.donors.env.epoll_fd, ev, 2 * DONORS, 0);
	for (int i = 0; i < n; i++)
		donors_event(&s.donors, &ev[i]);
	engine_run(&s.engine);
	engine_begin_large(&s.engine);
	while (draw(4) && donors_more(&s.donors))
		engine_run(&s.engine);
	while (repair_run(&s.replicas))
		;
	donors_flush(&s.donors);
	s.notes.taken = s.notes.put;
}

static void tick(uint64_t now)
{
	donors_tick(&s.donors, now_ns());
	repair_tick(&s.replicas, now);
	reservation_tick(&s.replicas, now_ns());
}

static void step(uint64_t *now)
{
	struct fake *f = &fakes[draw(DONORS)];
	struct donor *d = &s.donors.donor[draw(DONORS)];

	switch (draw(28)) {
	case 0 ... 5:
		request(SLOT_WRITE);
		break;
	case 6 ... 10:
		request(SLOT_READ);
		break;
	case 11:
		request(SLOT_DISCARD);
		break;
	case 12:
		*now += 200000000;
		tick(*now);
		break;
	case 13:
		speak_up(f);
		break;
	case 14:
		if (!draw(6))
			hang_up(f);
		break;
	case 15:
		if (!draw(5))
			donor_trust(d, now_ns());
		break;
	case 16:
		d->leaving ^= draw(9) ? 0 : DONOR_DRAINED;
		break;
	case 17:
		d->retry_at = 0;
		break;
	case 18 ... 19:
		if (backup_there(&s.engine.backup))
			disk_step(draw(2) ? &s.engine.backup.queue : &s.engine.backup.reads);
		break;
	default:
		serve(f, 1 + draw(6));
	}
	if (draw(3))
		look();
}

/* From now on all do what they should, or are lost: every request comes to its end. */
static void settle(void)
{
	evil = 1 << 24;
	for (int round = 1;
	     answered < asked || s.replicas.repair.running || backup_pending(&s.engine.backup);
	     round++) {
		for (int i = 0; i < DONORS; i++) {
			struct donor *d = &s.donors.donor[i];

			serve(&fakes[i], UINT32_MAX);
			if (round % 50 == 0 && d->state == DONOR_UP)
				donor_lose(d, "it has forgotten what it was asked");
			d->retry_at = 0;
		}
		for (int i = 0; i < 2 * SLOT_COUNT && backup_there(&s.engine.backup); i++)
			disk_step(i % 2 ? &s.engine.backup.queue : &s.engine.backup.reads);
		look();
		donors_tick(&s.donors, now_ns());
		if (round > 3000)
			wrong("a request without an answer");
	}
}

static void begin(bool backup)
{
	static struct transport transport;
	struct seal_table seals = s.engine.sealing.seals;
	struct sealer sealer = s.engine.sealing.sealer;
	struct slots slots = s.engine.slots;

	transport = transport_tcp;
	transport.open = open_fake;
	memset(&shared, 0, sizeof(shared));
	s = (struct swapd){
		/* A busy machine loses no donor. */
		.options = { .name = "unit",
			     .slab = SLAB,
			     .deadline = 600000000000,
			     .repair_rate = 1 << 30 },
		.shared = &shared,
		.count = &shared.counters,
		.frontend = &frontend_fake,
		.donors.env.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
		.replicas.wanted = backup ? 1 : 1 + (int)draw(2),
		.replicas.choices = 2,
		.replicas.reserves = !backup && draw(2),
		.replicas.seed = seed,
		.engine.backlog_most = SLOT_COUNT - fuse_frontend.slots,
		.replicas.slots_reserved = 64,
		.engine.sealing.on = true,
		.engine.backup = { .fd = backup ? 1 << 20 : -1, .shared_fd = -1 },
		.engine.sealing.seals = seals,
		.engine.sealing.sealer = sealer,
		.engine.slots = slots,
	};
	wiring_events(&s);
	s.engine.backup.slots = &s.engine.slots;
	slab_init(&s.engine.table, slabs, SLABS, SLAB / PAGE);
	s.engine.map = page_map_new(PAGES, SLAB / PAGE, backup);
	assert_non_null(s.engine.map);
	for (int i = 0; i < DONORS; i++) {
		char text[32];

		snprintf(text, sizeof(text), "127.0.0.1:%d", 1 + i);
		assert_int_equal(donor_new(&s.donors, text, NULL), i);
		s.donors.donor[i].link.transport = &transport;
		donor_enter(&s.donors.donor[i], now_ns());
		fakes[i].olds = 0;
	}
	asked = answered = 0;
	memset(newest, 0, sizeof(newest));
}

static void end(void)
{
	settle();
	assert_int_equal(s.engine.need_backup, 0);
	donors_free(&s.donors);
	for (int i = 0; i < DONORS; i++)
		hang_up(&fakes[i]);
	page_map_free(&s.engine.map);
	close(s.donors.env.epoll_fd);
	/* All slots are free, and none is listed twice. */
	if (s.engine.slots.free_count != SLOT_COUNT || s.engine.slots.active_count)
		wrong("slots are missing");
}

static void they_do_as_they_like(bool backup)
{
	time_t over = time(NULL) + SECONDS;
	uint64_t bad = 0, lost = 0, revoked = 0;
	bool enough = false; /* otherwise nothing is shown; a busy machine needs more time */

	good = errors = early = 0;
	for (number = 1; time(NULL) < over || (!enough && number < 1000); number++) {
		uint64_t now = now_ns();

		seed = number * 0x9e3779b97f4a7c15ull | 1;
		evil = 4 + draw(60);
		begin(backup);
		for (uint32_t n = 100 + draw(400); n; n--)
			step(&now);
		end();
		bad += shared.counters.bad_donor;
		lost += shared.counters.donor_losses;
		revoked += shared.counters.revocations;
		enough = good > 500 && bad > 0 && lost > 10 && early > 10 && revoked > 10;
	}
	assert_true(enough);
}

static void without_a_disk(void **state)
{
	they_do_as_they_like(false);
}

static void with_a_disk(void **state)
{
	they_do_as_they_like(true);
}

static int set_up(void **state)
{
	for (int i = 0; i < DONORS; i++)
		fakes[i] = (struct fake){ .fd = -1,
					  .memory = calloc(REMOTE, SLAB),
					  .in = malloc(BUFFER) };
	return slots_init(&s.engine.slots, SLOT_COUNT, NULL) ||
	       seal_table_init(&s.engine.sealing.seals, PAGES, NULL) ||
	       sealer_init(&s.engine.sealing.sealer, &s.engine.sealing.seals, NULL);
}

static int tear_down(void **state)
{
	sealer_free(&s.engine.sealing.sealer);
	seal_table_free(&s.engine.sealing.seals);
	slots_free(&s.engine.slots);
	for (int i = 0; i < DONORS; i++) {
		free(fakes[i].memory);
		free(fakes[i].in);
	}
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_disk),
		cmocka_unit_test(with_a_disk),
	};

	return cmocka_run_group_tests_name("evil donors", tests, set_up, tear_down);
}
