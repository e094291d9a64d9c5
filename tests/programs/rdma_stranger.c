// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Speaks by RDMA whatever it is told: one side of connections whose private data and
 * messages are lines of hexadecimal digits.
 *
 *	rdma_stranger connect ADDRESS PORT    the first line is the request, others are sent
 *	rdma_stranger listen ADDRESS PORT     a line answers a request ("-" rejects it), else is sent
 *
 * It says "qp N" (its queue pair, for a request), "request N M DATA" (the other side's queue pair,
 * ours, private data), "accepted N DATA", "rejected DATA", "got DATA", "closed" and, to what
 * fails, "failed WHAT".  What is sent goes by the first connection that is there.
 */
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES 8
#define SENDS 40 /* most in flight; more may fail */
#define MESSAGE 256
#define CONNECTIONS 16

struct connection {
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t messages[MESSAGES + SENDS][MESSAGE];
	uint32_t sends; /* so far */
};

static struct connection connections[CONNECTIONS], *waiting;
static int count;
static struct rdma_event_channel *events;

static void fail(const char *what)
{
	printf("failed %s: %s\n", what, strerror(errno));
	exit(1);
}

static void put(const char *word, const void *data, size_t n)
{
	const uint8_t *p = data;

	printf("%s ", word);
	for (size_t i = 0; i < n; i++)
		printf("%02x", p[i]);
	putchar('\n');
}

static size_t parse(const char *line, uint8_t *to, size_t size)
{
	size_t n = 0;
	unsigned int byte;

	while (n < size && sscanf(line + 2 * n, "%2x", &byte) == 1)
		to[n++] = (uint8_t)byte;
	return n;
}

static void receive(struct connection *c, uint64_t i)
{
	struct ibv_sge sge = { (uintptr_t)c->messages[i], MESSAGE, c->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(c->id->qp, &wr, &bad))
		fail("receive");
}

static struct connection *begin(struct rdma_cm_id *id)
{
	struct connection *c = &connections[count++];
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = SENDS,
			 .max_recv_wr = MESSAGES,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);

	c->id = id;
	c->channel = pd ? ibv_create_comp_channel(id->verbs) : NULL;
	c->cq = c->channel ? ibv_create_cq(id->verbs, 2 * SENDS, NULL, c->channel, 0) : NULL;
	c->mr = c->cq ? ibv_reg_mr(pd, c->messages, sizeof(c->messages), IBV_ACCESS_LOCAL_WRITE) :
			NULL;
	attr.send_cq = attr.recv_cq = c->cq;
	if (!c->mr || ibv_req_notify_cq(c->cq, 0) || rdma_create_qp(id, pd, &attr))
		fail("queue pair");
	for (uint64_t i = 0; i < MESSAGES; i++)
		receive(c, i);
	return c;
}

static void send_line(struct connection *c, const char *line)
{
	uint8_t *m = c->messages[MESSAGES + c->sends++ % SENDS];
	struct ibv_sge sge = { (uintptr_t)m, (uint32_t)parse(line, m, MESSAGE), c->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = MESSAGES, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	if (ibv_post_send(c->id->qp, &wr, &bad))
		printf("failed send\n");
}

static void told(const char *line)
{
	uint8_t data[196];
	struct rdma_conn_param param = { .private_data = data,
					 .retry_count = 6,
					 .rnr_retry_count = 6 };
	struct connection *c = waiting;

	if (!c) {
		send_line(&connections[0], line);
		return;
	}
	waiting = NULL;
	if (*line == '-') {
		rdma_reject(c->id, NULL, 0);
		return;
	}
	param.private_data_len = (uint8_t)parse(line, data, sizeof(data));
	param.responder_resources = param.initiator_depth = 1;
	if (rdma_accept(c->id, &param))
		fail("accept");
}

static void cm_event(void)
{
	struct rdma_cm_event *e;
	struct connection *c;

	if (rdma_get_cm_event(events, &e))
		fail("event");
	switch (e->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		c = waiting = begin(e->id);
		printf("request %u %u", e->param.conn.qp_num, c->id->qp->qp_num);
		put("", e->param.conn.private_data, e->param.conn.private_data_len);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		printf("accepted %u", e->param.conn.qp_num);
		put("", e->param.conn.private_data, e->param.conn.private_data_len);
		break;
	case RDMA_CM_EVENT_REJECTED:
		put("rejected", e->param.conn.private_data, e->param.conn.private_data_len);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		printf("closed\n");
		rdma_disconnect(e->id);
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	default:
		printf("failed %s\n", rdma_event_str(e->event));
	}
	rdma_ack_cm_event(e);
}

static void completed(struct connection *c)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;

	if (ibv_get_cq_event(c->channel, &cq, &context))
		fail("completion");
	ibv_ack_cq_events(cq, 1);
	ibv_req_notify_cq(cq, 0);
	while (ibv_poll_cq(cq, 1, &wc) > 0) {
		if (wc.status != IBV_WC_SUCCESS || wc.wr_id == MESSAGES)
			continue;
		put("got", c->messages[wc.wr_id], wc.byte_len);
		receive(c, wc.wr_id);
	}
}

static void wait_cm(enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *e;

	if (rdma_get_cm_event(events, &e) || e->event != wanted)
		fail("the address leads nowhere");
	rdma_ack_cm_event(e);
}

static void connect_to(struct rdma_cm_id *id, struct sockaddr *to)
{
	struct rdma_conn_param param = { .retry_count = 6, .rnr_retry_count = 6 };
	uint8_t data[56];
	char line[1024];

	if (rdma_resolve_addr(id, NULL, to, 2000))
		fail("address");
	wait_cm(RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, 2000))
		fail("route");
	wait_cm(RDMA_CM_EVENT_ROUTE_RESOLVED);
	printf("qp %u\n", begin(id)->id->qp->qp_num);
	if (!fgets(line, sizeof(line), stdin))
		exit(0);
	param.private_data = data;
	param.private_data_len = (uint8_t)parse(line, data, sizeof(data));
	param.responder_resources = param.initiator_depth = 1;
	if (rdma_connect(id, &param))
		fail("connect");
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *at;
	bool listens = argc == 4 && !strcmp(argv[1], "listen");
	struct rdma_cm_id *id;
	char line[1024];

	setvbuf(stdout, NULL, _IOLBF, 0);
	/* A line that is in a buffer would not be seen by poll(). */
	setvbuf(stdin, NULL, _IONBF, 0);
	if (argc != 4 || (!listens && strcmp(argv[1], "connect"))) {
		fprintf(stderr, "usage: %s connect|listen ADDRESS PORT\n", argv[0]);
		return 2;
	}
	hints.ai_flags = listens ? RAI_PASSIVE : 0;
	events = rdma_create_event_channel();
	if (!events || rdma_getaddrinfo(argv[2], argv[3], &hints, &at) ||
	    rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
		fail("RDMA");
	if (listens && (rdma_bind_addr(id, at->ai_src_addr) || rdma_listen(id, 8)))
		fail("listen");
	if (listens)
		printf("listening\n");
	else
		connect_to(id, at->ai_dst_addr);
	for (;;) {
		struct pollfd p[2 + CONNECTIONS] = {
			{ .fd = 0, .events = POLLIN }, { .fd = events->fd, .events = POLLIN },
		};

		for (int i = 0; i < count; i++)
			p[2 + i] = (struct pollfd){ .fd = connections[i].channel->fd,
						    .events = POLLIN };
		if (poll(p, 2 + (nfds_t)count, -1) < 0)
			fail("poll");
		for (int i = count - 1; i >= 0; i--)
			if (p[2 + i].revents)
				completed(&connections[i]);
		if (p[1].revents)
			cm_event();
		if (p[0].revents && !fgets(line, sizeof(line), stdin))
			return 0;
		if (p[0].revents)
			told(line);
	}
}
