// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * An exchange's order book, for DayTrader's part in the MemLiner paper's table 4.1: -n slots for
 * orders, -r operations per slot.  An operation picks a slot and cancels the order there.  If there
 * is none it matches a new order with the other side, first by price, then by age, and adds what is
 * left to the book.  The latest trades keep their orders alive.
 */
#include "system.h"

#define PRICES 1024
#define NEAR 64			/* most orders are that near to the middle */
#define QUANTITY 100
#define MEMO 64			/* bytes that come with an order */

enum side { BUY, SELL };

struct order {
	ref older, younger, memo;	/* at its price */
	uint64_t id, slot, price, left;
	enum side side;
};

struct level {
	ref oldest, youngest;
};

struct trade {
	ref bought, sold;
	uint64_t price, quantity;
};

static struct type order_type = { .name = "order", .size = sizeof(struct order), .bitmap = 7 };
static struct type level_type = { .name = "level", .size = sizeof(struct level), .bitmap = 3 };
static struct type trade_type = { .name = "trade", .size = sizeof(struct trade), .bitmap = 3 };

/* The references are roots. */
struct book {
	ref roots[4];
	size_t slots;
	uint64_t orders, traded, submitted[2], cancelled[2];
	size_t best[2];		/* highest price bid, lowest asked; nothing lies beyond */
	uint64_t checksum;
};

enum { LEVELS = 0, SLOTS = 2, TRADES = 3 };	/* levels of either side */

static ref at(ctx c, ref table, size_t i)
{
	return LOAD(c, table, &((struct refs *)PTR(table))->at[i]);
}

static void put(ctx c, ref table, size_t i, ref value)
{
	STORE(c, table, &((struct refs *)PTR(table))->at[i], value);
}

static void book_new(ctx c, struct book *b, size_t slots)
{
	b->slots = slots;
	b->best[BUY] = 0;
	b->best[SELL] = PRICES - 1;
	for (int side = BUY; side <= SELL; side++) {
		b->roots[LEVELS + side] = refs_new(c, PRICES);
		for (size_t i = 0; i < PRICES; i++) {
			ref level = object_new(c, &level_type);

			put(c, b->roots[LEVELS + side], i, level);
		}
	}
	b->roots[SLOTS] = parts_new(c, slots);
	b->roots[TRADES] = parts_new(c, slots / 8 + 1);
}

static void book_remove(ctx c, struct book *b, ref order)
{
	struct order *o = PTR(order);
	ref older = LOAD(c, order, &o->older), younger = LOAD(c, order, &o->younger);
	ref level = at(c, b->roots[LEVELS + o->side], o->price);
	struct level *l = PTR(level);

	if (IS_NULL(older))
		STORE(c, level, &l->oldest, younger);
	else
		STORE(c, older, &((struct order *)PTR(older))->younger, younger);
	if (IS_NULL(younger))
		STORE(c, level, &l->youngest, older);
	else
		STORE(c, younger, &((struct order *)PTR(younger))->older, older);
	/* A trade may keep the order alive: it must not keep its neighbours alive. */
	STORE(c, order, &o->older, NONE);
	STORE(c, order, &o->younger, NONE);
	parts_put(c, b->roots[SLOTS], o->slot, NONE);
}

static void book_rest(ctx c, struct book *b, ref order)
{
	struct order *o = PTR(order);
	ref level = at(c, b->roots[LEVELS + o->side], o->price);
	struct level *l = PTR(level);
	ref youngest = LOAD(c, level, &l->youngest);

	STORE(c, order, &o->older, youngest);
	if (IS_NULL(youngest))
		STORE(c, level, &l->oldest, order);
	else
		STORE(c, youngest, &((struct order *)PTR(youngest))->younger, order);
	STORE(c, level, &l->youngest, order);
	parts_put(c, b->roots[SLOTS], o->slot, order);
	if (o->side == BUY ? o->price > b->best[BUY] : o->price < b->best[SELL])
		b->best[o->side] = o->price;
}

/* The oldest order at the best price, or null; moves the best price past levels that are empty. */
static ref best_of(ctx c, struct book *b, enum side side)
{
	size_t end = side == BUY ? 0 : PRICES - 1;

	for (;; b->best[side] += side == BUY ? -1 : 1) {
		ref level = at(c, b->roots[LEVELS + side], b->best[side]);
		ref oldest = LOAD(c, level, &((struct level *)PTR(level))->oldest);

		if (!IS_NULL(oldest) || b->best[side] == end)
			return oldest;
	}
}

static void trade(ctx c, struct book *b, ref taker, ref maker)
{
	ref slots[2] = { taker, maker }, made;
	struct order *t, *m;
	struct trade *d;

	ROOTS(c, slots, 2);
	made = object_new(c, &trade_type);
	UNROOT(c);
	t = WRITTEN(slots[0]);
	m = WRITTEN(slots[1]);
	d = PTR(made);
	d->price = m->price;
	d->quantity = t->left < m->left ? t->left : m->left;
	INIT(&d->bought, t->side == BUY ? slots[0] : slots[1]);
	INIT(&d->sold, t->side == BUY ? slots[1] : slots[0]);
	t->left -= d->quantity;
	m->left -= d->quantity;
	b->checksum = b->checksum * 31 + d->price * QUANTITY + d->quantity;
	parts_put(c, b->roots[TRADES], b->traded % (b->slots / 8 + 1), made);
	b->traded += d->quantity;
}

static void match(ctx c, struct book *b, ref order)
{
	ref slots[2] = { order, NONE };

	ROOTS(c, slots, 2);
	for (;;) {
		const struct order *o = PTR(slots[0]), *m;

		slots[1] = best_of(c, b, o->side == BUY ? SELL : BUY);
		if (IS_NULL(slots[1]) || !o->left)
			break;
		m = PTR(slots[1]);
		if (o->side == BUY ? m->price > o->price : m->price < o->price)
			break;
		trade(c, b, slots[0], slots[1]);
		if (!((struct order *)PTR(slots[1]))->left)
			book_remove(c, b, slots[1]);
	}
	UNROOT(c);
}

static void submit(ctx c, struct book *b, size_t slot, uint64_t *seed)
{
	enum side side = next_random(seed) & 1 ? BUY : SELL;
	size_t away = next_random(seed) % 8 ? next_random(seed) % NEAR :
		      next_random(seed) % (PRICES / 2);
	ref slots[2] = { NONE, NONE };
	struct order *o;

	ROOTS(c, slots, 2);
	slots[0] = leaf_new(c, MEMO);
	memset(((struct bytes *)PTR(slots[0]))->at, (int)(b->orders % 251), MEMO);
	slots[1] = object_new(c, &order_type);
	o = PTR(slots[1]);
	INIT(&o->memo, slots[0]);
	o->id = b->orders++;
	o->slot = slot;
	o->side = side;
	/* One in sixteen crosses the middle. */
	o->price = (side == BUY) == (next_random(seed) % 16 != 0) ? PRICES / 2 - 1 - away :
		   PRICES / 2 + away;
	o->left = 1 + next_random(seed) % QUANTITY;
	b->submitted[side] += o->left;
	match(c, b, slots[1]);
	if (((struct order *)PTR(slots[1]))->left)
		book_rest(c, b, slots[1]);
	UNROOT(c);
}

static void check_memo(ctx c, ref order)
{
	struct order *o = PTR(order);
	const struct bytes *memo = PTR(LOAD(c, order, &o->memo));

	expect(memo->at[0] == o->id % 251 && memo->at[MEMO - 1] == memo->at[0],
	       "an order has another's memo");
}

static void operate(ctx c, struct book *b, uint64_t *seed)
{
	size_t slot = next_random(seed) % b->slots;
	ref order;

	POLL(c);
	order = parts_at(c, b->roots[SLOTS], slot);
	if (IS_NULL(order)) {
		submit(c, b, slot, seed);
		return;
	}
	check_memo(c, order);
	b->cancelled[((struct order *)PTR(order))->side] += ((struct order *)PTR(order))->left;
	book_remove(c, b, order);
}

/* The book has the orders that were submitted and neither traded nor cancelled, in order. */
static void check_book(ctx c, struct book *b)
{
	uint64_t resting[2] = { 0, 0 }, orders = 0, taken = 0;
	ref order[1] = { NONE };

	ROOTS(c, order, 1);
	for (int side = BUY; side <= SELL; side++) {
		for (size_t price = 0; price < PRICES; price++) {
			ref level = at(c, b->roots[LEVELS + side], price);
			uint64_t last = 0;

			order[0] = LOAD(c, level, &((struct level *)PTR(level))->oldest);
			while (!IS_NULL(order[0])) {
				struct order *o = PTR(order[0]);

				POLL(c);
				expect(o->id >= last && o->price == price && o->left &&
					       (int)o->side == side,
				       "an order is not in its place");
				check_memo(c, order[0]);
				last = o->id;
				resting[side] += o->left;
				orders++;
				order[0] = LOAD(c, order[0], &o->younger);
			}
		}
		expect(b->submitted[side] == b->traded + b->cancelled[side] + resting[side],
		       "quantities do not add up");
	}
	for (size_t i = 0; i < b->slots; i++) {
		POLL(c);
		taken += !IS_NULL(parts_at(c, b->roots[SLOTS], i));
	}
	expect(orders == taken, "slots and levels disagree");
	expect(IS_NULL(best_of(c, b, BUY)) || IS_NULL(best_of(c, b, SELL)) ||
	       b->best[BUY] < b->best[SELL], "bid and ask cross");
	UNROOT(c);
}

static double work(ctx c, unsigned int thread)
{
	uint64_t seed = 3202034522624059733u + thread * 1000003u;
	struct book b = { .roots = { NONE } };
	size_t n = size / threads;

	ROOTS(c, b.roots, 4);
	book_new(c, &b, n);
	for (size_t i = 0; i < n; i += 2)
		if (IS_NULL(parts_at(c, b.roots[SLOTS], i)))
			submit(c, &b, i, &seed);
	built(c);
	for (size_t i = 0; i < operations_of(n); i++)
		operate(c, &b, &seed);
	check_book(c, &b);
	UNROOT(c);
	return (double)(b.checksum >> 16);
}

int main(int argc, char **argv)
{
	static struct type *types[] = { &order_type, &level_type, &trade_type, NULL };
	struct program p = {
		.name = "orders", .types = types, .size = 200000, .rounds = 10, .work = work,
	};

	return program_main(&p, argc, argv);
}
