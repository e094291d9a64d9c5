// SPDX-License-Identifier: GPL-2.0-or-later
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "exposition.h"
#include "lib/base/utf8.h"
#include "lib/control/control.h"

/* Log2 buckets with a le: 1 us to 2 s.  The first includes shorter times. */
#define BUCKET_FIRST 10
#define BUCKET_LAST 30

#define NS 1e-9
#define US 1e-6

#define METRIC(kind, rows, name, path, text, ...) \
	{ \
		name, kind, rows, path, .help = text, __VA_ARGS__ \
	}
#define COUNTER(...) METRIC(METRIC_COUNTER, __VA_ARGS__)
#define GAUGE(...) METRIC(METRIC_GAUGE, __VA_ARGS__)
#define IS(...) METRIC(METRIC_IS, __VA_ARGS__)
#define STATES(...) METRIC(METRIC_STATES, __VA_ARGS__)
#define HISTOGRAM(...) METRIC(METRIC_HISTOGRAM, __VA_ARGS__)
#define INFO(rows, name, text, ...) \
	METRIC(METRIC_INFO, rows, name, NULL, text, .labels = { __VA_ARGS__ })

#define EXECUTOR(name, text) COUNTER(ROWS_DAEMON, "ebb_prefetch_" name, "executor." name, text)
#define CGROUP(name, text) COUNTER(ROWS_CGROUP, "ebb_cgroup_" name, name, text)
#define PAGES(name, text) COUNTER(ROWS_CGROUP, "ebb_cgroup_" name "_pages", name, text)
#define OFFLOAD(name, path, text) GAUGE(ROWS_CGROUP, "ebb_cgroup_offload_" name, "offload." path, text)
#define SERVER(name, path, text) GAUGE(ROWS_DEVICE, "ebb_device_" name, "server." path, text)
#define DEVICE(name, text) COUNTER(ROWS_DEVICE, "ebb_device_" name, "stats." name, text)
#define DONOR(name, path, text) GAUGE(ROWS_DONOR, "ebb_donor_" name, path, text)
#define LENDER(name, path, text) GAUGE(ROWS_LENDER, "ebb_lender_" name, path, text)
#define POOL(name, path, text) GAUGE(ROWS_POOL, "ebb_lender_far_pool_" name, path, text)
#define LENT(name, path, text) COUNTER(ROWS_LENDER, "ebb_lender_" name, path, text)

const struct metric metrics[] = {
	INFO(ROWS_DAEMON, "ebb_build_info", "The running ebbd.", "version", "abi"),
	GAUGE(ROWS_DAEMON, "ebb_uptime_seconds", "uptime_s", "Since ebbd started."),
	GAUGE(ROWS_DAEMON, "ebb_donors_known", "donors.known",
	      "Donors in the list of ebbd, from its configuration or etcd."),
	GAUGE(ROWS_DAEMON, "ebb_donors_missing", "donors.missing", "Those of them that etcd lacks."),
	IS(ROWS_DAEMON, "ebb_donors_frozen", "donors.frozen",
	   "Whether the list is frozen: etcd lacks too many at once."),
	EXECUTOR("requests", "Requests of policies that ebbd took."),
	EXECUTOR("stale", "Requests dropped because of their age or an exited process."),
	EXECUTOR("unknown", "Requests dropped because no recent fault told the process's memory cgroup."),
	EXECUTOR("full", "Requested pages that a limit, full swap or a full queue excluded."),
	EXECUTOR("throttled", "Requests skipped because few prefetched pages were used."),
	EXECUTOR("calls", "process_madvise calls."),
	EXECUTOR("pages", "Pages requested in these calls."),
	EXECUTOR("shared", "Those of them in shared memory."),
	EXECUTOR("not_memory", "Requested pages outside the memory mappings that faulted lately."),
	EXECUTOR("not_swapped", "Requested pages that were not in swap."),
	EXECUTOR("held_back", "Requested pages on a device whose reads may wait for a donor."),
	EXECUTOR("zswapped", "Requested pages that zswap held."),
	EXECUTOR("repeated", "Requested pages that were already outstanding."),
	EXECUTOR("failed", "Pages that the kernel rejected or ebbd could not enter into the prefetched set."),
	EXECUTOR("cold_pages", "Used pages deactivated."),
	COUNTER(ROWS_DAEMON, "ebb_prefetch_paged_out_pages", "executor.paged_out", "Used pages paged out by drop-behind."),
	COUNTER(ROWS_DAEMON, "ebb_prefetch_collapsed_pages", "executor.collapsed",
		"Used pages collapsed into huge pages before they are paged out."),
	COUNTER(ROWS_DAEMON, "ebb_prefetch_collapse_seconds", "executor.collapse_ns",
		"Time spent in MADV_COLLAPSE.", .scale = NS),
	COUNTER(ROWS_DAEMON, "ebb_prefetch_call_seconds", "executor.call_ns",
		"Time spent in process_madvise.", .scale = NS),
	EXECUTOR("waits", "Times the executor waited for the devices."),
	EXECUTOR("paced", "Prefetched pages that the limit of their device delayed."),

	INFO(ROWS_CGROUP, "ebb_cgroup_info", "The policy of a cgroup.", "policy"),
	CGROUP("misses", "Faults that waited for a read."),
	CGROUP("hits", "Faults on a prefetched page that did not wait."),
	CGROUP("late", "Faults on a prefetched page that waited for its read."),
	CGROUP("wasted", "Pages prefetched and dropped unread; an estimate."),
	CGROUP("prefetched", "Prefetched pages."),
	GAUGE(ROWS_CGROUP, "ebb_cgroup_outstanding_pages", "outstanding",
	      "Prefetched pages not accessed yet."),
	CGROUP("file_majors", "Major faults of file mappings."),
	CGROUP("zero_majors", "Major faults on memory that read nothing."),
	PAGES("swapped_in", "Pages read from ebb's devices."),
	PAGES("swapped_out", "Pages written to ebb's devices."),
	PAGES("written", "Pages of memory that reclaim sent to any swap."),
	PAGES("shared", "Those of them that several processes may map."),
	PAGES("clean", "Clean pages evicted; absent: not observed."),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_zswap_hit_pages", "zswap.hits",
		"Pages swapped in from zswap; absent: it was not in use."),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_zswap_miss_pages", "zswap.misses",
		"Pages read from ebb's devices while zswap was in use."),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_zswap_stored_pages", "zswap.stored",
		"Pages swapped out without a write to a device."),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_zswap_direct_pages", "zswap.direct",
		"Pages that zswap refused, written to ebb's devices."),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_zswap_written_back_pages", "zswap.written_back",
		"Pages that zswap's shrinker wrote to ebb's devices."),
	CGROUP("epochs", "Epochs that have ended."),
	CGROUP("requests", "Prefetch requests of the policy."),
	CGROUP("request_pages", "Pages in them."),
	CGROUP("dropped", "Requests lost because the ring was full."),
	CGROUP("gc_misses", "Misses of a collector's threads."),
	CGROUP("gc_hits", "Hits of a collector's threads, late ones included."),
	CGROUP("cut", "Requested pages that a limit of outstanding pages cut."),
	CGROUP("paced", "Prefetched pages that the limit of their device delayed."),
	CGROUP("by_chance", "Hits on pages prefetched so long ago that they may be chance."),
	HISTOGRAM(ROWS_CGROUP, "ebb_cgroup_miss_seconds", "miss_ns_log2",
		  "Latency of misses.", .sum = "miss_ns"),
	HISTOGRAM(ROWS_CGROUP, "ebb_cgroup_hit_seconds", "hit_ns_log2",
		  "Latency of hits and late prefetches."),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_late_seconds", "late_ns", "Time in late prefetches.", .scale = NS),
	GAUGE(ROWS_CGROUP, "ebb_cgroup_memory_bytes", "memory", "Memory charged to the cgroup."),
	GAUGE(ROWS_CGROUP, "ebb_cgroup_memory_limit_bytes", "limit",
	      "Smallest limit of the cgroup and its ancestors; absent: none."),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_pressure_some_seconds", "pressure.some_us",
		"Time in which some task waited for memory.", .scale = US),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_pressure_full_seconds", "pressure.full_us",
		"Time in which all tasks waited for memory.", .scale = US),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_placement_together_seconds", "placement.together_ns",
		"Time in which the programs shared a CPU with the prefetch executor.", .scale = NS),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_collapsed_windows", "collapse.windows",
		"Ranges of 2 MiB collapsed into huge pages behind streams."),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_collapse_switched_off", "collapse.switched_off",
		"Times that collapsing into huge pages switched itself off."),
	COUNTER(ROWS_SOURCE, "ebb_cgroup_source_pages", "pages",
		"Prefetched pages by the source of their requests."),
	COUNTER(ROWS_SOURCE, "ebb_cgroup_source_used_pages", "used",
		"Those of them that were accessed; absent: benefit=off."),
	COUNTER(ROWS_SOURCE, "ebb_cgroup_source_wasted_pages", "wasted",
		"Those of them dropped unread; absent: benefit=off."),
	IS(ROWS_SOURCE, "ebb_cgroup_source_backs_off", "state",
	   "Whether the source is paused because programs are faster without it.",
	   .is = "backs off"),
	GAUGE(ROWS_SOURCE, "ebb_cgroup_source_gain_ratio", "gain",
	      "Progress of programs by the source, 0.05 = 5 % more; absent: no trial."),
	OFFLOAD("target_ratio", "target", "Allowed slowdown by offloading."),
	OFFLOAD("slowdown_ratio", "slowdown", "Measured slowdown by offloading."),
	OFFLOAD("saved_bytes", "saved", "Memory that offloading has freed."),
	COUNTER(ROWS_CGROUP, "ebb_cgroup_offload_reclaimed_pages", "offload.reclaimed_pages",
		"Pages that offloading has paged out."),

	IS(ROWS_DEVICE, "ebb_device_swap_on", "on", "Whether the device is on as swap."),
	IS(ROWS_DEVICE, "ebb_device_up", "server", "Whether ebb-swapd answers."),
	GAUGE(ROWS_DEVICE, "ebb_device_size_bytes", "size", "Size of the device."),
	GAUGE(ROWS_DEVICE, "ebb_device_used_bytes", "used", "Used space of the device."),
	SERVER("live_bytes", "live", "Pages stored at donors."),
	SERVER("mapped_bytes", "mapped", "Slabs at donors, all replicas."),
	SERVER("reservation_bytes", "reservation.wanted", "Capacity to reserve at donors."),
	SERVER("reservation_missing_bytes", "reservation.missing",
	       "Part of it that no donor has promised."),
	STATES(ROWS_DEVICE, "ebb_device_slabs", "server.slabs", "Slabs by state."),
	STATES(ROWS_DEVICE, "ebb_device_copies", "server.copies",
	       "Replicas of slabs; wanted: per slab."),
	IS(ROWS_DEVICE, "ebb_device_aborted", "server.aborted",
	   "Whether the watchdog has aborted the device."),
	IS(ROWS_DEVICE, "ebb_device_sealed", "server.sealed", "Whether pages are encrypted."),
	IS(ROWS_DEVICE, "ebb_device_backup_failing", "server.backup.failing",
	   "Whether the backup failed to write a page."),
	SERVER("backup_queue", "backup.queue", "Transfers queued for the backup."),
	SERVER("backup_backlog", "backup.backlog",
	       "Writes answered before the backup stored them."),
	SERVER("backup_backlog_limit", "backup.backlog_most", "Backlog above which writes wait for the backup."),
	SERVER("repair_bytes_per_second", "repair.rate", "Current rate of resync."),
	GAUGE(ROWS_DEVICE, "ebb_device_waiting_requests", "stats.waiting",
	      "Requests in flight."),
	DEVICE("requests", "Requests of the kernel."),
	DEVICE("read_requests", "Reads among them."),
	DEVICE("write_requests", "Writes among them."),
	DEVICE("pages_read_donor", "Pages read from donors."),
	DEVICE("pages_read_backup", "Pages read from the backup."),
	DEVICE("pages_read_zero", "Pages read that were never written."),
	DEVICE("pages_read_same", "Same-filled pages read."),
	DEVICE("pages_read_failed", "Pages that could not be read: their programs got SIGBUS."),
	DEVICE("pages_written_donor", "Pages written to a donor."),
	DEVICE("pages_written_backup_only", "Pages written to the backup only."),
	DEVICE("pages_write_failed", "Pages that could not be written."),
	DEVICE("pages_same", "Same-filled pages written, not sent."),
	DEVICE("pages_discarded", "Pages discarded by the kernel."),
	DEVICE("pages_repaired", "Pages copied to replicas that lacked them."),
	DEVICE("pages_bad_donor", "Wrong pages returned by donors."),
	DEVICE("pages_bad_backup", "Wrong pages returned by the backup."),
	DEVICE("conflicts", "Requests that waited for an overlapping one."),
	DEVICE("large_reads_held", "Reads of more than 8 pages that were queued so that smaller ones pass."),
	DEVICE("overtakes", "Smaller reads that passed queued larger ones."),
	DEVICE("donor_losses", "Times a donor was lost."),
	DEVICE("donor_absences", "Times a donor was away."),
	DEVICE("donor_errors", "Errors and refusals of donors."),
	DEVICE("late_replies", "Replies after their deadline."),
	DEVICE("backup_errors", "Failed requests to the backup."),
	DEVICE("fuse_errors", "Replies rejected by the kernel."),
	DEVICE("slab_maps", "Slabs mapped at a donor."),
	DEVICE("slab_map_refusals", "Slabs that a donor refused."),
	DEVICE("slab_map_failures", "Slabs that could not be mapped."),
	DEVICE("slab_unmaps", "Slabs released."),
	DEVICE("slabs_asked_back", "Slabs recalled by donors."),
	DEVICE("slabs_kept", "Recalled slabs that were not released."),
	DEVICE("slabs_revoked", "Replicas that donors have revoked."),
	DEVICE("slabs_to_disk", "Recalled slabs that moved to the backup only."),
	HISTOGRAM(ROWS_DEVICE, "ebb_device_donor_read_seconds", "stats.donor_read_ns_log2",
		  "Latency of reads from donors."),

	IS(ROWS_DONOR, "ebb_donor_up", "state", "Whether the donor is connected.", .is = "up"),
	IS(ROWS_DONOR, "ebb_donor_quarantined", "quarantined",
	   "Whether the donor is not trusted and not used."),
	DONOR("total_bytes", "total", "Memory that the donor lends, to all borrowers."),
	DONOR("free_bytes", "free", "Free part of it."),
	DONOR("memory_bytes", "memory", "Memory of its machine."),
	DONOR("memory_used_bytes", "used", "Used part of it."),
	DONOR("slabs", "slabs", "Slabs of this device there."),
	DONOR("reserved_bytes", "reserved", "Capacity promised to this device, lent slabs included."),
	GAUGE(ROWS_DONOR, "ebb_donor_read_seconds", "read_ns", "Latency of a read, smoothed.", .scale = NS),
	COUNTER(ROWS_DONOR, "ebb_donor_connects", "connects", "Connections established."),
	COUNTER(ROWS_DONOR, "ebb_donor_losses", "losses", "Times the donor was lost."),
	COUNTER(ROWS_DONOR, "ebb_donor_absences", "absences", "Times the donor was away."),
	COUNTER(ROWS_DONOR, "ebb_donor_revoked", "revoked", "Replicas that the donor has revoked."),
	COUNTER(ROWS_DONOR, "ebb_donor_bad_pages", "bad_pages", "Wrong pages returned."),
	COUNTER(ROWS_DONOR, "ebb_donor_altered", "altered",
		"Connections ended by data altered between borrower and donor."),

	LENDER("total_bytes", "total", "Memory that this machine lends."),
	LENDER("free_bytes", "free", "Free part of it."),
	LENDER("lent_bytes", "lent", "Lent part of it."),
	LENDER("promised_bytes", "promised", "Reserved by borrowers and not lent yet."),
	LENDER("lendable_bytes", "lendable", "Neither lent nor promised."),
	LENDER("memory_bytes", "machine.memory", "Memory of this machine."),
	LENDER("available_bytes", "machine.available", "Available part of it."),
	IS(ROWS_LENDER, "ebb_lender_draining", "draining", "Whether the donor drains."),
	STATES(ROWS_LENDER, "ebb_lender_slabs", "slabs", "Slabs by state."),
	LENT("slabs_asked", "evictions.asked", "Slabs recalled."),
	LENT("slabs_returned", "evictions.returned", "Slabs released by borrowers."),
	LENT("slabs_refused", "evictions.refused", "Slabs that borrowers did not release."),
	LENT("slabs_revoked", "evictions.revoked", "Slabs revoked."),
	LENT("slabs_revoked_backed", "evictions.revoked_backed",
	     "Revoked slabs whose pages were also on their borrower's disk."),
	COUNTER(ROWS_THROTTLED, "ebb_lender_throttled_seconds", "ms",
		"Time in which requests of a key, or address, waited for --rate.", .scale = 1e-3),
	LENDER("far_limit_bytes", "far.limit", "Limit of far memory; absent: none is lent."),
	LENDER("far_used_bytes", "far.used", "Arenas of pools."),
	LENT("far_fences", "far.fences", "Members that have left or died and can change nothing any more."),
	LENT("far_recovered", "far.recovered", "Fenced members with all extents freed."),
	LENT("far_freed_words", "far.freed", "Words freed of their extents."),
	LENT("far_requests", "far.requests", "Requests for far memory; mapped memory needs none."),
	LENDER("far_jobs_limit_bytes", "far.jobs.limit", "Memory for tables of jobs; absent: none run."),
	LENDER("far_jobs_used_bytes", "far.jobs.used", "Of this in use."),
	LENDER("far_jobs_heaps", "far.jobs.heaps", "Heaps whose regions are traced here."),
	LENDER("far_jobs_regions", "far.jobs.regions", "Regions of these heaps."),
	LENT("far_jobs_cycles", "far.jobs.cycles", "Far cycles that have begun."),
	LENT("far_jobs_abandoned", "far.jobs.abandoned", "Far cycles that were abandoned."),
	LENT("far_jobs_marked_objects", "far.jobs.marked", "Objects marked."),
	LENT("far_jobs_references", "far.jobs.references", "References traced."),
	LENT("far_jobs_evacuated_bytes", "far.jobs.evacuated", "Bytes copied to evacuate regions."),
	COUNTER(ROWS_LENDER, "ebb_lender_far_jobs_busy_seconds", "far.jobs.busy_us",
		"Processor time of jobs.", .scale = 1e-6),
	LENT("far_jobs_postponed", "far.jobs.postponed",
	     "Requests that found the share of the processor used up."),
	LENT("far_jobs_requests", "far.jobs.requests", "Requests for jobs."),
	POOL("bytes", "bytes", "Arenas of the pool."),
	POOL("extents", "extents", "Extents that members have."),
	POOL("extent_bytes", "extent_bytes", "Size of these extents."),
	POOL("members", "live", "Members that are connected."),
	POOL("away_members", "away", "Members in their grace period."),
	POOL("dead_members", "dead", "Dead members that still have extents."),
	POOL("recovering_members", "recovering",
	     "Those of them that are fenced: their extents are being freed."),
	{ NULL },
};

struct writer {
	FILE *f;
	enum exposition_format format;
	const struct metric *metric;
	bool headed;           /* head of the metric written */
	const char *suffix;    /* of the sample: "_bucket" */
	struct json_object *row;
};

const char *exposition_type(enum exposition_format format)
{
	return format == EXPOSITION_OPENMETRICS ?
	       "application/openmetrics-text; version=1.0.0; charset=utf-8" :
	       "text/plain; version=0.0.4; charset=utf-8";
}

static struct json_object *find(struct json_object *row, const char *path)
{
	char word[48];

	while (row && path) {
		size_t len = strcspn(path, ".");

		snprintf(word, sizeof(word), "%.*s", (int)len, path);
		if (!json_object_is_type(row, json_type_object))
			return NULL;
		row = json_member(row, word);
		path = path[len] ? path + len + 1 : NULL;
	}
	return row;
}

static void write_head(struct writer *w)
{
	const struct metric *m = w->metric;
	bool counter = m->type == METRIC_COUNTER;
	const char *suffix = counter && w->format == EXPOSITION_PROMETHEUS ? "_total" : "";

	if (w->headed)
		return;
	w->headed = true;
	fprintf(w->f, "# HELP %s%s %s\n# TYPE %s%s %s\n", m->name, suffix, m->help, m->name, suffix,
		counter ? "counter" : m->type == METRIC_HISTOGRAM ? "histogram" : "gauge");
}

/* Names of cgroups may be any bytes; replace invalid text. */
static void write_text(FILE *f, const char *text)
{
	const unsigned char *c = (const unsigned char *)text;

	while (*c) {
		int len = utf8_length(c);

		if (!len || utf8_control(c))
			fputc('?', f);
		else if (*c == '"' || *c == '\\')
			fprintf(f, "\\%c", *c);
		else
			fwrite(c, 1, (size_t)len, f);
		c += len ?: 1;
	}
}

static void write_label(struct writer *w, const char *name, const char *value, bool *any)
{
	fprintf(w->f, "%s%s=\"", *any ? "," : "{", name);
	write_text(w->f, value);
	fputc('"', w->f);
	*any = true;
}

/* Writes name and labels of a sample of the row, and @extra="@value" unless NULL. */
static void write_name(struct writer *w, const char *extra, const char *value)
{
	const struct metric *m = w->metric;
	bool any = false;

	write_head(w);
	fprintf(w->f, "%s%s", m->name, w->suffix);
	if (m->rows == ROWS_CGROUP)
		write_label(w, "cgroup", json_text(w->row, "name", "?"), &any);
	if (m->rows == ROWS_SOURCE) {
		write_label(w, "cgroup", json_text(w->row, "name", "?"), &any);
		write_label(w, "source", json_text(w->row, "source", "?"), &any);
	}
	if (m->rows == ROWS_DEVICE)
		write_label(w, "device", json_text(w->row, "name", "?"), &any);
	if (m->rows == ROWS_DONOR) {
		write_label(w, "device", json_text(w->row, "device", "?"), &any);
		write_label(w, "donor", json_text(w->row, "address", "?"), &any);
	}
	if (m->rows == ROWS_THROTTLED)
		write_label(w, "borrower", json_text(w->row, "name", "?"), &any);
	if (m->rows == ROWS_POOL) {
		write_label(w, "pool", json_text(w->row, "name", "?"), &any);
		write_label(w, "key", json_text(w->row, "key", ""), &any);
	}
	for (int i = 0; m->type == METRIC_INFO && i < 4 && m->labels[i]; i++) {
		struct json_object *v = json_member(w->row, m->labels[i]);

		write_label(w, m->labels[i], v ? json_object_get_string(v) : "", &any);
	}
	if (extra)
		write_label(w, extra, value, &any);
	fputs(any ? "} " : " ", w->f);
}

static void write_value(struct writer *w, struct json_object *v)
{
	double scale = w->metric->scale;

	if (!scale && json_object_is_type(v, json_type_int))
		fprintf(w->f, "%" PRId64 "\n", json_object_get_int64(v));
	else
		fprintf(w->f, "%.15g\n", json_object_get_double(v) * (scale ?: 1));
}

static void write_histogram(struct writer *w, struct json_object *buckets)
{
	struct json_object *sum = w->metric->sum ? find(w->row, w->metric->sum) : NULL;
	size_t n = json_object_array_length(buckets);
	uint64_t seen = 0;
	char le[32];

	w->suffix = "_bucket";
	for (size_t i = 0; i < n; i++) {
		seen += (uint64_t)json_object_get_int64(json_object_array_get_idx(buckets, i));
		/* The last bucket includes longer times. */
		if (i + 1 < BUCKET_FIRST || i + 1 > BUCKET_LAST || i + 1 == n)
			continue;
		snprintf(le, sizeof(le), "%.9g", (double)(2ull << i) / 1e9);
		write_name(w, "le", le);
		fprintf(w->f, "%" PRIu64 "\n", seen);
	}
	write_name(w, "le", "+Inf");
	fprintf(w->f, "%" PRIu64 "\n", seen);
	/* OpenMetrics requires both or none. */
	if (!sum)
		return;
	w->suffix = "_sum";
	write_name(w, NULL, NULL);
	fprintf(w->f, "%.15g\n", json_object_get_double(sum) / 1e9);
	w->suffix = "_count";
	write_name(w, NULL, NULL);
	fprintf(w->f, "%" PRIu64 "\n", seen);
}

static void write_each(struct writer *w, struct json_object *object, const char *label)
{
	json_object_object_foreach(object, key, value) {
		write_name(w, label, key);
		write_value(w, value);
	}
}

static bool is_so(const struct metric *m, struct json_object *v)
{
	if (m->is)
		return v && !strcmp(json_object_get_string(v), m->is);
	return json_object_is_type(v, json_type_boolean) ? json_object_get_boolean(v) : v != NULL;
}

static void write_row(struct writer *w)
{
	const struct metric *m = w->metric;
	struct json_object *v = m->path ? find(w->row, m->path) : NULL;
	/* An absent member of the row is false; a member of an absent object is unknown. */
	bool told = v || (m->type == METRIC_IS && !strchr(m->path, '.'));

	w->suffix = m->type == METRIC_COUNTER ? "_total" : "";
	if (m->type == METRIC_INFO) {
		write_name(w, NULL, NULL);
		fputs("1\n", w->f);
	} else if (!told) {
		return;
	} else if (m->type == METRIC_HISTOGRAM) {
		if (json_object_is_type(v, json_type_array))
			write_histogram(w, v);
	} else if (m->type == METRIC_STATES) {
		if (json_object_is_type(v, json_type_object))
			write_each(w, v, "state");
	} else if (m->type == METRIC_COUNTER && json_object_is_type(v, json_type_object)) {
		write_each(w, v, "kind");
	} else {
		write_name(w, NULL, NULL);
		if (m->type == METRIC_IS)
			fprintf(w->f, "%d\n", is_so(m, v));
		else
			write_value(w, v);
	}
}

static void write_metric(struct writer *w, struct json_object *snapshot)
{
	static const char *const members[] = {
		[ROWS_DAEMON] = "ebbd", [ROWS_CGROUP] = "cgroups", [ROWS_SOURCE] = "sources",
		[ROWS_DEVICE] = "devices",
		[ROWS_DONOR] = "donors", [ROWS_LENDER] = "lender",
		[ROWS_THROTTLED] = "lender.throttled", [ROWS_POOL] = "lender.far.pools",
	};
	struct json_object *rows = find(snapshot, members[w->metric->rows]);

	w->headed = false;
	if (json_object_is_type(rows, json_type_array)) {
		for (size_t i = 0; i < json_object_array_length(rows); i++) {
			w->row = json_object_array_get_idx(rows, i);
			write_row(w);
		}
	} else if (rows) {
		w->row = rows;
		write_row(w);
	}
}

void exposition_write(FILE *f, struct json_object *snapshot, enum exposition_format format)
{
	struct writer w = { .f = f, .format = format };

	fprintf(f, "# HELP ebb_up Whether ebbd answers.\n# TYPE ebb_up gauge\nebb_up %d\n",
		json_member(snapshot, "ebbd") != NULL);
	for (w.metric = metrics; w.metric->name; w.metric++)
		write_metric(&w, snapshot);
	if (format == EXPOSITION_OPENMETRICS)
		fprintf(f, "# EOF\n");
}
