// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Boxes in their owner's process, and copies of values. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dsm.h"

#define BORROWS_MOST ((1u << 24) - 1)

/* --- places ----------------------------------------------------------------------- */

int dsm_own(ebbdsm_t *dsm, const struct ebbdsm_box *box, struct slot **slot)
{
	*slot = heap_find(&dsm->heap, box->at);
	return *slot && (*slot)->stamp && (*slot)->stamp == box->stamp ? 0 : -ESTALE;
}

/* ... and it is neither borrowed nor lent. */
static int own_idle(ebbdsm_t *dsm, const struct ebbdsm_box *box, struct slot **slot)
{
	int r = dsm_own(dsm, box, slot);

	return r ?: (*slot)->state != SLOT_OWNED || (*slot)->borrows ? -EBUSY : 0;
}

bool dsm_size_fits(uint64_t at, uint64_t size)
{
	struct name n;

	if (!name_parse(at, 0, EBBDSM_DONORS, &n) || !size || size > EBBDSM_SIZE_MOST)
		return false;
	return (DSM_HEAD + size + name_unit(n.kind) - 1) / name_unit(n.kind) * name_unit(n.kind) ==
	       n.bytes;
}

void dsm_publish(struct content *c, uint64_t at, uint64_t stamp, uint64_t size, uint64_t hold)
{
	c->head.size = size;
	__atomic_store_n(&c->head.hold, hold, __ATOMIC_RELAXED);
	__atomic_store_n(&c->head.check, dsm_check(at, stamp), __ATOMIC_RELAXED);
	__atomic_store_n(&c->head.stamp, stamp, __ATOMIC_RELEASE);
}

static struct copy *copy_of_place(uint64_t at)
{
	struct name n;

	return name_parse(at, 0, EBBDSM_DONORS, &n) ? copy_new(n.bytes) : NULL;
}

/* Puts a copy, which is the function's, into the cache, without a borrow. */
static void keep(ebbdsm_t *dsm, struct copy *copy, uint64_t at, uint64_t stamp)
{
	copy->at = at;
	copy->stamp = stamp;
	if (cache_add(&dsm->cache, copy))
		free(copy);
	else
		cache_return(&dsm->cache, copy);
}

int dsm_store(ebbdsm_t *dsm, uint64_t at, uint64_t stamp, struct copy *copy,
	      struct ebbdsm_box *box)
{
	struct content *memory = heap_memory(&dsm->heap, at), *c = &copy->content;
	struct slot *slot = heap_find(&dsm->heap, at);
	uint64_t size = c->head.size;
	int r = 0;

	heap_begin_write(&dsm->heap, at);
	if (memory) {
		memcpy(memory->bytes, c->bytes, size);
		free(copy);
		dsm_publish(memory, at, stamp, size, 0);
		dsm_save(dsm, at, stamp, memory);
	} else {
		dsm_publish(c, at, stamp, size, 0);
		dsm_leave(dsm, 0);
		r = link_write(dsm_link(dsm, at), at, c, DSM_HEAD + size);
		pthread_mutex_lock(&dsm->lock);
		/* At a twin alone it is as if the donor were lost later. */
		if (!dsm_save(dsm, at, stamp, c) && r == -EIO)
			r = 0;
		if (r)
			free(copy);
		else
			keep(dsm, copy, at, stamp);
	}
	heap_end_write(&dsm->heap, at);
	if (r)
		return r;
	slot->size = (uint32_t)size;
	slot->stamp = stamp;
	slot->state = SLOT_OWNED;
	*box = (struct ebbdsm_box){ at, stamp };
	return 0;
}

/* --- copies ----------------------------------------------------------------------- */

/* Reads a value that has been read once more, to find whether the first read was torn. */
static void read_again(ebbdsm_t *dsm, const struct copy *copy, const struct name *n)
{
	struct copy *again = copy_new(n->bytes);
	struct dsm_op op;

	if (!again)
		return;
	dsm_read(&op, copy->at, copy->stamp);
	if (!link_run(&dsm->link[n->donor], &op, &again->content) &&
	    op.after.size == copy->content.head.size) {
		pthread_mutex_lock(&dsm->lock);
		check_torn(dsm->check, copy->at, copy->stamp, copy->content.bytes,
			   again->content.bytes, op.after.size);
		dsm_leave(dsm, 0);
	}
	free(again);
}

/* Returns whether a value may be at a twin whose read at its donor ended with @r. */
static bool may_be_saved(int r, const struct dsm_op *op)
{
	/* Its owner may have lost this donor, and live. */
	return r == -EIO || r == -EOWNERDEAD || (r == -ESTALE && dsm_was_left(op));
}

/*
 * Reads the value at its donor.  Mapped memory of a donor that has exited is not read: an owner
 * that had not mapped it could not say there that the value is over.
 */
static int read_place(ebbdsm_t *dsm, struct link *l, struct dsm_op *op, struct content *to)
{
	if (dsm->heap.replicas && l->maps && link_settle(l) == -EIO)
		return -EIO;
	return link_run(l, op, to);
}

/* Reads the value from its donor to a copy that others can see already.  Without the lock. */
static int load(ebbdsm_t *dsm, struct copy *copy, const struct name *n)
{
	struct link *l = &dsm->link[n->donor];
	uint64_t size;
	struct dsm_op op;
	int r;

	dsm_read(&op, copy->at, copy->stamp);
	r = read_place(dsm, l, &op, &copy->content);
	size = op.after.size;
	if (r && dsm->heap.replicas && may_be_saved(r, &op)) {
		int saved = dsm_read_saved(dsm, copy->at, copy->stamp, &copy->content, &size);

		if (!saved || saved == -ENOMEM || (r == -EIO && saved == -ESTALE))
			r = saved;
	}
	if (r)
		return r;
	copy->content.head.size = size;
	if (!dsm_size_fits(copy->at, size))
		return -ESTALE;
	if (link_is_lost(l))
		return 0;
	if (dsm->check)
		read_again(dsm, copy, n);
	return 0;
}

/*
 * Borrows the value named @at, @stamp: sets *@copy.  With the lock held, which is given up while
 * the donor is waited for.
 */
static int fetch(ebbdsm_t *dsm, uint64_t at, uint64_t stamp, struct copy **copy)
{
	struct copy *c;
	struct name n;
	int r;

	if (!stamp || !name_parse(at, 0, dsm->donors, &n))
		return -EINVAL;
	while ((c = cache_find(&dsm->cache, at, stamp)) && c->loading)
		pthread_cond_wait(&dsm->changed, &dsm->lock);
	/* A count that wraps would free the copy under borrows that a program has forgotten. */
	if (c && c->borrows == UINT32_MAX)
		return -EBUSY;
	if (c) {
		*copy = cache_borrow(&dsm->cache, at, stamp);
		dsm->hits++;
		return 0;
	}
	dsm->misses++;
	c = copy_new(n.bytes);
	if (!c)
		return -ENOMEM;
	c->at = at;
	c->stamp = stamp;
	c->loading = true;
	r = cache_add(&dsm->cache, c);
	if (r) {
		free(c);
		return r;
	}
	dsm_leave(dsm, 0);
	r = load(dsm, c, &n);
	pthread_mutex_lock(&dsm->lock);
	c->loading = false;
	pthread_cond_broadcast(&dsm->changed);
	if (r) {
		cache_take(&dsm->cache, c);
		free(c);
		return r;
	}
	*copy = c;
	return 0;
}

const void *ebbdsm_borrow_view(ebbdsm_t *dsm, const struct ebbdsm_view *view, size_t *size)
{
	struct copy *copy;
	int r = dsm_enter(dsm);

	if (r)
		return dsm_fail(r);
	r = fetch(dsm, view->at, view->stamp, &copy);
	if (!r)
		check_borrow(dsm->check, CHECK_VIEW, view->at, view->stamp, copy->content.bytes,
			     copy->content.head.size, CHECK_CALLER);
	dsm_leave(dsm, 0);
	if (r)
		return dsm_fail(r);
	if (size)
		*size = copy->content.head.size;
	return copy->content.bytes;
}

static int return_copy(ebbdsm_t *dsm, uint64_t at, uint64_t stamp, const void *content)
{
	struct copy *copy = cache_find(&dsm->cache, at, stamp);

	if (!copy || copy->loading || !copy->borrows || content != copy->content.bytes)
		return -EINVAL;
	cache_return(&dsm->cache, copy);
	return 0;
}

int ebbdsm_return_view(ebbdsm_t *dsm, const struct ebbdsm_view *view, const void *content)
{
	int r = dsm_enter(dsm);

	if (r)
		return r;
	check_return(dsm->check, CHECK_VIEW, view->at, view->stamp, content, CHECK_CALLER);
	return dsm_leave(dsm, return_copy(dsm, view->at, view->stamp, content));
}

/* --- boxes ------------------------------------------------------------------------ */

/* The content of the place @at, WORKING, at a donor over TCP. */
static int fill(ebbdsm_t *dsm, uint64_t at, const void *content, size_t size,
		struct ebbdsm_box *box)
{
	struct copy *copy = copy_of_place(at);
	int r = -ENOMEM;

	if (copy) {
		copy->content.head.size = size;
		if (content)
			memcpy(copy->content.bytes, content, size);
		else
			memset(copy->content.bytes, 0, size);
		r = dsm_store(dsm, at, heap_stamp(&dsm->heap, at), copy, box);
	}
	if (r)
		heap_free(&dsm->heap, at);
	return r;
}

/* Makes a box at donor @donor, or, if that is DSM_ANY, where dsm_place_best() places it. */
static int make(ebbdsm_t *dsm, uint32_t donor, const void *content, size_t size,
		struct ebbdsm_box *box)
{
	struct content *memory;
	struct slot *slot;
	uint64_t at;
	int r = donor == DSM_ANY ? dsm_place_best(dsm, size, &at, &slot) :
				   dsm_place_at(dsm, donor, size, &at, &slot);

	if (r)
		return r;
	memory = heap_memory(&dsm->heap, at);
	if (!memory)
		return fill(dsm, at, content, size, box);
	if (content)
		memcpy(memory->bytes, content, size);
	else
		memset(memory->bytes, 0, size);
	slot->stamp = heap_stamp(&dsm->heap, at);
	dsm_publish(memory, at, slot->stamp, size, 0);
	heap_begin_write(&dsm->heap, at);
	dsm_save(dsm, at, slot->stamp, memory);
	heap_end_write(&dsm->heap, at);
	slot->state = SLOT_OWNED;
	*box = (struct ebbdsm_box){ at, slot->stamp };
	return 0;
}

int ebbdsm_new(ebbdsm_t *dsm, const void *content, size_t size, struct ebbdsm_box *box)
{
	int r = size && size <= EBBDSM_SIZE_MOST ? dsm_enter(dsm) : -EINVAL;

	if (r)
		return r;
	return dsm_leave(dsm, make(dsm, DSM_ANY, content, size, box));
}

int ebbdsm_new_at(ebbdsm_t *dsm, uint64_t where, const void *content, size_t size,
		  struct ebbdsm_box *box)
{
	uint32_t donor;
	int r = size && size <= EBBDSM_SIZE_MOST ? dsm_enter(dsm) : -EINVAL;

	if (r)
		return r;
	r = dsm_donor_of(dsm, where, &donor);
	return dsm_leave(dsm, r ?: make(dsm, donor, content, size, box));
}

size_t ebbdsm_size(ebbdsm_t *dsm, const struct ebbdsm_box *box)
{
	struct slot *slot;
	size_t size;

	if (dsm_enter(dsm))
		return 0;
	size = dsm_own(dsm, box, &slot) ? 0 : slot->size;
	dsm_leave(dsm, 0);
	return size;
}

int dsm_refresh(ebbdsm_t *dsm, struct ebbdsm_box *box, struct slot **slot)
{
	struct ebbdsm_box old = *box;
	struct slot *was = *slot;
	const struct content *memory = heap_memory(&dsm->heap, box->at);
	struct copy *copy = NULL;
	bool is_mapped = memory, is_cut = heap_is_cut(&dsm->heap, box->at);
	int r = 0;

	if (!is_cut && !heap_is_worn(&dsm->heap, box->at))
		return 0;
	was->state = SLOT_WORKING;
	if (!memory) {
		r = fetch(dsm, box->at, box->stamp, &copy);
		memory = &copy->content;
	}
	if (!r)
		r = make(dsm, is_cut ? DSM_ANY : dsm_link(dsm, old.at)->number, memory->bytes,
			 was->size, box);
	if (copy)
		cache_return(&dsm->cache, copy);
	was->state = SLOT_OWNED;
	/* Mapped memory can be used without its donor. */
	if (r)
		return is_cut && is_mapped && !heap_is_worn(&dsm->heap, old.at) ? 0 : r;
	heap_free(&dsm->heap, old.at);
	return dsm_own(dsm, box, slot);
}

int ebbdsm_drop(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	struct slot *slot;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	if (!box->at && !box->stamp)
		return dsm_leave(dsm, 0);
	r = own_idle(dsm, box, &slot);
	if (r)
		return dsm_leave(dsm, r);
	heap_free(&dsm->heap, box->at);
	*box = (struct ebbdsm_box){ 0 };
	return dsm_leave(dsm, 0);
}

/* --- borrows ---------------------------------------------------------------------- */

const void *ebbdsm_borrow(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	const struct content *memory;
	struct copy *copy;
	struct slot *slot;
	int r = dsm_enter(dsm);

	if (r)
		return dsm_fail(r);
	r = dsm_own(dsm, box, &slot);
	if (r)
		check_stale(dsm->check, box->at, box->stamp, CHECK_CALLER);
	if (!r && (slot->state != SLOT_OWNED || slot->borrows == BORROWS_MOST))
		r = -EBUSY;
	if (r)
		return dsm_fail(dsm_leave(dsm, r));
	slot->borrows++;
	memory = heap_memory(&dsm->heap, box->at);
	if (!memory) {
		r = fetch(dsm, box->at, box->stamp, &copy);
		if (r)
			slot->borrows--;
		else
			memory = &copy->content;
	}
	if (!r)
		check_borrow(dsm->check, CHECK_SHARED, box->at, box->stamp, memory->bytes,
			     slot->size, CHECK_CALLER);
	dsm_leave(dsm, 0);
	return r ? dsm_fail(r) : memory->bytes;
}

int ebbdsm_return(ebbdsm_t *dsm, struct ebbdsm_box *box, const void *content)
{
	const struct content *memory;
	struct slot *slot;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	check_return(dsm->check, CHECK_SHARED, box->at, box->stamp, content, CHECK_CALLER);
	r = dsm_own(dsm, box, &slot);
	if (!r && (slot->state != SLOT_OWNED || !slot->borrows))
		r = -EINVAL;
	if (r)
		return dsm_leave(dsm, r);
	memory = heap_memory(&dsm->heap, box->at);
	if (!memory)
		r = return_copy(dsm, box->at, box->stamp, content);
	else if (content != memory->bytes)
		r = -EINVAL;
	if (!r)
		slot->borrows--;
	return dsm_leave(dsm, r);
}

/* Returns a copy of the box's value that is the caller's alone. */
static int private_copy(ebbdsm_t *dsm, const struct ebbdsm_box *box, struct copy **copy)
{
	struct copy *shared;
	int r = fetch(dsm, box->at, box->stamp, &shared);

	if (r)
		return r;
	if (shared->borrows == 1) {
		cache_take(&dsm->cache, shared);
		*copy = shared;
		return 0;
	}
	*copy = copy_of_place(box->at);
	if (*copy)
		memcpy(&(*copy)->content, &shared->content, DSM_HEAD + shared->content.head.size);
	cache_return(&dsm->cache, shared);
	return *copy ? 0 : -ENOMEM;
}

void *ebbdsm_borrow_mut(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	struct content *memory;
	struct pending *p = NULL;
	struct slot *slot;
	int r = dsm_enter(dsm);

	if (r)
		return dsm_fail(r);
	r = own_idle(dsm, box, &slot);
	if (r == -ESTALE)
		check_stale(dsm->check, box->at, box->stamp, CHECK_CALLER);
	if (!r)
		r = dsm_refresh(dsm, box, &slot);
	if (r)
		return dsm_fail(dsm_leave(dsm, r));
	slot->ticket = heap_stamp(&dsm->heap, box->at);
	if (!slot->ticket)
		return dsm_fail(dsm_leave(dsm, -EBUSY));
	memory = heap_memory(&dsm->heap, box->at);
	if (!memory) {
		slot->state = SLOT_WORKING;
		p = dsm_pending_new(dsm, box->at, 0);
		r = p ? private_copy(dsm, box, &p->copy) : -ENOMEM;
		if (p && r)
			dsm_pending_end(dsm, p);
		slot->state = SLOT_OWNED;
		if (r)
			return dsm_fail(dsm_leave(dsm, r));
		memory = &p->copy->content;
	}
	slot->state = SLOT_BORROWED;
	check_value(dsm->check, box->at, box->stamp, memory->bytes, slot->size);
	check_borrow(dsm->check, CHECK_MUTABLE, box->at, box->stamp, memory->bytes, slot->size,
		     CHECK_CALLER);
	if (!p) {
		__atomic_store_n(&memory->head.stamp, 0, __ATOMIC_RELAXED);
		/* Before the program's first change. */
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
	}
	dsm_leave(dsm, 0);
	return memory->bytes;
}

/* Writes the content of a borrow to a donor that is not mapped. */
static int write_back(ebbdsm_t *dsm, uint64_t at, uint64_t stamp, struct copy *copy)
{
	struct dsm_op op;
	int r;

	dsm_change(&op, at, stamp);
	heap_begin_write(&dsm->heap, at);
	dsm_leave(dsm, 0);
	r = link_run(dsm_link(dsm, at), &op, &copy->content);
	pthread_mutex_lock(&dsm->lock);
	if (!dsm_save(dsm, at, stamp, &copy->content) && r == -EIO)
		r = 0;
	heap_end_write(&dsm->heap, at);
	if (r)
		free(copy);
	else
		keep(dsm, copy, at, stamp);
	return r;
}

int ebbdsm_return_mut(ebbdsm_t *dsm, struct ebbdsm_box *box, void *content)
{
	struct content *memory;
	struct pending *p = NULL;
	struct slot *slot;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	check_return(dsm->check, CHECK_MUTABLE, box->at, box->stamp, content, CHECK_CALLER);
	r = dsm_own(dsm, box, &slot);
	if (!r && slot->state != SLOT_BORROWED)
		r = -EINVAL;
	if (r)
		return dsm_leave(dsm, r);
	memory = heap_memory(&dsm->heap, box->at);
	if (!memory) {
		p = dsm_pending(dsm, box->at);
		memory = &p->copy->content;
	}
	if (content != memory->bytes)
		return dsm_leave(dsm, -EINVAL);
	check_value(dsm->check, box->at, slot->ticket, content, slot->size);
	if (p) {
		struct copy *copy = p->copy;

		p->copy = NULL;
		dsm_pending_end(dsm, p);
		slot->state = SLOT_WORKING;
		r = write_back(dsm, box->at, slot->ticket, copy);
	} else {
		slot->state = SLOT_WORKING;
		heap_begin_write(&dsm->heap, box->at);
		dsm_publish(memory, box->at, slot->ticket, slot->size, 0);
		dsm_save(dsm, box->at, slot->ticket, memory);
		heap_end_write(&dsm->heap, box->at);
	}
	slot->stamp = slot->ticket;
	slot->state = SLOT_OWNED;
	box->stamp = slot->stamp;
	return dsm_leave(dsm, r);
}
