// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base64.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *base64_encode(const void *from, size_t n, char *to)
{
	const uint8_t *p = from;
	char *at = to;

	for (; n; p += 3, at += 4) {
		uint32_t three = (uint32_t)p[0] << 16 | (n > 1 ? p[1] << 8 : 0) | (n > 2 ? p[2] : 0);

		at[0] = alphabet[three >> 18];
		at[1] = alphabet[three >> 12 & 63];
		at[2] = n > 1 ? alphabet[three >> 6 & 63] : '=';
		at[3] = n > 2 ? alphabet[three & 63] : '=';
		n -= n > 3 ? 3 : n;
	}
	*at = '\0';
	return to;
}

ssize_t base64_decode(const char *text, void *to, size_t size)
{
	size_t len = strlen(text), n = 0, padding = 0;
	uint8_t *out = to;

	if (len % 4)
		return -EBADMSG;
	while (padding < 2 && len > padding && text[len - 1 - padding] == '=')
		padding++;
	if (len / 4 * 3 - padding + 1 > size)
		return -EMSGSIZE;
	for (size_t i = 0; i < len; i += 4) {
		size_t digits = i + 4 == len ? 4 - padding : 4;
		uint32_t three = 0;

		for (size_t k = 0; k < 4; k++) {
			const char *c = k < digits ? strchr(alphabet, text[i + k]) : alphabet;

			if (!c)
				return -EBADMSG;
			three = three << 6 | (uint32_t)(c - alphabet);
		}
		/* Bits that no byte takes must be zero, or two texts would mean the same. */
		if (three & ((1u << 8 * (4 - digits)) - 1))
			return -EBADMSG;
		for (size_t k = 0; k + 1 < digits; k++)
			out[n++] = (uint8_t)(three >> (16 - 8 * k));
	}
	out[n] = '\0';
	return (ssize_t)n;
}
