/* Functions of the optimizer that are not public, for checks and plans. */
#ifndef OPTIM_ADAMW_H
#define OPTIM_ADAMW_H
#include "addend/optim.h"
#include "base/internal.h"

AD_INTERNAL size_t ad_adamw_bytes(const ad_adamw *optimizer); /* bytes of all moments on this rank */

#endif
