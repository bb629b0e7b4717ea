/* The parameters of a dump: gathers and checks the facts that the files' metadata states about each parameter. */
#ifndef DIFF_PARAMS_H
#define DIFF_PARAMS_H
#include "read/complaints.h"
#include "read/dump.h"

/* Fills dump->params. Errors in the files are added to `complaints`; the only error that is returned is AD_MEMORY. */
ad_status ad_dump_params_read(ad_dump *dump, ad_complaints *complaints) AD_CHECKED;
/* Parses a text such as "dp_shard=R tp=S0" for a parameter of `ndim` dimensions. *named is set to the axes that the text
 * names; all others are R. */
ad_status ad_dump_types_parse(const ad_dump_mesh *mesh, const char *text, int ndim, ad_type types[AD_DUMP_AXES],
                              uint32_t *named) AD_CHECKED;
/* Adds the axes that a text such as "dp tp" names to the bit set *out. */
ad_status ad_dump_axes_parse(const ad_dump_mesh *mesh, const char *text, uint32_t *out) AD_CHECKED;

#endif
