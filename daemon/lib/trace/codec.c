// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>
#include <zlib.h>

#include "codec.h"
#include "lib/base/bytes.h"
#include "lib/base/utf8.h"

const char *const trace_kind_names[TRACE_KINDS] = { "miss", "hit", "late", "out" };

/* Offsets in the header; docs/trace.md. */
enum {
	AT_MAGIC = 0, AT_VERSION = 8, AT_LENGTH = 12, AT_PAGE_SHIFT = 16, AT_PAGE_CLUSTER = 20,
	AT_MEMORY = 24, AT_START = 32, AT_START_UNIX = 40, AT_KERNEL = 48, AT_POLICY = 112,
	AT_CGROUP = 144, AT_MACHINE = 336, AT_CPUS = 368, AT_BEGIN_CRC = TRACE_HEADER_BEGIN - 4,
	AT_COUNT = TRACE_HEADER_BEGIN, AT_LOST = 416, AT_SPAN = 424, AT_BYTES = 432,
	AT_STOPPED = 440, AT_FINISHED = 444, AT_COMM = 448, AT_END_CRC = TRACE_HEADER - 4,
};

/* First byte of a record: the kind in its two low bits, and which fields follow. */
enum {
	TAG_KIND = 3,
	TAG_THREAD = 1 << 2,    /* another thread than in the previous record */
	TAG_IP = 1 << 3,
	TAG_SAME_IP = 1 << 4,   /* with TAG_IP: equal to this thread's last ip */
	TAG_CLUSTER = 1 << 5,
	TAG_DURATION = 1 << 6,
	TAG_UNUSED = 1 << 7,
};

#define VPN_END (1ULL << 52)

static uint32_t checksum(const uint8_t *from, size_t bytes)
{
	return (uint32_t)crc32(0, from, (uInt)bytes);
}

size_t trace_put_varint(uint8_t *to, uint64_t v)
{
	size_t n = 0;

	while (v >= 0x80) {
		to[n++] = (uint8_t)(v | 0x80);
		v >>= 7;
	}
	to[n++] = (uint8_t)v;
	return n;
}

int trace_get_varint(struct trace_span *s, uint64_t *v)
{
	uint64_t sum = 0;

	for (unsigned int shift = 0; s->at < s->end && shift < 64; shift += 7) {
		uint8_t byte = *s->at++;

		if (shift == 63 && byte > 1)
			return -EINVAL;
		sum |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*v = sum;
			return 0;
		}
	}
	return -EINVAL;
}

/* Zigzag: small differences of either sign become small numbers. */
static size_t put_difference(uint8_t *to, uint64_t now, uint64_t before)
{
	uint64_t d = now - before;

	return trace_put_varint(to, d << 1 ^ (d >> 63 ? UINT64_MAX : 0));
}

static int get_difference(struct trace_span *s, uint64_t before, uint64_t *now)
{
	uint64_t z;

	if (trace_get_varint(s, &z))
		return -EINVAL;
	*now = before + (z >> 1 ^ (z & 1 ? UINT64_MAX : 0));
	return 0;
}

/* Reads a number of at most @max. */
static int get_bounded(struct trace_span *s, uint64_t max, uint64_t *v)
{
	return trace_get_varint(s, v) || *v > max ? -EINVAL : 0;
}

/* Returns the index of the thread in the block, or c->threads if it is new. */
static uint32_t find_thread(const struct trace_coder *c, const struct trace_record *r)
{
	uint32_t i = c->current;

	if (i < c->threads && c->thread[i].tid == r->tid && c->thread[i].tgid == r->tgid &&
	    c->thread[i].role == r->role)
		return i;
	for (i = 0; i < c->threads; i++)
		if (c->thread[i].tid == r->tid && c->thread[i].tgid == r->tgid &&
		    c->thread[i].role == r->role)
			break;
	return i;
}

size_t trace_encode(struct trace_coder *c, const struct trace_record *r, uint8_t *to)
{
	uint32_t i = find_thread(c, r), before = c->current;
	uint8_t tag = r->kind & TAG_KIND;
	uint64_t last_ip;
	size_t n = 1;

	if (i == TRACE_BLOCK_THREADS)
		return 0;
	if (i == c->threads || i != before) {
		tag |= TAG_THREAD;
		n += trace_put_varint(to + n, i);
	}
	if (i == c->threads) {
		n += trace_put_varint(to + n, r->tgid);
		n += trace_put_varint(to + n, r->tid);
		n += trace_put_varint(to + n, r->role);
		memset(&c->thread[i], 0, sizeof(c->thread[i]));
		c->thread[i].tgid = r->tgid;
		c->thread[i].tid = r->tid;
		c->thread[i].role = r->role;
		c->threads++;
	}
	c->current = i;
	n += put_difference(to + n, r->time_ns, c->time_ns);
	n += put_difference(to + n, r->vpn, c->thread[i].vpn);
	c->time_ns = r->time_ns;
	c->thread[i].vpn = r->vpn;
	if (r->duration_ns) {
		tag |= TAG_DURATION;
		n += trace_put_varint(to + n, r->duration_ns);
	}
	if (r->cluster) {
		tag |= TAG_CLUSTER;
		n += trace_put_varint(to + n, r->cluster);
	}
	last_ip = c->thread[i].ip;
	if (r->ip) {
		tag |= TAG_IP | (r->ip == last_ip ? TAG_SAME_IP : 0);
		if (r->ip != last_ip)
			n += put_difference(to + n, r->ip, last_ip);
		c->thread[i].ip = r->ip;
	}
	to[0] = tag;
	return n;
}

static int decode_thread(struct trace_coder *c, struct trace_span *s)
{
	uint64_t i, tgid, tid, role;

	if (get_bounded(s, c->threads, &i) || i >= TRACE_BLOCK_THREADS)
		return -EINVAL;
	c->current = (uint32_t)i;
	if (i < c->threads)
		return 0;
	if (get_bounded(s, INT32_MAX, &tgid) || get_bounded(s, INT32_MAX, &tid) ||
	    get_bounded(s, UINT16_MAX, &role))
		return -EINVAL;
	memset(&c->thread[i], 0, sizeof(c->thread[i]));
	c->thread[i].tgid = (uint32_t)tgid;
	c->thread[i].tid = (uint32_t)tid;
	c->thread[i].role = (uint16_t)role;
	c->threads++;
	return 0;
}

int trace_decode(struct trace_coder *c, struct trace_span *s, struct trace_record *r)
{
	uint64_t cluster = 0;
	uint8_t tag;

	if (s->at == s->end)
		return -EINVAL;
	tag = *s->at++;
	if (tag & TAG_UNUSED || (tag & (TAG_IP | TAG_SAME_IP)) == TAG_SAME_IP)
		return -EINVAL;
	if (tag & TAG_THREAD && decode_thread(c, s))
		return -EINVAL;
	if (c->current >= c->threads)
		return -EINVAL;
	*r = (struct trace_record){
		.kind = tag & TAG_KIND, .tgid = c->thread[c->current].tgid,
		.tid = c->thread[c->current].tid, .role = c->thread[c->current].role,
	};
	if (get_difference(s, c->time_ns, &r->time_ns) || r->time_ns > INT64_MAX ||
	    get_difference(s, c->thread[c->current].vpn, &r->vpn) || r->vpn >= VPN_END)
		return -EINVAL;
	if (tag & TAG_DURATION && get_bounded(s, INT64_MAX, &r->duration_ns))
		return -EINVAL;
	if (tag & TAG_CLUSTER && get_bounded(s, UINT32_MAX, &cluster))
		return -EINVAL;
	r->cluster = (uint32_t)cluster;
	if (tag & TAG_IP) {
		r->ip = c->thread[c->current].ip;
		if (!(tag & TAG_SAME_IP) && get_difference(s, r->ip, &r->ip))
			return -EINVAL;
		c->thread[c->current].ip = r->ip;
	}
	c->time_ns = r->time_ns;
	c->thread[c->current].vpn = r->vpn;
	return 0;
}

/* Fields in the order of the file. */
static const size_t sample_field[] = {
	offsetof(struct trace_sample, time_ns), offsetof(struct trace_sample, resident),
	offsetof(struct trace_sample, swapped), offsetof(struct trace_sample, requests),
	offsetof(struct trace_sample, request_pages), offsetof(struct trace_sample, prefetched),
	offsetof(struct trace_sample, wasted), offsetof(struct trace_sample, epochs),
};
#define SAMPLE_FIELDS (sizeof(sample_field) / sizeof(sample_field[0]))
_Static_assert(SAMPLE_FIELDS * 10 <= TRACE_RECORD_MAX, "varints of the largest numbers");

size_t trace_encode_sample(const struct trace_sample *sample, uint8_t *to)
{
	size_t n = 0;

	for (size_t i = 0; i < SAMPLE_FIELDS; i++)
		n += trace_put_varint(to + n, *(const uint64_t *)((const char *)sample +
								  sample_field[i]));
	return n;
}

int trace_decode_sample(struct trace_span *s, struct trace_sample *sample)
{
	for (size_t i = 0; i < SAMPLE_FIELDS; i++)
		if (trace_get_varint(s, (uint64_t *)((char *)sample + sample_field[i])))
			return -EINVAL;
	return sample->time_ns <= INT64_MAX ? 0 : -EINVAL;
}

/* Writes text of fixed size, padded with NULs or truncated. */
static void put_text(uint8_t *to, const char *text, size_t size)
{
	memset(to, 0, size);
	memcpy(to, text, strnlen(text, size - 1));
}

/* Replaces control characters: a file must not control the terminal that shows it. */
static void get_text(char *to, const uint8_t *from, size_t size)
{
	memcpy(to, from, size);
	to[size - 1] = '\0';
	utf8_print(to);
}

void trace_put_begin(uint8_t h[TRACE_HEADER], const struct trace_info *info)
{
	memset(h, 0, TRACE_HEADER_BEGIN);
	memcpy(h + AT_MAGIC, TRACE_MAGIC, strlen(TRACE_MAGIC));
	put32(h + AT_VERSION, TRACE_VERSION);
	put32(h + AT_LENGTH, TRACE_HEADER);
	put32(h + AT_PAGE_SHIFT, info->page_shift);
	put32(h + AT_PAGE_CLUSTER, info->page_cluster);
	put64(h + AT_MEMORY, info->memory);
	put64(h + AT_START, info->start_ns);
	put64(h + AT_START_UNIX, info->start_unix_ns);
	put_text(h + AT_KERNEL, info->kernel, sizeof(info->kernel));
	put_text(h + AT_POLICY, info->policy, sizeof(info->policy));
	put_text(h + AT_CGROUP, info->cgroup, sizeof(info->cgroup));
	put_text(h + AT_MACHINE, info->machine, sizeof(info->machine));
	put32(h + AT_CPUS, info->cpus);
	put32(h + AT_BEGIN_CRC, checksum(h, AT_BEGIN_CRC));
}

int trace_get_begin(const uint8_t h[TRACE_HEADER], struct trace_info *info)
{
	if (get32(h + AT_BEGIN_CRC) != checksum(h, AT_BEGIN_CRC))
		return -EINVAL;
	info->page_shift = get32(h + AT_PAGE_SHIFT);
	info->page_cluster = get32(h + AT_PAGE_CLUSTER);
	info->memory = get64(h + AT_MEMORY);
	info->start_ns = get64(h + AT_START);
	info->start_unix_ns = get64(h + AT_START_UNIX);
	get_text(info->kernel, h + AT_KERNEL, sizeof(info->kernel));
	get_text(info->policy, h + AT_POLICY, sizeof(info->policy));
	get_text(info->cgroup, h + AT_CGROUP, sizeof(info->cgroup));
	get_text(info->machine, h + AT_MACHINE, sizeof(info->machine));
	info->cpus = get32(h + AT_CPUS);
	return get32(h + AT_LENGTH) == TRACE_HEADER && info->page_shift >= 12 &&
	       info->page_shift <= 16 ? 0 : -EINVAL;
}

void trace_put_end(uint8_t h[TRACE_HEADER], const struct trace_info *info)
{
	memset(h + AT_COUNT, 0, TRACE_HEADER - AT_COUNT);
	for (int i = 0; i < TRACE_KINDS; i++)
		put64(h + AT_COUNT + 8 * i, info->count[i]);
	put64(h + AT_LOST, info->lost);
	put64(h + AT_SPAN, info->span_ns);
	put64(h + AT_BYTES, info->bytes);
	put32(h + AT_STOPPED, (uint32_t)info->stopped);
	put32(h + AT_FINISHED, 1);
	put_text(h + AT_COMM, info->comm, sizeof(info->comm));
	put32(h + AT_END_CRC, checksum(h + AT_COUNT, AT_END_CRC - AT_COUNT));
}

int trace_get_end(const uint8_t h[TRACE_HEADER], struct trace_info *info)
{
	static const uint8_t empty[TRACE_HEADER - AT_COUNT];

	if (!memcmp(h + AT_COUNT, empty, sizeof(empty)))
		return 0;
	if (get32(h + AT_END_CRC) != checksum(h + AT_COUNT, AT_END_CRC - AT_COUNT))
		return -EINVAL;
	for (int i = 0; i < TRACE_KINDS; i++)
		info->count[i] = get64(h + AT_COUNT + 8 * i);
	info->lost = get64(h + AT_LOST);
	info->span_ns = get64(h + AT_SPAN);
	info->bytes = get64(h + AT_BYTES);
	info->stopped = (int)get32(h + AT_STOPPED);
	info->finished = get32(h + AT_FINISHED) == 1;
	get_text(info->comm, h + AT_COMM, sizeof(info->comm));
	return info->finished ? 0 : -EINVAL;
}

uint32_t trace_get_version(const uint8_t h[TRACE_HEADER])
{
	return get32(h + AT_VERSION);
}

static uint32_t block_checksum(const uint8_t *head, const uint8_t *payload, uint32_t bytes)
{
	return (uint32_t)crc32(checksum(head, TRACE_BLOCK_HEAD - 4), payload, bytes);
}

void trace_put_block(uint8_t head[TRACE_BLOCK_HEAD], struct trace_block *b, const uint8_t *payload)
{
	put32(head, b->type);
	put32(head + 4, b->bytes);
	put32(head + 8, b->items);
	b->crc = block_checksum(head, payload, b->bytes);
	put32(head + 12, b->crc);
}

void trace_get_block(const uint8_t head[TRACE_BLOCK_HEAD], struct trace_block *b)
{
	*b = (struct trace_block){ get32(head), get32(head + 4), get32(head + 8),
				   get32(head + 12) };
}

bool trace_block_intact(const uint8_t head[TRACE_BLOCK_HEAD], const struct trace_block *b,
			const uint8_t *payload)
{
	return b->crc == block_checksum(head, payload, b->bytes);
}
