// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <assert.h>
#include <errno.h>

#include "extent.h"

static_assert(SMALL_ARENAS == MEMBER_ARENAS, "blocks in all arenas");

static int enter(ebbfar_t *far)
{
	int r = member_check(far);

	if (r)
		return r;
	pthread_mutex_lock(&far->lock);
	r = far->client.lost;
	if (r)
		pthread_mutex_unlock(&far->lock);
	return r;
}

static int leave(ebbfar_t *far, int result)
{
	pthread_mutex_unlock(&far->lock);
	return result;
}

/* Adds a block of @class: the spare one, or a new extent. */
static int add_block(ebbfar_t *far, uint32_t class)
{
	uint32_t per_arena = (uint32_t)(far->sections * (EBB_FAR_SECTION / SMALL_EXTENT));
	struct ebbfar_extent x;
	int r = small_reuse(&far->small, class);

	if (r != -ENOENT)
		return r;
	r = extent_allocate(far, SMALL_EXTENT, &x);
	if (r)
		return r;
	r = small_add(&far->small, per_arena, class, &x);
	if (r)
		extent_free(far, &x);
	return r;
}

int ebbfar_small_alloc(ebbfar_t *far, size_t size, struct ebbfar_object *object)
{
	int r = size && size <= EBBFAR_SMALL_MOST ? enter(far) : -EINVAL;
	uint32_t class;

	if (r)
		return r;
	class = small_class(size);
	while (!r && !small_take(&far->small, class, object))
		r = add_block(far, class);
	return leave(far, r);
}

int ebbfar_small_free(ebbfar_t *far, const struct ebbfar_object *object)
{
	const struct ebbfar_object own = {
		.extent = extent_copy(&object->extent),
		.offset = __atomic_load_n(&object->offset, __ATOMIC_RELAXED),
		.stamp = __atomic_load_n(&object->stamp, __ATOMIC_RELAXED),
	};
	struct ebbfar_extent x;
	int r = enter(far);

	if (r)
		return r;
	r = small_give(&far->small, &own, &x);
	if (r > 0)
		r = extent_free(far, &x);
	return leave(far, r);
}
