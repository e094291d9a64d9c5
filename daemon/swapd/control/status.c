// SPDX-License-Identifier: GPL-2.0-or-later
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "lib/base/json.h"
#include "status.h"
#include "swapd/page/bits.h"
#include "swapd/replicas/drain_estimate.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/reservation.h"
#include "swapd/replicas/slab_mapping.h"
#include "swapd/swapd.h"

/* Slabs in one answer, a line of at most CONTROL_MAX_LINE bytes: with long names a slab has 900. */
#define SLABS_AT_ONCE 1000

static struct json_object *slabs_json(const struct swapd *s)
{
	struct json_object *o = json_object_new_object();

	json_add_int(o, "total", s->engine.table.count);
	for (int i = 0; i < SLAB_STATES; i++)
		json_add_int(o, slab_state_text(i), slab_count(&s->engine.table, i));
	return o;
}

static const char *leaving_text(uint8_t leaving)
{
	return leaving & DONOR_SUSPECT ? "quarantined" :
	       leaving & DONOR_REMOVED ? "removed" :
	       leaving & DONOR_DRAINED ? "drained" :
	       leaving & DONOR_DRAINING ? "draining" : NULL;
}

void device_drain_estimate(const struct swapd *s, const struct donor *d, struct json_object *a)
{
	struct json_object *o = json_object_new_object();
	struct drain_estimate told;

	drain_estimate(&s->replicas, d, &told);
	json_add_int(o, "slabs", told.slabs);
	json_add_int(o, "move", told.move);
	json_add_int(o, "to_disk", told.disk);
	json_add_int(o, "stuck", told.stuck);
	if (told.why)
		json_add_text(o, "why", told.why);
	json_object_object_add(a, "outlook", o);
}

static struct json_object *donors_json(const struct swapd *s)
{
	struct json_object *list = json_object_new_array();
	int count = __atomic_load_n(&s->donors.count, __ATOMIC_ACQUIRE);

	for (int i = 0; i < count; i++) {
		const struct donor *d = &s->donors.donor[i];
		uint8_t state = __atomic_load_n(&d->state, __ATOMIC_ACQUIRE);
		const char *leaving = leaving_text(__atomic_load_n(&d->leaving, __ATOMIC_RELAXED));
		struct json_object *o;

		if (state == DONOR_ABSENT)
			continue;
		o = json_object_new_object();
		json_add_text(o, "address", d->address.text);
		json_add_text(o, "transport", d->link.transport->name);
		json_add_text(o, "state", donor_state_text(d));
		if (leaving)
			json_add_text(o, "leaving", leaving);
		json_add_bool(o, "unlisted", d->unlisted);
		json_add_bool(o, "tls", s->donors.env.tls && !address_is_local(&d->address));
		json_add_bool(o, "shared_key", d->shared_key);
		json_add_int(o, "total", count_get(&d->total));
		json_add_int(o, "free", count_get(&d->free));
		json_add_int(o, "memory", count_get(&d->memory));
		json_add_int(o, "used", count_get(&d->used));
		json_add_int(o, "read_ns", count_get(&d->latency));
		json_add_int(o, "slabs", d->copies - d->mapping);
		json_add_int(o, "reserved", d->reserved * s->options.slab);
		json_add_int(o, "connects", d->connects);
		json_add_int(o, "losses", d->losses);
		json_add_int(o, "absences", d->absences);
		json_add_int(o, "revoked", count_get(&d->revoked));
		json_add_int(o, "bad_pages", count_get(&d->bad_pages));
		json_add_int(o, "altered", count_get(&d->altered));
		if (*d->why)
			json_add_text(o, "last_loss", d->why);
		if (leaving)
			device_drain_estimate(s, d, o);
		json_object_array_add(list, o);
	}
	return list;
}

static struct json_object *backup_json(const struct swapd *s)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "path", s->engine.backup.path);
	json_add_bool(o, "direct", s->engine.backup.direct);
	json_add_bool(o, "failing", count_get(&s->count->backup_errors) > 0);
	json_add_int(o, "errors", count_get(&s->count->backup_errors));
	json_add_int(o, "queue", backup_queued(&s->engine.backup));
	json_add_int(o, "backlog", __atomic_load_n(&s->engine.backlog, __ATOMIC_RELAXED));
	json_add_int(o, "backlog_most", s->engine.backlog_most);
	return o;
}

/* Adds totals of copies, over all slabs that should have some. */
static void add_copies(const struct swapd *s, struct json_object *a)
{
	struct json_object *copies = json_object_new_object(), *repair = json_object_new_object();
	uint64_t present = 0, missing = 0, leaving = 0, partial = 0, mapped = 0;

	for (uint32_t i = 0; i < s->engine.table.count; i++) {
		const struct slab *slab = &s->engine.table.slabs[i];
		int good = 0, wanted = repair_wanted(&s->replicas, i);

		for (int c = 0; c < SLAB_COPIES; c++) {
			const struct copy *copy = &slab->copy[c];

			if (copy->state != COPY_MAPPED)
				continue;
			mapped++;
			good += !copy->partial;
			partial += copy->partial;
			leaving += mapping_leaving(&s->replicas, i, c);
		}
		present += (uint64_t)good;
		if (good < wanted)
			missing += (uint64_t)(wanted - good);
	}
	json_add_int(copies, "wanted", (uint64_t)s->replicas.wanted);
	json_add_int(copies, "present", present);
	json_add_int(copies, "missing", missing);
	json_add_int(copies, "filling", partial);
	json_add_int(copies, "leaving", leaving);
	json_object_object_add(a, "copies", copies);
	json_add_int(a, "live", count_get(&s->engine.map->live) * PAGE);
	json_add_int(a, "mapped", mapped * s->options.slab);
	json_add_int(repair, "rate", count_get(&s->replicas.repair.rate));
	json_add_int(repair, "limit", s->options.repair_rate);
	json_add_int(repair, "bytes", count_get(&s->count->repaired) * PAGE);
	json_add_int(repair, "running", s->replicas.repair.running);
	json_object_object_add(a, "repair", repair);
}

static struct json_object *reservation_json(const struct swapd *s)
{
	struct json_object *o = json_object_new_object();

	json_add_int(o, "wanted", reservation_wanted(&s->replicas) * s->options.slab);
	json_add_int(o, "missing", count_get(&s->replicas.unreserved) * s->options.slab);
	return o;
}

static bool has_supervisor(const struct swapd *s)
{
	return s->shared->supervisor && getppid() == (pid_t)s->shared->supervisor;
}

static void add_processes(const struct swapd *s, struct json_object *a)
{
	bool supervisor = has_supervisor(s);

	json_add_int(a, "pid", supervisor ? s->shared->supervisor : (uint64_t)getpid());
	json_add_int(a, "holder", supervisor ? s->shared->supervisor : 0);
	json_add_int(a, "server", (uint64_t)getpid());
	/* Without a supervisor the number of the standby may be stale. */
	json_add_int(a, "standby", supervisor ? __atomic_load_n(&s->shared->standby, __ATOMIC_RELAXED) : 0);
	json_add_int(a, "takeovers", __atomic_load_n(&s->shared->failovers, __ATOMIC_RELAXED));
	json_add_int(a, "takeover_ms",
		     __atomic_load_n(&s->shared->failover_ns, __ATOMIC_RELAXED) / 1000000);
}

void device_status(const struct swapd *s, struct json_object *a)
{
	char file[PATH_MAX];

	s->frontend->where(&s->host, file, sizeof(file));
	json_add_text(a, "name", s->options.name);
	add_processes(s, a);
	json_add_text(a, "frontend", s->frontend->name);
	json_add_text(a, "file", file);
	json_add_text(a, "mount", s->options.mount);
	json_add_int(a, "size", (uint64_t)s->engine.map->pages * PAGE);
	json_add_int(a, "slab", s->options.slab);
	json_add_int(a, "open", __atomic_load_n(&s->shared->frontend.opened, __ATOMIC_RELAXED));
	json_add_int(a, "fuse_connection", s->shared->frontend.connection);
	json_add_bool(a, "aborted", __atomic_load_n(&s->shared->aborted, __ATOMIC_RELAXED));
	json_add_bool(a, "watchdog", s->shared->watchdog_works && has_supervisor(s));
	json_add_int(a, "watchdog_ms", s->options.watchdog / 1000000);
	json_add_int(a, "deadline_ms", s->options.deadline / 1000000);
	json_add_bool(a, "io_flusher", s->io_flusher);
	json_add_bool(a, "locked", s->locked);
	json_add_bool(a, "oom_protected", s->oom_protected);
	json_add_bool(a, "nice", s->nice);
	json_add_bool(a, "realtime", s->realtime);
	json_add_text(a, "durability", s->options.durability);
	json_add_bool(a, "sealed", s->engine.sealing.on);
	if (backup_there(&s->engine.backup))
		json_object_object_add(a, "backup", backup_json(s));
	add_copies(s, a);
	if (s->replicas.reserves)
		json_object_object_add(a, "reservation", reservation_json(s));
	json_object_object_add(a, "slabs", slabs_json(s));
	json_object_object_add(a, "donors", donors_json(s));
}

/*
 * Returns whether reads wait for donors that are away, or may: enough donors are away to have all
 * replicas of a slab, and there is no backup.
 */
static bool reads_may_wait(const struct swapd *s)
{
	int count = __atomic_load_n(&s->donors.count, __ATOMIC_ACQUIRE), away = 0;

	for (int i = 0; i < count; i++)
		away += __atomic_load_n(&s->donors.donor[i].resume, __ATOMIC_RELAXED) ==
			RESUME_WANTED;
	return count_get(&s->count->held) ||
	       (!backup_there(&s->engine.backup) && away >= s->replicas.wanted);
}

void device_stats(const struct swapd *s, struct json_object *a)
{
	const struct counters *c = s->count;
	struct json_object *histogram = json_object_new_array();
	const struct { const char *key; uint64_t value; } list[] = {
		{ "requests", count_get(&c->received) },
		{ "read_requests", count_get(&c->read_requests) },
		{ "write_requests", count_get(&c->write_requests) },
		{ "pages_read_donor", count_get(&c->read_donor) },
		{ "pages_read_backup", count_get(&c->read_backup) },
		{ "pages_read_zero", count_get(&c->read_zero) },
		{ "pages_read_failed", count_get(&c->read_failed) },
		{ "pages_written_donor", count_get(&c->written_donor) },
		{ "pages_written_backup_only", count_get(&c->written_backup_only) },
		{ "pages_write_failed", count_get(&c->write_failed) },
		{ "bytes_read_donor", count_get(&c->read_donor) * PAGE },
		{ "bytes_read_backup", count_get(&c->read_backup) * PAGE },
		{ "bytes_written_donor", count_get(&c->written_donor) * PAGE },
		{ "conflicts", count_get(&c->conflicts) },
		{ "large_reads_held", count_get(&c->large_held) },
		{ "overtakes", count_get(&c->overtakes) },
		{ "donor_losses", count_get(&c->donor_losses) },
		{ "donor_absences", count_get(&c->donor_absences) },
		{ "waiting_for_donors", count_get(&c->held) },
		{ "donor_errors", count_get(&c->donor_errors) },
		{ "late_replies", count_get(&c->late_replies) },
		{ "pages_bad_donor", count_get(&c->bad_donor) },
		{ "pages_bad_backup", count_get(&c->bad_backup) },
		{ "backup_errors", count_get(&c->backup_errors) },
		{ "backup_queue", backup_there(&s->engine.backup) ? backup_queued(&s->engine.backup) : 0 },
		{ "fuse_errors", count_get(&c->fuse_errors) },
		{ "slab_maps", count_get(&c->maps) },
		{ "slab_map_refusals", count_get(&c->map_refusals) },
		{ "slab_map_failures", count_get(&c->map_failures) },
		{ "slab_unmaps", count_get(&c->unmaps) },
		{ "slabs_mapped", slab_count(&s->engine.table, SLAB_MAPPED) },
		{ "slabs_asked_back", count_get(&c->evictions) },
		{ "slabs_kept", count_get(&c->eviction_refusals) },
		{ "slabs_revoked", count_get(&c->revocations) },
		{ "asks_ignored", count_get(&c->asks_ignored) },
		{ "slabs_to_disk", count_get(&c->to_disk) },
		{ "pages_same", count_get(&c->same_filled) },
		{ "pages_read_same", count_get(&c->read_same_filled) },
		{ "pages_discarded", count_get(&c->discarded) },
		{ "pages_repaired", count_get(&c->repaired) },
		{ "waiting", count_get(&c->received) - count_get(&c->completed) },
	};

	for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++)
		json_add_int(a, list[i].key, list[i].value);
	json_add_bool(a, "reads_may_wait", reads_may_wait(s));
	json_add_bool(a, "io_flusher", s->io_flusher);
	for (int i = 0; i < LATENCY_BUCKETS; i++)
		json_object_array_add(histogram,
				      json_object_new_int64((int64_t)count_get(&c->latency[i])));
	/* [i]: donor reads that took 2^i .. 2^(i+1)-1 ns. */
	json_object_object_add(a, "donor_read_ns_log2", histogram);
	json_object_object_add(a, "donors", donors_json(s));
}

static struct json_object *slab_json(const struct swapd *s, uint32_t index)
{
	const struct slab *slab = &s->engine.table.slabs[index];
	struct json_object *o = json_object_new_object(), *copies = json_object_new_array();

	json_add_int(o, "slab", index);
	json_add_text(o, "state", slab_state_text(slab_state(slab)));
	json_add_int(o, "live", page_map_live(s->engine.map, index));
	json_add_double(o, "activity", slab->activity.rate);
	for (int c = 0; c < SLAB_COPIES; c++) {
		const struct copy *copy = &slab->copy[c];
		struct json_object *k;

		if (copy->state == COPY_NONE)
			continue;
		k = json_object_new_object();
		json_add_text(k, "donor", s->donors.donor[copy->donor].address.text);
		json_add_text(k, "state", copy->state == COPY_AWAY ? "away" :
				     copy->state != COPY_MAPPED ? "mapping" :
				     mapping_leaving(&s->replicas, index, c) ? "leaving" :
				     copy->partial ? "filling" : "complete");
		json_add_int(k, "pages", page_map_count_stored(s->engine.map, index, c));
		json_object_array_add(copies, k);
	}
	json_object_object_add(o, "copies", copies);
	return o;
}

void device_slabs(const struct swapd *s, uint32_t from, struct json_object *a)
{
	struct json_object *list = json_object_new_array();
	uint32_t i;

	for (i = from; i < s->engine.table.count &&
		       json_object_array_length(list) < SLABS_AT_ONCE; i++) {
		const struct slab *slab = &s->engine.table.slabs[i];

		if (page_map_live(s->engine.map, i) || slab_state(slab) != SLAB_UNMAPPED)
			json_object_array_add(list, slab_json(s, i));
	}
	json_add_text(a, "name", s->options.name);
	json_add_int(a, "slab", s->options.slab);
	json_add_int(a, "total", s->engine.table.count);
	json_add_int(a, "wanted", (uint64_t)s->replicas.wanted);
	json_object_object_add(a, "slabs", list);
	if (i < s->engine.table.count)
		json_add_int(a, "next", i);
}
