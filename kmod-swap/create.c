// SPDX-License-Identifier: GPL-2.0-only
#include <linux/module.h>
#include <linux/slab.h>

#include "class.h"
#include "copy.h"
#include "create.h"
#include "donor_io.h"
#include "io.h"
#include "lifecycle.h"
#include "pages.h"
#include "proof.h"
#include "read_priority.h"
#include "request.h"
#include "seal.h"
#include "slab.h"
#include "writeback.h"

/*
 * Most swap-outs in flight, as requests of up to 256 KiB, for write-back throttling.  Reclaim of a
 * cgroup (v2) does not wait for pages in flight.  If all pages of a small cgroup are, it gives up,
 * and the OOM killer acts.
 */
#define WRITES_AT_ONCE 16

static int ebb_major;

COMPAT_OPEN(device_open)
{
	struct ebb_device *d = COMPAT_OPEN_DISK->private_data;

	return d->removing ? -ENXIO : 0;
}

/*
 * Called by mm/swapfile.c under its locks, before the slot can be used again.  @page: the swap area
 * begins at the device's first page, for there are no partitions.
 */
static void slot_freed(struct block_device *bdev, unsigned long page)
{
	struct ebb_device *d = bdev->bd_disk->private_data;

	ebb_slab_discard(d, page, 1);
	ebb_count(d, DISCARDED, 1);
}

static const struct block_device_operations device_fops = {
	.owner = THIS_MODULE,
	.open = device_open,
	.swap_slot_free_notify = slot_freed,
};

static int batch_alloc(struct blk_mq_hw_ctx *hctx, void *data, unsigned int index)
{
	struct ebb_batch *batches = kcalloc(EBB_COPIES, sizeof(*batches), GFP_KERNEL);

	if (!batches)
		return -ENOMEM;
	for (int i = 0; i < EBB_COPIES; i++)
		ebb_batch_init(&batches[i]);
	hctx->driver_data = batches;
	return 0;
}

static void batch_free(struct blk_mq_hw_ctx *hctx, unsigned int index)
{
	kfree(hctx->driver_data);
	hctx->driver_data = NULL;
}

static void commit(struct blk_mq_hw_ctx *hctx)
{
	ebb_batches_flush(hctx->driver_data);
}

static const struct blk_mq_ops device_mq_ops = {
	.queue_rq = ebb_io_queue_request,
	.commit_rqs = commit,
	.complete = ebb_io_complete,
	.timeout = ebb_io_timeout,
	.init_request = ebb_io_init_request,
	.init_hctx = batch_alloc,
	.exit_hctx = batch_free,
};

static int backup_open(struct ebb_device *d, const char *path, const char **why)
{
	int r;

	if (!path)
		return 0;
	strscpy(d->backup_path, path, sizeof(d->backup_path));
	r = compat_bdev_open(&d->backup, path, d);
	if (r) {
		*why = r == -EBUSY ? "backup: in use; name a block device that nothing else uses" :
				     "backup: cannot open; name a block device";
		return r;
	}
	*why = NULL;
	if (d->backup.bdev->bd_disk->fops == &device_fops)
		*why = "backup: an ebb device; name a disk or a partition";
	else if (bdev_logical_block_size(d->backup.bdev) > PAGE_SIZE)
		*why = "backup: blocks larger than a page";
	else if (bdev_nr_bytes(d->backup.bdev) < d->pages << PAGE_SHIFT)
		*why = "backup: smaller than the device";
	return *why ? -EINVAL : 0;
}

static int disk_add(struct ebb_device *d, const char **why)
{
	static const char none[] = "device: out of memory";
	const struct compat_limits limits = {
		.block = PAGE_SIZE,
		.segments = EBB_SEGMENTS,
		.segment = EBB_IO_PAGES << PAGE_SHIFT,
		.sectors = EBB_IO_PAGES << (PAGE_SHIFT - SECTOR_SHIFT),
		.chunk = d->slab_pages << (PAGE_SHIFT - SECTOR_SHIFT),
	};
	int r;

	*why = none;
	d->set.ops = &device_mq_ops;
	d->set.nr_hw_queues = d->queues;
	d->set.queue_depth = d->depth;
	d->set.numa_node = NUMA_NO_NODE;
	d->set.cmd_size = sizeof(struct ebb_io);
	d->set.flags = BLK_MQ_F_SHOULD_MERGE | BLK_MQ_F_NO_SCHED_BY_DEFAULT;
	d->set.timeout = max_t(unsigned int, msecs_to_jiffies(d->deadline), 1);
	d->set.driver_data = d;
	r = blk_mq_alloc_tag_set(&d->set);
	if (r)
		return r;
	/* The block layer allocates at most one queue per CPU. */
	d->queues = d->set.nr_hw_queues;
	d->disk = compat_alloc_disk(&d->set, &limits, d);
	if (IS_ERR(d->disk)) {
		r = PTR_ERR(d->disk);
		d->disk = NULL;
		goto free_set;
	}
	blk_set_queue_depth(d->disk->queue, WRITES_AT_ONCE);
	d->disk->major = ebb_major;
	d->disk->first_minor = d->index;
	d->disk->minors = 1;
	d->disk->flags |= GENHD_FL_NO_PART;
	d->disk->fops = &device_fops;
	d->disk->private_data = d;
	snprintf(d->disk->disk_name, DISK_NAME_LEN, "ebb%u", d->index);
	set_capacity(d->disk, d->pages << (PAGE_SHIFT - SECTOR_SHIFT));
	r = add_disk(d->disk);
	if (!r)
		return 0;
	*why = "device: the block layer refuses it; is its name in use?";
	put_disk(d->disk);
	d->disk = NULL;
free_set:
	blk_mq_free_tag_set(&d->set);
	return r;
}

void ebb_device_release(struct ebb_device *d)
{
	/* Free write-behind first: it wakes the copier. */
	ebb_writeback_free(d);
	ebb_copier_free(d);
	compat_bdev_close(&d->backup, d);
	ebb_read_priority_stop(d);
	if (d->backup_wq)
		destroy_workqueue(d->backup_wq);
	if (d->wq)
		destroy_workqueue(d->wq);
	ebb_class_free(d);
	ebb_seal_free(d);
	ebb_slabs_free(d);
	free_percpu(d->counts);
	ebb_key_free(&d->key);
}

int ebb_device_create(const struct ebb_settings *s, struct ebb_device **out, const char **why)
{
	struct ebb_device *d;
	int r = -ENOMEM;

	/*
	 * A device pins the module, since it may have the only copy of pages.  A module that is
	 * being unloaded disappears as soon as this command returns.
	 */
	*why = "ebb_swap: the module is being unloaded";
	if (!try_module_get(THIS_MODULE))
		return -ENODEV;
	*why = "device: out of memory";
	d = kzalloc(sizeof(*d), GFP_KERNEL);
	if (!d) {
		module_put(THIS_MODULE);
		return -ENOMEM;
	}
	INIT_LIST_HEAD(&d->sessions);
	mutex_init(&d->control);
	mutex_init(&d->sessions_lock);
	d->users = 1;
	ebb_read_priority_init(d);
	d->index = s->index;
	d->pages = s->size >> PAGE_SHIFT;
	d->slab_pages = s->slab_size >> PAGE_SHIFT;
	d->slab_shift = ilog2(d->slab_pages);
	d->slab_count = d->pages >> d->slab_shift;
	d->queues = s->queues;
	d->depth = s->depth;
	d->deadline = s->deadline;
	d->counts = alloc_percpu(struct ebb_counts);
	/* Swap-out depends on this queue: it needs a rescuer thread. */
	d->wq = alloc_workqueue("ebb%u", WQ_MEM_RECLAIM | WQ_HIGHPRI, 0, d->index);
	d->backup_wq = alloc_workqueue("ebb%u-backup", WQ_MEM_RECLAIM | WQ_HIGHPRI | WQ_UNBOUND, 0,
				       d->index);
	if (!d->counts || !d->wq || !d->backup_wq)
		goto fail;
	r = ebb_slabs_init(d);
	if (!r)
		r = ebb_key_set(&d->key, s->key, s->key_number, why);
	if (!r && s->seal)
		r = ebb_seal_init(d, why);
	d->sealed = s->seal ? BIT(0) : 0;
	if (!r)
		r = backup_open(d, s->backup, why);
	d->class_copies[0] = s->copies;
	for (u32 i = 0; !r && i < d->slab_count; i++)
		d->slabs[i].hold.copies = s->copies;
	if (!r)
		*why = "device: out of memory";
	if (!r && d->backup.bdev && s->pool)
		r = ebb_writeback_init(d, s->pool >> PAGE_SHIFT);
	if (!r)
		r = ebb_copier_init(d);
	if (!r)
		r = disk_add(d, why);
	if (r)
		goto fail;
	*out = d;
	return 0;
fail:
	ebb_device_release(d);
	kfree(d);
	module_put(THIS_MODULE);
	return r;
}

int ebb_device_stop(struct ebb_device *d)
{
	struct ebb_session *s, *next;

	mutex_lock(&d->disk->open_mutex);
	if (disk_openers(d->disk)) {
		mutex_unlock(&d->disk->open_mutex);
		return -EBUSY;
	}
	d->removing = true;
	mutex_unlock(&d->disk->open_mutex);
	del_gendisk(d->disk);
	ebb_writeback_drain(d);
	ebb_copier_stop(d);
	/* All at once: each may be in the middle of an attempt to resume it. */
	list_for_each_entry(s, &d->sessions, node)
		if (!ebb_session_live(s))
			ebb_session_fail(s, EBB_SWAP_CAUSE_COMMAND, "the device is destroyed");
	list_for_each_entry_safe(s, next, &d->sessions, node)
		ebb_session_free(s, "the device is destroyed");
	put_disk(d->disk);
	blk_mq_free_tag_set(&d->set);
	return 0;
}

int ebb_device_register(void)
{
	ebb_major = register_blkdev(0, "ebb");
	return ebb_major < 0 ? ebb_major : 0;
}

void ebb_device_unregister(void)
{
	unregister_blkdev(ebb_major, "ebb");
}
