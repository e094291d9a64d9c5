// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <ncurses.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "top_screen.h"
#include "top_view.h"

struct top_screen {
	SCREEN *terminal;
};

int top_screen_open(struct top_screen **out, struct error *e)
{
	struct top_screen *s;

	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
		return fail_exit(e, EXIT_USAGE, ENOTTY, "top: not a terminal; use --batch");
	s = calloc(1, sizeof(*s));
	if (!s)
		return fail(e, ENOMEM, "top: out of memory");
	s->terminal = newterm(NULL, stdout, stdin);
	if (!s->terminal) {
		free(s);
		return fail_exit(e, EXIT_UNSUPPORTED, ENOTTY,
				 "top: unknown terminal '%.32s'; set TERM, or use --batch",
				 getenv("TERM") ?: "");
	}
	/* ^C is a key, so that the terminal is restored before exit. */
	raw();
	noecho();
	curs_set(0);
	set_escdelay(25);
	keypad(stdscr, TRUE);
	*out = s;
	return 0;
}

void top_screen_close(struct top_screen **p)
{
	if (!*p)
		return;
	endwin();
	delscreen((*p)->terminal);
	free(*p);
	*p = NULL;
}

static int count_lines(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static void draw_line(int y, const char *line, int len)
{
	bool head = len && *line == TOP_HEAD;

	if (head)
		attron(A_REVERSE);
	if (len > head)
		mvaddnstr(y, 0, line + head, len - head < COLS ? len - head : COLS);
	for (int x = len - head; head && x < COLS; x++)
		mvaddch(y, x, ' ');
	if (head)
		attroff(A_REVERSE);
}

void top_screen_draw(struct top_screen *s, const char *text, int *first, const char *bottom)
{
	int room = LINES - 1, most = count_lines(text) - room, y = 0;

	if (*first > most)
		*first = most;
	if (*first < 0)
		*first = 0;
	erase();
	for (int skip = *first; skip && strchr(text, '\n'); skip--)
		text = strchr(text, '\n') + 1;
	for (; *text && y < room; y++) {
		int len = (int)strcspn(text, "\n");

		draw_line(y, text, len);
		text += len + (text[len] == '\n');
	}
	attron(A_BOLD);
	mvaddnstr(LINES - 1, 0, bottom, COLS - 1);
	attroff(A_BOLD);
	refresh();
}

void top_screen_redraw(struct top_screen *s)
{
	clearok(curscr, TRUE);
}

int top_screen_key(struct top_screen *s, int timeout_ms)
{
	int key;

	timeout(timeout_ms);
	key = getch();
	return key == ERR				      ? TOP_KEY_NONE :
	       key == KEY_UP				      ? TOP_KEY_UP :
	       key == KEY_DOWN				      ? TOP_KEY_DOWN :
	       key == KEY_RESIZE			      ? TOP_KEY_RESIZED :
	       key == KEY_BACKSPACE || key == 127 || key == 8 ? TOP_KEY_BACK :
	       key == KEY_ENTER				      ? '\n' :
	       key > 255				      ? TOP_KEY_NONE :
								key;
}
