/* Checks weights from files against the parameters of a program. */
#ifndef PROGRAM_WEIGHTS_H
#define PROGRAM_WEIGHTS_H
#include "addend/program.h"
#include "architecture/architecture.h"
#include "program/program.h"

/* The parameters of all modules, with their names in the program. */
typedef struct ad_program_params {
  ad_param_spec *list; /* specs whose names are in `names` */
  char (*names)[AD_PROGRAM_NAME_SIZE];
  size_t count;
} ad_program_params;
ad_status ad_program_params_list(const ad_program *program, ad_program_params *out) AD_CHECKED;
void ad_program_params_release(ad_program_params *params);

/* Calls ad_params_check_weights for the parameters of all modules. Tensors have the parameters' names in the program
 * or, if an architecture is given, that architecture's names. */
AD_CHECKED ad_status ad_program_check_weights(const ad_program *program, const ad_architecture *architecture,
                                              const ad_weights *weights);

#endif
