// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>
#include <time.h>

#include "lib/base/text.h"
#include "top_view.h"

static const struct column cgroup_columns[] = {
	{ "misses_s", "MISS/s", COLUMN_RATE }, { "hits_s", "HIT/s", COLUMN_RATE },
	{ "late_s", "LATE/s", COLUMN_RATE }, { "wasted_s", "WASTE/s", COLUMN_RATE },
	{ "in_s", "IN/s", COLUMN_RATE }, { "out_s", "OUT/s", COLUMN_RATE },
	{ "coverage", "COVERAGE", COLUMN_PERCENT }, { "accuracy", "ACCURACY", COLUMN_PERCENT },
	{ "lateness", "LATENESS", COLUMN_PERCENT }, { "miss_p50_ns", "MISS p50", COLUMN_NS },
	{ "miss_p99_ns", "p99", COLUMN_NS }, { "some", "SOME", COLUMN_PERCENT },
	{ "full", "FULL", COLUMN_PERCENT }, { "memory", "MEMORY", COLUMN_BYTES },
	{ "policy", "POLICY", COLUMN_TEXT }, { "without", "WITHOUT", COLUMN_TEXT },
	{ "name", "CGROUP", COLUMN_TEXT },
	{ NULL },
};

static const struct column device_columns[] = {
	{ "name", "DEVICE", COLUMN_TEXT }, { "state", "STATE", COLUMN_TEXT },
	{ "used", "USED", COLUMN_BYTES }, { "size", "OF", COLUMN_BYTES },
	{ "io_s", "IO/s", COLUMN_RATE }, { "read_s", "READ/s", COLUMN_RATE },
	{ "written_s", "WRITTEN/s", COLUMN_RATE }, { "failed_s", "FAILED/s", COLUMN_RATE },
	{ "read_p99_ns", "READ p99", COLUMN_NS }, { "waiting", "WAITING", COLUMN_COUNT },
	{ "live", "LIVE", COLUMN_BYTES }, { "mapped", "MAPPED", COLUMN_BYTES },
	{ "missing", "LACKING", COLUMN_COUNT }, { "donors", "DONORS", COLUMN_TEXT },
	{ "queue", "BACKUP QUEUE", COLUMN_TEXT },
	{ NULL },
};

static const struct column donor_columns[] = {
	{ "address", "DONOR", COLUMN_TEXT }, { "device", "DEVICE", COLUMN_TEXT },
	{ "transport", "BY", COLUMN_TEXT }, { "state", "STATE", COLUMN_TEXT },
	{ "slabs", "SLABS", COLUMN_COUNT }, { "free", "FREE", COLUMN_BYTES },
	{ "total", "LENDS", COLUMN_BYTES }, { "read_ns", "READ", COLUMN_NS },
	{ "losses", "LOST", COLUMN_COUNT },
	{ NULL },
};

static void write_head(FILE *f, struct json_object *frame)
{
	static const struct column rate = { "pages_s", "", COLUMN_RATE }, calls = { "calls_s", "", COLUMN_RATE },
				   failed = { "failed_s", "", COLUMN_RATE };
	struct json_object *ebbd = json_member(frame, "ebbd");
	char clock[16], a[32], b[32], c[32];
	time_t now = json_int(frame, "wall_s", 0);
	struct tm tm;

	strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &tm));
	if (!ebbd) {
		fprintf(f, "%s  ebbd does not answer; no prefetching\n", clock);
		return;
	}
	fprintf(f, "%s  ebbd %s, up %lld s, %lld cgroups; prefetched %s pages/s in %s calls/s, %s failed/s\n",
		clock, json_text(ebbd, "version", "?"), (long long)json_int(ebbd, "uptime_s", 0),
		(long long)json_int(ebbd, "cgroups", 0), output_cell(ebbd, &rate, a, sizeof(a)),
		output_cell(ebbd, &calls, b, sizeof(b)), output_cell(ebbd, &failed, c, sizeof(c)));
}

/* Names of cgroups may contain control characters, which must not reach the terminal. */
static void make_printable(char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] >= 0x7f ||
		    ((unsigned char)text[i] < ' ' && text[i] != '\n'))
			text[i] = '?';
}

static void write_table(FILE *f, struct json_object *rows, const struct column *columns,
			const char *empty, enum top_marks marks)
{
	char *text = NULL;
	size_t len = 0;
	FILE *memory = open_memstream(&text, &len);

	if (!memory)
		return;
	output_table_to(memory, rows, columns, empty);
	if (fclose(memory) == 0) {
		make_printable(text, len);
		fprintf(f, "\n%s%s", marks == TOP_MARKED && rows && json_object_array_length(rows) ?
				     (const char[]){ TOP_HEAD, '\0' } : "", text);
	}
	free(text);
}

/* What a table without cgroups means; the frame's "ebbd" counts those that the filter hides. */
static const char *no_cgroups(struct json_object *frame)
{
	struct json_object *ebbd = json_member(frame, "ebbd");

	if (!ebbd)
		return "cgroups unknown: ebbd does not answer";
	return json_int(ebbd, "cgroups", 0) ?
		       "no cgroup with a policy matches the filter" :
		       "no cgroup has a policy; see \"ebbctl policy attach\"";
}

void top_write(FILE *f, struct json_object *frame, enum top_parts parts, enum top_marks marks)
{
	write_head(f, frame);
	if (parts & TOP_CGROUPS)
		write_table(f, json_member(frame, "cgroups"), cgroup_columns,
			    no_cgroups(frame), marks);
	if (parts & TOP_DEVICES)
		write_table(f, json_member(frame, "devices"), device_columns,
			    "no devices; see \"ebbctl device create\"", marks);
	if (parts & TOP_DONORS)
		write_table(f, json_member(frame, "donors"), donor_columns, "no donors", marks);
}
