// SPDX-License-Identifier: GPL-2.0-or-later
#include "activity.h"

static void add(uint32_t *count, uint32_t pages)
{
	*count = *count > UINT32_MAX - pages ? UINT32_MAX : *count + pages;
}

void activity_read(struct activity *a, uint32_t pages)
{
	add(&a->reads, pages);
}

void activity_write(struct activity *a, uint32_t pages)
{
	add(&a->writes, pages);
}

void activity_tick(struct activity *a, const struct activity_rule *rule, uint32_t seconds)
{
	double measured, kept = 1, power = 1 - rule->alpha;

	if (!seconds)
		return;
	measured = (a->reads * rule->read_weight + a->writes * rule->write_weight) / seconds;
	/* (1 - alpha)^seconds by squaring. */
	for (uint32_t n = seconds; n; n >>= 1) {
		if (n & 1)
			kept *= power;
		power *= power;
	}
	a->rate = measured + kept * (a->rate - measured);
	a->reads = a->writes = 0;
}
