/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * All differences between the supported kernels, 6.1 to 6.12.  Each comment names the version
 * that introduced the newer form.
 */
#ifndef EBB_SWAP_COMPAT_H
#define EBB_SWAP_COMPAT_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "ebb_swap: kernels before 6.1 are not supported; use ebb-swapd (FUSE) there"
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
#error "ebb_swap: kernels after 6.12 are not supported yet; use ebb-swapd there"
#endif

struct compat_limits {
	unsigned int block;	 /* bytes */
	unsigned int segments;	 /* of a request */
	unsigned int segment;	 /* bytes */
	unsigned int sectors;	 /* of a request */
	unsigned int chunk;	 /* sectors; no request crosses a multiple of it */
};

/*
 * Sectors of the largest discard, in whole blocks: up to 6.10 the block layer splits
 * REQ_OP_WRITE_ZEROES at exactly this many, regardless of the block size.
 */
static inline unsigned int compat_discard_most(const struct compat_limits *l)
{
	return rounddown(UINT_MAX >> SECTOR_SHIFT, l->block >> SECTOR_SHIFT);
}

/* 6.9: limits are an argument; 6.11: they include features, and non-rotational is the default. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 9, 0)
static inline struct gendisk *compat_alloc_disk(struct blk_mq_tag_set *set,
						const struct compat_limits *l, void *data)
{
	struct queue_limits limits = {
		.logical_block_size = l->block,
		.physical_block_size = l->block,
		.dma_alignment = l->block - 1,
		.max_segments = l->segments,
		.max_segment_size = l->segment,
		.max_hw_sectors = l->sectors,
		.chunk_sectors = l->chunk,
		.max_hw_discard_sectors = compat_discard_most(l),
		.max_write_zeroes_sectors = compat_discard_most(l),
		.discard_granularity = l->block,
	};
	struct gendisk *disk = blk_mq_alloc_disk(set, &limits, data);

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 11, 0)
	if (!IS_ERR(disk))
		blk_queue_flag_set(QUEUE_FLAG_NONROT, disk->queue);
#endif
	return disk;
}
#else
static inline struct gendisk *compat_alloc_disk(struct blk_mq_tag_set *set,
						const struct compat_limits *l, void *data)
{
	struct gendisk *disk = blk_mq_alloc_disk(set, data);
	struct request_queue *q;

	if (IS_ERR(disk))
		return disk;
	q = disk->queue;
	blk_queue_logical_block_size(q, l->block);
	blk_queue_physical_block_size(q, l->block);
	blk_queue_dma_alignment(q, l->block - 1);
	blk_queue_max_segments(q, l->segments);
	blk_queue_max_segment_size(q, l->segment);
	blk_queue_max_hw_sectors(q, l->sectors);
	blk_queue_chunk_sectors(q, l->chunk);
	blk_queue_max_discard_sectors(q, compat_discard_most(l));
	blk_queue_max_write_zeroes_sectors(q, compat_discard_most(l));
	q->limits.discard_granularity = l->block;
	blk_queue_flag_set(QUEUE_FLAG_NONROT, q);
	return disk;
}
#endif

/* 6.5: open() gets the disk. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
#define COMPAT_OPEN(name) static int name(struct gendisk *disk, blk_mode_t mode)
#define COMPAT_OPEN_DISK disk
#else
#define COMPAT_OPEN(name) static int name(struct block_device *bdev, fmode_t mode)
#define COMPAT_OPEN_DISK (bdev->bd_disk)
#endif

/* A block device opened exclusively.  6.5: blk_mode_t; 6.7: a handle; 6.9: a file. */
struct compat_bdev {
	struct block_device *bdev; /* NULL = none */
	void *handle;
};

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 9, 0)
static inline int compat_bdev_open(struct compat_bdev *b, const char *path, void *holder)
{
	struct file *file = bdev_file_open_by_path(path, BLK_OPEN_READ | BLK_OPEN_WRITE, holder,
						   NULL);

	if (IS_ERR(file))
		return PTR_ERR(file);
	b->handle = file;
	b->bdev = file_bdev(file);
	return 0;
}

static inline void compat_bdev_close(struct compat_bdev *b, void *holder)
{
	if (b->bdev)
		bdev_fput(b->handle);
	b->bdev = NULL;
}
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
static inline int compat_bdev_open(struct compat_bdev *b, const char *path, void *holder)
{
	struct bdev_handle *h = bdev_open_by_path(path, BLK_OPEN_READ | BLK_OPEN_WRITE, holder,
						  NULL);

	if (IS_ERR(h))
		return PTR_ERR(h);
	b->handle = h;
	b->bdev = h->bdev;
	return 0;
}

static inline void compat_bdev_close(struct compat_bdev *b, void *holder)
{
	if (b->bdev)
		bdev_release(b->handle);
	b->bdev = NULL;
}
#else
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
#define COMPAT_GET(path, holder) \
	blkdev_get_by_path(path, BLK_OPEN_READ | BLK_OPEN_WRITE, holder, NULL)
#define COMPAT_PUT(bdev, holder) blkdev_put(bdev, holder)
#else
#define COMPAT_GET(path, holder) \
	blkdev_get_by_path(path, FMODE_READ | FMODE_WRITE | FMODE_EXCL, holder)
#define COMPAT_PUT(bdev, holder) blkdev_put(bdev, FMODE_READ | FMODE_WRITE | FMODE_EXCL)
#endif
static inline int compat_bdev_open(struct compat_bdev *b, const char *path, void *holder)
{
	struct block_device *bdev = COMPAT_GET(path, holder);

	if (IS_ERR(bdev))
		return PTR_ERR(bdev);
	b->bdev = bdev;
	return 0;
}

static inline void compat_bdev_close(struct compat_bdev *b, void *holder)
{
	if (b->bdev)
		COMPAT_PUT(b->bdev, holder);
	b->bdev = NULL;
}
#endif

/* 6.6: dump callbacks have a genl_info. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#define compat_dump_attrs(cb) (genl_info_dump(cb)->attrs)
#else
#define compat_dump_attrs(cb) (genl_dumpit_info(cb)->attrs)
#endif

#endif
