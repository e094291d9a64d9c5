// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "rdma_lender.h"
#include "rdma_session.h"

#define SESSIONS_MAX 64
#define MS 1000000ull
/* What was refused, or promised and has not come, is asked for again. */
#define ASK_AGAIN_MS 1000

struct rdma_lender {
	struct rdma_pool pool;
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener;
	int wake; /* eventfd: look at stopping, pool.draining */
	bool stopping;
	pthread_t thread;
	bool running;
	struct rdma_session *sessions;
	uint32_t session_count;
	uint64_t asked_at; /* ns: when all was last asked back */
};

static struct rdma_session **session_find(struct rdma_lender *l, uint64_t number)
{
	struct rdma_session **p = &l->sessions;

	while (*p && (*p)->number != number)
		p = &(*p)->next;
	return p;
}

static struct rdma_session **session_of(struct rdma_lender *l, const struct rdma_cm_id *id)
{
	struct rdma_session **p;

	for (p = &l->sessions; *p; p = &(*p)->next)
		for (uint32_t i = 0; i < WIRE_RDMA_QUEUES; i++)
			if ((*p)->id[i] == id)
				return p;
	return p;
}

static void session_end(struct rdma_lender *l, struct rdma_session **p, const char *why)
{
	struct rdma_session *s = *p;

	*p = s->next;
	l->session_count--;
	log_info("rdma: %s: %s; %u slabs come back", s->name[0] ? s->name : "a borrower", why,
		 s->lent);
	rdma_session_free(s);
}

static void connection_request(struct rdma_lender *l, struct rdma_cm_id *id,
			       const struct rdma_conn_param *param, const void *data, size_t length)
{
	struct ibv_device_attr attr;
	struct rdma_session **p;
	struct wire_rdma_open open;
	/* Of us: what the borrower says that it will have under way. */
	uint8_t reads = param->responder_resources;
	int r = data ? wire_parse_rdma_open(data, length, &open) : -EPROTO;

	if (!r && ibv_query_device(id->verbs, &attr))
		r = -EIO;
	if (r)
		goto reject;
	if (reads > attr.max_qp_rd_atom)
		reads = (uint8_t)attr.max_qp_rd_atom;
	p = session_find(l, open.session);
	if (!*p) {
		/* Connection 0 comes first; a session that ended is not begun again. */
		l->pool.wanted |= l->session_count == SESSIONS_MAX;
		r = open.queue ? -ENOENT : l->session_count == SESSIONS_MAX ? -EBUSY :
		    rdma_session_new(p, &l->pool, id, &open);
		if (r)
			goto reject;
		l->session_count++;
	}
	r = rdma_session_join(*p, id, &open, reads);
	if (!r)
		return;
	session_end(l, p, "a connection failed");
reject:
	log_warn("rdma: a connection is refused: %s", strerror(-r));
	rdma_reject(id, NULL, 0);
	rdma_destroy_id(id);
}

static void connection_event(struct rdma_lender *l)
{
	uint8_t data[WIRE_RDMA_OPEN_SIZE] = { 0 };
	struct rdma_cm_event *event;
	struct rdma_session **p;
	struct rdma_conn_param param;
	enum rdma_cm_event_type kind;
	struct rdma_cm_id *id;
	size_t length;

	if (rdma_get_cm_event(l->events, &event))
		return;
	kind = event->event;
	id = event->id;
	param = event->param.conn;
	length = param.private_data_len;
	if (length > sizeof(data))
		length = sizeof(data);
	if (param.private_data)
		memcpy(data, param.private_data, length);
	/* Before anything of it is destroyed, which waits for this. */
	rdma_ack_cm_event(event);
	switch (kind) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		connection_request(l, id, &param, data, length);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	default:
		p = session_of(l, id);
		if (*p)
			session_end(l, p, rdma_event_str(kind));
	}
}

/* Does @what with each session, and ends those where it fails. */
static void for_each(struct rdma_lender *l, int (*what)(struct rdma_session *))
{
	struct rdma_session **p = &l->sessions;

	while (*p) {
		int r = what(*p);

		if (r)
			session_end(l, p, strerror(-r));
		else
			p = &(*p)->next;
	}
}

/* Asks for what was not asked for yet, and from time to time for all of it. */
static void ask_back(struct rdma_lender *l)
{
	uint64_t now = now_ns();

	if (now - l->asked_at > ASK_AGAIN_MS * MS) {
		l->asked_at = now;
		for (struct rdma_session *s = l->sessions; s; s = s->next)
			rdma_session_ask_again(s);
	}
	for_each(l, rdma_session_ask);
}

static void *lend(void *argument)
{
	struct rdma_lender *l = argument;
	struct pollfd fds[2 + SESSIONS_MAX];
	bool draining = false;

	for (;;) {
		struct rdma_session **p;
		eventfd_t count;
		nfds_t n = 2;

		fds[0] = (struct pollfd){ .fd = l->wake, .events = POLLIN };
		fds[1] = (struct pollfd){ .fd = l->events->fd, .events = POLLIN };
		for (p = &l->sessions; *p; p = &(*p)->next)
			fds[n++] = (struct pollfd){ .fd = (*p)->channel->fd, .events = POLLIN };
		if (poll(fds, n, draining ? ASK_AGAIN_MS : -1) < 0 && errno != EINTR)
			break;
		if (fds[0].revents && eventfd_read(l->wake, &count))
			break;
		if (__atomic_load_n(&l->stopping, __ATOMIC_ACQUIRE))
			break;
		/* Turns first: they match the list that was polled. */
		p = &l->sessions;
		for (nfds_t i = 2; i < n; i++) {
			int r = fds[i].revents ? rdma_session_turn(*p) : 0;

			if (r)
				session_end(l, p, strerror(-r));
			else
				p = &(*p)->next;
		}
		if (fds[1].revents)
			connection_event(l);
		if (l->pool.wanted)
			for_each(l, rdma_session_probe);
		l->pool.wanted = false;
		draining = rdma_pool_draining(&l->pool);
		if (draining)
			ask_back(l);
	}
	while (l->sessions)
		session_end(l, &l->sessions, "the donor stops");
	return NULL;
}

static int pool_init(struct rdma_pool *p, uint64_t memory, uint64_t slab_size, struct error *e)
{
	p->slab_size = slab_size;
	p->count = p->free = (uint32_t)(memory / slab_size);
	if (!p->count)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "rdma-memory: less than a slab; give more, or --slab less");
	p->slabs = calloc(p->count, sizeof(*p->slabs));
	p->memory = mmap(NULL, p->count * slab_size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_LOCKED, -1, 0);
	if (!p->slabs || p->memory == MAP_FAILED)
		return fail(e, ENOMEM, "rdma-memory: cannot be had or locked; see ulimit -l");
	/* A child of fork would take pages away from the network device. */
	madvise(p->memory, p->count * slab_size, MADV_DONTFORK);
	return 0;
}

int rdma_lender_start(struct rdma_lender **out, struct address *place, uint64_t memory,
		      uint64_t slab_size, struct error *e)
{
	struct rdma_lender *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return fail(e, ENOMEM, "rdma: out of memory");
	l->wake = eventfd(0, EFD_CLOEXEC);
	l->events = rdma_create_event_channel();
	if (!l->events || rdma_create_id(l->events, &l->listener, l, RDMA_PS_TCP))
		r = fail_exit(e, EXIT_UNSUPPORTED, errno,
			      "rdma: %m; load rdma_ucm and, without a network card for it, rdma_rxe");
	else if (rdma_bind_addr(l->listener, (struct sockaddr *)&place->sa) ||
		 rdma_listen(l->listener, 16))
		r = fail(e, errno, "rdma %s: %m; give the address of an RDMA device", place->text);
	else
		r = pool_init(&l->pool, memory, slab_size, e);
	if (!r) {
		r = -pthread_create(&l->thread, NULL, lend, l);
		if (r)
			fail(e, r, "rdma: no thread: %s", strerror(-r));
	}
	l->running = !r;
	if (r)
		rdma_lender_stop(&l);
	*out = l;
	return r;
}

uint32_t rdma_lender_drain(struct rdma_lender *l, uint64_t timeout_ns)
{
	const struct timespec tenth = { .tv_nsec = 100 * MS };
	uint64_t end;
	uint32_t lent;
	sigset_t pending;

	if (!l)
		return 0;
	lent = rdma_pool_lent(&l->pool);
	if (lent && timeout_ns) {
		log_info("rdma: %u slabs are asked back", lent);
		/* The unit's time may be used up by those that --memory lent. */
		sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%llu",
			   (unsigned long long)(timeout_ns / 1000 + 30000000));
	}
	end = now_ns() + timeout_ns;
	__atomic_store_n(&l->pool.draining, true, __ATOMIC_RELEASE);
	eventfd_write(l->wake, 1);
	while ((lent = rdma_pool_lent(&l->pool)) && now_ns() < end) {
		sigpending(&pending);
		if (sigismember(&pending, SIGTERM) || sigismember(&pending, SIGINT))
			break;
		nanosleep(&tenth, NULL);
	}
	return lent;
}

void rdma_lender_stop(struct rdma_lender **lp)
{
	struct rdma_lender *l = *lp;

	*lp = NULL;
	if (!l)
		return;
	if (l->running) {
		__atomic_store_n(&l->stopping, true, __ATOMIC_RELEASE);
		if (eventfd_write(l->wake, 1))
			log_warn("rdma: cannot be stopped: %m");
		pthread_join(l->thread, NULL);
	}
	if (l->listener)
		rdma_destroy_id(l->listener);
	if (l->events)
		rdma_destroy_event_channel(l->events);
	if (l->pool.memory && l->pool.memory != MAP_FAILED)
		munmap(l->pool.memory, l->pool.count * l->pool.slab_size);
	free(l->pool.slabs);
	close(l->wake);
	free(l);
}
