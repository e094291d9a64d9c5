// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "benefit.h"
#include "colocation.h"
#include "lib/base/clock.h"
#include "lib/base/json.h"
#include "stats.h"

static void total(const struct attachments *a, const struct attachment *t,
		  struct ebb_cgroup_stats *s)
{
	struct ebb_counters c;
	uint64_t gone;

	plane_counters(a->plane, t->cgroup.id, &c);
	memset(s, 0, sizeof(*s));
	memcpy(s->path, t->cgroup.rel, strnlen(t->cgroup.rel, sizeof(s->path) - 1));
	snprintf(s->policy, sizeof(s->policy), "%s", t->policy->name);
	s->misses = c.misses;
	s->hits = c.hits;
	s->late = c.late;
	s->wasted = c.wasted + budget_expired(t->budget);
	s->prefetched = budget_prefetched(t->budget);
	gone = s->hits + s->late + s->wasted;
	s->outstanding = s->prefetched > gone ? s->prefetched - gone : 0;
	s->file_majors = c.file_majors;
	s->zero_majors = c.zero_majors;
	s->swapped_in = c.swapped_in;
	s->swapped_out = c.swapped_out;
	s->written = c.written;
	s->shared = c.shared;
	s->epochs = c.epochs;
	s->requests = c.requests;
	s->request_pages = c.request_pages;
	s->dropped = c.dropped;
	s->miss_ns = c.miss_ns;
	s->late_ns = c.late_ns;
	s->gc_misses = c.gc_misses;
	s->gc_hits = c.gc_hits;
	s->by_chance = c.by_chance;
	memcpy(s->miss_ns_log2, c.miss_hist, sizeof(s->miss_ns_log2));
	memcpy(s->hit_ns_log2, c.hit_hist, sizeof(s->hit_ns_log2));
	s->clean = c.clean;
}

static void publish(struct attachments *a, struct attachment *t)
{
	struct ebb_cgroup_stats s;

	total(a, t, &s);
	bpf_map_update_elem(a->plane->cgroup_stats, &t->cgroup.id, &s, BPF_ANY);
}

void stats_publish(struct attachments *a)
{
	struct attachment *t;

	pthread_mutex_lock(&a->lock);
	while ((t = LIST_FIRST(&a->changed))) {
		LIST_REMOVE(t, changed);
		t->is_changed = false;
		publish(a, t);
	}
	pthread_mutex_unlock(&a->lock);
}

void stats_publish_all(struct attachments *a)
{
	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->n; i++)
		publish(a, a->item[i]);
	pthread_mutex_unlock(&a->lock);
}

static struct json_object *histogram(const __u64 *bucket)
{
	struct json_object *o = json_object_new_array();

	for (int i = 0; i < EBB_HIST; i++)
		json_object_array_add(o, json_object_new_int64((int64_t)bucket[i]));
	return o;
}

struct json_object *offload_json(const struct attachment *t)
{
	const struct offload_report *r = &t->offload;
	struct json_object *o = json_object_new_object();
	uint64_t saved = r->at_start > r->resident ? r->at_start - r->resident : 0;
	const struct json_number numbers[] = {
		{ "resident", r->resident }, { "resident_at_start", r->at_start }, { "saved", saved },
		{ "swapped", r->swapped }, { "reclaimed_pages", r->reclaimed },
		{ "touched_on_trial", r->back }, { NULL },
	};

	json_add_double(o, "target", t->slowdown / 1000.0);
	json_add_double(o, "slowdown", r->slowdown);
	json_add_text(o, "state", offload_state_name(r->state));
	json_add_numbers(o, numbers);
	return o;
}

struct json_object *placement_json(const struct attachment *t)
{
	const struct colocation_report *r = &t->colocation;
	enum colocation_state state = r->state;
	struct json_object *o = json_object_new_object();
	/* The placement thread has not seen a new setting yet. */
	if (state == COLOCATION_OFF && t->placement != PLACEMENT_OFF)
		state = COLOCATION_IDLE;
	else if (t->placement == PLACEMENT_OFF && r->cpu < 0)
		state = COLOCATION_OFF;
	json_add_text(o, "setting", placement_name(t->placement));
	json_add_text(o, "state", colocation_state_name(state));
	json_object_object_add(o, "cpu", r->cpu < 0 ? NULL : json_object_new_int(r->cpu));
	json_add_int(o, "together_ns", (int64_t)r->together_ns);
	return o;
}

struct json_object *benefit_json(const struct attachment *t)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "setting", t->benefit ? "on" : "off");
	json_add_text(o, "state", t->benefit ? benefit_name(t->judged.state) : "off");
	return o;
}

/*
 * The gain and its standard error are null until there is a trial.  @s: counted with benefit=on
 * only.
 */
static struct json_object *source_json(const struct attachment *t, uint32_t i,
				       const struct ebb_source_counters *s)
{
	uint64_t expired = budget_source_expired(t->budget, i) - t->expired[i];
	const struct source_report *r = &t->judged.source[i];
	struct json_object *o = json_object_new_object();

	json_add_text(o, "source", benefit_source_name(i));
	json_add_int(o, "pages", (int64_t)budget_source_pages(t->budget, i));
	if (t->benefit) {
		json_add_int(o, "used", (int64_t)s->used[i]);
		json_add_int(o, "wasted", (int64_t)(s->wasted[i] + expired));
	}
	json_add_text(o, "state", benefit_state_name(r->state));
	json_add_bool(o, "paused", t->paused >> i & 1);
	json_object_object_add(o, "gain", r->trials ? json_object_new_double(expm1(r->gain)) : NULL);
	json_object_object_add(o, "error", r->trials ? json_object_new_double(r->error) : NULL);
	json_add_int(o, "trials", r->trials);
	return o;
}

struct json_object *sources_json(const struct attachments *a, const struct attachment *t)
{
	struct json_object *list = json_object_new_array();
	struct ebb_source_counters s = { 0 };

	if (t->benefit)
		plane_sources(a->plane, t->cgroup.id, &s);
	for (uint32_t i = 0; i < EBB_SOURCES; i++)
		if (budget_source_pages(t->budget, i))
			json_object_array_add(list, source_json(t, i, &s));
	return list;
}

/* Adds what maps/zswap has: nothing unless zswap was in use while the cgroup swapped. */
static void zswap_json(const struct attachments *a, const struct attachment *t,
		       struct json_object *to)
{
	struct json_object *o;
	struct ebb_zswap z;

	if (bpf_map_lookup_elem(a->plane->zswap, &t->cgroup.id, &z))
		return;
	o = json_object_new_object();
	json_add_numbers(o, (struct json_number[]){
		{ "hits", z.hits }, { "misses", z.misses }, { "stored", z.stored },
		{ "direct", z.direct }, { "written_back", z.written_back }, { NULL }
	});
	json_object_object_add(to, "zswap", o);
}

void collapse_json(const struct attachment *t, struct json_object *to)
{
	struct json_object *o;
	struct collapse c;
	uint64_t now = now_ns();

	if (!budget_collapse_report(t->budget, &c))
		return;
	o = json_object_new_object();
	json_add_text(o, "state", collapse_state_name(c.state));
	json_add_text(o, "reason", collapse_reason_name(c.reason));
	json_add_numbers(o, (struct json_number[]){
		{ "retry_s", c.state == COLLAPSE_OFF && c.retry_ns > now ?
			     (c.retry_ns - now) / 1000000000 : 0 },
		{ "windows", c.windows }, { "rejected", c.rejected }, { "whole", c.whole },
		{ "returned", c.again }, { "crowded", c.crowding },
		{ "switched_off", c.trips }, { NULL }
	});
	json_object_object_add(to, "collapse", o);
}

void stats_json(struct attachments *a, uint64_t owner, struct json_object *rows)
{
	static const struct { const char *name; size_t offset; } field[] = {
#define FIELD(f) { #f, offsetof(struct ebb_cgroup_stats, f) }
		FIELD(misses), FIELD(hits), FIELD(late), FIELD(wasted), FIELD(prefetched),
		FIELD(outstanding), FIELD(file_majors), FIELD(zero_majors), FIELD(swapped_in),
		FIELD(swapped_out), FIELD(written), FIELD(shared), FIELD(epochs), FIELD(requests),
		FIELD(request_pages), FIELD(dropped), FIELD(miss_ns), FIELD(late_ns),
		FIELD(gc_misses), FIELD(gc_hits), FIELD(by_chance),
#undef FIELD
	};
	struct ebb_cgroup_stats s;

	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->n; i++) {
		const struct attachment *t = a->item[i];
		struct json_object *o;

		if (owner && t->cgroup.id != owner)
			continue;
		total(a, t, &s);
		o = json_object_new_object();
		json_add_text(o, "path", t->cgroup.path);
		json_add_text(o, "policy", s.policy);
		for (size_t k = 0; k < sizeof(field) / sizeof(field[0]); k++)
			json_add_int(o, field[k].name, *(int64_t *)((char *)&s + field[k].offset));
		json_add_int(o, "cut", (int64_t)budget_pages_cut(t->budget));
		json_add_int(o, "paced", (int64_t)budget_pages_paced(t->budget));
		json_object_object_add(o, "miss_ns_log2", histogram(s.miss_ns_log2));
		json_object_object_add(o, "hit_ns_log2", histogram(s.hit_ns_log2));
		json_object_object_add(o, "clean", a->plane->exact ?
				       json_object_new_int64((int64_t)s.clean) : NULL);
		json_object_object_add(o, "placement", placement_json(t));
		json_object_object_add(o, "benefit", benefit_json(t));
		json_object_object_add(o, "sources", sources_json(a, t));
		zswap_json(a, t, o);
		collapse_json(t, o);
		if (t->slowdown)
			json_object_object_add(o, "offload", offload_json(t));
		json_object_array_add(rows, o);
	}
	pthread_mutex_unlock(&a->lock);
}
