// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codec.h"

struct trace_writer {
	int fd;
	char *name;
	struct trace_info info;         /* of the blocks in the file */
	uint64_t pending[TRACE_KINDS], pending_ns; /* of the records in the block */
	int failed;                     /* -errno */
	struct trace_coder coder;
	struct trace_block block;       /* head of the block in payload */
	uint8_t head[TRACE_BLOCK_HEAD]; /* written together with payload */
	uint8_t payload[TRACE_BLOCK_MAX];
};

static int write_all(int fd, const uint8_t *from, size_t bytes, uint64_t at)
{
	while (bytes) {
		ssize_t n = pwrite(fd, from, bytes, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		from += n;
		at += (uint64_t)n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* Truncates the file to its intact blocks, and stores the reason in it. */
static int give_up(struct trace_writer *w, int code, struct error *e)
{
	w->failed = code;
	w->info.stopped = -code;
	w->block.bytes = w->block.items = 0;
	memset(w->pending, 0, sizeof(w->pending));
	if (ftruncate(w->fd, (off_t)w->info.bytes) < 0)
		w->info.stopped = errno;
	return fail(e, code, "%s: recording stopped: %s; the file is readable up to then, free some space to record more",
		    w->name, strerror(-code));
}

static int flush_block(struct trace_writer *w, struct error *e)
{
	int r;

	if (!w->block.items)
		return 0;
	trace_put_block(w->head, &w->block, w->payload);
	r = write_all(w->fd, w->head, TRACE_BLOCK_HEAD + w->block.bytes, w->info.bytes);
	if (r)
		return give_up(w, r, e);
	w->info.bytes += TRACE_BLOCK_HEAD + w->block.bytes;
	for (int i = 0; i < TRACE_KINDS; i++)
		w->info.count[i] += w->pending[i];
	memset(w->pending, 0, sizeof(w->pending));
	w->info.span_ns = w->pending_ns;
	w->block = (struct trace_block){ .type = TRACE_BLOCK_RECORDS };
	memset(&w->coder, 0, offsetof(struct trace_coder, thread));
	return 0;
}
_Static_assert(offsetof(struct trace_writer, payload) ==
	       offsetof(struct trace_writer, head) + TRACE_BLOCK_HEAD, "written as one");

int trace_writer_new(struct trace_writer **out, int fd, const char *name,
		     const struct trace_info *info, struct error *e)
{
	struct trace_writer *w = calloc(1, sizeof(*w));
	uint8_t header[TRACE_HEADER] = { 0 };
	int r = -ENOMEM;

	if (w)
		w->name = strdup(name);
	if (w && w->name) {
		trace_put_begin(header, info);
		r = write_all(fd, header, sizeof(header), 0);
	}
	if (r) {
		fail(e, r, "%s: cannot write: %s; give a file on a disk with free space", name,
		     strerror(-r));
		close(fd);
		if (w)
			free(w->name);
		free(w);
		return r;
	}
	w->fd = fd;
	w->info.bytes = sizeof(header);
	w->block.type = TRACE_BLOCK_RECORDS;
	*out = w;
	return 0;
}

/* Makes @bytes of room in a block of @type. */
static int make_room(struct trace_writer *w, enum trace_block_type type, uint32_t bytes,
		     struct error *e)
{
	int r = 0;

	if (w->failed)
		return w->failed;
	if (w->block.type != type || w->block.bytes + bytes > TRACE_BLOCK_MAX)
		r = flush_block(w, e);
	w->block.type = type;
	return r;
}

int trace_write(struct trace_writer *w, const struct trace_record *record, struct error *e)
{
	int r = make_room(w, TRACE_BLOCK_RECORDS, TRACE_RECORD_MAX, e);
	size_t n;

	if (r)
		return r;
	n = trace_encode(&w->coder, record, w->payload + w->block.bytes);
	if (!n) {
		r = flush_block(w, e);
		if (r)
			return r;
		n = trace_encode(&w->coder, record, w->payload);
	}
	w->block.bytes += (uint32_t)n;
	w->block.items++;
	w->pending[record->kind % TRACE_KINDS]++;
	if (record->time_ns > w->pending_ns)
		w->pending_ns = record->time_ns;
	return 0;
}

int trace_write_thread(struct trace_writer *w, const struct trace_thread *t, struct error *e)
{
	uint8_t *to;
	int r = make_room(w, TRACE_BLOCK_THREAD, TRACE_RECORD_MAX, e);

	if (r)
		return r;
	to = w->payload + w->block.bytes;
	to += trace_put_varint(to, t->tgid);
	to += trace_put_varint(to, t->tid);
	memset(to, 0, sizeof(t->comm));
	memcpy(to, t->comm, strnlen(t->comm, sizeof(t->comm) - 1));
	w->block.bytes = (uint32_t)(to + sizeof(t->comm) - w->payload);
	w->block.items++;
	return 0;
}

int trace_write_sample(struct trace_writer *w, const struct trace_sample *sample, struct error *e)
{
	int r = make_room(w, TRACE_BLOCK_SAMPLE, TRACE_RECORD_MAX, e);

	if (r)
		return r;
	w->block.bytes += (uint32_t)trace_encode_sample(sample, w->payload + w->block.bytes);
	w->block.items++;
	return 0;
}

uint64_t trace_written(const struct trace_writer *w)
{
	uint64_t n = 0;

	for (int i = 0; i < TRACE_KINDS; i++)
		n += w->info.count[i] + w->pending[i];
	return n;
}

uint64_t trace_faults(const struct trace_writer *w)
{
	return trace_written(w) - w->info.count[TRACE_OUT] - w->pending[TRACE_OUT];
}

int trace_writer_end(struct trace_writer **pw, uint64_t lost, const char *comm, struct error *e)
{
	uint8_t header[TRACE_HEADER] = { 0 };
	struct trace_writer *w = *pw;
	int r = w->failed ? w->failed : flush_block(w, e), end;

	w->info.lost = lost;
	strncpy(w->info.comm, comm, sizeof(w->info.comm) - 1);
	trace_put_end(header, &w->info);
	/* Overwrites in place, which needs no space on a full disk. */
	end = write_all(w->fd, header + TRACE_HEADER_BEGIN, TRACE_HEADER - TRACE_HEADER_BEGIN,
			TRACE_HEADER_BEGIN);
	if (close(w->fd) < 0 && !end)
		end = -errno;
	if (end && !r)
		r = fail(e, end, "%s: cannot write its end: %s; use --partial to read it",
			 w->name, strerror(-end));
	free(w->name);
	free(w);
	*pw = NULL;
	return r;
}
