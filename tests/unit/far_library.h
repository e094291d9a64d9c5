/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Handles of libebbfar to the donor of far_world.h, and setups for its two transports.  Includes
 * cmocka.h.
 */
#ifndef EBB_TEST_FAR_LIBRARY_H
#define EBB_TEST_FAR_LIBRARY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "far_world.h"
#include "userlib/far/ebbfar.h"

#include <cmocka.h>

static struct ebbfar_options options(const char *donor, unsigned flags)
{
	return (struct ebbfar_options){ .size = sizeof(struct ebbfar_options), .donor = donor,
					.pool = "p", .flags = flags, .timeout_ms = 5000 };
}

static ebbfar_t *open_with(struct ebbfar_options o)
{
	ebbfar_t *far;

	if (ebbfar_open(&o, &far))
		fail_msg("%s", o.error);
	return far;
}

__attribute__((unused)) static ebbfar_t *open_at(const char *donor, unsigned flags)
{
	return open_with(options(donor, flags));
}

/* A test for each transport gets its address by the setup. */
static const char *at;

static int by_tcp(void **state)
{
	int r = with_far_thread(state);

	at = world.tcp;
	return r;
}

static int by_mapping(void **state)
{
	int r = with_far_thread(state);

	at = world.local;
	return r;
}

#endif
