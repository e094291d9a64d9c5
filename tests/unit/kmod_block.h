/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What tests/fuzz/kmod_kernel.h lacks of the kernel's interfaces for the module's requests and its
 * copier, for one thread in user space.
 */
#ifndef EBB_KMOD_BLOCK_H
#define EBB_KMOD_BLOCK_H

#include "tests/fuzz/kmod_kernel.h"

#define PAGE_SIZE (1ul << PAGE_SHIFT)
#define SECTOR_SHIFT 9
#define NSEC_PER_USEC 1000ul
#define NSEC_PER_MSEC 1000000ul
#define BITS_PER_LONG 64ul
#define ARRAY_SIZE(a) (sizeof(a) / sizeof(*(a)))
#define unlikely(x) (x)
#define WARN_ON_ONCE(x) (x)
#define pr_warn_ratelimited(...) ((void)0)
#define this_cpu_add(to, n) ((to) += (n))
#define for_each_possible_cpu(cpu) for ((cpu) = 0; (cpu) < 1; (cpu)++)
#define per_cpu_ptr(p, cpu) (&(p)[cpu])
#define cond_resched() ((void)0)
#define kvcalloc(n, size, flags) calloc(n, size)
#define kvfree free

u64 ktime_get_ns(void);
void usleep_range(unsigned long least, unsigned long most);
#define div_u64(n, d) ((n) / (d))

/* --- bitmaps --- */

#define BIT_WORD(n) ((n) / BITS_PER_LONG)
#define BIT_MASK(n) (1ul << ((n) % BITS_PER_LONG))
#define BITS_TO_LONGS(n) DIV_ROUND_UP(n, BITS_PER_LONG)
#define BITMAP_FIRST_WORD_MASK(n) (~0ul << ((n) % BITS_PER_LONG))
#define DECLARE_BITMAP(name, n) unsigned long name[BITS_TO_LONGS(n)]
#define round_down(n, to) ((n) / (to) * (to))
#define hweight_long(w) ((u32)__builtin_popcountl(w))
#define __ffs(w) ((unsigned long)__builtin_ctzl(w))

static inline bool test_bit(u64 bit, const unsigned long *map)
{
	return map[BIT_WORD(bit)] & BIT_MASK(bit);
}

static inline void __set_bit(u64 bit, unsigned long *map)
{
	map[BIT_WORD(bit)] |= BIT_MASK(bit);
}

static inline void __clear_bit(u64 bit, unsigned long *map)
{
	map[BIT_WORD(bit)] &= ~BIT_MASK(bit);
}

static inline void bitmap_set(unsigned long *map, u64 first, u64 count)
{
	for (; count--; first++)
		__set_bit(first, map);
}

static inline void bitmap_clear(unsigned long *map, u64 first, u64 count)
{
	for (; count--; first++)
		__clear_bit(first, map);
}

static inline u64 find_next_bit(const unsigned long *map, u64 end, u64 from)
{
	while (from < end && !test_bit(from, map))
		from++;
	return from;
}

static inline u64 find_next_zero_bit(const unsigned long *map, u64 end, u64 from)
{
	while (from < end && test_bit(from, map))
		from++;
	return from;
}

/* --- lists, atomics, references, work --- */

#define LIST_HEAD_INIT(l) { &(l), &(l) }
#define list_entry container_of
#define list_move(n, l) list_move_tail(n, (l)->next)
#define atomic_inc(a) ((void)(a)->v++)
#define atomic_dec(a) ((void)(a)->v--)
#define atomic_dec_and_test(a) (!--(a)->v)
#define percpu_ref_get(r) ((void)(r)->count++)
#define percpu_ref_put(r) ((void)(r)->count--)
#undef queue_delayed_work
#define queue_delayed_work(q, w, delay) ((void)(q), (void)(delay), world_queue(&(w)->work))
#define alloc_ordered_workqueue(...) alloc_workqueue(__VA_ARGS__)

/* --- memory of pages --- */

struct page {
	u8 bytes[PAGE_SIZE];
};
struct bio_vec {
	struct page *bv_page;
	u32 bv_len, bv_offset;
};
struct scatterlist {
	struct page *page;
	u32 length;
};
#define alloc_pages(flags, order) ((struct page *)calloc(1ul << (order), PAGE_SIZE))
#define __free_pages(page, order) free(page)
#define nth_page(page, n) ((page) + (n))
#define sg_init_table(sg, n) memset(sg, 0, (n) * sizeof(*(sg)))
#define sg_set_page(sg, p, bytes, at) ((sg)->page = (p), (sg)->length = (bytes))

static inline void memzero_page(struct page *page, size_t offset, size_t bytes)
{
	memset(page->bytes + offset, 0, bytes);
}

/* --- the block layer --- */

typedef u8 blk_status_t;
typedef u32 blk_opf_t;
enum { BLK_STS_OK, BLK_STS_IOERR = 10 };
enum req_op { REQ_OP_READ, REQ_OP_WRITE };
#define REQ_SYNC (1u << 11)
#define REQ_IDLE (1u << 15)
#define REQ_SWAP (1u << 21)

struct block_device;
struct bio {
	void *bi_private;
	blk_status_t bi_status;
	struct {
		u64 bi_sector;
	} bi_iter;
};
typedef void bio_end_io_t(struct bio *bio);
#define bio_init(b, bdev, vecs, n, flags) ((void)(flags), *(b) = (struct bio){ 0 })
#define bio_uninit(b) ((void)(b))
#define __bio_add_page(b, page, bytes, offset) ((void)(page), (void)(bytes))
int submit_bio_wait(struct bio *bio);

struct request {
	_Alignas(16) u32 cmd_flags;
};
/* A request's state follows it, as in a tag set. */
#define blk_mq_rq_from_pdu(pdu) (&((struct request *)(void *)(pdu))[-1])

#endif
