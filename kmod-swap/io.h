/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Requests of the block layer.  A request ends only once no work request or bio names its pages,
 * however long that takes: the kernel then reuses the pages.
 */
#ifndef EBB_IO_H
#define EBB_IO_H

#include <linux/blk-mq.h>

int ebb_io_init_request(struct blk_mq_tag_set *set, struct request *rq, unsigned int hctx,
			unsigned int node);
blk_status_t ebb_io_queue_request(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd);
enum blk_eh_timer_return ebb_io_timeout(struct request *rq);

#endif
