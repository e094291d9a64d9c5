/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The lowest of many values that change one at a time: a tournament. */
#ifndef EBB_SIM_LOWEST_H
#define EBB_SIM_LOWEST_H

#include <stdint.h>

struct lowest;

/* All @count values begin as UINT64_MAX, "none".  -ENOMEM. */
int lowest_new(struct lowest **out, uint32_t count);
void lowest_free(struct lowest **l);
void lowest_set(struct lowest *l, uint32_t i, uint64_t value);

/* Returns the index of the lowest value, the first of equals; UINT32_MAX if all are none. */
uint32_t lowest_get(const struct lowest *l);

#endif
