/* Reads a run's full parameters, from its weights or from a checkpoint. */
#ifndef EXPORT_VALUES_H
#define EXPORT_VALUES_H
#include "addend/data.h"
#include "program/program.h"
#include "recipe/paper.h"

typedef struct ad_export_values {
  ad_weights *weights; /* the run's weights; NULL: the values come from a checkpoint */
  ad_array *arrays;    /* the parameters, if the values come from a checkpoint */
  size_t count;
  ad_mesh *mesh;
} ad_export_values;

/* Opens the values of a run. `params`: the parameters of the full program, under their names in the program. */
ad_status ad_export_values_open(const char *run, int is_finished, const ad_param_spec *params, size_t count,
                                ad_export_values *out) AD_CHECKED;
void ad_export_values_close(ad_export_values *values);
/* All elements of parameter number i; *dtype is their dtype. */
const void *ad_export_value(const ad_export_values *values, const ad_param_spec *params, size_t i, ad_dtype *dtype);

#endif
