/* Weights from files against the parameters that they are for. */
#ifndef PROGRAM_WEIGHTS_H
#define PROGRAM_WEIGHTS_H
#include "addend/program.h"
#include "data/weights.h"

/* AD_INVALID, with `path`, unless the files have every parameter as a tensor of its shape, of floats, and no other
 * tensor: names those that are missing, that differ and that are left over. Looks at no value. */
AD_CHECKED ad_status ad_params_check_weights(const ad_param_spec *params, size_t count, const ad_weights *weights,
                                             const char *path);
AD_CHECKED ad_status ad_program_check_weights(const ad_program *program, const ad_weights *weights, const char *path);

#endif
