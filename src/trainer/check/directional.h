/* The oracle that needs no reference: a difference quotient of the distributed loss against <gradient, direction>. */
#ifndef CHECK_DIRECTIONAL_H
#define CHECK_DIRECTIONAL_H
#include "addend/train.h"
#include "check/proof.h"

/* Fills difference, derivative, directional_err and the loss, on the first rank. Takes one step of the run. */
ad_status ad_directional(ad_comm *comm, ad_run *run, ad_proof *proof) AD_CHECKED;

#endif
