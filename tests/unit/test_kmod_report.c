// SPDX-License-Identifier: GPL-2.0-or-later
/* A device of the kernel module, in the words of an ebb-swapd. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ebbd/kmod/report.h"
#include "lib/control/control.h"

#include <cmocka.h>

#define M (1ll << 20)
#define SLABS (KMOD_SLABS_AT_ONCE + 10)

/* Three donors: live, live and drained, lost, with reconnections failing. */
static struct kmod_view *view_new(void)
{
	static const struct {
		uint32_t number, state;
		int donor;
		bool draining;
		const char *reason;
	} sessions[] = {
		{ 0, EBB_SWAP_CLOSED, 2, false, "the first time" },
		{ 1, EBB_SWAP_LIVE, 0, false, "" },
		{ 2, EBB_SWAP_LIVE, 1, true, "" },
		{ 3, EBB_SWAP_CLOSED, 2, false, "the second time" },
	};
	struct kmod_view *v = calloc(1, sizeof(*v));

	assert_non_null(v);
	v->device = 5;
	v->now.slab = 4 * M;
	v->now.size = SLABS * 4 * M;
	v->donors = kmod_donors_of("rdma:10.0.0.1:1,rdma:10.0.0.2:1,rdma:10.0.0.3:1", v->donor);
	assert_int_equal(v->donors, 3);
	for (int i = 0; i < 4; i++) {
		struct kmod_session *s = &v->now.session[v->now.sessions++];

		*s = (struct kmod_session){ .number = sessions[i].number,
					    .state = sessions[i].state,
					    .draining = sessions[i].draining,
					    .port = 1,
					    .free = 8 * M };
		strcpy(s->ip, v->donor[sessions[i].donor].ip);
		strcpy(s->reason, sessions[i].reason);
	}
	v->slab_count = SLABS;
	v->slabs = calloc(SLABS, sizeof(*v->slabs));
	assert_non_null(v->slabs);
	for (int i = 0; i < SLABS; i++)
		v->slabs[i] = (struct ebb_swap_slab){ .session = 1, .source = KMOD_NO_SESSION,
						      .second = KMOD_NO_SESSION, .written = 10 };
	v->slabs[0].session = KMOD_NO_SESSION;
	v->slabs[1].source = 2;
	v->slabs[1].uncopied = 3;
	v->slabs[1].copies = EBB_SWAP_LACKING(EBB_SWAP_DONOR);
	v->slabs[2].session = 2;
	return v;
}

static void view_end(struct kmod_view *v)
{
	kmod_view_free(v);
	free(v);
}

static struct json_object *member(struct json_object *o, const char *key)
{
	struct json_object *v;

	assert_true(json_object_object_get_ex(o, key, &v));
	return v;
}

static void status(void **state)
{
	struct json_object *a = json_object_new_object(), *copies, *donors, *d;
	struct kmod_view *v = view_new();

	kmod_report_status(v, "it", a);
	assert_false(json_object_object_get_ex(a, "key", NULL));
	strcpy(v->now.key, "0123456789abcdef");
	v->patience[2].losses = 2;
	kmod_report_status(v, "it", a);
	assert_string_equal(json_text(a, "key", ""), "0123456789abcdef");
	assert_string_equal(json_text(a, "file", ""), "/dev/ebb5");
	assert_string_equal(json_text(a, "durability", ""), "none");
	assert_false(json_object_object_get_ex(a, "backup", NULL));
	/* A "pid" would be killed with the device. */
	assert_false(json_object_object_get_ex(a, "pid", NULL));
	copies = member(a, "copies");
	assert_int_equal(json_int(copies, "missing", -1), 1);
	assert_int_equal(json_int(copies, "filling", -1), 1);
	assert_int_equal(json_int(copies, "leaving", -1), 1);
	assert_int_equal(json_int(copies, "present", -1), SLABS - 2);
	assert_int_equal(json_int(a, "live", -1), SLABS * 10 * 4096);
	donors = member(a, "donors");
	assert_int_equal(json_object_array_length(donors), 3);
	d = json_object_array_get_idx(donors, 0);
	assert_string_equal(json_text(d, "state", ""), "up");
	assert_int_equal(json_int(d, "slabs", -1), SLABS - 2);
	assert_false(json_object_object_get_ex(d, "leaving", NULL));
	d = json_object_array_get_idx(donors, 1);
	assert_string_equal(json_text(d, "leaving", ""), "drained");
	assert_int_equal(json_int(d, "slabs", -1), 2);
	assert_int_equal(json_int(member(d, "outlook"), "move", -1), 2);
	d = json_object_array_get_idx(donors, 2);
	assert_string_equal(json_text(d, "state", ""), "down");
	assert_string_equal(json_text(d, "last_loss", ""), "the second time");
	assert_int_equal(json_int(d, "losses", -1), 2);
	assert_int_equal(json_int(d, "free", -1), 0);
	/* Away: it is neither up nor lost, and has its slabs. */
	v->now.session[1].state = EBB_SWAP_AWAY;
	v->patience[0].absences = 1;
	kmod_report_status(v, "it", a);
	d = json_object_array_get_idx(member(a, "donors"), 0);
	assert_string_equal(json_text(d, "state", ""), "away");
	assert_int_equal(json_int(d, "absences", -1), 1);
	assert_int_equal(json_int(d, "slabs", -1), SLABS - 2);
	assert_int_equal(json_int(d, "free", -1), 0);
	kmod_report_stats(v, a);
	assert_int_equal(json_int(a, "donor_losses", -1), 2);
	json_object_put(a);
	view_end(v);
}

/* The words of ebb-swapd: it is leaving until it has no slab, then in quarantine. */
static void quarantine(void **state)
{
	struct json_object *a = json_object_new_object(), *d;
	struct kmod_view *v = view_new();

	v->now.session[2].bad_pages = 3;
	kmod_report_status(v, "it", a);
	d = json_object_array_get_idx(member(a, "donors"), 1);
	assert_string_equal(json_text(d, "state", ""), "up");
	assert_string_equal(json_text(d, "leaving", ""), "quarantined");
	assert_int_equal(json_int(d, "bad_pages", -1), 3);
	assert_int_equal(json_int(json_object_array_get_idx(member(a, "donors"), 0), "bad_pages", -1), 0);
	v->slabs[1].source = v->slabs[2].session = KMOD_NO_SESSION;
	kmod_report_status(v, "it", a);
	d = json_object_array_get_idx(member(a, "donors"), 1);
	assert_string_equal(json_text(d, "state", ""), "quarantined");
	json_object_put(a);
	view_end(v);
}

static void classes(void **state)
{
	struct json_object *a = json_object_new_object(), *list, *o;
	struct kmod_view *v = view_new();

	kmod_report_status(v, "it", a);
	assert_false(json_object_object_get_ex(a, "classes", NULL));
	/* One with a donor that class 0 has, too, and one without. */
	v->now.session[4] = (struct kmod_session){ .number = 9, .state = EBB_SWAP_LIVE, .class = 2,
						   .port = 1, .ip = "10.0.0.1" };
	v->all = v->now.sessions + 1;
	v->now.copies[2] = EBB_SWAP_DONOR;
	v->now.copies[5] = EBB_SWAP_BACKUP;
	v->now.sealed = 1u << 5;
	v->now.cgroup[0].id = 1ull << 40;
	v->now.cgroup[0].class = 2;
	v->now.cgroups = 1;
	kmod_report_status(v, "it", a);
	list = member(a, "classes");
	assert_int_equal(json_object_array_length(list), 2);
	o = json_object_array_get_idx(list, 0);
	assert_int_equal(json_int(o, "class", -1), 2);
	assert_string_equal(json_text(o, "durability", ""), "none");
	assert_int_equal(json_object_get_int64(json_object_array_get_idx(member(o, "cgroups"), 0)),
			 1ll << 40);
	assert_string_equal(json_object_get_string(json_object_array_get_idx(member(o, "donors"), 0)),
			    "rdma:10.0.0.1:1");
	o = json_object_array_get_idx(list, 1);
	assert_string_equal(json_text(o, "durability", ""), "local");
	assert_true(json_object_get_boolean(member(o, "sealed")));
	assert_int_equal(json_object_array_length(member(o, "donors")), 0);
	json_object_put(a);
	view_end(v);
}

/* Some slabs have two donors, of which one lacks pages. */
static void replicas(void **state)
{
	struct json_object *a = json_object_new_object(), *copies, *s;
	struct kmod_view *v = view_new();

	v->now.copies[0] = EBB_SWAP_DONOR | EBB_SWAP_SECOND;
	for (int i = 0; i < SLABS; i++)
		v->slabs[i].copies |= v->now.copies[0];
	v->slabs[3].second = v->slabs[4].second = 2;
	v->slabs[3].uncopied = 5;
	v->slabs[3].copies |= EBB_SWAP_LACKING(EBB_SWAP_SECOND);
	kmod_report_status(v, "it", a);
	assert_string_equal(json_text(a, "durability", ""), "replicas=2");
	copies = member(a, "copies");
	assert_int_equal(json_int(copies, "wanted", -1), 2);
	assert_int_equal(json_int(copies, "missing", -1), 2 * SLABS - (SLABS - 1) - 2);
	assert_int_equal(json_int(copies, "filling", -1), 2);
	assert_int_equal(json_int(copies, "present", -1), SLABS - 1);
	assert_int_equal(json_int(a, "mapped", -1), (SLABS + 1) * 4 * M);
	assert_int_equal(json_int(json_object_array_get_idx(member(a, "donors"), 1), "slabs", -1), 4);
	json_object_put(a);
	a = json_object_new_object();
	kmod_report_slabs(v, "it", NULL, 0, 3, a);
	assert_int_equal(json_int(a, "wanted", -1), 2);
	s = json_object_array_get_idx(member(a, "slabs"), 0);
	copies = member(s, "copies");
	assert_int_equal(json_object_array_length(copies), 2);
	assert_string_equal(json_text(json_object_array_get_idx(copies, 0), "state", ""), "complete");
	assert_string_equal(json_text(json_object_array_get_idx(copies, 1), "donor", ""),
			    "rdma:10.0.0.2:1");
	assert_string_equal(json_text(json_object_array_get_idx(copies, 1), "state", ""), "filling");
	json_object_put(a);
	/* Those that are at both donors can go nowhere. */
	a = json_object_new_object();
	kmod_report_drain_estimate(v, 1, a);
	assert_int_equal(json_int(member(a, "outlook"), "slabs", -1), 4);
	assert_int_equal(json_int(member(a, "outlook"), "move", -1), 2);
	assert_int_equal(json_int(member(a, "outlook"), "stuck", -1), 2);
	json_object_put(a);
	view_end(v);
}

static void outlook(void **state)
{
	struct json_object *a = json_object_new_object();
	struct kmod_view *v = view_new();

	/*
	 * The other donor is full: nowhere, or, with a backup, there; but the one that is on its
	 * way.
	 */
	v->now.session[1].free = 4 * M - 1;
	kmod_report_drain_estimate(v, 1, a);
	assert_int_equal(json_int(member(a, "outlook"), "move", -1), 1);
	assert_int_equal(json_int(member(a, "outlook"), "stuck", -1), 1);
	assert_non_null(json_text(member(a, "outlook"), "why", NULL));
	strcpy(v->now.backup, "/dev/x");
	kmod_report_drain_estimate(v, 1, a);
	assert_int_equal(json_int(member(a, "outlook"), "stuck", -1), 0);
	assert_int_equal(json_int(member(a, "outlook"), "to_disk", -1), 1);
	json_object_put(a);
	view_end(v);
}

static void slabs(void **state)
{
	struct json_object *a = json_object_new_object(), *list, *s, *copies;
	struct ebb_swap_slab *before = calloc(SLABS, sizeof(*before));
	struct kmod_view *v = view_new();

	assert_non_null(before);
	v->slabs[1].reads = 60;
	v->slabs[1].writes = 40;
	before[1].reads = 50;
	v->slabs[3].session = KMOD_NO_SESSION;
	v->slabs[3].written = 0;
	kmod_report_slabs(v, "it", before, 2, 0, a);
	list = member(a, "slabs");
	assert_int_equal(json_object_array_length(list), KMOD_SLABS_AT_ONCE);
	s = json_object_array_get_idx(list, 1);
	assert_int_equal(json_object_get_int(member(s, "activity")), 25);
	copies = member(s, "copies");
	assert_int_equal(json_object_array_length(copies), 2);
	assert_string_equal(json_text(json_object_array_get_idx(copies, 0), "state", ""), "filling");
	assert_string_equal(json_text(json_object_array_get_idx(copies, 1), "donor", ""),
			    "rdma:10.0.0.2:1");
	assert_string_equal(json_text(json_object_array_get_idx(copies, 1), "state", ""), "leaving");
	/* One without a donor and a page is not worth a line. */
	assert_int_equal(json_int(json_object_array_get_idx(list, 3), "slab", -1), 4);
	assert_int_equal(json_int(a, "next", -1), KMOD_SLABS_AT_ONCE + 1);
	json_object_put(a);
	a = json_object_new_object();
	kmod_report_slabs(v, "it", NULL, 0, KMOD_SLABS_AT_ONCE + 1, a);
	assert_int_equal(json_object_array_length(member(a, "slabs")), SLABS - KMOD_SLABS_AT_ONCE - 1);
	assert_false(json_object_object_get_ex(a, "next", NULL));
	json_object_put(a);
	free(before);
	view_end(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(status),
		cmocka_unit_test(quarantine),
		cmocka_unit_test(classes),
		cmocka_unit_test(replicas),
		cmocka_unit_test(outlook),
		cmocka_unit_test(slabs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
