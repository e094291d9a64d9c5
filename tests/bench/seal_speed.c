// SPDX-License-Identifier: GPL-2.0-or-later
/* `make bench-seal`: ns to seal and to open a page, and memcpy(3) of one; a JSON line each. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "swapd/page/seal.h"

#define PAGES 4096u
#define RUN 32u /* pages opened per call: a request of 128 KiB */
#define ROUNDS 9

static uint8_t pages[PAGES][EBB_PAGE], copies[PAGES][EBB_PAGE];

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Keeps the best round: the speed of an undisturbed machine. */
static void note(double *best, double since)
{
	double ns = (now_ns() - since) / PAGES;

	if (!*best || ns < *best)
		*best = ns;
}

static void tell(const char *what, double ns)
{
	printf("{\"name\": \"%s a page of 4 KiB\", \"value\": %.1f, \"unit\": \"ns\", \"runs\": %d}\n",
	       what, ns, ROUNDS);
}

int main(void)
{
	double sealing = 0, opening = 0, copying = 0, since;
	struct seal_table table;
	struct sealer sealer;
	struct error e = { 0 };
	int r = seal_table_init(&table, PAGES, &e) ?: sealer_init(&sealer, &table, &e);

	for (int round = 0; !r && round < ROUNDS; round++) {
		since = now_ns();
		for (uint32_t i = 0; !r && i < PAGES; i++)
			r = seal_page(&sealer, i, pages[i], pages[i]);
		note(&sealing, since);
		since = now_ns();
		memcpy(copies, pages, sizeof(pages));
		/* Keeps the compiler from dropping the unread result. */
		__asm__ volatile("" : : "r"(copies) : "memory");
		note(&copying, since);
		since = now_ns();
		for (uint32_t i = 0; !r && i < PAGES; i += RUN)
			r = seal_open(&sealer, i, RUN, pages[i], NULL);
		note(&opening, since);
	}
	if (r) {
		fprintf(stderr, "seal_speed: %s\n", e.code ? e.text : strerror(-r));
		return 1;
	}
	tell("seal", sealing);
	tell("open", opening);
	tell("copy", copying);
	return 0;
}
