/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The terminal of `top`: lines that scroll, a line at the bottom, keys.  ncurses. */
#ifndef EBB_TOP_SCREEN_H
#define EBB_TOP_SCREEN_H

#include "lib/base/error.h"

struct top_screen;

/* Keys beyond characters. */
enum {
	TOP_KEY_NONE = -1,
	TOP_KEY_UP = -2,
	TOP_KEY_DOWN = -3,
	TOP_KEY_RESIZED = -4,
	TOP_KEY_BACK = -5
};

/* Takes over the terminal; fails without a terminal that ncurses knows. */
int top_screen_open(struct top_screen **out, struct error *e);
/* Restores the terminal and sets *@p to NULL. */
void top_screen_close(struct top_screen **p);

/*
 * Draws @text from line *@first, reduced if too large, and @bottom below it.  Lines that
 * begin with TOP_HEAD are heads of tables.
 */
void top_screen_draw(struct top_screen *s, const char *text, int *first, const char *bottom);

void top_screen_redraw(struct top_screen *s);

/* Returns the next key, or TOP_KEY_NONE after @timeout_ms. */
int top_screen_key(struct top_screen *s, int timeout_ms);

#endif
