/* Reads the full parameters of a run, from its weights or from a checkpoint. */
#ifndef EXPORT_VALUES_H
#define EXPORT_VALUES_H
#include "addend/data.h"
#include "program/program.h"
#include "recipe/paper.h"

typedef struct ad_export_values {
  ad_weights *weights; /* the run's file of weights; NULL if the values come from a checkpoint */
  ad_array *arrays;    /* the parameters, if the values come from a checkpoint */
  size_t count;
  ad_mesh *mesh;
} ad_export_values;

/* Opens the values of a run. `params` are the parameters of the complete program, with their names in the program. */
ad_status ad_export_values_open(const char *run, int is_finished, const ad_param_spec *params, size_t count,
                                ad_export_values *out) AD_CHECKED;
void ad_export_values_close(ad_export_values *values);
/* Returns the elements of parameter i, and sets *dtype to their dtype. */
const void *ad_export_value(const ad_export_values *values, const ad_param_spec *params, size_t i, ad_dtype *dtype);

#endif
