/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Small files, such as those of /proc and /sys, whole. */
#ifndef EBB_FILES_H
#define EBB_FILES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Reads up to @size - 1 bytes of @path into @buf and ends them with NUL.
 * Returns their number or -errno; @buf is "" after an error.
 */
ssize_t file_read(const char *path, char *buf, size_t size);

/* Writes @text in one write(2), as kernel files want it.  0 or -errno. */
int file_write(const char *path, const char *text);

/*
 * Replaces @path by @text: staging file in the same directory, then rename, so
 * that a reader sees the old or the new whole.  Mode 0644, less the umask.
 */
int file_replace(const char *path, const char *text);
/* The same for everybody to read, whatever the umask. */
int file_publish(const char *path, const char *text);

/* The number at the start of @path, or @fallback. */
int64_t file_number(const char *path, int64_t fallback);

/* mkdir -p; an existing directory is fine.  0 or -errno. */
int file_make_dirs(const char *path, mode_t mode);

#endif
