/* Contracts one over the other. */
#ifndef RECIPE_CONTRACT_H
#define RECIPE_CONTRACT_H
#include "addend/reduce.h"

/* What `over` leaves at 0 stays as it is in `base`. */
ad_contract ad_contract_merge(ad_contract base, ad_contract over);

#endif
