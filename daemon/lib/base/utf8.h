/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_UTF8_H
#define EBB_UTF8_H

/* Returns the length of the UTF-8 character at @c, 0 if invalid (RFC 3629). */
static inline int utf8_length(const unsigned char *c)
{
	int len = *c < 0x80 ? 1 : *c >= 0xc2 && *c < 0xe0 ? 2 : *c >= 0xe0 && *c < 0xf0 ? 3 :
		  *c >= 0xf0 && *c < 0xf5 ? 4 : 0;

	for (int i = 1; i < len; i++)
		if ((c[i] & 0xc0) != 0x80)
			return 0;
	if ((*c == 0xe0 && c[1] < 0xa0) || (*c == 0xed && c[1] >= 0xa0) ||
	    (*c == 0xf0 && c[1] < 0x90) || (*c == 0xf4 && c[1] >= 0x90))
		return 0;
	return len;
}

/* Returns the code point of the control character (C0, DEL, C1) at @c, 0 if it is none. */
static inline unsigned int utf8_control(const unsigned char *c)
{
	return *c < ' ' || *c == 0x7f ? *c : *c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0 ? c[1] : 0;
}

/* Replaces control characters, which steer terminals and forge log lines: a newline by a blank. */
static inline void utf8_print(char *text)
{
	for (unsigned char *c = (unsigned char *)text; *c; c++)
		if (utf8_control(c)) {
			if (*c == 0xc2)
				*c++ = '?';
			*c = *c == '\n' ? ' ' : '?';
		}
}

#endif
