/* Layouts as tables and documents show them: what ad_layout_print gives, without axes of one rank that say nothing. */
#ifndef LAYOUT_SHOWN_H
#define LAYOUT_SHOWN_H
#include "addend/layout.h"
#include "base/internal.h"

/* "dp_replicate=R dp_shard=S0": the axes that the mesh names, and others only where they cut; R, I, V and P mean
 * the same on an axis that is not there. Returns buffer. */
AD_INTERNAL const char *ad_layout_shown(const ad_layout *layout, char *buffer, size_t size);
/* Shows two layouts that differ, so that the texts differ too: as ad_layout_shown where that is enough, in full where
 * they differ only on axes that it leaves out. */
AD_INTERNAL void ad_layouts_shown_apart(const ad_layout *a, const ad_layout *b, char *of_a, char *of_b, size_t size);

#endif
