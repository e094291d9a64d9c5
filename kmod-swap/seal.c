// SPDX-License-Identifier: GPL-2.0-only
/*
 * The key is random, created when the first class is sealed, and exists only in the transform.
 * Nonce: the page's number (32 bits) and a device-wide counter (64 bits), which is incremented
 * before use and never decremented: no nonce is used twice.  Associated data: a random number of
 * the device and the page's number.  The page's last counter and tag stay in memory, 24 bytes per
 * page, and change together with its places, under the slab's lock.
 *
 * Ciphertext lies in a fixed number of buffers, some of which WRITEs and reads from the backup
 * cannot have.  A request that finds no free buffer waits; a request with a buffer never waits for
 * a request without.
 */
#include <crypto/aead.h>
#include <linux/err.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "seal.h"

#define BUFFERS 16
/* Most of requests that may wait for a hung backup: reads from donors must go on. */
#define SLOW_BUFFERS 12
#define SEGMENT_ORDER 2
#define SEGMENT_PAGES (1 << SEGMENT_ORDER)
#define KEY 32
#define TAG 16
#define NONCE 12
#define AAD 16
static_assert(EBB_SEGMENTS * SEGMENT_PAGES == EBB_IO_PAGES);

struct ebb_seal {
	u64 counter;
	u8 tag[TAG];
};

struct ebb_buffer {
	struct list_head node;    /* in sealer->free */
	struct page *segments[EBB_SEGMENTS];
	struct ebb_seal seal[EBB_IO_PAGES]; /* WRITE: seals of the buffer's pages */
	struct aead_request *request;
	struct crypto_wait wait;
	struct scatterlist sg[3];
	u8 aad[AAD], nonce[NONCE], tag[TAG];
};

struct ebb_sealer {
	struct crypto_aead *aead;
	u64 number;               /* of the device, random */
	atomic64_t counter;
	struct ebb_seal *seals;   /* one per page of the device */
	spinlock_t lock;          /* interrupts off; innermost */
	struct list_head free, waiting; /* ebb_buffer; ebb_io */
	u32 slow;                 /* buffers of requests with ebb_io.slow */
	struct ebb_buffer *buffers[BUFFERS], *check; /* check: the copier's */
};

static void buffer_free(struct ebb_buffer *b)
{
	if (!b)
		return;
	for (int i = 0; i < EBB_SEGMENTS; i++)
		if (b->segments[i])
			__free_pages(b->segments[i], SEGMENT_ORDER);
	if (b->request)
		aead_request_free(b->request);
	kfree(b);
}

static struct ebb_buffer *buffer_new(struct crypto_aead *aead)
{
	struct ebb_buffer *b = kzalloc(sizeof(*b), GFP_KERNEL);
	bool all;

	if (!b)
		return NULL;
	b->request = aead_request_alloc(aead, GFP_KERNEL);
	all = b->request != NULL;
	for (int i = 0; i < EBB_SEGMENTS; i++) {
		b->segments[i] = alloc_pages(GFP_KERNEL, SEGMENT_ORDER);
		all &= b->segments[i] != NULL;
	}
	if (!all) {
		buffer_free(b);
		return NULL;
	}
	crypto_init_wait(&b->wait);
	aead_request_set_callback(b->request, CRYPTO_TFM_REQ_MAY_BACKLOG, crypto_req_done,
				  &b->wait);
	aead_request_set_ad(b->request, AAD);
	return b;
}

static int key_new(struct ebb_sealer *s)
{
	u8 key[KEY];
	int r;

	get_random_bytes(key, sizeof(key));
	r = crypto_aead_setkey(s->aead, key, sizeof(key)) ?:
	    crypto_aead_setauthsize(s->aead, TAG);
	memzero_explicit(key, sizeof(key));
	return r;
}

static void sealer_free(struct ebb_sealer *s)
{
	for (int i = 0; i < BUFFERS; i++)
		buffer_free(s->buffers[i]);
	buffer_free(s->check);
	if (s->aead)
		crypto_free_aead(s->aead);
	vfree(s->seals);
	kfree(s);
}

void ebb_seal_free(struct ebb_device *d)
{
	if (d->sealer)
		sealer_free(d->sealer);
	d->sealer = NULL;
}

int ebb_seal_init(struct ebb_device *d, const char **why)
{
	struct ebb_sealer *s;
	int r = -ENOMEM;

	if (d->sealer)
		return 0;
	*why = "seal: out of memory";
	s = kzalloc(sizeof(*s), GFP_KERNEL);
	if (!s)
		return r;
	spin_lock_init(&s->lock);
	INIT_LIST_HEAD(&s->free);
	INIT_LIST_HEAD(&s->waiting);
	s->number = get_random_u64();
	/*
	 * Algorithms with this flag allocate memory per request, which swap-out must not do: see
	 * include/linux/crypto.h.  dm-crypt excludes them too.
	 */
	s->aead = crypto_alloc_aead("gcm(aes)", 0, CRYPTO_ALG_ALLOCATES_MEMORY);
	if (IS_ERR(s->aead)) {
		*why = "seal: no gcm(aes) that allocates no memory; modprobe gcm";
		r = PTR_ERR(s->aead);
		s->aead = NULL;
		goto fail;
	}
	r = key_new(s);
	if (r) {
		*why = "seal: the kernel's gcm(aes) refuses 256-bit keys";
		goto fail;
	}
	r = -ENOMEM;
	s->seals = vzalloc(array_size(d->pages, sizeof(*s->seals)));
	if (!s->seals)
		goto fail;
	s->check = buffer_new(s->aead);
	if (!s->check)
		goto fail;
	for (int i = 0; i < BUFFERS; i++) {
		s->buffers[i] = buffer_new(s->aead);
		if (!s->buffers[i])
			goto fail;
		list_add_tail(&s->buffers[i]->node, &s->free);
	}
	d->sealer = s;
	return 0;
fail:
	sealer_free(s);
	return r;
}

/* The functions up to buffer_give() need sealer->lock. */
static bool may_have_buffer(const struct ebb_sealer *s, const struct ebb_io *io)
{
	return !io->slow || s->slow < SLOW_BUFFERS;
}

/* Returns the first waiting request that may have a buffer, or NULL. */
static struct ebb_io *first_waiting(const struct ebb_sealer *s)
{
	struct ebb_io *io;

	list_for_each_entry(io, &s->waiting, buffer_node)
		if (may_have_buffer(s, io))
			return io;
	return NULL;
}

static void buffer_give(struct ebb_sealer *s, struct ebb_io *io, struct ebb_buffer *b)
{
	s->slow += io->slow;
	io->buffer = b;
}

bool ebb_seal_get_buffer(struct ebb_io *io, enum ebb_step step)
{
	struct ebb_sealer *s = io->device->sealer;
	struct ebb_buffer *b;
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	b = may_have_buffer(s, io) ?
	    list_first_entry_or_null(&s->free, struct ebb_buffer, node) : NULL;
	if (b) {
		list_del(&b->node);
		buffer_give(s, io, b);
	} else {
		io->step = step;
		list_add_tail(&io->buffer_node, &s->waiting);
	}
	spin_unlock_irqrestore(&s->lock, flags);
	/* A waiting @io may have got a buffer and continued by now: do not access it. */
	return b;
}

void ebb_seal_put_buffer(struct ebb_io *io)
{
	struct ebb_sealer *s = io->device->sealer;
	struct ebb_buffer *b = io->buffer;
	unsigned long flags;
	struct ebb_io *next;

	if (!b)
		return;
	io->buffer = NULL;
	spin_lock_irqsave(&s->lock, flags);
	s->slow -= io->slow;
	next = first_waiting(s);
	if (next) {
		list_del(&next->buffer_node);
		buffer_give(s, next, b);
	} else {
		list_add(&b->node, &s->free);
	}
	spin_unlock_irqrestore(&s->lock, flags);
	if (next)
		ebb_io_later(next, next->step);
}

static struct page *page_of(const struct ebb_buffer *b, u32 i)
{
	return nth_page(b->segments[i >> SEGMENT_ORDER], i & (SEGMENT_PAGES - 1));
}

void ebb_seal_each(struct ebb_io *io, u32 from, u32 count,
	       void (*call)(struct ebb_io *, const struct bio_vec *))
{
	for (u32 i = from; i < from + count; i++) {
		const struct bio_vec v = { .bv_page = page_of(io->buffer, i), .bv_len = PAGE_SIZE };

		call(io, &v);
	}
}

u32 ebb_seal_copy(struct ebb_io *io, u32 at, const struct bio_vec *v)
{
	for (u32 done = 0, take; done < v->bv_len; done += take, at += take) {
		struct page *page = page_of(io->buffer, at >> PAGE_SHIFT);
		u32 offset = offset_in_page(at);

		take = min_t(u32, v->bv_len - done, PAGE_SIZE - offset);
		if (io->span.write)
			memcpy_page(page, offset, v->bv_page, v->bv_offset + done, take);
		else
			memcpy_page(v->bv_page, v->bv_offset + done, page, offset, take);
	}
	return at;
}

int ebb_seal_map(const struct ebb_io *io, struct scatterlist *sg)
{
	u32 left = io->span.count << PAGE_SHIFT;
	int n = DIV_ROUND_UP(io->span.count, SEGMENT_PAGES);

	sg_init_table(sg, n);
	for (int i = 0; i < n; i++) {
		u32 take = min_t(u32, left, PAGE_SIZE << SEGMENT_ORDER);

		sg_set_page(&sg[i], io->buffer->segments[i], take, 0);
		left -= take;
	}
	return n;
}

/* Prepares the crypto request for the device's @page, the @i-th of the buffer, in place. */
static void prepare(const struct ebb_sealer *s, struct ebb_buffer *b, u32 i, u64 page, u64 counter,
		    u32 length)
{
	const __be64 aad[] = { cpu_to_be64(s->number), cpu_to_be64(page) };
	const __be32 number = cpu_to_be32(page);
	const __be64 count = cpu_to_be64(counter);

	static_assert(sizeof(aad) == AAD && sizeof(number) + sizeof(count) == NONCE);
	memcpy(b->aad, aad, AAD);
	memcpy(b->nonce, &number, sizeof(number));
	memcpy(b->nonce + sizeof(number), &count, sizeof(count));
	sg_init_table(b->sg, ARRAY_SIZE(b->sg));
	sg_set_buf(&b->sg[0], b->aad, AAD);
	sg_set_page(&b->sg[1], page_of(b, i), PAGE_SIZE, 0);
	sg_set_buf(&b->sg[2], b->tag, TAG);
	aead_request_set_crypt(b->request, b->sg, b->sg, length, b->nonce);
}

int ebb_seal_encrypt(struct ebb_io *io)
{
	struct ebb_sealer *s = io->device->sealer;
	struct ebb_buffer *b = io->buffer;
	unsigned int noio = memalloc_noio_save();
	int r = 0;

	for (u32 i = 0; !r && i < io->span.count; i++) {
		b->seal[i].counter = atomic64_inc_return(&s->counter);
		prepare(s, b, i, io->span.first + i, b->seal[i].counter, PAGE_SIZE);
		r = crypto_wait_req(crypto_aead_encrypt(b->request), &b->wait);
		memcpy(b->seal[i].tag, b->tag, TAG);
	}
	memalloc_noio_restore(noio);
	return r;
}

void ebb_seal_commit(const struct ebb_io *io)
{
	memcpy(io->device->sealer->seals + io->span.first, io->buffer->seal,
	       io->span.count * sizeof(struct ebb_seal));
}

/* Opens the device's @page, the @i-th of the buffer, in place. */
static int open_page(const struct ebb_sealer *s, struct ebb_buffer *b, u32 i, u64 page)
{
	/* No write changes the page or its seal while it is read or copied. */
	const struct ebb_seal *seal = &s->seals[page];

	memcpy(b->tag, seal->tag, TAG);
	prepare(s, b, i, page, seal->counter, PAGE_SIZE + TAG);
	return crypto_wait_req(crypto_aead_decrypt(b->request), &b->wait);
}

int ebb_seal_decrypt(struct ebb_io *io, u32 from, u32 *count)
{
	unsigned int noio = memalloc_noio_save();
	u32 n = 0;
	int r = 0;

	while (n < *count) {
		r = open_page(io->device->sealer, io->buffer, from + n, io->span.first + from + n);
		if (r)
			break;
		n++;
	}
	*count = n;
	memalloc_noio_restore(noio);
	return r;
}

int ebb_seal_check(struct ebb_device *d, u64 page, struct page *from)
{
	struct ebb_buffer *b = d->sealer->check;
	unsigned int noio = memalloc_noio_save();
	int r;

	memcpy_page(page_of(b, 0), 0, from, 0, PAGE_SIZE);
	r = open_page(d->sealer, b, 0, page);
	memalloc_noio_restore(noio);
	return r;
}
