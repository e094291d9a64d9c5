// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "ebbd/recording.h"

#define RECORDINGS 8

struct recording {
	uint64_t owner;   /* 0 = unused */
	FILE *file;
};

struct recordings {
	struct attachments *attachments;
	struct ring_buffer *ring;
	struct recording slot[RECORDINGS];
	uint32_t active;
};

static int on_fault(void *data, void *record, size_t size)
{
	static const char *const kinds[] = { "miss", "hit", "late", "out" };
	const struct ebb_trace *t = record;
	struct recordings *r = data;

	for (int i = 0; size >= sizeof(*t) && i < RECORDINGS; i++)
		if (r->slot[i].owner == t->owner && t->kind <= EBB_OUT)
			fprintf(r->slot[i].file, "%llu,%llu,%llu,%u,%u,%s\n",
				(unsigned long long)t->time_ns, (unsigned long long)t->duration_ns,
				(unsigned long long)t->vpn, t->tgid, t->tid, kinds[t->kind]);
	return 0;
}

int recordings_new(struct recordings **out, struct attachments *a, struct error *e)
{
	struct recordings *r = calloc(1, sizeof(*r));

	if (!r)
		return fail(e, ENOMEM, "recordings: out of memory");
	r->attachments = a;
	r->ring = ring_buffer__new(a->plane->trace, on_fault, r, NULL);
	if (!r->ring) {
		free(r);
		return fail(e, errno, "recordings: cannot read the ring buffer: %m");
	}
	*out = r;
	return 0;
}

static void slot_close(struct recordings *r, struct recording *slot)
{
	if (fclose(slot->file))
		log_err("recording: the end of it could not be written: %m");
	slot->owner = 0;
	r->active--;
}

void recordings_free(struct recordings **pr)
{
	struct recordings *r = *pr;

	if (!r)
		return;
	recordings_drain(r);
	for (int i = 0; i < RECORDINGS; i++)
		if (r->slot[i].owner)
			slot_close(r, &r->slot[i]);
	ring_buffer__free(r->ring);
	free(r);
	*pr = NULL;
}

int recording_start(struct recordings *r, const char *cgroup, const char *file, struct error *e)
{
	struct recording *slot = NULL;
	uint64_t owner;
	FILE *f;
	int fd, ret;

	for (int i = 0; i < RECORDINGS && !slot; i++)
		if (!r->slot[i].owner)
			slot = &r->slot[i];
	if (!slot)
		return fail(e, EBUSY, "%s: %d recordings run already; stop one", file, RECORDINGS);
	/* Not through a link that somebody left in a shared directory. */
	fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	f = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (!f) {
		ret = fail(e, errno, "%s: cannot be written: %m", file);
		if (fd >= 0)
			close(fd);
		return ret;
	}
	ret = attach_record(r->attachments, cgroup, RECORD_ON, &owner, e);
	if (ret) {
		fclose(f);
		unlink(file);
		return ret;
	}
	fprintf(f, "time_ns,duration_ns,vpn,tgid,tid,kind\n");
	*slot = (struct recording){ owner, f };
	r->active++;
	return 0;
}

int recording_stop(struct recordings *r, const char *cgroup, struct error *e)
{
	uint64_t owner;
	int ret = attach_record(r->attachments, cgroup, RECORD_OFF, &owner, e);

	if (ret)
		return ret;
	recordings_drain(r);
	for (int i = 0; i < RECORDINGS; i++)
		if (r->slot[i].owner == owner) {
			slot_close(r, &r->slot[i]);
			return 0;
		}
	return fail(e, ENOENT, "%s: is not being recorded", cgroup);
}

void recordings_drain(struct recordings *r)
{
	if (r->active)
		ring_buffer__consume(r->ring);
}
