// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * `make bench-seal`: ns to seal and to open a page, to compute a data connection's MAC of one as
 * its sender and to check it as its receiver, and for memcpy(3) of one; a JSON line each.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/wire/session.h"
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

/* Computes the MAC of each page as the sender. */
static void mark_pages(struct stream_guard *g, uint8_t (*marks)[STREAM_MARK])
{
	for (uint32_t i = 0; i < PAGES; i++) {
		g->piece(g, pages[i], EBB_PAGE);
		g->trailer(g, marks[i]);
	}
}

/* Checks them as the receiver. */
static int prove_pages(struct stream_guard *g, uint8_t (*marks)[STREAM_MARK])
{
	int wrong = 0;

	for (uint32_t i = 0; i < PAGES; i++) {
		g->piece(g, pages[i], EBB_PAGE);
		wrong |= !g->intact(g, marks[i]);
	}
	return wrong ? -EBADMSG : 0;
}

static int start_guards(struct session_guard *out, struct session_guard *in)
{
	static const uint8_t key[SESSION_KEY] = { 1 };
	const struct wire_join j = { .session = 1 };

	return session_guard_init(out) ?: session_guard_init(in) ?:
	       session_guard_start(out, SESSION_SENDS, key, &j, WIRE_REQUEST, WIRE_VERSION) ?:
	       session_guard_start(in, SESSION_RECEIVES, key, &j, WIRE_REQUEST, WIRE_VERSION);
}

static void tell(const char *what, double ns)
{
	printf("{\"name\": \"%s a page of 4 KiB\", \"value\": %.1f, \"unit\": \"ns\", \"runs\": %d}\n",
	       what, ns, ROUNDS);
}

int main(void)
{
	static uint8_t marks[PAGES][STREAM_MARK];
	double sealing = 0, opening = 0, copying = 0, marking = 0, proving = 0, since;
	struct session_guard out, in;
	struct seal_table table;
	struct sealer sealer;
	struct error e = { 0 };
	int r = seal_table_init(&table, PAGES, &e) ?: sealer_init(&sealer, &table, &e) ?:
		start_guards(&out, &in);

	for (int round = 0; !r && round < ROUNDS; round++) {
		since = now_ns();
		for (uint32_t i = 0; !r && i < PAGES; i++)
			r = seal_page(&sealer, i, pages[i], pages[i]);
		note(&sealing, since);
		since = now_ns();
		mark_pages(&out.guard, marks);
		note(&marking, since);
		since = now_ns();
		r = r ?: prove_pages(&in.guard, marks);
		note(&proving, since);
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
	tell("MAC, to send,", marking);
	tell("MAC, received,", proving);
	tell("copy", copying);
	return 0;
}
