// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "codec.h"
#include "lib/base/cleanup.h"

/* Limits of kept names and samples. */
#define THREADS_MAX 65536
#define SAMPLES_MAX (1 << 20)

/* The last name of a thread. */
struct name {
	struct trace_thread thread;
	uint32_t next;                  /* of its chain: index + 1; 0 = none */
};

struct trace_reader {
	FILE *file;
	char *path;
	enum trace_demand demand;
	struct trace_info info;
	struct name *name;
	uint32_t names;
	uint32_t chain[THREADS_MAX];    /* by hash: index + 1 in @name; 0 = none */
	struct trace_sample *sample;
	size_t samples;
	uint64_t at;                    /* offset of the next block in the file */
	uint64_t seen[TRACE_KINDS];
	uint32_t left;                  /* remaining records of this block */
	struct trace_span span;
	struct trace_coder coder;
	uint8_t head[TRACE_BLOCK_HEAD];
	uint8_t payload[TRACE_BLOCK_MAX];
};

#define refuse(e, ...) fail_exit(e, EXIT_USAGE, EINVAL, __VA_ARGS__)

static int damaged(const struct trace_reader *r, uint64_t at, struct error *e)
{
	return refuse(e, "%s: damaged from byte %" PRIu64 "; copy or record it again, or use --partial for the part before",
		      r->path, at);
}

static int check_header(struct trace_reader *r, const uint8_t *h, size_t bytes, struct error *e)
{
	size_t magic = strlen(TRACE_MAGIC);

	if (!bytes || memcmp(h, TRACE_MAGIC, bytes < magic ? bytes : magic))
		return refuse(e, "%s: not a trace%s; create one with \"ebbctl record\"", r->path,
			      bytes ? "" : ": empty file");
	if (bytes < TRACE_HEADER)
		return refuse(e, "%s: truncated in its header (%zu bytes); copy or record it again",
			      r->path, bytes);
	if (trace_get_version(h) != TRACE_VERSION && trace_get_version(h) < 256)
		return refuse(e, "%s: format version %" PRIu32 ", this ebb reads %d; use the ebb that wrote it",
			      r->path, trace_get_version(h), TRACE_VERSION);
	if (trace_get_begin(h, &r->info))
		return refuse(e, "%s: damaged header; copy or record it again",
			      r->path);
	if (trace_get_end(h, &r->info)) {
		if (r->demand == TRACE_WHOLE)
			return damaged(r, TRACE_HEADER_BEGIN, e);
		r->info.finished = false;
	}
	return 0;
}

static int check_size(struct trace_reader *r, struct error *e)
{
	struct stat st;

	if (fstat(fileno(r->file), &st) < 0)
		return fail(e, errno, "%s: %s", r->path, strerror(errno));
	if (r->demand == TRACE_PARTIAL)
		return 0;
	if (!r->info.finished)
		return refuse(e, "%s: recording was not ended: it still runs, or ebbd was killed; end it, or use --partial",
			      r->path);
	if ((uint64_t)st.st_size < r->info.bytes)
		return refuse(e, "%s: truncated: %" PRIu64 " of %" PRIu64 " bytes exist; copy it again, or use --partial",
			      r->path, (uint64_t)st.st_size, r->info.bytes);
	if ((uint64_t)st.st_size > r->info.bytes)
		return refuse(e, "%s: damaged: %" PRIu64 " bytes follow its end; copy it again, or use --partial",
			      r->path, (uint64_t)st.st_size - r->info.bytes);
	return 0;
}

int trace_open(struct trace_reader **out, const char *path, enum trace_demand demand,
	       struct error *e)
{
	_cleanup_trace_ struct trace_reader *r = calloc(1, sizeof(*r));
	uint8_t header[TRACE_HEADER] = { 0 };
	size_t bytes;
	int ret;

	if (!r)
		return fail(e, ENOMEM, "%s: out of memory", path);
	r->demand = demand;
	r->path = strdup(path);
	r->file = fopen(path, "re");
	if (!r->file || !r->path)
		return fail_exit(e, EXIT_USAGE, errno, "%s: cannot read: %s; give a file of \"ebbctl record\"",
				 path, strerror(errno));
	bytes = fread(header, 1, sizeof(header), r->file);
	if (ferror(r->file))
		return fail_exit(e, EXIT_USAGE, errno, "%s: cannot read: %s; give a file of \"ebbctl record\"",
				 path, strerror(errno));
	ret = check_header(r, header, bytes, e);
	if (!ret)
		ret = check_size(r, e);
	if (ret)
		return ret;
	r->at = TRACE_HEADER;
	*out = TAKE_PTR(r);
	return 0;
}

void trace_close(struct trace_reader **pr)
{
	struct trace_reader *r = *pr;

	if (!r)
		return;
	if (r->file)
		fclose(r->file);
	free(r->name);
	free(r->sample);
	free(r->path);
	free(r);
	*pr = NULL;
}

const struct trace_info *trace_info(const struct trace_reader *r)
{
	return &r->info;
}

static uint32_t chain_of(uint32_t tgid, uint32_t tid)
{
	return (uint32_t)((tgid * 0x9e3779b97f4a7c15ULL ^ tid) * 0xff51afd7ed558ccdULL >> 32) %
	       THREADS_MAX;
}

static struct name *find_name(const struct trace_reader *r, uint32_t tgid, uint32_t tid)
{
	for (uint32_t i = r->chain[chain_of(tgid, tid)]; i; i = r->name[i - 1].next)
		if (r->name[i - 1].thread.tid == tid && r->name[i - 1].thread.tgid == tgid)
			return &r->name[i - 1];
	return NULL;
}

/* Keeps the name of a thread, unless there are too many. */
static int put_name(struct trace_reader *r, uint32_t tgid, uint32_t tid, const uint8_t *comm)
{
	struct name *n = find_name(r, tgid, tid);
	uint32_t *chain = &r->chain[chain_of(tgid, tid)];

	if (!n && r->names == THREADS_MAX)
		return 0;
	if (!n && !(r->names & (r->names - 1))) {
		n = realloc(r->name, (r->names ? 2 * r->names : 1) * sizeof(*n));
		if (!n)
			return -ENOMEM;
		r->name = n;
		n = NULL;
	}
	if (!n) {
		n = &r->name[r->names++];
		*n = (struct name){ .thread = { .tgid = tgid, .tid = tid }, .next = *chain };
		*chain = r->names;
	}
	memcpy(n->thread.comm, comm, sizeof(n->thread.comm));
	n->thread.comm[sizeof(n->thread.comm) - 1] = '\0';
	return 0;
}

static int read_names(struct trace_reader *r, uint32_t items)
{
	const size_t size = sizeof(((struct trace_thread *)0)->comm);
	uint64_t tgid, tid;

	while (items--) {
		if (trace_get_varint(&r->span, &tgid) || trace_get_varint(&r->span, &tid) ||
		    r->span.end - r->span.at < (ptrdiff_t)size)
			return -EINVAL;
		if (put_name(r, (uint32_t)tgid, (uint32_t)tid, r->span.at))
			return -ENOMEM;
		r->span.at += size;
	}
	return r->span.at == r->span.end ? 0 : -EINVAL;
}

static int read_samples(struct trace_reader *r, uint32_t items)
{
	struct trace_sample sample, *grown;

	while (items--) {
		if (trace_decode_sample(&r->span, &sample))
			return -EINVAL;
		if (r->samples == SAMPLES_MAX)
			continue;
		if (!(r->samples & (r->samples - 1))) {
			grown = realloc(r->sample,
					(r->samples ? 2 * r->samples : 1) * sizeof(*grown));
			if (!grown)
				return -ENOMEM;
			r->sample = grown;
		}
		r->sample[r->samples++] = sample;
	}
	return r->span.at == r->span.end ? 0 : -EINVAL;
}

/* Reads the next block with records: 1, 0 at the end of the file, or -errno. */
static int next_block(struct trace_reader *r, struct error *e)
{
	struct trace_block b;
	uint64_t at = r->at;
	size_t n;
	int ret;

	n = fread(r->head, 1, sizeof(r->head), r->file);
	if (!n && !ferror(r->file))
		return 0;
	if (n < sizeof(r->head))
		goto cut;
	trace_get_block(r->head, &b);
	if (b.bytes > TRACE_BLOCK_MAX)
		return damaged(r, at, e);
	if (fread(r->payload, 1, b.bytes, r->file) < b.bytes)
		goto cut;
	if (!trace_block_intact(r->head, &b, r->payload))
		return damaged(r, at, e);
	r->at += TRACE_BLOCK_HEAD + b.bytes;
	r->span = (struct trace_span){ r->payload, r->payload + b.bytes };
	memset(&r->coder, 0, offsetof(struct trace_coder, thread));
	switch (b.type) {
	case TRACE_BLOCK_RECORDS:
		r->left = b.items;
		return 1;
	case TRACE_BLOCK_THREAD:
	case TRACE_BLOCK_SAMPLE:
		ret = b.type == TRACE_BLOCK_THREAD ? read_names(r, b.items) :
						     read_samples(r, b.items);
		return !ret ? 1 : ret == -EINVAL ? damaged(r, at, e) :
						   fail(e, ret, "%s: out of memory", r->path);
	}
	return damaged(r, at, e);
cut:
	if (ferror(r->file))
		return fail(e, errno, "%s: cannot read: %s; copy it again", r->path,
			    strerror(errno));
	return damaged(r, at, e);
}

static int check_end(struct trace_reader *r, struct error *e)
{
	if (r->demand == TRACE_WHOLE && memcmp(r->seen, r->info.count, sizeof(r->seen)))
		return damaged(r, TRACE_HEADER_BEGIN, e);
	return 0;
}

int trace_next(struct trace_reader *r, struct trace_record *record, struct error *e)
{
	int ret;

	while (!r->left) {
		ret = next_block(r, r->demand == TRACE_PARTIAL ? NULL : e);
		if (!ret)
			return check_end(r, e);
		/* A partial trace ends at the first damaged block. */
		if (ret == -EINVAL && r->demand == TRACE_PARTIAL)
			return 0;
		if (ret < 0)
			return fail(e, ret, "%s: cannot read: %s", r->path, strerror(-ret));
	}
	r->left--;
	if (trace_decode(&r->coder, &r->span, record) || (!r->left && r->span.at != r->span.end)) {
		r->left = 0;
		return damaged(r, r->at, e);
	}
	r->seen[record->kind]++;
	return 1;
}

const struct trace_sample *trace_samples(const struct trace_reader *r, size_t *n)
{
	*n = r->samples;
	return r->sample;
}

const char *trace_thread_name(const struct trace_reader *r, uint32_t tgid, uint32_t tid)
{
	const struct name *n = find_name(r, tgid, tid);

	return n ? n->thread.comm : "";
}
