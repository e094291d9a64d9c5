/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Requests on their way to a worker of the executor: first in, first out, one
 * thread that puts and one that takes.
 */
#ifndef EBB_REQUEST_QUEUE_H
#define EBB_REQUEST_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "bpf/ebb_abi.h"

/* More than these are older than config.stale_ns by the time they would be taken. */
#define REQUEST_QUEUE_MAX 512

struct request_queue;

/* NULL without memory. */
struct request_queue *request_queue_new(void);
/* Nobody waits in it any more. */
void request_queue_free(struct request_queue **q);

/* False when it is full, and @r is not taken. */
bool request_queue_put(struct request_queue *q, const struct ebb_list_request *r);

enum request_got { REQUEST_GOT, REQUEST_NONE, REQUEST_END };

/* Waits for a request for up to @ms; REQUEST_END after request_queue_end(), whatever is left. */
enum request_got request_queue_take(struct request_queue *q, struct ebb_list_request *r, uint32_t ms);
void request_queue_end(struct request_queue *q);

/*
 * Which of @workers serves the process @tgid: always the same one, so that what is
 * asked for by any of its streams is fetched in the order in which it was asked for.
 */
uint32_t request_worker(uint32_t tgid, uint32_t workers);

#endif
