// SPDX-License-Identifier: GPL-2.0-or-later
/* What a sealing device lets out: to its disk, to donors, to core dumps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>

#include "slow_device.h"
#include "swapd/request/engine.h"
#include "swapd/request/request_seal.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* What cannot be sealed is nowhere; an older content of its page is not taken for it. */
static void a_page_that_cannot_be_sealed(void **state)
{
	struct error e = { 0 };

	begin(1, true);
	s.options.seal = "on";
	assert_int_equal(sealing_init(&s.engine.sealing, s.engine.map->pages, &e), 0);
	request(SLOT_WRITE, 0, 2);
	grant();
	assert_int_equal(failed, 0);
	assert_true(s.engine.sealing.seals.memory->seal[0].counter);
	s.engine.sealing.seals.memory->writes = SEAL_MOST;
	request(SLOT_WRITE, 0, 2);
	assert_int_equal(failed, 1);
	/* The disk takes the older one only now. */
	back_up(1);
	assert_int_equal(s.engine.sealing.seals.memory->seal[0].counter, 0);
	assert_int_equal(s.engine.sealing.seals.memory->seal[1].counter, 0);
	request(SLOT_READ, 0, 2);
	back_up(1);
	assert_int_equal(answered, 3);
	assert_int_equal(failed, 2);
	sealing_free(&s.engine.sealing);
	device_end();
}

/* Of a write with a page of one word among others nothing is in clear on the disk. */
static void what_the_disk_sees(void **state)
{
	static const uint8_t secret[] = "hunter2!";
	const struct slot *queued;
	struct error e = { 0 };
	struct slot *slot;

	begin(1, true);
	s.options.seal = "on";
	assert_int_equal(sealing_init(&s.engine.sealing, s.engine.map->pages, &e), 0);
	slot = slot_get(&s.engine.slots);
	slot->kind = SLOT_WRITE;
	slot->count = 3;
	for (uint32_t i = 0; i < 3 * PAGE; i += 8)
		memcpy(slot->payload + i, secret, 8);
	slot->payload[9] = slot->payload[2 * PAGE + 9] = 'x';
	engine_start(&s.engine, slot);
	run();
	grant();
	assert_int_equal(answered, 1);
	assert_int_equal(backup_queued(&s.engine.backup), 1);
	queued = &s.engine.slots.slot[s.engine.backup.queue.jobs[0]];
	assert_null(memmem(queued->payload, 3 * PAGE, secret, 8));
	back_up(1);
	request(SLOT_READ, 1, 1);
	assert_int_equal(answered, 2);
	assert_memory_equal(&read_word, secret, 8);
	sealing_free(&s.engine.sealing);
	device_end();
}

static void no_core_dump_has_the_key(void **state)
{
	struct sealing sealing = { 0 };
	struct error e = { 0 };

	assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0);
	assert_int_equal(sealing_init(&sealing, 8, &e), 0);
	assert_int_equal(prctl(PR_GET_DUMPABLE), 0);
	sealing_free(&sealing);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_page_that_cannot_be_sealed),
		cmocka_unit_test(what_the_disk_sees),
		cmocka_unit_test(no_core_dump_has_the_key),
	};

	return cmocka_run_group_tests_name("request seal", tests, NULL, NULL);
}
