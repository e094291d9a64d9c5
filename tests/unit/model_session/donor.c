// SPDX-License-Identifier: GPL-2.0-only
/* The network, with requests and replies in order, and the donor. */
#include "inside.h"
#include "wire_rdma.h"

int packets(const struct packet *p)
{
	int n = 0;

	while (n < PACKETS && p[n].is)
		n++;
	return n;
}

static struct packet take_packet(struct packet *p, int i)
{
	struct packet taken = p[i];

	for (; i < PACKETS - 1; i++)
		p[i] = p[i + 1];
	memset(&p[i], 0, sizeof(p[i]));
	return taken;
}

void put_packet(struct packet *p, const struct packet *new)
{
	for (int i = 0; i < PACKETS && p[i].is;) {
		if (p[i].connection == new->connection)
			i++;
		else
			take_packet(p, i);
	}
	if (packets(p) == PACKETS)
		wrong("more requests than the device has slabs");
	else
		memcpy(&p[packets(p)], new, sizeof(*new));
}

static void donor_ends(int i)
{
	W.lent[i].lent = W.lent[i].claimed = false;
}

/* Returns the loan that @f names, or -1. */
static int donor_loan(const struct wire_frame *f)
{
	if (f->slab >= LENT || !W.lent[f->slab].lent || W.lent[f->slab].generation != f->generation)
		return -1;
	return (int)f->slab;
}

static u16 donor_hello(const struct packet *request)
{
	if (request->resume && !W.knows)
		return WIRE_NO_SESSION;
	if (!mutant(MUTANT_LATE_WRITE))
		W.ghost.landing = false;
	W.knows = true;
	W.leaves = false;
	W.at_donor = request->connection;
	for (int i = 0; i < LENT; i++)
		W.lent[i].claimed = false;
	return WIRE_OK;
}

void donor_takes(void)
{
	struct packet p = take_packet(W.request, 0);
	struct wire_frame f = p.f;
	int i = donor_loan(&f);

	f.direction = WIRE_REPLY;
	f.length = 0;
	if (f.op == WIRE_HELLO)
		f.status = donor_hello(&p);
	else if (p.connection != W.at_donor)
		return;
	switch (f.op) {
	case WIRE_MAP:
		for (i = 0; i < LENT && W.lent[i].lent; i++)
			;
		f.status = i == LENT ? WIRE_NO_SPACE : WIRE_OK;
		if (i == LENT)
			break;
		W.lent[i].lent = true;
		W.lent[i].version = 0;
		f.slab = (u32)i;
		f.generation = ++W.lent[i].generation;
		fallthrough;
	case WIRE_REMAP:
		if (i < 0) {
			f.status = WIRE_NO_SLAB;
			break;
		}
		W.lent[i].claimed = true;
		W.lent[i].key = ++W.keys;
		break;
	case WIRE_UNMAP:
		f.status = i < 0 ? WIRE_NO_SLAB : WIRE_OK;
		if (i >= 0)
			donor_ends(i);
		break;
	case WIRE_RELEASE:
		for (i = 0; i < LENT; i++)
			if (!W.lent[i].claimed)
				donor_ends(i);
		break;
	case WIRE_BYE:
		W.leaves = true;
		break;
	default:
		break;
	}
	p.resume = false;
	p.f = f;
	put_packet(W.reply, &p);
}

void donor_forgets(void)
{
	W.knows = false;
	W.at_donor = 0;
	W.write.landing = W.ghost.landing = false;
	for (int i = 0; i < LENT; i++)
		donor_ends(i);
}

void delivered(int i)
{
	struct packet p = take_packet(W.reply, i);
	u8 data[EBB_FRAME] = { 0 };
	struct wire_frame *f = &p.f;
	u32 n = 0;

	if (f->op == WIRE_HELLO && !f->status) {
		struct wire_donor donor = {
			.version = WIRE_VERSION, .slab_size = 1 << 20, .total = 1 << 30,
			.free = 1 << 29, .grace = GRACE_MS,
		};

		n = f->length = wire_build_donor(data + WIRE_HEADER, &donor);
	}
	if ((f->op == WIRE_MAP || f->op == WIRE_REMAP) && !f->status) {
		struct wire_rdma_grant grant = { .length = 1 << 20, .key = W.lent[f->slab].key };

		wire_build_rdma_grant(data + WIRE_HEADER, &grant);
		n = WIRE_RDMA_GRANT_SIZE;
	}
	wire_build(data, f);
	if (!ebb_call_replied(W.s, f, data, WIRE_HEADER + n))
		wrong("a reply is not expected");
}
