/* The parameters of a dump: gathers and checks the facts that the files' metadata states about each parameter. */
#ifndef DIFF_PARAMS_H
#define DIFF_PARAMS_H
#include "read/complaints.h"
#include "read/dump.h"

/* Fills dump->params. Errors in the files are added to `complaints`; the only error that is returned is AD_MEMORY. */
ad_status ad_dump_params_read(ad_dump *dump, ad_complaints *complaints) AD_CHECKED;

#endif
