/* A proof without a reference: the difference quotient of the distributed loss against <gradient, direction>. */
#ifndef CHECK_DIRECTIONAL_H
#define CHECK_DIRECTIONAL_H
#include "addend/train.h"
#include "check/proof.h"

/* Takes step 0 of the run. On the first rank fills the proof's difference, derivative, directional_err, loss, norm and
 * count. */
ad_status ad_directional(ad_comm *comm, ad_run *run, ad_proof *proof) AD_CHECKED;

#endif
