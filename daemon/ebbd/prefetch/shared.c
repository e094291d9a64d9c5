// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/libbpf.h>
#include <string.h>

#include "shared.h"

struct shared_pages shared_pages_of(struct plane *p)
{
	return (struct shared_pages){
		.look = p->look,
		.program = { bpf_program__fd(plane_program(p, PLANE_LOOK)), "look_shared",
			     "no shared memory is prefetched", 0 },
	};
}

void shared_pages_begin(struct shared_pages *s)
{
	s->look->n = 0;
}

void shared_pages_add(struct shared_pages *s, uint64_t file, uint64_t index)
{
	s->look->page[s->look->n].file = file;
	s->look->page[s->look->n++].index = index;
}

const struct ebb_look *shared_pages_answer(struct shared_pages *s)
{
	if (s->look->n && !program_run(&s->program))
		memset(s->look->type, EBB_LOOK_NOT_SWAPPED, s->look->n);
	return s->look;
}
