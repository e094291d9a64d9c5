/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Scope-bound ownership.  Variables that own something carry a cleanup attribute, and
 * TAKE_* transfers ownership, so that each function can be checked for leaks alone.
 */
#ifndef EBB_CLEANUP_H
#define EBB_CLEANUP_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(fn) __attribute__((cleanup(fn)))

static inline void free_charp(void *p) { free(*(void **)p); }
static inline void close_fdp(int *fd) { if (*fd >= 0) close(*fd); }
static inline void close_filep(FILE **f) { if (*f) fclose(*f); }
static inline void close_dirp(DIR **d) { if (*d) closedir(*d); }

#define _cleanup_free_ _cleanup_(free_charp)
#define _cleanup_close_ _cleanup_(close_fdp)
#define _cleanup_file_ _cleanup_(close_filep)
#define _cleanup_dir_ _cleanup_(close_dirp)

static inline int take_fd(int *fd)
{
	int v = *fd;

	*fd = -1;
	return v;
}

static inline void *take_ptr(void *pp)
{
	void *v = *(void **)pp;

	*(void **)pp = NULL;
	return v;
}

#define TAKE_FD(fd) take_fd(&(fd))
#define TAKE_PTR(p) ((typeof(p))take_ptr(&(p)))

#endif
