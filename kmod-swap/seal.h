/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Seals: AES-256-GCM encryption with replay protection of a class's pages wherever they are stored:
 * at donors, in the pool, on the backup.  A holder of the ciphertext can neither read a page nor
 * change it, nor replace it by another page or by older content.
 */
#ifndef EBB_SEAL_H
#define EBB_SEAL_H

#include "request.h"

int ebb_seal_init(struct ebb_device *device, const char **why); /* device->control */
void ebb_seal_free(struct ebb_device *device);

/* Returns true if @io got a buffer.  False: @io continues at @step once it has one. */
bool ebb_seal_get_buffer(struct ebb_io *io, enum ebb_step step);
/* Does nothing if @io has no buffer. */
void ebb_seal_put_buffer(struct ebb_io *io);
/* Calls @call for each of the buffer's pages [@from, @from + @count). */
void ebb_seal_each(struct ebb_io *io, u32 from, u32 count,
		   void (*call)(struct ebb_io *, const struct bio_vec *));
/* Copies @v to a WRITE's buffer, or from a READ's, at byte @at; returns the end offset. */
u32 ebb_seal_copy(struct ebb_io *io, u32 at, const struct bio_vec *v);
/* Fills @sg with the whole buffer, at most EBB_SEGMENTS entries; returns their number. */
int ebb_seal_map(const struct ebb_io *io, struct scatterlist *sg);

/* Seals the buffer's pages in place; may sleep. */
int ebb_seal_encrypt(struct ebb_io *io);
/*
 * Decrypts *@count pages of the buffer in place; may sleep.  -EBADMSG: after *@count pages follows
 * one that has not the bytes that were sealed.  Any other error is local, and the buffer's content
 * is undefined.
 */
int ebb_seal_decrypt(struct ebb_io *io, u32 from, u32 *count);
/* As above for the ciphertext @from of one page, which stays as it is; for the copier alone. */
int ebb_seal_check(struct ebb_device *device, u64 page, struct page *from);
/* Makes the seals of a WRITE those of its pages.  slab->lock is held. */
void ebb_seal_commit(const struct ebb_io *io);

#endif
