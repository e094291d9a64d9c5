/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What each page may hold now, while any number of threads read and write it.
 *
 * The rule is that of a linearisable register (Herlihy and Wing 1990): an
 * operation takes effect at one moment between its start and its end.  So a read
 * may return a write that started before the read ended, unless something that
 * took effect wholly after that write is known to have done so before the read
 * started: another write that was acknowledged, or a read that saw another write.
 * A write that failed may have taken effect or not, but not later.
 *
 * Bounded: each page keeps its last HISTORY_OPS writes and discards, which are also
 * its log; one that may still be read is never dropped, a writer goes elsewhere.
 */
#ifndef EBB_TESTS_HISTORY_H
#define EBB_TESTS_HISTORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "stamp.h"

#define HISTORY_OPS 6
#define HISTORY_LOCKS 256

/* Times are ticks of one counter that every start and end advances. */
struct history_op {
	uint64_t start, end;         /* end 0: in flight */
	uint64_t seen_from, seen_to; /* it had taken effect within these; to 0: unknown */
	uint32_t generation;
	uint8_t kind;                /* enum stamp_kind; a discard is STAMP_ZERO */
	uint8_t writer;
	int16_t error;               /* 0 or -errno */
};

struct history_page {
	struct history_op ops[HISTORY_OPS]; /* start 0: free */
	uint64_t readers_since;             /* no read in flight is older */
	uint32_t generation;                /* newest given out */
	uint16_t readers;                   /* reads in flight */
};

struct history {
	uint32_t device, pages;
	uint64_t clock;
	struct history_page *page;
	pthread_mutex_t lock[HISTORY_LOCKS];
};

enum history_verdict {
	HISTORY_GOOD,
	HISTORY_STALE,     /* an older generation than it may be */
	HISTORY_LOST,      /* zeroes where there was a page, or an error */
	HISTORY_EXCHANGED, /* another page's, or another device's */
	HISTORY_ALTERED,   /* torn, flipped, or never written by us */
};

/* All pages hold zeroes.  Returns -ENOMEM or 0; @pages is at most STAMP_PAGES. */
int history_init(struct history *h, uint32_t device, uint32_t pages);
void history_free(struct history *h);

/*
 * A write or discard of @page starts; @s->kind and @s->writer are given, device,
 * page and generation are set.  False: too much is open there, go elsewhere.
 */
bool history_write_start(struct history *h, uint32_t page, struct stamp *s);
/* It did not happen after all: nothing was sent. */
void history_write_cancel(struct history *h, uint32_t page, uint32_t generation);
/* @error: 0, or -errno for one that failed. */
void history_write_end(struct history *h, uint32_t page, uint32_t generation, int error);

/*
 * Returns whether the newest write of @page has failed, or is in flight and may: then reading may
 * fail, too.
 */
bool history_unwritten(struct history *h, uint32_t page);

/* Returns the time to give to history_read_end(). */
uint64_t history_read_start(struct history *h, uint32_t page);
/* What came back was @s. */
enum history_verdict history_read_end(struct history *h, uint32_t page, uint64_t start,
				      const struct stamp *s);
/* The read of @page failed: says nothing about it. */
void history_read_failed(struct history *h, uint32_t page);

const char *history_verdict_text(enum history_verdict v);

/* The page's last operations, oldest first. */
void history_print(struct history *h, uint32_t page, FILE *to);

#endif
