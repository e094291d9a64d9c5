// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A process that pages are fetched for, and another one that gets its number; its shared memory, on
 * a page cache of the test's own.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <linux/sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebbd/prefetch/target.h"

/* The kernel's, but for what bpf/shared.bpf.h does not read. */
struct xa_node {
	unsigned char shift;
	void *slots[64];
};

struct address_space {
	struct {
		void *xa_head;
	} i_pages;
};

/* The BPF program, on this page cache. */
#define BPF_CORE_READ(at, field) ((at)->field)
#define bpf_core_read(to, size, from) (memcpy(to, from, size), 0)
#define bpf_core_field_size(type, field) sizeof(((type *)0)->field)
#define bpf_core_field_offset(type, field) offsetof(type, field)
#define __noinline static
#undef __always_inline
#define __always_inline inline
#include "bpf/shared.bpf.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define PROGRAM 78

static struct ebb_look look;
static struct {
	bool refuses;
	int calls;
} kernel;

int bpf_prog_test_run_opts(int fd, struct bpf_test_run_opts *opts)
{
	assert_int_equal(fd, PROGRAM);
	kernel.calls++;
	if (kernel.refuses)
		return -(errno = ENOMEM);
	shared_look(&look);
	return 0;
}

static struct shared_pages shared = {
	.look = &look, .program = { PROGRAM, "look_shared", "nothing", 0 },
};

static const struct zswap_slots none;

/* A process that waits, with the number @pid unless 0; -errno. */
static pid_t start(pid_t pid)
{
	struct clone_args args = {
		.exit_signal = SIGCHLD,
		.set_tid = pid ? (uintptr_t)&pid : 0,
		.set_tid_size = pid ? 1 : 0,
	};
	long r = syscall(SYS_clone3, &args, sizeof(args));

	if (!r)
		for (;;)
			pause();
	return r < 0 ? -errno : (pid_t)r;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void is_told_from_its_namesake(void **state)
{
	struct target t, next;
	pid_t pid = start(0), other;

	assert_true(pid > 0);
	assert_int_equal(target_open(&t, (uint32_t)pid, 1, 0), 0);
	assert_true(target_current(&t));
	end(pid);
	assert_false(target_current(&t));
	other = start(pid);
	if (other == -EPERM) {
		target_close(&t);
		print_message("skip: needs root to choose a process's number\n");
		skip();
	}
	assert_int_equal(other, pid);
	assert_false(target_current(&t));
	assert_int_equal(target_open(&next, (uint32_t)pid, 1, 0), 0);
	assert_true(target_current(&next));
	end(other);
	target_close(&next);
	target_close(&t);
}

/* Its memory is another one then, under the same descriptor of the process. */
static void is_told_when_it_executes_another_program(void **state)
{
	int go[2], came[2];
	struct target t;
	pid_t pid;
	char c;

	assert_int_equal(pipe(go), 0);
	assert_int_equal(pipe(came), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		dup2(go[0], 0);
		dup2(came[1], 1);
		if (read(0, &c, 1) == 1)
			execl("/bin/cat", "cat", NULL);
		_exit(1);
	}
	assert_int_equal(target_open(&t, (uint32_t)pid, 1, 0), 0);
	assert_true(target_current(&t));
	assert_int_equal(write(go[1], "12", 2), 2);
	/* The second character is cat's. */
	assert_int_equal(read(came[0], &c, 1), 1);
	assert_int_equal(c, '2');
	assert_false(target_current(&t));
	end(pid);
	assert_false(target_current(&t));
	target_close(&t);
	close(go[0]);
	close(go[1]);
	close(came[0]);
	close(came[1]);
}

#define SECOND 1000000000ULL

static void learn(struct target *t, uint64_t first, uint64_t end, uint64_t now)
{
	target_learn(t, &(struct ebb_memory){ .first = first, .end = end, .time_ns = now });
}

static bool reaches(const struct target *t, uint64_t vpn, uint64_t now)
{
	return target_keep_memory(t, &vpn, 1, now) == 1;
}

static void knows_its_memory_by_its_faults(void **state)
{
	uint64_t vpn[] = { 9, 10, 19, 20, 30, 39, 40 };
	struct target t = { .tgid = 1, .pidfd = -1, .pagemap = -1, .maps = -1 };

	assert_false(reaches(&t, 0, SECOND));
	learn(&t, 10, 20, 10 * SECOND);
	learn(&t, 30, 40, 10 * SECOND);
	assert_false(reaches(&t, 0, 10 * SECOND));
	assert_int_equal(target_keep_memory(&t, vpn, 7, 10 * SECOND + 1), 4);
	assert_memory_equal(vpn, ((uint64_t[]){ 10, 19, 30, 39 }), 4 * sizeof(*vpn));
	/* What has not faulted since may be mapped to a file by now. */
	learn(&t, 30, 40, 11 * SECOND);
	assert_false(reaches(&t, 10, 11 * SECOND));
	assert_true(reaches(&t, 30, 12 * SECOND - 1));
	/* A mapping that was cut takes the place of the old one. */
	learn(&t, 30, 35, 11 * SECOND + 1);
	assert_true(reaches(&t, 34, 12 * SECOND));
	assert_false(reaches(&t, 35, 12 * SECOND));
	target_clear(&t);
}

static void forgets_the_mapping_that_faulted_longest_ago(void **state)
{
	struct target t = { .tgid = 1, .pidfd = -1, .pagemap = -1, .maps = -1 };

	for (uint64_t i = 0; i <= TARGET_SPANS; i++)
		learn(&t, 10 * i, 10 * i + 5, SECOND + i);
	assert_false(reaches(&t, 0, SECOND + 100));
	for (uint64_t i = 1; i <= TARGET_SPANS; i++)
		assert_true(reaches(&t, 10 * i, SECOND + 100));
	target_clear(&t);
}

/* Each of 32 threads faults in its heap and in its arena, and tells both every 252 ms. */
static void knows_the_mappings_of_many_threads(void **state)
{
	struct target t = { .tgid = 1, .pidfd = -1, .pagemap = -1, .maps = -1 };
	uint64_t vpn[64], now = SECOND;

	for (int i = 0; i < 64; i++)
		vpn[i] = 1000 * i + 5;
	for (int tell = 0; tell < 8; tell++, now += 252000000) {
		for (uint64_t i = 0; i < 64; i++)
			learn(&t, 1000 * i, 1000 * i + 10, now);
		assert_int_equal(target_keep_memory(&t, vpn, 64, now + 252000000), 64);
	}
	target_clear(&t);
	assert_int_equal(target_keep_memory(&t, vpn, 64, now), 0);
}

/* A process that faults in one mapping now, in another one later, takes the place of one. */
static void needs_memory_for_recent_mappings_only(void **state)
{
	struct target t = { .tgid = 1, .pidfd = -1, .pagemap = -1, .maps = -1 };

	for (uint64_t i = 0; i < 1000; i++) {
		learn(&t, 10 * i, 10 * i + 5, (i + 1) * TARGET_SPAN_NS);
		assert_true(reaches(&t, 10 * i, (i + 1) * TARGET_SPAN_NS));
	}
	assert_true(t.spans <= 4);
	/* Processors tell out of sequence. */
	learn(&t, 1, 2, 2000 * SECOND);
	learn(&t, 3, 4, 2000 * SECOND - 1);
	assert_true(reaches(&t, 1, 2000 * SECOND));
	assert_true(reaches(&t, 3, 2000 * SECOND));
	target_clear(&t);
}

/* Pagemap entries: pages 0 to 9 in swap, of type @vpn % 3; page 10 resident, page 11 nowhere. */
static int pagemap(void)
{
	uint64_t entry[2048] = { [10] = 1ULL << 63 | 2 };
	FILE *f = tmpfile();

	assert_non_null(f);
	for (uint64_t vpn = 0; vpn < 10; vpn++)
		entry[vpn] = 1ULL << 62 | 0x1000 | vpn % 3;
	entry[2000] = 1ULL << 62 | 31;
	assert_int_equal(pwrite(fileno(f), entry, sizeof(entry), 0), sizeof(entry));
	return fileno(f);
}

static void holds_back_pages_of_devices_that_wait(void **state)
{
	uint64_t near[] = { 0, 1, 2, 3, 4, 10, 11 }, far[] = { 1, 2000 };
	struct target t = { .tgid = 1, .pagemap = pagemap() };
	struct target_kept k = target_keep_swapped(&t, near, 7, 1 << 1 | 1 << 31, &none, &shared);

	assert_int_equal(k.kept, 3);
	assert_int_equal(k.held_back, 2);
	assert_memory_equal(near, ((uint64_t[]){ 0, 2, 3 }), 3 * sizeof(*near));
	k = target_keep_swapped(&t, far, 2, 1U << 31, &none, &shared);
	assert_int_equal(k.kept, 1);
	assert_int_equal(k.held_back, 1);
	assert_int_equal(far[0], 1);
	k = target_keep_swapped(&t, near, 3, 0, &none, &shared);
	assert_int_equal(k.kept, 3);
	assert_int_equal(k.held_back, 0);
	assert_int_equal(kernel.calls, 0);
	assert_int_equal(k.shared, 0);
}

static void skips_pages_that_zswap_holds(void **state)
{
	/* Pages 0 to 9 are in slot 0x80 of swap 0, 1 or 2. */
	uint64_t vpn[] = { 0, 1, 2, 3, 4, 5, 10 };
	static uint64_t held[1 << 14];
	const struct zswap_slots zswap = { held, sizeof(held) * 8 - 1 };
	struct target t = { .tgid = 1, .pagemap = pagemap() };
	struct target_kept k;
	uint64_t bit = ebb_slot_bit(1, 0x80) & zswap.mask;

	held[bit / 64] = 1ULL << (bit & 63);
	k = target_keep_swapped(&t, vpn, 7, 0, &zswap, &shared);
	assert_int_equal(k.kept, 4);
	assert_int_equal(k.zswapped, 2);
	assert_memory_equal(vpn, ((uint64_t[]){ 0, 2, 3, 5 }), 4 * sizeof(*vpn));
	/* The slot beside it, and none at all. */
	held[bit / 64] = 1ULL << ((bit + 1) & 63);
	assert_int_equal(target_keep_swapped(&t, vpn, 4, 0, &zswap, &shared).kept, 4);
	/* An area of 64 Gi pages does not read beyond the map. */
	assert_false(zswap_holds(&zswap, 31, (1ULL << 36) + 3));
	memset(held, 0xff, sizeof(held));
	assert_true(zswap_holds(&zswap, 31, (1ULL << 36) + 3));
	assert_int_equal(target_keep_swapped(&t, vpn, 4, 0, &zswap, &shared).zswapped, 4);
}

/* Puts @entry at page @index of @pages, below nodes as the kernel has them. */
static void store(struct address_space *pages, uint64_t index, void *entry)
{
	void **slot = &pages->i_pages.xa_head, *old;
	struct xa_node *node;
	unsigned int shift = 0, have;

	while (index >> shift >> 6)
		shift += 6;
	if (!index && !xa_is_a_node((uintptr_t)*slot)) {
		*slot = entry;
		return;
	}
	/* Grows until the top covers the index. */
	have = xa_is_a_node((uintptr_t)*slot) ?
	       ((struct xa_node *)((uintptr_t)*slot - XA_INTERNAL))->shift : 0;
	while (!xa_is_a_node((uintptr_t)*slot) || have < shift) {
		old = *slot;
		have = xa_is_a_node((uintptr_t)old) ? have + 6 : 0;
		node = calloc(1, sizeof(*node));
		node->shift = (unsigned char)have;
		node->slots[0] = old;
		*slot = (char *)node + XA_INTERNAL;
	}
	for (shift = have;; shift -= 6) {
		node = (void *)((uintptr_t)*slot - XA_INTERNAL);
		slot = &node->slots[index >> shift & 63];
		if (!shift)
			break;
		if (!*slot) {
			node = calloc(1, sizeof(*node));
			node->shift = (unsigned char)(shift - 6);
			*slot = (char *)node + XA_INTERNAL;
		}
	}
	*slot = entry;
}

static void drop(void *entry)
{
	struct xa_node *node = (void *)((uintptr_t)entry - XA_INTERNAL);

	if (!xa_is_a_node((uintptr_t)entry))
		return;
	for (int i = 0; i < 64; i++)
		drop(node->slots[i]);
	free(node);
}

/* xa_mk_value() of a swap entry. */
static void *swapped(uint64_t type, uint64_t slot)
{
	return (void *)((type << 58 | slot) << 1 | XA_VALUE);
}

static void finds_a_swapped_page_in_a_file_of_any_size(void **state)
{
	static const uint64_t at[] = { 0, 1, 63, 64, 65, 4095, 4096, 4160, 262143, 262144,
				       262145, 1ULL << 30, 1ULL << 36, (1ULL << 36) + 64 };
	enum { N = sizeof(at) / sizeof(at[0]) };

	/* All files of up to three pages in swap, of any of these numbers. */
	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++)
			for (int k = 0; k < N; k++) {
				struct address_space pages = { 0 };

				store(&pages, at[i], swapped(3, 7));
				store(&pages, at[j], swapped(3, 8));
				store(&pages, at[k], swapped(3, 9));
				for (int n = 0; n < N; n++) {
					bool in = n == i || n == j || n == k;
					uint64_t entry = page_cache_entry((uintptr_t)&pages, at[n]);

					assert_int_equal(entry & XA_VALUE, in);
					if (in)
						assert_int_equal(entry >> SWAP_TYPE_SHIFT, 3);
				}
				drop(pages.i_pages.xa_head);
			}
}

/*
 * Pages of a file, mapped from its page 60 on at page 100: 100 to 104 in swap, of type @vpn % 3,
 * but 102 not; 105 resident and mapped, 106 resident, 107 the second page of a large swap entry.
 */
static void keeps_shared_memory_that_is_in_swap(void **state)
{
	uint64_t vpn[] = { 5, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109 };
	uint64_t entry[256] = { [5] = 1ULL << 62 | 1, [105] = 1ULL << 63 | 1ULL << 61,
				[108] = 1ULL << 62 | 1 };
	static uint64_t held[1 << 14];
	const struct zswap_slots zswap = { held, sizeof(held) * 8 - 1 };
	struct address_space pages = { 0 };
	struct target t = { .tgid = 1, .pidfd = -1, .pagemap = -1, .maps = -1 };
	struct target_kept k;
	FILE *f = tmpfile();

	assert_non_null(f);
	t.pagemap = fileno(f);
	assert_int_equal(pwrite(t.pagemap, entry, sizeof(entry), 0), sizeof(entry));
	for (uint64_t i = 100; i <= 104; i++)
		if (i != 102)
			store(&pages, i - 40, swapped(i % 3, i));
	store(&pages, 105 - 40, f);
	store(&pages, 106 - 40, f);
	store(&pages, 107 - 40, (void *)(6UL << 2 | XA_INTERNAL));
	/* The program's own copy, in a private mapping of the file, and the file's page. */
	store(&pages, 108 - 40, swapped(1, 108));
	target_learn(&t, &(struct ebb_memory){ .first = 100, .end = 200, .time_ns = SECOND,
					       .file = (uintptr_t)&pages, .index = 60 });
	kernel.calls = 0;
	k = target_keep_swapped(&t, vpn, 11, 1 << 2, &none, &shared);
	assert_int_equal(kernel.calls, 1);
	assert_int_equal(k.kept, 3);
	assert_int_equal(k.held_back, 2);
	assert_int_equal(k.type, 1);
	assert_int_equal(k.shared, 6);
	assert_memory_equal(vpn, ((uint64_t[]){ 5, 100, 103 }), 3 * sizeof(*vpn));
	held[(ebb_slot_bit(1, 103) & zswap.mask) / 64] = 1ULL << (ebb_slot_bit(1, 103) & 63);
	k = target_keep_swapped(&t, vpn, 3, 0, &zswap, &shared);
	assert_int_equal(k.kept, 2);
	assert_int_equal(k.zswapped, 1);
	assert_memory_equal(vpn, ((uint64_t[]){ 5, 100 }), 2 * sizeof(*vpn));
	/* Without the program, they are not touched. */
	kernel.refuses = true;
	k = target_keep_swapped(&t, vpn, 2, 0, &none, &shared);
	kernel.refuses = false;
	assert_int_equal(k.kept, 1);
	assert_int_equal(k.shared, 0);
	drop(pages.i_pages.xa_head);
	t.pagemap = -1;
	target_clear(&t);
	fclose(f);
}

static uint32_t drops(struct target *t, uint64_t *vpn, struct target_kept k, uint64_t left)
{
	uint32_t dropped = target_drop_files(t, vpn, &k);

	assert_int_equal(k.shared, left);
	return dropped;
}

/* Memory of a process, in whose middle a file was mapped since a fault told that it is memory. */
static void drops_pages_of_a_file_that_replaced_memory(void **state)
{
	int rw = PROT_READ | PROT_WRITE, anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
	char *area = mmap(NULL, 64 << EBB_PAGE_SHIFT, rw, anonymous, -1, 0);
	uint64_t first = (uintptr_t)area >> EBB_PAGE_SHIFT;
	uint64_t vpn[6], ahead[] = { 0, 15, 16, 31, 32, 63 };
	struct utsname u;
	unsigned int major, minor;
	bool tells;
	struct target t;
	FILE *f = tmpfile();
	pid_t pid;

	assert_true(area != MAP_FAILED && f);
	assert_true(mmap(area + (16 << EBB_PAGE_SHIFT), 16 << EBB_PAGE_SHIFT, rw,
			 MAP_PRIVATE | MAP_FIXED, fileno(f), 0) != MAP_FAILED);
	pid = start(0);
	assert_true(pid > 0);
	uname(&u);
	assert_int_equal(sscanf(u.release, "%u.%u", &major, &minor), 2);
	tells = major > 6 || (major == 6 && minor >= 11);
	if (!tells)
		print_message("Linux %s does not tell which pages are of a file\n", u.release);
	assert_int_equal(target_open(&t, (uint32_t)pid, 1, 0), 0);
	for (int i = 0; i < 6; i++)
		vpn[i] = first + ahead[i];
	assert_int_equal(drops(&t, vpn, (struct target_kept){ .kept = 6 }, 0), tells ? 2 : 0);
	if (tells) {
		assert_int_equal(vpn[1], first + 15);
		assert_int_equal(vpn[2], first + 32);
		assert_int_equal(vpn[3], first + 63);
	}
	/* Pages of shared memory stay, in their places. */
	for (int i = 0; i < 6; i++)
		vpn[i] = first + ahead[i];
	assert_int_equal(drops(&t, vpn, (struct target_kept){ .kept = 6, .shared = 0x34 },
			       tells ? 0x1c : 0x34), tells ? 1 : 0);
	/* Where nothing is mapped, and in a process that has exited. */
	munmap(area, 64 << EBB_PAGE_SHIFT);
	vpn[0] = 1;
	vpn[1] = first;
	assert_int_equal(drops(&t, vpn, (struct target_kept){ .kept = 2 }, 0), tells ? 1 : 0);
	end(pid);
	vpn[0] = first;
	assert_int_equal(drops(&t, vpn, (struct target_kept){ .kept = 1 }, 0), tells ? 1 : 0);
	target_close(&t);
	fclose(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_told_from_its_namesake),
		cmocka_unit_test(is_told_when_it_executes_another_program),
		cmocka_unit_test(knows_its_memory_by_its_faults),
		cmocka_unit_test(forgets_the_mapping_that_faulted_longest_ago),
		cmocka_unit_test(knows_the_mappings_of_many_threads),
		cmocka_unit_test(needs_memory_for_recent_mappings_only),
		cmocka_unit_test(holds_back_pages_of_devices_that_wait),
		cmocka_unit_test(skips_pages_that_zswap_holds),
		cmocka_unit_test(finds_a_swapped_page_in_a_file_of_any_size),
		cmocka_unit_test(keeps_shared_memory_that_is_in_swap),
		cmocka_unit_test(drops_pages_of_a_file_that_replaced_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
