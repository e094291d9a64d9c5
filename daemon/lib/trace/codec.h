/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The bytes of a trace: fixed fields, and the delta coding of records within a
 * block.  Nothing here reads or writes a file.
 */
#ifndef EBB_TRACE_CODEC_H
#define EBB_TRACE_CODEC_H

#include "trace.h"

#define TRACE_MAGIC "ebbtrace"
#define TRACE_HEADER 512                /* bytes, both halves */
#define TRACE_HEADER_BEGIN 384          /* bytes of the first half, including its checksum */
#define TRACE_BLOCK_HEAD 16
#define TRACE_BLOCK_MAX 65536           /* bytes of a block's payload */
#define TRACE_BLOCK_THREADS 256         /* threads in one block of records */
#define TRACE_RECORD_MAX 80             /* limit of bytes per record */

enum trace_block_type {
	TRACE_BLOCK_RECORDS = 1,
	TRACE_BLOCK_THREAD = 2,         /* names of threads */
	TRACE_BLOCK_SAMPLE = 3,
};

struct trace_block {
	uint32_t type, bytes, items;
	uint32_t crc;                   /* of the head before this field, and the payload */
};

/* State of the delta coding within a block; zeroed at its start. */
struct trace_coder {
	uint64_t time_ns;
	uint32_t threads, current;
	struct {
		uint64_t vpn, ip;
		uint32_t tgid, tid;
		uint16_t role;
	} thread[TRACE_BLOCK_THREADS];
};

/* Bytes still to be decoded. */
struct trace_span {
	const uint8_t *at, *end;
};

/*
 * Appends @record to @to, which has room for TRACE_RECORD_MAX bytes; returns the number of bytes,
 * or 0 when the block has no room for another thread.
 */
size_t trace_encode(struct trace_coder *c, const struct trace_record *record, uint8_t *to);

/* Reads the next record of @s; -EINVAL when its bytes are invalid. */
int trace_decode(struct trace_coder *c, struct trace_span *s, struct trace_record *record);

/* As above, for samples, each of which is coded separately. */
size_t trace_encode_sample(const struct trace_sample *sample, uint8_t *to);
int trace_decode_sample(struct trace_span *s, struct trace_sample *sample);

/* Unsigned LEB128 of at most 10 bytes.  Returns the bytes written; 0 or -EINVAL. */
size_t trace_put_varint(uint8_t *to, uint64_t v);
int trace_get_varint(struct trace_span *s, uint64_t *v);

void trace_put_begin(uint8_t header[TRACE_HEADER], const struct trace_info *info);
void trace_put_end(uint8_t header[TRACE_HEADER], const struct trace_info *info);
/* Returns -EINVAL when the checksum of the half is wrong. */
int trace_get_begin(const uint8_t header[TRACE_HEADER], struct trace_info *info);
/* An all-zero second half belongs to an unfinished file: info->finished is false. */
int trace_get_end(const uint8_t header[TRACE_HEADER], struct trace_info *info);
uint32_t trace_get_version(const uint8_t header[TRACE_HEADER]);

void trace_put_block(uint8_t head[TRACE_BLOCK_HEAD], struct trace_block *b, const uint8_t *payload);
void trace_get_block(const uint8_t head[TRACE_BLOCK_HEAD], struct trace_block *b);
/* Returns whether the checksum matches head and payload. */
bool trace_block_intact(const uint8_t head[TRACE_BLOCK_HEAD], const struct trace_block *b,
			const uint8_t *payload);

#endif
