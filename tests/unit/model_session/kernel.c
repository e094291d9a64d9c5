// SPDX-License-Identifier: GPL-2.0-only
/* The kernel as the module sees it: memory, and threads that switch where it may. */
#include "inside.h"

/* --- memory --- */

void *kzalloc(size_t size, int flags)
{
	for (int i = 0; size <= CHUNK && i < CHUNKS; i++) {
		if (W.used[i])
			continue;
		W.used[i] = (u16)size;
		return memset(W.heap[i], 0, size);
	}
	wrong("the heap is full: something leaks");
	return NULL;
}

void kfree(void *p)
{
	size_t i = p ? (size_t)((u8 *)p - W.heap[0]) / CHUNK : 0;

	if (!p)
		return;
	if (p != W.heap[i] || !W.used[i])
		wrong("freed twice");
	W.used[i] = 0;
	memset(p, 0xdd, FREED);
}

bool is_allocated(const void *p)
{
	return W.used[(size_t)((const u8 *)p - W.heap[0]) / CHUNK];
}

void get_random_bytes(void *to, size_t n)
{
	memset(to, 1, n);
}

u64 get_random_u64(void)
{
	return 1;
}

/* --- threads --- */

/*
 * Switches to @to, until another switch comes back to @from.  swapcontext() would take two system
 * calls.
 */
static __attribute__((noinline)) void switch_to(jmp_buf from, jmp_buf to)
{
	if (!_setjmp(from))
		_longjmp(to, 1);
}

void block_on(enum block block, const void *on)
{
	struct thread *t = &W.thread[W.running];

	t->block = block;
	t->on = on;
	/* With the registers that this function and switch_to() push. */
	t->sp = (const u8 *)__builtin_frame_address(0) - 128;
	switch_to(t->context, W.driver);
}

void may_preempt(void)
{
	block_on(READY, NULL);
}

void world_lock(bool *held, bool spin)
{
	if (W.running < 0)
		return;
	if (W.model->preempt)
		may_preempt();
	while (*held)
		block_on(ON_LOCK, held);
	*held = true;
}

void world_unlock(bool *held, bool spin)
{
	*held = false;
}

unsigned long wait_for_completion_timeout(struct completion *c, unsigned long timeout)
{
	struct thread *t = &W.thread[W.running];

	t->timed_out = false;
	while (!c->done && !t->timed_out)
		block_on(ON_REPLY, c);
	if (!c->done)
		return 0;
	c->done--;
	return 1;
}

void wait_for_completion(struct completion *c)
{
	while (!c->done)
		block_on(ON_DONE, c);
	c->done--;
}

void world_queue(struct work_struct *work)
{
	if (work->pending)
		return;
	work->pending = true;
	W.pending[W.works++] = work;
}

void unqueue(struct work_struct *work)
{
	int n = 0;

	for (int i = 0; i < W.works; i++)
		if (W.pending[i] != work)
			W.pending[n++] = W.pending[i];
	W.works = n;
	work->pending = false;
}

bool is_run(const struct work_struct *work)
{
	return W.thread[CLOSER].work == work || W.thread[RELEASER].work == work;
}

void cancel_work_sync(struct work_struct *work)
{
	unqueue(work);
	while (is_run(work))
		block_on(ON_WORK, work);
	unqueue(work);
}

static void thread_main(int which)
{
	struct thread *t = &W.thread[which];

	if (which == USER)
		user_runs();
	else
		t->work->run(t->work);
	t->work = NULL;
	block_on(IDLE, NULL);
}

static void stopped(int which)
{
	W.running = -1;
	if (W.stack[which][0])
		wrong("a stack overflows");
}

void run(int which)
{
	W.running = which;
	switch_to(W.driver, W.thread[which].context);
	stopped(which);
}

/* Begins a thread, which comes back to @from. */
static __attribute__((noinline)) void begin(jmp_buf from, const ucontext_t *first)
{
	if (!_setjmp(from))
		setcontext(first);
}

void start(int which)
{
	ucontext_t first;

	memset(W.stack[which], 0, STACK);
	getcontext(&first);
	first.uc_stack.ss_sp = W.stack[which];
	first.uc_stack.ss_size = STACK;
	first.uc_link = NULL;
	makecontext(&first, (void (*)(void))thread_main, 1, which);
	W.running = which;
	begin(W.driver, &first);
	stopped(which);
}
