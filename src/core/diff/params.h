/* The parameters of a dump: what its files say of each, put together and checked. */
#ifndef DIFF_PARAMS_H
#define DIFF_PARAMS_H
#include "diff/complaints.h"
#include "diff/dump.h"

/* Fills dump->params. Memory that is lacking is returned, what is wrong is complained of. */
ad_status ad_dump_params_read(ad_dump *dump, ad_complaints *complaints) AD_CHECKED;

#endif
