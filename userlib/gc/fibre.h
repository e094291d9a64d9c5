/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Fibres that threads touch or have entered: see fibre_word.h. */
#ifndef EBBGC_FIBRE_H
#define EBBGC_FIBRE_H

struct ebbgc_heap;

/* World stopped, a cycle begins: traces the fibres that threads have entered, which are roots. */
void fibres_snapshot(struct ebbgc_heap *h);

#endif
