/* Checks weights from files against a program's parameters. */
#ifndef PROGRAM_WEIGHTS_H
#define PROGRAM_WEIGHTS_H
#include "addend/program.h"
#include "architecture/architecture.h"
#include "program/program.h"

/* The parameters of all modules, with the names that they have in the program. */
typedef struct ad_program_params {
  ad_param_spec *list; /* specs with names from `names` */
  char (*names)[AD_PROGRAM_NAME_SIZE];
  size_t count;
} ad_program_params;
ad_status ad_program_params_list(const ad_program *program, ad_program_params *out) AD_CHECKED;
void ad_program_params_release(ad_program_params *params);

/* ad_params_check_weights for the parameters of all modules. Tensors have the parameters' names in the program or,
 * if an architecture is given, the names of the architecture. */
AD_CHECKED ad_status ad_program_check_weights(const ad_program *program, const ad_architecture *architecture,
                                              const ad_weights *weights);

#endif
