/* Layouts as tables and documents show them: like ad_layout_print, without axes of one rank that carry no information.
 */
#ifndef LAYOUT_SHOWN_H
#define LAYOUT_SHOWN_H
#include "addend/layout.h"
#include "base/internal.h"

/* Prints "dp_replicate=R dp_shard=S0": the axes that the mesh names, and other axes only if they are sharded; on an
 * axis that does not exist R, I, V and P mean the same. Returns buffer. */
AD_INTERNAL const char *ad_layout_shown(const ad_layout *layout, char *buffer, size_t size);
/* Prints two different layouts so that the texts differ, too: as ad_layout_shown if that is enough, in full if the
 * layouts differ only on axes that it leaves out. */
AD_INTERNAL void ad_layouts_shown_apart(const ad_layout *a, const ad_layout *b, char *of_a, char *of_b, size_t size);

#endif
