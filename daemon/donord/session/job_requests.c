// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>

#include "donord/job/job_evacuate.h"
#include "donord/job/job_trace.h"
#include "far_requests.h"
#include "job_requests.h"
#include "lib/base/clock.h"

bool job_must_wait(const struct connection *c, const struct wire_frame *f)
{
	const struct sessions *s = c->sessions;

	return wire_is_job(f) && s->jobs && s->jobs->worked == s->pool->turn;
}

static int describe(struct connection *c, const uint8_t *payload, uint32_t length, uint8_t *reply,
		    uint32_t *size, uint16_t *status)
{
	struct jobs *jobs = c->sessions->jobs;
	int r = job_heap_describe(jobs, &c->job_heap, c->member, payload, length, status);

	wire_build_job_limits(reply, &(struct wire_job_limits){
		.memory = c->job_heap ? job_share_left(&jobs->memory, &c->job_heap->share) : 0,
		.units = JOB_UNITS, .bytes = JOB_BYTES });
	*size = WIRE_JOB_LIMITS_SIZE;
	return r;
}

static int evacuate(struct job_heap *h, const uint8_t *payload, uint32_t length, uint32_t pause,
		    uint8_t *reply, uint32_t *size, uint16_t *status)
{
	struct wire_job_evacuated done = { 0 };
	int r = 0;

	if (pause) {
		struct wire_job_evacuate e;

		r = wire_parse_job_evacuate(payload, length, &e);
		done = (struct wire_job_evacuated){ .job = r ? 0 : e.job, .pause = pause };
		*status = WIRE_OK;
	} else {
		r = job_evacuate(h, payload, length, &done, status);
	}
	wire_build_job_evacuated(reply, &done);
	*size = WIRE_JOB_EVACUATED_SIZE;
	return r;
}

/* Sets the reply's payload and status, or returns -EPROTO. */
static int serve(struct connection *c, const struct wire_frame *f, uint32_t pause,
		 uint8_t *reply, uint32_t *size, uint16_t *status)
{
	const uint8_t *payload = c->far_arriving;
	struct job_heap *h = c->job_heap;

	switch (f->op) {
	case WIRE_JOB_HEAP:
		return describe(c, payload, f->length, reply, size, status);
	case WIRE_JOB_PLACE:
		return job_heap_place(h, payload, f->length, status);
	case WIRE_JOB_BEGIN:
		return job_begin(h, payload, f->length, status);
	case WIRE_JOB_TRACE:
		return job_trace(h, payload, f->length, pause ? JOB_MARK_ONLY : JOB_WORK, pause,
				 reply, size, status);
	case WIRE_JOB_END:
		return job_end(h, payload, f->length, reply, size, status);
	case WIRE_JOB_EVACUATE:
		return evacuate(h, payload, f->length, pause, reply, size, status);
	default:
		return -EPROTO;
	}
}

int job_request(struct connection *c, const struct wire_frame *f)
{
	struct jobs *jobs = c->sessions->jobs;
	uint16_t status = WIRE_OK;
	uint64_t begun, now;
	uint32_t size = 0;
	int r = 0;

	if (!c->does_jobs)
		return -EPROTO;
	/* Others go first in the next turn. */
	jobs->worked = c->sessions->pool->turn;
	c->sessions->last_far = c->number;
	jobs->counts.requests[f->op - WIRE_JOB_HEAP]++;
	begun = now_ns();
	if (!c->member)
		status = WIRE_NO_POOL;
	else if (!c->job_heap && f->op != WIRE_JOB_HEAP)
		status = WIRE_NO_HEAP;
	else
		r = serve(c, f, job_may_pause(f->op) ? job_heap_pause(c->job_heap, begun) : 0,
			  c->far_buffer->bytes + c->far_used, &size, &status);
	now = now_ns();
	jobs->counts.busy += now - begun;
	if (c->job_heap)
		job_heap_charge(c->job_heap, begun, now);
	if (r)
		return r;
	far_reply_copy(c, f, status, size);
	return 0;
}
