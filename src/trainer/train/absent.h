/* Modules that other ranks have. */
#ifndef TRAIN_ABSENT_H
#define TRAIN_ABSENT_H
#include "addend/module.h"
#include "module/module.h"

/* Its arrays as far as this rank knows them: without an element. All NULL: the module is here. */
typedef struct ad_absent_module {
  ad_array *parts; /* AD_PART_COUNT for each parameter */
  ad_array **part; /* of each parameter and part the one that it is; NULL: it has none */
  ad_array *states;
} ad_absent_module;

ad_status ad_absent_create(const ad_comm *comm, const ad_module_spec *spec, const ad_module_options *options,
                           ad_absent_module *out) AD_CHECKED;
void ad_absent_release(ad_absent_module *absent);

#endif
