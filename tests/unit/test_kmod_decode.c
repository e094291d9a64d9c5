// SPDX-License-Identifier: GPL-2.0-or-later
/* What ebb_swap.ko says, and what it never would. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/genetlink.h>

#include "lib/base/draw.h"
#include "lib/kmod/decode.h"

#include <cmocka.h>

#define M (1ull << 20)

static char buffer[8192] __attribute__((aligned(8)));

static struct nlmsghdr *message(uint8_t command)
{
	struct nlmsghdr *h = mnl_nlmsg_put_header(buffer);
	struct genlmsghdr *g;

	memset(buffer, 0, sizeof(buffer));
	h = mnl_nlmsg_put_header(buffer);
	h->nlmsg_type = 30;
	g = mnl_nlmsg_put_extra_header(h, sizeof(*g));
	g->cmd = command;
	return h;
}

static void put_session(struct nlmsghdr *h, uint32_t number, uint32_t state, const char *ip)
{
	struct nlattr *nest = mnl_attr_nest_start(h, EBB_SWAP_A_SESSION_INFO);

	mnl_attr_put_u32(h, EBB_SWAP_A_SESSION, number);
	mnl_attr_put_u32(h, EBB_SWAP_A_STATE, state);
	mnl_attr_put_strz(h, EBB_SWAP_A_REASON, "it broke");
	mnl_attr_put_strz(h, EBB_SWAP_A_ADDRESS, ip);
	mnl_attr_put_u16(h, EBB_SWAP_A_PORT, 7070);
	mnl_attr_put_u64(h, EBB_SWAP_A_DONOR_FREE, 64 * M);
	mnl_attr_nest_end(h, nest);
}

static struct nlmsghdr *status(uint32_t sessions)
{
	struct nlmsghdr *h = message(EBB_SWAP_CMD_STATUS);
	struct nlattr *nest;

	mnl_attr_put_u32(h, EBB_SWAP_A_DEVICE, 3);
	mnl_attr_put_u64(h, EBB_SWAP_A_SIZE, 32 * M);
	mnl_attr_put_u64(h, EBB_SWAP_A_SLAB_SIZE, 4 * M);
	mnl_attr_put_strz(h, EBB_SWAP_A_BACKUP, "/dev/vg/backup");
	nest = mnl_attr_nest_start(h, EBB_SWAP_A_COUNTS);
	mnl_attr_put_u64(h, EBB_SWAP_C_READ_DONOR, 11);
	mnl_attr_put_u64(h, EBB_SWAP_COUNTS, 12); /* of a newer module */
	mnl_attr_nest_end(h, nest);
	for (uint32_t i = 0; i < sessions; i++)
		put_session(h, i, EBB_SWAP_LIVE, "10.9.0.1");
	return h;
}

static void device_is_told(void **state)
{
	struct nlmsghdr *h = status(2);
	struct kmod_device d;
	struct nlattr *nest;

	nest = mnl_attr_nest_start(h, EBB_SWAP_A_SESSION_INFO);
	mnl_attr_put_u32(h, EBB_SWAP_A_SESSION, 9);
	mnl_attr_put(h, EBB_SWAP_A_DRAINING, 0, NULL);
	mnl_attr_put_u32(h, EBB_SWAP_A_BAD_PAGES, 4);
	mnl_attr_put_u32(h, EBB_SWAP_A_AWAY, 1500);
	mnl_attr_nest_end(h, nest);
	mnl_attr_put_u32(h, EBB_SWAP_A_COPIES, EBB_SWAP_DONOR | EBB_SWAP_SECOND);
	assert_int_equal(kmod_decode_device(h, &d), 0);
	assert_int_equal(d.number, 3);
	assert_int_equal(d.size, 32 * M);
	assert_int_equal(d.slab, 4 * M);
	assert_string_equal(d.backup, "/dev/vg/backup");
	assert_int_equal(d.copies[0], EBB_SWAP_DONOR | EBB_SWAP_SECOND);
	assert_int_equal(d.count[EBB_SWAP_C_READ_DONOR], 11);
	assert_int_equal(d.sessions, 3);
	assert_int_equal(d.session[1].number, 1);
	assert_int_equal(d.session[1].state, EBB_SWAP_LIVE);
	assert_int_equal(d.session[1].port, 7070);
	assert_int_equal(d.session[1].free, 64 * M);
	assert_false(d.session[1].draining);
	assert_string_equal(d.session[1].ip, "10.9.0.1");
	assert_string_equal(d.session[1].reason, "it broke");
	assert_int_equal(d.session[2].number, 9);
	assert_true(d.session[2].draining);
	assert_int_equal(d.session[1].bad_pages, 0);
	assert_int_equal(d.session[2].bad_pages, 4);
	assert_int_equal(d.session[1].away, 0);
	assert_int_equal(d.session[2].away, 1500);
}

static void the_key_is_told_by_its_number(void **state)
{
	static const uint8_t number[EBB_SWAP_KEY_NUMBER] = { 0x01, 0x23, 0x45, 0x67,
							     0x89, 0xab, 0xcd, 0xef };
	struct nlmsghdr *h = status(0);
	struct kmod_device d;

	assert_int_equal(kmod_decode_device(h, &d), 0);
	assert_string_equal(d.key, "");
	mnl_attr_put(h, EBB_SWAP_A_KEY_NUMBER, sizeof(number) - 1, number);
	assert_int_equal(kmod_decode_device(h, &d), 0);
	assert_string_equal(d.key, "");
	mnl_attr_put(h, EBB_SWAP_A_KEY_NUMBER, sizeof(number), number);
	assert_int_equal(kmod_decode_device(h, &d), 0);
	assert_string_equal(d.key, "0123456789abcdef");
}

static void a_sealed_device_is_told(void **state)
{
	struct nlmsghdr *h = status(0);
	struct kmod_device d;

	assert_int_equal(kmod_decode_device(h, &d), 0);
	assert_int_equal(d.sealed, 0);
	mnl_attr_put(h, EBB_SWAP_A_SEAL, 0, NULL);
	assert_int_equal(kmod_decode_device(h, &d), 0);
	assert_int_equal(d.sealed, 1 << 0);
}

static void more_sessions_than_there_are(void **state)
{
	struct kmod_device d;

	assert_int_equal(kmod_decode_device(status(EBB_SWAP_SESSIONS + 3), &d), 0);
	assert_int_equal(d.sessions, EBB_SWAP_SESSIONS);
}

static void put_of_class(struct nlmsghdr *h, uint16_t kind, uint32_t class, uint64_t cgroup)
{
	struct nlattr *nest = mnl_attr_nest_start(h, kind);

	mnl_attr_put_u32(h, EBB_SWAP_A_CLASS, class);
	if (cgroup)
		mnl_attr_put_u64(h, EBB_SWAP_A_CGROUP, cgroup);
	else
		mnl_attr_put_u32(h, EBB_SWAP_A_COPIES, EBB_SWAP_DONOR | EBB_SWAP_BACKUP);
	if (class == 3)
		mnl_attr_put(h, EBB_SWAP_A_SEAL, 0, NULL);
	mnl_attr_nest_end(h, nest);
}

static void classes_are_told(void **state)
{
	struct nlmsghdr *h = status(1);
	struct kmod_device d;
	struct nlattr *nest;

	nest = mnl_attr_nest_start(h, EBB_SWAP_A_SESSION_INFO);
	mnl_attr_put_u32(h, EBB_SWAP_A_SESSION, 5);
	mnl_attr_put_u32(h, EBB_SWAP_A_CLASS, 2);
	mnl_attr_nest_end(h, nest);
	put_of_class(h, EBB_SWAP_A_CLASS_INFO, 2, 0);
	put_of_class(h, EBB_SWAP_A_CLASS_INFO, 3, 0);
	put_of_class(h, EBB_SWAP_A_CLASS_INFO, EBB_SWAP_CLASSES, 0); /* of a newer module */
	put_of_class(h, EBB_SWAP_A_CGROUP_INFO, 2, 1ull << 33);
	put_of_class(h, EBB_SWAP_A_CGROUP_INFO, EBB_SWAP_CLASSES, 77);
	assert_int_equal(kmod_decode_device(h, &d), 0);
	assert_int_equal(d.session[0].class, 0);
	assert_int_equal(d.session[1].class, 2);
	for (uint32_t i = 0; i < EBB_SWAP_CLASSES; i++)
		assert_int_equal(d.copies[i],
				 i == 2 || i == 3 ? EBB_SWAP_DONOR | EBB_SWAP_BACKUP : 0);
	assert_int_equal(d.sealed, 1u << 3);
	assert_int_equal(d.cgroups, 1);
	assert_int_equal(d.cgroup[0].id, 1ull << 33);
	assert_int_equal(d.cgroup[0].class, 2);
	/* More than there can be. */
	h = status(0);
	for (uint32_t i = 0; i < EBB_SWAP_CGROUPS + 3; i++)
		put_of_class(h, EBB_SWAP_A_CGROUP_INFO, 1, i + 1);
	assert_int_equal(kmod_decode_device(h, &d), 0);
	assert_int_equal(d.cgroups, EBB_SWAP_CGROUPS);
}

static void texts_are_cut(void **state)
{
	struct nlmsghdr *h = message(EBB_SWAP_CMD_EVENT);
	struct kmod_event event;
	char text[300];

	memset(text, 'x', sizeof(text));
	mnl_attr_put_u32(h, EBB_SWAP_A_DEVICE, 1);
	/* No NUL, and longer than there is room. */
	mnl_attr_put(h, EBB_SWAP_A_REASON, sizeof(text), text);
	assert_int_equal(kmod_decode_event(h, &event), 0);
	assert_int_equal(strlen(event.reason), KMOD_REASON - 1);
	assert_int_equal(event.session, KMOD_NO_SESSION);
	assert_int_equal(event.slab, KMOD_NO_SLAB);
}

static void others_are_refused(void **state)
{
	struct nlmsghdr *h = message(EBB_SWAP_CMD_STATUS);
	struct kmod_device d;
	struct kmod_event event;
	uint32_t n;

	/* No number, no slab size. */
	assert_int_equal(kmod_decode_device(h, &d), -EBADMSG);
	mnl_attr_put_u32(h, EBB_SWAP_A_DEVICE, 3);
	assert_int_equal(kmod_decode_device(h, &d), -EBADMSG);
	/* More slabs than there can be. */
	mnl_attr_put_u64(h, EBB_SWAP_A_SIZE, 1ull << 60);
	mnl_attr_put_u64(h, EBB_SWAP_A_SLAB_SIZE, M);
	assert_int_equal(kmod_decode_device(h, &d), -EBADMSG);
	/* Another command; no attribute of the kind; a number that is too short for one. */
	assert_int_equal(kmod_decode_event(status(0), &event), -EBADMSG);
	assert_int_equal(
		kmod_decode_number(status(0), EBB_SWAP_CMD_CONNECT, EBB_SWAP_A_SESSION, &n),
		-EBADMSG);
	h = message(EBB_SWAP_CMD_CONNECT);
	assert_int_equal(kmod_decode_number(h, EBB_SWAP_CMD_CONNECT, EBB_SWAP_A_SESSION, &n),
			 -EBADMSG);
	mnl_attr_put_u16(h, EBB_SWAP_A_SESSION, 7);
	n = 1;
	assert_int_equal(kmod_decode_number(h, EBB_SWAP_CMD_CONNECT, EBB_SWAP_A_SESSION, &n), 0);
	assert_int_equal(n, 0);
	/* Not even a header of its own. */
	h = mnl_nlmsg_put_header(buffer);
	assert_int_equal(kmod_decode_device(h, &d), -EBADMSG);
}

static struct nlmsghdr *slabs(uint32_t first, uint32_t count)
{
	struct nlmsghdr *h = message(EBB_SWAP_CMD_SLABS);
	struct ebb_swap_slab table[16];

	memset(table, 0, sizeof(table));
	for (uint32_t i = 0; i < count; i++) {
		table[i].remote = first + i;
		table[i].copies = EBB_SWAP_DONOR | (i % 2 ? EBB_SWAP_SECOND : 0);
	}
	mnl_attr_put_u32(h, EBB_SWAP_A_SLAB_FIRST, first);
	mnl_attr_put(h, EBB_SWAP_A_SLAB_TABLE, count * sizeof(table[0]), table);
	return h;
}

static void slabs_come_in_order(void **state)
{
	struct ebb_swap_slab table[10];
	uint32_t told = 0;

	assert_int_equal(kmod_decode_slabs(slabs(0, 4), table, 10, &told), 0);
	assert_int_equal(told, 4);
	/* Twice; with a gap; more than there is room. */
	assert_int_equal(kmod_decode_slabs(slabs(0, 4), table, 10, &told), -EBADMSG);
	assert_int_equal(kmod_decode_slabs(slabs(5, 4), table, 10, &told), -EBADMSG);
	assert_int_equal(kmod_decode_slabs(slabs(4, 7), table, 10, &told), -EBADMSG);
	assert_int_equal(told, 4);
	assert_int_equal(kmod_decode_slabs(slabs(4, 6), table, 10, &told), 0);
	assert_int_equal(told, 10);
	for (uint32_t i = 0; i < 10; i++) {
		assert_int_equal(table[i].remote, i);
	}
	assert_int_equal(kmod_decode_slabs(slabs(10, 1), table, 10, &told), -EBADMSG);
}

static void family_and_its_group(void **state)
{
	struct nlmsghdr *h = message(CTRL_CMD_NEWFAMILY);
	struct nlattr *groups, *group;
	struct kmod_family f;

	groups = mnl_attr_nest_start(h, CTRL_ATTR_MCAST_GROUPS);
	for (uint16_t i = 1; i <= 2; i++) {
		group = mnl_attr_nest_start(h, i);
		mnl_attr_put_strz(h, CTRL_ATTR_MCAST_GRP_NAME, i == 1 ? "others" : EBB_SWAP_GROUP);
		mnl_attr_put_u32(h, CTRL_ATTR_MCAST_GRP_ID, 40 + i);
		mnl_attr_nest_end(h, group);
	}
	mnl_attr_nest_end(h, groups);
	assert_int_equal(kmod_decode_family(h, &f), -EBADMSG);
	mnl_attr_put_u16(h, CTRL_ATTR_FAMILY_ID, 33);
	mnl_attr_put_u32(h, CTRL_ATTR_VERSION, 7);
	assert_int_equal(kmod_decode_family(h, &f), 0);
	assert_int_equal(f.id, 33);
	assert_int_equal(f.version, 7);
	assert_int_equal(f.events, 42);
}

/* As the kernel writes one: the error, what was asked or its header, then attributes. */
static struct nlmsghdr *refusal(int error, uint16_t flags, uint32_t asked)
{
	struct nlmsghdr *h = mnl_nlmsg_put_header(buffer);
	struct nlmsgerr *e;

	memset(buffer, 0, sizeof(buffer));
	h = mnl_nlmsg_put_header(buffer);
	h->nlmsg_type = NLMSG_ERROR;
	h->nlmsg_flags = flags;
	e = mnl_nlmsg_put_extra_header(h, sizeof(*e));
	e->error = error;
	e->msg.nlmsg_len = asked;
	if (!(flags & NLM_F_CAPPED) && asked > sizeof(e->msg))
		mnl_nlmsg_put_extra_header(h, asked - sizeof(e->msg));
	return h;
}

static void ends(void **state)
{
	struct kmod_end end;
	struct nlmsghdr *h = refusal(0, NLM_F_CAPPED, 100);

	assert_int_equal(kmod_decode_end(h, &end), 0);
	assert_int_equal(end.result, 0);
	h = refusal(-EBUSY, NLM_F_CAPPED | NLM_F_ACK_TLVS, 100);
	mnl_attr_put_strz(h, NLMSGERR_ATTR_MSG, "device: it is open");
	assert_int_equal(kmod_decode_end(h, &end), 0);
	assert_int_equal(end.result, -EBUSY);
	assert_string_equal(end.text, "device: it is open");
	/* What was asked as a whole before the words. */
	h = refusal(-EINVAL, NLM_F_ACK_TLVS, 44);
	mnl_attr_put_strz(h, NLMSGERR_ATTR_MSG, "size: not given");
	assert_int_equal(kmod_decode_end(h, &end), 0);
	assert_string_equal(end.text, "size: not given");
	/* It says that more was asked than is there: no words, but the error. */
	h = refusal(-EINVAL, NLM_F_ACK_TLVS, 44);
	((struct nlmsgerr *)mnl_nlmsg_get_payload(h))->msg.nlmsg_len = 4000;
	assert_int_equal(kmod_decode_end(h, &end), 0);
	assert_int_equal(end.result, -EINVAL);
	assert_string_equal(end.text, "");
	/* No -errno. */
	assert_int_equal(kmod_decode_end(refusal(5, NLM_F_CAPPED, 100), &end), -EBADMSG);
	assert_int_equal(kmod_decode_end(refusal(-70000, NLM_F_CAPPED, 100), &end), -EBADMSG);
	assert_int_equal(kmod_decode_end(status(0), &end), -EBADMSG);
}

static void end_of_a_dump(void **state)
{
	struct kmod_end end;
	struct nlmsghdr *h = mnl_nlmsg_put_header(buffer);
	int *error;

	h->nlmsg_type = NLMSG_DONE;
	h->nlmsg_flags = NLM_F_ACK_TLVS;
	assert_int_equal(kmod_decode_end(h, &end), -EBADMSG);
	error = mnl_nlmsg_put_extra_header(h, sizeof(*error));
	*error = -ENODEV;
	mnl_attr_put_strz(h, NLMSGERR_ATTR_MSG, "device: there is none");
	assert_int_equal(kmod_decode_end(h, &end), 0);
	assert_int_equal(end.result, -ENODEV);
	assert_string_equal(end.text, "device: there is none");
}

/* All of them, with a message that ends where its memory does. */
static void decode_all(const void *from, size_t size)
{
	struct nlmsghdr *h = malloc(size);
	static struct ebb_swap_slab table[10];
	static struct kmod_device d;
	struct kmod_event event;
	struct kmod_family family;
	struct kmod_end end;
	uint32_t told = 0, n;

	assert_non_null(h);
	memcpy(h, from, size);
	h->nlmsg_len = (uint32_t)size;
	if (!kmod_decode_device(h, &d)) {
		assert_true(d.sessions <= EBB_SWAP_SESSIONS);
		assert_true(d.cgroups <= EBB_SWAP_CGROUPS);
		assert_true(d.slab && d.size / d.slab <= KMOD_SLABS_MAX);
		assert_true(strlen(d.backup) < sizeof(d.backup));
	}
	kmod_decode_event(h, &event);
	kmod_decode_family(h, &family);
	kmod_decode_number(h, EBB_SWAP_CMD_CONNECT, EBB_SWAP_A_SESSION, &n);
	kmod_decode_slabs(h, table, 10, &told);
	assert_true(told <= 10);
	if (!kmod_decode_end(h, &end))
		assert_true(end.result <= 0 && strlen(end.text) < sizeof(end.text));
	free(h);
}

/* Cut at each length, and bytes changed at random: make SANITIZE=1 sees what is read beyond. */
static void anything(void **state)
{
	uint64_t seed = 7;

	for (int kind = 0; kind < 4; kind++)
		for (int round = 0; round < 3000; round++) {
			struct nlmsghdr *h = kind == 0 ? status(3) : kind == 1 ? slabs(0, 4) :
					     kind == 2 ? refusal(-EBUSY, NLM_F_ACK_TLVS, 44) :
							 message(EBB_SWAP_CMD_EVENT);
			size_t size;

			mnl_attr_put_strz(h, NLMSGERR_ATTR_MSG, "words");
			size = h->nlmsg_len;
			for (uint32_t i = draw_below(&seed, 6); i; i--)
				buffer[sizeof(*h) +
				       draw_below(&seed, (uint32_t)(size - sizeof(*h)))] = (char)
					draw_below(&seed, 256);
			if (round & 1)
				size = sizeof(*h) +
				       draw_below(&seed, (uint32_t)(size - sizeof(*h)));
			h->nlmsg_type = round & 2 ? h->nlmsg_type :
					round & 4 ? NLMSG_DONE :
						    NLMSG_ERROR;
			decode_all(h, size);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_is_told),
		cmocka_unit_test(the_key_is_told_by_its_number),
		cmocka_unit_test(a_sealed_device_is_told),
		cmocka_unit_test(more_sessions_than_there_are),
		cmocka_unit_test(classes_are_told),
		cmocka_unit_test(texts_are_cut),
		cmocka_unit_test(others_are_refused),
		cmocka_unit_test(slabs_come_in_order),
		cmocka_unit_test(family_and_its_group),
		cmocka_unit_test(ends),
		cmocka_unit_test(end_of_a_dump),
		cmocka_unit_test(anything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
