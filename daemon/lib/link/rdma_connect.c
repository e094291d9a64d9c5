// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/small_thread.h"
#include "rdma_connect.h"

#define MS 1000000ull
/* Timeout of address, route and connection together; the loop gives up earlier. */
#define CONNECT_MS 2000
/* Interval of looks whether the loop has given up. */
#define LOOK_MS 50
/*
 * 4.096 us << 14 = 67 ms until a lost packet is sent again, six times: an unresponsive donor is an
 * error after half a second.  Soft-RoCE retries forever with 7.
 */
#define ACK_TIMEOUT 14
#define RETRIES 6
#define READS_AT_ONCE 16
#define DEVICES 32
/* Devices for which memory is registered at startup, used or not. */
#define DEVICES_AHEAD 8
/* The stack is locked. */
#define STACK (256u << 10)

/* State that links share, per RDMA device. */
struct device {
	struct ibv_context *verbs;
	/*
	 * A list that has @verbs.  It keeps the context valid after the device was removed, while
	 * librdmacm would close one that no list and no rdma_cm_id has.
	 */
	struct ibv_context **list;
	struct ibv_pd *pd;
	struct ibv_mr *memory;
	int reads; /* limit of READs in flight */
};

struct rdma_links {
	int count, epoll_fd;
	uint32_t depth;
	void *memory;
	size_t size;
	int ask_fd; /* eventfd: the thread has a new link */
	uint32_t stop;
	pthread_t thread;
	bool running;
	/* Used by the thread only, once it runs. */
	int last; /* link that it connected last */
	struct device devices[DEVICES];
	int device_count;
	struct rdma_link link[];
};

static uint32_t state_of(const struct rdma_link *l)
{
	return __atomic_load_n(&l->state, __ATOMIC_ACQUIRE);
}

static void set_state(struct rdma_link *l, enum rdma_link_state state)
{
	__atomic_store_n(&l->state, (uint32_t)state, __ATOMIC_RELEASE);
}

/* Returns false when the state is no longer @from. */
static bool change_state(struct rdma_link *l, enum rdma_link_state from, enum rdma_link_state to)
{
	uint32_t expected = from;

	return __atomic_compare_exchange_n(&l->state, &expected, (uint32_t)to, false,
					   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* --- the thread ------------------------------------------------------------------ */

static void tell(struct rdma_link *l)
{
	__atomic_store_n(&l->notice, 1, __ATOMIC_RELEASE);
	eventfd_write(l->wake_fd, 1);
}

static int no_blocking(int fd)
{
	return fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

static bool is_listed(struct ibv_context **list, const struct ibv_context *verbs)
{
	for (; *list; list++)
		if (*list == verbs)
			return true;
	return false;
}

static bool is_used(const struct rdma_links *ls, const struct device *d)
{
	for (int i = 0; i < ls->count; i++)
		if (ls->link[i].id && ls->link[i].id->verbs == d->verbs)
			return true;
	return false;
}

/* The list last: it may close the context. */
static void forget(struct device *d)
{
	ibv_dereg_mr(d->memory);
	ibv_dealloc_pd(d->pd);
	rdma_free_devices(d->list);
}

/* Forgets devices that were removed, which @list lacks, once no link uses them. */
static void forget_removed(struct rdma_links *ls, struct ibv_context **list)
{
	int n = 0;

	for (int i = 0; i < ls->device_count; i++) {
		struct device *d = &ls->devices[i];

		if (is_listed(list, d->verbs) || is_used(ls, d))
			ls->devices[n++] = *d;
		else
			forget(d);
	}
	ls->device_count = n;
}

/* Sets up @d, except for its list; returns false with errno. */
static bool set_up(const struct rdma_links *ls, struct device *d, struct ibv_context *verbs)
{
	struct ibv_device_attr attr;
	int error;

	if (ibv_query_device(verbs, &attr))
		return false;
	d->verbs = verbs;
	d->reads = attr.max_qp_init_rd_atom < READS_AT_ONCE ? attr.max_qp_init_rd_atom :
		   READS_AT_ONCE;
	d->pd = ibv_alloc_pd(verbs);
	d->memory = d->pd ? ibv_reg_mr(d->pd, ls->memory, ls->size, IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (d->memory)
		return true;
	error = errno;
	if (d->pd)
		ibv_dealloc_pd(d->pd);
	errno = error;
	return false;
}

/*
 * Moves @verbs to the end of @list.  rdma_free_devices() (rdma-core 44 to 64) reads the rest of the
 * list with a device that it has freed.
 */
static void put_last(struct ibv_context **list, struct ibv_context *verbs)
{
	struct ibv_context **own = NULL;

	for (; *list; list++)
		if (*list == verbs)
			own = list;
	if (own) {
		*own = list[-1];
		list[-1] = verbs;
	}
}

/* Adds the device of @verbs, and owns @list; returns NULL with errno. */
static const struct device *add_device(struct rdma_links *ls, struct ibv_context *verbs,
				       struct ibv_context **list)
{
	struct device *d;
	int error;

	forget_removed(ls, list);
	d = &ls->devices[ls->device_count];
	errno = ENOSPC;
	if (ls->device_count < DEVICES && set_up(ls, d, verbs)) {
		put_last(list, verbs);
		d->list = list;
		ls->device_count++;
		return d;
	}
	error = errno;
	rdma_free_devices(list);
	errno = error;
	return NULL;
}

/* Returns the device of @verbs, set up at its first use; NULL with errno. */
static const struct device *device_of(struct rdma_links *ls, struct ibv_context *verbs)
{
	struct ibv_context **list;

	for (int i = 0; i < ls->device_count; i++)
		if (ls->devices[i].verbs == verbs)
			return &ls->devices[i];
	list = rdma_get_devices(NULL);
	if (list && is_listed(list, verbs))
		return add_device(ls, verbs, list);
	/* Removed meanwhile. */
	if (list)
		rdma_free_devices(list);
	errno = ENODEV;
	return NULL;
}

/* Saves the first connection and a failover the time for registering memory. */
static void register_ahead(struct rdma_links *ls)
{
	struct ibv_context **list = rdma_get_devices(NULL);

	for (int i = 0; list && list[i] && i < DEVICES_AHEAD; i++)
		device_of(ls, list[i]);
	if (list)
		rdma_free_devices(list);
}

static int failed(struct rdma_link *l, const char *what, int error)
{
	snprintf(l->why, sizeof(l->why), "RDMA: %s: %s", what, strerror(error));
	return -error;
}

/* Waits until the connection manager reports @wanted, or the loop cancels @l. */
static int await(struct rdma_link *l, enum rdma_cm_event_type wanted, uint64_t give_up)
{
	struct pollfd p = { .fd = l->events->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	enum rdma_cm_event_type said;

	while (poll(&p, 1, LOOK_MS) <= 0)
		if (now_ns() >= give_up || state_of(l) == RDMA_CANCELLED)
			return failed(l, "no answer", ETIMEDOUT);
	if (rdma_get_cm_event(l->events, &event))
		return failed(l, "no answer", ETIMEDOUT);
	said = event->event;
	rdma_ack_cm_event(event);
	if (said == wanted)
		return 0;
	snprintf(l->why, sizeof(l->why), "RDMA: %s", said == RDMA_CM_EVENT_REJECTED ?
		 "refused there; see the donor's log" : rdma_event_str(said));
	return -ECONNREFUSED;
}

static int make_queue(struct rdma_links *ls, struct rdma_link *l, const struct device *d)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = ls->depth, .max_recv_wr = 1,
			 .max_send_sge = 1, .max_recv_sge = 1 },
	};

	l->lkey = d->memory->lkey;
	l->channel = ibv_create_comp_channel(l->id->verbs);
	if (!l->channel || no_blocking(l->channel->fd))
		return failed(l, "completion channel", errno);
	l->cq = ibv_create_cq(l->id->verbs, (int)ls->depth + 1, NULL, l->channel, 0);
	if (!l->cq || ibv_req_notify_cq(l->cq, 0))
		return failed(l, "completion queue", errno);
	attr.send_cq = attr.recv_cq = l->cq;
	if (rdma_create_qp(l->id, d->pd, &attr))
		return failed(l, "queue pair", errno);
	l->qp = l->id->qp;
	return 0;
}

static int connect_link(struct rdma_links *ls, struct rdma_link *l)
{
	struct rdma_conn_param param = {
		.private_data = l->join, .private_data_len = sizeof(l->join),
		.retry_count = RETRIES, .rnr_retry_count = RETRIES,
	};
	uint64_t give_up = now_ns() + CONNECT_MS * MS;
	uint8_t ack_timeout = ACK_TIMEOUT;
	const struct device *d;
	int r;

	l->events = rdma_create_event_channel();
	if (!l->events || no_blocking(l->events->fd) ||
	    rdma_create_id(l->events, &l->id, NULL, RDMA_PS_TCP))
		return failed(l, "unavailable here, load rdma_ucm", errno);
	if (rdma_resolve_addr(l->id, NULL, (struct sockaddr *)&l->place, CONNECT_MS))
		return failed(l, "no RDMA device leads there", errno);
	r = await(l, RDMA_CM_EVENT_ADDR_RESOLVED, give_up);
	if (r)
		return r;
	/* If this fails, the device's default applies, and the deadline decides. */
	rdma_set_option(l->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout,
			sizeof(ack_timeout));
	if (rdma_resolve_route(l->id, CONNECT_MS))
		return failed(l, "no route", errno);
	r = await(l, RDMA_CM_EVENT_ROUTE_RESOLVED, give_up);
	if (r)
		return r;
	d = device_of(ls, l->id->verbs);
	if (!d)
		return failed(l, errno == ENODEV ? "the network device was removed" :
				 "memory cannot be registered, raise LimitMEMLOCK=", errno);
	r = make_queue(ls, l, d);
	if (r)
		return r;
	param.initiator_depth = (uint8_t)d->reads;
	if (rdma_connect(l->id, &param))
		return failed(l, "connect", errno);
	return await(l, RDMA_CM_EVENT_ESTABLISHED, give_up);
}

static void take_apart(struct rdma_link *l)
{
	if (l->qp)
		rdma_destroy_qp(l->id);
	if (l->cq)
		ibv_destroy_cq(l->cq);
	if (l->channel)
		ibv_destroy_comp_channel(l->channel);
	if (l->id)
		rdma_destroy_id(l->id);
	if (l->events)
		rdma_destroy_event_channel(l->events);
	l->qp = NULL;
	l->cq = NULL;
	l->channel = NULL;
	l->id = NULL;
	l->events = NULL;
	l->ended = NULL;
}

/* Connects a WANTED link, which the loop may cancel meanwhile. */
static void serve_want(struct rdma_links *ls, struct rdma_link *l)
{
	int r = connect_link(ls, l);

	if (r)
		take_apart(l);
	if (change_state(l, RDMA_WANTED, r ? RDMA_FAILED : RDMA_READY)) {
		tell(l);
		return;
	}
	take_apart(l);
	set_state(l, RDMA_NONE);
}

/* Takes apart a link that the loop has closed. */
static void clear(struct rdma_link *l)
{
	uint32_t state = state_of(l);

	if (state == RDMA_OVER)
		take_apart(l);
	if (state == RDMA_OVER || state == RDMA_CANCELLED)
		set_state(l, RDMA_NONE);
}

/*
 * Connects the next WANTED link in turn; returns false when there is none.  One at a time: an
 * unresponsive donor takes up to CONNECT_MS, and the loop gives up on links that wait for longer.
 */
static bool tend(struct rdma_links *ls)
{
	for (int i = 0; i < ls->count; i++)
		clear(&ls->link[i]);
	for (int i = 1; i <= ls->count; i++) {
		int at = (ls->last + i) % ls->count;

		if (state_of(&ls->link[at]) != RDMA_WANTED)
			continue;
		ls->last = at;
		serve_want(ls, &ls->link[at]);
		return true;
	}
	return false;
}

static const char *why_over(enum rdma_cm_event_type said)
{
	return said == RDMA_CM_EVENT_DISCONNECTED ? "connection closed" :
	       said == RDMA_CM_EVENT_DEVICE_REMOVAL ? "the network device was removed" :
	       rdma_event_str(said);
}

static void end(struct rdma_link *l, const char *why)
{
	__atomic_store_n(&l->ended, why, __ATOMIC_RELEASE);
	tell(l);
}

/* Reads an event of the connection manager, which ends the connection. */
static void hear(struct rdma_link *l)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type said;

	if (rdma_get_cm_event(l->events, &event)) {
		if (errno != EAGAIN)
			end(l, "no word from the connection manager");
		return;
	}
	said = event->event;
	rdma_ack_cm_event(event);
	if (said != RDMA_CM_EVENT_ESTABLISHED)
		end(l, why_over(said));
}

static bool connected(const struct rdma_link *l)
{
	uint32_t state = state_of(l);

	return state == RDMA_READY || state == RDMA_UP;
}

static void *links_main(void *data)
{
	struct rdma_links *ls = data;
	struct pollfd p[ls->count + 1];
	struct rdma_link *of[ls->count + 1];
	bool more = false;

	prctl(PR_SET_NAME, "ebb-rdma");
	while (!__atomic_load_n(&ls->stop, __ATOMIC_ACQUIRE)) {
		eventfd_t ignored;
		int n = 1;

		p[0] = (struct pollfd){ .fd = ls->ask_fd, .events = POLLIN };
		for (int i = 0; i < ls->count; i++) {
			if (!connected(&ls->link[i]))
				continue;
			p[n] = (struct pollfd){ .fd = ls->link[i].events->fd, .events = POLLIN };
			of[n++] = &ls->link[i];
		}
		if (poll(p, (nfds_t)n, more ? 0 : -1) < 0)
			continue;
		for (int i = 1; i < n; i++)
			if (p[i].revents)
				hear(of[i]);
		if (p[0].revents && !eventfd_read(ls->ask_fd, &ignored))
			more = true;
		if (more)
			more = tend(ls);
	}
	return NULL;
}

/* --- its life --------------------------------------------------------------------- */

static int make_fds(struct rdma_links *ls)
{
	ls->ask_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ls->ask_fd < 0)
		return -errno;
	for (int i = 0; i < ls->count; i++) {
		struct epoll_event ev = { .events = EPOLLIN | EPOLLET,
					  .data.u64 = RDMA_CHANNEL << 32 | (uint64_t)i };
		int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

		ls->link[i].wake_fd = fd;
		if (fd < 0 || epoll_ctl(ls->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
			return -errno;
	}
	return 0;
}

int rdma_links_start(struct rdma_links **out, int count, uint32_t depth, void *memory, size_t size,
		     int epoll_fd, struct error *e)
{
	struct rdma_links *ls = calloc(1, sizeof(*ls) + (size_t)count * sizeof(ls->link[0]));
	int r;

	if (!ls)
		return fail(e, ENOMEM, "rdma: out of memory");
	ls->count = count;
	ls->depth = depth;
	ls->memory = memory;
	ls->size = size;
	ls->epoll_fd = epoll_fd;
	ls->ask_fd = -1;
	for (int i = 0; i < count; i++)
		ls->link[i].wake_fd = -1;
	r = make_fds(ls);
	if (!r) {
		register_ahead(ls);
		r = -small_thread_create(&ls->thread, STACK, links_main, ls);
		ls->running = !r;
	}
	if (r) {
		rdma_links_stop(&ls);
		return fail(e, r, "rdma: no thread or descriptors for connections: %s", strerror(-r));
	}
	*out = ls;
	return 0;
}

void rdma_links_stop(struct rdma_links **lsp)
{
	struct rdma_links *ls = *lsp;

	*lsp = NULL;
	if (!ls)
		return;
	if (ls->running) {
		__atomic_store_n(&ls->stop, 1, __ATOMIC_RELEASE);
		eventfd_write(ls->ask_fd, 1);
		pthread_join(ls->thread, NULL);
	}
	for (int i = 0; i < ls->count; i++) {
		/* Before the memory is freed. */
		if (state_of(&ls->link[i]) != RDMA_NONE)
			take_apart(&ls->link[i]);
		if (ls->link[i].wake_fd >= 0)
			close(ls->link[i].wake_fd);
	}
	for (int i = 0; i < ls->device_count; i++)
		forget(&ls->devices[i]);
	if (ls->ask_fd >= 0)
		close(ls->ask_fd);
	free(ls);
}

struct rdma_link *rdma_link_at(struct rdma_links *ls, int i)
{
	return &ls->link[i];
}

/* --- the loop ---------------------------------------------------------------------- */

int rdma_link_want(struct rdma_links *ls, int i, const struct sockaddr_storage *place,
		   const struct wire_join *j)
{
	struct rdma_link *l = &ls->link[i];

	if (state_of(l) != RDMA_NONE)
		return -EBUSY;
	l->place = *place;
	wire_build_rdma_join(l->join, j);
	l->queued = 0;
	l->broken = false;
	set_state(l, RDMA_WANTED);
	eventfd_write(ls->ask_fd, 1);
	return 0;
}

int rdma_link_use(struct rdma_links *ls, int i)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = RDMA_CHANNEL << 32 | (uint64_t)i };
	struct rdma_link *l = &ls->link[i];

	if (epoll_ctl(ls->epoll_fd, EPOLL_CTL_ADD, l->channel->fd, &ev) < 0)
		return -errno;
	set_state(l, RDMA_UP);
	/* The thread polls connected links. */
	eventfd_write(ls->ask_fd, 1);
	return 0;
}

void rdma_link_close(struct rdma_links *ls, int i)
{
	struct rdma_link *l = &ls->link[i];
	uint32_t state = state_of(l);

	l->queued = 0;
	if (state == RDMA_WANTED) {
		if (change_state(l, RDMA_WANTED, RDMA_CANCELLED))
			return;
		state = state_of(l);
	}
	switch (state) {
	case RDMA_FAILED:
		set_state(l, RDMA_NONE);
		break;
	case RDMA_UP:
		epoll_ctl(ls->epoll_fd, EPOLL_CTL_DEL, l->channel->fd, NULL);
		/* fall through */
	case RDMA_READY:
		rdma_destroy_qp(l->id);
		l->qp = NULL;
		set_state(l, RDMA_OVER);
		eventfd_write(ls->ask_fd, 1);
		break;
	}
}
