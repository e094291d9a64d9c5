// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A donor on this machine: its slabs are memfds, mapped here.  Data is copied, or used in place,
 * without a system call and without the donor.  A mapping is locked here as well, so that an
 * access never faults on a swapped-out page when the donor has exited and its lock has ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/wire/local.h"
#include "link.h"

static int shm_open_donor(struct link *l)
{
	_cleanup_close_ int fd = address_connect(&l->at);

	if (fd < 0)
		return fd;
	/* The donor can read and change every page. */
	if (!local_peer_trusted(fd))
		return -EPERM;
	l->rx.takes_fds = true;
	return TAKE_FD(fd);
}

/* Accesses to a memfd that shrinks would raise SIGBUS. */
static bool is_slab(const struct link *l, int fd)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && seals & F_SEAL_SHRINK && fstat(fd, &st) == 0 &&
	       (uint64_t)st.st_size >= l->slab_size;
}

static int shm_map(struct link *l, struct mapping *m)
{
	_cleanup_close_ int fd = stream_take_fd(&l->rx);
	/* Map the whole slab: a part of a huge page cannot be mapped. */
	size_t size = l->slab_size;
	void *memory;

	/* A local limit, not the donor's fault: its earlier slabs stay in use. */
	if (fd == -EMFILE)
		return fd;
	if (fd < 0 || !is_slab(l, fd))
		return -EPROTO;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return -errno;
	madvise(memory, size, MADV_DONTDUMP);
	/* Failure of mlockall(2) is tolerated, but not here. */
	if (mlock(memory, size) < 0) {
		int r = -errno;

		munmap(memory, size);
		return r;
	}
	m->memory = memory;
	m->size = size;
	return 0;
}

static void shm_unmap(struct mapping *m)
{
	munmap(m->memory, m->size);
	m->memory = NULL;
}

static void shm_submit(struct link *l, const struct mapping *m, struct transfer *t)
{
	uint8_t *there = m->memory + t->offset;

	t->since = 0;
	t->result = 0;
	t->in_place = NULL;
	if (t->op == WIRE_WRITE)
		memcpy(there, t->payload, t->length);
	else if (t->by_reference)
		t->in_place = there;
	else
		memcpy(t->payload, there, t->length);
	l->ops->done(l->owner, t);
}

const struct transport transport_shm = {
	.name = "shm",
	.maps_here = true,
	.open = shm_open_donor,
	.map = shm_map,
	.unmap = shm_unmap,
	.submit = shm_submit,
};
