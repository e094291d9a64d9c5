// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "lib/base/cleanup.h"
#include "stream.h"

/* Header, payload and trailer of 64 frames. */
#define FLUSH_IOVECS 192
/* The payload in flight; header and payload of each expected frame; the rest of the buffer. */
#define RECEIVE_IOVECS (2 + 2 * STREAM_EXPECTED)

static ssize_t socket_receive(void *channel, int fd, struct msghdr *m)
{
	return recvmsg(fd, m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
}

static ssize_t socket_send(void *channel, int fd, struct msghdr *m)
{
	return sendmsg(fd, m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static const struct stream_io socket_io = { .receive = socket_receive, .send = socket_send };

static const struct stream_io *io_of(const struct stream_io *io)
{
	return io ? io : &socket_io;
}

int stream_rx_init(struct stream_rx *rx, enum wire_side side)
{
	uint8_t *buf = malloc(STREAM_RX_BUFFER);

	if (!buf)
		return -ENOMEM;
	*rx = (struct stream_rx){ .side = side, .buf = buf };
	return 0;
}

static void close_fds(struct stream_rx *rx)
{
	while (rx->fd_count)
		close_fdp(&rx->fds[--rx->fd_count]);
}

void stream_rx_reset(struct stream_rx *rx)
{
	close_fds(rx);
	*rx = (struct stream_rx){ .side = rx->side, .buf = rx->buf,
				  .takes_fds = rx->takes_fds, .spill = rx->spill };
}

void stream_rx_free(struct stream_rx *rx)
{
	close_fds(rx);
	free(rx->buf);
	*rx = (struct stream_rx){ 0 };
}

void stream_rx_discard(struct stream_rx *rx)
{
	rx->dst = NULL;
}

int stream_take_fd(struct stream_rx *rx)
{
	int fd = rx->fd_count ? rx->fds[0] : -ENODATA;

	if (rx->fd_count)
		memmove(rx->fds, rx->fds + 1, --rx->fd_count * sizeof(*rx->fds));
	return fd;
}

/* Keeps @fd, or closes it and returns -EPROTO if there are too many. */
static int keep_fd(struct stream_rx *rx, int fd)
{
	if (rx->fd_count == STREAM_FDS) {
		close_fdp(&fd);
		return -EPROTO;
	}
	rx->fds[rx->fd_count++] = fd;
	return 0;
}

/*
 * Keeps the descriptors that came with @m; -EPROTO when there are too many.  One that the kernel
 * could not install keeps its place, because the next ones belong to other frames.
 */
static int keep_fds(struct stream_rx *rx, struct msghdr *m)
{
	size_t came = 0;
	int r = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			came++;
			if (keep_fd(rx, fd))
				r = -EPROTO;
		}
	}
	if (m->msg_flags & MSG_CTRUNC)
		r = came ? -EPROTO : keep_fd(rx, -EMFILE);
	return r;
}

/* --- payloads that arrived directly ------------------------------------------------- */

/* Returns how many unparsed bytes are adjacent in the buffer. */
static uint32_t adjacent(const struct stream_rx *rx)
{
	return (rx->next_direct < rx->directs ? rx->direct[rx->next_direct].at : rx->tail) -
	       rx->head;
}

/* The payload in flight may be in place already. */
static void take_direct(struct stream_rx *rx)
{
	const struct stream_direct *d = &rx->direct[rx->next_direct];

	if (rx->next_direct == rx->directs || d->at != rx->head || rx->dst != d->of.payload ||
	    rx->left != d->of.length)
		return;
	if (rx->trailed)
		rx->guard->piece(rx->guard, rx->dst, d->got);
	rx->dst += d->got;
	rx->left -= d->got;
	rx->next_direct++;
}

/*
 * Other frames came than expected: puts all unparsed bytes one after the other into the spill.
 * Returns false if they are in order already.
 */
static bool spill(struct stream_rx *rx)
{
	uint32_t n = 0, rest;

	if (rx->next_direct == rx->directs)
		return false;
	while (rx->next_direct < rx->directs) {
		const struct stream_direct *d = &rx->direct[rx->next_direct];

		memcpy(rx->spill + n, rx->buf + rx->head, d->at - rx->head);
		n += d->at - rx->head;
		memcpy(rx->spill + n, d->of.payload, d->got);
		n += d->got;
		rx->head = d->at;
		rx->next_direct++;
	}
	rest = rx->tail - rx->head;
	memcpy(rx->spill + n, rx->buf + rx->head, rest);
	rx->head = 0;
	rx->tail = n + rest;
	rx->spilled = true;
	return true;
}

/* Moves the rest of the spill, part of a header or of a MAC, to the buffer. */
static int end_spill(struct stream_rx *rx)
{
	uint32_t left = rx->tail - rx->head;
	bool lost = rx->next_direct < rx->directs || (rx->spilled && left > STREAM_RX_BUFFER);

	rx->next_direct = rx->directs = 0;
	/* "Not now", which is excluded. */
	if (lost)
		return -EPROTO;
	if (!rx->spilled)
		return 0;
	rx->spilled = false;
	memcpy(rx->buf, rx->spill + rx->head, left);
	rx->head = 0;
	rx->tail = left;
	return 0;
}

static const uint8_t *unparsed(const struct stream_rx *rx)
{
	return (rx->spilled ? rx->spill : rx->buf) + rx->head;
}

/* --- parsing ------------------------------------------------------------------------ */

/* Moves buffered bytes to the payload in flight. */
static void drain_buffer(struct stream_rx *rx)
{
	uint32_t n = adjacent(rx);

	if (n > rx->left)
		n = rx->left;
	if (n && rx->trailed)
		rx->guard->piece(rx->guard, unparsed(rx), n);
	if (rx->dst) {
		memcpy(rx->dst, unparsed(rx), n);
		rx->dst += n;
	}
	rx->head += n;
	rx->left -= n;
}

/*
 * Checks each header once, even if it is not taken at once.  Returns 1, 0 when bytes are missing,
 * or -EBADMSG.
 */
static int prove(struct stream_rx *rx)
{
	const uint8_t *header = unparsed(rx);

	if (adjacent(rx) < WIRE_HEADER + STREAM_MARK)
		return 0;
	if (!rx->proven && !rx->guard->genuine(rx->guard, header, header + WIRE_HEADER))
		return -EBADMSG;
	rx->proven = true;
	return 1;
}

/* Takes the MAC behind a payload.  Returns 1, 0 when bytes are missing, or -EBADMSG. */
static int prove_payload(struct stream_rx *rx)
{
	if (adjacent(rx) < STREAM_MARK)
		return 0;
	if (!rx->guard->intact(rx->guard, unparsed(rx)))
		return -EBADMSG;
	rx->head += STREAM_MARK;
	return 1;
}

/* Handles every complete frame of adjacent bytes.  Returns as parse_buffer(). */
static int parse_adjacent(struct stream_rx *rx, const struct stream_rx_ops *ops, void *data)
{
	for (;;) {
		void *payload = NULL;
		int r;

		if (rx->busy) {
			take_direct(rx);
			/* Unparsed bytes may be where this payload belongs. */
			if (rx->left && rx->next_direct < rx->directs)
				return 0;
			drain_buffer(rx);
			if (rx->left)
				return 0;
			/*
			 * Unparsed bytes may be in the payload of a refused READ, which its owner
			 * may use from finished() on.
			 */
			if (rx->frame.status && rx->next_direct < rx->directs)
				return 0;
			r = rx->trailed ? prove_payload(rx) : 1;
			if (r <= 0)
				return r;
			rx->busy = false;
			r = ops->finished(data, &rx->frame);
			if (r)
				return r;
		}
		if (!adjacent(rx))
			return 0;
		/* The MAC first: an altered header is no violation of the protocol. */
		r = rx->guard ? prove(rx) : 1;
		if (r > 0)
			r = wire_parse(unparsed(rx), adjacent(rx), rx->side, &rx->frame);
		if (r <= 0)
			return r;
		r = ops->arrived(data, &rx->frame, &payload);
		if (r)
			return r;
		rx->head += WIRE_HEADER + (rx->guard ? STREAM_MARK : 0);
		rx->proven = false;
		rx->left = wire_payload(&rx->frame);
		rx->trailed = rx->left && rx->guard && rx->guard->trailers;
		rx->dst = payload;
		rx->busy = true;
	}
}

/*
 * Handles every complete frame that was received.  Returns 0 when more bytes are needed, 1 on "not
 * now", or -errno.
 */
static int parse_buffer(struct stream_rx *rx, const struct stream_rx_ops *ops, void *data)
{
	int r = parse_adjacent(rx, ops, data), ended;

	if (!r && spill(rx))
		r = parse_adjacent(rx, ops, data);
	ended = end_spill(rx);
	return r < 0 || !ended ? r : ended;
}

/* --- receiving ---------------------------------------------------------------------- */

static void add_room(struct msghdr *m, void *p, uint32_t length)
{
	if (length)
		m->msg_iov[m->msg_iovlen++] = (struct iovec){ p, length };
}

/*
 * Lays out the empty buffer for the frames that come next, payloads elsewhere.  Returns the end of
 * the part of the buffer that is laid out; *@from is the end of its part that is in @m.
 */
static uint32_t lay_out(struct stream_rx *rx, const struct stream_rx_ops *ops, void *data,
			struct msghdr *m, uint32_t *from)
{
	struct stream_expected next[STREAM_EXPECTED];
	uint32_t n = ops->expected(data, next, STREAM_EXPECTED);
	uint32_t header = WIRE_HEADER + (rx->guard ? STREAM_MARK : 0);
	uint32_t trailer = rx->guard && rx->guard->trailers ? STREAM_MARK : 0;
	uint32_t at = rx->busy && rx->trailed ? STREAM_MARK : 0, room = STREAM_EXPECTED_BYTES;

	for (uint32_t i = 0; i < n; i++) {
		struct stream_direct *d = &rx->direct[rx->directs];

		at += header;
		if (!next[i].length)
			continue;
		*d = (struct stream_direct){ .of = next[i], .at = at, .room = next[i].length };
		if (d->room > room)
			d->room = room;
		room -= d->room;
		add_room(m, rx->buf + *from, at - *from);
		add_room(m, d->of.payload, d->room);
		*from = at;
		rx->directs++;
		if (!room)
			return at;
		at += trailer;
	}
	/* Frames behind them would be copied: after eight, they wait for the next call. */
	return n == STREAM_EXPECTED && rx->directs ? at : STREAM_RX_BUFFER;
}

/* Accounts for @n bytes that were received into the layout. */
static void take_in(struct stream_rx *rx, uint32_t n)
{
	uint32_t some = rx->dst && n > rx->left ? rx->left : rx->dst ? n : 0;

	if (some && rx->trailed)
		rx->guard->piece(rx->guard, rx->dst, some);
	if (rx->dst)
		rx->dst += some;
	rx->left -= some;
	n -= some;
	for (uint32_t i = 0; i < rx->directs; i++) {
		struct stream_direct *d = &rx->direct[i];

		some = n < d->at - rx->tail ? n : d->at - rx->tail;
		rx->tail += some;
		n -= some;
		d->got = n < d->room ? n : d->room;
		n -= d->got;
		if (!d->got)
			rx->directs = i;
	}
	rx->tail += n;
}

/* Shortens @m to @most bytes; returns their number. */
static size_t limit_room(struct msghdr *m, size_t most)
{
	size_t all = 0;

	for (size_t i = 0; i < m->msg_iovlen; i++) {
		if (m->msg_iov[i].iov_len >= most - all) {
			m->msg_iov[i].iov_len = most - all;
			m->msg_iovlen = i + 1;
			return most;
		}
		all += m->msg_iov[i].iov_len;
	}
	return all;
}

/*
 * Receives up to @*wanted bytes by one system call: the rest of the payload in flight, then
 * expected frames, then the buffer.  Sets @*wanted to the room that there was.
 */
static ssize_t receive_some(struct stream_rx *rx, int fd, const struct stream_rx_ops *ops,
			    void *data, size_t *wanted)
{
	char control[CMSG_SPACE(STREAM_FDS * sizeof(int))] __attribute__((aligned(8)));
	struct iovec iov[RECEIVE_IOVECS];
	struct msghdr m = { .msg_iov = iov };
	uint32_t from, end = STREAM_RX_BUFFER;
	ssize_t n;

	if (rx->head == rx->tail) {
		rx->head = rx->tail = 0;
	} else if (rx->head) {
		memmove(rx->buf, rx->buf + rx->head, rx->tail - rx->head);
		rx->tail -= rx->head;
		rx->head = 0;
	}
	from = rx->tail;
	if (rx->dst)
		add_room(&m, rx->dst, rx->left);
	if (ops->expected && rx->spill && !rx->tail && !(rx->left && !rx->dst))
		end = lay_out(rx, ops, data, &m, &from);
	add_room(&m, rx->buf + from, end - from);
	*wanted = limit_room(&m, *wanted);
	if (rx->takes_fds) {
		m.msg_control = control;
		m.msg_controllen = sizeof(control);
	}
	n = io_of(rx->io)->receive(rx->channel, fd, &m);
	if (n <= 0) {
		rx->directs = 0;
		return n;
	}
	rx->moved += (uint64_t)n;
	take_in(rx, (uint32_t)n);
	if (rx->takes_fds && keep_fds(rx, &m)) {
		errno = EPROTO;
		return -1;
	}
	return n;
}

static size_t pending(const struct stream_rx *rx)
{
	return io_of(rx->io)->pending ? rx->io->pending(rx->channel) : 0;
}

int stream_receive(struct stream_rx *rx, int fd, size_t budget,
		   const struct stream_rx_ops *ops, void *data)
{
	/* Begin with frames left by an earlier "not now". */
	int r = parse_buffer(rx, ops, data);
	size_t left = 0; /* once the budget is used up: of what was pending then */

	while (!r) {
		size_t wanted = left ? left : SIZE_MAX;
		ssize_t n = receive_some(rx, fd, ops, data, &wanted);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 0 : -errno;
		if (!n)
			return -ECONNRESET;
		r = parse_buffer(rx, ops, data);
		/*
		 * A short read means an empty socket, except where descriptors may come, at which a
		 * read ends.
		 */
		if (r || ((size_t)n < wanted && !rx->takes_fds && !pending(rx)))
			return r;
		if (!left && (size_t)n < budget) {
			budget -= (size_t)n;
			continue;
		}
		left = left ? left - (size_t)n : pending(rx);
		if (!left)
			return 1;
	}
	return r;
}

int stream_tx_init(struct stream_tx *tx, uint32_t size)
{
	struct stream_entry *entries = calloc(size, sizeof(*entries));

	if (!entries)
		return -ENOMEM;
	*tx = (struct stream_tx){ .entries = entries, .size = size };
	return 0;
}

void stream_tx_free(struct stream_tx *tx)
{
	free(tx->entries);
	*tx = (struct stream_tx){ 0 };
}

static struct stream_entry *entry_at(struct stream_tx *tx, uint32_t i)
{
	i += tx->head;
	return &tx->entries[i < tx->size ? i : i - tx->size];
}

int stream_push(struct stream_tx *tx, const struct wire_frame *frame, const void *payload,
		uint32_t cookie)
{
	struct stream_entry *en;
	uint32_t length = wire_payload(frame);

	if (!stream_tx_room(tx))
		return -ENOSPC;
	en = entry_at(tx, tx->count++);
	wire_build(en->bytes, frame);
	en->first = WIRE_HEADER;
	if (tx->guard) {
		tx->guard->mark(tx->guard, en->bytes, en->bytes + WIRE_HEADER);
		en->first += STREAM_MARK;
	}
	en->last = length && tx->guard && tx->guard->trailers ? STREAM_MARK : 0;
	en->marked = false;
	en->length = length;
	en->cookie = cookie;
	en->payload = payload;
	en->fd = -1;
	if (length && length <= STREAM_INLINE) {
		memcpy(en->bytes + en->first, payload, length);
		en->first += length;
		en->payload = NULL;
	}
	return 0;
}

int stream_push_fd(struct stream_tx *tx, const struct wire_frame *frame, int fd,
		   uint32_t cookie)
{
	int r = stream_push(tx, frame, NULL, cookie);

	if (!r)
		entry_at(tx, tx->count - 1)->fd = fd;
	return r;
}

/* Returns the bytes of its payload that are not in bytes[]. */
static uint32_t referred(const struct stream_entry *en)
{
	return en->payload ? en->length : 0;
}

static int add_iovec(struct iovec *iov, int n, const void *p, uint32_t length, uint32_t *skip)
{
	uint32_t some = *skip < length ? *skip : length;

	if (some < length)
		iov[n++] = (struct iovec){ (char *)p + some, length - some };
	*skip -= some;
	return n;
}

/* Appends to @iov the unsent part of @en, after its first @skip bytes: up to 3. */
static int entry_iovecs(struct stream_entry *en, uint32_t skip, struct iovec *iov)
{
	int n = add_iovec(iov, 0, en->bytes, en->first, &skip);

	n = add_iovec(iov, n, en->payload, referred(en), &skip);
	return add_iovec(iov, n, en->trailer, en->last, &skip);
}

/*
 * Computes its trailer, for the payload as it is sent: a donor's reply refers to memory that
 * requests behind it may have changed since.
 */
static void mark_payload(struct stream_tx *tx, struct stream_entry *en)
{
	if (!en->last || en->marked)
		return;
	tx->guard->piece(tx->guard, en->payload ?: en->bytes + en->first - en->length, en->length);
	tx->guard->trailer(tx->guard, en->trailer);
	en->marked = true;
}

/* Drops the first entry. */
static void pop(struct stream_tx *tx, void (*sent)(void *data, uint32_t cookie), void *data)
{
	uint32_t cookie = entry_at(tx, 0)->cookie;

	tx->head = tx->head + 1 < tx->size ? tx->head + 1 : 0;
	tx->count--;
	tx->popped++;
	if (sent)
		sent(data, cookie);
}

static void attach_fd(struct msghdr *m, char *control, size_t size, int fd)
{
	struct cmsghdr *c;

	memset(control, 0, size);
	m->msg_control = control;
	m->msg_controllen = size;
	c = CMSG_FIRSTHDR(m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
}

int stream_flush(struct stream_tx *tx, int fd, void (*sent)(void *data, uint32_t cookie),
		 void *data)
{
	size_t total = 0;

	while (tx->count) {
		char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
		struct iovec iov[FLUSH_IOVECS];
		struct msghdr m = { .msg_iov = iov };
		size_t wanted = 0;
		ssize_t n;

		/* A descriptor goes with the first byte of its frame, so with the first entry. */
		if (entry_at(tx, 0)->fd >= 0 && !tx->sent)
			attach_fd(&m, control, sizeof(control), entry_at(tx, 0)->fd);
		for (uint32_t i = 0; i < tx->count && m.msg_iovlen + 3 <= FLUSH_IOVECS; i++) {
			struct iovec *more = iov + m.msg_iovlen;
			int count;

			if (i && (entry_at(tx, i)->fd >= 0 ||
				  (tx->budget && total + wanted >= tx->budget)))
				break;
			mark_payload(tx, entry_at(tx, i));
			count = entry_iovecs(entry_at(tx, i), i ? 0 : tx->sent, more);
			for (int v = 0; v < count; v++)
				wanted += more[v].iov_len;
			m.msg_iovlen += (size_t)count;
		}
		n = io_of(tx->io)->send(tx->channel, fd, &m);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 1 : -errno;
		tx->sent += (uint32_t)n;
		tx->moved += (uint64_t)n;
		while (tx->count) {
			const struct stream_entry *en = entry_at(tx, 0);
			uint32_t whole = en->first + referred(en) + en->last;

			if (tx->sent < whole)
				break;
			tx->sent -= whole;
			pop(tx, sent, data);
		}
		total += (size_t)n;
		if ((size_t)n < wanted || (tx->budget && total >= tx->budget))
			return tx->count > 0;
	}
	return 0;
}

void stream_tx_reset(struct stream_tx *tx, void (*sent)(void *data, uint32_t cookie),
		     void *data)
{
	while (tx->count)
		pop(tx, sent, data);
	tx->sent = 0;
	tx->io = NULL;
	tx->guard = NULL;
}
