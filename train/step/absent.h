/* What a rank knows about modules that only other ranks have. */
#ifndef TRAIN_ABSENT_H
#define TRAIN_ABSENT_H
#include "addend/module.h"
#include "module/module.h"

/* A module's arrays as this rank knows them: shape, dtype and layout, without elements. All members are NULL if this
 * rank has the module. */
typedef struct ad_absent_module {
  ad_array *parts; /* AD_PART_COUNT arrays for each parameter */
  ad_array **part; /* for each parameter and part, its array in `parts`; NULL if the parameter has no such part */
  ad_array *states;
} ad_absent_module;

/* Describes the arrays that a rank with the module has. Release with ad_absent_release. */
ad_status ad_absent_create(const ad_comm *comm, const ad_module_spec *spec, const ad_module_options *options,
                           ad_absent_module *out) AD_CHECKED;
void ad_absent_release(ad_absent_module *absent);

#endif
