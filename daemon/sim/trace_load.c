// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ebb/abi.h>

#include "map.h"
#include "trace_load.h"

static int add_record(struct loaded_trace *t, const struct trace_record *r)
{
	if (!(t->records & (t->records - 1))) {
		size_t room = t->records ? 2 * t->records : 1;
		struct trace_record *grown = realloc(t->record, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		t->record = grown;
	}
	t->record[t->records++] = *r;
	return 0;
}

/* Returns the entry of the thread of @r, a new one if need be; NULL without memory. */
static struct loaded_thread *find_thread(struct loaded_trace *t, struct sim_map *by_thread,
					 const struct trace_record *r)
{
	uint32_t i;
	int ret = sim_map_get(by_thread, r->tgid, r->tid, &i);

	if (ret < 0)
		return NULL;
	if (ret && !(t->threads & (t->threads - 1))) {
		size_t room = t->threads ? 2 * t->threads : 1;
		struct loaded_thread *grown = realloc(t->thread, room * sizeof(*grown));

		if (!grown)
			return NULL;
		t->thread = grown;
	}
	if (ret)
		t->thread[t->threads++] = (struct loaded_thread){ .tgid = r->tgid, .tid = r->tid };
	return &t->thread[i];
}

static uint64_t faults(const struct loaded_thread *t)
{
	return t->count[TRACE_MISS] + t->count[TRACE_HIT] + t->count[TRACE_LATE];
}

static int by_faults(const void *a, const void *b)
{
	const struct loaded_thread *x = a, *y = b;

	if (faults(x) != faults(y))
		return faults(x) > faults(y) ? -1 : 1;
	return x->tid < y->tid ? -1 : x->tid > y->tid;
}

static int sum_up(struct loaded_trace *t)
{
	struct sim_map by_thread = { 0 };
	int ret = 0;

	for (size_t i = 0; i < t->records; i++) {
		const struct trace_record *r = &t->record[i];
		struct loaded_thread *thread;

		t->count[r->kind]++;
		if (r->time_ns > t->span_ns)
			t->span_ns = r->time_ns;
		if (r->kind == TRACE_OUT)
			continue;
		if (r->kind == TRACE_MISS)
			t->miss_ns += r->duration_ns;
		if (r->kind == TRACE_LATE)
			t->late_ns += r->duration_ns;
		thread = find_thread(t, &by_thread, r);
		if (!thread) {
			ret = -ENOMEM;
			break;
		}
		thread->role = r->role;
		thread->count[r->kind]++;
	}
	sim_map_free(&by_thread);
	return ret;
}

int traced_page_compare(const void *a, const void *b)
{
	const struct traced_page *x = a, *y = b;

	if (x->tgid != y->tgid)
		return x->tgid < y->tgid ? -1 : 1;
	return x->vpn < y->vpn ? -1 : x->vpn > y->vpn;
}

static uint64_t sort_pages(const struct loaded_trace *t, struct traced_page *page)
{
	uint64_t n = 0;

	for (size_t i = 0; i < t->records; i++)
		page[i] = (struct traced_page){ t->record[i].tgid, t->record[i].vpn };
	qsort(page, t->records, sizeof(*page), traced_page_compare);
	for (size_t i = 0; i < t->records; i++)
		if (!i || traced_page_compare(&page[i], &page[n - 1]))
			page[n++] = page[i];
	return n;
}

struct traced_page *trace_pages(const struct loaded_trace *t)
{
	struct traced_page *page = malloc((t->records + 1) * sizeof(*page));

	if (page)
		sort_pages(t, page);
	return page;
}

static int count_pages(struct loaded_trace *t)
{
	struct traced_page *page = malloc((t->records + 1) * sizeof(*page));

	if (!page)
		return -ENOMEM;
	t->pages = sort_pages(t, page);
	free(page);
	return 0;
}

static int copy_samples(struct loaded_trace *t, const struct trace_reader *r)
{
	const struct trace_sample *from = trace_samples(r, &t->samples);

	t->sample = malloc((t->samples + 1) * sizeof(*t->sample));
	if (!t->sample)
		return -ENOMEM;
	if (t->samples)
		memcpy(t->sample, from, t->samples * sizeof(*from));
	return 0;
}

int trace_load(struct loaded_trace *t, const char *path, enum trace_demand demand, struct error *e)
{
	_cleanup_trace_ struct trace_reader *r = NULL;
	struct trace_record record;
	int ret = trace_open(&r, path, demand, e);

	if (ret)
		return ret;
	t->info = *trace_info(r);
	while ((ret = trace_next(r, &record, e)) == 1)
		if (add_record(t, &record))
			return fail(e, ENOMEM, "%s: too large for this machine's memory", path);
	if (ret)
		return ret;
	if (sum_up(t) || count_pages(t) || copy_samples(t, r))
		return fail(e, ENOMEM, "%s: too large for this machine's memory", path);
	for (size_t i = 0; i < t->threads; i++)
		strncpy(t->thread[i].comm,
			trace_thread_name(r, t->thread[i].tgid, t->thread[i].tid),
			sizeof(t->thread[i].comm) - 1);
	if (t->threads)
		qsort(t->thread, t->threads, sizeof(*t->thread), by_faults);
	return 0;
}

void trace_unload(struct loaded_trace *t)
{
	free(t->record);
	free(t->sample);
	free(t->thread);
}

struct json_object *trace_threads_json(const struct loaded_trace *t, size_t most,
				       const char *const roles[2])
{
	struct json_object *rows = json_object_new_array();

	for (size_t i = 0; i < t->threads && i < most; i++) {
		const struct loaded_thread *thread = &t->thread[i];
		struct json_object *o = json_object_new_object();

		json_add_int(o, "tgid", thread->tgid);
		json_add_int(o, "tid", thread->tid);
		json_add_text(o, "comm", *thread->comm ? thread->comm : NULL);
		json_add_text(o, "role", roles[thread->role == EBB_ROLE_GC]);
		json_add_numbers(o, (struct json_number[]){
			{ "misses", thread->count[TRACE_MISS] }, { "hits", thread->count[TRACE_HIT] },
			{ "late", thread->count[TRACE_LATE] }, { NULL }
		});
		json_object_array_add(rows, o);
	}
	return rows;
}

void trace_add_about(struct json_object *o, const struct trace_info *info)
{
	time_t start = (time_t)(info->start_unix_ns / 1000000000);
	char when[32];
	struct tm tm;

	strftime(when, sizeof(when), "%FT%TZ", gmtime_r(&start, &tm));
	json_add_text(o, "comm", *info->comm ? info->comm : NULL);
	json_add_text(o, "cgroup", info->cgroup);
	json_add_text(o, "policy", info->policy);
	json_add_text(o, "kernel", info->kernel);
	json_add_int(o, "memory", info->memory);
	json_add_int(o, "page_size", 1ULL << info->page_shift);
	json_add_int(o, "page_cluster", info->page_cluster);
	json_add_text(o, "start", when);
	json_add_text(o, "stopped", info->stopped ? strerror(info->stopped) : NULL);
	json_add_bool(o, "finished", info->finished);
}

void trace_add_counts(struct json_object *o, const struct loaded_trace *t)
{
	json_add_numbers(o, (struct json_number[]){
		{ "records", t->records }, { "misses", t->count[TRACE_MISS] },
		{ "hits", t->count[TRACE_HIT] }, { "late", t->count[TRACE_LATE] },
		{ "outs", t->count[TRACE_OUT] }, { "lost", t->info.lost }, { "pages", t->pages },
		{ "span_ns", t->span_ns }, { "miss_ns", t->miss_ns }, { "late_ns", t->late_ns },
		{ NULL }
	});
}
