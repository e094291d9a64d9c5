// SPDX-License-Identifier: GPL-2.0-or-later
/* Rounds over a class of a device, with a module that this file replaces. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "lib/kmod/settle.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { CLASS = 3, SLABS = 4, SESSIONS = 8 };
#define SECOND 1000000000ull

/* The module, as its commands leave it. */
static struct kmod_device module;
static struct ebb_swap_slab slab[SLABS];
/* Another process removes the class while a donor connects: its cgroup, pages and sessions. */
static bool loses_cgroup;

int kmod_status(struct kmod_link *l, uint32_t device, struct kmod_device *out, struct error *e)
{
	*out = module;
	return 0;
}

int kmod_slabs(struct kmod_link *l, const struct kmod_device *device, uint32_t class,
	       struct ebb_swap_slab **out, uint32_t *count, struct error *e)
{
	*out = calloc(SLABS, sizeof(*slab));
	assert_non_null(*out);
	memcpy(*out, slab, sizeof(slab));
	*count = SLABS;
	return 0;
}

int kmod_connect(struct kmod_link *l, uint32_t device, uint32_t class,
		 const struct kmod_peer *peer, uint32_t *session, struct error *e)
{
	static uint32_t number = 100;
	struct kmod_session *s = &module.session[module.sessions++];

	assert_in_range(module.sessions, 1, SESSIONS);
	*s = (struct kmod_session){ .number = number++, .state = EBB_SWAP_LIVE, .class = class,
				    .port = peer->port, .free = 1ull << 30 };
	snprintf(s->ip, sizeof(s->ip), "%s", peer->ip);
	*session = s->number;
	if (!loses_cgroup)
		return 0;
	module.cgroups = 0;
	for (int i = 0; i < SLABS; i++)
		slab[i].written = 0;
	for (uint32_t i = 0; i < module.sessions - 1;)
		if (module.session[i].state == EBB_SWAP_LIVE)
			kmod_disconnect(l, device, module.session[i].number, e);
		else
			i++;
	return 0;
}

int kmod_disconnect(struct kmod_link *l, uint32_t device, uint32_t session, struct error *e)
{
	for (uint32_t i = 0; i < module.sessions; i++)
		if (module.session[i].number == session) {
			module.session[i] = module.session[--module.sessions];
			return 0;
		}
	return -ENOENT;
}

int kmod_map(struct kmod_link *l, uint32_t device, uint32_t index, uint32_t session,
	     struct error *e)
{
	slab[index].session = session;
	return 0;
}

int kmod_migrate(struct kmod_link *l, uint32_t device, uint32_t class, uint32_t index,
		 uint32_t from, uint32_t session, struct error *e)
{
	return -EBUSY;
}

/* A class with a cgroup, whose donor's session has ended. */
static struct kmod_view begin(void)
{
	struct kmod_view v = { .class = CLASS };
	struct kmod_round round;

	loses_cgroup = false;
	module = (struct kmod_device){ .size = SLABS << 20, .slab = 1 << 20, .cgroups = 1,
				       .sessions = 1 };
	module.copies[0] = module.copies[CLASS] = EBB_SWAP_DONOR;
	module.cgroup[0].id = 7;
	module.cgroup[0].class = CLASS;
	module.session[0] = (struct kmod_session){ .number = 1, .state = EBB_SWAP_LIVE,
						   .class = CLASS, .port = 7070 };
	strcpy(module.session[0].ip, "10.0.0.1");
	memset(slab, 0, sizeof(slab));
	for (int i = 0; i < SLABS; i++)
		slab[i].session = slab[i].second = slab[i].source = KMOD_NO_SESSION;
	assert_int_equal(kmod_settle(NULL, &v, SECOND, &round, NULL), 0);
	assert_int_equal(round.mapped, SLABS);
	module.session[0].state = EBB_SWAP_CLOSED;
	for (int i = 0; i < SLABS; i++)
		slab[i].session = KMOD_NO_SESSION;
	return v;
}

/* Returns the number of sessions that are live after another round. */
static uint32_t settle(struct kmod_view *v, uint32_t *mapped)
{
	struct kmod_round round;
	uint32_t live = 0;

	assert_int_equal(kmod_settle(NULL, v, SECOND, &round, NULL), 0);
	for (uint32_t i = 0; i < module.sessions; i++)
		live += module.session[i].state == EBB_SWAP_LIVE;
	*mapped = round.mapped;
	return live;
}

static void a_class_gets_its_donor_back(void **state)
{
	struct kmod_view v = begin();
	uint32_t mapped;

	assert_int_equal(settle(&v, &mapped), 1);
	assert_int_equal(mapped, SLABS);
	kmod_view_free(&v);
}

static void a_class_without_use_gets_no_session(void **state)
{
	struct kmod_view v = begin();
	uint32_t mapped;

	module.cgroups = 0;
	assert_int_equal(settle(&v, &mapped), 0);
	assert_int_equal(mapped, 0);
	kmod_view_free(&v);
}

/* A process that reads a key leaves no core dump, in which the key would be. */
static void a_key_is_in_no_core_dump(void **state)
{
	struct kmod_view v = begin();
	uint32_t mapped;

	assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0);
	assert_int_equal(settle(&v, &mapped), 1);
	assert_int_equal(prctl(PR_GET_DUMPABLE), 0);
	kmod_view_free(&v);
}

/* The command that removes the class ends the sessions that it sees, not one that is being made. */
static void a_class_that_ends_meanwhile_keeps_no_session(void **state)
{
	struct kmod_view v = begin();
	uint32_t mapped;

	loses_cgroup = true;
	assert_int_equal(settle(&v, &mapped), 0);
	assert_int_equal(mapped, 0);
	kmod_view_free(&v);
}

/* It had pages at the last look, and another donor, which the command disconnects. */
static void a_class_that_ends_with_pages_and_donors_keeps_no_session(void **state)
{
	struct kmod_view v = begin();
	uint32_t mapped;

	slab[1].written = 1;
	module.session[1] = (struct kmod_session){ .number = 2, .state = EBB_SWAP_LIVE,
						   .class = CLASS, .port = 7070 };
	strcpy(module.session[1].ip, "10.0.0.2");
	module.sessions = 2;
	/* The view learns of both. */
	v.patience[0].connect_at = UINT64_MAX;
	assert_int_equal(settle(&v, &mapped), 1);
	v.patience[0].connect_at = 0;
	module.session[0].state = EBB_SWAP_LIVE;
	module.session[1].state = EBB_SWAP_CLOSED;
	loses_cgroup = true;
	assert_int_equal(settle(&v, &mapped), 0);
	assert_int_equal(settle(&v, &mapped), 0);
	assert_int_equal(mapped, 0);
	kmod_view_free(&v);
}

static void pages_without_a_cgroup_are_replicated_again(void **state)
{
	struct kmod_view v = begin();
	uint32_t mapped;

	slab[1].written = 1;
	/* The view learns of pages by a round. */
	settle(&v, &mapped);
	for (uint32_t i = 0; i < module.sessions; i++)
		module.session[i].state = EBB_SWAP_CLOSED;
	module.cgroups = 0;
	v.patience[0].connect_at = 0;
	assert_int_equal(settle(&v, &mapped), 1);
	kmod_view_free(&v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_class_gets_its_donor_back),
		cmocka_unit_test(a_class_without_use_gets_no_session),
		cmocka_unit_test(a_key_is_in_no_core_dump),
		cmocka_unit_test(a_class_that_ends_meanwhile_keeps_no_session),
		cmocka_unit_test(a_class_that_ends_with_pages_and_donors_keeps_no_session),
		cmocka_unit_test(pages_without_a_cgroup_are_replicated_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
