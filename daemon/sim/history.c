// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define ACCESSES_MAX (1u << 30)
#define FOLIO_MAX 512           /* pages; larger ones are not this kernel's swap-outs */
#define READ_MAX 64             /* pages the kernel's readahead may bring: page-cluster 6 */

struct record {
	struct trace_record r;
	uint32_t number;        /* number in the file, which makes sorting stable */
	uint32_t next;          /* fault of the same thread; SIM_NONE = none */
	int64_t step; /* direction of the kernel's readahead and the thread: 1, -1, or 0 */
	uint32_t followers;     /* accesses inferred from its readahead */
};

/* A page leaves before access @before. */
struct departure {
	uint32_t page, before;
};

/* A page's last touch so far. */
struct last {
	uint32_t access;        /* SIM_NONE = none */
	bool left;              /* and recorded as swapped out since */
};

struct instant {
	uint32_t out;           /* pages known to be out */
	uint32_t swapped;       /* pages that were out, by the samples */
};

/* State while a history is made. */
struct making {
	struct sim_history *h;
	struct record *record;
	uint32_t records, room;
	struct departure *departure;
	uint32_t departures, departure_room;
	struct last *last;      /* of each page */
	uint32_t last_room;
	uint32_t access_room, page_room, thread_room;
	uint32_t out;           /* pages recorded as swapped out that have not returned */
	struct instant *instant; /* at each access */
	uint32_t instant_room;
	const struct trace_sample *sample;
	size_t samples, sampled; /* those before the present record */
	/* Pages that came in without a recorded swap-out, by their first touch. */
	struct { uint32_t page, access, read; } * first;
	uint32_t firsts, first_room;
	uint32_t known_max;     /* largest number of pages known to be out at a time */
	double known_sum;       /* sum of pages known to be out, over all accesses */
	/* Touch and next touch of clean pages that returned. */
	struct { uint32_t page, from, to, read; } * back; /* read: the access that brought it */
	uint32_t backs, back_room;
};

/* Makes room for one more of *@array, whose elements have @size bytes. */
static int reserve(void *array, uint32_t n, uint32_t *room, size_t size)
{
	void **p = array, *grown;
	uint32_t wanted = *room ? 2 * *room : 1024;

	if (n < *room)
		return 0;
	if (n >= ACCESSES_MAX)
		return -EFBIG;
	grown = realloc(*p, wanted * size);
	if (!grown)
		return -ENOMEM;
	*p = grown;
	*room = wanted;
	return 0;
}

static int by_time(const void *a, const void *b)
{
	const struct record *x = a, *y = b;

	if (x->r.time_ns != y->r.time_ns)
		return x->r.time_ns < y->r.time_ns ? -1 : 1;
	return x->number < y->number ? -1 : x->number > y->number;
}

static int read_records(struct making *m, struct trace_reader *r, struct error *e)
{
	int ret;

	for (;;) {
		ret = reserve(&m->record, m->records, &m->room, sizeof(*m->record));
		if (ret)
			return fail(e, ret, "trace: too many records for this machine: %s",
				    strerror(-ret));
		ret = trace_next(r, &m->record[m->records].r, e);
		if (ret <= 0)
			break;
		m->record[m->records].number = m->records;
		m->h->recorded[m->record[m->records].r.kind]++;
		if (m->record[m->records].r.kind == TRACE_MISS)
			m->h->miss_ns += m->record[m->records].r.duration_ns;
		m->records++;
	}
	/* CPUs deliver their records out of order. */
	qsort(m->record, m->records, sizeof(*m->record), by_time);
	return ret;
}

static int get_page(struct making *m, uint32_t tgid, uint64_t vpn, bool resident, uint32_t *id)
{
	struct sim_history *h = m->h;
	int ret = sim_map_get(&h->by_page, tgid, vpn, id);

	if (ret <= 0)
		return ret;
	if (reserve(&h->page, *id, &m->page_room, sizeof(*h->page)) ||
	    reserve(&m->last, *id, &m->last_room, sizeof(*m->last)))
		return -ENOMEM;
	h->page[*id] = (struct sim_page){ .vpn = vpn, .tgid = tgid, .resident = resident };
	m->last[*id] = (struct last){ .access = SIM_NONE };
	h->pages++;
	return 0;
}

static int get_thread(struct making *m, const struct trace_record *r, uint32_t *id)
{
	struct sim_history *h = m->h;
	int ret = sim_map_get(&h->by_thread, r->tgid, r->tid, id);
	uint32_t process;

	if (ret <= 0)
		return ret;
	if (reserve(&h->thread, *id, &m->thread_room, sizeof(*h->thread)) ||
	    sim_map_get(&h->by_process, r->tgid, 0, &process) < 0)
		return -ENOMEM;
	h->thread[*id] = (struct sim_thread){ r->tgid, r->tid, process, SIM_NONE };
	h->threads++;
	h->processes = h->by_process.n;
	return 0;
}

/*
 * Infers which pages read with each miss were touched.  The kernel's window begins at the missed
 * page when that continues a scan; so if the thread's next fault is ahead within two windows, it
 * touched the pages between.  Otherwise pages read around the missed one count as unused.
 */
static int find_followers(struct making *m)
{
	uint32_t *next = NULL, room = 0, thread;
	int ret = 0;

	for (uint32_t i = m->records; i-- > 0 && !ret;) {
		struct record *a = &m->record[i], *b;
		uint32_t known = m->h->threads;
		int64_t distance;

		a->next = SIM_NONE;
		a->step = 0;
		a->followers = 0;
		if (a->r.kind == TRACE_OUT)
			continue;
		ret = get_thread(m, &a->r, &thread);
		if (!ret)
			ret = reserve(&next, thread, &room, sizeof(*next));
		if (ret)
			break;
		a->next = thread < known ? next[thread] : SIM_NONE;
		next[thread] = i;
		if (a->next == SIM_NONE || a->r.kind != TRACE_MISS || a->r.cluster < 2 ||
		    a->r.cluster > READ_MAX)
			continue;
		b = &m->record[a->next];
		distance = (int64_t)(b->r.vpn - a->r.vpn);
		if (!distance || llabs(distance) > 2 * (int64_t)a->r.cluster)
			continue;
		a->step = distance > 0 ? 1 : -1;
		a->followers = a->r.cluster - 1;
		if (a->followers > (uint32_t)llabs(distance) - 1)
			a->followers = (uint32_t)llabs(distance) - 1;
	}
	free(next);
	return ret;
}

static int add_departure(struct making *m, uint32_t page, uint32_t before)
{
	int ret = reserve(&m->departure, m->departures, &m->departure_room, sizeof(*m->departure));

	if (!ret)
		m->departure[m->departures++] = (struct departure){ page, before };
	return ret;
}

static int add_out(struct making *m, const struct trace_record *r)
{
	uint32_t pages = r->cluster && r->cluster <= FOLIO_MAX ? r->cluster : 1, id;
	int ret = 0;

	for (uint32_t i = 0; i < pages && !ret; i++) {
		ret = get_page(m, r->tgid, r->vpn + i, true, &id);
		if (!ret)
			ret = add_departure(m, id, m->h->accesses);
		if (ret || m->last[id].left)
			continue;
		m->last[id].left = true;
		m->out++;
	}
	return ret;
}

/* The next access: it touches @vpn, which came with access @read or was there. */
static int touch(struct making *m, const struct record *a, uint64_t vpn, uint64_t think_ns,
		 uint32_t read)
{
	struct sim_history *h = m->h;
	struct sim_access *access;
	uint32_t id = h->accesses, page;
	struct last *last;
	int ret;

	if (reserve(&h->access, id, &m->access_room, sizeof(*h->access)) ||
	    reserve(&m->instant, id, &m->instant_room, sizeof(*m->instant)) ||
	    get_page(m, a->r.tgid, vpn, false, &page))
		return -ENOMEM;
	access = &h->access[id];
	*access = (struct sim_access){ .think_ns = think_ns, .ip = a->r.ip, .page = page,
				       .next = SIM_NONE, .read_with = 0, .role = a->r.role };
	ret = get_thread(m, &a->r, &access->thread);
	if (ret)
		return ret;
	last = &m->last[page];
	if (last->access != SIM_NONE && !last->left) {
		if (reserve(&m->back, m->backs, &m->back_room, sizeof(*m->back)))
			return -ENOMEM;
		m->back[m->backs++] = (typeof(*m->back)){ page, last->access, id, read };
	}
	m->instant[id] = (struct instant){ .out = m->out };
	if (m->samples)
		m->instant[id].swapped =
			(uint32_t)m->sample[m->sampled ? m->sampled - 1 : 0].swapped;
	if (last->left) {
		m->out--;
	} else if (last->access == SIM_NONE) {
		if (reserve(&m->first, m->firsts, &m->first_room, sizeof(*m->first)))
			return -ENOMEM;
		m->first[m->firsts++] = (typeof(*m->first)){ page, id, read };
	}
	*last = (struct last){ .access = id };
	h->accesses++;
	return 0;
}

static uint64_t began(const struct trace_record *r)
{
	return r->time_ns > r->duration_ns ? r->time_ns - r->duration_ns : 0;
}

/* Adds a fault, and then the touches of pages that the kernel read with it. */
static int add_fault(struct making *m, const struct record *a, uint64_t think_ns)
{
	uint64_t gap = 0, steps = a->followers + 1;
	uint32_t first = m->h->accesses;
	int ret;

	if (a->next != SIM_NONE && began(&m->record[a->next].r) > a->r.time_ns)
		gap = began(&m->record[a->next].r) - a->r.time_ns;
	ret = touch(m, a, a->r.vpn, think_ns, first);
	for (uint32_t i = 1; i < steps && !ret; i++)
		ret = touch(m, a, a->r.vpn + (uint64_t)(a->step * (int64_t)i), gap / steps,
			    first);
	/* Whichever of them misses, the kernel reads the others. */
	for (uint32_t i = 0; i < steps && !ret; i++)
		m->h->access[first + i].read_with = (uint32_t)steps - 1 - i;
	return ret;
}

/* Adds all accesses, threads and recorded departures. */
static int make_accesses(struct making *m)
{
	struct sim_history *h = m->h;
	uint64_t *think;
	int ret = 0;

	think = calloc(m->records + 1, sizeof(*think));
	if (!think)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->records && !ret; i++) {
		const struct record *a = &m->record[i];
		uint64_t gap = 0, now = a->r.time_ns;

		while (m->sampled < m->samples && m->sample[m->sampled].time_ns <= now)
			m->sampled++;
		if (a->r.kind == TRACE_OUT) {
			ret = add_out(m, &a->r);
			continue;
		}
		/* The first record of a thread has none before it. */
		if (!think[i])
			think[i] = began(&a->r) + 1;
		if (a->next != SIM_NONE) {
			if (began(&m->record[a->next].r) > now)
				gap = began(&m->record[a->next].r) - now;
			/* The gap minus the followers' part; plus 1 means that it is known. */
			think[a->next] = gap - gap / (a->followers + 1) * a->followers + 1;
		}
		ret = add_fault(m, a, think[i] - 1);
	}
	free(think);
	for (uint32_t i = h->accesses; i-- > 0;) {
		struct sim_thread *t = &h->thread[h->access[i].thread];

		h->access[i].next = t->first;
		t->first = i;
	}
	return ret;
}

/*
 * Adds departures of pages that came in without a recorded swap-out.  As many as the samples say
 * were out when the recording began.  The others left since; bpf/evict does not find the page of
 * every swap-out.  Assumes that they left in the order in which they returned, as soon as more
 * pages were out than are known.  Without samples all were out from the beginning.
 */
static int add_first_departures(struct making *m)
{
	uint32_t early = m->samples && m->sample[0].swapped < m->firsts ?
			 (uint32_t)m->sample[0].swapped : m->firsts;
	uint32_t next = early, away = early, came = 0;
	int ret = 0;

	for (uint32_t k = early; k < m->firsts; k++)
		m->h->page[m->first[k].page].resident = true;
	for (uint32_t i = 0; i < m->h->accesses && !ret; i++) {
		struct instant *t = &m->instant[i];

		while (next < m->firsts && !ret && (t->out + away < t->swapped ||
						    m->first[next].read <= i)) {
			ret = add_departure(m, m->first[next++].page, i);
			away++;
		}
		t->out += away;
		m->known_max = t->out > m->known_max ? t->out : m->known_max;
		m->known_sum += t->out;
		if (came < m->firsts && m->first[came].access == i) {
			came++;
			away--;
		}
	}
	return ret;
}

/*
 * Returns the sum, over all accesses, of swapped-out pages whose swap-out was not recorded.
 * Samples tell how many are swapped out at any time.  Without samples: memory is full
 * all the time, so about as many pages are swapped out as do not fit: all known but for
 * those memory holds, or, where other pages that never fault take its room, as
 * many as were known to be out at most.
 */
static double unseen_out(const struct making *m)
{
	const struct sim_history *h = m->h;
	double memory = (double)(h->info.memory >> h->info.page_shift), out = 0;

	if (!m->samples)
		return (h->pages > memory ? h->pages - memory : m->known_max) * h->accesses -
		       m->known_sum;
	for (uint32_t i = 0; i < h->accesses; i++)
		out += m->instant[i].swapped;
	return out - m->known_sum;
}

/* Returns whether no swap-out of the page was recorded after its last touch. */
static bool left_unseen(const struct making *m, uint32_t page)
{
	return m->last[page].access != SIM_NONE && !m->last[page].left;
}

/* Returns that sum if each clean page stayed for @stay accesses, or until it was read again. */
static double out_after(const struct making *m, uint64_t stay)
{
	const struct sim_history *h = m->h;
	double sum = 0;

	for (uint32_t i = 0; i < m->backs; i++) {
		uint64_t gone = m->back[i].from + 1 + stay;

		sum += gone < m->back[i].to ? (double)(m->back[i].to - gone) : 0;
	}
	for (uint32_t p = 0; p < h->pages; p++) {
		uint64_t gone = (uint64_t)m->last[p].access + 1 + stay;

		if (left_unseen(m, p) && gone < h->accesses)
			sum += (double)(h->accesses - gone);
	}
	return sum;
}

/*
 * Returns how long clean pages stayed, in accesses: equal for all, as under LRU, and such that as
 * many are out as there were.  If none ever returned, as many accesses as memory has pages.
 */
static uint32_t length_of_stay(const struct making *m)
{
	uint64_t pages = m->h->info.memory >> m->h->info.page_shift;
	uint32_t low = 0, high = m->h->accesses;
	double out = unseen_out(m);

	if (!m->backs && !m->samples)
		return pages < UINT32_MAX ? (uint32_t)pages : UINT32_MAX;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (out_after(m, middle) > out)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int add_unseen_departures(struct making *m)
{
	struct sim_history *h = m->h;
	int ret = 0;

	h->stay = length_of_stay(m);
	for (uint32_t i = 0; i < m->backs && !ret; i++) {
		uint64_t before = (uint64_t)m->back[i].from + 1 + h->stay;

		/* Not once it has been read again. */
		ret = add_departure(m, m->back[i].page, before < m->back[i].read ?
				    (uint32_t)before : m->back[i].read);
	}
	for (uint32_t p = 0; p < h->pages && !ret; p++)
		if (left_unseen(m, p) && (uint64_t)m->last[p].access + 1 + h->stay < h->accesses)
			ret = add_departure(m, p, m->last[p].access + 1 + h->stay);
	return ret;
}

/* Sorts departures by the access they precede, and for one access in order of addition. */
static int sort_departures(struct making *m)
{
	struct sim_history *h = m->h;

	h->leave = malloc((m->departures + 1) * sizeof(*h->leave));
	h->leave_from = calloc(h->accesses + 3, sizeof(*h->leave_from));
	if (!h->leave || !h->leave_from)
		return -ENOMEM;
	/* Shifted by two, so that filling in restores each start. */
	for (uint32_t i = 0; i < m->departures; i++)
		h->leave_from[m->departure[i].before + 2]++;
	for (uint32_t i = 2; i < h->accesses + 3; i++)
		h->leave_from[i] += h->leave_from[i - 1];
	for (uint32_t i = 0; i < m->departures; i++)
		h->leave[h->leave_from[m->departure[i].before + 1]++] = m->departure[i].page;
	return 0;
}

/* Memory is not always full: it holds the largest resident number. */
static uint64_t sampled_beyond(const struct making *m)
{
	uint64_t resident = 0, all = 0;

	for (size_t i = 0; i < m->samples; i++) {
		const struct trace_sample *s = &m->sample[i];

		resident = s->resident > resident ? s->resident : resident;
		all = s->resident + s->swapped > all ? s->resident + s->swapped : all;
	}
	return all - resident;
}

int sim_history_read(struct sim_history *h, struct trace_reader *r, struct error *e)
{
	struct making m = { .h = h };
	int ret;

	*h = (struct sim_history){ .info = *trace_info(r) };
	ret = read_records(&m, r, e);
	m.sample = trace_samples(r, &m.samples);
	if (!ret)
		ret = find_followers(&m);
	if (!ret)
		ret = make_accesses(&m);
	if (!ret)
		ret = add_first_departures(&m);
	if (!ret)
		ret = add_unseen_departures(&m);
	if (!ret)
		ret = sort_departures(&m);
	h->beyond = m.samples ? sampled_beyond(&m) : m.known_max;
	free(m.record);
	free(m.departure);
	free(m.last);
	free(m.back);
	free(m.first);
	free(m.instant);
	return ret ? fail(e, ret, "trace: too large for this machine: %s", strerror(-ret)) : 0;
}

void sim_history_free(struct sim_history *h)
{
	free(h->access);
	free(h->page);
	free(h->thread);
	free(h->leave);
	free(h->leave_from);
	sim_map_free(&h->by_page);
	sim_map_free(&h->by_thread);
	sim_map_free(&h->by_process);
	*h = (struct sim_history){ 0 };
}

uint32_t sim_page_find(const struct sim_history *h, uint32_t tgid, uint64_t vpn)
{
	return sim_map_find(&h->by_page, tgid, vpn);
}
