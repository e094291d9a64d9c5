/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A drawing as a file: NAME.svg, or NAME.png with rsvg-convert installed. */
#ifndef EBB_SIM_PICTURE_H
#define EBB_SIM_PICTURE_H

#include "lib/base/error.h"

/* Refuses a missing @output, and other names. */
int picture_check(const char *command, const char *output, struct error *e);
/* Replaces the file; @svg is the whole drawing. */
int picture_write(const char *svg, const char *output, struct error *e);

#endif
