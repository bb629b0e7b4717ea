/* Layouts as people need them, in tables and documents: ad_layout_print without the axes of one rank that say nothing.
 */
#ifndef LAYOUT_SHOWN_H
#define LAYOUT_SHOWN_H
#include "addend/layout.h"

/* "dp_replicate=R dp_shard=S0": the axes that the mesh names, and others only where they cut or vary; R, I and P mean
 * the same on an axis that is not there. Returns buffer. */
const char *ad_layout_shown(const ad_layout *layout, char *buffer, size_t size);

#endif
