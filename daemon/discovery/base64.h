/* SPDX-License-Identifier: GPL-2.0-or-later */
/* RFC 4648 base64, in which etcd's JSON gateway carries keys and values. */
#ifndef EBB_BASE64_H
#define EBB_BASE64_H

#include <stddef.h>
#include <sys/types.h>

/* Room that base64_encode() needs for @n bytes, NUL included. */
#define BASE64_SIZE(n) (((n) + 2) / 3 * 4 + 1)

/* Writes @n bytes of @from as text to @to of at least BASE64_SIZE(@n); returns @to. */
char *base64_encode(const void *from, size_t n, char *to);

/*
 * Decodes all of @text into @to of @size bytes and ends them with a NUL that
 * does not count.  Returns their number, -EBADMSG when @text is not canonical
 * base64 with its padding, -EMSGSIZE when bytes and NUL do not fit.
 */
ssize_t base64_decode(const char *text, void *to, size_t size);

#endif
