// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "donord/session/access.h"
#include "lib/base/draw.h"
#include "lib/wire/key.h"
#include "secure.h"

#define MOST_FRAMES 64
#define MOST_BYTES (96u << 10)
#define SESSION 0x0102030405060708ull

/* What both sides of a session have. */
static const uint8_t session_key[SESSION_KEY] = "a key of this session only";

/* Made once: the key and the two sides' contexts. */
static struct keyring ring;
static struct tls_context *contexts[2]; /* of the donor, of the borrower */

static void wrong(struct fuzz_protocol_result *r, const char *what)
{
	if (!*r->wrong)
		snprintf(r->wrong, sizeof(r->wrong), "%s", what);
}

static bool open_pair(int fd[2], struct fuzz_protocol_result *r)
{
	if (!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd))
		return true;
	snprintf(r->wrong, sizeof(r->wrong), "no socket: %s", strerror(errno));
	return false;
}

/* The input, piece by piece; what is not there is 0. */
struct input {
	const uint8_t *data;
	size_t left;
};

static uint8_t take_byte(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->data++;
}

static size_t take_bytes(struct input *in, uint8_t *to, size_t n)
{
	size_t some = n < in->left ? n : in->left;

	memcpy(to, in->data, some);
	in->data += some;
	in->left -= some;
	return some;
}

/* --- frames that were sent, and those that arrive ------------------------------------ */

struct expected {
	struct fuzz_protocol_result *r;
	uint8_t header[MOST_FRAMES][WIRE_HEADER];
	const uint8_t *there[MOST_FRAMES]; /* the payload; NULL = any */
	uint32_t sent, taken;
	uint32_t whole, done; /* payload included */
	uint8_t *payload;
};

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct expected *x = data;
	uint8_t header[WIRE_HEADER];

	wire_build(header, f);
	if (x->taken == x->sent || memcmp(header, x->header[x->taken], WIRE_HEADER))
		wrong(x->r, "a frame was taken that was not sent, or not then");
	else
		x->taken++;
	*payload = x->payload = malloc(wire_payload(f) ?: 1);
	return x->payload ? 0 : -ENOMEM;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct expected *x = data;
	const uint8_t *there = x->taken ? x->there[x->taken - 1] : NULL;

	if (x->done++ == x->whole)
		wrong(x->r, "a payload was taken that was not sent");
	else if (there && memcmp(there, x->payload, wire_payload(f)))
		wrong(x->r, "another payload than that");
	x->r->frames++;
	free(x->payload);
	x->payload = NULL;
	return 0;
}

static const struct stream_rx_ops ops = { .arrived = arrived, .finished = finished };

/* --- FUZZ_LINK ---------------------------------------------------------------------------- */

enum spoiling { SPOIL_PAYLOAD = 3, SPOIL_MARK, SPOIL_NUMBER, SPOIL_HEADER, LEAVE_MARK_OUT };

/* What becomes of the payload, and its trailer, with SPOIL_PAYLOAD. */
enum payload_spoiling { SPOIL_BYTES, SPOIL_TRAILER, SPOIL_PAYLOAD_NUMBER, CUT_TRAILER };

/*
 * Appends the trailer of the @n bytes at bytes + *len - n, and spoils either as @how says; returns
 * whether it left them as they were.
 */
static bool put_trailer(uint8_t how, struct session_guard *out, uint8_t *bytes, size_t *len,
			size_t n)
{
	uint8_t *payload = bytes + *len - n, *trailer = bytes + *len;
	bool spoils = (how & 7) == SPOIL_PAYLOAD;

	out->payloads += spoils && how >> 6 == SPOIL_PAYLOAD_NUMBER;
	out->guard.piece(&out->guard, payload, (uint32_t)n);
	out->guard.trailer(&out->guard, trailer);
	*len += STREAM_MARK;
	if (spoils && how >> 6 == SPOIL_BYTES)
		payload[(how >> 3 & 7) * 1000 % n] ^= 1;
	else if (spoils && how >> 6 == SPOIL_TRAILER)
		trailer[(how >> 3 & 7) * 2] ^= 1;
	else if (spoils && how >> 6 == CUT_TRAILER)
		*len -= 1 + (how >> 3 & 7) * 2;
	return !spoils;
}

/* Appends a frame with its MACs as @in wants it; false when nothing behind it may be taken. */
static bool put_frame(struct input *in, struct session_guard *out, enum wire_side side,
		      struct expected *x, uint8_t *bytes, size_t *len)
{
	uint8_t how = take_byte(in), *header = bytes + *len, *mark = header + WIRE_HEADER;
	struct wire_frame f;
	bool good, whole;
	size_t n;

	whole = take_bytes(in, header, WIRE_HEADER) == WIRE_HEADER;
	if (!whole)
		return false;
	good = wire_parse(header, WIRE_HEADER, side, &f) == 1;
	if ((how & 7) == SPOIL_NUMBER)
		out->guard.mark(&out->guard, header, mark);
	out->guard.mark(&out->guard, header, mark);
	*len += WIRE_HEADER + STREAM_MARK;
	if (good && (how & 7) < SPOIL_MARK)
		memcpy(x->header[x->sent++], header, WIRE_HEADER);
	else
		good = false;
	if ((how & 7) == SPOIL_MARK)
		mark[how >> 4] ^= 1;
	else if ((how & 7) == SPOIL_HEADER)
		header[how >> 3] ^= 1;
	else if ((how & 7) == LEAVE_MARK_OUT)
		*len -= STREAM_MARK;
	n = good ? wire_payload(&f) : 0;
	whole = n <= MOST_BYTES - *len;
	n = whole ? n : MOST_BYTES - *len;
	memset(bytes + *len, 0, n);
	take_bytes(in, bytes + *len, n < 16 ? n : 16);
	if (good)
		x->there[x->sent - 1] = bytes + *len;
	*len += n;
	/* Without a trailer a payload is any bytes. */
	if (good && whole && n && out->guard.trailers)
		good = put_trailer(how, out, bytes, len, n);
	x->whole += good && whole;
	return good;
}

static void feed(struct stream_rx *rx, int fd[2], const uint8_t *bytes, size_t len, size_t piece,
		 struct expected *x)
{
	int end = 0;

	for (size_t sent = 0; sent < len && !end;) {
		ssize_t n = send(fd[0], bytes + sent, len - sent < piece ? len - sent : piece,
				 MSG_NOSIGNAL);

		sent += n > 0 ? (size_t)n : 0;
		do
			end = stream_receive(rx, fd[1], 5000, &ops, x);
		while (end == 1);
	}
	shutdown(fd[0], SHUT_WR);
	while (end == 0 || end == 1)
		end = stream_receive(rx, fd[1], 5000, &ops, x);
	x->r->end = end;
}

static void run_link(uint8_t how, struct input in, struct fuzz_protocol_result *r)
{
	static uint8_t bytes[MOST_BYTES + WIRE_HEADER + 2 * STREAM_MARK];
	uint32_t version = how & 128 ? 3 : WIRE_VERSION;
	enum wire_side side = how & 4 ? WIRE_AT_DONOR : WIRE_AT_BORROWER;
	enum wire_direction direction = how & 4 ? WIRE_REQUEST : WIRE_REPLY;
	const struct wire_join j = { .session = SESSION, .number = 3 };
	struct session_guard out = { .frames = 0 }, guard = { .frames = 0 };
	struct expected x = { .r = r };
	struct stream_rx rx = { .buf = NULL };
	bool spoilt = false;
	size_t len = 0;
	int fd[2];

	if (!open_pair(fd, r))
		return;
	if (session_guard_init(&out) || session_guard_init(&guard) || stream_rx_init(&rx, side) ||
	    session_guard_start(&out, SESSION_SENDS, session_key, &j, direction, version) ||
	    session_guard_start(&guard, SESSION_RECEIVES, session_key, &j, direction, version)) {
		wrong(r, "no memory");
	} else {
		rx.guard = &guard.guard;
		for (int i = 0; i < MOST_FRAMES && in.left && len < MOST_BYTES - 64; i++) {
			struct expected none = x;

			/* Behind what is spoilt no frame is good, however it was made. */
			if (!put_frame(&in, &out, side, spoilt ? &none : &x, bytes, &len))
				spoilt = true;
		}
		feed(&rx, fd, bytes, len, 7 + (how >> 3 & 15) * 37u, &x);
		if (r->end != -EPROTO && r->end != -EBADMSG && r->end != -ECONNRESET)
			wrong(r, "another end than those");
		if (!spoilt && len < MOST_BYTES - 64 && (x.taken != x.sent || x.done != x.sent))
			wrong(r, "a good frame was not taken");
	}
	free(x.payload);
	stream_rx_free(&rx);
	session_guard_free(&out);
	session_guard_free(&guard);
	close(fd[0]);
	close(fd[1]);
}

/* --- FUZZ_JOIN --------------------------------------------------------------------------- */

static void run_join(struct input in, struct fuzz_protocol_result *r)
{
	struct access control = { .state = ACCESS_CONTROL, .session = SESSION };
	uint64_t used = 0;

	memcpy(control.key, session_key, sizeof(control.key));
	while (in.left) {
		struct access a = { .state = ACCESS_JOINING };
		uint8_t how = take_byte(&in), bytes[WIRE_JOIN_SIZE] = { 0 };
		struct wire_join j;
		enum wire_status status;
		bool due;

		take_bytes(&in, bytes, how & 8 ? sizeof(bytes) : 16);
		if (wire_parse_join(bytes, sizeof(bytes), &j))
			continue;
		j.session = how & 1 ? SESSION : j.session;
		j.number = how & 2 ? j.number % (SESSION_NUMBERS + 2) : j.number;
		if (how & 4 && session_sign(session_key, &j))
			wrong(r, "no memory");
		due = j.session == SESSION && how & 4 && j.number < SESSION_NUMBERS &&
		      !(used >> j.number & 1);
		status = access_join(&a, how & 16 ? NULL : &control, &j, WIRE_VERSION);
		if ((status == WIRE_OK) != (due && !(how & 16)))
			wrong(r, "a JOIN that should not, or that should");
		if (status == WIRE_OK) {
			used |= 1ull << j.number;
			r->loans++;
		}
		if ((a.state == ACCESS_DATA) != (status == WIRE_OK))
			wrong(r, "in, without a word");
		access_end(&a);
	}
}

/* --- FUZZ_HELLO ---------------------------------------------------------------------------- */

static void run_hello(uint8_t how, struct input in, struct fuzz_protocol_result *r)
{
	struct tls t = { .ssl = NULL };
	size_t piece = 1 + (how >> 3) * 29u;
	int fd[2], end = 1;

	if (!open_pair(fd, r))
		return;
	if (tls_start(&t, contexts[how >> 2 & 1], fd[1]))
		wrong(r, "no memory");
	while (t.ssl && end == 1) {
		uint8_t bytes[1024], sink[4096];
		size_t n = take_bytes(&in, bytes, piece < sizeof(bytes) ? piece : sizeof(bytes));

		if (n && send(fd[0], bytes, n, MSG_NOSIGNAL) < 0)
			break;
		if (!n)
			shutdown(fd[0], SHUT_WR);
		end = tls_handshake(&t);
		while (recv(fd[0], sink, sizeof(sink), 0) > 0)
			;
		if (end == 1 && !n)
			wrong(r, "waits for what cannot come");
		if (!n)
			break;
	}
	if (!end)
		wrong(r, "a handshake without the key");
	if (end == -EACCES && (!*t.why || !memchr(t.why, 0, sizeof(t.why))))
		wrong(r, "no reason");
	r->end = end;
	tls_stop(&t);
	close(fd[0]);
	close(fd[1]);
}

/* --- FUZZ_MIDDLE --------------------------------------------------------------------------- */

struct side {
	struct tls tls;
	struct stream_rx rx;
	struct stream_tx tx;
	struct expected x; /* of what is to arrive here */
	int fd, middle;    /* its end, and the middle's */
	int state;         /* of the handshake: 1, 0 or -errno */
	size_t passed;     /* bytes that came from it */
};

#define EDITS 16
#define MIDDLE_BYTES 1200 /* about as many each way, frames included */
struct edit { uint8_t side, mask; size_t at; };

/* What @from has said goes to @to, with its bytes changed. */
static void relay(struct side *from, const struct side *to, const struct edit *edits, uint32_t side)
{
	uint8_t bytes[4096];
	ssize_t n;

	while ((n = recv(from->middle, bytes, sizeof(bytes), 0)) > 0) {
		for (int i = 0; i < EDITS; i++)
			if (edits[i].side == side && edits[i].at >= from->passed &&
			    edits[i].at < from->passed + (size_t)n)
				bytes[edits[i].at - from->passed] ^= edits[i].mask;
		from->passed += (size_t)n;
		if (send(to->middle, bytes, (size_t)n, MSG_NOSIGNAL) != n)
			return;
	}
}

static int side_open(struct side *s, struct tls_context *c, enum wire_side side,
		     struct fuzz_protocol_result *r)
{
	int fd[2];

	*s = (struct side){ .fd = -1, .middle = -1, .state = 1, .x = { .r = r } };
	if (!open_pair(fd, r))
		return -EMFILE;
	s->fd = fd[0];
	s->middle = fd[1];
	if (stream_rx_init(&s->rx, side) || stream_tx_init(&s->tx, MOST_FRAMES) ||
	    tls_start(&s->tls, c, s->fd)) {
		wrong(r, "no memory");
		return -ENOMEM;
	}
	return 0;
}

static void side_close(struct side *s)
{
	tls_stop(&s->tls);
	stream_rx_free(&s->rx);
	stream_tx_free(&s->tx);
	free(s->x.payload);
	if (s->fd >= 0)
		close(s->fd);
	if (s->middle >= 0)
		close(s->middle);
}

static void say(struct side *s, struct side *to, struct wire_frame f)
{
	wire_build(to->x.header[to->x.sent++], &f);
	to->x.whole++;
	stream_push(&s->tx, &f, NULL, 0);
	stream_flush(&s->tx, s->fd, NULL, NULL);
}

static void talk(struct side *borrower, struct side *donor, const struct edit *edits)
{
	struct side *sides[] = { borrower, donor };

	for (int i = 0; i < 2; i++) {
		sides[i]->rx.io = sides[i]->tx.io = &tls_io;
		sides[i]->rx.channel = sides[i]->tx.channel = &sides[i]->tls;
	}
	for (uint32_t i = 0; i < 4; i++) {
		say(borrower, donor, (struct wire_frame){ .op = WIRE_UNMAP, .tag = i, .slab = i });
		say(donor, borrower, (struct wire_frame){ .op = WIRE_EVICT, .tag = i, .slab = i });
		relay(borrower, donor, edits, 0);
		relay(donor, borrower, edits, 1);
		for (int k = 0; k < 2; k++)
			if (stream_receive(&sides[k]->rx, sides[k]->fd, 1 << 20, &ops,
					   &sides[k]->x) < 0)
				return;
	}
}

static void run_middle(struct input in, struct fuzz_protocol_result *r)
{
	struct edit edits[EDITS] = { { 0 } };
	struct side borrower = { .fd = -1, .middle = -1 }, donor = { .fd = -1, .middle = -1 };

	for (int i = 0; i < EDITS && in.left; i++) {
		edits[i].side = take_byte(&in) & 1;
		edits[i].at = (size_t)take_byte(&in) << 8;
		edits[i].at = (edits[i].at | take_byte(&in)) % MIDDLE_BYTES;
		edits[i].mask = take_byte(&in);
	}
	if (!side_open(&borrower, contexts[1], WIRE_AT_BORROWER, r) &&
	    !side_open(&donor, contexts[0], WIRE_AT_DONOR, r)) {
		for (int round = 0; round < 8 && (borrower.state == 1 || donor.state == 1);
		     round++) {
			if (borrower.state == 1)
				borrower.state = tls_handshake(&borrower.tls);
			relay(&borrower, &donor, edits, 0);
			if (donor.state == 1)
				donor.state = tls_handshake(&donor.tls);
			relay(&donor, &borrower, edits, 1);
		}
		if (!borrower.state && !donor.state) {
			r->loans++;
			if (strcmp(donor.tls.name, ring.keys[0].name))
				wrong(r, "another one's name");
			talk(&borrower, &donor, edits);
		}
		r->end = donor.state;
	}
	side_close(&borrower);
	side_close(&donor);
}

/* --- all ------------------------------------------------------------------------------------ */

void fuzz_secure(const uint8_t *data, size_t size, struct fuzz_protocol_result *r)
{
	struct input in = { data + 1, size - 1 };

	*r = (struct fuzz_protocol_result){ 0 };
	if (!size)
		return;
	switch (fuzz_secure_kind(data[0])) {
	case FUZZ_LINK:
		run_link(data[0], in, r);
		break;
	case FUZZ_JOIN:
		run_join(in, r);
		break;
	case FUZZ_HELLO:
		run_hello(data[0], in, r);
		break;
	default:
		run_middle(in, r);
	}
}

int fuzz_secure_set_up(struct error *e)
{
	/* Always the same: what is in the corpus names it. */
	static const char line[] = "ebb-key-1 spark "
		"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
	char path[] = "/tmp/ebb-fuzz-XXXXXX";
	int fd = mkstemp(path), r;

	if (fd < 0 || write(fd, line, strlen(line)) != (ssize_t)strlen(line)) {
		r = fail(e, errno, "%s: %m", path);
	} else {
		r = keyring_add(&ring, path, KEYRING_NEEDED, e);
		unlink(path);
	}
	if (fd >= 0)
		close(fd);
	if (!r)
		r = tls_donor(&contexts[0], &ring, e);
	return r ? r : tls_borrower(&contexts[1], &ring.keys[0], e);
}

void fuzz_secure_tear_down(void)
{
	tls_context_free(&contexts[0]);
	tls_context_free(&contexts[1]);
	keyring_free(&ring);
}

/* --- inputs that get somewhere ------------------------------------------------------------- */

static size_t link_bytes(uint64_t *seed, uint8_t first, uint8_t *data, size_t size)
{
	bool donor = first & 4;
	size_t at = 0;

	while (size - at >= 1 + WIRE_HEADER) {
		bool writes = draw_below(seed, 2);
		struct wire_frame f = {
			.op = writes ? WIRE_WRITE : WIRE_READ,
			.direction = donor ? WIRE_REQUEST : WIRE_REPLY,
			.tag = draw_below(seed, 1000), .slab = draw_below(seed, 3), .generation = 1,
			.offset = WIRE_PAGE * draw_below(seed, 200),
			.length = WIRE_PAGE * (1 + draw_below(seed, 2)),
		};

		data[at++] = (uint8_t)(draw_below(seed, 12) ? draw_below(seed, 3) : draw32(seed));
		wire_build(data + at, &f);
		if (draw_below(seed, 40) == 0)
			data[at + draw_below(seed, WIRE_HEADER)] ^= (uint8_t)(1u << draw_below(seed,
											       8));
		at += WIRE_HEADER;
	}
	return at;
}

/* What a borrower says first, some of it changed. */
static size_t hello_bytes(uint64_t *seed, uint8_t *data, size_t size)
{
	struct tls t = { .ssl = NULL };
	ssize_t n = 0;
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd))
		return 0;
	if (!tls_start(&t, contexts[1], fd[1])) {
		tls_handshake(&t);
		n = recv(fd[0], data, size, 0);
	}
	tls_stop(&t);
	close(fd[0]);
	close(fd[1]);
	for (uint32_t i = draw_below(seed, 4); n > 0 && i; i--)
		data[draw_below(seed, (uint32_t)n)] ^= (uint8_t)(1u << draw_below(seed, 8));
	return n > 0 ? (size_t)n : 0;
}

void fuzz_secure_bytes(uint64_t seed, uint8_t *data, size_t size)
{
	size_t done = 1;

	data[0] = (uint8_t)draw32(&seed);
	switch (fuzz_secure_kind(data[0])) {
	case FUZZ_LINK:
		done += link_bytes(&seed, data[0], data + 1, size - 1);
		break;
	case FUZZ_HELLO:
		done += hello_bytes(&seed, data + 1, size - 1);
		break;
	default:
		break;
	}
	while (done < size)
		data[done++] = (uint8_t)draw32(&seed);
	/* Of JOINs most are meant. */
	for (size_t i = 1; fuzz_secure_kind(data[0]) == FUZZ_JOIN && i < size; i += 17) {
		data[i] = (uint8_t)(draw_below(&seed, 4) ? 7 : draw_below(&seed, 32));
		for (size_t k = i + 9; k < i + 17 && k < size; k++)
			data[k] = (uint8_t)(k < i + 10 ? draw32(&seed) : 0);
	}
	/* Limits most alterations by the man in the middle to few bytes. */
	if (fuzz_secure_kind(data[0]) == FUZZ_MIDDLE)
		for (size_t i = 1; i + 3 < size; i += 4)
			if (i > 4 || draw_below(&seed, 2))
				data[i + 3] = 0;
}
