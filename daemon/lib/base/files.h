/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Reads and writes whole small files, such as those of /proc and /sys. */
#ifndef EBB_FILES_H
#define EBB_FILES_H

#include <stdint.h>
#include <sys/types.h>

/*
 * Reads up to @size - 1 bytes of @path into @buf and appends NUL.
 * Returns the number of bytes or -errno; @buf is "" after an error.
 */
ssize_t file_read(const char *path, char *buf, size_t size);

/* Writes @text in one write(2), which kernel files require.  Returns 0 or -errno. */
int file_write(const char *path, const char *text);

/*
 * Replaces @path by @text atomically, with a staging file in the same directory.
 * Mode 0644 less the umask.
 */
int file_replace(const char *path, const char *text);
/* As file_replace(), with mode 0644 regardless of the umask. */
int file_publish(const char *path, const char *text);

/* Returns the number at the start of @path, or @fallback. */
int64_t file_number(const char *path, int64_t fallback);

/* mkdir -p; succeeds for an existing directory.  Returns 0 or -errno. */
int file_make_dirs(const char *path, mode_t mode);

#endif
