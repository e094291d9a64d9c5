// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * /dev/ublkbN: requests come by an io_uring, from Linux's ublk_drv.
 *
 * The kernel has DEPTH tags for us, numbered through its queues.  Each tag has a slot while the
 * kernel owns it ("armed": it may copy a WRITE's pages there at any time) and while its request is
 * in flight.  An answer gives the tag a slot for its next request: its present one, unless that
 * still waits for the backup.
 *
 * The thread that fetches from a queue also answers there (the kernel takes neither from another
 * thread), and may serve all queues: one thread does all I/O, by one ring.
 *
 * The device outlives its server.  The kernel repeats unanswered requests once a successor has
 * registered (UBLK_F_USER_RECOVERY_REISSUE).  Before that, the successor restarts the writes that
 * are in slots, so that no partly done write can be read.  drivers/block/ublk_drv.c of Linux 6.12
 * shows this behaviour.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "frontend.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/host/ublk_control.h"
#include "swapd/page/shared.h"

/* Depth of a loop device, shared by the queues: each tag costs a slot. */
#define DEPTH 128
/*
 * At most; Linux has no more than processors, whose programs then do not wait for each other's
 * tags.  In a guest with two processors, four programs with 8 or 32 reads in flight each take 15 to
 * 23 % fewer context switches a page than with one queue.
 */
#define QUEUES 2u
#define SECTOR_SHIFT 9
/*
 * Slots are armed, in flight for predecessors (failover.c: at most one per tag), answered and
 * waiting for the backup, or used by repair, which takes few: an answer always finds one.
 */
#define SLOTS (2 * DEPTH + 32)
_Static_assert(SLOT_COUNT - SLOTS >= DEPTH, "writes do not wait for the backup one by one");
_Static_assert(SLOTS - DEPTH > SLOTS_RESERVED, "repair has slots while all tags have requests");

#define COMMAND_MS 10000
/* DEL_DEV waits until no process has the device open. */
#define DELETE_MS 3000
/* Time for /dev/ublkcN to appear or be free, and for the memory to open it. */
#define NODE_MS 5000
/* The kernel needs up to 30 s to notice the end of a server, if at all. */
#define RECOVER_NS 40000000000ull

#define RECOVER_LOOK_MS 500
/* Time for work that the kernel has scheduled for a dead server. */
#define QUIESCE_NS 20000000ull

#define NEEDED (UBLK_F_USER_RECOVERY | UBLK_F_USER_RECOVERY_REISSUE | UBLK_F_CMD_IOCTL_ENCODE)

struct ublk {
	struct ublk_control control;
	struct io_uring ring;
	bool has_ring;
	int fd;                     /* /dev/ublkcN: open in one process at a time */
	const struct ublksrv_io_desc *requests[QUEUES]; /* per queue: requests of its tags */
	struct slot *slot[DEPTH];   /* slot of each tag; NULL: no further request by it */
	int ended;                  /* number of ended tags */
	uint32_t stopping;
	/* A member, because the kernel may write there after its command has timed out. */
	struct ublksrv_ctrl_dev_info info;
};

static uint16_t tags(const struct frontend_host *h)
{
	return (uint16_t)(h->shared->ublk_queues * h->shared->ublk_depth);
}

static size_t requests_size(const struct frontend_host *h)
{
	size_t size = h->shared->ublk_depth * sizeof(struct ublksrv_io_desc);

	return (size + EBB_PAGE - 1) / EBB_PAGE * EBB_PAGE; /* the kernel maps whole pages only */
}

static uint32_t device(const struct frontend_host *h)
{
	return h->shared->ublk - 1;
}

/* --- requests and answers ---------------------------------------------------------- */

/* Gives tag @tag to the kernel again, with the slot of its next request. */
static void arm(struct frontend_host *h, uint16_t tag, uint32_t op, int result, struct slot *slot)
{
	struct ublk *u = h->ublk;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
	struct ublksrv_io_cmd cmd = {
		.q_id = tag / h->shared->ublk_depth, .tag = tag % h->shared->ublk_depth,
		.result = result,
		.addr = (uintptr_t)slot->payload,
	};

	/* Never happens: the ring has an entry for each tag. */
	while (!sqe) {
		io_uring_submit(&u->ring);
		sqe = io_uring_get_sqe(&u->ring);
	}
	u->slot[tag] = slot;
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = u->fd;
	sqe->cmd_op = op;
	sqe->user_data = tag;
	memcpy(sqe->cmd, &cmd, sizeof(cmd));
}

static void ublk_flush(struct frontend_host *h)
{
	int r = 0;

	while (io_uring_sq_ready(&h->ublk->ring) && (r >= 0 || r == -EINTR || r == -EAGAIN))
		r = io_uring_submit(&h->ublk->ring);
	if (r < 0)
		count_add(&h->count->fuse_errors, 1);
}

static enum slot_after ublk_answer(void *host, struct slot *slot, int error)
{
	struct frontend_host *h = host;
	uint16_t tag = (uint16_t)(slot->unique - 1);
	int result = slot->kind == SLOT_DISCARD ? 0 : (int)(slot->count * EBB_PAGE);

	/* A predecessor's request. */
	if (!slot->unique)
		return SLOT_DONE;
	/* The kernel reads answers from where it writes requests: the payload. */
	if (!error && slot->source)
		memcpy(slot->payload, slot->source, slot->count * (size_t)EBB_PAGE);
	arm(h, tag, UBLK_U_IO_COMMIT_AND_FETCH_REQ, error ? error : result,
	    slot->backing ? h->get(h->engine) : slot);
	return slot->backing ? SLOT_DONE : SLOT_KEPT;
}

/* Starts the request that arrived by @tag. */
static void take(struct frontend_host *h, uint16_t tag)
{
	struct ublk *u = h->ublk;
	uint16_t depth = h->shared->ublk_depth;
	const struct ublksrv_io_desc *d = &u->requests[tag / depth][tag % depth];
	uint64_t first = d->start_sector >> (EBB_PAGE_SHIFT - SECTOR_SHIFT);
	uint64_t count = d->nr_sectors >> (EBB_PAGE_SHIFT - SECTOR_SHIFT);
	enum slot_kind kind;

	switch (ublksrv_get_op(d)) {
	case UBLK_IO_OP_READ:
		kind = SLOT_READ;
		break;
	case UBLK_IO_OP_WRITE:
		kind = SLOT_WRITE;
		break;
	case UBLK_IO_OP_DISCARD:
	case UBLK_IO_OP_WRITE_ZEROES:
		kind = SLOT_DISCARD;
		break;
	case UBLK_IO_OP_FLUSH:
		arm(h, tag, UBLK_U_IO_COMMIT_AND_FETCH_REQ, 0, u->slot[tag]);
		return;
	default:
		arm(h, tag, UBLK_U_IO_COMMIT_AND_FETCH_REQ, -EOPNOTSUPP, u->slot[tag]);
		return;
	}
	/* The block layer ensures valid ranges; a wrong one must not exceed its slot. */
	if (!count || first > h->pages || count > h->pages - first ||
	    (kind != SLOT_DISCARD && count > SLOT_PAGES)) {
		arm(h, tag, UBLK_U_IO_COMMIT_AND_FETCH_REQ, -EIO, u->slot[tag]);
		return;
	}
	frontend_start(h, u->slot[tag], kind, tag + 1u, first, count);
}

static int ublk_receive(struct frontend_host *h, int most)
{
	struct ublk *u = h->ublk;
	struct io_uring_cqe *cqe;
	int n = 0;

	while (n < most && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
		uint16_t tag = (uint16_t)cqe->user_data;
		int result = cqe->res;

		io_uring_cqe_seen(&u->ring, cqe);
		n++;
		if (result == UBLK_IO_RES_OK) {
			take(h, tag);
			continue;
		}
		h->put(h->engine, u->slot[tag]);
		u->slot[tag] = NULL;
		u->ended++;
	}
	return u->ended == tags(h) ? -ENODEV : n;
}

/* --- beginning and end ------------------------------------------------------------- */

static int ublk_open(struct frontend_host *h, struct error *e)
{
	struct ublk_control c;
	int r = ublk_control_open(&c);

	if (r)
		return fail_exit(e, EXIT_UNSUPPORTED, r, UBLK_CONTROL_PATH ": %s; modprobe ublk_drv, or use --frontend fuse",
				 strerror(-r));
	ublk_control_close(&c);
	return 0;
}

static int ublk_prepare(struct frontend_host *h, struct error *e)
{
	struct ublk *u = calloc(1, sizeof(*u));
	int r;

	if (!u)
		return fail(e, ENOMEM, "ublk: out of memory");
	h->ublk = u;
	u->fd = u->control.fd = -1;
	r = ublk_control_open(&u->control);
	/* This thread learns of requests when it enters the kernel: no interrupts needed. */
	if (!r)
		r = io_uring_queue_init(DEPTH, &u->ring,
					IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SINGLE_ISSUER);
	u->has_ring = !r;
	if (r)
		return fail(e, r, "ublk: io_uring: %s; see sysctl kernel.io_uring_disabled",
			    strerror(-r));
	/* Starts the kernel's thread for commands, which a failover then need not create. */
	ublk_control_do(&u->control, UBLK_U_CMD_GET_DEV_INFO, h->shared->ublk ? device(h) : 0,
			&u->info, sizeof(u->info), 0, COMMAND_MS);
	return 0;
}

static int open_node(struct frontend_host *h)
{
	struct ublk *u = h->ublk;
	/* Offset of a queue's requests, whatever its depth. */
	const off_t each = UBLK_MAX_QUEUE_DEPTH * sizeof(struct ublksrv_io_desc);
	char path[32];
	void *requests;

	snprintf(path, sizeof(path), "/dev/ublkc%u", device(h));
	if (u->fd < 0)
		u->fd = open(path, O_RDWR | O_CLOEXEC);
	if (u->fd < 0)
		return -errno;
	for (uint32_t q = 0; q < h->shared->ublk_queues; q++) {
		if (u->requests[q])
			continue;
		requests = mmap(NULL, requests_size(h), PROT_READ, MAP_SHARED | MAP_POPULATE,
				u->fd, UBLKSRV_CMD_BUF_OFFSET + q * each);
		if (requests == MAP_FAILED)
			return -errno;
		u->requests[q] = requests;
	}
	return 0;
}

/* Opens /dev/ublkcN, maps its requests, and arms each tag with a slot. */
static int attach(struct frontend_host *h)
{
	int r = open_node(h);

	/* devtmpfs creates the node at once, other udevs later; a shortage of memory may end. */
	for (int ms = 0; r && r != -EINVAL && ms < NODE_MS; ms += 10) {
		usleep(10000);
		count_add(h->beats, 1);
		r = open_node(h);
	}
	for (uint16_t tag = 0; tag < tags(h) && !r; tag++)
		arm(h, tag, UBLK_U_IO_FETCH_REQ, -1, h->get(h->engine));
	if (!r)
		ublk_flush(h);
	return r;
}

static int set_parameters(struct frontend_host *h)
{
	struct ublk_params p = {
		.len = sizeof(p),
		.types = UBLK_PARAM_TYPE_BASIC | UBLK_PARAM_TYPE_DISCARD,
		/* An answered write is as safe as it gets: no volatile cache, hence no FLUSH. */
		.basic = {
			.logical_bs_shift = EBB_PAGE_SHIFT, .physical_bs_shift = EBB_PAGE_SHIFT,
			.io_opt_shift = EBB_PAGE_SHIFT, .io_min_shift = EBB_PAGE_SHIFT,
			.max_sectors = SLOT_BYTES >> SECTOR_SHIFT,
			.dev_sectors = (uint64_t)h->pages << (EBB_PAGE_SHIFT - SECTOR_SHIFT),
		},
		.discard = {
			.discard_granularity = EBB_PAGE, .max_discard_segments = 1,
			.max_discard_sectors = 1u << 30 >> SECTOR_SHIFT,
			.max_write_zeroes_sectors = 1u << 30 >> SECTOR_SHIFT,
		},
	};

	return ublk_control_do(&h->ublk->control, UBLK_U_CMD_SET_PARAMS, device(h), &p, sizeof(p),
			       0, COMMAND_MS);
}

/* The kernel scans for partitions before it returns: requests are served meanwhile. */
static int start_device(struct frontend_host *h)
{
	struct ublk *u = h->ublk;
	struct pollfd p[] = {
		{ .fd = u->control.ring.ring_fd, .events = POLLIN },
		{ .fd = u->ring.ring_fd, .events = POLLIN },
	};
	int r = ublk_control_give(&u->control, UBLK_U_CMD_START_DEV, device(h), NULL, 0,
				  (uint64_t)getpid());

	if (r)
		return r;
	for (int rounds = 0; rounds < COMMAND_MS / 10; rounds++) {
		r = ublk_control_result(&u->control, 0);
		if (r != -ETIME)
			return r;
		poll(p, 2, 10);
		r = ublk_receive(h, DEPTH);
		if (r < 0)
			return r;
		ublk_flush(h);
	}
	return -ETIMEDOUT;
}

static void ublk_end(struct frontend_host *h);

static int ublk_begin(struct frontend_host *h, struct error *e)
{
	uint16_t queues = get_nprocs_conf() < (int)QUEUES ? 1 : QUEUES;
	struct ublksrv_ctrl_dev_info info = {
		.nr_hw_queues = queues, .queue_depth = DEPTH / queues,
		.max_io_buf_bytes = SLOT_BYTES,
		.dev_id = (uint32_t)-1, .flags = NEEDED,
		.ublksrv_flags = ublk_control_mark(h->device),
	};
	char path[PATH_MAX], number[16];
	int r;

	r = ublk_control_do(&h->ublk->control, UBLK_U_CMD_ADD_DEV, (uint32_t)-1, &info,
			    sizeof(info), 0, COMMAND_MS);
	if (r)
		return fail_exit(e, EXIT_UNSUPPORTED, r, "ublk: no new device: %s; it needs Linux 6.4 and root, else use --frontend fuse",
				 strerror(-r));
	h->shared->ublk = info.dev_id + 1;
	h->shared->ublk_queues = info.nr_hw_queues;
	h->shared->ublk_depth = info.queue_depth;
	if ((info.flags & NEEDED) != NEEDED) {
		ublk_end(h);
		return fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
				 "ublk: this kernel cannot fail over its devices; use --frontend fuse");
	}
	ublk_control_note(h->device, path);
	snprintf(number, sizeof(number), "%u\n", info.dev_id);
	r = file_replace(path, number);
	if (!r)
		r = set_parameters(h);
	if (!r)
		r = attach(h);
	if (!r)
		r = start_device(h);
	if (r) {
		ublk_end(h);
		return fail(e, r, "/dev/ublkb%u: %s; see dmesg, or use --frontend fuse", info.dev_id,
			    strerror(-r));
	}
	return 0;
}

/* Returns whether the device has been stopped or deleted meanwhile. */
static bool is_stopped(struct frontend_host *h)
{
	struct ublksrv_ctrl_dev_info *info = &h->ublk->info;
	int r = ublk_control_do(&h->ublk->control, UBLK_U_CMD_GET_DEV_INFO, device(h), info,
				sizeof(*info), 0, COMMAND_MS);

	return r == -ENODEV || (!r && info->state == UBLK_S_DEV_DEAD);
}

/* Returns -EBUSY until the kernel is done with the dead server. */
static int start_recovery(struct frontend_host *h)
{
	uint64_t until = now_ns() + RECOVER_NS;

	for (;;) {
		int r = ublk_control_do(&h->ublk->control, UBLK_U_CMD_START_USER_RECOVERY,
					device(h), NULL, 0, 0, COMMAND_MS);

		/* The command is in progress: a second one would be refused when it completes. */
		while (r == -ETIME && now_ns() < until) {
			count_add(h->beats, 1);
			h->poll(h->engine, 1);
			r = ublk_control_result(&h->ublk->control, RECOVER_LOOK_MS);
		}
		if (r != -EBUSY || now_ns() >= until)
			return r;
		if (is_stopped(h))
			return -ENODEV;
		count_add(h->beats, 1);
		h->poll(h->engine, 1);
	}
}

/*
 * Linux 6.12 schedules quiesce_work for each queue of the dead server.  The first run lets recovery
 * begin.  A later run also cancels all FETCH commands, those of the successor as well, which would
 * end all I/O.  So the successor sends none for a while.
 */
static void let_quiesce(struct frontend_host *h)
{
	uint64_t until = now_ns() + QUIESCE_NS;

	while (now_ns() < until) {
		count_add(h->beats, 1);
		h->poll(h->engine, 1);
	}
}

/*
 * Checks own resources before telling the kernel, because Linux 6.12 begins recovery once per dead
 * server.  A successor that begins and dies or gives up before its last FETCH makes the next one's
 * begin fail (-EINVAL); that one may continue if the first had not mapped the requests yet.  Later
 * kernels begin again.
 */
static int ublk_take_over(struct frontend_host *h, struct slot *reading)
{
	char why[160];
	int begun, r = *h->free < DEPTH ? -ENOBUFS : 0;

	/* The kernel may take long: let donors start their work. */
	h->poll(h->engine, 0);
	begun = r ? 0 : start_recovery(h);
	if (!r && begun != -EINVAL)
		r = begun;
	if (!r)
		let_quiesce(h);
	if (!r)
		r = attach(h);
	if (!r)
		r = ublk_control_do(&h->ublk->control, UBLK_U_CMD_END_USER_RECOVERY, device(h),
				    NULL, 0, (uint64_t)getpid(), COMMAND_MS);
	if (!r)
		return 0;
	/* The next server would fail too, and all I/O would wait. */
	if (begun)
		__atomic_store_n(&h->shared->refused, 1, __ATOMIC_RELAXED);
	snprintf(why, sizeof(why), "/dev/ublkb%u: the kernel refuses another server: %s",
		 device(h), strerror(-r));
	h->last_words(h->engine, why);
	return r;
}

static void delete (struct frontend_host *h)
{
	struct ublk_control c;
	char path[PATH_MAX];
	int r;

	/* Not the server's ublk_control: the supervisor runs this, too. */
	r = ublk_control_open(&c);
	if (!r) {
		r = ublk_control_do(&c, UBLK_U_CMD_DEL_DEV, device(h), NULL, 0, 0, DELETE_MS);
		ublk_control_close(&c);
	}
	ublk_control_note(h->device, path);
	/* -ETIME: deleted, but still open in some process. */
	if (!r || r == -ENODEV || r == -ETIME)
		unlink(path);
	else
		log_err("/dev/ublkb%u: not taken away: %s; ebbctl device destroy %s --force",
			device(h), strerror(-r), h->device);
	h->shared->ublk = 0;
}

static void ublk_end(struct frontend_host *h)
{
	struct ublk *u = h->ublk;

	if (u && u->has_ring)
		io_uring_queue_exit(&u->ring);
	for (uint32_t q = 0; u && q < QUEUES; q++)
		if (u->requests[q])
			munmap((void *)u->requests[q], requests_size(h));
	if (u && u->fd >= 0)
		close(u->fd);
	if (u)
		ublk_control_close(&u->control);
	free(u);
	h->ublk = NULL;
	if (h->shared && h->shared->ublk)
		delete (h);
}

static int ublk_fd(const struct frontend_host *h)
{
	return h->ublk->ring.ring_fd;
}

static void ublk_where(const struct frontend_host *h, char *text, size_t size)
{
	snprintf(text, size, "/dev/ublkb%u", device(h));
}

/* O_EXCL fails while swap or a file system uses the device. */
static int ublk_stop(struct frontend_host *h)
{
	_cleanup_close_ int block = -1;
	struct ublk_control c;
	char path[32];
	int r;

	ublk_where(h, path, sizeof(path));
	block = open(path, O_RDONLY | O_EXCL | O_CLOEXEC);
	if (block < 0)
		return -errno;
	r = ublk_control_open(&c);
	if (r)
		return r;
	__atomic_store_n(&h->ublk->stopping, 1, __ATOMIC_SEQ_CST);
	r = ublk_control_do(&c, UBLK_U_CMD_STOP_DEV, device(h), NULL, 0, 0, COMMAND_MS);
	/* The kernel continues after a timeout. */
	__atomic_store_n(&h->ublk->stopping, !r || r == -ETIME, __ATOMIC_SEQ_CST);
	ublk_control_close(&c);
	return r;
}

static bool ublk_stopped(const struct frontend_host *h)
{
	return __atomic_load_n(&h->ublk->stopping, __ATOMIC_SEQ_CST);
}

const struct frontend ublk_frontend = {
	.name = "ublk",
	.asks_again = true,
	.slots = SLOTS,
	.open = ublk_open,
	.prepare = ublk_prepare,
	.begin = ublk_begin,
	.take_over = ublk_take_over,
	.end = ublk_end,
	.fd = ublk_fd,
	.receive = ublk_receive,
	.answer = ublk_answer,
	.flush = ublk_flush,
	.stop = ublk_stop,
	.stopped = ublk_stopped,
	.where = ublk_where,
};
