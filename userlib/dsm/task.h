/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* The object of a task, which its spawner lends to its worker. */
#ifndef EBBDSM_TASK_OBJECT_H
#define EBBDSM_TASK_OBJECT_H

#include "dsm.h"
#include "task_step.h"

enum { TASK_PENDING, TASK_EXECUTED = 1 }; /* of .verdict; else a negative errno */

/* Then the arguments and room for the result, each from a multiple of 16 on. */
struct task_object {
	uint32_t function;
	int32_t verdict, status;
	uint32_t unused;
	uint64_t args_size;
	uint64_t result_most, result_size;
	char build[DESK_TEXT];    /* the spawner's; with a verdict, the worker's */
	uint32_t functions[2];    /* of the worker: how many it has */
	struct ebbdsm_parcel in[EBBDSM_TASK_BOXES], out[EBBDSM_TASK_BOXES];
};

_Static_assert(sizeof(struct task_object) % 16 == 0, "arguments are aligned");
_Static_assert(sizeof(struct task_object) + EBBDSM_TASK_BYTES + 16 <= EBBDSM_SIZE_MOST, "fits");

static inline uint64_t task_align(uint64_t size)
{
	return (size + 15) & ~15ull;
}

static inline uint64_t task_bytes(uint64_t args, uint64_t result)
{
	return sizeof(struct task_object) + task_align(args) + result;
}

static inline void *task_args(struct task_object *o)
{
	return o + 1;
}

static inline void *task_result(struct task_object *o)
{
	return (uint8_t *)(o + 1) + task_align(o->args_size);
}

#endif
