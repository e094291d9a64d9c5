// SPDX-License-Identifier: GPL-2.0-or-later
#include "reservation.h"

/* A part of a number that is divided. */
struct share {
	uint64_t room;  /* it takes at most so much */
	uint64_t gets;
};

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Divides @amount, or as much as fits, in proportion to the room of each; returns how much. */
static uint64_t divide(struct share *s, int n, uint64_t amount)
{
	uint64_t room = 0, left;

	for (int i = 0; i < n; i++)
		room += s[i].room;
	amount = min64(amount, room);
	left = amount;
	for (int i = 0; i < n && amount; i++) {
		s[i].gets = (uint64_t)((unsigned __int128)amount * s[i].room / room);
		left -= s[i].gets;
	}
	/* Fewer than @n are left by rounding. */
	while (left) {
		int best = -1;

		for (int i = 0; i < n; i++)
			if (s[i].gets < s[i].room &&
			    (best < 0 || s[i].room - s[i].gets > s[best].room - s[best].gets))
				best = i;
		s[best].gets++;
		left--;
	}
	return amount;
}

/* Returns the first donor of @d[i]'s machine. */
static int machine_of(const struct reservation_donor *d, int i)
{
	for (int j = 0; j < i && d[i].machine; j++)
		if (d[j].machine == d[i].machine)
			return j;
	return i;
}

/* Adds @more; a machine gets at most @cap in total.  Returns what finds no place. */
static uint64_t grow(struct reservation_donor *d, int n, uint64_t more, uint32_t slabs,
		     uint64_t cap)
{
	struct share machine[RESERVATION_DONORS] = { 0 };
	uint64_t has[RESERVATION_DONORS] = { 0 };

	for (int i = 0; i < n; i++) {
		uint64_t most = min64(d[i].most, slabs);
		int m = machine_of(d, i);

		has[m] += d[i].want;
		machine[m].room += most > d[i].want ? most - d[i].want : 0;
	}
	for (int m = 0; m < n; m++)
		machine[m].room = min64(machine[m].room, has[m] < cap ? cap - has[m] : 0);
	more -= divide(machine, n, more);
	for (int m = 0; m < n; m++) {
		struct share s[RESERVATION_DONORS] = { 0 };

		for (int i = m; i < n && machine[m].gets; i++) {
			uint64_t most = min64(d[i].most, slabs);

			if (machine_of(d, i) == m && most > d[i].want)
				s[i].room = most - d[i].want;
		}
		divide(s, n, machine[m].gets);
		for (int i = m; i < n; i++)
			d[i].want += (uint32_t)s[i].gets;
	}
	return more;
}

/* Removes @less where there are no slabs yet. */
static void shrink(struct reservation_donor *d, int n, uint64_t less)
{
	struct share s[RESERVATION_DONORS] = { 0 };

	for (int i = 0; i < n; i++)
		s[i].room = d[i].want - d[i].has;
	divide(s, n, less);
	for (int i = 0; i < n; i++)
		d[i].want -= (uint32_t)s[i].gets;
}

uint64_t reservation_spread(struct reservation_donor *d, int n, uint32_t slabs, int replicas)
{
	uint64_t need = (uint64_t)slabs * (uint64_t)replicas, sum = 0;

	for (int i = 0; i < n; i++) {
		uint64_t held = min64(min64(d[i].held, d[i].most), slabs);

		d[i].has = (uint32_t)min64(d[i].has, d[i].most);
		d[i].want = held > d[i].has ? (uint32_t)held : d[i].has;
		sum += d[i].want;
	}
	if (sum > need) {
		shrink(d, n, sum - need);
		return 0;
	}
	need = grow(d, n, need - sum, slabs, slabs);
	/* Replicas on one machine are better than missing ones. */
	return need ? grow(d, n, need, slabs, UINT64_MAX) : 0;
}
