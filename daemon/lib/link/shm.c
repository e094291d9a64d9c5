// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A donor on this machine: its slabs are memfds, mapped here.  A page is copied,
 * or the answer to a READ sent, straight from the slab: no system call, no
 * donor.  What is mapped must never fault on a page that is out: it is locked
 * here as well, which holds when the donor, and its lock, are gone.  What is sealed
 * is copied before it is opened: the donor could change it meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/wire/local.h"
#include "swapd/swapd.h"

static int shm_open_donor(struct swapd *s, struct donor *d)
{
	_cleanup_close_ int fd = address_connect(&d->address);

	(void)s;
	if (fd < 0)
		return fd;
	/* It could read and change every page. */
	if (!local_peer_trusted(fd))
		return -EPERM;
	d->rx.takes_fds = true;
	return TAKE_FD(fd);
}

/* A memfd that could shrink would make an access a signal. */
static bool is_slab(const struct donor *d, int fd)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && seals & F_SEAL_SHRINK && fstat(fd, &st) == 0 &&
	       (uint64_t)st.st_size >= d->slab_size;
}

static int shm_map_slab(struct swapd *s, struct donor *d, struct copy *copy)
{
	_cleanup_close_ int fd = stream_take_fd(&d->rx);
	/* All of it: a part of a huge page cannot be mapped. */
	size_t size = d->slab_size;
	void *memory;

	/* No fault of the donor's: what it lent before is as good as it was. */
	if (fd == -EMFILE)
		return fd;
	if (fd < 0 || !is_slab(d, fd))
		return -EPROTO;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return -errno;
	madvise(memory, size, MADV_DONTDUMP);
	/* mlockall(2) is only tried; this must succeed. */
	if (mlock(memory, size) < 0) {
		int r = -errno;

		munmap(memory, size);
		return r;
	}
	copy->memory = memory;
	return 0;
}

static void shm_unmap_slab(struct swapd *s, struct donor *d, struct copy *copy)
{
	(void)s;
	munmap(copy->memory, d->slab_size);
	copy->memory = NULL;
}

static enum transport_progress shm_submit(struct swapd *s, struct donor *d, struct slot *slot,
					  int leg, const struct copy *copy, enum wire_op op)
{
	uint8_t *there = copy->memory + slab_offset(&s->table, slot->first + slot->cursor);
	uint8_t *here = slot->payload + slot->cursor * (size_t)PAGE;
	size_t size = slot->run * (size_t)PAGE;

	(void)d;
	(void)leg;
	if (op == WIRE_WRITE)
		memcpy(there, here, size);
	else if (slot->run == slot->count && slot->kind == SLOT_READ && !s->sealed)
		slot->source = there;
	else
		memcpy(here, there, size);
	return TRANSPORT_DONE;
}

const struct transport transport_shm = {
	.name = "shm",
	.open = shm_open_donor,
	.map_slab = shm_map_slab,
	.unmap_slab = shm_unmap_slab,
	.submit = shm_submit,
};
