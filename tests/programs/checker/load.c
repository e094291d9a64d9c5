// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../walk.h"
#include "checker.h"

struct worker {
	struct checker *c;
	pthread_t thread;
	uint32_t number; /* from 1 */
	uint64_t random;
	char *buffer;    /* CHECKER_PAGES pages */
	uint64_t starts[CHECKER_PAGES];
	uint32_t generations[CHECKER_CLUSTER];
};

static void add(uint64_t *counter, uint64_t n)
{
	__atomic_add_fetch(counter, n, __ATOMIC_RELAXED);
}

/* The first bad page ends everything: what comes later only buries it. */
static void __attribute__((noreturn))
found_bad(struct worker *w, uint32_t page, const char *what, const char *how)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&once);
	fprintf(stderr, "page %" PRIu32 " is %s: thread %" PRIu32 " %s; its last operations:\n",
		page, what, w->number, how);
	history_print(&w->c->history, page, stderr);
	checker_print(w->c, 1, 0);
	fflush(NULL);
	_exit(1);
}

static void bad_content(struct worker *w, uint32_t page, uint64_t start, const struct stamp *s,
			enum history_verdict v, const char *memory)
{
	const uint64_t *words = (const void *)memory;
	char how[320];
	int n;

	n = snprintf(how, sizeof(how), "read it from %" PRIu64 " on and found %s", start,
		     stamp_kind_text(s->kind));
	if (s->kind == STAMP_FULL || s->kind == STAMP_SAME)
		snprintf(how + n, sizeof(how) - n,
			 " page %" PRIu32 " generation %" PRIu32 " by thread %" PRIu32 " of device %08" PRIx32
			 " (this is %08" PRIx32 ")",
			 s->page, s->generation, s->writer, s->device, w->c->history.device);
	else if (s->kind == STAMP_BROKEN)
		snprintf(how + n, sizeof(how) - n,
			 " (words 0-2, 256, 511: %016" PRIx64 " %016" PRIx64 " %016" PRIx64 " %016" PRIx64
			 " %016" PRIx64 ")", words[0], words[1], words[2], words[256], words[511]);
	found_bad(w, page, history_verdict_text(v), how);
}

static void failed(struct worker *w, uint32_t page, const char *what, int error, uint64_t *counter)
{
	char how[128];

	if (w->c->options.tolerate_errors) {
		add(counter, 1);
		return;
	}
	snprintf(how, sizeof(how), "could not %s it: %s", what, strerror(-error));
	found_bad(w, page, "lost", how);
}

/* Which page made a read fail is not known. */
static bool any_unwritten(struct history *h, uint32_t page, uint32_t count)
{
	bool unwritten = false;

	for (uint32_t i = 0; i < count; i++)
		unwritten |= history_unwritten(h, page + i);
	return unwritten;
}

static void do_read(struct worker *w, uint32_t page, uint32_t count)
{
	struct history *h = &w->c->history;
	/* A write that follows the read may have succeeded when this looks again. */
	bool unwritten = any_unwritten(h, page, count);
	uint32_t done = 0;

	for (uint32_t i = 0; i < count; i++)
		w->starts[i] = history_read_start(h, page + i);
	while (done < count) {
		int n = target_read(&w->c->target, w->buffer, page + done, count - done);

		if (n < 0) {
			unwritten |= any_unwritten(h, page, count);
			if (!w->c->options.tolerate_errors || !unwritten)
				failed(w, page + done, "read", n, &w->c->count.read_errors);
			history_read_failed(h, page + done);
			done++;
			continue;
		}
		for (int i = 0; i < n; i++, done++) {
			const char *memory = w->buffer + i * (size_t)PAGE;
			enum history_verdict v;
			struct stamp s;

			stamp_read(memory, &s);
			v = history_read_end(h, page + done, w->starts[done], &s);
			if (v != HISTORY_GOOD)
				bad_content(w, page + done, w->starts[done], &s, v, memory);
		}
		add(&w->c->count.pages_read, (uint64_t)n);
	}
	add(&w->c->count.reads, 1);
}

/* Announces a write of @kind to each page; false when that has to wait. */
static bool announce(struct worker *w, uint32_t page, uint32_t count, enum stamp_kind kind)
{
	struct history *h = &w->c->history;

	for (uint32_t i = 0; i < count; i++) {
		struct stamp s = { .kind = kind, .writer = w->number };

		if (!history_write_start(h, page + i, &s)) {
			while (i--)
				history_write_cancel(h, page + i, w->generations[i]);
			add(&w->c->count.skipped, 1);
			return false;
		}
		w->generations[i] = s.generation;
		if (count <= CHECKER_PAGES)
			stamp_write(w->buffer + i * (size_t)PAGE, &s);
	}
	return true;
}

static void do_write(struct worker *w, uint32_t page, uint32_t count, enum stamp_kind kind)
{
	struct history *h = &w->c->history;
	int n;

	if (!announce(w, page, count, kind))
		return;
	n = target_write(&w->c->target, w->buffer, page, count);
	for (uint32_t i = 0; i < count; i++)
		history_write_end(h, page + i, w->generations[i],
				  (int)i < n ? 0 : n < 0 ? n : -EIO);
	if (n < (int)count)
		failed(w, page + (n < 0 ? 0 : (uint32_t)n), "write", n < 0 ? n : -EIO,
		       &w->c->count.write_errors);
	add(&w->c->count.writes, 1);
	add(&w->c->count.pages_written, n < 0 ? 0 : (uint64_t)n);
	if (kind == STAMP_SAME)
		add(&w->c->count.same_filled, n < 0 ? 0 : (uint64_t)n);
}

static void do_discard(struct worker *w, uint32_t page, uint32_t count)
{
	struct history *h = &w->c->history;
	int r;

	if (w->c->no_discard || !announce(w, page, count, STAMP_ZERO))
		return;
	r = target_discard(&w->c->target, page, count);
	for (uint32_t i = 0; i < count; i++) {
		if (r == -EOPNOTSUPP)
			history_write_cancel(h, page + i, w->generations[i]);
		else
			history_write_end(h, page + i, w->generations[i], r);
	}
	if (r == -EOPNOTSUPP) {
		w->c->no_discard = true;
		return;
	}
	if (r)
		failed(w, page, "discard", r, &w->c->count.write_errors);
	add(&w->c->count.discards, 1);
	add(&w->c->count.pages_discarded, r ? 0 : count);
}

static uint32_t below(struct worker *w, uint32_t n)
{
	return (uint32_t)((next_random(&w->random) >> 32) * n >> 32);
}

/*
 * @count pages somewhere, half of the time in the hot eighth, where threads meet.
 * Where they may not, each has every n-th run of CHECKER_CLUSTER pages to itself.
 */
static uint32_t pick(struct worker *w, uint32_t *count)
{
	const struct checker *c = w->c;
	uint32_t pages = c->target.pages, unit, units, own;

	if (target_shared(&c->target)) {
		uint32_t range = below(w, 2) ? pages : pages / 8;

		if (*count > range)
			*count = range;
		return below(w, range - *count + 1);
	}
	unit = CHECKER_CLUSTER;
	units = pages / unit;
	own = units / c->options.threads;
	if (below(w, 2) && own > 8)
		own /= 8;
	unit = (below(w, own) * c->options.threads + w->number - 1) * CHECKER_CLUSTER;
	if (*count > CHECKER_CLUSTER)
		*count = CHECKER_CLUSTER;
	return unit + below(w, CHECKER_CLUSTER - *count + 1);
}

static void one_operation(struct worker *w)
{
	uint32_t dice = below(w, 100);
	uint32_t count = 1 + below(w, below(w, 2) ? CHECKER_PAGES : 8), page;

	if (dice >= 97 && below(w, 4) == 0)
		count = CHECKER_CLUSTER;
	page = pick(w, &count);
	if (count == CHECKER_CLUSTER)
		page -= page % CHECKER_CLUSTER;
	if (dice < 50)
		do_read(w, page, count);
	else if (dice < 87)
		do_write(w, page, count, STAMP_FULL);
	else if (dice < 93)
		do_write(w, page, count, STAMP_SAME);
	else if (dice < 94)
		do_write(w, page, count, STAMP_ZERO);
	else
		do_discard(w, page, count);
}

static void *work(void *data)
{
	struct worker *w = data;

	while (!__atomic_load_n(&w->c->stop, __ATOMIC_RELAXED)) {
		one_operation(w);
		if (w->c->options.pause_us)
			usleep(w->c->options.pause_us);
	}
	return NULL;
}

/* Until the time is over or a signal says so. */
static void wait_end(struct checker *c, uint64_t start)
{
	uint64_t end = start + c->options.seconds * 1000000000ull;
	uint64_t report = start + c->options.progress * 1000000000ull;
	struct timespec tick = { .tv_nsec = 100000000 };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	while (sigtimedwait(&set, NULL, &tick) < 0) {
		uint64_t now = now_ns();

		if (c->options.seconds && now >= end)
			return;
		if (c->options.progress && now >= report) {
			checker_print(c, 0, (double)(now - start) / 1e9);
			fflush(stdout);
			report += c->options.progress * 1000000000ull;
		}
	}
}

int checker_run(struct checker *c)
{
	struct worker *workers = calloc(c->options.threads, sizeof(*workers));
	uint64_t start = now_ns();
	int r = workers ? 0 : -ENOMEM;

	for (uint32_t i = 0; !r && i < c->options.threads; i++) {
		struct worker *w = &workers[i];

		*w = (struct worker){ .c = c, .number = i + 1,
				      .random = (c->options.seed * CHECKER_THREADS + i) * MIX | 1 };
		r = -posix_memalign((void **)&w->buffer, PAGE, CHECKER_PAGES * (size_t)PAGE);
		if (!r)
			memset(w->buffer, 0, CHECKER_PAGES * (size_t)PAGE);
	}
	for (uint32_t i = 0; !r && i < c->options.threads; i++)
		r = -pthread_create(&workers[i].thread, NULL, work, &workers[i]);
	if (r)
		return r; /* the process ends */
	wait_end(c, start);
	__atomic_store_n(&c->stop, true, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < c->options.threads; i++)
		pthread_join(workers[i].thread, NULL);
	for (uint32_t page = 0; page < c->target.pages; page += CHECKER_PAGES) {
		uint32_t left = c->target.pages - page;

		do_read(&workers[0], page, left < CHECKER_PAGES ? left : CHECKER_PAGES);
		add(&c->count.verified, left < CHECKER_PAGES ? left : CHECKER_PAGES);
	}
	checker_print(c, 0, (double)(now_ns() - start) / 1e9);
	for (uint32_t i = 0; i < c->options.threads; i++)
		free(workers[i].buffer);
	free(workers);
	return 0;
}
