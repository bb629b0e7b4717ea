/* Functions of the optimizer for proofs and plans. */
#ifndef OPTIM_ADAMW_H
#define OPTIM_ADAMW_H
#include "addend/optim.h"
#include "base/internal.h"

/* Copies all moments and the number of steps from another optimizer, converting dtypes: the reference of a proof starts
 * each step like this. Whole and local shapes must agree; meshes may differ. AD_INVALID: nothing was changed. */
AD_CHECKED ad_status ad_adamw_copy(ad_adamw *to, const ad_adamw *from);
AD_INTERNAL size_t ad_adamw_bytes(const ad_adamw *optimizer); /* bytes of all moments on this rank */

#endif
