// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Requests of many processes that take turns: what ebbd still knows of each, and which descriptors
 * it has.  The kernel, and all that limits a request, are the test's own.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "ebbd/prefetch/collapser.h"
#include "ebbd/prefetch/pacing.h"
#include "ebbd/prefetch/prefetch.h"
#include "ebbd/prefetch/prefetch_set.h"
#include "ebbd/prefetch/targets.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define SECOND 1000000000ULL
#define MS 1000000ULL
#define TELL_NS (250 * MS)      /* bpf/told.bpf.h */
#define OWNER 5
#define LEAF 77
#define FIRST 0x1000            /* of a process's mapping */
#define END 0x2000
#define ASKED 8                 /* pages of a request */
#define STALE_NS 1000
#define PROCESSES 10000
#define DESCRIPTOR(tgid, kind) (1000000 + 4 * (int)(tgid) + (kind))

enum kind { PIDFD, PAGEMAP, MAPS, KINDS = 4 };

static struct {
	uint64_t now;
	bool gone[PROCESSES];           /* exited */
	uint64_t file;                  /* from this page on, a file is mapped; 0 = none */
	unsigned char open[4 * PROCESSES];
	uint32_t opened, opens;         /* pagemaps, now and ever */
	uint64_t advised[PROCESSES];    /* pages */
	uint32_t queries;               /* of mappings */
	uint32_t forgotten, left;       /* by the collapser */
	uint32_t hangs;                 /* process, calls on whose memory hang; 0 = none */
	jmp_buf end;                    /* of the thread that calls */
	struct ebb_executor executor;
	struct prefetcher *p;
} w;

/* A call on process @tgid of the attached cgroup OWNER; if it hangs, worker.h ends the thread. */
static void call_on(uint32_t tgid)
{
	if (w.hangs != tgid)
		return;
	w.hangs = 0;
	prefetcher_leave(w.p, tgid, OWNER);
	longjmp(w.end, 1);
}

/* --- the kernel --------------------------------------------------------------- */

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
ssize_t __real_pread(int fd, void *to, size_t size, off_t at);
int __real_poll(struct pollfd *p, nfds_t n, int ms);
long __real_syscall(long n, ...);

int clock_gettime(clockid_t id, struct timespec *t)
{
	*t = (struct timespec){ .tv_sec = (time_t)(w.now / SECOND),
				.tv_nsec = (long)(w.now % SECOND) };
	return 0;
}

static int open_of(uint32_t tgid, enum kind kind)
{
	int fd = DESCRIPTOR(tgid, kind);

	assert_true(tgid < PROCESSES);
	if (w.gone[tgid])
		return errno = ESRCH, -1;
	assert_int_equal(w.open[fd - DESCRIPTOR(0, 0)]++, 0);
	w.opened += kind == PAGEMAP;
	w.opens += kind == PAGEMAP;
	return fd;
}

int __wrap_open(const char *path, int flags, ...)
{
	char name[16];
	uint32_t tgid;

	if (sscanf(path, "/proc/%u/%15s", &tgid, name) == 2)
		call_on(tgid);
	if (sscanf(path, "/proc/%u/%15s", &tgid, name) == 2)
		return open_of(tgid, !strcmp(name, "maps") ? MAPS : PAGEMAP);
	return __real_open(path, flags, 0600);
}

int __wrap_close(int fd)
{
	int at = fd - DESCRIPTOR(0, 0);

	if (at < 0)
		return __real_close(fd);
	assert_int_equal(w.open[at]--, 1);
	w.opened -= at % KINDS == PAGEMAP;
	return 0;
}

/* Every page is in swap. */
ssize_t __wrap_pread(int fd, void *to, size_t size, off_t at)
{
	uint64_t *entry = to;

	if (fd < DESCRIPTOR(0, 0))
		return __real_pread(fd, to, size, at);
	assert_int_equal(w.open[fd - DESCRIPTOR(0, 0)], 1);
	for (size_t i = 0; i < size / sizeof(*entry); i++)
		entry[i] = 1ULL << 62 | 1;
	return (ssize_t)size;
}

/* PROCMAP_QUERY: address, start and end, inode. */
int __wrap_ioctl(int fd, unsigned long request, ...)
{
	uint64_t *query, vpn;
	va_list a;

	va_start(a, request);
	query = va_arg(a, uint64_t *);
	va_end(a);
	assert_int_equal((fd - DESCRIPTOR(0, 0)) % KINDS, MAPS);
	assert_int_equal(w.open[fd - DESCRIPTOR(0, 0)], 1);
	vpn = query[2] >> EBB_PAGE_SHIFT;
	query[3] = (w.file && vpn >= w.file ? w.file : FIRST) << EBB_PAGE_SHIFT;
	query[4] = (w.file && vpn < w.file ? w.file : END) << EBB_PAGE_SHIFT;
	query[8] = w.file && vpn >= w.file ? 99 : 0;
	w.queries++;
	return 0;
}

int __wrap_poll(struct pollfd *p, nfds_t n, int ms)
{
	int ready = 0;

	for (nfds_t i = 0; i < n; i++) {
		if (p[i].fd < DESCRIPTOR(0, 0))
			return __real_poll(p, n, ms);
		p[i].revents = w.gone[(p[i].fd - DESCRIPTOR(0, 0)) / KINDS] ? POLLIN : 0;
		ready += p[i].revents != 0;
	}
	return ready;
}

long __wrap_syscall(long n, ...)
{
	const struct iovec *range;
	ssize_t done = 0;
	size_t ranges;
	long pidfd;
	va_list a;

	va_start(a, n);
	pidfd = va_arg(a, long);
	if (n == SYS_pidfd_open) {
		va_end(a);
		return open_of((uint32_t)pidfd, PIDFD);
	}
	assert_int_equal(n, SYS_process_madvise);
	range = va_arg(a, const struct iovec *);
	ranges = va_arg(a, size_t);
	va_end(a);
	assert_int_equal(w.open[(int)pidfd - DESCRIPTOR(0, 0)], 1);
	for (size_t i = 0; i < ranges; i++)
		done += (ssize_t)range[i].iov_len;
	w.advised[((int)pidfd - DESCRIPTOR(0, 0)) / KINDS] += (uint64_t)done >> EBB_PAGE_SHIFT;
	return done;
}

/* --- the rest of ebbd: nothing limits a request --------------------------------- */

static struct budget *const budget = (struct budget *)&w;
static struct leaf *const leaf = (struct leaf *)&w;

int plane_map(const struct plane *p, const char *name) { return -1; }
uint32_t absence_types(const struct absence *a) { return 0; }

int budget_cpu(const struct budget *b) { return BUDGET_ANY_CPU; }
void budget_cut(struct budget *b, uint32_t pages) { }
void budget_detect(struct budget *b) { }
struct budget *budget_hold(struct budget_table *t, uint64_t owner) { return budget; }
bool budget_in_flight(uint64_t issued, uint64_t now) { return false; }
void budget_lost(struct budget *b, uint32_t source, uint32_t lost) { }
bool budget_others_wait(const struct budget *b) { return false; }
void budget_paced(struct budget *b, uint32_t pages) { }
bool budget_passes(struct budget *b) { return true; }
void budget_predicted(struct budget *b, uint32_t source, uint32_t pages) { }
void budget_release(struct budget *b) { }
void budget_settle(struct budget *b, uint32_t asked) { }
struct budget_sweep *budget_sweep_begin(struct budget_table *t, uint64_t now) { return NULL; }
void budget_sweep_end(struct budget_sweep *s) { }
void budget_sweep_expired(struct budget_sweep *s, uint64_t owner, uint32_t source) { }
bool budget_sweep_keep(struct budget_sweep *s, uint64_t o, uint64_t ns) { return true; }
uint32_t budget_take(struct budget *b, uint32_t wanted, uint64_t now) { return wanted; }
uint32_t budget_weight(const struct budget *b) { return 100; }

struct collapser *collapser_new(enum collapse_wish wish, const struct ebb_executor *counted,
				struct executor_stats *stats)
{
	return (struct collapser *)&w;
}

void collapser_free(struct collapser **c) { }
void collapser_sweep(struct collapser *c, uint64_t now) { }
void collapser_leave(struct collapser *c, const struct target *t) { w.left++; }

uint64_t collapser_behind(struct collapser *c, const struct collapse_job *j,
			  const struct ebb_request *r, uint64_t now)
{
	return 0;
}

/* It makes calls on the process. */
void collapser_forget(struct collapser *c, const struct target *t)
{
	assert_true(t->pidfd >= 0);
	call_on(t->tgid);
	w.forgotten++;
}

struct leaf *leaf_find(struct leaves *l, uint64_t id, uint64_t now)
{
	return id == LEAF ? leaf : NULL;
}

bool leaf_make_room(struct leaf *f, uint32_t pages) { return true; }
void leaf_settle(struct leaf *f, uint32_t asked) { }
uint32_t leaf_take(struct leaves *l, struct leaf *f, uint32_t wanted) { return wanted; }
void leaves_free(struct leaves **l) { }
void leaves_learn(struct leaves *l, uint32_t tgid, uint64_t id, uint64_t now) { }
struct leaves *leaves_new(int map, uint32_t headroom) { return (struct leaves *)&w; }
void leaves_sweep_begin(struct leaves *l) { }
void leaves_sweep_end(struct leaves *l, uint64_t now) { }
void leaves_sweep_page(struct leaves *l, uint32_t tgid) { }

void pacing_adapt(struct pacing *p, uint64_t now) { }
void pacing_free(struct pacing **p) { }
bool pacing_limits(const struct pacing *p, uint32_t type) { return false; }
uint64_t pacing_reads(const struct pacing *p) { return 0; }
void pacing_refresh(struct pacing *p) { }
void pacing_requested(struct pacing *p, uint32_t t, uint32_t n, bool b, uint64_t now) { }
uint32_t pacing_take(struct pacing *p, uint32_t type, uint32_t n, uint64_t now) { return n; }
const struct pace_view *pacing_view(const struct pacing *p) { return NULL; }

struct pacing *pacing_new(const struct plane *plane, const struct executor_config *config)
{
	return (struct pacing *)&w;
}

struct prefetch_entered prefetch_set_enter(struct prefetch_set *s, const struct prefetch_key *key,
					   uint64_t *vpn, uint32_t n, uint64_t now)
{
	return (struct prefetch_entered){ .fresh = n };
}

void prefetch_set_free(struct prefetch_set **s) { }
struct prefetch_maps prefetch_set_maps(struct plane *p) { return (struct prefetch_maps){ 0 }; }

struct prefetch_set *prefetch_set_new(const struct prefetch_maps *maps)
{
	return (struct prefetch_set *)&w;
}

void prefetch_set_renew(struct prefetch_set *s, const struct prefetch_key *key, const uint64_t *vpn,
			uint32_t n, uint64_t now)
{
}

bool prefetch_set_sweep(struct prefetch_set *s, const struct prefetch_sweep *sweep)
{
	return true;
}

uint32_t prefetch_set_withdraw(struct prefetch_set *s, const struct prefetch_key *key,
			       const uint64_t *vpn, uint32_t n)
{
	return 0;
}

static struct ebb_look look;

struct shared_pages shared_pages_of(struct plane *p) { return (struct shared_pages){ 0 }; }
void shared_pages_begin(struct shared_pages *s) { }
void shared_pages_add(struct shared_pages *s, uint64_t file, uint64_t index) { }
const struct ebb_look *shared_pages_answer(struct shared_pages *s) { return &look; }

bool worker_excludes(const struct worker *o, uint32_t tgid, uint64_t owner) { return false; }
void worker_call_begin(uint32_t tgid, uint64_t owner) { }
void worker_call_end(void) { }
bool worker_call_returned(void) { return true; }
_Noreturn void worker_quit(void) { fail(); for (;;); }

void zswap_free(struct zswap **z) { }
struct zswap *zswap_new(struct plane *plane) { return (struct zswap *)&w; }
enum zswap_state zswap_watch(struct zswap *z) { return ZSWAP_OFF; }

const struct zswap_slots *zswap_slots(const struct zswap *z)
{
	static const struct zswap_slots none;

	return &none;
}

/* --- tests --------------------------------------------------------------------- */

static const struct executor_config config = {
	.batch = 64, .inflight = 64, .stale_ns = STALE_NS, .expire_ns = 10 * SECOND,
};

static int setup(void **state)
{
	struct plane plane = { .executor = &w.executor };

	memset(&w, 0, sizeof(w));
	w.now = 1000 * SECOND;
	w.p = prefetcher_new(&plane, NULL, &config, NULL);
	return !w.p;
}

static int teardown(void **state)
{
	prefetcher_free(&w.p);
	assert_null(memchr(w.open, 1, sizeof(w.open)));
	return 0;
}

static void learn_in(uint32_t tgid, uint32_t exec, uint64_t owner)
{
	prefetcher_learn(w.p, &(struct ebb_memory){
		.first = FIRST, .stride = 1, .end = END, .owner = owner, .time_ns = w.now,
		.tgid = tgid, .exec = exec, .op = EBB_OP_MEMORY, .leaf = LEAF,
	});
}

static void learn(uint32_t tgid)
{
	learn_in(tgid, 1, OWNER);
}

/* Requests pages that were not requested lately; returns how many were prefetched. */
static uint64_t ask_in(uint32_t tgid, uint32_t exec, uint64_t owner)
{
	uint64_t before = w.advised[tgid];

	w.now += STALE_NS;
	prefetcher_request(w.p, &(struct ebb_list_request){ .head = {
		.first = FIRST, .stride = 1, .owner = owner, .time_ns = w.now, .tgid = tgid,
		.exec = exec, .count = ASKED, .op = EBB_OP_PREFETCH,
	} });
	while (prefetcher_run(w.p))
		;
	return w.advised[tgid] - before;
}

static uint64_t ask(uint32_t tgid)
{
	return ask_in(tgid, 1, OWNER);
}

/* Each tells its mapping four times a second, and requests pages in between. */
static void processes_take_turns(uint32_t n, uint32_t seconds)
{
	const struct executor_stats *s = prefetcher_stats(w.p);
	uint64_t asked = 0;

	for (uint32_t tell = 0; tell < 4 * seconds; tell++)
		for (int turn = 0; turn < 4; turn++) {
			for (uint32_t i = 1; i <= n; i++) {
				if (!turn)
					learn(i);
				assert_int_equal(ask(i), ASKED);
				asked += ASKED;
			}
			w.now += TELL_NS / 4;
		}
	assert_int_equal(s->pages, asked);
	assert_int_equal(s->unknown, 0);
	assert_int_equal(s->full, 0);
	assert_int_equal(s->stale, 0);
}

static void sixty_five_processes_take_turns(void **state)
{
	processes_take_turns(65, 4);
	/* Their descriptors remain. */
	assert_int_equal(w.opens, 65);
	assert_int_equal(w.forgotten, 0);
}

static void a_thousand_processes_take_turns(void **state)
{
	processes_take_turns(1000, 1);
	assert_int_equal(w.opened, TARGETS_OPEN);
	assert_int_equal(w.forgotten, w.opens - w.opened);
}

static void an_unknown_process_is_counted_apart(void **state)
{
	const struct executor_stats *s = prefetcher_stats(w.p);

	assert_int_equal(ask(7), 0);
	assert_int_equal(s->unknown, 1);
	assert_int_equal(s->full + s->stale + s->not_memory, 0);
	assert_int_equal(w.opens, 0);
	learn(7);
	assert_int_equal(ask(7), ASKED);
	assert_int_equal(s->unknown, 1);
	/* It has exited, which is another matter. */
	learn(8);
	w.gone[8] = true;
	assert_int_equal(ask(8), 0);
	assert_int_equal(s->stale, 1);
	assert_int_equal(ask(8), 0);
	assert_int_equal(s->unknown, 2);
}

static void another_program_is_learnt_anew(void **state)
{
	learn(7);
	assert_int_equal(ask(7), ASKED);
	assert_int_equal(ask_in(7, 2, OWNER), 0);
	learn_in(7, 2, OWNER);
	assert_int_equal(w.opened, 0);
	assert_int_equal(ask_in(7, 2, OWNER), ASKED);
	/* A request of before must not reach the new program. */
	assert_int_equal(ask(7), 0);
	assert_int_equal(prefetcher_stats(w.p)->unknown, 2);
	assert_int_equal(w.opened, 1);
}

static void processes_that_exited_are_forgotten(void **state)
{
	for (uint32_t i = 1; i <= 20; i++) {
		learn(i);
		if (i <= 10)
			ask(i);
		w.gone[i] = i % 2;
	}
	prefetcher_sweep(w.p, w.now);
	assert_int_equal(w.opened, 5);
	assert_int_equal(w.forgotten, 5);
	/* Numbers are used again. */
	memset(w.gone, 0, sizeof(w.gone));
	for (uint32_t i = 1; i <= 10; i++)
		assert_int_equal(ask(i), i % 2 ? 0 : ASKED);
	learn(1);
	assert_int_equal(ask(1), ASKED);
}

static void processes_that_do_not_fault_are_forgotten(void **state)
{
	uint64_t sweeps = 0;

	for (uint32_t i = 1; i <= 1000; i++) {
		learn(i);
		ask(i);
	}
	w.now += TARGETS_UNUSED_NS;
	learn(1);
	do
		prefetcher_sweep(w.p, w.now);
	while (sweeps++ < 20);
	assert_int_equal(w.opened, 0);
	assert_int_equal(ask(1), ASKED);
	assert_int_equal(ask(2), 0);
	assert_int_equal(ask(1000), 0);
	assert_int_equal(prefetcher_stats(w.p)->unknown, 2);
}

static void of_too_many_the_latest_are_known(void **state)
{
	uint32_t n = PROCESSES - 1;

	for (uint32_t i = 1; i <= n; i++) {
		learn(i);
		if (i % 16 == 0)
			assert_int_equal(ask(1), ASKED);
	}
	assert_int_equal(ask(n - TARGETS_MAX), 0);
	for (uint32_t i = n - TARGETS_MAX + 2; i <= n; i++)
		assert_int_equal(ask(i), ASKED);
	assert_int_equal(ask(1), ASKED);
}

/* As worker.h requires: no call on their memory, and those of other cgroups stay. */
static void a_cgroup_whose_process_hangs_is_forgotten(void **state)
{
	for (uint32_t i = 1; i <= 9; i++) {
		learn_in(i, 1, OWNER + i % 3);
		if (i <= 6)
			ask_in(i, 1, OWNER + i % 3);
	}
	prefetcher_leave(w.p, 1, OWNER + 2);
	assert_int_equal(w.forgotten, 0);
	assert_int_equal(w.left, 4);
	assert_int_equal(w.opened, 3);
	for (uint32_t i = 1; i <= 9; i++)
		assert_int_equal(ask_in(i, 1, OWNER + i % 3), i == 1 || i % 3 == 2 ? 0 : ASKED);
}

/* A process hangs when it is opened, and when it is closed for another one. */
static void nothing_of_a_process_that_hangs_is_left(void **state)
{
	const uint32_t n = TARGETS_OPEN;

	for (uint32_t i = 1; i <= n + 1; i++) {
		learn_in(i, 1, OWNER + 1);
		if (i <= n)
			ask_in(i, 1, OWNER + 1);
	}
	learn(n + 2);
	w.hangs = n + 2;
	if (!setjmp(w.end))
		ask(n + 2);
	assert_int_equal(w.hangs, 0);
	assert_int_equal(w.opened, n - 1);
	assert_int_equal(ask_in(1, 1, OWNER + 1), ASKED);
	w.hangs = 2;
	if (!setjmp(w.end))
		ask_in(n + 1, 1, OWNER + 1);
	assert_int_equal(w.hangs, 0);
	assert_int_equal(w.opened, n - 1);
	/* The request during which the thread ended is still the next one: both are executed. */
	assert_int_equal(ask_in(n + 1, 1, OWNER + 1), ASKED);
	assert_int_equal(prefetcher_stats(w.p)->repeated, ASKED);
	assert_int_equal(w.opened, n);
	assert_int_equal(ask(n + 2), 0);
	assert_int_equal(ask_in(2, 1, OWNER + 1), 0);
	learn(n + 2);
	assert_int_equal(ask(n + 2), ASKED);
}

/* A batch costs one look at a mapping, before the call. */
static void a_file_that_replaced_memory_is_not_read(void **state)
{
	const struct executor_stats *s = prefetcher_stats(w.p);

	learn(7);
	assert_int_equal(ask(7), ASKED);
	assert_int_equal(w.queries, 1);
	w.file = FIRST + 2;
	assert_int_equal(ask(7), 2);
	assert_int_equal(s->not_memory, ASKED - 2);
	w.file = FIRST;
	assert_int_equal(ask(7), 0);
	assert_int_equal(s->pages, ASKED + 2);
	assert_int_equal(s->not_memory, ASKED - 2 + ASKED);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(sixty_five_processes_take_turns),
		TEST(a_thousand_processes_take_turns),
		TEST(an_unknown_process_is_counted_apart),
		TEST(another_program_is_learnt_anew),
		TEST(processes_that_exited_are_forgotten),
		TEST(processes_that_do_not_fault_are_forgotten),
		TEST(of_too_many_the_latest_are_known),
		TEST(a_cgroup_whose_process_hangs_is_forgotten),
		TEST(nothing_of_a_process_that_hangs_is_left),
		TEST(a_file_that_replaced_memory_is_not_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
