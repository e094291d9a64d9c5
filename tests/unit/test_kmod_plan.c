// SPDX-License-Identifier: GPL-2.0-or-later
/* What is decided for a device of the kernel module. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <errno.h>

#include "lib/kmod/plan.h"

#include <cmocka.h>

#define M (1ull << 20)
#define SLAB (4 * M)
#define SLABS 12
#define NOW (1000 * KMOD_SECOND)

/* A device, its module and its donors. */
struct world {
	struct kmod_device device;
	struct ebb_swap_slab slabs[SLABS];
	struct kmod_donor donors[3];
	struct kmod_patience patience[3];
	struct kmod_plan plan;
};

static void session_add(struct world *w, uint32_t number, int donor, uint32_t state, uint64_t free)
{
	struct kmod_session *s = &w->device.session[w->device.sessions++];

	*s = (struct kmod_session){ .number = number, .state = state, .free = free,
				    .port = w->donors[donor].port };
	strcpy(s->ip, w->donors[donor].ip);
}

static void world_init(struct world *w)
{
	memset(w, 0, sizeof(*w));
	w->device.slab = SLAB;
	w->device.size = SLABS * SLAB;
	for (int i = 0; i < 3; i++) {
		char text[32];

		snprintf(text, sizeof(text), "rdma:10.9.0.%d:7471", i + 1);
		assert_int_equal(kmod_donor_parse(text, "donor", &w->donors[i], NULL), 0);
	}
	for (int i = 0; i < SLABS; i++)
		w->slabs[i] = (struct ebb_swap_slab){
			.session = KMOD_NO_SESSION, .second = KMOD_NO_SESSION,
			.source = KMOD_NO_SESSION, .copies = EBB_SWAP_DONOR,
		};
	w->plan = (struct kmod_plan){ .device = &w->device,
				      .slabs = w->slabs,
				      .count = SLABS,
				      .donors = w->donors,
				      .patience = w->patience,
				      .donor_count = 3,
				      .now = NOW,
				      .seed = 3 };
}

/* Takes every step, each with @result; how many. */
static int run(struct world *w, int result)
{
	struct kmod_step s;
	int n = 0;

	kmod_plan_start(&w->plan);
	while (kmod_plan_next(&w->plan, &s)) {
		kmod_plan_done(&w->plan, &s, result);
		assert_true(++n < 100);
	}
	return n;
}

static void addresses(void **state)
{
	struct kmod_donor d, list[DEVICE_DONORS];
	struct kmod_session s = { .port = 7070, .ip = "::1" };
	char text[64];

	assert_int_equal(kmod_donor_parse("rdma:10.0.0.7", "x", &d, NULL), 0);
	assert_string_equal(d.text, "rdma:10.0.0.7:7070");
	assert_string_equal(d.ip, "10.0.0.7");
	assert_int_equal(d.port, 7070);
	assert_int_equal(kmod_donor_parse("rdma:[0:0:0:0:0:0:0:1]:7070", "x", &d, NULL), 0);
	assert_string_equal(d.text, "rdma:[::1]:7070");
	assert_true(kmod_donor_is(&d, &s));
	strcpy(s.ip, "0:0::1");
	assert_true(kmod_donor_is(&d, &s));
	s.port = 7071;
	assert_false(kmod_donor_is(&d, &s));
	assert_int_equal(kmod_donor_parse("10.0.0.7:7070", "x", &d, NULL), -EINVAL);
	assert_int_equal(kmod_donor_parse("rdma:", "x", &d, NULL), -EINVAL);
	assert_int_equal(kmod_donor_parse("rdma:10.0.0.7:0", "x", &d, NULL), -EINVAL);
	assert_int_equal(kmod_donor_parse("rdma:unix:/x", "x", &d, NULL), -EINVAL);
	assert_int_equal(kmod_donors_of("rdma:10.0.0.7:1,unix:/x,rdma:10.0.0.8:2", list), 2);
	assert_string_equal(list[1].text, "rdma:10.0.0.8:2");
	assert_int_equal(kmod_donors_of("", list), 0);
	assert_int_equal(kmod_donor_check("rdma:donor3", "x", text, sizeof(text), NULL), 0);
	assert_string_equal(text, "rdma:donor3:7070");
	assert_int_equal(kmod_donor_check("donor3", "x", text, sizeof(text), NULL), 0);
	assert_string_equal(text, "donor3:7070");
}

static void connects_to_who_is_missing(void **state)
{
	struct world w;
	int next = 0;

	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_CLOSED, 0);
	session_add(&w, 1, 1, EBB_SWAP_LIVE, 0);
	w.patience[2].connect_at = NOW + 1;
	assert_int_equal(kmod_plan_connect(&w.device, w.donors, 3, w.patience, NOW, &next), 0);
	assert_int_equal(kmod_plan_connect(&w.device, w.donors, 3, w.patience, NOW, &next), -1);
	next = 0;
	assert_int_equal(kmod_plan_connect(&w.device, w.donors, 3, w.patience, NOW + 1, &next), 0);
	assert_int_equal(kmod_plan_connect(&w.device, w.donors, 3, w.patience, NOW + 1, &next), 2);
	assert_int_equal(kmod_plan_connect(&w.device, w.donors, 3, w.patience, NOW + 1, &next), -1);
}

static void patience_grows(void **state)
{
	struct kmod_patience p = { .map_at = 5 };
	uint64_t before = 0;

	for (int i = 0; i < 12; i++) {
		kmod_patience_connected(&p, -ECONNREFUSED, NOW);
		assert_true(p.connect_at - NOW >= before);
		before = p.connect_at - NOW;
		assert_int_equal(p.failures, i + 1);
	}
	assert_in_range(before, KMOD_RETRY_MOST / 2, KMOD_RETRY_MOST);
	kmod_patience_connected(&p, -ECONNREFUSED, NOW + KMOD_SECOND);
	assert_in_range(p.connect_at - NOW - KMOD_SECOND, KMOD_RETRY_MOST / 2, KMOD_RETRY_MOST);
	assert_int_not_equal(p.connect_at - NOW - KMOD_SECOND, before);
	assert_int_equal(p.map_at, 5);
	kmod_patience_connected(&p, 0, NOW);
	assert_int_equal(p.failures, 0);
	assert_int_equal(p.connect_at, NOW + KMOD_SECOND);
	assert_int_equal(p.map_at, 0);
}

static void forgets_what_tells_nothing_any_more(void **state)
{
	struct world w;
	uint32_t next = 0;

	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_CLOSED, 0);
	session_add(&w, 1, 0, EBB_SWAP_CLOSED, 0);
	session_add(&w, 2, 1, EBB_SWAP_CLOSED, 0);
	session_add(&w, 3, 1, EBB_SWAP_LIVE, 0);
	session_add(&w, 4, 2, EBB_SWAP_FAILED, 0);
	/*
	 * Of the first donor its last one stays; of the second none does; the third's is not over
	 * yet.
	 */
	assert_int_equal(kmod_plan_forget(&w.device, w.donors, 3, &next), 0);
	assert_int_equal(kmod_plan_forget(&w.device, w.donors, 3, &next), 2);
	assert_int_equal(kmod_plan_forget(&w.device, w.donors, 3, &next), KMOD_NO_SESSION);
	/* A donor that is not ours any more. */
	next = 0;
	assert_int_equal(kmod_plan_forget(&w.device, w.donors + 1, 2, &next), 0);
	assert_int_equal(kmod_plan_forget(&w.device, w.donors + 1, 2, &next), 1);
}

static void maps_all_over_the_donors(void **state)
{
	struct world w;

	world_init(&w);
	for (uint32_t i = 0; i < 3; i++)
		session_add(&w, 10 + i, (int)i, EBB_SWAP_LIVE, 64 * M);
	assert_int_equal(run(&w, 0), SLABS);
	assert_int_equal(w.plan.unplaced, 0);
	for (int i = 0; i < SLABS; i++)
		assert_in_range(w.slabs[i].session, 10, 12);
	/* The one with the lower use of two: they end up alike. */
	for (int i = 0; i < 3; i++) {
		assert_in_range(w.plan.held[i], 3, 5);
		assert_int_equal(w.device.session[i].free, 64 * M - w.plan.held[i] * SLAB);
	}
	/* Once more there is nothing to do. */
	assert_int_equal(run(&w, 0), 0);
}

static void only_who_takes_slabs_gets_some(void **state)
{
	struct world w;

	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 64 * M);
	session_add(&w, 1, 1, EBB_SWAP_FAILED, 64 * M);
	session_add(&w, 2, 2, EBB_SWAP_LIVE, 64 * M);
	w.device.session[0].draining = true;
	w.patience[2].map_at = NOW + 1;
	assert_int_equal(run(&w, 0), 0);
	assert_int_equal(w.plan.unplaced, SLABS);
	/* A donor that no list has counts neither. */
	w.patience[2].map_at = 0;
	w.plan.donor_count = 2;
	assert_int_equal(run(&w, 0), 0);
	w.plan.donor_count = 3;
	assert_int_equal(run(&w, 0), SLABS);
	for (int i = 0; i < SLABS; i++)
		assert_int_equal(w.slabs[i].session, 2);
}

static void a_donor_in_quarantine_is_left(void **state)
{
	struct world w;
	int next = 0;
	uint32_t ended = 0;

	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 64 * M);
	session_add(&w, 1, 1, EBB_SWAP_LIVE, 64 * M);
	w.device.session[0].bad_pages = 1;
	for (int i = 0; i < SLABS; i++)
		w.slabs[i].session = i % 2 ? 0 : KMOD_NO_SESSION;
	/* It gets no slab, and those that it has migrate. */
	assert_int_equal(run(&w, 0), SLABS);
	for (int i = 0; i < SLABS; i++) {
		assert_int_equal(w.slabs[i].session, 1);
		assert_int_equal(w.slabs[i].source, i % 2 ? 0 : KMOD_NO_SESSION);
	}
	/* Once its session has ended there is none again: the old one stays to tell why. */
	w.device.session[0].state = EBB_SWAP_CLOSED;
	assert_int_equal(kmod_plan_connect(&w.device, w.donors, 2, w.patience, NOW, &next), -1);
	session_add(&w, 2, 0, EBB_SWAP_CLOSED, 0);
	assert_int_equal(kmod_plan_forget(&w.device, w.donors, 3, &ended), KMOD_NO_SESSION);
	ended = next = 0;
	w.device.session[0].bad_pages = 0;
	assert_int_equal(kmod_plan_forget(&w.device, w.donors, 3, &ended), 0);
	assert_int_equal(kmod_plan_connect(&w.device, w.donors, 2, w.patience, NOW, &next), 0);
}

/*
 * Its slabs stay for the repair delay; then they get another donor, if there is one: with a backup
 * only those in use.
 */
static void a_donor_that_is_away_is_replaced_later(void **state)
{
	struct world w;
	int next = 0;
	uint32_t ended = 0;

	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_AWAY, 64 * M);
	session_add(&w, 1, 1, EBB_SWAP_LIVE, 64 * M);
	strcpy(w.device.backup, "/dev/sdz");
	for (int i = 0; i < SLABS; i++) {
		w.slabs[i].session = 0;
		w.slabs[i].written = i % 2;
	}
	w.device.session[0].away = KMOD_REPAIR_MS - 1;
	assert_int_equal(run(&w, 0), 0);
	assert_int_equal(kmod_plan_connect(&w.device, w.donors, 2, w.patience, NOW, &next), -1);
	assert_int_equal(kmod_plan_forget(&w.device, w.donors, 2, &ended), KMOD_NO_SESSION);
	w.device.session[0].away = KMOD_REPAIR_MS;
	assert_int_equal(run(&w, 0), SLABS / 2);
	for (int i = 0; i < SLABS; i++) {
		assert_int_equal(w.slabs[i].session, i % 2 ? 1 : 0);
		assert_int_equal(w.slabs[i].source, i % 2 ? 0 : KMOD_NO_SESSION);
	}
	*w.device.backup = '\0';
	assert_int_equal(run(&w, 0), SLABS / 2);
	for (int i = 0; i < SLABS; i++) {
		assert_int_equal(w.slabs[i].session, 1);
		assert_int_equal(w.slabs[i].source, 0);
	}
	/* Nothing moves to the backup, which has the writes meanwhile, nor is it stuck. */
	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_AWAY, 64 * M);
	w.device.session[0].away = 2 * KMOD_REPAIR_MS;
	strcpy(w.device.backup, "/dev/sdz");
	for (int i = 0; i < SLABS; i++) {
		w.slabs[i].session = 0;
		w.slabs[i].written = 1;
	}
	assert_int_equal(run(&w, 0), 0);
	assert_int_equal(w.plan.stuck, 0);
	/* Of two donors, the one that is away. */
	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 64 * M);
	session_add(&w, 1, 1, EBB_SWAP_AWAY, 64 * M);
	session_add(&w, 2, 2, EBB_SWAP_LIVE, 64 * M);
	w.device.session[1].away = KMOD_REPAIR_MS;
	for (int i = 0; i < SLABS; i++) {
		w.slabs[i].copies = EBB_SWAP_DONOR | EBB_SWAP_SECOND;
		w.slabs[i].session = 0;
		w.slabs[i].second = 1;
		w.slabs[i].written = 1;
	}
	assert_int_equal(run(&w, 0), SLABS);
	for (int i = 0; i < SLABS; i++) {
		assert_int_equal(w.slabs[i].session, 0);
		assert_int_equal(w.slabs[i].second, 2);
		assert_int_equal(w.slabs[i].source, 1);
	}
}

static void a_donor_that_refuses_is_left_out(void **state)
{
	struct world w;
	struct kmod_step s;

	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 64 * M);
	session_add(&w, 1, 1, EBB_SWAP_LIVE, 64 * M);
	kmod_plan_start(&w.plan);
	assert_true(kmod_plan_next(&w.plan, &s));
	kmod_plan_done(&w.plan, &s, -ENOSPC);
	assert_int_equal(w.patience[s.session].map_at, NOW + KMOD_FULL);
	/* The same slab goes to the other. */
	for (int i = 0; i < SLABS; i++) {
		uint32_t other = !s.session;
		struct kmod_step next;

		assert_true(kmod_plan_next(&w.plan, &next));
		assert_int_equal(next.slab, i);
		assert_int_equal(next.session, i ? w.slabs[0].session : other);
		kmod_plan_done(&w.plan, &next, 0);
	}
	assert_false(kmod_plan_next(&w.plan, &s));
	/* Both do: it ends, and says so. */
	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 64 * M);
	session_add(&w, 1, 1, EBB_SWAP_LIVE, 64 * M);
	assert_int_equal(run(&w, -ENOTCONN), 2);
	assert_int_equal(w.plan.unplaced, SLABS);
	/* A slab that cannot now is no reason to shun its donor. */
	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 64 * M);
	assert_int_equal(run(&w, -EBUSY), SLABS);
	assert_int_equal(w.patience[0].map_at, 0);
	assert_int_equal(w.plan.unplaced, SLABS);
}

static void a_donor_that_had_no_room_is_tried(void **state)
{
	struct world w;

	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 0);
	assert_int_equal(run(&w, -ENOSPC), 1);
	assert_int_equal(w.patience[0].map_at, NOW + KMOD_FULL);
	assert_int_equal(run(&w, -ENOSPC), 0);
	w.plan.now += KMOD_FULL;
	assert_int_equal(run(&w, 0), SLABS);
}

static void asked_back(void **state)
{
	struct world w;
	struct kmod_step s;

	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 64 * M);
	session_add(&w, 1, 1, EBB_SWAP_LIVE, 64 * M);
	for (int i = 0; i < SLABS; i++)
		w.slabs[i].session = 0;
	w.slabs[5].recalled = w.slabs[6].recalled = 1;
	/* Already migrating. */
	w.slabs[6].source = 1;
	kmod_plan_start(&w.plan);
	assert_true(kmod_plan_next(&w.plan, &s));
	assert_int_equal(s.act, KMOD_MIGRATE);
	assert_int_equal(s.slab, 5);
	assert_int_equal(s.session, 1);
	kmod_plan_done(&w.plan, &s, 0);
	assert_false(kmod_plan_next(&w.plan, &s));
	assert_int_equal(w.slabs[5].source, 0);
	/* A donor that recalls slabs gets no new ones. */
	assert_int_equal(w.patience[0].map_at, NOW + KMOD_RECALLED);
}

static void drained_without_room_elsewhere(void **state)
{
	struct world w;

	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 64 * M);
	w.device.session[0].draining = true;
	for (int i = 0; i < SLABS; i++)
		w.slabs[i].session = 0;
	assert_int_equal(run(&w, 0), 0);
	assert_int_equal(w.plan.stuck, SLABS);
	/* With a backup they go there. */
	strcpy(w.device.backup, "/dev/vg/backup");
	assert_int_equal(run(&w, 0), SLABS);
	assert_int_equal(w.plan.stuck, 0);
	assert_int_equal(w.plan.unplaced, SLABS);
	assert_int_equal(w.plan.held[0], 0);
	for (int i = 0; i < SLABS; i++)
		assert_int_equal(w.slabs[i].session, KMOD_NO_SESSION);
}

/* Of a class with a backup: memory is lent where its pages are. */
static void only_what_is_written(void **state)
{
	struct world w;

	world_init(&w);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, SLABS * SLAB);
	w.plan.lazy = true;
	assert_int_equal(run(&w, 0), 0);
	assert_int_equal(w.plan.unplaced, 0);
	w.slabs[3].written = 1;
	w.slabs[7].written = 500;
	assert_int_equal(run(&w, 0), 2);
	for (int i = 0; i < SLABS; i++)
		assert_int_equal(w.slabs[i].session, i == 3 || i == 7 ? 0 : KMOD_NO_SESSION);
	/* One that has no page any more leaves a donor that is drained all the same. */
	w.slabs[3] = (struct ebb_swap_slab){
		.session = 0, .second = KMOD_NO_SESSION, .source = KMOD_NO_SESSION,
	};
	w.slabs[7].source = KMOD_NO_SESSION;
	session_add(&w, 1, 1, EBB_SWAP_LIVE, SLABS * SLAB);
	w.device.session[0].draining = true;
	assert_int_equal(run(&w, 0), 2);
	assert_int_equal(w.slabs[3].session, 1);
	assert_int_equal(w.slabs[7].session, 1);
}

/* As many slabs at @first as there are, with the second that they are to have at @second. */
static void world_twice(struct world *w, uint32_t first, uint32_t second)
{
	world_init(w);
	for (int i = 0; i < SLABS; i++) {
		w->slabs[i].session = first;
		w->slabs[i].second = second;
		w->slabs[i].copies = EBB_SWAP_DONOR | EBB_SWAP_SECOND;
	}
}

static void two_donors_each(void **state)
{
	struct world w;

	world_twice(&w, KMOD_NO_SESSION, KMOD_NO_SESSION);
	for (uint32_t i = 0; i < 3; i++)
		session_add(&w, 10 + i, (int)i, EBB_SWAP_LIVE, 64 * M);
	assert_int_equal(run(&w, 0), 2 * SLABS);
	assert_int_equal(w.plan.unplaced, 0);
	assert_int_equal(w.plan.single, 0);
	for (int i = 0; i < SLABS; i++) {
		assert_in_range(w.slabs[i].session, 10, 12);
		assert_in_range(w.slabs[i].second, 10, 12);
		assert_int_not_equal(w.slabs[i].session, w.slabs[i].second);
	}
	for (int i = 0; i < 3; i++) {
		assert_in_range(w.plan.held[i], 6, 10);
		assert_int_equal(w.device.session[i].free, 64 * M - w.plan.held[i] * SLAB);
	}
	assert_int_equal(run(&w, 0), 0);
	/* Every slab has a donor before the first has two. */
	world_twice(&w, KMOD_NO_SESSION, KMOD_NO_SESSION);
	for (uint32_t i = 0; i < 2; i++)
		session_add(&w, i, (int)i, EBB_SWAP_LIVE, 64 * M);
	kmod_plan_start(&w.plan);
	assert_int_equal(kmod_plan_left(&w.plan), 2 * SLABS);
	for (int i = 0; i < 2 * SLABS; i++) {
		struct kmod_step s;

		assert_true(kmod_plan_next(&w.plan, &s));
		assert_int_equal(s.act, KMOD_MAP);
		assert_int_equal(s.slab, i % SLABS);
		kmod_plan_done(&w.plan, &s, 0);
		assert_int_equal(kmod_plan_left(&w.plan), 2 * SLABS - i - 1);
	}
}

static void no_second_copy_at_the_first_ones_donor(void **state)
{
	struct world w;

	world_twice(&w, 4, KMOD_NO_SESSION);
	session_add(&w, 4, 0, EBB_SWAP_LIVE, 640 * M);
	assert_int_equal(run(&w, 0), 0);
	assert_int_equal(w.plan.single, SLABS);
	assert_int_equal(w.plan.unplaced, 0);
	/* Nor at one that is being left. */
	session_add(&w, 5, 1, EBB_SWAP_LIVE, 640 * M);
	for (int i = 0; i < SLABS; i++)
		w.slabs[i].source = 5;
	assert_int_equal(run(&w, 0), 0);
	/* A third comes; that they migrate is no reason to wait. */
	session_add(&w, 6, 2, EBB_SWAP_LIVE, 640 * M);
	assert_int_equal(run(&w, 0), SLABS);
	assert_int_equal(w.plan.single, 0);
	for (int i = 0; i < SLABS; i++)
		assert_int_equal(w.slabs[i].second, 6);
	/* Of one it had no room for the others are told. */
	world_twice(&w, 4, KMOD_NO_SESSION);
	session_add(&w, 4, 0, EBB_SWAP_LIVE, 64 * M);
	session_add(&w, 5, 1, EBB_SWAP_LIVE, 64 * M);
	assert_int_equal(run(&w, -ENOSPC), 1);
	assert_int_equal(w.plan.single, SLABS);
	assert_int_equal(w.patience[1].map_at, NOW + KMOD_FULL);
}

/* Donors on one machine, by their addresses, as long as there is another. */
static void second_copies_are_on_other_machines(void **state)
{
	struct world w;

	world_twice(&w, 0, KMOD_NO_SESSION);
	strcpy(w.donors[1].ip, w.donors[0].ip);
	w.donors[1].port = 7472;
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 64 * M);
	session_add(&w, 1, 1, EBB_SWAP_LIVE, 640 * M);
	session_add(&w, 2, 2, EBB_SWAP_LIVE, 4 * SLAB);
	w.patience[2].map_at = NOW + 1;
	w.slabs[0].source = KMOD_NO_SESSION;
	assert_int_equal(kmod_plan_choose(&w.plan, &w.slabs[0], KMOD_NO_SESSION), 1);
	w.patience[2].map_at = 0;
	for (int i = 0; i < 20; i++)
		assert_int_equal(kmod_plan_choose(&w.plan, &w.slabs[0], KMOD_NO_SESSION), 2);
	/* The one that leaves need not be looked at for that: its place is what is free. */
	w.slabs[0].second = 2;
	assert_int_equal(kmod_plan_choose(&w.plan, &w.slabs[0], 0), 1);
	assert_int_equal(kmod_plan_choose(&w.plan, &w.slabs[0], 2), 1);
}

static void either_is_left(void **state)
{
	struct kmod_step s;
	struct world w;

	world_twice(&w, 0, 1);
	for (uint32_t i = 0; i < 3; i++)
		session_add(&w, i, (int)i, EBB_SWAP_LIVE, 640 * M);
	w.slabs[2].recalled = 2;
	w.slabs[3].recalled = 1;
	w.slabs[4].recalled = 3;
	kmod_plan_start(&w.plan);
	for (int i = 2; i < 5; i++) {
		uint32_t from = i == 2;

		assert_true(kmod_plan_next(&w.plan, &s));
		assert_int_equal(s.act, KMOD_MIGRATE);
		assert_int_equal(s.slab, i);
		assert_int_equal(s.from, from);
		assert_int_equal(s.session, 2);
		kmod_plan_done(&w.plan, &s, 0);
		assert_int_equal(w.slabs[i].source, from);
		assert_int_equal(from ? w.slabs[i].second : w.slabs[i].session, 2);
		assert_int_equal(from ? w.slabs[i].session : w.slabs[i].second, !from);
	}
	/* Of the other its turn is when this one has left. */
	assert_false(kmod_plan_next(&w.plan, &s));
	assert_int_equal(w.plan.held[0], SLABS - 2);
	assert_int_equal(w.plan.held[1], SLABS - 1);
	assert_int_equal(w.plan.held[2], 3);
	assert_int_equal(w.patience[0].map_at, NOW + KMOD_RECALLED);
	assert_int_equal(w.patience[1].map_at, NOW + KMOD_RECALLED);
}

static void drained_without_a_third(void **state)
{
	struct world w;

	world_twice(&w, 0, 1);
	session_add(&w, 0, 0, EBB_SWAP_LIVE, 640 * M);
	session_add(&w, 1, 1, EBB_SWAP_LIVE, 640 * M);
	w.device.session[0].draining = true;
	assert_int_equal(run(&w, 0), 0);
	assert_int_equal(w.plan.stuck, SLABS);
	/* With a backup they are at the other, and there. */
	strcpy(w.device.backup, "/dev/vg/backup");
	assert_int_equal(run(&w, 0), SLABS);
	assert_int_equal(w.plan.unplaced, 0);
	assert_int_equal(w.plan.single, SLABS);
	for (int i = 0; i < SLABS; i++) {
		assert_int_equal(w.slabs[i].session, 1);
		assert_int_equal(w.slabs[i].second, KMOD_NO_SESSION);
		assert_int_equal(w.slabs[i].source, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addresses),
		cmocka_unit_test(connects_to_who_is_missing),
		cmocka_unit_test(patience_grows),
		cmocka_unit_test(forgets_what_tells_nothing_any_more),
		cmocka_unit_test(maps_all_over_the_donors),
		cmocka_unit_test(only_who_takes_slabs_gets_some),
		cmocka_unit_test(a_donor_in_quarantine_is_left),
		cmocka_unit_test(a_donor_that_is_away_is_replaced_later),
		cmocka_unit_test(a_donor_that_refuses_is_left_out),
		cmocka_unit_test(a_donor_that_had_no_room_is_tried),
		cmocka_unit_test(asked_back),
		cmocka_unit_test(drained_without_room_elsewhere),
		cmocka_unit_test(only_what_is_written),
		cmocka_unit_test(two_donors_each),
		cmocka_unit_test(no_second_copy_at_the_first_ones_donor),
		cmocka_unit_test(second_copies_are_on_other_machines),
		cmocka_unit_test(either_is_left),
		cmocka_unit_test(drained_without_a_third),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
