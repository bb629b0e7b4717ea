/* Layouts as tables and documents show them: like ad_layout_print, but without axes of one rank that carry no
 * information. */
#ifndef LAYOUT_SHOWN_H
#define LAYOUT_SHOWN_H
#include "addend/layout.h"
#include "base/internal.h"

/* Prints a layout such as "dp_replicate=R dp_shard=S0". Axes that the mesh does not name have one rank, on which R, I,
 * V and P mean the same; they are printed only if they are sharded. Returns buffer. */
AD_INTERNAL const char *ad_layout_shown(const ad_layout *layout, char *buffer, size_t size);
/* Prints two different layouts so that the texts differ: with ad_layout_shown if its texts differ, otherwise with
 * ad_layout_print. */
AD_INTERNAL void ad_layouts_shown_apart(const ad_layout *a, const ad_layout *b, char *of_a, char *of_b, size_t size);

#endif
