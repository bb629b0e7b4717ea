/* What proofs and plans ask of an optimizer. */
#ifndef OPTIM_ADAMW_H
#define OPTIM_ADAMW_H
#include "addend/optim.h"
#include "base/internal.h"

/* Copies all moments and the number of steps from another optimizer, converting dtypes. Shapes must agree, both whole
 * and local ones; meshes may differ. The reference of a proof starts a step so. AD_INVALID: nothing was changed. */
AD_CHECKED ad_status ad_adamw_copy(ad_adamw *to, const ad_adamw *from);
AD_INTERNAL size_t ad_adamw_bytes(const ad_adamw *optimizer); /* of all moments on this rank */

#endif
