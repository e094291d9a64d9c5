// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * Functions for programs linked with an earlier version, most of them 0.1.0.  Since then they are
 * inline in ebbgc.h, to pass the size of the caller's struct, or to accept less.
 */
#define ebbgc_options_init inline_options_init
#define ebbgc_options_parse inline_options_parse
#define ebbgc_type_register inline_type_register
#define ebbgc_far_attach inline_far_attach
#include "versions.h"
#undef ebbgc_options_init
#undef ebbgc_options_parse
#undef ebbgc_type_register
#undef ebbgc_far_attach

_Static_assert(sizeof(struct ebbgc_options) >= OPTIONS_0_1_0, "members are appended only");
_Static_assert(sizeof(struct ebbgc_layout) >= LAYOUT_0_1_0, "members are appended only");

EBBGC_API void ebbgc_options_init(struct ebbgc_options *options);
EBBGC_API int ebbgc_options_parse(struct ebbgc_options *options, const char *text);
EBBGC_API int ebbgc_type_register(ebbgc_heap_t *heap, const struct ebbgc_layout *layout,
				  ebbgc_type_t *type);
EBBGC_API int ebbgc_far_attach(ebbgc_heap_t *heap, const struct ebbgc_far_store *store,
			       const struct ebbgc_far_options *options);

void ebbgc_options_init(struct ebbgc_options *options)
{
	ebbgc_options_init_size(options, OPTIONS_0_1_0);
}

/* All words were options then. */
int ebbgc_options_parse(struct ebbgc_options *options, const char *text)
{
	return ebbgc_debug(options, text);
}

int ebbgc_type_register(ebbgc_heap_t *heap, const struct ebbgc_layout *layout, ebbgc_type_t *type)
{
	return ebbgc_type_register_size(heap, layout, LAYOUT_0_1_0, type);
}

/* A store had no jobs then. */
int ebbgc_far_attach(ebbgc_heap_t *heap, const struct ebbgc_far_store *store,
		     const struct ebbgc_far_options *options)
{
	return ebbgc_far_attach_size(heap, store, STORE_LEAST, options);
}
