// SPDX-License-Identifier: GPL-2.0-or-later
#include "offload_control.h"

#define SMOOTHING 0.2           /* weight of the newest period: the last 5 count */
#define IDLE_SHARE 10
#define GROW_BELOW 0.75         /* of the target */
#define PAUSE_FIRST 4           /* periods */
#define PAUSE_MAX 64
#define DECAY_FIRST 64 /* of the floor per period; one bad period may be chance */
#define DECAY_LAST 1024         /* after repeated bad periods */
#define FLOOR_SAME 16           /* floors closer than 1 / this count as equal */
#define START_SHARE 64          /* of resident memory */

double offload_slowdown(const struct offload_sample *s)
{
	uint64_t running = s->running_ns;

	if (running < s->wall_ns / IDLE_SHARE)
		running = s->wall_ns / IDLE_SHARE;
	return running ? (double)s->lost_ns / (double)running : 0;
}

static uint64_t clamp(uint64_t v, uint64_t low, uint64_t high)
{
	return v > high ? high : v < low ? low : v;
}

/*
 * The last page-out cost too much: makes the resident size the floor.  Once may be chance: a few
 * misses are a disaster for a program that mostly sleeps, and a kernel that has just begun to
 * reclaim does not know yet which pages are in use.  So a floor decays fast until it is found
 * again.
 */
static void back_off(struct offload_control *c, uint64_t resident)
{
	uint64_t apart = resident > c->floor ? resident - c->floor : c->floor - resident;

	c->decay = !c->floor || apart > resident / FLOOR_SAME ?
		   DECAY_FIRST : (uint32_t)clamp(c->decay * 2ULL, DECAY_FIRST, DECAY_LAST);
	c->floor = resident;
	c->penalty = clamp(c->penalty * 2ULL, PAUSE_FIRST, PAUSE_MAX);
	c->pause = c->penalty;
	c->step /= 4;
	c->state = OFFLOAD_BACKS_OFF;
}

uint64_t offload_next(struct offload_control *c, const struct offload_sample *s)
{
	uint64_t floor, most = s->resident / OFFLOAD_STEP_SHARE;
	double now = offload_slowdown(s), target = s->target / 1000.0;

	c->slowdown += (now - c->slowdown) * SMOOTHING;
	if (!s->target) {
		*c = (struct offload_control){ .slowdown = c->slowdown };
		return 0;
	}
	if (most > OFFLOAD_STEP_MAX)
		most = OFFLOAD_STEP_MAX;
	if (!c->step)
		c->step = s->resident / START_SHARE;
	if (c->floor)
		c->floor -= c->floor / c->decay;
	/* Late faults do not prolong a pause, or a slow program would never leave it. */
	if (c->pause) {
		c->pause--;
		if (now > target && c->floor < s->resident)
			c->floor = s->resident;
		return 0;
	}
	if (now > 2 * target) {
		back_off(c, s->resident);
		return 0;
	}
	if (now > target) {
		c->step = clamp(c->step / 2, OFFLOAD_STEP_MIN, most);
		c->state = OFFLOAD_AT_TARGET;
		return 0;
	}
	if (c->slowdown < target * GROW_BELOW) {
		c->step += c->step / 2;
		if (c->penalty)
			c->penalty--;
	}
	c->step = clamp(c->step, OFFLOAD_STEP_MIN, most);
	floor = c->floor > OFFLOAD_RESIDENT_MIN ? c->floor : OFFLOAD_RESIDENT_MIN;
	if (s->resident < floor + OFFLOAD_STEP_MIN) {
		c->state = OFFLOAD_AT_FLOOR;
		return 0;
	}
	c->state = c->slowdown < target * GROW_BELOW ? OFFLOAD_RECLAIMS : OFFLOAD_AT_TARGET;
	return clamp(c->step, 0, s->resident - floor);
}

const char *offload_state_name(enum offload_state state)
{
	static const char *const names[] = {
		[OFFLOAD_OFF] = "off", [OFFLOAD_RECLAIMS] = "reclaiming",
		[OFFLOAD_AT_TARGET] = "at target", [OFFLOAD_BACKS_OFF] = "backing off",
		[OFFLOAD_AT_FLOOR] = "at floor", [OFFLOAD_NO_ROOM] = "no room on a device",
		[OFFLOAD_DONOR_LOST] = "a donor was lost",
	};

	return names[state];
}
