// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * A bounded queue from one machine to another.
 *
 *	queue produce DONOR POOL	prints the queue's name; sends each line of its input, and
 *					prints "confirmed N" when the consumer has printed N lines
 *	queue consume DONOR POOL NAME	prints each line with its number
 *
 * Each process changes its own memory alone: the other's may be a third member's after an exit.
 * The producer has a ring of items and counts those that it has sent, the consumer counts those
 * that it has printed.  Each reads the other's, and then checks its name: if the other one still
 * has the extent, what was read is its item or count.
 *
 * Doorbells.  A word of ebbfar_notify() says "look again"; the consumer's is the place of its count.
 * They are needed only where the other one may wait: when the queue was empty, or full.  Additions
 * of all members have one order, so of one that adds and one that is about to wait, at least one
 * sees what the other one has done.
 *
 * Exits.  When the consumer is killed, nothing is lost: the next one gets all that the producer has
 * not seen confirmed, so that some lines may be printed again, with their numbers.  When the
 * producer is killed, the donor frees its ring: lines after the last "confirmed N" may not have
 * arrived, and have to be sent again.  Over TCP this takes until the donor's grace period ends.
 */
#include "example.h"

#define SLOTS 255u
#define ITEM 256u /* bytes: what it is, and a text */
enum { LINE = 'L', END = 'E' };
/* Words in slot 0 of the ring; in the consumer's extent of COUNTS bytes. */
enum { SENT = 0, CONFIRMED = 8, GENERATION = 0, PRINTED = 8, COUNTS = 4096 };
#define LOOK_MS 1000

struct queue {
	ebbfar_t *far;
	struct name ring, count; /* .count.member 0 = the producer knows no consumer */
	uint64_t sent, lines;    /* of the producer: items, and how many of them are lines */
	uint64_t printed;        /* the producer's may be older */
	int ended;
};

static uint64_t slot_of(uint64_t number)
{
	return (1 + number % SLOTS) * ITEM;
}

/* The producer learns how many items the consumer has printed. */
static void look(struct queue *q)
{
	uint64_t printed;
	int r;

	if (!q->count.member)
		return;
	/* Not ebbfar_read(): that has no order with the addition to SENT. */
	r = ebbfar_add(q->far, &q->count.x, PRINTED, 0, &printed);
	if (!r)
		r = ebbfar_check(q->far, q->count.member, &q->count.x);
	if (is_freed(r)) {
		warnx("the consumer has exited; start another one");
		q->count.member = 0;
		return;
	}
	check(q->far, r, "read");
	if (printed <= q->printed || printed > q->sent)
		return;
	q->printed = printed;
	/* Before the slots are used again. */
	set(q->far, &q->ring, CONFIRMED, printed);
	printf("confirmed %" PRIu64 "\n", printed < q->lines ? printed : q->lines);
	fflush(stdout);
}

/* Waits up to @ms for a doorbell, which may be a new consumer's. */
static void listen_for(struct queue *q, int ms)
{
	struct name n = { .x = { .size = COUNTS } };
	int r = ebbfar_wait(q->far, ms, &n.member, &n.x.place);

	if (r != -EAGAIN)
		check(q->far, r, "wait");
	look(q);
	/* A wrong place has no such name. */
	if (!r && !q->count.member &&
	    !ebbfar_read(q->far, &n.x, GENERATION, &n.x.generation, sizeof(uint64_t)) &&
	    !ebbfar_check(q->far, n.member, &n.x)) {
		q->count = n;
		look(q);
	}
}

static void send_item(struct queue *q, const char *item)
{
	uint64_t before;

	while (q->sent - q->printed == SLOTS)
		listen_for(q, LOOK_MS);
	check(q->far, ebbfar_write(q->far, &q->ring.x, slot_of(q->sent), item, strlen(item) + 1),
	      "write");
	check(q->far, ebbfar_add(q->far, &q->ring.x, SENT, 1, &before), "add");
	q->sent++;
	listen_for(q, 0);
	/* The queue was empty.  An error says that the consumer has exited: look() finds that. */
	if (q->printed >= before && q->count.member)
		ebbfar_notify(q->far, q->count.member, 0);
}

static int produce(const char *donor, const char *pool)
{
	struct queue q = { .far = open_pool(donor, pool) };
	char item[ITEM] = { LINE }, end[] = { END, 0 };

	q.ring = allocate(q.far, (1 + SLOTS) * ITEM);
	print_name(&q.ring);
	while (read_line(item + 1, sizeof(item) - 1)) {
		q.lines++;
		send_item(&q, item);
	}
	send_item(&q, end);
	while (q.printed != q.sent)
		listen_for(&q, LOOK_MS);
	ebbfar_close(q.far);
	return 0;
}

/* Ends the consumer if the ring is freed.  @r is the result of the accesses before. */
static void check_ring(const struct queue *q, int r)
{
	if (!r)
		r = ebbfar_check(q->far, q->ring.member, &q->ring.x);
	if (is_freed(r) && q->ended)
		exit(0);
	if (is_freed(r))
		errx(1, "the producer has exited after line %" PRIu64 "; start it again from the next",
		     q->printed);
	check(q->far, r, "read");
}

/* Reads the next item; returns 0 if there is none. */
static int receive(struct queue *q, char *item)
{
	uint64_t sent, confirmed;

	for (;;) {
		int r = ebbfar_add(q->far, &q->ring.x, SENT, 0, &sent);

		if (!r)
			r = ebbfar_read(q->far, &q->ring.x, slot_of(q->printed), item, ITEM);
		if (!r)
			r = ebbfar_read(q->far, &q->ring.x, CONFIRMED, &confirmed, 8);
		check_ring(q, r);
		if (confirmed <= q->printed)
			return sent != q->printed;
		/* The producer has learnt what the consumer before this one had printed. */
		q->printed = confirmed;
		set(q->far, &q->count, PRINTED, confirmed);
	}
}

static _Noreturn void consume(const char *donor, const char *pool, const char *name)
{
	struct queue q = { .far = open_pool(donor, pool), .ring = parse_name(name) };
	uint64_t before, sent;
	uint32_t member;
	char item[ITEM];
	int r;

	q.count = allocate(q.far, COUNTS);
	check_ring(&q, ebbfar_read(q.far, &q.ring.x, CONFIRMED, &q.printed, sizeof(q.printed)));
	set(q.far, &q.count, PRINTED, q.printed);
	set(q.far, &q.count, GENERATION, q.count.x.generation);
	for (;;) {
		if (!receive(&q, item)) {
			/* An error says that the producer has exited: receive() finds that. */
			ebbfar_notify(q.far, q.ring.member, q.count.x.place);
			r = ebbfar_wait(q.far, LOOK_MS, &member, &sent);
			if (r != -EAGAIN)
				check(q.far, r, "wait");
			continue;
		}
		q.ended = item[0] == END;
		if (!q.ended)
			printf("%" PRIu64 " %s\n", q.printed + 1, item + 1);
		fflush(stdout);
		check(q.far, ebbfar_add(q.far, &q.count.x, PRINTED, 1, &before), "add");
		q.printed++;
		/* The queue was full. */
		r = ebbfar_add(q.far, &q.ring.x, SENT, 0, &sent);
		if (!r && sent - before == SLOTS)
			ebbfar_notify(q.far, q.ring.member, q.count.x.place);
	}
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "produce"))
		return produce(argv[2], argv[3]);
	if (argc == 5 && !strcmp(argv[1], "consume"))
		consume(argv[2], argv[3], argv[4]);
	errx(2, "usage: queue produce DONOR POOL | queue consume DONOR POOL NAME");
}
