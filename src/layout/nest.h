/* Cuts of one dimension by several axes: a nest, outermost first. */
#ifndef LAYOUT_NEST_H
#define LAYOUT_NEST_H
#include "addend/layout.h"

ad_axes ad_layout_cutting(const ad_layout *layout, int dim); /* the axes that cut dimension `dim` */
/* The axis that cuts dimension `dim` at `depth`, AD_AXIS_COUNT if none does. */
ad_axis ad_layout_cut_at(const ad_layout *layout, int dim, int depth);

#endif
