// SPDX-License-Identifier: GPL-2.0-or-later
/* What clients send to modules of either version.  A fake family answers in place of the kernel. */
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/genetlink.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include <ebb/abi.h>
#include "ebbd/kmod/commands.h"
#include "ebbd/prefetch/absence.h"
#include "lib/base/paths.h"
#include "lib/control/device.h"
#include "lib/kmod/netlink.h"
#include "lib/wire/key.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define FAMILY 33
#define SLAB (4u << 20)
#define NONE UINT32_MAX

/* A device with slabs 0 and 1 at session 0, of 10.0.0.1, and session 1 with 10.0.0.2. */
static struct {
	uint32_t version;
	bool backup, away;          /* away: session 1 */
	bool fails;                 /* dumps do */
	int result;                 /* of each command but dumps */
	const char *text;
	uint8_t commands[16];       /* those that change something */
	int count;
	uint32_t target;            /* of DRAIN */
	uint8_t key[EBB_SWAP_KEY_NUMBER]; /* of the device */
	uint8_t keys[4][EBB_SWAP_KEY_NUMBER]; /* of each CONNECT; 0: none */
	int connects;
	uint32_t sequence;
	char answer[8192] __attribute__((aligned(8)));
	size_t length;
} module;

static struct nlmsghdr *put(uint16_t type, uint16_t flags)
{
	struct nlmsghdr *h = mnl_nlmsg_put_header(module.answer + module.length);

	h->nlmsg_type = type;
	h->nlmsg_flags = flags;
	h->nlmsg_seq = module.sequence;
	return h;
}

static struct nlmsghdr *put_reply(uint16_t type, uint8_t command)
{
	struct nlmsghdr *h = put(type, 0);
	struct genlmsghdr *g = mnl_nlmsg_put_extra_header(h, sizeof(*g));

	g->cmd = command;
	return h;
}

static void put_end(struct nlmsghdr *h)
{
	module.length += MNL_ALIGN(h->nlmsg_len);
}

static void put_family(void)
{
	struct nlmsghdr *h = put_reply(GENL_ID_CTRL, CTRL_CMD_NEWFAMILY);

	mnl_attr_put_u16(h, CTRL_ATTR_FAMILY_ID, FAMILY);
	mnl_attr_put_u32(h, CTRL_ATTR_VERSION, module.version);
	put_end(h);
}

static void put_status(void)
{
	struct nlmsghdr *h = put_reply(FAMILY, EBB_SWAP_CMD_STATUS);

	mnl_attr_put_u32(h, EBB_SWAP_A_DEVICE, 0);
	mnl_attr_put_u64(h, EBB_SWAP_A_SIZE, 2 * SLAB);
	mnl_attr_put(h, EBB_SWAP_A_KEY_NUMBER, sizeof(module.key), module.key);
	mnl_attr_put_u64(h, EBB_SWAP_A_SLAB_SIZE, SLAB);
	mnl_attr_put_u32(h, EBB_SWAP_A_COPIES,
			 EBB_SWAP_DONOR | (module.backup ? EBB_SWAP_BACKUP : 0));
	if (module.backup)
		mnl_attr_put_strz(h, EBB_SWAP_A_BACKUP, "/dev/sdx");
	for (uint32_t i = 0; i < 2; i++) {
		struct nlattr *nest = mnl_attr_nest_start(h, EBB_SWAP_A_SESSION_INFO);

		mnl_attr_put_u32(h, EBB_SWAP_A_SESSION, i);
		mnl_attr_put_u32(h, EBB_SWAP_A_STATE,
				 module.away && i ? EBB_SWAP_AWAY : EBB_SWAP_LIVE);
		mnl_attr_put_strz(h, EBB_SWAP_A_ADDRESS, i ? "10.0.0.2" : "10.0.0.1");
		mnl_attr_put_u16(h, EBB_SWAP_A_PORT, 7471);
		mnl_attr_put_u64(h, EBB_SWAP_A_DONOR_FREE, 8 * SLAB);
		mnl_attr_nest_end(h, nest);
	}
	put_end(h);
}

static void put_slabs(void)
{
	const struct ebb_swap_slab its = {
		.copies = EBB_SWAP_DONOR, .written = 1, .source = NONE, .second = NONE,
	}, both[] = { its, its };
	struct nlmsghdr *h = put_reply(FAMILY, EBB_SWAP_CMD_SLABS);

	mnl_attr_put_u32(h, EBB_SWAP_A_SLAB_FIRST, 0);
	mnl_attr_put(h, EBB_SWAP_A_SLAB_TABLE, sizeof(both), both);
	put_end(h);
}

static void put_result(bool dump, int result, const char *text)
{
	struct nlmsghdr *h = put(dump ? NLMSG_DONE : NLMSG_ERROR,
				 text ? NLM_F_CAPPED | NLM_F_ACK_TLVS : 0);
	struct nlmsgerr *e = mnl_nlmsg_put_extra_header(h, dump ? sizeof(int) : sizeof(*e));

	e->error = result;
	if (text)
		mnl_attr_put_strz(h, NLMSGERR_ATTR_MSG, text);
	put_end(h);
}

/* --- in place of libmnl's ------------------------------------------------------------- */

struct mnl_socket *mnl_socket_open2(int bus, int flags)
{
	return (void *)&module;
}

int mnl_socket_bind(struct mnl_socket *s, unsigned int groups, pid_t pid)
{
	return 0;
}

int mnl_socket_setsockopt(const struct mnl_socket *s, int type, void *data, socklen_t size)
{
	return 0;
}

int mnl_socket_get_fd(const struct mnl_socket *s)
{
	return -1;
}

int mnl_socket_close(struct mnl_socket *s)
{
	return 0;
}

ssize_t mnl_socket_sendto(const struct mnl_socket *s, const void *data, size_t size)
{
	const struct nlmsghdr *h = data;
	const struct genlmsghdr *g = mnl_nlmsg_get_payload(h);
	bool dump = h->nlmsg_flags & NLM_F_DUMP;
	const struct nlattr *a;
	bool key = false;

	memset(module.answer, 0, sizeof(module.answer));
	module.length = 0;
	module.sequence = h->nlmsg_seq;
	if (h->nlmsg_type == GENL_ID_CTRL) {
		put_family();
	} else if (g->cmd == EBB_SWAP_CMD_STATUS) {
		put_status();
	} else if (g->cmd == EBB_SWAP_CMD_SLABS) {
		put_slabs();
	} else {
		module.commands[module.count++] = g->cmd;
		mnl_attr_for_each(a, h, sizeof(*g))
			if (mnl_attr_get_type(a) == EBB_SWAP_A_TARGET)
				module.target = mnl_attr_get_u32(a);
		mnl_attr_for_each(a, h, sizeof(*g)) {
			key |= mnl_attr_get_type(a) == EBB_SWAP_A_KEY;
			if (mnl_attr_get_type(a) == EBB_SWAP_A_KEY_NUMBER)
				memcpy(module.keys[module.connects], mnl_attr_get_payload(a),
				       EBB_SWAP_KEY_NUMBER);
		}
		if (g->cmd == EBB_SWAP_CMD_CONNECT)
			assert_int_equal(key, memcmp(module.keys[module.connects++],
						     (uint8_t[EBB_SWAP_KEY_NUMBER]){ 0 },
						     EBB_SWAP_KEY_NUMBER) != 0);
		put_result(false, module.result, module.text);
		return (ssize_t)size;
	}
	put_result(dump, dump && module.fails ? -EBUSY : 0, NULL);
	return (ssize_t)size;
}

ssize_t mnl_socket_recvfrom(const struct mnl_socket *s, void *buffer, size_t size)
{
	assert_true(module.length && module.length <= size);
	memcpy(buffer, module.answer, module.length);
	return (ssize_t)module.length;
}

/* In place of libbpf's: the device has swap type 3. */
int bpf_map_lookup_elem(int fd, const void *key, void *value)
{
	*(uint32_t *)value = EBB_SWAP_TYPE + 3;
	return *(const uint32_t *)key == (259 << 20 | 7) ? 0 : -ENOENT;
}

/* --- tests ------------------------------------------------------------------------------ */

static struct kmod_link *with_version(uint32_t version)
{
	struct kmod_link *l = NULL;

	memset(&module, 0, sizeof(module));
	module.version = version;
	module.target = NONE;
	assert_int_equal(kmod_open(&l, NULL), 0);
	return l;
}

static void only_version_1_gets_a_target(void **state)
{
	for (uint32_t version = 1; version <= 3; version++) {
		struct kmod_link *l = with_version(version);

		assert_int_equal(kmod_drain(l, 0, 0, 5, NULL), 0);
		assert_int_equal(module.target, version == 1 ? 5 : NONE);
		module.target = NONE;
		assert_int_equal(kmod_drain(l, 0, 0, KMOD_NO_SESSION, NULL), 0);
		assert_int_equal(module.target, NONE);
		kmod_close(&l);
	}
}

/* Version 1 has excluded the session by then. */
static void slabs_that_cannot_move_do_not_fail_a_drain(void **state)
{
	static const struct { int result; bool fails; } rows[] = {
		{ -ENOSPC, false }, { -EBUSY, false }, { -EEXIST, false }, { -ENOENT, true },
		{ -ENOTCONN, true },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (uint32_t version = 1; version <= 2; version++) {
			struct kmod_link *l = with_version(version);

			module.result = rows[i].result;
			assert_int_equal(kmod_drain(l, 0, 0, 1, NULL),
					 rows[i].fails || version == 2 ? rows[i].result : 0);
			kmod_close(&l);
		}
}

static void what_an_old_module_lacks_names_its_version(void **state)
{
	static const struct { int result; const char *text; bool lacks; } rows[] = {
		{ -EOPNOTSUPP, NULL, true }, { -EINVAL, "Unsupported attribute", true },
		{ -EINVAL, "Unknown attribute type", true }, { -EINVAL, "size: not given", false },
		{ -EOPNOTSUPP, "address: iWARP is not supported", false },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (uint32_t version = 2; version <= 3; version++) {
			struct kmod_link *l = with_version(version);
			bool lacks = rows[i].lacks && version == 2;
			struct error e = { 0 };

			module.result = rows[i].result;
			module.text = rows[i].text;
			assert_int_equal(kmod_map(l, 4, 0, 0, &e), rows[i].result);
			assert_int_equal(e.exit_status, lacks ? EXIT_UNSUPPORTED : EXIT_FAILED);
			assert_int_equal(!strncmp(e.text, "/dev/ebb4: the loaded kernel module has version 2,", 50),
					 lacks);
			assert_int_equal(strstr(e.text, "modprobe ebb_swap") != NULL, lacks);
			kmod_close(&l);
		}
}

/* Slabs are spread over donors first: version 1 would move all to one. */
static void ebbd_drains_modules_of_both_versions(void **state)
{
	static const uint8_t expected[] = {
		EBB_SWAP_CMD_MIGRATE, EBB_SWAP_CMD_MIGRATE, EBB_SWAP_CMD_DRAIN,
	};

	for (uint32_t version = 1; version <= 2; version++) {
		struct json_object *request = json_object_new_object(),
				   *answer = json_object_new_object();
		struct kmod_view *view = calloc(1, sizeof(*view));
		struct kmod_link *l = with_version(version);

		assert_non_null(view);
		view->donors = kmod_donors_of("rdma:10.0.0.1:7471,rdma:10.0.0.2:7471", view->donor);
		json_object_object_add(request, "donor", json_object_new_string("rdma:10.0.0.1:7471"));
		assert_int_equal(kmod_command(l, view, "x", "donor.drain", request, answer, NULL), 0);
		assert_int_equal(module.count, sizeof(expected));
		assert_memory_equal(module.commands, expected, sizeof(expected));
		assert_int_equal(module.target, version == 1 ? 1 : NONE);
		kmod_view_free(view);
		free(view);
		kmod_close(&l);
		json_object_put(request);
		json_object_put(answer);
	}
}

/* One round of a device whose third donor has no session; @file is the device's key's. */
static int settle_with(uint32_t version, const char *file, const struct key *key, int result,
		       struct kmod_round *round)
{
	struct kmod_view *view = calloc(1, sizeof(*view));
	struct kmod_link *l = with_version(version);

	assert_non_null(view);
	key_number(key, module.key);
	module.result = result;
	view->key_file = file;
	view->donors = kmod_donors_of("rdma:10.0.0.1:7471,rdma:10.0.0.2:7471,rdma:10.0.0.3:7471",
				      view->donor);
	assert_int_equal(kmod_settle(l, view, 1000000000, round, NULL), 0);
	kmod_view_free(view);
	free(view);
	kmod_close(&l);
	return module.connects;
}

/* The key derived for it first; if it does not know that, the device's. */
static void donors_are_offered_their_own_keys(void **state)
{
	static const uint8_t none[EBB_SWAP_KEY_NUMBER];
	char directory[] = "/tmp/ebb-kmod-XXXXXX", file[64];
	uint8_t number[EBB_SWAP_KEY_NUMBER];
	struct key key, other, own;
	struct kmod_round round;

	assert_non_null(mkdtemp(directory));
	snprintf(file, sizeof(file), "%s/spark.key", directory);
	assert_int_equal(key_make(&key, "spark", NULL), 0);
	assert_int_equal(key_make(&other, "spark", NULL), 0);
	assert_int_equal(key_save(&key, file, NULL), 0);
	assert_int_equal(key_derive(&own, &key, "10.0.0.3:7471"), 0);
	key_number(&own, number);
	assert_int_equal(settle_with(3, file, &key, 0, &round), 1);
	assert_memory_equal(module.keys[0], number, sizeof(number));
	assert_int_equal(round.connected[2], 1);
	assert_string_equal(round.no_key, "");
	assert_int_equal(settle_with(3, file, &key, -ENOKEY, &round), 2);
	assert_memory_equal(module.keys[0], number, sizeof(number));
	assert_memory_equal(module.keys[1], none, sizeof(none));
	assert_int_equal(round.connected[2], -ENOKEY);
	/* Other failures, such as a full donor's, would be the same with that. */
	assert_int_equal(settle_with(3, file, &key, -EACCES, &round), 1);
	assert_non_null(strstr(round.refused[2], strerror(EACCES)));
	assert_int_equal(settle_with(3, file, &key, -ETIMEDOUT, &round), 1);
	assert_int_equal(settle_with(3, file, &key, -EKEYREJECTED, &round), 1);
	/* Older modules know one key only. */
	assert_int_equal(settle_with(2, file, &key, 0, &round), 1);
	assert_memory_equal(module.keys[0], none, sizeof(none));
	/* The file has changed, or was removed. */
	assert_int_equal(settle_with(3, file, &other, 0, &round), 1);
	assert_memory_equal(module.keys[0], none, sizeof(none));
	assert_non_null(strstr(round.no_key, "changed since the device was created; "));
	unlink(file);
	assert_int_equal(settle_with(3, file, &key, -EACCES, &round), 1);
	assert_memory_equal(module.keys[0], none, sizeof(none));
	assert_non_null(strstr(round.no_key, "spark.key"));
	assert_int_equal(rmdir(directory), 0);
}

/* Waits until the published mask is @types, and stays so for two looks. */
static void expect_types(const struct absence *a, uint32_t types)
{
	for (int ms = 0; ms < 10000 && absence_types(a) != types; ms++)
		usleep(1000);
	usleep(1100000);
	assert_int_equal(absence_types(a), types);
}

static void nothing_is_prefetched_while_a_donor_is_away(void **state)
{
	static const struct device_record record = {
		.name = "x", .frontend = "kmod", .block = "/dev/ebb0", .major = 259, .minor = 7,
		.size = 2 * SLAB, .slab = SLAB,
	};
	char directory[] = "/tmp/ebb-kmod-XXXXXX", devices[64];
	struct absence *a = NULL;

	assert_non_null(mkdtemp(directory));
	setenv("EBB_RUN_DIR", directory, 1);
	assert_int_equal(device_record_write(&record, NULL), 0);
	memset(&module, 0, sizeof(module));
	module.version = 3;
	module.away = true;
	assert_int_equal(absence_start(&a, -1, NULL), 0);
	expect_types(a, 1u << 3);
	/* Reads find all pages on the backup. */
	module.backup = true;
	expect_types(a, 0);
	module.backup = false;
	expect_types(a, 1u << 3);
	/* The link is opened again after an error. */
	module.fails = true;
	expect_types(a, 0);
	module.fails = false;
	expect_types(a, 1u << 3);
	module.away = false;
	expect_types(a, 0);
	absence_stop(&a);
	device_record_remove("x");
	snprintf(devices, sizeof(devices), "%s/devices", directory);
	assert_int_equal(rmdir(devices) || rmdir(directory), 0);
	unsetenv("EBB_RUN_DIR");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_version_1_gets_a_target),
		cmocka_unit_test(slabs_that_cannot_move_do_not_fail_a_drain),
		cmocka_unit_test(what_an_old_module_lacks_names_its_version),
		cmocka_unit_test(ebbd_drains_modules_of_both_versions),
		cmocka_unit_test(donors_are_offered_their_own_keys),
		cmocka_unit_test(nothing_is_prefetched_while_a_donor_is_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
