/* Weights from files against a program's parameters. */
#ifndef PROGRAM_WEIGHTS_H
#define PROGRAM_WEIGHTS_H
#include "addend/program.h"
#include "architecture/architecture.h"

/* ad_params_check_weights of all modules' parameters, by the names that the program gives them, or, where an
 * architecture is named, by those that it has for them. */
AD_CHECKED ad_status ad_program_check_weights(const ad_program *program, const ad_architecture *architecture,
                                              const ad_weights *weights);

#endif
