/* A folder that is written under another name and gets its own when it is whole. */
#ifndef EXPORT_PLACE_H
#define EXPORT_PLACE_H
#include "addend/status.h"

typedef struct ad_export_place {
  char *folder;  /* what it will be called */
  char *written; /* what it is called until then */
  char *earlier; /* what one that makes way is called meanwhile */
} ad_export_place;

/* Makes the folder that is written to. AD_INVALID, with what to type, where something is there that may not go:
 * anything but an earlier export, and that too without `overwrite`. */
ad_status ad_export_begin(const char *folder, int overwrite, ad_export_place *out) AD_CHECKED;
/* `written`: what became of writing. Gives the folder its name; one that was not written whole is removed. */
ad_status ad_export_end(ad_export_place *place, ad_status written) AD_CHECKED;

#endif
