/* Weights from files against a program's parameters. */
#ifndef PROGRAM_WEIGHTS_H
#define PROGRAM_WEIGHTS_H
#include "addend/program.h"

/* ad_params_check_weights of all modules' parameters, by the names that the program gives them. */
AD_CHECKED ad_status ad_program_check_weights(const ad_program *program, const ad_weights *weights);

#endif
