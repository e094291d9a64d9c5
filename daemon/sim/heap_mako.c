// SPDX-License-Identifier: GPL-2.0-or-later
/* Mako on a recorded program: cycles of PTP, concurrent tracing, PEP, concurrent evacuation. */
#include <stdlib.h>
#include <string.h>

#include "heap_regions.h"
#include "mako_flags.h"
#include "mako_hit.h"

#define ENTRY 8              /* bytes */
#define ENTRIES_OF_PAGE (HEAP_PAGE / ENTRY)
#define NEVER UINT64_MAX

enum phase { IDLE, TRACE, FINAL, EVACUATE };
enum letter_kind { GHOSTS, ACKNOWLEDGE, POLL, REPLY };

/* A message in flight. */
struct letter {
	uint64_t at;
	uint8_t kind, from, to, round, flags;
	struct heap_list references;
};

struct tablet {
	struct heap_list free; /* entries of dead objects */
	uint32_t entries;      /* so far */
};

struct server {
	struct mako_agent agent;
	struct heap_list grey, roots, ghosts[HEAP_SERVERS];
	uint64_t clock;
};

struct mako {
	struct heap_world *w;
	struct heap_regions rs;
	struct server s[HEAP_SERVERS];
	struct mako_poller poller;
	struct letter *letters;
	uint32_t letter_count, letter_room;
	enum phase phase;
	uint64_t ended;           /* when the CPU server knew that tracing had ended */
	uint32_t cycle;
	uint32_t *marked;         /* cycle in which each object was */
	uint32_t *entry, *tablet_of; /* of each object */
	struct tablet *tablets;
	uint32_t tablet_count, tablet_room;
	struct heap_list free_tablets, log;
	uint8_t *buffered;        /* pages in the write-through buffer, by number */
	uint32_t buffered_room;
	struct heap_list buffer;
	/* Evacuation, one region after another. */
	struct heap_list set, to; /* regions and their to-spaces */
	uint32_t at;
	enum hit_step step;
	uint64_t due;             /* when the step after this ends */
};

static const struct mako_rule paper;

static uint64_t half(const struct mako *m)
{
	return m->w->config->trip / 2;
}

static uint64_t sent(const struct mako *m, uint64_t bytes)
{
	return heap_time(bytes, m->w->config->bandwidth);
}

static void *mako_create(struct heap_world *w)
{
	struct mako *m = heap_zeroed(1, sizeof(*m));

	m->w = w;
	heap_regions_init(&m->rs, w);
	m->marked = heap_zeroed(w->file->objects, sizeof(*m->marked));
	m->entry = heap_zeroed(w->file->objects, sizeof(*m->entry));
	m->tablet_of = heap_zeroed(w->file->objects, sizeof(*m->tablet_of));
	return m;
}

static void mako_destroy(void *state)
{
	struct mako *m = state;

	for (uint32_t i = 0; i < HEAP_SERVERS; i++) {
		heap_list_free(&m->s[i].grey);
		heap_list_free(&m->s[i].roots);
		for (uint32_t k = 0; k < HEAP_SERVERS; k++)
			heap_list_free(&m->s[i].ghosts[k]);
	}
	for (uint32_t i = 0; i < m->letter_count; i++)
		heap_list_free(&m->letters[i].references);
	for (uint32_t i = 0; i < m->tablet_count; i++)
		heap_list_free(&m->tablets[i].free);
	heap_list_free(&m->free_tablets);
	heap_list_free(&m->log);
	heap_list_free(&m->buffer);
	heap_list_free(&m->set);
	heap_list_free(&m->to);
	heap_regions_free(&m->rs);
	free(m->letters);
	free(m->tablets);
	free(m->marked);
	free(m->entry);
	free(m->tablet_of);
	free(m->buffered);
	free(m);
}

/* --- tracing ---------------------------------------------------------------------- */

static struct letter *post(struct mako *m, uint64_t at, enum letter_kind kind, uint32_t from,
			   uint32_t to)
{
	struct letter *l;

	m->letters = heap_grow(m->letters, &m->letter_room, m->letter_count + 1, sizeof(*l));
	l = &m->letters[m->letter_count++];
	*l = (struct letter){ .at = at, .kind = (uint8_t)kind, .from = (uint8_t)from,
			      .to = (uint8_t)to };
	return l;
}

static void poll_servers(struct mako *m, uint64_t at)
{
	for (uint32_t i = 0; i < m->w->config->servers; i++) {
		post(m, at + half(m), POLL, 0, i)->round = m->poller.round;
		heap_message(m->w, 8);
		m->w->r.polls++;
	}
}

static void flush_ghosts(struct mako *m, uint32_t i, uint32_t to)
{
	struct server *s = &m->s[i];
	struct heap_list *g = &s->ghosts[to];
	struct letter *l;

	mako_send(&s->agent, &paper, g->count);
	heap_message(m->w, 8ull * g->count);
	m->w->r.rounds++;
	l = post(m, s->clock + half(m) + sent(m, 8ull * g->count), GHOSTS, i, to);
	l->references = *g;
	memset(g, 0, sizeof(*g));
}

static void found(struct mako *m, uint32_t i, uint32_t object, uint32_t *local, uint32_t *remote)
{
	uint32_t to = heap_server(&m->rs, m->rs.of[object]);
	struct heap_list *l = to == i ? &m->s[i].grey : &m->s[i].ghosts[to];

	if (to == i && m->marked[object] == m->cycle)
		return;
	heap_list_add(l, object);
	++*(to == i ? local : remote);
}

static void visit(struct mako *m, uint32_t i)
{
	struct server *s = &m->s[i];
	uint32_t object = s->grey.at[--s->grey.count], local = 0, remote = 0;
	struct heap_world *w = m->w;

	if (m->marked[object] != m->cycle) {
		m->marked[object] = m->cycle;
		m->rs.at[m->rs.of[object]].live += w->file->size[object];
		w->r.traced += w->file->size[object];
		s->clock += heap_time(w->file->size[object], w->config->tracing);
		for (uint32_t k = 1; k < heap_words(w, object); k++)
			if (w->slots[object][k].target)
				found(m, i, w->slots[object][k].target - 1, &local, &remote);
	}
	mako_visit(&s->agent, &paper, local, remote);
	for (uint32_t to = 0; remote && to < w->config->servers; to++)
		if (s->ghosts[to].count >= w->config->ghosts)
			flush_ghosts(m, i, to);
}

static void take(struct mako *m, uint32_t i)
{
	struct server *s = &m->s[i];
	uint32_t kept = 0;

	for (uint32_t k = 0; k < s->roots.count; k++)
		if (m->marked[s->roots.at[k]] != m->cycle) {
			heap_list_add(&s->grey, s->roots.at[k]);
			kept++;
		}
	mako_drop(&s->agent, &paper, s->roots.count - kept);
	mako_take(&s->agent, &paper);
	s->roots.count = 0;
}

/* Has the server something to do?  Ghosts are flushed when there is nothing else. */
static bool is_busy(const struct mako *m, uint32_t i)
{
	const struct server *s = &m->s[i];

	return s->grey.count || s->roots.count || s->agent.ghosts;
}

static void work(struct mako *m, uint32_t i)
{
	struct server *s = &m->s[i];

	if (s->grey.count) {
		visit(m, i);
	} else if (s->roots.count) {
		take(m, i);
	} else {
		for (uint32_t to = 0; to < m->w->config->servers; to++)
			if (s->ghosts[to].count)
				flush_ghosts(m, i, to);
	}
}

static void wake(struct mako *m, uint32_t i, uint64_t at)
{
	if (!is_busy(m, i) && m->s[i].clock < at)
		m->s[i].clock = at;
}

static void receive(struct mako *m, uint32_t to, const struct heap_list *l, uint64_t at)
{
	wake(m, to, at);
	for (uint32_t k = 0; k < l->count; k++)
		heap_list_add(&m->s[to].roots, l->at[k]);
	mako_receive(&m->s[to].agent, &paper, l->count);
}

static void replied(struct mako *m, const struct letter *l)
{
	switch (mako_replied(&m->poller, &paper, l->from, l->flags)) {
	case MAKO_WAIT:
	case MAKO_POLL_ONE:
		break;
	case MAKO_POLL:
		/* Between two cycles of polls there is a pause, between two rounds none. */
		poll_servers(m, l->at + (m->poller.round ? 0 : m->w->config->poll));
		break;
	case MAKO_ENDED:
		m->ended = l->at;
		break;
	}
}

static void arrive(struct mako *m, uint32_t index)
{
	struct letter l = m->letters[index];
	struct server *to = &m->s[l.to];
	struct letter *r;

	m->letters[index] = m->letters[--m->letter_count];
	switch ((enum letter_kind)l.kind) {
	case GHOSTS:
		receive(m, l.to, &l.references, l.at);
		post(m, l.at + half(m), ACKNOWLEDGE, l.to, l.from);
		heap_message(m->w, 0);
		break;
	case ACKNOWLEDGE:
		mako_acknowledged(&to->agent, &paper);
		break;
	case POLL:
		r = post(m, l.at + half(m), REPLY, l.to, 0);
		r->flags = mako_reply(&to->agent, &paper, l.round);
		heap_message(m->w, 8);
		m->w->r.polls++;
		break;
	case REPLY:
		replied(m, &l);
		break;
	}
	heap_list_free(&l.references);
}

/* Servers and messages until @until, or until tracing has ended. */
static void advance(struct mako *m, uint64_t until)
{
	while (m->ended == NEVER) {
		uint64_t first = NEVER;
		uint32_t letter = 0, server = HEAP_SERVERS;

		for (uint32_t i = 0; i < m->letter_count; i++)
			if (m->letters[i].at < first) {
				first = m->letters[i].at;
				letter = i;
			}
		for (uint32_t i = 0; i < m->w->config->servers; i++)
			if (is_busy(m, i) && m->s[i].clock < first) {
				first = m->s[i].clock;
				server = i;
			}
		if (first > until)
			return;
		if (server == HEAP_SERVERS)
			arrive(m, letter);
		else
			work(m, server);
	}
}

/* Sends objects to their servers at @at; returns when the last has arrived. */
static uint64_t send_roots(struct mako *m, struct heap_list *l, uint64_t at)
{
	struct heap_list of[HEAP_SERVERS] = { 0 };
	uint64_t last = at;

	for (uint32_t k = 0; k < l->count; k++)
		heap_list_add(&of[heap_server(&m->rs, m->rs.of[l->at[k]])], l->at[k]);
	l->count = 0;
	for (uint32_t i = 0; i < m->w->config->servers; i++) {
		uint64_t arrival = at + half(m) + sent(m, 8ull * of[i].count);

		if (of[i].count) {
			heap_message(m->w, 8ull * of[i].count);
			receive(m, i, &of[i], arrival);
			last = arrival > last ? arrival : last;
		}
		heap_list_free(&of[i]);
	}
	return last;
}

/* Writes all buffered pages; returns their bytes. */
static uint64_t write_through(struct mako *m)
{
	uint64_t bytes = 0;

	for (uint32_t k = 0; k < m->buffer.count; k++) {
		m->buffered[m->buffer.at[k]] = 0;
		if (heap_cache_clean(&m->rs.cache, m->buffer.at[k], false))
			bytes += HEAP_PAGE;
	}
	m->buffer.count = 0;
	m->w->r.bytes_out += bytes;
	return bytes;
}

static uint64_t tables(const struct mako *m)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < m->tablet_count; i++)
		/* Two copies of the mark bitmap. */
		bytes += m->tablets[i].entries * (uint64_t)ENTRY +
			 2 * ((m->tablets[i].entries + 7) / 8) + 4ull * m->tablets[i].free.count;
	return bytes;
}

static void count_memory(struct mako *m)
{
	heap_overhead(m->w, tables(m), (uint64_t)m->rs.in_use * m->rs.bytes);
}

/* Pre-tracing pause: roots, and what the write-through buffer holds. */
static void mako_collect(void *state)
{
	struct mako *m = state;
	struct heap_world *w = m->w;
	struct heap_list roots = { 0 };
	uint64_t until;

	count_memory(m);
	if (m->phase != IDLE) {
		w->r.skipped++;
		return;
	}
	w->r.cycles++;
	m->cycle++;
	m->phase = TRACE;
	m->ended = NEVER;
	for (uint32_t i = 0; i < m->rs.count; i++)
		m->rs.at[i].live = 0;
	for (uint32_t k = 0; k < w->roots.count; k++)
		heap_list_add(&roots, w->roots.at[k]);
	until = w->now + w->config->stop + sent(m, write_through(m));
	for (uint32_t i = 0; i < w->config->servers; i++)
		m->s[i].clock = until;
	until = send_roots(m, &roots, until);
	heap_stop(w, HEAP_STOP_WORLD, until);
	mako_poll(&m->poller, (uint8_t)w->config->servers);
	poll_servers(m, until);
	heap_list_free(&roots);
}

/* --- evacuation ------------------------------------------------------------------- */

static void release(struct mako *m, uint32_t region, bool tablet_too)
{
	struct heap_region *r = &m->rs.at[region];

	for (uint32_t k = 0; k < r->objects.count; k++)
		if (heap_in(&m->rs, region, r->objects.at[k]))
			heap_freed(m->w, r->objects.at[k]);
	if (tablet_too) {
		heap_list_free(&m->tablets[r->tablet].free);
		m->tablets[r->tablet].entries = 0;
		heap_list_add(&m->free_tablets, r->tablet);
	}
	heap_region_release(&m->rs, region);
}

/* The object is alive, by this cycle's marks. */
static bool is_live(const struct mako *m, uint32_t region, uint32_t object)
{
	return heap_in(&m->rs, region, object) && m->marked[object] == m->cycle;
}

/* Entries of dead objects are free. */
static void reclaim_entries(struct mako *m, uint32_t region)
{
	struct heap_region *r = &m->rs.at[region];

	for (uint32_t k = 0; k < r->objects.count; k++) {
		uint32_t o = r->objects.at[k];

		if (heap_in(&m->rs, region, o) && m->marked[o] != m->cycle &&
		    m->entry[o] != UINT32_MAX) {
			heap_list_add(&m->tablets[r->tablet].free, m->entry[o]);
			m->entry[o] = UINT32_MAX;
		}
	}
}

/* Moves an object by the CPU server; returns the time that this takes. */
static uint64_t move_here(struct mako *m, uint32_t region, uint32_t object)
{
	struct heap_world *w = m->w;
	uint64_t wait = heap_region_touch(&m->rs, object, 0, w->file->size[object], false);

	heap_region_put(&m->rs, m->to.at[m->rs.at[region].trace], object);
	wait += heap_region_touch(&m->rs, object, 0, w->file->size[object], true);
	w->r.moved_here += w->file->size[object];
	w->r.rescues++;
	return wait + heap_time(w->file->size[object], w->config->copying);
}

static void select_regions(struct mako *m)
{
	m->set.count = m->to.count = m->at = 0;
	for (uint32_t i = 0; i < m->rs.count; i++) {
		struct heap_region *r = &m->rs.at[i];

		if (!r->span || i == m->rs.current || !r->objects.count)
			continue;
		reclaim_entries(m, i);
		if (!r->live) {
			release(m, i, true);
			continue;
		}
		if (r->span == 1 &&
		    r->live * 100 <= (uint64_t)m->w->config->sparse * m->rs.bytes) {
			r->state = HIT_WAITING;
			r->trace = m->set.count;
			heap_region_close(&m->rs, i);
			heap_list_add(&m->set, i);
		}
	}
	for (uint32_t k = 0; k < m->set.count; k++) {
		uint32_t to = heap_region_new(&m->rs, heap_server(&m->rs, m->set.at[k]));

		m->rs.at[to].tablet = m->rs.at[m->set.at[k]].tablet;
		heap_list_add(&m->to, to);
	}
}

static void begin_region(struct mako *m, uint64_t at)
{
	if (m->at == m->set.count) {
		m->phase = IDLE;
		return;
	}
	m->step = HIT_WRITE_BACK;
	m->due = at + half(m) + sent(m, heap_region_write(&m->rs, m->set.at[m->at], false));
}

/* Pre-evacuation pause, when tracing has ended. */
static void pause_to_evacuate(struct mako *m)
{
	struct heap_world *w = m->w;
	uint64_t begin = w->now > m->ended ? w->now : m->ended, until, bitmaps = 0;

	m->phase = FINAL;
	m->ended = NEVER;
	until = send_roots(m, &m->log, begin + w->config->stop);
	mako_poll(&m->poller, (uint8_t)w->config->servers);
	poll_servers(m, until);
	advance(m, NEVER);
	for (uint32_t i = 0; i < m->tablet_count; i++)
		bitmaps += (m->tablets[i].entries + 7) / 8;
	for (uint32_t i = 0; i < w->config->servers; i++)
		heap_message(w, bitmaps / w->config->servers);
	until = m->ended + half(m) + sent(m, bitmaps);
	select_regions(m);
	m->phase = EVACUATE;
	for (uint32_t k = 0; k < w->roots.count; k++) {
		uint32_t o = w->roots.at[k], region = m->rs.of[o];

		/* What was a root when the cycle began stands for the stack of now. */
		if (!w->freed[o] && m->rs.at[region].state == HIT_WAITING && is_live(m, region, o))
			until += move_here(m, region, o);
	}
	heap_stop(w, HEAP_STOP_WORLD, until);
	count_memory(m);
	begin_region(m, w->now);
}

/* The server moves what is left. */
static uint64_t evacuate(struct mako *m, uint32_t region, uint32_t to)
{
	struct heap_region *r = &m->rs.at[region];
	uint64_t bytes = 0;

	for (uint32_t k = 0; k < r->objects.count; k++) {
		uint32_t o = r->objects.at[k];

		if (!is_live(m, region, o))
			continue;
		heap_region_put(&m->rs, to, o);
		bytes += m->w->file->size[o];
	}
	m->w->r.moved += bytes;
	return heap_time(bytes, m->w->config->copying);
}

/* The step of algorithm 2 that is due. */
static void step_region(struct mako *m)
{
	uint32_t region = m->set.at[m->at], to = m->to.at[m->at];
	struct heap_region *r = &m->rs.at[region];

	m->step = hit_next(m->step);
	switch (m->step) {
	case HIT_INVALIDATE:
		r->state = HIT_EVACUATING;
		break;
	case HIT_WAIT_THREADS: /* one thread, which does not access the region now */
		break;
	case HIT_EVICT:
		m->due += sent(m, heap_table_write(&m->rs, r->tablet, m->rs.bytes / HEAP_PAGE) +
				  heap_region_write(&m->rs, to, true));
		break;
	case HIT_START:
		heap_message(m->w, 16);
		heap_message(m->w, 16);
		m->due += 2 * half(m) + evacuate(m, region, to);
		break;
	case HIT_VALIDATE:
		release(m, region, false);
		m->rs.at[to].state = HIT_NORMAL;
		heap_region_remote(&m->rs, to);
		break;
	case HIT_DONE:
	case HIT_WRITE_BACK:
		m->at++;
		begin_region(m, m->due);
		break;
	}
}

static void mako_run(void *state)
{
	struct mako *m = state;

	if (m->phase == TRACE) {
		advance(m, m->w->now);
		if (m->ended != NEVER)
			pause_to_evacuate(m);
	}
	while (m->phase == EVACUATE && m->due <= m->w->now)
		step_region(m);
}

/* --- the mutator ------------------------------------------------------------------ */

/* The load barrier of algorithm 1: on return the object may be used. */
static void barrier(struct mako *m, uint32_t object)
{
	for (;;) {
		uint32_t region = m->rs.of[object];

		/* An object that has moved is in its to-space, which is not in the set. */
		switch (hit_load(m->phase == EVACUATE, m->rs.at[region].state, false)) {
		case HIT_USE:
			return;
		case HIT_MOVE:
			heap_spend(m->w, move_here(m, region, object));
			return;
		case HIT_WAIT:
			while (m->step < HIT_START)
				step_region(m);
			heap_stop(m->w, HEAP_STOP_WAIT, m->due);
			step_region(m);
			break;
		}
	}
}

static void run_evacuation(struct mako *m)
{
	while (m->phase == EVACUATE && m->due <= m->w->now)
		step_region(m);
}

static void touch_entry(struct mako *m, uint32_t object, bool write)
{
	uint64_t wait = heap_table_touch(&m->rs, m->tablet_of[object],
					 m->entry[object] / ENTRIES_OF_PAGE, write);

	if (wait)
		heap_fetch(m->w, wait);
}

static uint32_t tablet_new(struct mako *m)
{
	if (m->free_tablets.count)
		return m->free_tablets.at[--m->free_tablets.count];
	m->tablets = heap_grow(m->tablets, &m->tablet_room, m->tablet_count + 1,
			       sizeof(*m->tablets));
	return m->tablet_count++;
}

static void mako_born(void *state, uint32_t object)
{
	struct mako *m = state;
	struct tablet *t;
	uint64_t wait;
	bool opened;

	heap_region_allocate(&m->rs, object, &opened);
	if (opened) {
		m->rs.at[m->rs.of[object]].tablet = tablet_new(m);
		count_memory(m);
	}
	m->tablet_of[object] = m->rs.at[m->rs.of[object]].tablet;
	t = &m->tablets[m->tablet_of[object]];
	m->entry[object] = t->free.count ? t->free.at[--t->free.count] : t->entries++;
	/* New objects are live for the cycle. */
	if (m->phase != IDLE) {
		m->marked[object] = m->cycle;
		m->rs.at[m->rs.of[object]].live += m->w->file->size[object];
	}
	wait = heap_region_touch(&m->rs, object, 0, m->w->file->size[object], true);
	if (wait)
		heap_fetch(m->w, wait);
	touch_entry(m, object, true);
}

static void mako_touch(void *state, uint32_t object, uint32_t at, uint32_t bytes, bool write)
{
	struct mako *m = state;
	uint64_t wait;

	run_evacuation(m);
	barrier(m, object);
	wait = heap_region_touch(&m->rs, object, at, bytes, write);
	if (wait)
		heap_fetch(m->w, wait);
}

static void mako_load(void *state, struct heap_slot *slot)
{
	struct mako *m = state;
	uint32_t object = slot->target - 1;

	m->w->r.translations++;
	m->w->r.translate_time += m->w->config->translate;
	heap_spend(m->w, m->w->config->translate);
	run_evacuation(m);
	touch_entry(m, object, false);
	barrier(m, object);
}

static void mako_store(void *state, uint32_t owner, struct heap_slot *slot, uint32_t target)
{
	struct mako *m = state;
	uint32_t page = m->rs.of[owner] * m->rs.stride + m->rs.offset[owner] / HEAP_PAGE;

	(void)target;
	if (m->phase == TRACE && slot->target) {
		heap_list_add(&m->log, slot->target - 1);
		if (m->log.count >= m->w->config->ghosts)
			send_roots(m, &m->log, m->w->now);
	}
	m->buffered = heap_grow(m->buffered, &m->buffered_room, page + 1, 1);
	if (m->buffered[page])
		return;
	m->buffered[page] = 1;
	heap_list_add(&m->buffer, page);
	if (m->buffer.count >= m->w->config->write_through)
		write_through(m);
}

const struct heap_scheme heap_mako = {
	.name = "mako", .title = "Mako", .create = mako_create, .destroy = mako_destroy, .born = mako_born,
	.touch = mako_touch, .store = mako_store, .load = mako_load, .collect = mako_collect,
	.run = mako_run,
};
