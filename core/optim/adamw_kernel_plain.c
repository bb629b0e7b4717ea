/* The update compiled for the instruction set that every machine has; the code is in adamw_kernel_body.h. */
#define KERNELS ad_adamw_plain
#include "optim/adamw_kernel_body.h"
