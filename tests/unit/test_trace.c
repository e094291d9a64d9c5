// SPDX-License-Identifier: GPL-2.0-or-later
/* daemon/lib/trace: what was written comes back, and nothing else does. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/trace/codec.h"
#include "trace_file.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define RECORDS 5000

static const struct trace_info about = {
	.page_shift = 12, .page_cluster = 3, .memory = 64 << 20, .start_ns = 123456789,
	.start_unix_ns = 1795000000000000000ULL, .kernel = "6.18.0", .policy = "none",
	.cgroup = "/ebb-run-1", .machine = "box", .cpus = 2,
};

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed >> 12;
	*seed ^= *seed << 25;
	*seed ^= *seed >> 27;
	return *seed * 0x2545f4914f6cdd1dULL;
}

/* Record @i of a trace with every field at its extremes now and then. */
static struct trace_record make(uint32_t i)
{
	uint64_t seed = i + 1, a = next_random(&seed), b = next_random(&seed);
	struct trace_record r = {
		.time_ns = i * 5000ULL + a % 20000, .vpn = 0x7f0000000 + b % 100000,
		.tgid = 100 + a % 3, .kind = a % TRACE_KINDS,
	};

	if (r.kind == TRACE_OUT)
		return r;
	r.tid = r.tgid + b % 400;
	r.duration_ns = a % 7 ? b % 1000000 : 0;
	r.ip = b % 5 ? 0x400000 + a % 64 : 0;
	r.cluster = a % 11 ? 0 : 8;
	r.role = r.tid & 1;
	switch (i % 97) {
	case 1:
		r.time_ns = INT64_MAX;
		r.vpn = (1ULL << 52) - 1;
		r.ip = UINT64_MAX;
		break;
	case 2:
		r.vpn = 0;
		r.time_ns = 0;
		r.duration_ns = INT64_MAX;
		r.cluster = UINT32_MAX;
		r.tid = INT32_MAX;
		r.tgid = INT32_MAX;
		r.role = UINT16_MAX;
	}
	return r;
}

static int write_trace(uint32_t records)
{
	struct trace_writer *w;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int r = trace_writer_new(&w, fd, path, &about, NULL);

	assert_int_equal(r, 0);
	for (uint32_t i = 0; i < records; i++) {
		struct trace_record record = make(i);
		struct trace_thread thread = { 7, i, "worker" };

		assert_int_equal(trace_write(w, &record, NULL), 0);
		if (i % 1000 == 0)
			assert_int_equal(trace_write_thread(w, &thread, NULL), 0);
	}
	assert_int_equal(trace_written(w), records);
	return trace_writer_end(&w, 5, "worker", NULL);
}

/*
 * Records that came back until the end or the error, all as they were; *@result is trace_next()'s.
 */
static uint32_t read_trace(enum trace_demand demand, int *result, struct error *e)
{
	_cleanup_trace_ struct trace_reader *r = NULL;
	struct trace_record got;
	uint32_t n = 0;

	*result = trace_open(&r, path, demand, e);
	if (*result)
		return 0;
	while ((*result = trace_next(r, &got, e)) == 1) {
		struct trace_record expected = make(n++);

		assert_memory_equal(&got, &expected, sizeof(got));
	}
	return n;
}

static size_t load(uint8_t **bytes)
{
	FILE *f = fopen(path, "re");
	size_t n;

	*bytes = malloc(1 << 20);
	assert_non_null(f);
	n = fread(*bytes, 1, 1 << 20, f);
	fclose(f);
	return n;
}

static void store(const uint8_t *bytes, size_t n)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, n, f), n);
	fclose(f);
}

static void round_trip(void **unused)
{
	_cleanup_trace_ struct trace_reader *r = NULL;
	struct error e = { 0 };
	const struct trace_info *i;
	struct trace_record got;
	struct stat st;
	int result;

	assert_int_equal(write_trace(RECORDS), 0);
	assert_int_equal(read_trace(TRACE_WHOLE, &result, &e), RECORDS);
	assert_int_equal(result, 0);
	assert_int_equal(read_trace(TRACE_PARTIAL, &result, &e), RECORDS);
	assert_int_equal(e.code, 0);

	assert_int_equal(trace_open(&r, path, TRACE_WHOLE, &e), 0);
	i = trace_info(r);
	assert_int_equal(i->memory, about.memory);
	assert_int_equal(i->start_unix_ns, about.start_unix_ns);
	assert_int_equal(i->page_cluster, 3);
	assert_string_equal(i->kernel, "6.18.0");
	assert_string_equal(i->cgroup, "/ebb-run-1");
	assert_string_equal(i->policy, "none");
	assert_string_equal(i->machine, "box");
	assert_int_equal(i->cpus, 2);
	assert_string_equal(i->comm, "worker");
	assert_int_equal(i->lost, 5);
	assert_int_equal(i->count[0] + i->count[1] + i->count[2] + i->count[3], RECORDS);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(i->bytes, st.st_size);
	while (trace_next(r, &got, NULL) == 1)
		;
	assert_string_equal(trace_thread_name(r, 7, 3000), "worker");
	assert_string_equal(trace_thread_name(r, 7, 3001), "");
}

/* Between records and by themselves; those of a file that is cut are whole, too. */
static void samples(void **unused)
{
	_cleanup_trace_ struct trace_reader *r = NULL;
	const struct trace_sample *sample;
	struct trace_record got;
	struct trace_writer *w;
	size_t n;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_int_equal(trace_writer_new(&w, fd, path, &about, NULL), 0);
	for (uint32_t i = 0; i < 3000; i++) {
		struct trace_sample s = {
			.time_ns = i * 50000000ULL, .resident = i, .swapped = UINT64_MAX - i,
			.requests = 2 * i, .request_pages = 3 * i, .prefetched = 5 * i,
			.wasted = 7 * i, .epochs = i / 100,
		};
		struct trace_record record = make(i);

		assert_int_equal(trace_write_sample(w, &s, NULL), 0);
		if (i % 2)
			assert_int_equal(trace_write(w, &record, NULL), 0);
	}
	assert_int_equal(trace_written(w), 1500);
	assert_int_equal(trace_writer_end(&w, 0, "", NULL), 0);
	assert_int_equal(trace_open(&r, path, TRACE_WHOLE, NULL), 0);
	while (trace_next(r, &got, NULL) == 1)
		;
	sample = trace_samples(r, &n);
	assert_int_equal(n, 3000);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(sample[i].time_ns, i * 50000000ULL);
		assert_int_equal(sample[i].resident, i);
		assert_true(sample[i].swapped == UINT64_MAX - i);
		assert_int_equal(sample[i].requests, 2 * i);
		assert_int_equal(sample[i].request_pages, 3 * i);
		assert_int_equal(sample[i].prefetched, 5 * i);
		assert_int_equal(sample[i].wasted, 7 * i);
		assert_int_equal(sample[i].epochs, i / 100);
	}
}

static void empty_trace(void **unused)
{
	struct error e = { 0 };
	int result;

	assert_int_equal(write_trace(0), 0);
	assert_int_equal(read_trace(TRACE_WHOLE, &result, &e), 0);
	assert_int_equal(result, 0);
}

/* A step of one page by one thread, as scans make them, takes few bytes. */
static void is_compact(void **unused)
{
	struct trace_writer *w;
	struct stat st;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_int_equal(trace_writer_new(&w, fd, path, &about, NULL), 0);
	for (uint32_t i = 0; i < 10000; i++) {
		struct trace_record r = { .time_ns = i * 20000, .duration_ns = 18000 + i % 100,
					  .vpn = 0x7f0000000 + i, .ip = 0x401234, .tgid = 5,
					  .tid = 5 };

		assert_int_equal(trace_write(w, &r, NULL), 0);
	}
	assert_int_equal(trace_writer_end(&w, 0, "", NULL), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_true(st.st_size < 10 * 10000);
}

/* Cut anywhere it is refused by the word "truncated"; what is whole of it can still be read. */
static void truncated_anywhere(void **unused)
{
	struct error e;
	uint8_t *bytes;
	uint32_t n, last = 0;
	size_t size;
	int result;

	assert_int_equal(write_trace(40), 0);
	size = load(&bytes);
	for (size_t cut = 0; cut < size; cut++) {
		store(bytes, cut);
		e = (struct error){ 0 };
		assert_int_equal(read_trace(TRACE_WHOLE, &result, &e), 0);
		assert_int_equal(result, -EINVAL);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_non_null(strstr(e.text, path));
		assert_non_null(strstr(e.text, cut ? "truncated" : "not a trace"));
		e = (struct error){ 0 };
		n = read_trace(TRACE_PARTIAL, &result, &e);
		assert_int_equal(result, cut < TRACE_HEADER ? -EINVAL : 0);
		assert_true(n >= last);
		last = n;
	}
	store(bytes, size);
	assert_int_equal(read_trace(TRACE_WHOLE, &result, &e), 40);
	free(bytes);
}

/* One byte of the file, in place: a new file for each flipped bit would take long. */
static void poke(size_t at, uint8_t byte)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	close(fd);
}

/* No flipped bit goes unnoticed, and none makes the reader invent a record. */
static void flipped_bits(void **unused)
{
	struct error e;
	uint8_t *bytes;
	size_t size;
	int result;

	assert_int_equal(write_trace(40), 0);
	size = load(&bytes);
	for (size_t bit = 0; bit < 8 * size; bit++) {
		poke(bit / 8, bytes[bit / 8] ^ (uint8_t)(1 << bit % 8));
		e = (struct error){ 0 };
		read_trace(TRACE_WHOLE, &result, &e);
		if (result != -EINVAL)
			print_message("bit %zu of byte %zu\n", bit % 8, bit / 8);
		assert_int_equal(result, -EINVAL);
		assert_true(*e.text);
		poke(bit / 8, bytes[bit / 8]);
	}
	free(bytes);
}

/* Random bytes behind a right checksum: the decoder stays within its bounds. */
static void hostile_blocks(void **unused)
{
	uint8_t payload[512], file[TRACE_HEADER + TRACE_BLOCK_HEAD + sizeof(payload)];
	struct trace_info info = about;
	uint64_t seed = 99;

	for (int turn = 0; turn < 5000; turn++) {
		_cleanup_trace_ struct trace_reader *r = NULL;
		struct trace_block b = { .type = 1 + turn % 4,
					 .bytes = (uint32_t)(next_random(&seed) % sizeof(payload)),
					 .items = (uint32_t)(next_random(&seed) % 300) };
		struct trace_record got;
		int result;

		for (uint32_t i = 0; i < b.bytes; i++)
			payload[i] = (uint8_t)(next_random(&seed) >> (turn % 2 ? 56 : 60));
		memset(file, 0, sizeof(file));
		info.bytes = TRACE_HEADER + TRACE_BLOCK_HEAD + b.bytes;
		trace_put_begin(file, &info);
		trace_put_end(file, &info);
		trace_put_block(file + TRACE_HEADER, &b, payload);
		memcpy(file + TRACE_HEADER + TRACE_BLOCK_HEAD, payload, b.bytes);
		store(file, info.bytes);
		assert_int_equal(trace_open(&r, path, TRACE_WHOLE, NULL), 0);
		while ((result = trace_next(r, &got, NULL)) == 1) {
			assert_true(got.vpn < 1ULL << 52);
			assert_true(got.kind < TRACE_KINDS);
			assert_true(got.time_ns <= INT64_MAX);
		}
		assert_true(result <= 0);
	}
}

static void foreign_files(void **unused)
{
	struct error e = { 0 };
	int result;

	store((const uint8_t *)"time_ns,duration_ns,vpn,tgid,tid,kind\n", 38);
	read_trace(TRACE_PARTIAL, &result, &e);
	assert_int_equal(result, -EINVAL);
	assert_non_null(strstr(e.text, "not a trace"));
	unlink(path);
	e = (struct error){ 0 };
	read_trace(TRACE_WHOLE, &result, &e);
	assert_int_equal(result, -ENOENT);
}

static void other_version(void **unused)
{
	struct error e = { 0 };
	uint8_t *bytes;
	size_t size;
	int result;

	assert_int_equal(write_trace(10), 0);
	size = load(&bytes);
	bytes[8] = 2;
	store(bytes, size);
	read_trace(TRACE_WHOLE, &result, &e);
	assert_int_equal(result, -EINVAL);
	assert_non_null(strstr(e.text, "version 2"));
	free(bytes);
}

/* Without its end it is told apart from a truncated one, and can be read in part. */
static void unfinished(void **unused)
{
	struct error e = { 0 };
	uint8_t *bytes;
	size_t size;
	int result;

	assert_int_equal(write_trace(10), 0);
	size = load(&bytes);
	memset(bytes + TRACE_HEADER_BEGIN, 0, TRACE_HEADER - TRACE_HEADER_BEGIN);
	store(bytes, size);
	read_trace(TRACE_WHOLE, &result, &e);
	assert_int_equal(result, -EINVAL);
	assert_non_null(strstr(e.text, "not ended"));
	assert_int_equal(read_trace(TRACE_PARTIAL, &result, NULL), 10);
	free(bytes);
}

/* A limit on the size of files acts as a full disk does. */
static void full_disk(void **unused)
{
	struct rlimit before, limit = { 100000, RLIM_INFINITY };
	_cleanup_trace_ struct trace_reader *r = NULL;
	struct error e = { 0 }, again = { 0 };
	struct trace_writer *w;
	uint32_t i;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), ret, result;

	assert_int_equal(trace_writer_new(&w, fd, path, &about, NULL), 0);
	getrlimit(RLIMIT_FSIZE, &before);
	limit.rlim_max = before.rlim_max;
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &limit);
	for (i = 0, ret = 0; i < 1000000 && !ret; i++) {
		struct trace_record record = make(i);

		ret = trace_write(w, &record, &e);
	}
	assert_int_equal(ret, -EFBIG);
	assert_non_null(strstr(e.text, "recording stopped"));
	assert_int_equal(trace_write(w, &(struct trace_record){ 0 }, &again), -EFBIG);
	assert_int_equal(again.code, 0);
	assert_int_equal(trace_writer_end(&w, 0, "", &again), -EFBIG);
	setrlimit(RLIMIT_FSIZE, &before);

	assert_int_equal(trace_open(&r, path, TRACE_PARTIAL, NULL), 0);
	assert_int_equal(trace_info(r)->stopped, EFBIG);
	assert_true(trace_info(r)->finished);
	trace_close(&r);
	assert_true(read_trace(TRACE_WHOLE, &result, NULL) > 1000);
	assert_int_equal(result, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip),
		cmocka_unit_test(samples),
		cmocka_unit_test(empty_trace),
		cmocka_unit_test(is_compact),
		cmocka_unit_test(truncated_anywhere),
		cmocka_unit_test(flipped_bits),
		cmocka_unit_test(hostile_blocks),
		cmocka_unit_test(other_version),
		cmocka_unit_test(unfinished),
		cmocka_unit_test(full_disk),
		cmocka_unit_test(foreign_files),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
