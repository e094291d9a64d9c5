/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
#ifndef EBBGC_ATTACH_H
#define EBBGC_ATTACH_H

/* Detaches a thread that exits: the destructor of heap->key. */
void mutator_key_destructor(void *mutator);

#endif
